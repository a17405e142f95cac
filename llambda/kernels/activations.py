"""Rows of activations, put in the order in which a matrix product reads them. Lesson 08-09.

A product works on a tile of some tokens at once, and reads the same column of all of them side by
side. n tokens are cut into tiles of TILE; what is left goes into a tile of 1, into tiles of 4 if
these have fewer places than one of TILE, or else into that. Zeros stand for the tokens that are
missing in the last one. A tile that begins at token t lies in memory behind t * cols numbers.

Floats lie as [column][token]. For quantized weights, 32 columns of a token become a block of codes,
whole numbers of at most 127, and a scale: x is about d * code. They lie as

    codes   [block][8][token][4]  int8, so that four neighbouring columns are one 32-bit word
    scales  [block][4][token]     32-bit words: d and d * sum(codes), float32; then as int32
                                  -sum(codes 0..15) and -sum(codes 16..31)
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..simd.arithmetic import add, as_i32, largest, magnitude, maximum, mul, to_i32, total
from ..simd.jit import entry, inlined, kernel
from ..simd.memory import store, store_i8, store_i8_apart, store_pairs_apart
from ..simd.tiles import TILE
from ..simd.widest import LANES, load, splat

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]

BLOCK = 32  # columns that share a scale
WORDS = 4  # of 32 bits that go with a block's codes
TOP = 127  # the largest code
INFINITE = 0x7F800000  # a float32's bits; those of a nan, without the sign, are a larger number

# ---------------------------------------------------------------- tiles of tokens


class Tile(NamedTuple):
    first: int  # token
    tokens: int
    width: int  # tokens that there is room for: 1, 4 or TILE


def tiles(n: int) -> list[Tile]:
    """How n tokens are cut; a rest of 2, say, goes into a tile that is 4 wide."""
    whole = n // TILE * TILE
    rest = n - whole
    width = 1 if rest == 1 else 4 if math.ceil(rest / 4) * 4 < TILE else TILE
    cuts = [Tile(first, TILE, TILE) for first in range(0, whole, TILE)]
    return cuts + [Tile(first, min(width, n - first), width) for first in range(whole, n, width)]


@inlined
def rest_width(rest: int) -> int:
    """The width of tiles for the last tokens, fewer than TILE."""
    return 1 if rest == 1 else 4 if (rest + 3) // 4 * 4 < TILE else TILE


@kernel
def tile_count(n: int) -> int:
    """len(tiles(n))"""
    width = rest_width(n % TILE)
    return n // TILE + (n % TILE + width - 1) // width


@kernel
def tile_of(n: int, i: int) -> Any:
    """tiles(n)[i], as a tuple"""
    whole = n // TILE
    if i < whole:
        return i * TILE, TILE, TILE
    width = rest_width(n % TILE)
    first = whole * TILE + (i - whole) * width
    return first, min(width, n - first), width


@entry
def padded_tokens(n: int) -> int:
    """sum(tile.width for tile in tiles(n))"""
    if n == 0:
        return 0
    first, _, width = tile_of(n, tile_count(n) - 1)
    return first + width


# ---------------------------------------------------------------- floats


def tiled_floats(x: Floats, width: int) -> Floats:
    """x [tokens, cols] -> [cols, width], with zeros for the tokens that are missing."""
    return np.pad(x, ((0, width - len(x)), (0, 0))).T


@kernel
def tile_floats(x: Any, at: int, stride: int, tokens: int, cols: int, width: int, out: Any,
                out_at: int) -> None:  # fmt: skip
    """tiled_floats of rows that lie `stride` apart.

    x : float32; token t begins at at + t * stride
    out : float32; gets cols * width numbers from out_at
    """
    if width == 1:
        copy(x, at, cols, out, out_at)
    else:
        for t in range(0, width, 2):
            row = at + t * stride
            tile_pair(x, row, row + stride, tokens - t, cols, width, out, out_at + t)


@inlined
def copy(x: Any, at: int, n: int, out: Any, out_at: int) -> None:
    whole = n // LANES * LANES
    for i in range(0, whole, LANES):
        store(out, out_at + i, load(x, at + i))
    for i in range(whole, n):
        out[out_at + i] = x[at + i]


@inlined
def tile_pair(x: Any, a: int, b: int, tokens: int, cols: int, width: int, out: Any,
              out_at: int) -> None:  # fmt: skip
    """Two tokens, whose rows begin at a and b; only so many `tokens` exist, of which 1 is a."""
    whole = cols // LANES * LANES
    for i in range(0, whole, LANES):
        va = load(x, a + i) if tokens > 0 else splat(0)
        vb = load(x, b + i) if tokens > 1 else splat(0)
        store_pairs_apart(out, out_at + i * width, width, va, vb)
    for i in range(whole, cols):
        out[out_at + i * width] = x[a + i] if tokens > 0 else np.float32(0)
        out[out_at + i * width + 1] = x[b + i] if tokens > 1 else np.float32(0)


# ---------------------------------------------------------------- codes


def quantize(x: Floats) -> tuple[Codes, Floats]:
    """Codes and scales of blocks: x [..., 32] -> int8 [..., 32] and float32 [...].

    d is the largest magnitude over 127, and a code is the nearest whole number to x / d, ties to
    even. Where 127 over the largest magnitude is infinite, as in a block of zeros, d and all codes
    are 0. A block that holds an infinity or a nan gets the codes 0 and the scale nan, so that what
    is computed from it is nan too.
    """
    top = np.abs(x).max(-1)
    with np.errstate(all="ignore"):
        inverse = np.float32(TOP) / top
        usable = np.isfinite(top) & np.isfinite(inverse)
        products = np.where(usable[..., None], x * inverse[..., None], 0)
        d = np.where(usable, top / np.float32(TOP), np.where(np.isfinite(top), 0, np.nan))
    return np.rint(products).astype(np.int8), d.astype(np.float32)


def tiled_codes(x: Floats, width: int) -> tuple[Codes, Floats]:
    """x [tokens, cols] -> codes int8 [blocks, 8, width, 4] and scales float32 [blocks, 4, width].

    cols is a multiple of 32. The whole numbers among the scales are there as their bits.
    """
    codes, d = quantize(np.pad(x, ((0, width - len(x)), (0, 0))).reshape(width, -1, BLOCK))
    halves = codes.reshape(*d.shape, 2, BLOCK // 2).sum(-1, dtype=np.int32)
    words = np.empty((*d.shape, WORDS), np.float32)  # [width, blocks, 4]
    words[..., 0] = d
    with np.errstate(over="ignore"):
        words[..., 1] = d * halves.sum(-1).astype(np.float32)
    words[..., 2:].view(np.int32)[...] = -halves
    fours = codes.reshape(*d.shape, BLOCK // 4, 4)  # [width, blocks, 8, 4]
    return fours.transpose(1, 2, 0, 3), words.transpose(1, 2, 0)


@kernel
def tile_codes(x: Any, at: int, stride: int, tokens: int, cols: int, width: int, codes: Any,
               codes_at: int, scales: Any, scales_at: int) -> None:  # fmt: skip
    """tiled_codes of rows that lie `stride` apart, bit for bit.

    x : float32; token t begins at at + t * stride
    codes : int8; gets cols * width of them from codes_at
    scales : float32; gets cols * width / 8 words from scales_at
    """
    for t in range(width):
        for b in range(cols // BLOCK):
            block = codes_at + b * BLOCK * width + 4 * t
            words = scales_at + b * WORDS * width + t
            if t < tokens:
                code_block(x, at + t * stride + b * BLOCK, width, codes, block, scales, words)
            else:
                no_block(np.float32(0), width, codes, block, scales, words)


@inlined
def code_block(x: Any, at: int, width: int, codes: Any, codes_at: int, scales: Any,
               words: int) -> None:  # fmt: skip
    bits = largest_bits(x, at)
    if bits >= INFINITE:
        no_block(np.float32(np.nan), width, codes, codes_at, scales, words)
        return
    top = np.int32(bits).view(np.float32)
    d, inverse = top / np.float32(TOP), np.float32(TOP) / top
    if inverse == np.inf:
        d = inverse = np.float32(0)
    low = code_half(x, at, inverse, width, codes, codes_at)
    high = code_half(x, at + BLOCK // 2, inverse, width, codes, codes_at + BLOCK // 2 * width)
    store_words(d, low, high, width, scales, words)


@inlined
def largest_bits(x: Any, at: int) -> int:
    """The bits of the largest magnitude in a block: compared as whole numbers, a nan wins."""
    top = as_i32(magnitude(load(x, at)))
    for i in range(LANES, BLOCK, LANES):
        top = maximum(top, as_i32(magnitude(load(x, at + i))))
    return largest(top)


@inlined
def code_half(x: Any, at: int, inverse: np.float32, width: int, codes: Any, codes_at: int) -> int:
    """Store 16 codes, and return their sum."""
    v = to_i32(mul(load(x, at), splat(inverse)))
    store_fours(codes, codes_at, width, v)
    acc = v
    for i in range(LANES, BLOCK // 2, LANES):
        v = to_i32(mul(load(x, at + i), splat(inverse)))
        store_fours(codes, codes_at + i * width, width, v)
        acc = add(acc, v)
    return total(acc)


@inlined
def store_fours(codes: Any, at: int, width: int, v: Any) -> None:
    if width == 1:
        store_i8(codes, at, v)
    else:
        store_i8_apart(codes, at, 4 * width, v)


@kernel
def no_block(d: np.float32, width: int, codes: Any, codes_at: int, scales: Any, words: int) -> None:
    """A block of zeros with any scale."""
    for i in range(0, BLOCK, LANES):
        store_fours(codes, codes_at + i * width, width, to_i32(splat(0)))
    store_words(d, 0, 0, width, scales, words)


@inlined
def store_words(d: np.float32, low: int, high: int, width: int, scales: Any, words: int) -> None:
    """The scale, and the sums of a block's two halves, of one token among `width`."""
    scales[words] = d
    scales[words + width] = d * np.float32(low + high)
    scales[words + 2 * width] = np.int32(-low).view(np.float32)
    scales[words + 3 * width] = np.int32(-high).view(np.float32)
