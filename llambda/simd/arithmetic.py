"""Lane by lane, and across the lanes of one register.

The last line of each docstring says in NumPy what the function gives; v, a, b and c stand for
vectors as arrays.
"""

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from .registers import (
    FLOAT,
    INT,
    Code,
    Vector,
    alike,
    any_of,
    f32x8,
    f32x16,
    i32x8,
    i32x16,
    instruction,
    takes,
)

REAL, WHOLE = alike(real=True, whole=False), alike(real=False, whole=True)


def constant(like: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(like, [value] * like.count)


def is_real(v: Any) -> bool:
    return v.type.element == FLOAT


# ---------------------------------------------------------------- making vectors


def splatter(vector: Vector) -> Any:
    @instruction(lambda x: vector if isinstance(x, types.Number) else None)
    def splat(code: Code, x: Any) -> Any:
        """np.full(lanes, x, dtype)"""
        return code.splat(code.argument(0, x, vector.element), vector.lanes)

    return splat


splat_f32x8, splat_f32x16 = splatter(f32x8), splatter(f32x16)
splat_i32x8, splat_i32x16 = splatter(i32x8), splatter(i32x16)


# ---------------------------------------------------------------- lane by lane


def pairwise(meaning: str, whole: str, real: str | None = None) -> Any:
    """A function of two vectors of one type, by LLVM's instruction for whole or real numbers."""

    @instruction(alike(real=real is not None, whole=True))
    def operation(code: Code, a: Any, b: Any) -> Any:
        return getattr(code.builder, real if real and is_real(a) else whole)(a, b)

    operation.__doc__ = meaning
    return operation


add = pairwise("a + b", "add", "fadd")
sub = pairwise("a - b", "sub", "fsub")
mul = pairwise("a * b", "mul", "fmul")
bit_and = pairwise("a & b", "and_")
bit_or = pairwise("a | b", "or_")
bit_xor = pairwise("a ^ b", "xor")


@instruction(REAL)
def div(code: Code, a: Any, b: Any) -> Any:
    """a / b"""
    return code.builder.fdiv(a, b)


@instruction(REAL)
def fma(code: Code, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding.

    (a.astype(np.float64) * b + c).astype(np.float32)
    """
    return code.call(f"llvm.fma.v{a.type.count}f32", a.type, a, b, c)


def larger(code: Code, a: Any, b: Any) -> Any:
    compare = code.builder.fcmp_ordered if is_real(a) else code.builder.icmp_signed
    return code.builder.select(compare(">", a, b), a, b)


@instruction(any_of(*(takes(v, v, gives=v) for v in (f32x8, f32x16, i32x8, i32x16))))
def maximum(code: Code, a: Any, b: Any) -> Any:
    """The larger; b where one is not a number, as the processor does.

    np.where(a > b, a, b)
    """
    return larger(code, a, b)


@instruction(REAL)
def minimum(code: Code, a: Any, b: Any) -> Any:
    """np.where(a < b, a, b)"""
    return code.builder.select(code.builder.fcmp_ordered("<", a, b), a, b)


@instruction(REAL)
def magnitude(code: Code, v: Any) -> Any:
    """np.abs(v)"""
    return code.call(f"llvm.fabs.v{v.type.count}f32", v.type, v)


# ---------------------------------------------------------------- bits


def by_a_count(vector: types.Type, n: types.Type) -> types.Type | None:
    whole = isinstance(vector, Vector) and not vector.real
    return vector if whole and isinstance(n, types.Integer) else None


def shift(code: Code, v: Any, n: Any, how: Callable[[Any, Any], Any]) -> Any:
    vector = code.signature.args[0]
    return how(v, code.splat(code.argument(1, n, vector.element), vector.lanes))


@instruction(by_a_count)
def shift_right(code: Code, v: Any, n: Any) -> Any:
    """Move the bits of every lane down, zeros coming in: the high nibbles of bytes, with n = 4.

    (v.view(f"u{v.itemsize}") >> n).view(v.dtype)
    """
    return shift(code, v, n, code.builder.lshr)


@instruction(by_a_count)
def shift_left(code: Code, v: Any, n: Any) -> Any:
    """Move the bits of every lane up, zeros coming in.

    (v.view(f"u{v.itemsize}") << n).view(v.dtype)
    """
    return shift(code, v, n, code.builder.shl)


# ---------------------------------------------------------------- from one type to another


def of_type(real: bool, gives: types.Number) -> Any:
    """Typing of one vector of float32, or of int32, that becomes one of `gives`."""

    def typing(v: types.Type) -> types.Type | None:
        wanted = types.float32 if real else types.int32
        return v.of(gives) if isinstance(v, Vector) and v.element == wanted else None

    return typing


@instruction(of_type(real=False, gives=types.float32))
def to_f32(code: Code, v: Any) -> Any:
    """v.astype(np.float32)"""
    return code.builder.sitofp(v, ir.VectorType(FLOAT, v.type.count))


@instruction(of_type(real=True, gives=types.int32))
def to_i32(code: Code, v: Any) -> Any:
    """To the nearest whole number, ties to even; for magnitudes below 2**22.

    np.rint(v).astype(np.int32)
    """
    # Beside 1.5 * 2**23 a float32 has no bits left for a fraction: the last bits are the number.
    whole = ir.VectorType(INT, v.type.count)
    moved = code.builder.fadd(v, constant(v.type, 12582912.0))
    return code.builder.sub(code.builder.bitcast(moved, whole), constant(whole, 0x4B400000))


@instruction(of_type(real=False, gives=types.float32))
def as_f32(code: Code, v: Any) -> Any:
    """v.view(np.float32)"""
    return code.builder.bitcast(v, ir.VectorType(FLOAT, v.type.count))


@instruction(of_type(real=True, gives=types.int32))
def as_i32(code: Code, v: Any) -> Any:
    """v.view(np.int32)"""
    return code.builder.bitcast(v, ir.VectorType(INT, v.type.count))


# ---------------------------------------------------------------- across lanes


def fold(code: Code, v: Any, how: Callable[[Any, Any], Any]) -> Any:
    """One number of all lanes: the upper half folded onto the lower until one is left."""
    while v.type.count > 1:
        half = v.type.count // 2
        v = how(code.lanes(v, range(half)), code.lanes(v, range(half, 2 * half)))
    return code.builder.extract_element(v, INT(0))


def number_of(*wanted: Vector) -> Any:
    return lambda v: v.element if v in wanted else None


@instruction(number_of(f32x8, f32x16, i32x8, i32x16))
def total(code: Code, v: Any) -> Any:
    """The sum of the lanes: halves are added, then quarters, and so on.

    functools.reduce(lambda v, _: v[: len(v) // 2] + v[len(v) // 2 :], range(log2(len(v))), v)[0]
    """
    return fold(code, v, code.builder.fadd if is_real(v) else code.builder.add)


@instruction(number_of(f32x8, f32x16, i32x8, i32x16))
def largest(code: Code, v: Any) -> Any:
    """v.max()"""
    return fold(code, v, functools.partial(larger, code))
