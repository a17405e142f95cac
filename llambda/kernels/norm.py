"""RMSNorm (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019)."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Each row over its root mean square, then scaled: x [n, dim], weight [dim] -> [n, dim]."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight
