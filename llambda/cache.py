"""The KV cache: keys and values of every position so far. Lesson 06.

The causal mask freezes the past: a position's keys and values never depend on later ones, so they
are computed once and kept. The cache is one allocation, sized up front, reused and never grown.
"""

import math

import numpy as np
import numpy.typing as npt

from .config import ModelConfig
from .errors import ResourceError

Floats = npt.NDArray[np.float32]


def cache_shape(config: ModelConfig, context: int) -> tuple[int, int, int, int, int]:
    """[layer, key or value, kv head, position, element]."""
    return (config.n_layers, 2, config.n_kv_heads, context, config.head_dim)


def cache_bytes(config: ModelConfig, context: int, itemsize: int = 4) -> int:
    """Exactly what a cache takes: layers * 2 * kv heads * positions * head_dim * bytes a number."""
    return math.prod(cache_shape(config, context)) * itemsize


class KVCache:
    """Keys and values of up to `context` positions of one sequence."""

    def __init__(self, config: ModelConfig, context: int):
        try:
            self.data: Floats = np.zeros(cache_shape(config, context), np.float32)
        except MemoryError as error:
            raise ResourceError(
                f"a cache of {context:,} positions takes "
                f"{cache_bytes(config, context) / 1e6:,.0f} MB, more memory than there is",
                fix="Ask for a smaller context.",
            ) from error

    def extend(self, start: int, layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Store keys and values [n, n_kv_heads, head_dim] of positions from `start` on.

        Returns all keys and all values up to the last of them: views [n_kv_heads, start + n,
        head_dim] into the cache.
        """
        end = start + len(k)
        keys, values = self.data[layer]
        keys[:, start:end] = k.swapaxes(0, 1)
        values[:, start:end] = v.swapaxes(0, 1)
        return keys[:, :end], values[:, :end]
