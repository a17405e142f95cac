"""SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020)."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), without overflow: exp is only taken of numbers that are not positive."""
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1, e) / (1 + e)


def swiglu(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up, element by element."""
    return silu(gate) * up
