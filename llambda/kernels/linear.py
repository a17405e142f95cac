"""A matrix times rows: where nearly all of a model's arithmetic is."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def linear(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    """x [n, in], weight [out, in], bias [out] -> [n, out]."""
    y: Floats = x @ weight.T
    return y if bias is None else y + bias
