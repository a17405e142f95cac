"""Products of bytes and shorts: what quantized weights are multiplied with. Lesson 09.

Where the target has no such instruction, plain vector arithmetic with the same result takes its
place while the kernel is compiled. The last line of each docstring says in NumPy what the function
gives; v, a, b and c stand for vectors as arrays.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from .registers import (
    BYTE,
    INT,
    SHORT,
    Code,
    any_of,
    i8x32,
    i8x64,
    i16x16,
    i16x32,
    i32x8,
    i32x16,
    instruction,
    is_place,
    takes,
    u8x32,
    u8x64,
)
from .target import target_has

NARROW, WIDE = 256, 512  # bits of a register


def has(v: Any, narrow: str, wide: str) -> bool:
    """Whether the target has the instruction for registers as wide as v."""
    bits = v.type.count * v.type.element.width
    return bits in (NARROW, WIDE) and target_has(narrow if bits == NARROW else wide)


def widened(code: Code, v: Any, lane: ir.IntType, signed: bool) -> Any:
    kind = ir.VectorType(lane, v.type.count)
    return code.builder.sext(v, kind) if signed else code.builder.zext(v, kind)


def every(code: Code, v: Any, step: int, first: int) -> Any:
    return code.lanes(v, range(first, v.type.count, step))


@instruction(any_of(takes(u8x32, i8x32, gives=i16x16), takes(u8x64, i8x64, gives=i16x32)))
def maddubs(code: Code, a: Any, b: Any) -> Any:
    """Unsigned times signed bytes, neighbours added; a sum beyond 16 bits stops at the last number.

    np.clip((a.astype(int) * b).reshape(-1, 2).sum(1), -32768, 32767).astype(np.int16)
    """
    half = ir.VectorType(SHORT, a.type.count // 2)
    if has(a, "avx2", "avx512"):
        name = "avx2.pmadd.ub.sw" if half.count == 16 else "avx512.pmaddubs.w.512"
        return code.call(f"llvm.x86.{name}", half, a, b)
    products = code.builder.mul(widened(code, a, SHORT, False), widened(code, b, SHORT, True))
    pairs = every(code, products, 2, 0), every(code, products, 2, 1)
    return code.call(f"llvm.sadd.sat.v{half.count}i16", half, *pairs)


@instruction(any_of(takes(i16x16, i16x16, gives=i32x8), takes(i16x32, i16x32, gives=i32x16)))
def madd(code: Code, a: Any, b: Any) -> Any:
    """Products of shorts, neighbours added.

    (a.astype(int) * b).reshape(-1, 2).sum(1).astype(np.int32)
    """
    half = ir.VectorType(INT, a.type.count // 2)
    if has(a, "avx2", "avx512"):
        name = "avx2.pmadd.wd" if half.count == 8 else "avx512.pmaddw.d.512"
        return code.call(f"llvm.x86.{name}", half, a, b)
    products = code.builder.mul(widened(code, a, INT, True), widened(code, b, INT, True))
    return code.builder.add(every(code, products, 2, 0), every(code, products, 2, 1))


@instruction(
    any_of(takes(i32x8, u8x32, i8x32, gives=i32x8), takes(i32x16, u8x64, i8x64, gives=i32x16))
)
def dot4(code: Code, a: Any, b: Any, c: Any) -> Any:
    """Add four products of unsigned and signed bytes to each lane of a, exactly. (VNNI: vpdpbusd)

    (a + (b.astype(int) * c).reshape(-1, 4).sum(1)).astype(np.int32)
    """
    if has(b, "vnni", "vnni512"):
        words = [code.builder.bitcast(v, a.type) for v in (b, c)]
        name = f"llvm.x86.avx512.vpdpbusd.{32 * a.type.count}"
        return code.call(name, a.type, a, *words)
    products = code.builder.mul(widened(code, b, INT, False), widened(code, c, INT, True))
    for first in range(4):
        a = code.builder.add(a, every(code, products, 4, first))
    return a


@instruction(any_of(takes(i8x32, i8x32, gives=i8x32), takes(i8x64, i8x64, gives=i8x64)))
def sign(code: Code, a: Any, b: Any) -> Any:
    """Negate a where b is negative, clear it where b is zero; -128 stays what it is.

    (a.astype(int) * np.sign(b)).astype(np.int8)
    """
    if a.type.count == 32 and target_has("avx2"):  # the wide form does not exist
        return code.call("llvm.x86.avx2.psign.b", a.type, a, b)
    zero = ir.Constant(a.type, [0] * a.type.count)
    negative = code.builder.icmp_signed("<", b, zero)
    turned = code.builder.select(negative, code.builder.sub(zero, a), a)
    return code.builder.select(code.builder.icmp_signed("==", b, zero), zero, turned)


@instruction(any_of(takes(i8x32, gives=u8x32), takes(i8x64, gives=u8x64)))
def absolute(code: Code, v: Any) -> Any:
    """Magnitudes of signed bytes: 128 for -128.

    np.abs(v.astype(int)).astype(np.uint8)
    """
    zero = ir.Constant(v.type, [0] * v.type.count)
    negative = code.builder.icmp_signed("<", v, zero)
    return code.builder.select(negative, code.builder.sub(zero, v), v)


def of_bytes(v: Any, *others: Any) -> Any:
    return v if v in (u8x32, u8x64) else None


@instruction(lambda v, n: of_bytes(v) if isinstance(n, types.Integer) else None)
def low_bits(code: Code, v: Any, n: Any) -> Any:
    """The last n < 8 bits of every byte: the low nibbles, with n = 4.

    v & (1 << n) - 1
    """
    one = BYTE(1)
    mask = code.builder.sub(code.builder.shl(one, code.argument(1, n, types.uint8)), one)
    return code.builder.and_(v, code.splat(mask, v.type.count))


@instruction(
    lambda v, array, at, n: (
        of_bytes(v) if is_place(array, at) and isinstance(n, types.Integer) else None
    )
)
def add_bit(code: Code, v: Any, array: Any, at: Any, n: Any) -> Any:
    """Set bit n of every byte whose own bit in a row of bits, first ones lowest, is set.

    v | np.unpackbits(array[at:].view(np.uint8)[: v.size // 8], bitorder="little") << n
    """
    b, count = code.builder, v.type.count
    place = b.bitcast(code.element(1, array, at), ir.IntType(count).as_pointer())
    mask = b.bitcast(b.load(place, align=1), ir.VectorType(ir.IntType(1), count))
    bit = b.shl(BYTE(1), code.argument(3, n, types.uint8))
    return b.select(mask, b.or_(v, code.splat(bit, count)), v)


def same_bits(source: Any, target: Any) -> Any:
    @instruction(takes(source, gives=target))
    def view(code: Code, v: Any) -> Any:
        """v.view(dtype): the same bits, read otherwise"""
        return v

    return view


as_u8x32, as_i8x32 = same_bits(i8x32, u8x32), same_bits(u8x32, i8x32)
as_u8x64, as_i8x64 = same_bits(i8x64, u8x64), same_bits(u8x64, i8x64)
