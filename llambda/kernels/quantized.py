"""Products of quantized weights with quantized activations, in whole numbers. Lesson 09.

Both sides are blocks of 32 columns with scales of their own, so that inside a block only codes are
multiplied: y = sum over blocks of d * dx * sum(code * xcode), and m * dx * sum(xcode) more where a
format has a minimum m. Weights stand in panels of LANES rows. Of four neighbouring columns the
bytes of all rows lie side by side, so one instruction multiplies four columns of every row, each
row has a lane of its own, and nothing is added across lanes. packing.py makes that order.

A form is a function that adds one block to a tile of sums; there is one for each file format:

    form(acc, none, w, panel, b, x) -> acc

acc : the tile, one register of LANES rows for each token
none : empty tiles to begin a block with, of ints and of shorts
w, panel, b : the bytes of the weights, where the panel begins in them, and which of its blocks
x : (codes, scales, at): the tokens' activations, and where the block's codes begin (activations.py)
"""

from typing import Any

from ..simd.arithmetic import mul, shift_right, sub
from ..simd.integers import add_bit, low_bits
from ..simd.jit import inlined
from ..simd.target import target_has
from ..simd.tiles import (
    dot_signed_tile,
    dot_tile,
    fma_tile,
    offset_tile,
    scale_tile,
    widen_tile,
)
from ..simd.widest import LANES, load_bytes, load_f16, load_i8, load_u8, splat

SUPER = 8  # blocks that share the scale of their scales, in the K formats
REGISTER = 4 * LANES  # bytes: four columns of a panel
NIBBLES = 4 * REGISTER  # bytes of four bits of every code of a block
PLANE = REGISTER  # bytes of one more bit of every code
HALVES = 2 * LANES  # bytes of one float16 for each row

# Bytes of a block of a panel; of a K format's without the halves that stand before each eight.
Q4_0, Q4_1 = NIBBLES + HALVES, NIBBLES + 2 * HALVES
Q5_0, Q5_1 = NIBBLES + PLANE + HALVES, NIBBLES + PLANE + 2 * HALVES
Q8_0 = 2 * NIBBLES + HALVES
Q4_K, Q5_K = NIBBLES + 2 * LANES, NIBBLES + PLANE + 2 * LANES
Q6_K = NIBBLES + 2 * PLANE + 2 * LANES

VNNI = target_has("vnni512" if LANES == 16 else "vnni")

# ---------------------------------------------------------------- codes, eight columns at a time


@inlined
def codes4(w: Any, at: int, k: int) -> Any:
    v = load_bytes(w, at + k * REGISTER)
    return low_bits(v, 4), shift_right(v, 4)


@inlined
def codes5(w: Any, at: int, k: int) -> Any:
    low, high = codes4(w, at, k)
    bits = at + NIBBLES + 2 * k * (PLANE // 8)
    return add_bit(low, w, bits, 4), add_bit(high, w, bits + PLANE // 8, 4)


@inlined
def codes6(w: Any, at: int, k: int) -> Any:
    low, high = codes5(w, at, k)
    bits = at + NIBBLES + PLANE + 2 * k * (PLANE // 8)
    return add_bit(low, w, bits, 5), add_bit(high, w, bits + PLANE // 8, 5)


@inlined
def codes8(w: Any, at: int, k: int) -> Any:
    low = at + 2 * k * REGISTER
    return load_bytes(w, low), load_bytes(w, low + REGISTER)


# ---------------------------------------------------------------- sums of products, exact


@inlined
def add_products(dot: Any, codes: Any, first: int, last: int, sums: Any, w: Any, at: int,
                 x: Any) -> Any:  # fmt: skip
    """Eight columns each of first to last, onto sums."""
    xcodes, _, xat = x
    step = 4 * len(sums)
    for k in range(first, last):
        low, high = codes(w, at, k)
        sums = dot(sums, low, xcodes, xat + 2 * k * step)
        sums = dot(sums, high, xcodes, xat + (2 * k + 1) * step)
    return sums


# A lane of shorts has room for eight sums of two products of nibbles, 8 * 2 * 15 * 127, and for
# fewer of longer codes: `run` says for how many times eight columns. VNNI adds to 32 bits at once.
if VNNI:

    @inlined
    def products(codes: Any, run: int, first: int, last: int, sums: Any, none: Any, w: Any,
                 at: int, x: Any) -> Any:  # fmt: skip
        return add_products(dot_tile, codes, first, last, sums, w, at, x)

    @inlined
    def byte_products(none: Any, w: Any, at: int, x: Any) -> Any:
        return add_products(dot_tile, codes8, 0, 4, less(none[0], 7, x), w, at, x)

else:

    @inlined
    def products(codes: Any, run: int, first: int, last: int, sums: Any, none: Any, w: Any,
                 at: int, x: Any) -> Any:  # fmt: skip
        for k in range(first, last, run):
            part = add_products(dot_tile, codes, k, k + run, none[1], w, at, x)
            sums = widen_tile(sums, part)
        return sums

    @inlined
    def byte_products(none: Any, w: Any, at: int, x: Any) -> Any:
        return add_products(dot_signed_tile, codes8, 0, 4, none[0], w, at, x)


@inlined
def less_half(sums: Any, bit: int, half: int, x: Any) -> Any:
    """Sums of 16 codes that are 2**bit too large begin with what they will be too large by."""
    _, scales, at = x
    return offset_tile(sums, scales, at // 8 + (2 + half) * len(sums), bit)


@inlined
def less(sums: Any, bit: int, x: Any) -> Any:
    return less_half(less_half(sums, bit, 0, x), bit, 1, x)


# ---------------------------------------------------------------- scales


@inlined
def with_scale(acc: Any, sums: Any, d: Any, x: Any) -> Any:
    """A block has eight bytes of codes for each word of scales; the first is the token's d."""
    _, scales, at = x
    return scale_tile(acc, sums, d, scales, at // 8)


@inlined
def with_minimum(acc: Any, sums: Any, d: Any, m: Any, x: Any) -> Any:
    """The second word is d * sum(code)."""
    _, scales, at = x
    return fma_tile(with_scale(acc, sums, d, x), (m,), scales, at // 8 + len(acc))


@inlined
def scale_of_scales(w: Any, panel: int, b: int, record: int, codes: int) -> Any:
    """d and m of a block in a K format: two halves for eight blocks, times two bytes for each.

    Returns d, m and where the block's codes begin.
    """
    top = panel + b // SUPER * (2 * HALVES + SUPER * record)
    at = top + 2 * HALVES + b % SUPER * record
    d = mul(load_f16(w, top), load_u8(w, at + codes))
    m = mul(load_f16(w, top + HALVES), load_u8(w, at + codes + LANES))
    return d, sub(splat(0), m), at


# ---------------------------------------------------------------- the forms


@inlined
def q4_0(acc: Any, none: Any, w: Any, panel: int, b: int, x: Any) -> Any:
    at = panel + b * Q4_0
    sums = products(codes4, 4, 0, 4, less(none[0], 3, x), none, w, at, x)
    return with_scale(acc, sums, load_f16(w, at + NIBBLES), x)


@inlined
def q4_1(acc: Any, none: Any, w: Any, panel: int, b: int, x: Any) -> Any:
    at = panel + b * Q4_1
    sums = products(codes4, 4, 0, 4, none[0], none, w, at, x)
    d, m = load_f16(w, at + NIBBLES), load_f16(w, at + NIBBLES + HALVES)
    return with_minimum(acc, sums, d, m, x)


@inlined
def q4_k(acc: Any, none: Any, w: Any, panel: int, b: int, x: Any) -> Any:
    d, m, at = scale_of_scales(w, panel, b, Q4_K, NIBBLES)
    sums = products(codes4, 4, 0, 4, none[0], none, w, at, x)
    return with_minimum(acc, sums, d, m, x)


@inlined
def q5_0(acc: Any, none: Any, w: Any, panel: int, b: int, x: Any) -> Any:
    at = panel + b * Q5_0
    sums = products(codes5, 2, 0, 4, less(none[0], 4, x), none, w, at, x)
    return with_scale(acc, sums, load_f16(w, at + NIBBLES + PLANE), x)


@inlined
def q5_1(acc: Any, none: Any, w: Any, panel: int, b: int, x: Any) -> Any:
    at = panel + b * Q5_1
    sums = products(codes5, 2, 0, 4, none[0], none, w, at, x)
    d, m = load_f16(w, at + NIBBLES + PLANE), load_f16(w, at + NIBBLES + PLANE + HALVES)
    return with_minimum(acc, sums, d, m, x)


@inlined
def q5_k(acc: Any, none: Any, w: Any, panel: int, b: int, x: Any) -> Any:
    d, m, at = scale_of_scales(w, panel, b, Q5_K, NIBBLES + PLANE)
    sums = products(codes5, 2, 0, 4, none[0], none, w, at, x)
    return with_minimum(acc, sums, d, m, x)


@inlined
def q6_k(acc: Any, none: Any, w: Any, panel: int, b: int, x: Any) -> Any:
    """A scale for every 16 columns: two half blocks."""
    top = panel + b // SUPER * (HALVES + SUPER * Q6_K)
    at = top + HALVES + b % SUPER * Q6_K
    scales = at + NIBBLES + 2 * PLANE
    for half in range(2):
        sums = less_half(none[0], 5, half, x)
        sums = products(codes6, 1, 2 * half, 2 * half + 2, sums, none, w, at, x)
        d = mul(load_f16(w, top), load_i8(w, scales + half * LANES))
        acc = with_scale(acc, sums, d, x)
    return acc


@inlined
def q8_0(acc: Any, none: Any, w: Any, panel: int, b: int, x: Any) -> Any:
    at = panel + b * Q8_0
    return with_scale(acc, byte_products(none, w, at, x), load_f16(w, at + 2 * NIBBLES), x)
