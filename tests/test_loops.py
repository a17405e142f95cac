"""Every loop against its meaning in float64, and bit by bit against NumPy's sums in order.

The meaning is the last line of a loop's docstring, evaluated. How far off a result may be follows
from its roundings: each is off by a share of at most u = 2^-24, and k of them in a row by k * u
(Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 3). `bound` counts them.
"""

import platform
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from models import VARIANTS, build, mutant, random_ids
from numba import njit

from llambda.engines import NaiveEngine, ScalarEngine
from llambda.engines.base import State
from llambda.kernels import attention as numpy_attention
from llambda.kernels import loops, swiglu
from llambda.simd.jit import compiled
from llambda.simd.listing import asm

U = 2.0**-24
SECOND_ORDER = 1.01  # products of roundings
LOOPS = ("linear", "rms_norm", "rotate", "attention", "swiglu")
SUMS = ("linear", "rms_norm", "attention")

Args = dict[str, Any]  # in the order of the parameters, without the result


def numbers(*shape: int, scale: float = 1, seed: int = 0) -> np.ndarray:
    """Floats around 0, and the same in every run."""
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


def attending(n: int, heads: int, head_dim: int, head: int, start: int, scale: float = 1) -> Args:
    m = start + n
    return {
        "q": numbers(n, heads, head_dim, scale=scale),
        "keys": numbers(m, head_dim, seed=1),
        "values": numbers(m, head_dim, seed=2),
        "head": head,
        "start": start,
        "shares": np.full(m, np.nan, np.float32),
    }


def turning(n: int, heads: int, head_dim: int) -> Args:
    angles = numbers(n, head_dim // 2, scale=3, seed=1)
    return {"x": numbers(n, heads, head_dim), "cos": np.cos(angles), "sin": np.sin(angles)}


CASES: list[tuple[str, Args]] = [
    *(("linear", {"x": numbers(n, k), "weight": numbers(rows, k, seed=1)})
      for n, rows, k in [(1, 1, 1), (1, 5, 67), (3, 4, 33), (2, 3, 256)]),
    *(("rms_norm", {"x": numbers(n, k, scale=s), "weight": numbers(k, seed=1), "eps": 1e-5})
      for n, k, s in [(1, 1, 1), (3, 67, 1), (2, 40, 3e-3)]),
    *(("rotate", turning(*sizes)) for sizes in [(1, 1, 2), (3, 2, 6), (2, 3, 64)]),
    *(("attention", attending(*sizes)) for sizes in
      [(1, 1, 1, 0, 0), (4, 3, 6, 1, 0), (1, 2, 64, 1, 19), (3, 3, 8, 2, 5), (5, 2, 9, 0, 3, 99)]),
    *(("swiglu", {"gate": numbers(*shape, scale=20), "up": numbers(*shape, seed=1)})
      for shape in [(1, 1), (3, 21)]),
]  # fmt: skip
on_cases = pytest.mark.parametrize(
    ("name", "args"), CASES, ids=[f"{name}{i}" for i, (name, _) in enumerate(CASES)]
)


def run(function: Callable[..., None], args: Args) -> np.ndarray:
    """The result: what was written to the last argument, which begins as nan."""
    first, *others = args.values()
    shape = (len(first), len(args["weight"])) if list(args) == ["x", "weight"] else first.shape
    out = np.full(shape, np.nan, np.float32)
    function(first, *others, out)
    return out[:, args["head"]] if "head" in args else out


def meaning(name: str, args: Args, dtype: type = np.float64) -> np.ndarray:
    """The last line of the loop's docstring with the arguments for its names."""
    known = {
        n: a.astype(dtype) if isinstance(a, np.ndarray) else dtype(a) if n == "eps" else a
        for n, a in args.items()
    }
    if name == "attention":
        n, _, head_dim = args["q"].shape
        known |= {"n": n, "m": len(args["keys"]), "head_dim": head_dim}
        known["softmax"] = lambda scores: torch.softmax(torch.from_numpy(scores), -1).numpy()
    return eval(getattr(loops, name).__doc__.strip().splitlines()[-1], {"np": np}, known)


def bound(name: str, args: Args) -> np.ndarray:
    """How far each number of a result may be off its meaning."""
    exact = np.abs(meaning(name, args))
    sizes = {n: np.abs(a) if isinstance(a, np.ndarray) else a for n, a in args.items()}
    match name:
        case "linear":  # a product, and each sum it goes through
            off = args["x"].shape[1] * meaning(name, sizes)
        case "rms_norm":  # a square, dim sums and /; the root takes half; root, / and *
            off = (args["x"].shape[1] / 2 + 4) * exact
        case "rotate":  # a product and a sum
            off = 2 * meaning(name, sizes | {"sin": -sizes["sin"]})  # its first sin is negative
            off = np.maximum(off, 2 * meaning(name, sizes))
        case "swiglu":  # exp is right to its last bit, which is 2 u; +, /, *
            off = 5 * exact
        case _:
            off = bound_of_attention(**sizes | {"q": args["q"], "keys": args["keys"]})
    return SECOND_ORDER * U * off


def bound_of_attention(q: Any, keys: Any, values: Any, head: int, start: int, **_: Any) -> Any:
    """In units of u. values are those of the sizes.

    A score that is off by d changes its share by a factor of exp(d), and the sum of all shares too.
    """
    rows = []
    for t, row in enumerate(q[:, head].astype(float)):
        m, root = start + t + 1, len(row) ** 0.5
        scores = keys[:m] @ row / root
        off = (len(row) + 2) * (np.abs(keys[:m]) @ np.abs(row)).max() / root  # root and / count 2
        off += scores.max() - scores.min() + 2  # the largest is taken off, then exp
        share = 2 * off + m + 1  # itself and in the sum; the sum of m; /
        powers = np.exp(scores - scores.max())
        rows.append((share + m) * (powers / powers.sum() @ values[:m]))
    return np.array(rows)


def is_right(name: str, args: Args, function: Callable[..., None]) -> bool:
    difference = np.abs(run(function, args) - meaning(name, args))
    return bool((difference <= bound(name, args)).all())


@on_cases
def test_a_loop_means_what_it_says(name, args):
    function = getattr(loops, name)
    difference = np.abs(run(function, args) - meaning(name, args))
    with np.errstate(invalid="ignore"):
        print(f"{name}: {np.nanmax(difference / bound(name, args)):.2f} of what is allowed")
    assert is_right(name, args, function)


MISTAKES = [
    ("linear", "range(x.shape[1])", "range(x.shape[1] - 1)"),
    ("linear", "weight[row, column]", "weight[row - 1, column]"),
    ("rms_norm", " + np.float32(eps)", ""),
    ("rms_norm", " / np.float32(dim)", ""),
    ("rms_norm", " * weight[i]", ""),
    ("rotate", "cos[t, i] - b", "cos[t, i] + b"),
    ("rotate", "b * cos[t, i]", "b * cos[0, i]"),
    ("rotate", "a, b = ", "b, a = "),
    ("attention", "start + t + 1", "start + t"),
    ("attention", "start + t + 1", "t + 1"),
    ("attention", "start + t + 1", "keys.shape[0]"),
    ("attention", " / root", ""),
    ("attention", " - top", ""),
    ("attention", "top = max(top, shares[p])", "top = shares[p]"),
    ("attention", "shares[p] /= total", "pass"),
    ("attention", "q[t, head, i]", "q[t, 0, i]"),
    ("attention", "keys[p, i]", "keys[p, 0]"),
    ("swiglu", "math.exp(-", "math.exp("),
    ("swiglu", " * up[t, i]", ""),
]  # fmt: skip


def python(name: str, *edits: tuple[str, str]) -> Callable[..., None]:
    """The loop as Python runs it, with passages of its source replaced."""
    return mutant(getattr(loops, name).py_func, ("@entry\n", ""), *edits)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "old", "new"), MISTAKES)
def test_a_planted_mistake_is_seen(name, old, new):
    cases = [args for case, args in CASES if case == name]
    assert all(is_right(name, args, python(name)) for args in cases)
    assert not all(is_right(name, args, python(name, (old, new))) for args in cases)


# In order and in float32


def in_order(name: str, args: Args) -> np.ndarray:
    """The very float32 that the loop must give: np.cumsum adds one after the other."""
    if name == "linear":
        return np.cumsum(args["x"][:, None] * args["weight"], axis=2)[..., -1]
    if name == "rms_norm":
        x, dim, eps = args["x"], args["x"].shape[1], np.float32(args["eps"])
        squares = np.cumsum(x * x, axis=1)[:, -1:]
        return x / np.sqrt(squares / np.float32(dim) + eps) * args["weight"]
    if name == "rotate":
        return meaning(name, args, np.float32)
    shares = np.float32(1) / np.arange(1, len(args["values"]) + 1, dtype=np.float32)[:, None, None]
    return np.cumsum(shares * args["values"], axis=1).diagonal().T[args["start"] :]


def cases_in_order() -> Iterator[tuple[str, Args]]:
    for name, args in CASES:
        if name == "attention":  # by whole numbers of 0 all positions have the same share
            yield name, args | {"q": np.zeros_like(args["q"])}
        elif name != "swiglu":
            yield name, args


def has_these_bits(name: str, args: Args, function: Callable[..., None]) -> bool:
    result, expected = run(function, args), in_order(name, args)
    assert result.dtype == expected.dtype == np.float32
    return np.array_equal(result, expected)


def test_sums_are_made_in_order_and_in_float32():
    for name, args in cases_in_order():
        assert has_these_bits(name, args, getattr(loops, name)), (name, args)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("linear", ("total = ZERO", "total = np.float64(0)")),
        ("linear", ("range(x.shape[1])", "range(x.shape[1] - 1, -1, -1)")),
        ("rms_norm", ("total = ZERO", "total = np.float64(0)")),
        ("rms_norm", ("/ root * weight[i]", "* (weight[i] / root)")),
        ("attention", ("mixed = ZERO", "mixed = np.float64(0)")),
        ("attention", ("shares[p] /= total", "pass")),
    ],
)
def test_another_order_or_precision_gives_other_bits(name, edit):
    cases = [args for case, args in cases_in_order() if case == name]
    assert all(has_these_bits(name, args, python(name)) for args in cases)
    assert not all(has_these_bits(name, args, python(name, edit)) for args in cases)


DOUBLE = re.compile(r"(add|sub|mul|div|sqrt|cvt\w+)[sp]d\b")
WIDE_SUM = re.compile(r"(add|fmadd\d+)ps\b")
on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 code")


def listing(name: str, function: Any) -> str:
    run(function, next(args for case, args in CASES if case == name))
    return "\n".join(asm(function))


@on_x86
@pytest.mark.parametrize("name", LOOPS)
def test_the_compiler_adds_one_number_at_a_time(name):
    code = listing(name, compiled(getattr(loops, name).py_func))
    assert not DOUBLE.search(code)
    if name in SUMS:
        assert "addss" in code
        assert not WIDE_SUM.search(code)


@on_x86
def test_wide_additions_and_float64_would_be_seen():
    assert WIDE_SUM.search(listing("linear", njit(fastmath=True)(loops.linear.py_func)))
    assert DOUBLE.search(listing("linear", compiled(python("linear", ("ZERO", "0.0")))))


# Numbers that are none


def test_damage_shows_as_in_numpy():
    q, keys, values = np.abs(numbers(4, 1, 6)), numbers(1, 4, 6, seed=1), numbers(1, 4, 6, seed=2)
    damaged = [keys.copy() for _ in range(4)]
    damaged[0][:, 0] = -np.inf  # position 0 has nothing to look at
    damaged[1][:, 1:3] = -np.inf
    damaged[2][:, 2] = np.nan
    damaged[3][:, 2] = np.inf
    for each in damaged:
        out = np.full_like(q, 7)
        loops.attention(q, each[0], values[0], 0, 0, np.empty(4, np.float32), out)
        with np.errstate(all="ignore"):
            expected = numpy_attention.attention(q, each, values, 0)
        assert out == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)
        assert not np.isnan(out[:2]).any()


def test_a_gate_bears_any_number():
    gate = np.array(
        [[-np.inf, -1000, -104, -88.7, -0.0, 0, 88.7, 1000, np.inf, np.nan]], np.float32
    )
    out = run(loops.swiglu, {"gate": gate, "up": np.ones_like(gate)})
    with np.errstate(invalid="ignore"):
        expected = swiglu.silu(gate)
    assert out == pytest.approx(expected, rel=1e-6, abs=1e-36, nan_ok=True)


# Compiled once


def test_one_compilation_serves_all():
    """Whole caches and parts of them, one kv head or some, with and without biases."""
    for variant in VARIANTS:
        model, ids = build(variant), random_ids(variant, 9)
        engine = ScalarEngine(model.config, model.weights)
        state = engine.new_state(9)
        engine.forward(state, ids[:4])
        engine.forward(state, ids[4:8], all_logits=True)
        last = engine.forward(state, ids[8:], trace={})
        again = NaiveEngine.forward(engine, State(engine, 9), ids)  # its keys are no cache's
        assert np.array_equal(last, again)
    for n_kv_heads in (1, 2):
        whole = numbers(n_kv_heads, 12, 8)
        for m in (5, 12):
            keys = whole[:, :m]
            out = engine.attention(numbers(2, 4, 8), keys, keys, m - 2)
            expected = numpy_attention.attention(numbers(2, 4, 8), keys, keys, m - 2)
            assert out == pytest.approx(expected, abs=1e-5)
    for name in LOOPS:
        assert len(getattr(loops, name).signatures) == 1, name
