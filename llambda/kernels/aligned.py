"""Memory for kernels: arrays that begin with a cache line."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..tensor import ALIGNMENT


def up_to_line(nbytes: int) -> int:
    """nbytes, or the next multiple of a cache line."""
    return int(-(-nbytes // ALIGNMENT) * ALIGNMENT)


def aligned_zeros(count: int, kind: Any) -> npt.NDArray[Any]:
    """An array of one axis, zeros, at an address that is a multiple of a cache line."""
    dtype = np.dtype(kind)
    raw = np.zeros(count * dtype.itemsize + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + count * dtype.itemsize].view(dtype)
