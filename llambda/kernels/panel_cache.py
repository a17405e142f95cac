"""A KV cache in the order of its attention kernel, and attention over it from Python. Lesson 08.

The order is that of kv_layout.py; the kernel is `prefill_f32` of cached_attention.py.
"""

import math

import numpy as np
import numpy.typing as npt

from ..cache import KVCache, enough_memory
from ..config import ModelConfig
from ..simd.foreign import call3
from ..simd.jit import entry
from ..simd.tiles import TILE
from ..simd.widest import LANES
from . import cached_attention as kernel
from .aligned import aligned_zeros
from .kv_layout import head_size, store_key, store_value, up_to_lanes

Floats = npt.NDArray[np.float32]


class PanelCache(KVCache):
    """Keys and values of up to `context` positions of one sequence.

    data : float32 [n_layers, n_kv_heads, numbers of a head]
    """

    def __init__(self, config: ModelConfig, context: int):
        self.room = up_to_lanes(context)
        self.head_dim = config.head_dim
        shape = config.n_layers, config.n_kv_heads, head_size(self.room, self.head_dim)
        with enough_memory(config, context):
            self.data = aligned_zeros(math.prod(shape), np.float32).reshape(shape)

    def extend(self, start: int, layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Store keys and values [n, n_kv_heads, head_dim] of positions from `start` on.

        Returns all keys [n_kv_heads, room / LANES, head_dim, LANES] and, behind those of each head
        in memory, all values [n_kv_heads, width / LANES, room, LANES].
        """
        heads = self.data[layer]
        store(heads, self.room, start, k, v)
        end = self.room * self.head_dim
        return (
            heads[:, :end].reshape(len(heads), -1, self.head_dim, LANES),
            heads[:, end:].reshape(len(heads), -1, self.room, LANES),
        )


@entry
def store(heads: Floats, room: int, start: int, k: Floats, v: Floats) -> None:
    n, n_heads, head_dim = k.shape
    flat, keys, values = heads.reshape(-1), k.reshape(-1), v.reshape(-1)
    size = head_size(room, head_dim)
    for t in range(n):
        for head in range(n_heads):
            at = (t * n_heads + head) * head_dim
            store_key(flat, head * size, start + t, keys, at, head_dim)
            store_value(flat, head * size, room, start + t, values, at, head_dim)


def units(q: Floats, keys: Floats) -> int:
    """Into how many parts the work of `attend` can be cut."""
    rows = len(q) * q.shape[1] // len(keys)  # query heads of all tokens that share a key/value head
    return len(keys) * -(-rows // TILE)


def attend(
    q: Floats, keys: Floats, values: Floats, start: int, out: Floats, first: int, last: int
) -> None:
    """Units first to last of attention.

    q, out : C-ordered [n, n_heads, head_dim], for positions start to start + n - 1
    keys, values : as PanelCache gives them
    """
    n_kv_heads, _, room, _ = values.shape
    address = kernel.prefill_f32.address
    attend_units(address, q, keys.ctypes.data, n_kv_heads, room, start, out, first, last)


@entry
def attend_units(prefill: int, q: Floats, cache: int, n_kv_heads: int, room: int, start: int,
                 out: Floats, first: int, last: int) -> None:  # fmt: skip
    """prefill, cache : addresses of the kernel and of the first head's keys"""
    n, n_heads, head_dim = q.shape
    group, stride, row = n_heads // n_kv_heads, n_heads * head_dim, kernel.row_size(start + n)
    sequence, job = np.zeros(kernel.SEQUENCE, np.int64), np.zeros(kernel.JOB, np.int64)
    own = np.zeros(kernel.own_size(group, head_dim, row), np.float32)
    sequence[kernel.CACHE], sequence[kernel.ROOM] = cache, room
    sequence[kernel.LENGTH], sequence[kernel.NEW] = start + n, n
    job[kernel.SEQUENCES], job[kernel.N] = sequence.ctypes.data, 1
    job[kernel.KV_HEADS], job[kernel.GROUP], job[kernel.HEAD_DIM] = n_kv_heads, group, head_dim
    job[kernel.Q], job[kernel.Q_STRIDE] = q.ctypes.data, stride
    job[kernel.OUT], job[kernel.OUT_STRIDE] = out.ctypes.data, stride
    job[kernel.ROW], job[kernel.OWN] = row, own.ctypes.data
    call3(prefill, job.ctypes.data, first, last)
