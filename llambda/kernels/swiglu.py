"""SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..simd.arithmetic import add, div, fma, magnitude, maximum, minimum, mul, sub
from ..simd.jit import inlined, kernel
from ..simd.memory import store
from ..simd.widest import LANES, load, splat
from .exponential import exp

Floats = npt.NDArray[np.float32]


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), without overflow: exp is only taken of numbers that are not positive."""
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1, e) / (1 + e)


def swiglu(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up, element by element."""
    return silu(gate) * up


@kernel
def swiglu_row(gate: Any, gate_at: int, up: Any, up_at: int, n: int, out: Any,
               out_at: int) -> None:  # fmt: skip
    """swiglu of one row of n floats into out; it may be where gate or up is.

    gate, up, out : float32; each row continues up to a multiple of LANES, in gate and up with zeros
    """
    for i in range(0, n, LANES):
        gated = silu_lanes(load(gate, gate_at + i))
        store(out, out_at + i, mul(gated, load(up, up_at + i)))


@inlined
def silu_lanes(x: Any) -> Any:
    """silu of every lane; x or x * e is chosen by adding the two, of which one is 0."""
    zero, one = splat(0), splat(1)
    e = exp(sub(zero, magnitude(x)))
    chosen = fma(minimum(zero, x), e, maximum(zero, x))
    return div(chosen, add(one, e))
