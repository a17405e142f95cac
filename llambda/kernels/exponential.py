"""exp of a register of floats: softmax and SwiGLU spend nearly all of their time in it. Lesson 08.

With n the whole number nearest to x / ln 2, and r = x - n ln 2 the rest, exp(x) = 2**n exp(r). The
rest is at most ln 2 / 2, where a polynomial of degree 6 gives exp(r); 2**n is a float whose
exponent bits are n. (Cody and Waite, Software Manual for the Elementary Functions, 1980)
"""

from typing import Any

from ..simd.arithmetic import (
    as_f32,
    as_i32,
    fma,
    maximum,
    minimum,
    mul,
    shift_left,
    shift_right,
    sub,
)
from ..simd.jit import inlined
from ..simd.widest import splat

LOG2_E = 1.4426950408889634
# ln 2 in two parts. The first has so few bits that n times it is exact, and so is the difference.
LN2_HIGH, LN2_LOW = 0.693359375, -2.1219444005469057e-4
# Of the polynomials 1 + r + c2 r**2 + ... + c6 r**6, that of the least largest relative error on
# +-ln 2 / 2, 4e-9: a fifteenth of what rounding its value to float32 costs.
C2, C3, C4, C5, C6 = 0.49999994, 0.16666521, 0.04166839, 0.0083687166, 0.0013814599
# Beside 1.5 * 2**23 a float32 has no bits left for a fraction: the last bits are the number.
ROUND = 12582912.0
BIAS = 127  # of a float32's exponent bits
# Beyond these exp is 0 and infinite in float32. It is 0 from -104 on; at -176 both factors of 2**n
# are 0 themselves, so that minus infinity is spared the processor's slow handling of underflow.
LOWEST, HIGHEST = -176.0, 89.0


@inlined
def exp(v: Any) -> Any:
    """e to the power of every lane, within 1 unit in the last place; what is not a number stays.

    np.exp(v)
    """
    x = minimum(splat(HIGHEST), maximum(splat(LOWEST), v))
    moved = fma(x, splat(LOG2_E), splat(ROUND))
    n = sub(moved, splat(ROUND))
    r = fma(n, splat(-LN2_HIGH), x)
    r = fma(n, splat(-LN2_LOW), r)
    p = fma(splat(C6), r, splat(C5))
    p = fma(p, r, splat(C4))
    p = fma(p, r, splat(C3))
    p = fma(p, r, splat(C2))
    p = fma(p, r, splat(1))
    p = fma(p, r, splat(1))
    # 2**n in two factors, since n may lie beyond a float's exponents where the product does not.
    # With both biases added, what is halved is not negative.
    biased = sub(as_i32(moved), as_i32(splat(ROUND - 2 * BIAS)))
    half = shift_right(biased, 1)
    p = mul(p, as_f32(shift_left(half, 23)))
    return mul(p, as_f32(shift_left(sub(biased, half), 23)))
