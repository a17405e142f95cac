"""Activations in the order of matrix products: against loops over their layout, and int64.

A check is a function of what it checks; mistakes are planted in what NumPy gives, and the check
must notice them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from llambda.kernels import activations
from llambda.kernels.activations import Tile, tiles
from llambda.simd.tiles import TILE
from llambda.simd.widest import LANES

U = 2.0**-24  # what rounding to float32 may cost, relatively
F32 = np.float32
COLS = [1, 7, 8, 15, 16, 31, 32, 33, 100, 576]
BLOCKS = [1, 2, 3, 18]
STALE = 77  # in every buffer before

Run = Callable[..., Any]


def in_rows(x: np.ndarray, at: int) -> tuple[np.ndarray, int]:
    """Rows in one array from `at`, apart by whole registers and one more; nan in between."""
    stride = -(-x.shape[1] // LANES) * LANES + LANES
    rows = np.full((len(x), stride), np.nan, F32)
    rows[:, : x.shape[1]] = x
    return np.concatenate([np.full(at, np.nan, F32), rows.reshape(-1)]), stride


def widths(tokens: int) -> list[int]:
    return [width for width in (1, 4, TILE) if width >= tokens]


def assert_rejects(check: Callable[[Run], None], planted: Callable[[str], Run], what: str) -> None:
    """What NumPy gives passes the check; with the mistake it does not."""
    check(planted(""))
    with pytest.raises(AssertionError):
        check(planted(what))


# ---------------------------------------------------------------- tiles of tokens


def test_how_tokens_are_cut():
    """Into whole tiles, then into equal ones: the fewest places, and of those the fewest tiles."""
    for n in range(6 * TILE):
        cut = tiles(n)
        first = 0
        for tile in cut:
            assert tile.first == first
            first += tile.tokens
        assert first == n
        assert all(tile.tokens == tile.width for tile in cut[:-1])
        whole, rest = cut[: n // TILE], cut[n // TILE :]
        assert all(tile.width == TILE for tile in whole)
        ways = [(-(-(n % TILE) // width) * width, width) for width in (1, 4, TILE)]
        if n % TILE > 1:
            ways = [(places, -width) for places, width in ways if width > 1]
            assert [tile.width for tile in rest] == [-min(ways)[1]] * len(rest)
        else:
            assert [tile.width for tile in rest] == [1] * (n % TILE)
    assert tiles(TILE + 1) == [Tile(0, TILE, TILE), Tile(TILE, 1, 1)]
    assert tiles(2 * TILE + 3)[-1] == Tile(2 * TILE, 3, 4)
    assert tiles(TILE - 1) == [Tile(0, TILE - 1, TILE)]
    if TILE == 12:
        assert tiles(7) == [Tile(0, 4, 4), Tile(4, 3, 4)]


def test_compiled_tiles_are_the_same():
    for n in range(6 * TILE):
        cut = tiles(n)
        assert activations.tile_count(n) == len(cut)
        assert [activations.tile_of(n, i) for i in range(len(cut))] == cut
        assert activations.padded_tokens(n) == sum(t.width for t in cut)


# ---------------------------------------------------------------- floats


def tile_floats(x: np.ndarray, width: int) -> np.ndarray:
    """The kernel, between other numbers."""
    tokens, cols = x.shape
    rows, stride = in_rows(x, 3)
    out = np.full(2 + cols * width + 9, STALE, F32)
    activations.tile_floats(rows, 3, stride, tokens, cols, width, out, 2)
    assert (out[:2] == STALE).all()
    assert (out[2 + cols * width :] == STALE).all()
    return out[2 : 2 + cols * width]


def check_floats(run: Run) -> None:
    rng = np.random.default_rng(1)
    for cols in COLS:
        for tokens in range(1, TILE + 1):
            x = rng.normal(size=(tokens, cols)).astype(F32)
            for width in widths(tokens):
                got = run(x, width)
                for t in range(width):
                    wanted = x[t] if t < tokens else np.zeros(cols)
                    assert np.array_equal(got[t::width], wanted)


def test_floats_of_all_tokens_side_by_side():
    check_floats(tile_floats)


def planted_floats(mistake: str) -> Run:
    def run(x: np.ndarray, width: int) -> np.ndarray:
        out = activations.tiled_floats(x, width).copy()
        if mistake == "not in columns":
            out = out.T
        if mistake == "stale tokens":
            out[:, len(x) :] = STALE
        if mistake == "the last columns are left out":
            out[len(out) // 8 * 8 :] = 0
        return out.reshape(-1)

    return run


@pytest.mark.parametrize(
    "mistake", ["not in columns", "stale tokens", "the last columns are left out"]
)
def test_wrong_floats_are_noticed(mistake: str):
    assert_rejects(check_floats, planted_floats, mistake)


# ---------------------------------------------------------------- codes of one block

EXTREMES = {
    "zeros": [0.0, -0.0] * 16,
    "one number": [0.0] * 31 + [-3.0],
    "ties": [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5] * 4,
    "tiny": [1e-45, -1e-44, 1e-40, 0] * 8,
    "just too small": [2.0**-121.4, -1e-37] * 16,
    "just large enough": [2.0**-121, -1e-37] * 16,
    "largest": [3.4028235e38, -3.4028235e38, 1e38, 1] * 8,
    "of all sizes": [10.0**k for k in range(-16, 16)],
    "infinite": [1.0] * 31 + [np.inf],
    "minus infinite": [-np.inf] + [1.0] * 31,
    "one nan": [3.4e38] * 13 + [np.nan] + [1.0] * 18,
    "a nan with a sign": [1.0] * 20 + [-np.nan] + [np.inf] * 11,
    "nothing else": [np.nan] * 32,
}


def extreme_blocks() -> np.ndarray:
    return np.array(list(EXTREMES.values()), F32)


def check_quantizer(run: Run) -> None:
    """d is a rounded quotient; x / d is off by three roundings of at most 127, and then by a half.

    Where the largest magnitude is below 2**-121, 127 over it is infinite, and all is 0.
    """
    rng = np.random.default_rng(2)
    sizes = 10.0 ** rng.uniform(-30, 30, (500, 1))
    blocks = np.concatenate([(rng.normal(size=(500, 32)) * sizes).astype(F32), extreme_blocks()])
    codes, d = run(blocks)
    assert (codes.dtype, d.dtype) == (np.int8, F32)
    damaged = ~np.isfinite(blocks).all(1)
    assert np.array_equal(np.isnan(d), damaged)
    assert not codes[damaged].any()
    x, codes, d = blocks[~damaged].astype(np.float64), codes[~damaged].astype(np.int64), d[~damaged]
    top = np.abs(x).max(1)
    nothing = top < 2.0**-121
    assert not d[nothing].any()
    assert not codes[nothing].any()
    used = ~nothing
    step = top[used, None] / 127
    assert (np.abs(d[used] - step[:, 0]) <= step[:, 0] * U + 2.0**-150).all()
    assert (np.abs(codes[used]).max(1) == 127).all()
    assert (np.abs(codes[used] - x[used] / step) <= 0.5 + 3 * 127 * U).all()


def test_the_quantizer_against_float64():
    check_quantizer(activations.quantize)


def test_ties_go_to_even():
    codes, d = activations.quantize(np.array(EXTREMES["ties"], F32))
    assert d == 1
    assert codes[:8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]


def planted_quantizer(mistake: str) -> Run:
    def run(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        codes, d = activations.quantize(x)
        if mistake == "cut off":
            with np.errstate(all="ignore"):
                inner = np.where(np.isfinite(x) & (d[:, None] > 0), x / d[:, None], 0)
                return np.trunc(inner).clip(-127, 127).astype(np.int8), d
        if mistake == "d of the block before":
            d = np.roll(d, 1)
        if mistake == "nan goes unnoticed":
            d = np.nan_to_num(d)
        if mistake == "128 steps":
            d = d * F32(127 / 128)
        return codes, d

    return run


@pytest.mark.parametrize(
    "mistake", ["cut off", "d of the block before", "nan goes unnoticed", "128 steps"]
)
def test_a_wrong_quantizer_is_noticed(mistake: str):
    assert_rejects(check_quantizer, planted_quantizer, mistake)


# ---------------------------------------------------------------- codes of a tile


def tile_codes(x: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The kernel, between other numbers."""
    tokens, cols = x.shape
    rows, stride = in_rows(x, 5)
    size = cols * width
    codes, scales = np.full(32 + size + 9, STALE, np.int8), np.full(4 + size // 8 + 9, STALE, F32)
    activations.tile_codes(rows, 5, stride, tokens, cols, width, codes, 32, scales, 4)
    for array, start, end in ((codes, 32, 32 + size), (scales, 4, 4 + size // 8)):
        assert (array[:start] == STALE).all()
        assert (array[end:] == STALE).all()
    return codes[32 : 32 + size], scales[4 : 4 + size // 8]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit, but one nan is as good as another."""
    a, b = np.ascontiguousarray(a, F32), np.ascontiguousarray(b, F32)
    return bool(np.all((a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))))


def check_tile(x: np.ndarray, width: int, run: Run) -> None:
    tokens, cols = x.shape
    flat, words = run(x, width)
    for t in range(width):
        row = x[t] if t < tokens else np.zeros(cols, F32)
        codes, d = activations.quantize(row.reshape(-1, 32))
        for b in range(cols // 32):
            mine = codes[b].astype(np.int64)
            for c in range(32):
                assert flat[b * 32 * width + c // 4 * 4 * width + 4 * t + c % 4] == mine[c]
            at = b * 4 * width + t
            assert same(words[at], d[b])
            with np.errstate(over="ignore"):
                assert same(words[at + width], d[b] * F32(mine.sum()))
            sums = np.stack([words[at + 2 * width], words[at + 3 * width]]).view(np.int32)
            assert sums.tolist() == [-mine[:16].sum(), -mine[16:].sum()]


def check_codes(run: Run) -> None:
    rng = np.random.default_rng(3)
    for blocks in BLOCKS:
        for tokens in (1, 2, 4, 5, TILE):
            x = rng.normal(size=(tokens, 32 * blocks)).astype(F32)
            for width in widths(tokens):
                check_tile(x, width, run)
    mixed = np.resize(extreme_blocks(), (TILE, 32 * len(EXTREMES)))
    for token in range(TILE):
        mixed[token] = np.roll(mixed[0], 32 * token)
    check_tile(mixed, TILE, run)
    check_tile(mixed[:3], 4, run)
    check_tile(mixed[:1], 1, run)


def test_codes_of_all_tokens_side_by_side():
    check_codes(tile_codes)


@given(
    arrays(F32, (2, 64), elements=st.floats(width=32, allow_subnormal=False)),
    st.sampled_from([4, TILE]),
)
def test_codes_of_any_tokens(x: np.ndarray, width: int):
    wanted_codes, wanted_scales = activations.tiled_codes(x, width)
    codes, scales = tile_codes(x, width)
    assert np.array_equal(codes, wanted_codes.reshape(-1))
    assert same(scales, wanted_scales.reshape(-1))
    assert (np.abs(codes.astype(int)) <= 127).all()


def planted_codes(mistake: str) -> Run:
    def run(x: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        codes, scales = (each.copy() for each in activations.tiled_codes(x, width))
        sums = scales.view(np.int32)[:, 2:]
        if mistake == "the sign of a sum":
            sums *= -1
        if mistake == "halves exchanged":
            sums[:] = sums[:, ::-1].copy()
        if mistake == "tokens exchanged":
            codes, scales = codes[:, :, ::-1], scales[:, :, ::-1]
        if mistake == "columns exchanged":
            codes = codes[..., ::-1]
        if mistake == "stale tokens":
            codes[:, :, len(x) :] = STALE
        if mistake == "stale scales":
            scales[:, :, len(x) :] = STALE
        if mistake == "the sum without d":
            scales[:, 1] = -sums.sum(1)
        if mistake == "a code more":
            codes[-1, -1, 0, -1] += 1
        return codes.reshape(-1), scales.reshape(-1)

    return run


@pytest.mark.parametrize(
    "mistake",
    [
        "the sign of a sum",
        "halves exchanged",
        "tokens exchanged",
        "columns exchanged",
        "stale tokens",
        "stale scales",
        "the sum without d",
        "a code more",
    ],
)
def test_wrong_codes_are_noticed(mistake: str):
    assert_rejects(check_codes, planted_codes, mistake)


@pytest.mark.parametrize("n", [1, 2, 5, TILE - 1, TILE, TILE + 1, 2 * TILE + 3, 3 * TILE + 7])
def test_tiles_lie_one_behind_the_other(n: int):
    """A tile of tokens from t on begins at t * cols, its scales at an eighth; without a gap."""
    cols = 96
    x = np.random.default_rng(n).normal(size=(n, cols)).astype(F32)
    room = activations.padded_tokens(n) * cols
    floats, scales = np.full(room, STALE, F32), np.full(room // 8, STALE, F32)
    codes = np.full(room, STALE, np.int8)
    for i in range(activations.tile_count(n)):
        first, tokens, width = activations.tile_of(n, i)
        at, row = first * cols, x.reshape(-1)
        activations.tile_floats(row, at, cols, tokens, cols, width, floats, at)
        activations.tile_codes(row, at, cols, tokens, cols, width, codes, at, scales, at // 8)
    cut = [(x[t.first : t.first + t.tokens], t.width) for t in tiles(n)]
    both = [activations.tiled_codes(*each) for each in cut]
    wanted = [activations.tiled_floats(*each).reshape(-1) for each in cut]
    assert np.array_equal(floats, np.concatenate(wanted))
    assert np.array_equal(codes, np.concatenate([each.reshape(-1) for each, _ in both]))
    assert same(scales, np.concatenate([each.reshape(-1) for _, each in both]))
