"""Causal grouped-query attention (Ainslie et al., GQA, 2023)."""

import math

import numpy as np
import numpy.typing as npt

from .softmax import softmax

Floats = npt.NDArray[np.float32]


def attention(q: Floats, keys: Floats, values: Floats, start: int) -> Floats:
    """Every query looks at its own position and those before it.

    q : [n, n_heads, head_dim], the queries of positions start to start + n - 1
    keys, values : [n_kv_heads, m, head_dim], of positions 0 to m - 1, where m = start + n
    Returns [n, n_heads, head_dim]. Query heads h * group to (h + 1) * group - 1 share key/value
    head h.
    """
    n, n_heads, head_dim = q.shape
    n_kv_heads, m, _ = keys.shape
    group = n_heads // n_kv_heads
    later = np.arange(m) > start + np.arange(n)[:, None]  # [n, m]
    out = np.empty_like(q)
    for kv in range(n_kv_heads):
        heads = slice(kv * group, (kv + 1) * group)
        scores = q[:, heads].swapaxes(0, 1) @ keys[kv].T / np.float32(math.sqrt(head_dim))
        scores[:, later] = -np.inf  # [group, n, m]
        out[:, heads] = (softmax(scores) @ values[kv]).swapaxes(0, 1)
    return out
