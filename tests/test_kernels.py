"""Products of packed weights of every format with tiles of tokens: against int64 and float64.

A check is a function of what it checks; mistakes are planted in what NumPy gives, and the check
must notice them. The same tests hold for any target: with NUMBA_CPU_NAME=generic and
NUMBA_CPU_FEATURES= (empty) they test the portable forms.

Where scales are small whole numbers, so are all sums, and a product must equal int64 arithmetic
as long as every partial sum is below 2**24, where float32 begins to round.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from kernels_made import (
    CODED,
    FLOATS,
    HALVES,
    SMALL,
    WITH_MINIMUM,
    Weights,
    block_of,
    places,
    random_bytes,
    stored,
    tensor_of,
    weights,
    with_codes,
    with_halves,
)

from llambda.kernels import products
from llambda.kernels.activations import quantize, tiled_codes, tiled_floats, tiles
from llambda.kernels.matrix import FORMS, Matrix, pack
from llambda.kernels.products import COLUMNS, STRIP
from llambda.quants import decode
from llambda.simd import listing
from llambda.simd.target import target_has
from llambda.simd.tiles import TILE
from llambda.simd.widest import LANES
from llambda.tensor import Tensor

U = 2.0**-24  # what rounding to float32 may cost, relatively
WHOLE = 2**24  # float32 holds all whole numbers up to it
F32 = np.float32

COUNTS = [
    1,
    2,
    3,
    4,
    5,
    TILE - 4,
    TILE - 1,
    TILE,
    TILE + 1,
    2 * TILE - 5,
    3 * TILE + 2,
]  # of tokens
N = max(COUNTS)

# Rows, rows of a group, and blocks or columns: all of each occur, not all pairs.
ROWS = [(1, 1), (LANES - 1, LANES - 1), (LANES, LANES), (STRIP, STRIP), (STRIP + 1, STRIP + 1),
        (70, 70), (3 * 8, 8), (2 * (STRIP + 5), STRIP + 5)]  # fmt: skip
BLOCKS = [1, 2, 3]
COLS = [1, 7, COLUMNS - 1, COLUMNS, COLUMNS + 1, 600]

Run = Callable[[Tensor, int, np.ndarray], np.ndarray]  # weights, group, x -> y, both by tokens


def gamma(n: int) -> float:
    """A bound of n roundings, one upon another (Higham, Accuracy and Stability, lemma 3.1)."""
    return n * U / (1 - n * U)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return np.array_equal(a.view(np.int32), b.view(np.int32))


# ---------------------------------------------------------------- a call

GUARD = F32(-12345.678)  # in every output before, and around it


class Output:
    """Room for some tokens' outputs, each with numbers behind it that nobody may write."""

    def __init__(self, matrix: Matrix, tokens: int):
        self.matrix, self.tokens = matrix, tokens
        self.room = sum(tile.width for tile in tiles(tokens))
        self.stride, self.before = matrix.padded_rows + 5, 7
        self.all = np.full(self.before + self.room * self.stride + 64, GUARD, F32)

    def rows(self) -> np.ndarray:
        end = self.before + self.room * self.stride
        return self.all[self.before : end].reshape(self.room, self.stride)

    def result(self, first: int, last: int) -> np.ndarray:
        """[tokens, padded rows], after a look at all that is not in strips first to last."""
        rows = self.rows().copy()
        outside = self.all.copy()
        inside = slice(first * STRIP, last * STRIP)
        view = outside[self.before : self.before + rows.size].reshape(rows.shape)
        view[:, inside] = GUARD
        assert same_bits(outside, np.full_like(outside, GUARD))
        return rows[: self.tokens, : self.matrix.padded_rows]


def call(matrix: Matrix, x: np.ndarray, out: Output, first: int, last: int) -> None:
    """Strips first to last for all tokens: a call for the whole tiles, and one for the rest."""
    cut = tiles(len(x))
    whole = [tile for tile in cut if tile.width == TILE]
    for some in (whole, cut[len(whole) :]):
        if some:
            call_tiles(matrix, x, out, some, first, last)


def call_tiles(
    matrix: Matrix, x: np.ndarray, out: Output, some: list, first: int, last: int
) -> None:
    width, rows = some[0].width, [x[tile.first : tile.first + tile.tokens] for tile in some]
    if matrix.coded:
        made = [tiled_codes(each, width) for each in rows]
        columns = np.concatenate([codes.reshape(-1) for codes, _ in made])
        scales = np.concatenate([words.reshape(-1) for _, words in made])
    else:
        columns = np.concatenate([tiled_floats(each, width).reshape(-1) for each in rows])
        scales = columns[:0]
    job = np.zeros(products.JOB, np.int64)
    job[products.W], job[products.X] = matrix.data.ctypes.data, columns.ctypes.data
    job[products.SCALES], job[products.COLS] = scales.ctypes.data, matrix.cols
    job[products.TOKENS], job[products.TILES] = width, len(some)
    job[products.OUT] = out.rows()[some[0].first :].ctypes.data
    job[products.STRIDE] = out.stride
    matrix.form.product(job.ctypes.data, first, last)


def strips(matrix: Matrix, x: np.ndarray, first: int = 0, last: int | None = None) -> np.ndarray:
    last = matrix.strips if last is None else last
    out = Output(matrix, len(x))
    call(matrix, x, out, first, last)
    return out.result(first, last)


def multiply(tensor: Tensor, group: int, x: np.ndarray) -> np.ndarray:
    """The kernel. What fills up a group comes out as 0."""
    matrix = pack(tensor, group)
    y, at = strips(matrix, x), places(matrix.rows, group, STRIP)
    assert not np.delete(y, at, 1).any()
    return y[:, at]


# ---------------------------------------------------------------- quantized: numbers for tests


def whole_weights(name: str, rows: int, blocks: int, seed: int, byte: int | None = None) -> Tensor:
    """Whole scales, of each row and block its own; random codes, or all bytes of codes the same.

    A K format has small scales of its own, and is only given a sign for d; those of Q6_K, from
    -128 to 127, are mostly halved.
    """
    cols, rng = blocks * block_of(name), np.random.default_rng(seed)
    raw = random_bytes(name, rows, cols, seed)
    halves = rng.integers(1, 4, (rows, blocks, 2)) * rng.choice([-1, 1], (rows, blocks, 2))
    if name in SMALL:
        halves[..., 0] = np.sign(halves[..., 0])
    if name == "Q6_K":
        small = raw[..., SMALL[name]].view(np.int8)
        small >>= 1
        small[..., :2] = -128, 127
    raw = with_halves(name, raw, halves)
    return tensor_of(name, raw if byte is None else with_codes(name, raw, byte), cols)


def whole_tokens(cols: int, seed: int, extreme: bool = False) -> np.ndarray:
    """x [N, cols] whose codes are whole numbers of at most 127, and whose scales are 1 or 2."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (N, cols // 32, 32))
    codes[..., rng.integers(32)] = rng.choice([-127, 127], codes.shape[:-1])
    if extreme:
        codes = rng.choice([-127, 127], codes.shape)
        codes[0], codes[-1], codes[1] = 127, 127, -127
    scales = rng.integers(1, 3, codes.shape[:-1])
    got, d = quantize((codes * scales[..., None]).astype(F32))
    assert np.array_equal(got, codes)
    assert np.array_equal(d, scales)
    return (codes * scales[..., None]).reshape(N, cols).astype(F32)


def steps(w: Weights, x: np.ndarray) -> np.ndarray:
    """What is added one after another: float64 [tokens, rows, steps].

    For each run of columns with a scale, d * dx * sum(code * xcode); and where there is a
    minimum, m * dx * sum(xcode) then.
    """
    codes, d = quantize(x.reshape(len(x), -1, 32))
    runs, run = w.codes.shape[1:]
    codes = codes.astype(np.int64).reshape(len(x), runs, run)
    d = np.repeat(d.astype(np.float64), runs // d.shape[1], axis=1)[:, None]
    made = np.einsum("rbk,tbk->trb", w.codes, codes) * w.scale * d
    if w.minimum is None:
        return made
    least = w.minimum * d * codes.sum(-1)[:, None]
    return np.stack([made, least], -1).reshape(*made.shape[:2], -1)


def of(tensor: Tensor) -> Weights:
    return weights(tensor.dtype.name, stored(tensor))


# ---------------------------------------------------------------- quantized: whole numbers


def assert_whole(run: Run, tensor: Tensor, group: int, x: np.ndarray) -> None:
    """Equal to int64, where float32 holds whatever is added, and all that it is added to."""
    added = steps(of(tensor), x)
    assert np.abs(added).max() < WHOLE
    assert np.abs(np.cumsum(added, -1)).max() < WHOLE
    y = run(tensor, group, x)
    wanted = x.astype(np.int64) @ decode(tensor).astype(np.int64).T
    assert np.array_equal(y, wanted)


def cases(sizes: list[int]) -> list[tuple[int, int, int]]:
    """(rows, group, size): all rows, and all sizes."""
    return [(*rows, sizes[i % len(sizes)]) for i, rows in enumerate(ROWS)]


def check_whole(name: str, run: Run) -> None:
    for seed, (rows, group, blocks) in enumerate(cases(BLOCKS)):
        tensor = whole_weights(name, rows, blocks, seed)
        assert_whole(run, tensor, group, whole_tokens(tensor.shape[1], seed))


def check_extreme(name: str, run: Run) -> None:
    for byte in (0x00, 0x0F, 0x7F, 0x80, 0xF0, 0xFF):
        tensor = whole_weights(name, STRIP + 1, 2, byte, byte)
        x = whole_tokens(tensor.shape[1], byte, extreme=True)
        assert_whole(run, tensor, STRIP + 1, x)


@pytest.mark.parametrize("name", CODED)
def test_whole_numbers_are_exact(name: str):
    check_whole(name, multiply)


@pytest.mark.parametrize("name", CODED)
def test_extreme_codes_are_exact(name: str):
    check_extreme(name, multiply)


# ---------------------------------------------------------------- quantized: scales


def scaled_weights(name: str, rows: int, blocks: int, seed: int) -> Tensor:
    cols, rng = blocks * block_of(name), np.random.default_rng(seed)
    raw = random_bytes(name, rows, cols, seed)
    halves = rng.normal(size=(rows, blocks, 2)) * 10.0 ** rng.uniform(-4, 0, (rows, blocks, 1))
    return tensor_of(name, with_halves(name, raw, halves), cols)


def tokens(cols: int, seed: int) -> np.ndarray:
    """x [N, cols], of all sizes."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(N, cols)) * 10.0 ** rng.uniform(-3, 3, (N, 1))).astype(F32)


def assert_scaled(run: Run, tensor: Tensor, group: int, x: np.ndarray) -> None:
    """Against decode() and the tokens' own codes, in float64.

    In a step the whole sum and d are exact (a half times a byte has 19 bits), their product is
    rounded, or else the token's d * sum(codes); then each of n steps rounds the sum once: n + 1
    roundings at most of any step's size. And decode() rounds a weight that has a minimum once.
    """
    codes, d = quantize(x.reshape(len(x), -1, 32))
    seen = (codes * d[..., None].astype(np.float64)).reshape(x.shape)
    w = decode(tensor).astype(np.float64)
    added = np.abs(steps(of(tensor), x))
    bound = gamma(added.shape[-1] + 1) * added.sum(-1)
    if tensor.dtype.name in WITH_MINIMUM:
        bound += U * np.abs(seen) @ np.abs(w).T
    error = np.abs(run(tensor, group, x) - seen @ w.T)
    assert (error <= bound).all()


def check_scaled(name: str, run: Run) -> None:
    for seed, (rows, group, blocks) in enumerate(cases([3, 1, 2])):
        tensor = scaled_weights(name, rows, blocks, seed)
        assert_scaled(run, tensor, group, tokens(tensor.shape[1], seed))


@pytest.mark.parametrize("name", CODED)
def test_scales_within_the_bound(name: str):
    check_scaled(name, multiply)


# ---------------------------------------------------------------- floats


def float_tensor(name: str, values: np.ndarray) -> Tensor:
    bits = values.astype(np.float16 if name == "F16" else F32)
    if name == "BF16":
        bits = (bits.view(np.uint32) >> 16).astype(np.uint16)
    return tensor_of(name, bits.view(np.uint8), values.shape[1])


def check_whole_floats(name: str, run: Run) -> None:
    """Whole numbers of at most eight bits, which all three formats hold."""
    for seed, (rows, group, cols) in enumerate(cases(COLS)):
        rng = np.random.default_rng(seed)
        w, x = rng.integers(-255, 256, (rows, cols)), rng.integers(-100, 101, (N, cols))
        assert (np.abs(x) @ np.abs(w).T).max() < WHOLE
        y = run(float_tensor(name, w), group, x.astype(F32))
        assert np.array_equal(y, x @ w.T)


def check_floats(name: str, run: Run) -> None:
    """A fused multiply-add for each column, one after another: as many roundings as columns."""
    for seed, (rows, group, cols) in enumerate(cases(COLS[::-1])):
        rng = np.random.default_rng(seed)
        tensor = float_tensor(name, rng.normal(size=(rows, cols)))
        w, x = decode(tensor).astype(np.float64), tokens(cols, seed)
        bound = gamma(cols) * (np.abs(x).astype(np.float64) @ np.abs(w).T)
        assert (np.abs(run(tensor, group, x) - x.astype(np.float64) @ w.T) <= bound).all()


@pytest.mark.parametrize("name", FLOATS)
def test_products_of_whole_floats_are_exact(name: str):
    check_whole_floats(name, multiply)


@pytest.mark.parametrize("name", FLOATS)
def test_products_of_floats_within_the_bound(name: str):
    check_floats(name, multiply)


# ---------------------------------------------------------------- one order of addition


def any_weights(name: str, rows: int, blocks: int) -> Tensor:
    """Rows of some blocks; of floats, of columns across two pieces."""
    if name in CODED:
        return scaled_weights(name, rows, blocks, 7)
    return float_tensor(name, np.random.default_rng(7).normal(size=(rows, COLUMNS + 44)))


@pytest.mark.parametrize("name", FORMS)
def test_a_token_alone_and_among_others(name: str):
    """The same bits, however many tokens there are, and wherever it stands among them."""
    matrix = pack(any_weights(name, STRIP + 1, 3))
    x = tokens(matrix.cols, 8)
    together = strips(matrix, x)
    for n in COUNTS:
        assert same_bits(strips(matrix, x[:n]), together[:n])
    for first in range(N):
        assert same_bits(strips(matrix, x[first : first + 1]), together[first : first + 1])
    assert same_bits(strips(matrix, x[::-1]), together[::-1])


@pytest.mark.parametrize("name", FORMS)
def test_strips_one_by_one(name: str):
    """The same bits as in one call, and none of them anywhere else."""
    matrix = pack(any_weights(name, 3 * STRIP, 2))
    for n in (1, 3, TILE + 2):
        x = tokens(matrix.cols, 9)[:n]
        together = strips(matrix, x)
        for first, last in ((0, 1), (1, 2), (2, 3), (1, 3)):
            inside = slice(first * STRIP, last * STRIP)
            got = strips(matrix, x, first, last)
            assert same_bits(got[:, inside], together[:, inside])
        for place in range(4):
            assert (strips(matrix, x, place, place) == GUARD).all()


# ---------------------------------------------------------------- what is not a number


def damaged(name: str, rows: int, cols: int, bad: dict[int, float]) -> tuple[Tensor, Tensor]:
    """Weights, and the same where a number (or a scale) of some rows is not finite."""
    rng = np.random.default_rng(11)
    if name in FLOATS:
        values = rng.normal(size=(rows, cols))
        good = float_tensor(name, values)
        for row, value in bad.items():
            values[row, cols - 1 - row % cols] = value
        return good, float_tensor(name, values)
    raw = random_bytes(name, rows, cols, 11)
    halves = rng.normal(size=(*raw.shape[:2], 2))
    good = tensor_of(name, with_halves(name, raw, halves), cols)
    for row, value in bad.items():
        halves[row, -1, row % len(HALVES[name])] = value
    return good, tensor_of(name, with_halves(name, raw, halves), cols)


def check_damage(name: str, run: Run) -> None:
    """A row that holds an infinity or a nan comes out as one of them, and the others as before."""
    rows, cols = STRIP + 3, 2 * block_of(name) if name in CODED else COLUMNS + 3
    bad = {0: np.nan, 3: np.inf, LANES: -np.inf, rows - 1: np.nan, rows - 2: np.inf}
    good, damage = damaged(name, rows, cols, bad)
    x = tokens(cols, 12)
    x[1] = 0
    y, before = run(damage, rows, x), run(good, rows, x)
    assert np.isfinite(before).all()
    assert not np.isfinite(y[:, list(bad)]).any()
    assert np.isnan(y[:, [row for row, value in bad.items() if np.isnan(value)]]).all()
    others = np.delete(np.arange(rows), list(bad))
    assert same_bits(y[:, others], before[:, others])


@pytest.mark.parametrize("name", FORMS)
def test_what_is_not_a_number_remains_none(name: str):
    check_damage(name, multiply)


@pytest.mark.parametrize("name", ["F32", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_token_that_is_not_a_number_stays_alone(name: str, value: float):
    matrix = pack(any_weights(name, STRIP + 1, 2))
    x = tokens(matrix.cols, 13)
    before = strips(matrix, x)
    x[2, 5] = value
    y = strips(matrix, x)
    assert not np.isfinite(y[2, : matrix.rows]).any()
    others = np.delete(np.arange(N), 2)
    assert same_bits(y[others], before[others])


# ---------------------------------------------------------------- mistakes


def planted(mistake: str) -> Run:
    """A product in NumPy, rounded as the kernel's, with a mistake."""

    def run(tensor: Tensor, group: int, x: np.ndarray) -> np.ndarray:
        w = of(tensor)
        codes, scale, minimum = w
        if mistake == "nibbles exchanged":
            half = codes.shape[2] // 2
            codes = np.roll(codes, half, -1)
        if mistake == "columns exchanged":
            codes = codes[..., ::-1]
        if mistake == "scale of the next block":
            scale = np.roll(scale, 1, 1)
        if mistake == "scale of the next row":
            scale = np.roll(scale, 1, 0)
        if mistake == "the offset left out":
            codes = codes - codes.min()
        if mistake == "the minimum left out":
            minimum = None
        if mistake == "the minimum added":
            minimum = -minimum
        if mistake == "signed codes":
            codes = np.where(codes > 15, codes - 32, codes)
        added = steps(Weights(codes, scale, minimum), x)
        if mistake == "sums of 16 bits":
            added = steps(Weights(codes, np.ones_like(scale), None), x)
            d = quantize(x.reshape(len(x), -1, 32))[1].repeat(added.shape[-1] * 32 // x.shape[1], 1)
            added = (added / d[:, None]).astype(np.int64).astype(np.int16) * scale * d[:, None]
        if mistake == "sums of bfloat16":
            added = (added.astype(F32).view(np.uint32) & 0xFFFF0000).view(F32)
        if mistake == "the last block left out":
            added = added[..., :-1]
        y = np.zeros(added.shape[:2], F32)
        for step in range(added.shape[-1]):
            y = (y + added[..., step]).astype(F32)
        if mistake == "tokens exchanged":
            y = np.roll(y, 1, 0)
        return y

    return run


@pytest.mark.parametrize("name", CODED)
def test_numpy_passes_the_checks(name: str):
    for check in (check_whole, check_extreme, check_scaled):
        check(name, planted(""))


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("Q4_0", "nibbles exchanged"),
        ("Q8_0", "columns exchanged"),
        ("Q5_0", "scale of the next block"),
        ("Q4_K", "scale of the next block"),
        ("Q6_K", "scale of the next row"),
        ("Q4_0", "the offset left out"),
        ("Q6_K", "the offset left out"),
        ("Q4_1", "the minimum left out"),
        ("Q5_K", "the minimum added"),
        ("Q5_1", "signed codes"),
        ("Q4_K", "the last block left out"),
        ("Q5_0", "tokens exchanged"),
    ],
)
def test_wrong_products_are_noticed(name: str, mistake: str):
    for check in (check_whole, check_scaled):
        with pytest.raises(AssertionError):
            check(name, planted(mistake))


@pytest.mark.parametrize("name", ["Q8_0", "Q5_0"])
def test_sums_of_16_bits_are_noticed(name: str):
    """They hold no sum of 32 products of 16 * 127, and still less of 128 * 127."""
    with pytest.raises(AssertionError):
        check_extreme(name, planted("sums of 16 bits"))


def test_sums_of_too_few_bits_are_noticed():
    with pytest.raises(AssertionError):
        check_scaled("Q8_0", planted("sums of bfloat16"))


def planted_floats(mistake: str) -> Run:
    def run(tensor: Tensor, group: int, x: np.ndarray) -> np.ndarray:
        w = decode(tensor).astype(np.float64)
        if mistake == "a column left out":
            w[:, -1] = 0
        if mistake == "rows exchanged":
            w = np.roll(w, 1, 0)
        if mistake == "columns from the last piece only":
            w[:, : w.shape[1] // COLUMNS * COLUMNS] *= w.shape[1] < COLUMNS
        if mistake == "rounded to halves":
            w, x = w.astype(np.float16).astype(np.float64), x.astype(np.float16)
        return (x.astype(np.float64) @ w.T).astype(F32)

    return run


@pytest.mark.parametrize("name", FLOATS)
def test_wrong_products_of_floats_are_noticed(name: str):
    for check in (check_whole_floats, check_floats):
        check(name, planted_floats(""))
        for mistake in ("a column left out", "rows exchanged", "columns from the last piece only"):
            with pytest.raises(AssertionError):
                check(name, planted_floats(mistake))
    with pytest.raises(AssertionError), np.errstate(over="ignore"):
        check_floats(name, planted_floats("rounded to halves"))


# ---------------------------------------------------------------- instructions

WIDE = "%zmm" if LANES == 16 else "%ymm"


@functools.cache
def text_of(name: str) -> str:
    return listing.text_of(FORMS[name].product)


def work_loops(name: str, doing: str) -> list[Counter]:
    """The innermost loops that hold an instruction; of each, how often it holds which.

    What works on the widest registers has a + at its end.
    """
    found = list(listing.loops(text_of(name), doing))
    assert not [line for loop in found for line in loop if line.startswith("call")]
    return [Counter(line.split()[0] + "+" * (WIDE in line) for line in loop) for loop in found]


def total(loops: list[Counter], pattern: str) -> int:
    return sum(n for loop in loops for name, n in loop.items() if re.fullmatch(pattern, name))


@pytest.mark.skipif(not target_has("avx2", "fma"), reason="portable code has no such instructions")
@pytest.mark.parametrize("name", ["F32", "F16"])
def test_products_of_floats_are_fused_multiply_adds(name: str):
    """Two of the widest registers for each token of a tile, and neither products nor sums alone."""
    loops = work_loops(name, "vfmadd")
    widths = [total([loop], r"vfmadd\d+ps\+") for loop in loops]
    assert all(width % 2 == 0 for width in widths)
    assert any(width % (2 * TILE) == 0 for width in widths)
    assert total(loops, r"v(fmadd\w+|mul[ps]s|add[ps]s)") == total(loops, r"v(mul|add)ps\+") == 0


@pytest.mark.skipif(not target_has("avx2"), reason="portable code has no such instructions")
@pytest.mark.parametrize("name", ["Q4_1", "Q5_0", "Q6_K", "Q8_0"])
def test_products_of_codes_are_of_bytes(name: str):
    """With VNNI four at once; else pairs, and then pairs of pairs."""
    vnni = target_has("vnni512" if LANES == 16 else "vnni")
    wanted, other = ("vpdpbusd", "vpmaddubsw") if vnni else ("vpmaddubsw", "vpdpbusd")
    loops = work_loops(name, f"{wanted}|{other}|vpmul")
    counts = [total([loop], rf"{wanted}\+") for loop in loops]
    assert any(count > 0 and count % TILE == 0 for count in counts)
    assert total(loops, rf"({wanted}|{other}\+?|vpmul\w+\+?)") == 0
    pairs = total(work_loops(name, "vpmaddwd|vpdpwssd"), r"(vpmaddwd|vpdpwssd)\+")
    assert pairs == 0 if vnni else pairs >= TILE
