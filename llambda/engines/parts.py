"""What the phases of a fused step are made of, for one thread. Lesson 11."""

from typing import Any

import numpy as np

from ..barrier import barrier
from ..kernels import cached_attention as attention
from ..kernels.activations import tile_codes, tile_count, tile_floats, tile_of
from ..kernels.kv_layout import head_size, store_key, store_value
from ..kernels.norm import rms_norm_row
from ..kernels.products import STRIP, multiply_tokens
from ..kernels.rope import rotate_row
from ..simd.cpu import cycles
from ..simd.foreign import bytes_at, floats_at, halves_at, longs_at
from ..simd.jit import inlined, inner
from ..simd.tiles import TILE
from ..threads import share
from . import step as s


@inner
def prepare(step: Any, source: int, stride: int, n: int, cols: int, norm: int, chosen: int,
            takes: int, control: Any, rank: int, threads: int) -> Any:  # fmt: skip
    """Rows of activations, through a norm if there is one, as products take them.

    source : address of the rows, `stride` numbers apart; `chosen` of the numbers of those to take,
        or 0 for the first n
    Returns the addresses of floats, codes and scales. Up to TILE rows every thread makes for
    itself; of more each makes some, for all.
    """
    since = now(step)
    alone = n <= TILE
    own = step[s.OWN] + rank * step[s.OWN_BYTES]
    if alone:
        first, last, normed = 0, tile_count(n), own + step[s.OWN_NORMED]
        tiles, codes, scales = (
            own + step[s.OWN_TILES],
            own + step[s.OWN_CODES],
            own + step[s.OWN_SCALES],
        )
    else:
        first, last = share(tile_count(n), rank, threads)
        normed, tiles, codes, scales = step[s.NORMED], step[s.TILES], step[s.CODES], step[s.SCALES]
    for i in range(first, last):
        begin, tokens, width = tile_of(n, i)
        rows, at = floats_at(source, 0), begin * stride
        if norm:
            rows = floats_at(normed, 0)
            for token in range(begin, begin + tokens):
                row = longs_at(chosen, 0)[token] if chosen else token
                rms_norm_row(floats_at(source, 0), row * stride, floats_at(norm, 0), 0, cols,
                             eps_of(step), rows, token * stride)  # fmt: skip
        if takes & s.FLOATS:
            tile_floats(rows, at, stride, tokens, cols, width, floats_at(tiles, 0), begin * cols)
        if takes & s.CODED:
            tile_codes(rows, at, stride, tokens, cols, width, bytes_at(codes, 0), begin * cols,
                       floats_at(scales, 0), begin * cols // 8)  # fmt: skip
    spent(step, s.PREPARE, rank, since)
    if not alone:
        wait(step, control, rank, threads)
    return tiles, codes, scales


@inlined
def eps_of(step: Any) -> float:
    return np.int64(step[s.EPS]).view(np.float64)


@inner
def multiply(step: Any, w: Any, matrix: int, x: Any, cols: int, n: int, out: int, stride: int,
             first: int, last: int, rank: int) -> None:  # fmt: skip
    """Strips first to last of a matrix times n tokens, and its bias."""
    since = now(step)
    floats, codes, scales = x
    coded = w[matrix + s.TAKES] == s.CODED
    own = step[s.OWN] + rank * step[s.OWN_BYTES]
    multiply_tokens(
        w[matrix + s.PRODUCT], own, w[matrix + s.WEIGHTS], codes if coded else floats,
        1 if coded else 4, scales, cols, n, out, stride, first, last,
    )  # fmt: skip
    if w[matrix + s.BIAS]:
        bias, y = floats_at(w[matrix + s.BIAS], 0), floats_at(out, 0)
        for token in range(n):
            for i in range(first * STRIP, last * STRIP):
                y[token * stride + i] += bias[i]
    spent(step, s.MULTIPLY, rank, since)


@inlined
def some_heads(step: Any, w: Any, matrix: int, x: Any, begin: int, count: int, first: int,
               last: int, rank: int) -> None:  # fmt: skip
    """Those of heads first to last that are of this matrix, whose own begin at `begin`."""
    low, high = max(first - begin, 0), min(last - begin, count)
    if low < high:
        strips = step[s.HEAD_ROWS] // STRIP
        out = step[s.QKV_OUT] + 4 * begin * step[s.HEAD_ROWS]
        multiply(step, w, matrix, x, step[s.DIM], step[s.N], out, step[s.QKV_STRIDE], low * strips,
                 high * strips, rank)  # fmt: skip


@inlined
def onto_x(step: Any, w: Any, matrix: int, x: Any, cols: int, out: int, rank: int,
           threads: int) -> None:  # fmt: skip
    """Some rows of a matrix times x, added to the residual stream."""
    stride = step[s.DIM_STRIDE]
    first, last = share(stride // STRIP, rank, threads)
    multiply(step, w, matrix, x, cols, step[s.N], out, stride, first, last, rank)
    since = now(step)
    stream, y = floats_at(step[s.X], 0), floats_at(out, 0)
    for token in range(step[s.N]):
        for i in range(token * stride + first * STRIP, token * stride + last * STRIP):
            stream[i] += y[i]
    spent(step, s.ADD, rank, since)


@inlined
def token_of(step: Any, token: int) -> Any:
    """A token's sequence, as attention takes it, and its position there."""
    place = longs_at(step[s.TOKENS] + 16 * token, 2)
    size = attention.SEQUENCE
    return longs_at(step[s.SEQUENCES] + 8 * size * place[0], size), place[1]


@inner
def turn(step: Any, head: int, token: int, out: int, stride: int, place: int) -> None:
    """Copy a head out of what the products gave, and turn it by its position."""
    size, position = step[s.HEAD_DIM], token_of(step, token)[1]
    source, target = floats_at(step[s.QKV_OUT], 0), floats_at(out, 0)
    at = token * step[s.QKV_STRIDE] + head * step[s.HEAD_ROWS]
    to = token * stride + place * size
    for i in range(size):
        target[to + i] = source[at + i]
    angles = position * step[s.TURNS]
    rotate_row(target, to, floats_at(step[s.COS], 0), floats_at(step[s.SIN], 0), angles, size // 2)


@inner
def keep_key(step: Any, layer: int, head: int, token: int) -> None:
    sequence, position = token_of(step, token)
    size = step[s.HEAD_DIM]
    keys, at = floats_at(step[s.K_TURNED], 0), token * step[s.KV_STRIDE] + head * size
    place = (layer * step[s.KV_HEADS] + head) * head_size(sequence[attention.ROOM], size)
    if step[s.HALVES]:
        store_key(halves_at(sequence[attention.CACHE], 0), place, position, keys, at, size)
    else:
        store_key(floats_at(sequence[attention.CACHE], 0), place, position, keys, at, size)


@inner
def keep_value(step: Any, layer: int, head: int, token: int, row: int) -> None:
    """The value that stands in row `row` of the heads that the products gave."""
    sequence, position = token_of(step, token)
    size, room = step[s.HEAD_DIM], sequence[attention.ROOM]
    values = floats_at(step[s.QKV_OUT], 0)
    at = token * step[s.QKV_STRIDE] + row * step[s.HEAD_ROWS]
    place = (layer * step[s.KV_HEADS] + head) * head_size(room, size)
    if step[s.HALVES]:
        cache = halves_at(sequence[attention.CACHE], 0)
        store_value(cache, place, room, position, values, at, size)
    else:
        cache32 = floats_at(sequence[attention.CACHE], 0)
        store_value(cache32, place, room, position, values, at, size)


# ---------------------------------------------------------------- waiting, and the clock


@inlined
def wait(step: Any, control: Any, rank: int, threads: int) -> bool:
    since = now(step)
    going_on = barrier(control, threads)
    spent(step, s.WAIT, rank, since)
    return going_on


@inlined
def now(step: Any) -> int:
    return cycles() if step[s.CLOCK] else 0


@inlined
def spent(step: Any, what: int, rank: int, since: int) -> None:
    """Add the ticks since then to a thread's clock."""
    if step[s.CLOCK]:
        clock = longs_at(step[s.CLOCK] + 8 * s.CLOCKS * rank, s.CLOCKS)
        clock[what] += cycles() - since
