"""Compiled attention against NumPy in float64, and against itself however the work is cut.

Caches are filled with nan wherever nothing is stored, and so is all scratch: whatever is read that
should not be shows. The same tests hold for any target, for instance with NUMBA_CPU_NAME=generic
and NUMBA_CPU_FEATURES= (empty).
"""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from llambda.kernels import cached_attention as ca
from llambda.kernels.activations import padded_tokens
from llambda.kernels.attention import attention
from llambda.kernels.kv_layout import (
    head_size,
    keys_of,
    load_numbers,
    store_key,
    store_number,
    store_value,
    up_to_lanes,
    values_of,
)
from llambda.kernels.panels import fma_rows
from llambda.simd.jit import compiled
from llambda.simd.tiles import TILE, store_tile2, zeros
from llambda.simd.widest import LANES, floats

F32, NAN = np.float32, np.float32(np.nan)
U = 2.0**-24  # what one rounding to float32 may cost, relatively
LAYERS, LAYER = 2, 1  # the layer that is used, and one whose numbers must not matter
KINDS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}
LENGTHS = [1, LANES - 1, LANES, LANES + 1, 100]
THREADS = [1, 2, 3, 7, 50]

Floats = np.ndarray


class Heads(NamedTuple):
    n_kv_heads: int
    group: int
    dim: int

    @property
    def n_heads(self) -> int:
        return self.n_kv_heads * self.group


HEADS = [
    Heads(1 + group % 2, group, dim)
    for dim in (6, 16, 48, 64, 80, 128)
    for group in (1, 2, 3, 4, 5, 8, 16)
]
USUAL = Heads(3, 3, 64)  # smollm2's; a tile of either size ends between the heads of a token
SHAPES = [USUAL, Heads(2, 8, 48), Heads(1, 1, 6)]


# ---------------------------------------------------------------- sequences and calls


@compiled
def store_position(cache, begin, room, position, k, v, at, head_dim):
    store_key(cache, begin, position, k, at, head_dim)
    store_value(cache, begin, room, position, v, at, head_dim)


@compiled
def units_of(job):
    return ca.score_units(job), ca.mix_units(job), ca.prefill_units(job)


@dataclass
class Sequence:
    """Random queries [m, n_heads, dim], keys and values [n_kv_heads, m, dim] as the cache has them.

    Only the first `length` positions are in the cache, which has room for a few more than m.
    """

    heads: Heads
    kind: str
    q: Floats
    k: Floats
    v: Floats
    cache: Floats
    room: int
    length: int

    def stored(self, length: int, beyond: float = np.nan) -> "Sequence":
        """The same with another length; all other numbers are `beyond`."""
        heads, (k, v) = self.heads, (self.k.ravel(), self.v.ravel())
        size = head_size(self.room, heads.dim)
        cache = np.full(LAYERS * heads.n_kv_heads * size, beyond, KINDS[self.kind])
        numbers = cache.view(np.uint16) if self.kind == "f16" else cache
        for head in range(heads.n_kv_heads):
            begin = (LAYER * heads.n_kv_heads + head) * size
            for position in range(length):
                at = (head * self.k.shape[1] + position) * heads.dim
                store_position(numbers, begin, self.room, position, k, v, at, heads.dim)
        return Sequence(heads, self.kind, self.q, self.k, self.v, numbers, self.room, length)


def sequence(heads: Heads, m: int, kind: str = "f32", seed: int = 0, extra: int = 0) -> Sequence:
    """All m positions stored, in a cache with room for `extra` more."""
    rng = np.random.default_rng((seed, m, *heads))
    q = rng.normal(0, 2, (m, heads.n_heads, heads.dim)).astype(F32)
    k, v = rng.normal(0, 1, (2, heads.n_kv_heads, m, heads.dim)).astype(KINDS[kind]).astype(F32)
    made = Sequence(heads, kind, q, k, v, np.empty(0), up_to_lanes(m + extra), 0)
    return made.stored(m)


@dataclass
class Call:
    """Some sequences of the same heads; the last `new` tokens of each are new."""

    sequences: list[Sequence]
    new: list[int]

    def __post_init__(self) -> None:
        heads = self.sequences[0].heads
        self.width = heads.n_heads * heads.dim
        pairs = list(zip(self.sequences, self.new, strict=True))
        q = np.concatenate([s.q[s.length - n : s.length] for s, n in pairs])
        self.q = np.full((len(q), self.width + 3), NAN)
        self.q[:, : self.width] = q.reshape(len(q), self.width)
        self.out = np.full((len(q), self.width + 5), F32(77))
        self.out[:, : self.width] = NAN
        row = ca.row_size(max(s.room for s in self.sequences))
        count = len(self.sequences)
        self.scores = np.full(
            ca.scores_size(count, heads.n_kv_heads, heads.group, row), NAN, F32
        ).reshape(count, heads.n_kv_heads, padded_tokens(heads.group), row)
        self.own = np.full(ca.own_size(heads.group, heads.dim, row), NAN, F32)
        table = [(s.cache.ctypes.data, s.room, s.length, n) for s, n in pairs]
        self.table = np.array(table, np.int64)
        self.job = np.zeros(ca.JOB, np.int64)
        self.job[[ca.SEQUENCES, ca.N, ca.LAYER]] = self.table.ctypes.data, count, LAYER
        self.job[[ca.KV_HEADS, ca.GROUP, ca.HEAD_DIM]] = heads
        self.job[[ca.Q, ca.Q_STRIDE]] = self.q.ctypes.data, self.width + 3
        self.job[[ca.OUT, ca.OUT_STRIDE]] = self.out.ctypes.data, self.width + 5
        self.job[[ca.ROW, ca.SCORES, ca.OWN]] = row, self.scores.ctypes.data, self.own.ctypes.data
        self.score_units, self.mix_units, self.prefill_units = units_of(self.job)

    def run(self, name: str, first: int, last: int) -> None:
        """One thread's part of a phase; its own scratch holds whatever it held."""
        getattr(ca, f"{name}_{self.sequences[0].kind}")(self.job.ctypes.data, first, last)

    def phase(self, name: str, threads: int) -> Iterator[None]:
        """All threads' parts, the last one first."""
        units = getattr(self, f"{name}_units")
        for rank in reversed(range(threads)):
            self.own[:] = NAN
            self.run(name, units * rank // threads, units * (rank + 1) // threads)
            yield

    @property
    def result(self) -> Floats:
        """[tokens, n_heads, dim]; between the rows nothing was written."""
        assert (self.out[:, self.width :] == 77).all()
        return self.out[:, : self.width].reshape(len(self.out), -1, self.sequences[0].heads.dim)


def decoded(sequences: list[Sequence], threads: int = 1) -> Floats:
    """The last token of each."""
    call = Call(sequences, [1] * len(sequences))
    for name in ("score", "mix"):
        for _ in call.phase(name, threads):
            pass
    return call.result


def prefilled(sequences: list[Sequence], new: list[int], threads: int = 1) -> Floats:
    call = Call(sequences, new)
    for _ in call.phase("prefill", threads):
        pass
    return call.result


# ---------------------------------------------------------------- the check


def assert_is_attention(got: Floats, s: Sequence, start: int) -> None:
    """Float32 results for the queries from `start` on differ from float64's by rounding only.

    A sum of n float32 products in any order is off by at most n U times the sum of magnitudes.
    That, of a score, moves the logarithm of its weight; subtracting the largest, the two factors
    and float32's root in NumPy move it by U of itself each; exp adds one unit in the last place,
    2 U. A weight's relative error counts with what it is a weight of, in the mixture and again in
    the total it is divided by; both are sums over positions, and a division ends it.
    """
    q, k, v = (x.astype(np.float64) for x in (s.q[start : s.length], s.k, s.v))
    k, v = k[:, : s.length], v[:, : s.length]
    wanted = attention(q, k, v, start)
    m, heads = s.length, s.heads
    k, v = (np.repeat(x, heads.group, 0) for x in (k, v))  # [n_heads, m, dim]
    later = np.arange(m) > start + np.arange(m - start)[:, None]
    x = np.einsum("nhd,hmd->hnm", q, k) / math.sqrt(heads.dim)
    x = np.where(later, -np.inf, x)
    x -= x.max(-1, keepdims=True)
    weights = np.exp(x)
    weights /= weights.sum(-1, keepdims=True)
    sizes = np.einsum("nhd,hmd->hnm", np.abs(q), np.abs(k)) / math.sqrt(heads.dim)
    moved = 1.01 * heads.dim * U * sizes + 4 * U * np.abs(np.where(later, 0, x))
    errors = weights * (np.expm1(moved) + 2 * U)
    each = np.einsum("hnm,hmd->nhd", errors, np.abs(v))
    size = np.einsum("hnm,hmd->nhd", weights, np.abs(v))
    bound = each + (errors.sum(-1).T[..., None] + (2 * m + 2) * U) * size
    assert (np.abs(got - wanted) <= 1.01 * bound).all()


def with_a_mistake(s: Sequence, start: int, what: str) -> Floats:
    """NumPy's attention in float32; "" is none."""
    q, k, v = s.q[start : s.length], s.k, s.v
    match what:
        case "heads of a group tiled instead of repeated":
            order = np.arange(s.heads.n_heads).reshape(-1, s.heads.n_kv_heads).T.ravel()
            out = np.empty_like(q)
            out[:, order] = attention(q[:, order], k, v, start)
            return out
        case "another head's keys":
            k = np.roll(k, 1, 0)
        case "another head's values":
            v = np.roll(v, 1, 0)
        case "not its own position":
            k, v, start = k[:, 1:], v[:, 1:], start - 1
        case "one position too many":
            k, v = (np.concatenate([x, x[:, :1]], 1) for x in (k, v))
            start += 1
        case "scores not scaled":
            q = q * F32(math.sqrt(s.heads.dim))
        case "values in half precision":
            v = v.astype(np.float16).astype(F32)
    return attention(q, k, v, start)


MISTAKES = [
    "heads of a group tiled instead of repeated",
    "another head's keys",
    "another head's values",
    "not its own position",
    "one position too many",
    "scores not scaled",
    "values in half precision",
]


@pytest.mark.parametrize("what", MISTAKES)
def test_the_check_notices(what: str):
    s, start = sequence(USUAL, 40), 20
    assert_is_attention(with_a_mistake(s, start, ""), s, start)
    wrong = with_a_mistake(s, start, what)
    assert not np.array_equal(wrong, with_a_mistake(s, start, ""))
    with pytest.raises(AssertionError):
        assert_is_attention(wrong, s, start)


# ---------------------------------------------------------------- the right numbers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: "x".join(map(str, heads)))
def test_it_is_attention(heads: Heads, kind: str):
    """And a token of a prompt gets the bits that it would get alone."""
    s = sequence(heads, max(LENGTHS), kind)
    whole = prefilled([s], [s.length])
    assert_is_attention(whole, s, 0)
    for length in LENGTHS:
        alone = decoded([s.stored(length)])
        assert np.array_equal(alone[0], whole[length - 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_however_a_prompt_is_cut(heads: Heads, kind: str):
    """Every part of it that a call may be given, among them all 256 ways to cut nine tokens."""
    skipped, m = LANES - 4, LANES + 5
    s = sequence(heads, m, kind)
    whole = prefilled([s], [m])
    for end in range(skipped + 1, m + 1):
        cut = s.stored(end)
        assert np.array_equal(decoded([cut])[0], whole[end - 1])
        for start in range(skipped, end):
            assert np.array_equal(prefilled([cut], [end - start]), whole[start:end])


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_however_the_work_is_shared(heads: Heads, threads: int):
    """Among threads, and with other sequences: of other lengths, in larger caches."""
    lengths = [40, 1, 3 * LANES, 100]
    many = [sequence(heads, m, seed=i, extra=9 * i) for i, m in enumerate(lengths)]
    together = decoded(many, threads)
    new = [40, 1, 0, 30]
    prompts = np.split(prefilled(many, new, threads), np.cumsum(new)[:-1])
    for i, s in enumerate(many):
        assert np.array_equal(together[i], decoded([s])[0])
        assert np.array_equal(prompts[i], prefilled([s], [s.length])[s.length - new[i] :])
    assert_is_attention(together[3:], many[3], 99)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beyond", [0, 1e4, -1e4])
def test_old_numbers_beyond_the_length_have_no_influence(kind: str, beyond: float):
    """As they are left behind by a state that was cut; everywhere else here they are nan."""
    s = sequence(USUAL, 100, kind)
    for length in (1, LANES + 1, 70):
        cut, old = s.stored(length), s.stored(length, beyond)
        assert np.array_equal(decoded([old]), decoded([cut]))
        assert np.array_equal(prefilled([old], [length]), prefilled([cut], [length]))


def test_only_its_own_numbers_are_written():
    call = Call([sequence(USUAL, 40)], [1])
    call.run("mix", 0, 0)
    call.run("score", 0, 0)
    call.run("prefill", 0, 0)
    assert np.isnan(call.result).all()
    assert np.isnan(call.scores).all()


@pytest.mark.parametrize("size", [1e2, 1e10, 1e18])
def test_huge_scores(size: float):
    """Keys that point at a query outweigh all others; two that do share its weight."""
    s = sequence(USUAL, 50)
    s.q[:], s.k[:] = 0, 0
    s.q[..., 0] = size
    s.k[..., 0] = -size
    s.k[:, 7, 0] = size
    s.k[1, 30, 0] = size
    out = prefilled([s.stored(50)], [50]).reshape(50, 3, 3, -1)
    for head in (0, 2):
        assert (out[7:, head] == s.v[head, 7]).all()
    assert (out[7:30, 1] == s.v[1, 7]).all()
    assert (out[30:, 1] == (s.v[1, 7] + s.v[1, 30]) / 2).all()
    assert np.isfinite(out).all()


# ---------------------------------------------------------------- the shares of threads


def most_over_mean(work: list[float]) -> float:
    return max(work) - sum(work) / len(work)


@pytest.mark.parametrize("threads", THREADS)
def test_scores_are_shared_evenly(threads: int):
    call = Call([sequence(USUAL, m).stored(m, beyond=0) for m in (500, 20)], [1, 1])
    before, work = 0, []
    for _ in call.phase("score", threads):
        done = np.isfinite(call.scores[:, :, : USUAL.group]).sum() // USUAL.group
        work.append(done - before)
        before = done
    assert before == 3 * (up_to_lanes(500) + up_to_lanes(20))
    assert most_over_mean(work) < LANES


@pytest.mark.parametrize("threads", THREADS)
def test_mixing_is_shared_evenly(threads: int):
    """Sequences of different lengths count for what they cost, to the cost of one panel."""
    call = Call([sequence(USUAL, m) for m in (500, 20)], [1, 1])
    for _ in call.phase("score", 1):
        pass
    before, work = 0, []
    for _ in call.phase("mix", threads):
        done = np.isfinite(call.result).sum((1, 2)) @ [500, 20]
        work.append(done - before)
        before = done
    assert before == USUAL.n_heads * USUAL.dim * 520
    assert most_over_mean(work) <= USUAL.group * LANES * 520


@pytest.mark.parametrize("threads", THREADS[:-1])
def test_prompts_are_shared_evenly(threads: int):
    """To the cost of two tiles, although late tokens have more to look at than early ones."""
    n = 300
    call = Call([sequence(USUAL, n)], [n])
    before, work = 0, []
    for _ in call.phase("prefill", threads):
        done = np.isfinite(call.result).sum((1, 2)) @ np.arange(1, n + 1)
        work.append(done - before)
        before = done
    assert before == USUAL.n_heads * USUAL.dim * n * (n + 1) // 2
    assert most_over_mean(work) <= 2 * TILE * n * USUAL.dim


# ---------------------------------------------------------------- the cache


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [6, 16, 80])
def test_what_is_stored_comes_back(dim: int, kind: str):
    heads = Heads(2, 1, dim)
    s = sequence(heads, LANES + 3, kind, extra=1)
    numbers = s.cache.view(KINDS[kind])
    for head in range(heads.n_kv_heads):
        for read, rows in ((keys_of, s.k), (values_of, s.v)):
            got = read(numbers, LAYER * heads.n_kv_heads + head, s.room, dim)
            assert got.shape == (s.room, dim)
            assert np.array_equal(got[: s.length], rows[head])
            assert np.isnan(got[s.length :]).all(), "written beyond the last position"
    stored = 2 * heads.n_kv_heads * s.length * dim
    assert np.isfinite(numbers).sum() == stored, "written elsewhere"


def test_a_register_holds_neighbouring_positions_or_elements():
    """The layout that the module describes, for whoever reads a cache without it."""
    s = sequence(Heads(1, 1, 2 * LANES), 2 * LANES)
    keys, values = s.cache[LAYER * s.cache.size // LAYERS :].reshape(2, 2, -1, LANES)
    assert np.array_equal(keys[1, 5], s.k[0, LANES:, 5])
    assert np.array_equal(values[1, 5], s.v[0, 5, LANES:])


def test_numbers_are_rounded_to_the_nearest_half():
    @compiled
    def stored(numbers, floats_, halves):
        for i in range(numbers.size):
            store_number(floats_, i, numbers[i])
            store_number(halves, i, numbers[i])

    bits = np.random.default_rng(1).integers(0, 2**32, 2**16, dtype=np.uint32)
    every_half = np.arange(2**16).astype(np.uint16).view(np.float16).astype(F32)
    every_half = every_half[np.isfinite(every_half)]
    ties = every_half * F32(1 + 2**-11)
    special = np.array([65519, 65520, -65520, np.inf, np.nan, 1e-8, -1e-45], F32)
    numbers = np.concatenate([every_half, ties, bits.view(F32), special])
    floats_, halves = np.zeros_like(numbers), np.zeros(numbers.size, np.uint16)
    stored(numbers, floats_, halves)
    assert np.array_equal(floats_, numbers, equal_nan=True)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = numbers.astype(np.float16)
    assert np.array_equal(halves.view(np.float16), wanted, equal_nan=True)


# ---------------------------------------------------------------- a tile of rows


three, six = 3, zeros(floats, 6)


def test_rows_that_lie_apart_times_registers():
    @compiled
    def products(w, halves, x, stride, out):
        acc = six()
        for c in range(4):
            pair = load_numbers(w, c * LANES), load_numbers(halves, c * LANES)
            acc = fma_rows(acc, pair, x, 2 + c, stride)
        store_tile2(out, 1, 2 * LANES + 1, acc)

    rng = np.random.default_rng(2)
    whole = rng.integers(-99, 99, 4 * LANES)  # so that every sum is exact
    w, halves = whole.astype(F32), whole[::-1].astype(np.float16)
    x = rng.integers(-99, 99, (three, 7)).astype(F32)
    out = np.full(1 + three * (2 * LANES + 1), 77, F32)
    products(w, halves.view(np.uint16), x.ravel(), 7, out)
    pairs = np.concatenate([w.reshape(4, -1), halves.reshape(4, -1)], 1)
    assert np.array_equal(out[1:].reshape(three, -1)[:, :-1], x[:, 2:6] @ pairs)
    assert out[0] == 77
    assert (out[1:].reshape(three, -1)[:, -1] == 77).all()


def test_kinds_compiled_by_different_processes_go_together(tmp_path: Path):
    """Kept machine code is linked by name: those of one kind must not go for the other's."""
    program = (
        "import sys\n"
        "from test_cached_attention import USUAL, assert_is_attention, ca, decoded, sequence\n"
        "for kind in sys.argv[1:]:\n"
        "    _ = [getattr(ca, f'{phase}_{kind}').address for phase in ('score', 'mix')]\n"
        "for kind in sys.argv[1:]:\n"
        "    s = sequence(USUAL, 21, kind)\n"
        "    assert_is_attention(decoded([s]), s, 20)\n"
    )
    environment = {
        **os.environ,
        "LLAMBDA_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTHONHASHSEED": "0",  # Numba counts functions in the order in which it meets them
    }
    for kinds in (["f32"], ["f16"], ["f32", "f16"], ["f16", "f32"]):
        command = [sys.executable, "-c", program, *kinds]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (kinds, done.stderr)
