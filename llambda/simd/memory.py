"""Between memory and registers: loads, stores, the last few of a row, and a hint for the cache.

Arrays are contiguous, of one axis, and indexed in their own elements. Nothing is checked: an index
outside reads or writes foreign memory. The last line of each docstring says in NumPy what happens.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from .registers import (
    BYTE,
    FLOAT,
    HALF,
    INT,
    SHORT,
    Code,
    Vector,
    f32x8,
    f32x16,
    i8x32,
    i8x64,
    i16x16,
    i32x8,
    i32x16,
    instruction,
    is_place,
    u8x32,
    u8x64,
)
from .target import target_has


def loader(vector: Vector) -> Any:
    """A function (array, at) that gives the vector whose bytes begin at array[at]."""

    @instruction(lambda array, at: vector if is_place(array, at) else None)
    def load(code: Code, array: Any, at: Any) -> Any:
        """array[at:].view(dtype)[:lanes]"""
        kind = code.context.get_value_type(vector)
        return code.builder.load(code.place(array, at, kind), align=code.align)

    return load


load_f32x8, load_f32x16 = loader(f32x8), loader(f32x16)
load_i32x8, load_i32x16 = loader(i32x8), loader(i32x16)
load_i16x16 = loader(i16x16)
load_i8x32, load_i8x64 = loader(i8x32), loader(i8x64)
load_u8x32, load_u8x64 = loader(u8x32), loader(u8x64)


@instruction(
    lambda array, at, v: types.none if is_place(array, at) and isinstance(v, Vector) else None
)
def store(code: Code, array: Any, at: Any, v: Any) -> None:
    """Write a vector's bytes.

    array[at:].view(v.dtype)[:v.size] = v
    """
    code.builder.store(v, code.place(array, at, v.type), align=code.align)


# ---------------------------------------------------------------- the end of a row


def first_lanes(code: Code, n: Any, count: int) -> Any:
    """A mask of `count` bits, set for the lanes below n."""
    numbers = ir.Constant(ir.VectorType(INT, count), list(range(count)))
    limit = code.splat(code.builder.trunc(code.argument(2, n, types.int64), INT), count)
    return code.builder.icmp_signed("<", numbers, limit)


@instruction(
    lambda array, at, n: f32x8 if is_place(array, at) and isinstance(n, types.Integer) else None
)
def load_first_f32x8(code: Code, array: Any, at: Any, n: Any) -> Any:
    """The first n of eight lanes, and zeros; what lies beyond is not touched.

    np.pad(array[at:at+n], (0, 8 - n))
    """
    kind = ir.VectorType(FLOAT, 8)
    place = code.place(array, at, kind)
    zeros, mask = ir.Constant(kind, [0.0] * 8), first_lanes(code, n, 8)
    return code.call("llvm.masked.load.v8f32.p0", kind, place, INT(code.align), mask, zeros)


@instruction(lambda array, at, n, v: types.none if is_place(array, at) and v == f32x8 else None)
def store_first(code: Code, array: Any, at: Any, n: Any, v: Any) -> None:
    """Write the first n lanes only.

    array[at:at+n] = v[:n]
    """
    place, mask = code.place(array, at, v.type), first_lanes(code, n, 8)
    code.call("llvm.masked.store.v8f32.p0", ir.VoidType(), v, place, INT(code.align), mask)


# ---------------------------------------------------------------- other formats


def half_loader(vector: Vector) -> Any:
    @instruction(lambda array, at: vector if is_place(array, at) else None)
    def load_f16(code: Code, array: Any, at: Any) -> Any:
        """Halves, kept as uint16, as float32.

        array[at:at+lanes].view(np.float16).astype(np.float32)
        """
        kind = ir.VectorType(SHORT, vector.lanes)
        bits = code.builder.load(code.place(array, at, kind), align=code.align)
        if not target_has("f16c"):
            return half_to_float(code, bits)
        halves = code.builder.bitcast(bits, ir.VectorType(HALF, vector.lanes))
        return code.builder.fpext(halves, ir.VectorType(FLOAT, vector.lanes))

    return load_f16


def half_to_float(code: Code, bits: Any) -> Any:
    """The same with integers: move the exponent and fraction, then correct the exponent's bias.

    The correction is a product with 2**112, which also makes subnormal halves normal. What had the
    largest exponent is infinite or not a number, and gets float32's largest exponent.
    """
    b, count = code.builder, bits.type.count
    whole, real = ir.VectorType(INT, count), ir.VectorType(FLOAT, count)

    def every(kind: ir.VectorType, value: float) -> ir.Constant:
        return ir.Constant(kind, [value] * count)

    h = b.zext(bits, whole)
    sign = b.shl(b.and_(h, every(whole, 0x8000)), every(whole, 16))
    rest = b.shl(b.and_(h, every(whole, 0x7FFF)), every(whole, 13))
    small = b.bitcast(b.fmul(b.bitcast(rest, real), every(real, 2.0**112)), whole)
    special = b.icmp_unsigned(">=", rest, every(whole, 0x0F800000))
    number = b.select(special, b.or_(rest, every(whole, 0x7F800000)), small)
    return b.bitcast(b.or_(number, sign), real)


def bfloat_loader(vector: Vector) -> Any:
    @instruction(lambda array, at: vector if is_place(array, at) else None)
    def load_bf16(code: Code, array: Any, at: Any) -> Any:
        """bfloat16, kept as uint16, as float32.

        (array[at:at+lanes].astype(np.uint32) << 16).view(np.float32)
        """
        kind, whole = (ir.VectorType(bits, vector.lanes) for bits in (SHORT, INT))
        bits = code.builder.load(code.place(array, at, kind), align=code.align)
        up = ir.Constant(whole, [16] * vector.lanes)
        moved = code.builder.shl(code.builder.zext(bits, whole), up)
        return code.builder.bitcast(moved, ir.VectorType(FLOAT, vector.lanes))

    return load_bf16


def byte_loader(vector: Vector, signed: bool) -> Any:
    @instruction(lambda array, at: vector if is_place(array, at) else None)
    def load_as_f32(code: Code, array: Any, at: Any) -> Any:
        """Small whole numbers as float32.

        array[at:].view(kind)[:lanes].astype(np.float32)
        """
        narrow, whole = (ir.VectorType(bits, vector.lanes) for bits in (BYTE, INT))
        numbers = code.builder.load(code.place(array, at, narrow), align=1)
        widen = code.builder.sext if signed else code.builder.zext
        return code.builder.sitofp(widen(numbers, whole), ir.VectorType(FLOAT, vector.lanes))

    return load_as_f32


load_u8_f32x8, load_u8_f32x16 = byte_loader(f32x8, False), byte_loader(f32x16, False)
load_i8_f32x8, load_i8_f32x16 = byte_loader(f32x8, True), byte_loader(f32x16, True)
load_f16x8, load_f16x16 = half_loader(f32x8), half_loader(f32x16)
load_bf16x8, load_bf16x16 = bfloat_loader(f32x8), bfloat_loader(f32x16)


def repeater(vector: Vector) -> Any:
    @instruction(lambda array, at: vector if is_place(array, at) else None)
    def repeat4(code: Code, array: Any, at: Any) -> Any:
        """Four bytes, over and over.

        np.tile(array[at:].view(np.int8)[:4], lanes // 4)
        """
        word = code.builder.load(code.place(array, at, INT), align=code.align)
        all_lanes = code.splat(word, vector.lanes // 4)
        return code.builder.bitcast(all_lanes, ir.VectorType(BYTE, vector.lanes))

    return repeat4


repeat4_i8x32, repeat4_i8x64 = repeater(i8x32), repeater(i8x64)


@instruction(
    lambda array, at, v: types.none if is_place(array, at) and v in (i32x8, i32x16) else None
)
def store_i8(code: Code, array: Any, at: Any, v: Any) -> None:
    """Write whole numbers as bytes.

    array[at:at+v.size] = v.astype(np.int8)
    """
    low = code.builder.trunc(v, ir.VectorType(BYTE, v.type.count))
    code.builder.store(low, code.place(array, at, low.type), align=code.align)


def apart(array: Any, at: Any, stride: Any, *fits: bool) -> Any:
    places = is_place(array, at) and isinstance(stride, types.Integer)
    return types.none if places and all(fits) else None


def store_apart(code: Code, array: Any, at: Any, stride: Any, v: Any, size: int) -> None:
    """Write each `size` lanes of v side by side, `stride` elements behind those before."""
    b = code.builder
    count = v.type.count // size
    lane = BYTE if v.type.element == BYTE else INT
    word = ir.IntType(size * lane.width)
    words = b.bitcast(v, ir.VectorType(word, count))
    step = code.argument(2, stride, code.signature.args[1])
    for i in range(count):
        b.store(b.extract_element(words, INT(i)), code.place(array, at, word), align=code.align)
        at = b.add(at, step)


@instruction(lambda array, at, stride, v: apart(array, at, stride, v in (i32x8, i32x16)))
def store_i8_apart(code: Code, array: Any, at: Any, stride: Any, v: Any) -> None:
    """Write whole numbers as bytes, four side by side, the next four `stride` behind.

    array[at:][np.arange(v.size) // 4 * stride + np.arange(v.size) % 4] = v.astype(np.int8)
    """
    low = code.builder.trunc(v, ir.VectorType(BYTE, v.type.count))
    store_apart(code, array, at, stride, low, 4)


@instruction(lambda array, at, stride, a, b: apart(array, at, stride, a == b, a in (f32x8, f32x16)))
def store_pairs_apart(code: Code, array: Any, at: Any, stride: Any, a: Any, b: Any) -> None:
    """Write a lane of a and the same lane of b side by side, the next two `stride` behind.

    array[at:][np.arange(a.size)[:, None] * stride + [0, 1]] = np.stack([a, b], 1)
    """
    lanes = a.type.count
    pairs = [n for lane in range(lanes) for n in (lane, lanes + lane)]
    mask = ir.Constant(ir.VectorType(INT, 2 * lanes), pairs)
    store_apart(code, array, at, stride, code.builder.shuffle_vector(a, b, mask), 2)


def float_to_half(code: Code, v: Any) -> Any:
    """The same with integers, rounded to the nearest, ties to even.

    A sum with 0.5 leaves the bits of a subnormal half at the end of the float; for others half of
    the last kept place is added to the bits, and what is carried over counts the exponent up.
    """
    b, count = code.builder, v.type.count
    whole = ir.VectorType(INT, count)

    def every(value: int) -> ir.Constant:
        return ir.Constant(whole, [value] * count)

    bits = b.bitcast(v, whole)
    size = b.and_(bits, every(0x7FFFFFFF))
    odd = b.and_(b.lshr(size, every(13)), every(1))
    rounded = b.lshr(b.add(b.add(size, every(0xC8000FFF)), odd), every(13))
    shifted = b.fadd(b.bitcast(size, v.type), ir.Constant(v.type, [0.5] * count))
    subnormal = b.sub(b.bitcast(shifted, whole), every(0x3F000000))
    half = b.select(b.icmp_unsigned("<", size, every(0x38800000)), subnormal, rounded)
    half = b.select(b.icmp_unsigned(">=", size, every(0x477FF000)), every(0x7C00), half)
    half = b.select(b.icmp_unsigned(">", size, every(0x7F800000)), every(0x7E00), half)
    sign = b.lshr(b.and_(bits, every(0x80000000)), every(16))
    return b.trunc(b.or_(half, sign), ir.VectorType(SHORT, count))


@instruction(lambda array, at, v: types.none if is_place(array, at) and v == f32x8 else None)
def store_f16(code: Code, array: Any, at: Any, v: Any) -> None:
    """Write float32 as halves, kept as uint16, to the nearest, ties to even.

    array[at:at+8] = v.astype(np.float16).view(np.uint16)
    """
    halves = (
        code.builder.fptrunc(v, ir.VectorType(HALF, 8))
        if target_has("f16c")
        else float_to_half(code, v)
    )
    code.builder.store(halves, code.place(array, at, halves.type), align=code.align)


@instruction(lambda array, at: types.none if is_place(array, at) else None)
def prefetch(code: Code, array: Any, at: Any) -> None:
    """Ask for the cache line of array[at]; nothing is read yet, and no address is wrong."""
    place = code.place(array, at, BYTE)
    code.call("llvm.prefetch.p0", ir.VoidType(), place, INT(0), INT(3), INT(1))
