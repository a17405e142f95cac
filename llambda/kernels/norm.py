"""RMSNorm (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019)."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..simd.arithmetic import add, fma, mul, total
from ..simd.jit import inlined, kernel
from ..simd.memory import store
from ..simd.widest import LANES, load, splat

Floats = npt.NDArray[np.float32]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Each row over its root mean square, then scaled: x [n, dim], weight [dim] -> [n, dim]."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight


@kernel
def rms_norm_row(x: Any, at: int, weight: Any, weight_at: int, n: int, eps: float, out: Any,
                 out_at: int) -> None:  # fmt: skip
    """rms_norm of one row: n floats of x from `at`, scaled, into out; it may be where x is.

    x, weight, out : float32; each row continues up to a multiple of LANES, in x with zeros. What
    follows the n floats in out is only padding.
    """
    mean_square = sum_of_squares(x, at, n) / n
    scale = splat(1 / math.sqrt(mean_square + eps))
    for i in range(0, n, LANES):
        scaled = mul(load(x, at + i), scale)
        store(out, out_at + i, mul(scaled, load(weight, weight_at + i)))


@inlined
def sum_of_squares(x: Any, at: int, n: int) -> float:
    """Four sums, so that a register need not wait for the one before it, in a fixed order."""
    a = b = c = d = splat(0)
    end = at + n
    fours = at + n // (4 * LANES) * (4 * LANES)
    for i in range(at, fours, 4 * LANES):
        a = squared_onto(a, x, i)
        b = squared_onto(b, x, i + LANES)
        c = squared_onto(c, x, i + 2 * LANES)
        d = squared_onto(d, x, i + 3 * LANES)
    for i in range(fours, end, LANES):
        a = squared_onto(a, x, i)
    return total(add(add(a, b), add(c, d)))


@inlined
def squared_onto(acc: Any, x: Any, at: int) -> Any:
    v = load(x, at)
    return fma(v, v, acc)
