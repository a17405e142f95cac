"""Matrix products Y = X W^T over packed weights: a C function for each weight format. Lesson 08-09.

The output's rows of W are cut into strips of 2 * LANES, and a call computes the strips from first
to last: that is how threads share one matrix. What else a call needs stands in a job, eight int64:

    job[W], job[X], job[SCALES], job[OUT]   addresses: packed weights; the tokens' columns (float32,
                                            or int8 codes and their scales; activations.py); float32
    job[COLS]                               columns of W
    job[TOKENS], job[TILES]                 tokens in a tile (1, 4 or TILE), tiles after another
    job[STRIDE]                             numbers from one token's output to the next token's

Each token and row is summed in one order, from the first column to the last, whatever the tile:
so one token alone and one among others, one thread and many give the same bits.
"""

from typing import Any

from ..simd.foreign import bytes_at, call3, floats_at, longs_at
from ..simd.jit import foreign, inlined, kernel
from ..simd.memory import prefetch
from ..simd.tiles import (
    TILE,
    floats1,
    floats4,
    floats_tile,
    fma_tile,
    load_tile2,
    pair1,
    pair4,
    pair_tile,
    store_tile1,
    store_tile2,
    zeros,
)
from ..simd.widest import LANES, ints, load, load_bf16, load_f16, shorts
from ..tensor import ALIGNMENT
from . import quantized
from .activations import BLOCK, WORDS, tile_count, tile_of
from .quantized import HALVES, SUPER

STRIP = 2 * LANES  # rows
W, X, SCALES, OUT, COLS, TOKENS, TILES, STRIDE = range(8)
JOB = 8  # numbers in a job
# Bytes of weights asked for before they are needed, as measured. The first tile asks. Narrow ones
# all do: where the code left that out, the compiler made the widest loop a tenth slower.
CODES_AHEAD, FLOATS_AHEAD = 8192, 2048
COLUMNS = 256  # of a strip of floats at a time: they stay in the nearest cache for all tiles

ints1, ints4, ints_tile = zeros(ints, 1), zeros(ints, 4), zeros(ints, TILE)
shorts1, shorts4, shorts_tile = zeros(shorts, 1), zeros(shorts, 4), zeros(shorts, TILE)


@inlined
def fetch_ahead(w: Any, at: int, nbytes: int) -> None:
    for line in range(at, at + nbytes, ALIGNMENT):
        prefetch(w, line)


@kernel
def multiply_tokens(product: int, job_at: int, w: int, x: int, size: int, scales: int, cols: int,
                    n: int, out: int, stride: int, first: int, last: int) -> None:  # fmt: skip
    """Strips first to last times n tokens: a call for all whole tiles, and one for the others.

    product : address of one of the C functions below
    job_at : address of JOB int64, to write in
    x, size : address of the tiles of tokens, and bytes of a number there, 4 or 1
    """
    job, whole = longs_at(job_at, JOB), n // TILE
    job[W], job[COLS], job[STRIDE] = w, cols, stride
    for begin, count in ((0, whole), (whole, tile_count(n) - whole)):
        if count > 0:
            token, _, width = tile_of(n, begin)
            done = token * cols
            job[X], job[SCALES] = x + size * done, scales + 4 * (done // BLOCK * WORDS)
            job[TOKENS], job[TILES], job[OUT] = width, count, out + 4 * token * stride
            call3(product, job_at, first, last)


# ---------------------------------------------------------------- quantized weights


@inlined
def sum_panels(form: Any, nbytes: int, record: int, acc: Any, none: Any, job: Any, first: int,
               last: int) -> None:  # fmt: skip
    """Panels first to last, of nbytes each, for every tile of len(acc) tokens."""
    tokens, blocks = len(acc), job[COLS] // BLOCK
    w, out = bytes_at(job[W], last * nbytes), floats_at(job[OUT], 0)
    codes, scales = bytes_at(job[X], 0), floats_at(job[SCALES], 0)
    for panel in range(first, last):
        for tile in range(job[TILES]):
            sums = acc
            for b in range(blocks):
                if tokens < TILE or tile == 0:
                    fetch_ahead(w, panel * nbytes + b * record + CODES_AHEAD, record)
                x = (codes, scales, (tile * blocks + b) * BLOCK * tokens)
                sums = form(sums, none, w, panel * nbytes, b, x)
            store_tile1(out, tile * tokens * job[STRIDE] + panel * LANES, job[STRIDE], sums)


@inlined
def multiply(form: Any, record: int, header: int, address: int, first: int, last: int) -> None:
    """Blocks of `record` bytes, and `header` bytes before each SUPER of them."""
    job = longs_at(address, JOB)
    blocks = job[COLS] // BLOCK
    nbytes = blocks * record + blocks // SUPER * header
    first, last = 2 * first, 2 * last
    if job[TOKENS] == 1:
        sum_panels(form, nbytes, record, floats1(), (ints1(), shorts1()), job, first, last)
    elif job[TOKENS] == 4:
        sum_panels(form, nbytes, record, floats4(), (ints4(), shorts4()), job, first, last)
    else:
        sum_panels(
            form, nbytes, record, floats_tile(), (ints_tile(), shorts_tile()), job, first, last
        )


@foreign
def q4_0(job: int, first: int, last: int) -> None:
    multiply(quantized.q4_0, quantized.Q4_0, 0, job, first, last)


@foreign
def q4_1(job: int, first: int, last: int) -> None:
    multiply(quantized.q4_1, quantized.Q4_1, 0, job, first, last)


@foreign
def q5_0(job: int, first: int, last: int) -> None:
    multiply(quantized.q5_0, quantized.Q5_0, 0, job, first, last)


@foreign
def q5_1(job: int, first: int, last: int) -> None:
    multiply(quantized.q5_1, quantized.Q5_1, 0, job, first, last)


@foreign
def q8_0(job: int, first: int, last: int) -> None:
    multiply(quantized.q8_0, quantized.Q8_0, 0, job, first, last)


@foreign
def q4_k(job: int, first: int, last: int) -> None:
    multiply(quantized.q4_k, quantized.Q4_K, 2 * HALVES, job, first, last)


@foreign
def q5_k(job: int, first: int, last: int) -> None:
    multiply(quantized.q5_k, quantized.Q5_K, 2 * HALVES, job, first, last)


@foreign
def q6_k(job: int, first: int, last: int) -> None:
    multiply(quantized.q6_k, quantized.Q6_K, HALVES, job, first, last)


# ---------------------------------------------------------------- floats


@inlined
def load_two(w: Any, at: int) -> Any:
    return load(w, at), load(w, at + 4 * LANES)


@inlined
def load_two_f16(w: Any, at: int) -> Any:
    return load_f16(w, at), load_f16(w, at + 2 * LANES)


@inlined
def load_two_bf16(w: Any, at: int) -> Any:
    return load_bf16(w, at), load_bf16(w, at + 2 * LANES)


@inlined
def sum_strips(weights: Any, size: int, acc: Any, job: Any, first: int, last: int) -> None:
    """Strips of numbers of `size` bytes, two registers of rows for each column."""
    tokens, cols, stride = len(acc) // 2, job[COLS], job[STRIDE]
    step = STRIP * size
    w, out = bytes_at(job[W], last * cols * step), floats_at(job[OUT], 0)
    x = floats_at(job[X], 0)
    for strip in range(first, last):
        for begin in range(0, cols, COLUMNS):
            for tile in range(job[TILES]):
                place = tile * tokens * stride + strip * STRIP
                sums = acc if begin == 0 else load_tile2(out, place, stride, acc)
                for c in range(begin, min(begin + COLUMNS, cols)):
                    at = (strip * cols + c) * step
                    if tokens < TILE or tile == 0:
                        fetch_ahead(w, at + FLOATS_AHEAD, step)
                    sums = fma_tile(sums, weights(w, at), x, (tile * cols + c) * tokens)
                store_tile2(out, place, stride, sums)


@inlined
def multiply_floats(weights: Any, size: int, address: int, first: int, last: int) -> None:
    job = longs_at(address, JOB)
    if job[TOKENS] == 1:
        sum_strips(weights, size, pair1(), job, first, last)
    elif job[TOKENS] == 4:
        sum_strips(weights, size, pair4(), job, first, last)
    else:
        sum_strips(weights, size, pair_tile(), job, first, last)


@foreign
def f32(job: int, first: int, last: int) -> None:
    multiply_floats(load_two, 4, job, first, last)


@foreign
def f16(job: int, first: int, last: int) -> None:
    multiply_floats(load_two_f16, 2, job, first, last)


@foreign
def bf16(job: int, first: int, last: int) -> None:
    multiply_floats(load_two_bf16, 2, job, first, last)
