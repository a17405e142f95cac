"""Causal grouped-query attention over a cache, compiled. Lesson 11. (In NumPy: attention.py)

A *row* is one query. Query heads of a group share a key/value head, and so do the tokens of a
prompt: row r of a key/value head is query head r % group of the group, and of token r // group.
TILE rows make a tile, and one load of keys or values serves all rows of a tile. Attention is two
products of a matrix in panels with a tile of rows, and a softmax between them:

    scores = keys @ q      weights = softmax(scores / sqrt(head_dim))      out = values.T @ weights

Each number of a row is summed in one order, from the first element or position to the last. So a
token alone and one within a prompt, one thread and many give the same bits.

`score` and `mix` are for one new token in each sequence: threads share the panels of all heads, and
wait for each other in between. `prefill` is for any number of new tokens in each. What a thread
does is a range of unit numbers. What else a call needs stands in a job, JOB int64:

    job[SEQUENCES], job[N]      address of SEQUENCE int64 for each of N sequences: the address of
                                its CACHE; positions that there is ROOM for; its LENGTH with the
                                new tokens, whose keys and values are stored; how many are NEW
    job[LAYER], job[KV_HEADS], job[GROUP], job[HEAD_DIM]    there are KV_HEADS * GROUP query heads
    job[Q], job[Q_STRIDE]       address, float32: the query heads of each new token, sequence after
                                sequence; and numbers from one token to the next
    job[OUT], job[OUT_STRIDE]   the same of the result
    job[ROW], job[SCORES]       row_size of the longest context; address of scores_size float32
    job[OWN]                    address of own_size float32, for one thread alone

Cached numbers beyond a sequence's length have no influence; those before must be finite.
"""

import math
from typing import Any

import numpy as np

from ..simd.foreign import floats_at, halves_at, longs_at
from ..simd.jit import entry, foreign, inlined, inner
from ..simd.tiles import TILE
from ..simd.widest import LANES
from .activations import padded_tokens
from .kv_layout import head_size, up_to_lanes
from .panels import multiply
from .softmax import softmax_row

SEQUENCES, N, LAYER, KV_HEADS, GROUP, HEAD_DIM, Q, Q_STRIDE, OUT, OUT_STRIDE = range(10)
ROW, SCORES, OWN, JOB = range(10, 14)
CACHE, ROOM, LENGTH, NEW, SEQUENCE = range(5)
ZERO: Any = np.int64(0)  # 0 itself has a type of its own: what it is given to is compiled anew


# ---------------------------------------------------------------- sizes


@entry
def row_size(context: int) -> int:
    """Numbers from one row of scores to the next.

    An odd number of registers: were it a power of two, all rows of a tile would compete for the
    same few places in the nearest cache.
    """
    return (up_to_lanes(context) // LANES | 1) * LANES


@entry
def scores_size(n: int, n_kv_heads: int, group: int, row: int) -> int:
    """Numbers that the scores of n sequences take: [n, n_kv_heads, padded rows, row]."""
    return n * n_kv_heads * padded_tokens(group) * row


@entry
def own_size(group: int, head_dim: int, row: int) -> int:
    """Numbers that a thread needs for itself: weights, mixed values, queries and totals of rows."""
    return max(TILE, padded_tokens(group)) * (row + up_to_lanes(head_dim) + head_dim + 1)


@inlined
def places(job: Any) -> Any:
    """Where mixed values, queries and totals begin in that; the weights do at 0."""
    rows = max(TILE, padded_tokens(job[GROUP]))
    mixed = rows * job[ROW]
    queries = mixed + rows * up_to_lanes(job[HEAD_DIM])
    return mixed, queries, queries + rows * job[HEAD_DIM]


@inlined
def panels_of(n: int) -> int:
    return up_to_lanes(n) // LANES


# ---------------------------------------------------------------- rows


@inlined
def row_at(job: Any, stride: int, head: int, row: int) -> int:
    """Where a row of a key/value head begins among the query heads of all tokens."""
    token, member = row // job[GROUP], row % job[GROUP]
    return token * stride + (head * job[GROUP] + member) * job[HEAD_DIM]


@inner
def take_queries(job: Any, head: int, first: int, count: int) -> Any:
    """Copy rows side by side. Returns them as `multiply` takes them."""
    q, own, at, size = floats_at(job[Q], 0), floats_at(job[OWN], 0), places(job)[1], job[HEAD_DIM]
    for i in range(count):
        source, target = row_at(job, job[Q_STRIDE], head, first + i), at + i * size
        for d in range(size):
            own[target + d] = q[source + d]
    return own, at, size, count


@inner
def weigh(job: Any, i: int, length: int, end: int) -> None:
    """Scores of row i become weights, and 0 for positions from length to end."""
    own, at = floats_at(job[OWN], 0), i * job[ROW]
    own[places(job)[2] + i] = softmax_row(own, at, length, 1 / math.sqrt(job[HEAD_DIM]))
    for position in range(at + length, at + end):
        own[position] = 0


@inner
def mix_rows(job: Any, values: Any, head: int, first: int, count: int, low: int,
             high: int) -> None:  # fmt: skip
    """Panels low to high of the values times the weights of rows, to where the result belongs."""
    out, own, width = floats_at(job[OUT], 0), floats_at(job[OWN], 0), up_to_lanes(job[HEAD_DIM])
    mixed, _, totals = places(job)
    multiply(values, low, high, (own, ZERO, job[ROW], count), (own, mixed, width))
    for i in range(count):
        source, target = mixed + i * width, row_at(job, job[OUT_STRIDE], head, first + i)
        for d in range(low * LANES, min(high * LANES, job[HEAD_DIM])):
            out[target + d] = own[source + d] / own[totals + i]


@inlined
def matrices(array_at: Any, job: Any, sequence: Any, head: int, length: int) -> Any:
    """Keys and values of a head, up to a length, as `multiply` takes them."""
    cache, room, head_dim = array_at(sequence[CACHE], 0), sequence[ROOM], job[HEAD_DIM]
    at = (job[LAYER] * job[KV_HEADS] + head) * head_size(room, head_dim)
    return (cache, at, head_dim, head_dim), (cache, at + room * head_dim, room, length)


@inlined
def sequence_of(job: Any, s: int) -> Any:
    return longs_at(job[SEQUENCES] + 8 * SEQUENCE * s, SEQUENCE)


# ---------------------------------------------------------------- one new token a sequence


@inner
def score_units(job: Any) -> int:
    """Panels of keys: of all positions, heads and sequences."""
    total = 0
    for s in range(job[N]):
        total += panels_of(sequence_of(job, s)[LENGTH]) * job[KV_HEADS]
    return total


@inner
def mix_units(job: Any) -> int:
    """As many for each panel of values, so that a longer sequence counts for more work."""
    return score_units(job) * panels_of(job[HEAD_DIM])


@inlined
def scores_at(job: Any, s: int, head: int) -> int:
    return (s * job[KV_HEADS] + head) * padded_tokens(job[GROUP]) * job[ROW]


@inner
def score(array_at: Any, job: Any, first: int, last: int) -> None:
    """Units first to last of the scores; array_at gives a cache's numbers."""
    begin, group = 0, job[GROUP]
    for s in range(job[N]):
        sequence = sequence_of(job, s)
        panels = panels_of(sequence[LENGTH])
        for head in range(job[KV_HEADS]):
            low, high = max(0, first - begin), min(panels, last - begin)
            if low < high:
                keys, _ = matrices(array_at, job, sequence, head, sequence[LENGTH])
                out = floats_at(job[SCORES], 0), scores_at(job, s, head), job[ROW]
                multiply(keys, low, high, take_queries(job, head, s * group, group), out)
            begin += panels


@inner
def mix(array_at: Any, job: Any, first: int, last: int) -> None:
    """The panels of the result that begin in units first to last, once all scores are there."""
    scores, own = floats_at(job[SCORES], 0), floats_at(job[OWN], 0)
    begin, group, width = 0, job[GROUP], panels_of(job[HEAD_DIM])
    for s in range(job[N]):
        sequence = sequence_of(job, s)
        length = sequence[LENGTH]
        panels = panels_of(length)
        for head in range(job[KV_HEADS]):
            low = min(max(0, -((begin - first) // panels)), width)
            high = min(max(0, -((begin - last) // panels)), width)
            if low < high:
                at = scores_at(job, s, head)
                for i in range(group):
                    for position in range(i * job[ROW], i * job[ROW] + length):
                        own[position] = scores[at + position]
                    weigh(job, i, length, length)
                _, values = matrices(array_at, job, sequence, head, length)
                mix_rows(job, values, head, s * group, group, low, high)
            begin += panels * width


# ---------------------------------------------------------------- any number of new tokens


@inlined
def tiles_of(job: Any, sequence: Any) -> int:
    return (sequence[NEW] * job[GROUP] + TILE - 1) // TILE


@inner
def prefill_units(job: Any) -> int:
    """Tiles of all sequences and heads."""
    total = 0
    for s in range(job[N]):
        total += tiles_of(job, sequence_of(job, s)) * job[KV_HEADS]
    return total


@inner
def prefill(array_at: Any, job: Any, first: int, last: int) -> None:
    """Units first to last of the result."""
    begin, token = 0, 0
    for s in range(job[N]):
        sequence = sequence_of(job, s)
        tiles = tiles_of(job, sequence)
        units = tiles * job[KV_HEADS]
        for unit in range(max(0, first - begin), min(units, last - begin)):
            head, i = unit // tiles, unit % tiles
            # First, last, second, last but one...: early tiles have less to look at, and so any
            # range of units is about as much work as another.
            tile = i // 2 if i % 2 == 0 else tiles - 1 - i // 2
            prefill_tile(array_at, job, sequence, token * job[GROUP], head, tile * TILE)
        begin += units
        token += sequence[NEW]


@inner
def prefill_tile(array_at: Any, job: Any, sequence: Any, origin: int, head: int, row: int) -> None:
    """One tile; rows count from `origin`, the first of the sequence."""
    own, group = floats_at(job[OWN], 0), job[GROUP]
    count = min(TILE, sequence[NEW] * group - row)
    before = sequence[LENGTH] - sequence[NEW] + 1
    end = before + (row + count - 1) // group
    keys, values = matrices(array_at, job, sequence, head, end)
    queries = take_queries(job, head, origin + row, count)
    multiply(keys, ZERO, panels_of(end), queries, (own, ZERO, job[ROW]))
    for i in range(count):
        weigh(job, i, before + (row + i) // group, end)
    mix_rows(job, values, head, origin + row, count, ZERO, panels_of(job[HEAD_DIM]))


# ---------------------------------------------------------------- for either kind of cache


@foreign
def score_f32(job: int, first: int, last: int) -> None:
    score(floats_at, longs_at(job, JOB), first, last)


@foreign
def mix_f32(job: int, first: int, last: int) -> None:
    mix(floats_at, longs_at(job, JOB), first, last)


@foreign
def prefill_f32(job: int, first: int, last: int) -> None:
    prefill(floats_at, longs_at(job, JOB), first, last)


@foreign
def score_f16(job: int, first: int, last: int) -> None:
    score(halves_at, longs_at(job, JOB), first, last)


@foreign
def mix_f16(job: int, first: int, last: int) -> None:
    mix(halves_at, longs_at(job, JOB), first, last)


@foreign
def prefill_f16(job: int, first: int, last: int) -> None:
    prefill(halves_at, longs_at(job, JOB), first, last)
