"""Softmax: scores become weights that add up to 1."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..simd.arithmetic import add, largest, maximum, mul, sub, total
from ..simd.jit import kernel
from ..simd.memory import store
from ..simd.widest import LANES, load, splat
from .exponential import exp

Floats = npt.NDArray[np.float32]


def softmax(scores: Floats) -> Floats:
    """exp(score) over their sum along the last axis; the largest is taken off first.

    A row whose scores are all -inf has nothing to look at, and gets zeros.
    """
    top = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = np.sum(weights, axis=-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)


@kernel
def softmax_row(scores: Any, at: int, n: int, scale: float) -> float:
    """Weights of n scores in place, not yet divided by their total, which is returned.

    scores : float32; n of them from `at`, with room up to a multiple of LANES, which gets zeros
    scale : what every score is multiplied with first, above 0

    The weights' mixture of rows is linear in them, and shorter: it is cheaper to divide that.
    softmax(scale * scores) == weights / total; where all scores are -inf, the total is 0.
    """
    for i in range(at + n, at + n + -n % LANES):
        scores[i] = -np.inf
    top = splat(-np.inf)
    for i in range(at, at + n, LANES):
        top = maximum(top, load(scores, i))
    highest = largest(top)
    if not np.isfinite(highest):
        highest = np.float32(0)
    acc = splat(0)
    for i in range(at, at + n, LANES):
        weights = exp(mul(sub(load(scores, i), splat(highest)), splat(scale)))
        store(scores, i, weights)
        acc = add(acc, weights)
    return total(acc)
