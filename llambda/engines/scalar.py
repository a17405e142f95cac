"""Rung 3: the same operations as plain compiled loops, on one thread. Lesson 08.

What compiled code is worth, and what it is not: no sum uses more than one lane of the registers.
The next rung is to be compared with this one.
"""

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ..kernels import loops
from .base import Floats
from .cached import CachedEngine


class ScalarEngine(CachedEngine):
    name = "scalar"

    def one_thread(self) -> AbstractContextManager[None]:
        """Compiled loops take no second one."""
        return nullcontext()

    def linear(self, x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
        out = np.empty((len(x), len(weight)), np.float32)
        loops.linear(x, weight, out)
        return out if bias is None else out + bias

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        out = np.empty_like(x)
        loops.rms_norm(x, weight, eps, out)
        return out

    def rotate(self, x: Floats, cos: Floats, sin: Floats) -> Floats:
        out = np.empty_like(x)
        loops.rotate(x, cos, sin, out)
        return out

    def attention(self, q: Floats, keys: Floats, values: Floats, start: int) -> Floats:
        out, shares = np.empty_like(q), np.empty(keys.shape[1], np.float32)
        n_heads, n_kv_heads = q.shape[1], len(keys)
        for head in range(n_heads):
            # The cache holds all positions of a head in one piece, but not those of all heads.
            kv = head * n_kv_heads // n_heads
            k, v = np.ascontiguousarray(keys[kv]), np.ascontiguousarray(values[kv])
            loops.attention(q, k, v, head, start, shares, out)
        return out

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        out = np.empty_like(gate)
        loops.swiglu(gate, up, out)
        return out
