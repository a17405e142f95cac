"""The kernels of rows against float64, with bounds derived beside each, and against PyTorch.

A check is a function of what it checks, so that the same check can show that it notices mistakes:
those are planted in NumPy. `U` is half a unit in the last place of 1: what one rounding may cost.
The same tests hold for any target, for instance with NUMBA_CPU_NAME=generic and
NUMBA_CPU_FEATURES= (empty).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llambda.kernels import attention, exponential, norm, rope, softmax, swiglu
from llambda.simd.jit import compiled
from llambda.simd.memory import store
from llambda.simd.widest import LANES, load

SIZES = [1, 7, 8, 15, 16, 31, 32, 33, 100, 576]
U = 2.0**-24
SMALLEST = 2.0**-149  # float32's
F32 = np.float32

Run = Callable[..., Any]


def normal(n: int, seed: int, size: float = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, size, n).astype(F32)


def exact(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def in_memory(row: np.ndarray, at: int = 0, padding: float = 0) -> np.ndarray:
    """A row at `at`, then padding up to a whole register; all around it stands 77."""
    room = -len(row) % LANES
    array = np.full(at + len(row) + room + 5, 77, F32)
    array[at : at + len(row)] = row
    array[at + len(row) : at + len(row) + room] = padding
    return array


def taken(array: np.ndarray, at: int, n: int) -> np.ndarray:
    """The row in it; nothing around it, beyond a whole register, may have changed."""
    end = at + n + -n % LANES
    assert (array[:at] == 77).all()
    assert (array[end:] == 77).all()
    return array[at : at + n].copy()


def assert_within(got: np.ndarray, wanted: np.ndarray, bound: np.ndarray) -> None:
    assert np.isfinite(got).all()
    assert (np.abs(exact(got) - wanted) <= bound).all()


def assert_rejects(check: Callable[[Run], None], planted: Callable[[str], Run], what: str) -> None:
    """What NumPy gives passes the check; with the mistake it does not."""
    with np.errstate(all="ignore"):
        check(planted(""))
        with pytest.raises(AssertionError):
            check(planted(what))


def sums_in_order(rows: np.ndarray) -> np.float32:
    """Registers are added one after the other, then halves of the lanes, quarters, and so on."""
    lanes = np.zeros(LANES, F32)
    for row in rows.reshape(-1, LANES):
        lanes = lanes + row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


# ---------------------------------------------------------------- exp


@compiled
def exp_of_rows(x, out):
    for at in range(0, x.size, LANES):
        store(out, at, exponential.exp(load(x, at)))


def vector_exp(x: np.ndarray) -> np.ndarray:
    out = np.zeros(x.size, F32)
    exp_of_rows(x, out)
    return out


def all_exponents() -> np.ndarray:
    """Both signs, all 256 exponents, and 2048 fractions of each, the first and the last among
    them."""
    rng = np.random.default_rng(1)
    fractions = rng.integers(0, 2**23, (512, 2048), np.uint32)
    fractions[:, :2] = 0, 2**23 - 1
    return (fractions | np.arange(512, dtype=np.uint32)[:, None] << 23).reshape(-1).view(F32)


def check_exp(x: np.ndarray, run: Run) -> None:
    """Within one unit in the last place of the true value, down to the last subnormal number."""
    got = run(x)
    with np.errstate(all="ignore"):
        wanted = np.exp(exact(x))
        rounded = wanted.astype(F32)
    assert np.array_equal(np.isnan(got), np.isnan(x))
    assert np.array_equal(np.isinf(got), np.isinf(rounded))
    usual = np.isfinite(rounded)
    unit = 2.0 ** np.floor(np.log2(wanted[usual].clip(2.0**-126))) * 2 * U
    assert (np.abs(exact(got[usual]) - wanted[usual]) <= unit).all()


def check_all_exp(run: Run) -> None:
    check_exp(all_exponents(), run)
    check_exp(np.linspace(-90, 0, 2**19, dtype=F32), run)
    check_exp(np.linspace(-110, 90, 2**18, dtype=F32), run)


def test_exp_of_all_floats():
    check_all_exp(vector_exp)


def test_exp_at_its_ends():
    largest = F32(88.72283)  # ln of the largest float32, rounded down
    x = np.array([-np.inf, -1e38, -176, -104, 0, -0.0, largest, 88.7229, 1e38, np.inf], F32)
    got = vector_exp(np.pad(x, (0, -len(x) % LANES)))[: len(x)]
    assert got[:6].tolist() == [0, 0, 0, 0, 1, 1]
    assert 3.4e38 < got[6] < np.inf
    assert got[7:].tolist() == [np.inf] * 3
    assert not np.signbit(got).any()


def planted_exp(mistake: str) -> Run:
    def run(x: np.ndarray) -> np.ndarray:
        right = np.exp(exact(x)).astype(F32)
        if mistake == "ln 2 in one part":
            n = np.rint(x * F32(1 / math.log(2))).clip(-1000, 1000)
            return np.ldexp(np.exp(x - n * F32(math.log(2))), n.astype(int)).astype(F32)
        if mistake == "2**n in one factor":
            return np.where(x > 127.5 * math.log(2), F32(np.inf), right)
        if mistake == "no subnormal numbers":
            return np.where(right < 2.0**-126, F32(0), right)
        return np.exp(np.fmin(x, F32(89))) if mistake == "nan is 89" else right

    return run


@pytest.mark.parametrize(
    "mistake", ["ln 2 in one part", "2**n in one factor", "no subnormal numbers", "nan is 89"]
)
def test_a_wrong_exp_is_noticed(mistake: str):
    assert_rejects(check_all_exp, planted_exp, mistake)


# ---------------------------------------------------------------- softmax


def softmax_row(scores: np.ndarray, scale: float, padding: float, at: int) -> Any:
    """Weights, their total, and what the padding has become."""
    n, array = len(scores), in_memory(scores, at, padding)
    total = softmax.softmax_row(array, at, n, scale)
    return taken(array, at, n), total, array[at + n : at + n + -n % LANES]


def check_shares(scores: np.ndarray, scale: float, run: Run) -> None:
    """A weight is off by what rounding costs in the exponent z (a difference and a product), in exp
    (one unit, at most 2 U), and the total by that and by its additions.
    """
    z = (exact(scores) - exact(scores).max()) * float(F32(scale))
    wanted = np.exp(z)
    error = 2 * U * (np.abs(z) + 1)
    additions = U * (len(z) / LANES + 1 + math.log2(LANES))
    share = wanted / wanted.sum()
    bound = share * (error + (share * error).sum() + additions) * 1.001 + SMALLEST
    weights, total, rest = run(scores, scale, 0, 2)
    assert_within(exact(weights) / total, share, bound)
    assert np.allclose(share, torch.softmax(torch.tensor(z), 0).numpy())
    assert not rest.any()
    assert total == sums_in_order(np.pad(weights, (0, len(rest))))
    for padding in (1e30, np.inf, -np.inf, np.nan):
        others = run(scores, scale, padding, 3)
        for a, b in zip(others, (weights, total, rest), strict=True):
            assert np.array_equal(a, b)


def check_softmax(run: Run) -> None:
    for n in SIZES:
        check_shares(normal(n, n, 8), 0.125, run)
        check_shares(normal(n, n, 1000), 1 / math.sqrt(5), run)
        check_shares(np.full(n, 1000, F32), 1, run)
        check_shares(normal(n, n) - 5000, 0.3, run)


def test_softmax_rows():
    check_softmax(softmax_row)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=80), st.floats(1e-3, 1))
def test_softmax_of_any_row(scores: list[float], scale: float):
    check_shares(np.array(scores, F32), scale, softmax_row)


def test_scores_that_are_no_numbers():
    inf = math.inf
    weights, total, _ = softmax_row(np.array([-inf, 0, 1, -inf], F32), 1, 0, 0)
    assert (weights / total).tolist() == pytest.approx([0, 0.26894142, 0.73105858, 0])
    weights, total, _ = softmax_row(np.full(9, -inf, F32), 0.5, 0, 0)
    assert (weights.tolist(), total) == ([0] * 9, 0)
    for n in (3, 40):
        for at in (0, n - 1):
            row = normal(n, 1)
            row[at] = np.nan
            assert math.isnan(softmax_row(row, 1, 0, 0)[1])
            row[at] = inf
            assert softmax_row(row, 1, 0, 0)[1] == inf


def planted_softmax(mistake: str) -> Run:
    def run(scores: np.ndarray, scale: float, padding: float, at: int) -> Any:
        rest = np.full(-len(scores) % LANES, padding, F32)
        top = scores.min() if mistake == "the smallest goes" else scores.max()
        z = exact(scores - (0 if mistake == "the largest stays" else top))
        weights = np.exp(z if mistake == "no scale" else z * scale).astype(F32)
        added = np.append(weights, rest) if mistake == "padding counts" else weights
        total = added.sum() if mistake == "another order" else sums_in_order(
            np.pad(added, (0, -len(added) % LANES))
        )  # fmt: skip
        return weights, total, rest if mistake == "padding stays" else np.zeros_like(rest)

    return run


@pytest.mark.parametrize(
    "mistake",
    [
        "the largest stays",
        "the smallest goes",
        "no scale",
        "padding counts",
        "padding stays",
        "another order",
    ],
)
def test_a_wrong_softmax_is_noticed(mistake: str):
    assert_rejects(check_softmax, planted_softmax, mistake)


def test_attention_still_has_its_softmax():
    assert attention.softmax is softmax.softmax


# ---------------------------------------------------------------- RMSNorm


def rms_norm_row(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Into another array, and in place: the same."""
    n = len(x)
    source, weights, out = in_memory(x, 3), in_memory(weight, 5), in_memory(np.zeros(n), 1)
    norm.rms_norm_row(source, 3, weights, 5, n, eps, out, 1)
    norm.rms_norm_row(source, 3, weights, 5, n, eps, source, 3)
    assert np.array_equal(taken(source, 3, n), taken(out, 1, n), equal_nan=True)
    return taken(out, 1, n)


def check_norm_of(x: np.ndarray, weight: np.ndarray, eps: float, run: Run) -> None:
    """The sum of squares is off by a rounding for each register of an accumulator and each
    addition of accumulators and lanes, its root by half of that; then come four roundings more.
    """
    wanted = exact(x) / np.sqrt(np.mean(exact(x) ** 2) + eps) * exact(weight)
    additions = math.ceil(len(x) / (4 * LANES)) + 3 + 2 + math.log2(LANES)
    bound = np.abs(wanted) * U * (additions / 2 + 4) * 1.001 + SMALLEST
    assert_within(run(x, weight, eps), wanted, bound)


def check_norm(run: Run) -> None:
    for n in SIZES:
        weight = 1 + normal(n, n + 1)
        for size in (1e-3, 1, 1e4, 1e15):
            check_norm_of(normal(n, n, size), weight, 1e-5, run)
        check_norm_of(np.zeros(n, F32), weight, 1e-6, run)
        check_norm_of(np.full(n, -1e-3, F32), weight, 1e-5, run)


def test_rms_norm_rows():
    check_norm(rms_norm_row)


@given(st.integers(1, 700), st.floats(-12, 12), st.sampled_from([1e-5, 1e-6]))
def test_rms_norm_of_any_row(n: int, power: float, eps: float):
    check_norm_of(normal(n, n, 10**power), normal(n, n + 1), eps, rms_norm_row)


@pytest.mark.parametrize(("eps", "wanted"), [(1e-5, 0.3015113), (1e-6, 0.7071068)])
def test_eps_is_inside_the_root(eps: float, wanted: float):
    got = rms_norm_row(np.full(4, 1e-3, F32), np.ones(4, F32), eps)
    assert got.tolist() == pytest.approx([wanted] * 4, rel=1e-6)


def test_rms_norm_is_pytorchs():
    x, weight = normal(576, 1), normal(576, 2)
    wanted = torch.nn.functional.rms_norm(torch.tensor(x), (576,), torch.tensor(weight), 1e-5)
    assert np.allclose(rms_norm_row(x, weight, 1e-5), wanted.numpy(), rtol=1e-5, atol=0)


def test_a_row_that_is_no_number_stays_none():
    row = normal(20, 1)
    row[17] = np.nan
    assert np.isnan(rms_norm_row(row, np.ones(20, F32), 1e-5)).all()


def planted_norm(mistake: str) -> Run:
    def run(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        if mistake == "eps behind the root":
            return (x / (np.sqrt(np.mean(exact(x) ** 2)) + eps) * weight).astype(F32)
        count = len(x) + -len(x) % LANES if mistake == "padding counts" else len(x)
        squares = exact(x[:-1] if mistake == "one is left out" and len(x) > 99 else x) ** 2
        root = np.sqrt(squares.sum() / count + eps)
        return (x / root * np.roll(weight, mistake == "the neighbour's weight")).astype(F32)

    return run


@pytest.mark.parametrize(
    "mistake",
    ["eps behind the root", "padding counts", "one is left out", "the neighbour's weight"],
)
def test_a_wrong_norm_is_noticed(mistake: str):
    assert_rejects(check_norm, planted_norm, mistake)


# ---------------------------------------------------------------- RoPE

HALVES = [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64]


def rotate_row(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """One head between others, of tables for several positions."""
    half = len(cos)
    heads = np.concatenate([np.full(5, 77, F32), x, np.full(LANES, 77, F32)])
    table = [np.concatenate([np.full(half, np.nan, F32), each]) for each in (cos, sin)]
    rope.rotate_row(heads, 5, *table, half, half)
    assert (heads[:5] == 77).all()
    assert (heads[5 + len(x) :] == 77).all()
    return heads[5 : 5 + len(x)]


def check_rotation(run: Run) -> None:
    """As complex numbers: each part is a sum of two products, so three roundings. And bit for bit
    what NumPy makes of it, whether by whole registers or at the end of a head.
    """
    for half in HALVES:
        x = normal(2 * half, half)
        angles = normal(half, 1, 3)
        cos, sin = np.cos(angles), np.sin(angles)
        turned = (exact(x[:half]) + 1j * exact(x[half:])) * (exact(cos) + 1j * exact(sin))
        wanted = np.concatenate([turned.real, turned.imag])
        got = run(x, cos, sin)
        size = np.tile(np.abs(x[:half]) + np.abs(x[half:]), 2)
        assert_within(got, wanted, 3 * U * exact(size))
        same = rope.rotate(x[None, None], cos[None], sin[None]).reshape(-1)
        assert np.array_equal(got.view(np.uint32), same.view(np.uint32))


def test_rotated_rows():
    check_rotation(rotate_row)


def planted_rotation(mistake: str) -> Run:
    def run(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        half = len(cos)
        if mistake == "neighbours are paired":
            x = x.reshape(-1, 2).T.reshape(-1)
        if mistake == "the other way":
            sin = -sin
        if mistake == "the end is left out":
            last = np.arange(half) >= half // 8 * 8
            cos, sin = np.where(last, F32(1), cos), np.where(last, F32(0), sin)
        a, b = x[:half], x[half:]
        if mistake == "fewer roundings":
            a, b = exact(a), exact(b)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin]).astype(F32)

    return run


@pytest.mark.parametrize(
    "mistake",
    ["neighbours are paired", "the other way", "the end is left out", "fewer roundings"],
)
def test_a_wrong_rotation_is_noticed(mistake: str):
    assert_rejects(check_rotation, planted_rotation, mistake)


# ---------------------------------------------------------------- SwiGLU


def swiglu_row(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Into another array, and where the gate is: the same."""
    n = len(gate)
    gates, ups, out = in_memory(gate, 4), in_memory(up, 7), in_memory(np.zeros(n), 2)
    swiglu.swiglu_row(gates, 4, ups, 7, n, out, 2)
    swiglu.swiglu_row(gates, 4, ups, 7, n, gates, 4)
    assert np.array_equal(taken(gates, 4, n), taken(out, 2, n), equal_nan=True)
    assert not out[2 + n : 2 + n + -n % LANES].any()
    return taken(out, 2, n)


def check_products(gate: np.ndarray, up: np.ndarray, run: Run) -> None:
    """e is within a unit in the last place (2 U, or the smallest number), which also goes into
    1 + e; then there are four roundings: of x * e, 1 + e, the quotient, the product.
    """
    g, u = exact(gate), exact(up)
    e = np.exp(-np.abs(g))
    wanted = g * np.where(g >= 0, 1, e) / (1 + e) * u
    bound = np.abs(wanted) * U * (2 + 2 + 4) * 1.001 + SMALLEST * (np.abs(u) + 1) * (np.abs(g) + 1)
    assert_within(run(gate, up), wanted, bound)
    assert np.allclose(torch.nn.functional.silu(torch.tensor(g)).numpy() * u, wanted)


def extreme_gates() -> Iterator[float]:
    for size in (0, 1e-45, 1e-38, 1e-7, 0.5, 1, 16, 87.3, 88.72, 88.73, 103.9, 104.1, 1e3, 1e30):
        yield from (size, -size)


def check_swiglu(run: Run) -> None:
    for n in SIZES:
        check_products(normal(n, n, 4), normal(n, n + 1), run)
        check_products(normal(n, n, 60), normal(n, n + 1, 1e3), run)
    gates = np.array(list(extreme_gates()), F32)
    check_products(gates, np.full(len(gates), 3, F32), run)


def test_swiglu_rows():
    check_swiglu(swiglu_row)


@given(st.lists(st.tuples(*[st.floats(-2e3, 2e3, width=32)] * 2), min_size=1, max_size=80))
def test_swiglu_of_any_row(pairs: list[tuple[float, float]]):
    gate, up = np.array(pairs, F32).T
    check_products(gate, up, swiglu_row)


def test_gates_that_are_no_numbers():
    gate = np.array([np.inf, np.nan, 1, -0.0], F32)
    got = swiglu_row(gate, np.ones(4, F32))
    assert got[0] == np.inf
    assert np.isnan(got[1])
    assert got[2] == pytest.approx(0.7310586)
    assert got[3] == 0
    assert np.signbit(got[3])


def planted_swiglu(mistake: str) -> Run:
    def run(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        if mistake == "gate and up exchanged":
            gate, up = up, gate
        e = np.exp(-np.abs(gate))
        if mistake == "exp overflows":
            return gate / (1 + np.exp(-gate)) * up
        chosen = gate * np.where((gate >= 0) | (mistake == "both sides alike"), F32(1), e)
        return chosen / (1 + e) * (F32(1) if mistake == "no up" else up)

    return run


@pytest.mark.parametrize(
    "mistake", ["gate and up exchanged", "exp overflows", "both sides alike", "no up"]
)
def test_a_wrong_swiglu_is_noticed(mistake: str):
    assert_rejects(check_swiglu, planted_swiglu, mistake)
