"""The operations as plain loops, as one would first write them in C. Lesson 08.

Every sum is added up in float32, in the order of its columns or positions. The compiler has to keep
that order, so it adds one number at a time: of the processor's wide registers a sum uses one lane.

Arrays are float32, C-ordered and writable, which is the one kind that is compiled. The last one is
the result; what it will hold ends each docstring, in NumPy, for n new positions of m so far. Beware
of float64: in compiled code a float32 and a Python number make one.
"""

import math

import numpy as np
import numpy.typing as npt

from ..simd.jit import entry

Floats = npt.NDArray[np.float32]

ZERO, ONE, LOWEST = np.float32(0), np.float32(1), np.float32(-np.inf)


@entry
def linear(x: Floats, weight: Floats, out: Floats) -> None:
    """A matrix [out, in] times every row of x [n, in].

    x @ weight.T
    """
    for row in range(weight.shape[0]):
        for t in range(x.shape[0]):
            total = ZERO
            for column in range(x.shape[1]):
                total += x[t, column] * weight[row, column]
            out[t, row] = total


@entry
def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats) -> None:
    """Each row of x [n, dim] over its root mean square, then scaled by weight [dim].

    x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * weight
    """
    dim = x.shape[1]
    for t in range(x.shape[0]):
        total = ZERO
        for i in range(dim):
            total += x[t, i] * x[t, i]
        root = math.sqrt(total / np.float32(dim) + np.float32(eps))
        for i in range(dim):
            out[t, i] = x[t, i] / root * weight[i]


@entry
def rotate(x: Floats, cos: Floats, sin: Floats, out: Floats) -> None:
    """Turn every head of x [n, heads, head_dim]; cos and sin are [n, head_dim / 2].

    x * np.c_[cos, cos][:, None] + np.roll(x, cos.shape[1], axis=2) * np.c_[-sin, sin][:, None]
    """
    half = cos.shape[1]
    for t in range(x.shape[0]):
        for head in range(x.shape[1]):
            for i in range(half):
                a, b = x[t, head, i], x[t, head, half + i]
                out[t, head, i] = a * cos[t, i] - b * sin[t, i]
                out[t, head, half + i] = b * cos[t, i] + a * sin[t, i]


@entry
def attention(
    q: Floats, keys: Floats, values: Floats, head: int, start: int, shares: Floats, out: Floats
) -> None:
    """One head of q [n, n_heads, head_dim] over the keys and values [m, head_dim] that it reads.

    The queries stand at positions from start on. shares [m] is room to work in.

    softmax(np.where(np.tri(n, m, start), q[:, head] @ keys.T / head_dim**0.5, -np.inf)) @ values
    """
    head_dim = q.shape[2]
    root = np.float32(math.sqrt(head_dim))
    for t in range(q.shape[0]):
        visible = start + t + 1
        top = LOWEST
        for p in range(visible):
            score = ZERO
            for i in range(head_dim):
                score += q[t, head, i] * keys[p, i]
            shares[p] = score / root
            top = max(top, shares[p])
        if not math.isfinite(top):
            top = ZERO
        total = ZERO
        for p in range(visible):
            shares[p] = math.exp(shares[p] - top)
            total += shares[p]
        if total == ZERO:  # nothing to look at
            total = ONE
        for p in range(visible):
            shares[p] /= total
        for i in range(head_dim):
            mixed = ZERO
            for p in range(visible):
                mixed += shares[p] * values[p, i]
            out[t, head, i] = mixed


@entry
def swiglu(gate: Floats, up: Floats, out: Floats) -> None:
    """silu(gate) * up, element by element; all are [n, ffn_dim].

    gate / (1 + np.exp(-gate)) * up
    """
    for t in range(gate.shape[0]):
        for i in range(gate.shape[1]):
            out[t, i] = gate[t, i] / (ONE + math.exp(-gate[t, i])) * up[t, i]
