"""The KV cache: keys and values of every position so far. Lesson 06.

The causal mask freezes the past: a position's keys and values never depend on later ones, so they
are computed once and kept. The cache is one allocation, sized up front, reused and never grown.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from .config import ModelConfig
from .errors import ContextError, InputError, ResourceError, plural, require_number

Floats = npt.NDArray[np.float32]

MOST_POSITIONS = 2**31 - 1  # so that no product of sizes is beyond compiled code's int64
NUMBER_BYTES = {"f32": 4, "f16": 2}  # of the numbers that a cache may hold


def cache_shape(config: ModelConfig, context: int) -> tuple[int, int, int, int, int]:
    """[layer, key or value, kv head, position, element]."""
    return (config.n_layers, 2, config.n_kv_heads, context, config.head_dim)


def cache_bytes(config: ModelConfig, context: int, numbers: str = "f32") -> int:
    """Exactly what a cache takes: layers * 2 * kv heads * positions * head_dim * bytes a number."""
    return math.prod(cache_shape(config, context)) * NUMBER_BYTES[numbers]


def check_positions(context: int) -> None:
    """Raise InputError unless it is a number of positions that there can be."""
    wanted = f"1 to {MOST_POSITIONS:,}"
    require_number("context", context, 1, MOST_POSITIONS, wanted, whole=True)


@contextmanager
def enough_memory(config: ModelConfig, context: int, numbers: str = "f32") -> Iterator[None]:
    """Make an error with its remedy of the system's refusal."""
    check_positions(context)
    try:
        yield
    except MemoryError as error:
        raise ResourceError(
            f"a cache of {context:,} positions takes "
            f"{cache_bytes(config, context, numbers) / 1e6:,.0f} MB, more memory than there is",
            fix="Ask for a smaller context.",
        ) from error


class KVCache:
    """Keys and values of up to `context` positions of one sequence."""

    def __init__(self, config: ModelConfig, context: int):
        with enough_memory(config, context):
            self.data: Floats = np.zeros(cache_shape(config, context), np.float32)

    def extend(self, start: int, layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Store keys and values [n, n_kv_heads, head_dim] of positions from `start` on.

        Returns all keys and all values up to the last of them: views [n_kv_heads, start + n,
        head_dim] into the cache. What does not fit is not stored at all: NumPy alone would repeat
        one head for all, and drop what lies past the end. Raises InputError for another shape,
        ContextError for more positions than there is room for.
        """
        _, _, heads, context, width = self.data.shape
        if k.shape != v.shape or k.shape[1:] != (heads, width):
            raise InputError(
                f"keys {list(k.shape)} and values {list(v.shape)}",
                fix=f"Both must be [positions, {heads}, {width}].",
            )
        end = start + len(k)
        if start < 0 or end > context:
            raise ContextError(
                f"{plural(len(k), 'position')} at position {start} do not fit in a cache of "
                f"{context}",
                fix="Shorten the prompt or ask for a larger context.",
            )
        keys, values = self.data[layer]
        keys[:, start:end] = k.swapaxes(0, 1)
        values[:, start:end] = v.swapaxes(0, 1)
        return keys[:, :end], values[:, :end]
