"""Row kernels over whole arrays, for engines that call one operation at a time. Lesson 08.

Each means what the function of its name in NumPy means (norm.py, rope.py, swiglu.py). Kernels read
whole registers: rows that are none, as in models of an odd width, are copied and filled up.

Arrays are float32. Results are C-ordered, and so must be what the compiled functions are given.
"""

import numpy as np
import numpy.typing as npt

from ..simd.jit import entry
from ..simd.widest import LANES
from . import norm, rope
from .activations import tile_codes, tile_count, tile_floats, tile_of
from .swiglu import swiglu_row

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]


def filled(x: Floats) -> Floats:
    """x, whose last axis continues with zeros up to a multiple of LANES."""
    rest = -x.shape[-1] % LANES
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, rest)]) if rest else x


def cut(x: Floats, n: int) -> Floats:
    """The first n numbers of each row: x itself, or a copy."""
    return np.ascontiguousarray(x[:, :n])


# ---------------------------------------------------------------- operations


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x [n, dim], weight [dim] -> [n, dim]."""
    dim = len(weight)
    rows = filled(x)
    out = np.empty_like(rows)
    rms_norm_rows(rows, dim, filled(weight), float(np.float32(eps)), out)
    return cut(out, dim)


@entry
def rms_norm_rows(x: Floats, dim: int, weight: Floats, eps: float, out: Floats) -> None:
    n, stride = x.shape
    flat, made = x.reshape(-1), out.reshape(-1)
    for t in range(n):
        norm.rms_norm_row(flat, t * stride, weight, 0, dim, eps, made, t * stride)


def rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """x [n, heads, head_dim], cos and sin [n, head_dim / 2] -> [n, heads, head_dim]."""
    out = x.copy()
    rotate_rows(out, cos, sin)
    return out


@entry
def rotate_rows(x: Floats, cos: Floats, sin: Floats) -> None:
    n, heads, head_dim = x.shape
    half = head_dim // 2
    flat, c, s = x.reshape(-1), cos.reshape(-1), sin.reshape(-1)
    for t in range(n):
        for head in range(heads):
            rope.rotate_row(flat, (t * heads + head) * head_dim, c, s, t * half, half)


def swiglu(gate: Floats, up: Floats) -> Floats:
    """gate, up [n, ffn_dim] -> [n, ffn_dim]."""
    rows = filled(gate)
    out = np.empty_like(rows)
    swiglu_rows(rows, filled(up), out)
    return cut(out, gate.shape[1])


@entry
def swiglu_rows(gate: Floats, up: Floats, out: Floats) -> None:
    """No number depends on another, so all rows are one."""
    swiglu_row(gate.reshape(-1), 0, up.reshape(-1), 0, gate.size, out.reshape(-1), 0)


# ---------------------------------------------------------------- activations for a product


@entry
def tile_all_floats(x: Floats, out: Floats) -> None:
    """All tiles of x [n, cols], one behind another (activations.py)."""
    n, cols = x.shape
    flat = x.reshape(-1)
    for i in range(tile_count(n)):
        first, tokens, width = tile_of(n, i)
        at = first * cols
        tile_floats(flat, at, cols, tokens, cols, width, out, at)


@entry
def tile_all_codes(x: Floats, codes: Codes, scales: Floats) -> None:
    """The same as codes and their scales; cols is a multiple of 32."""
    n, cols = x.shape
    flat = x.reshape(-1)
    for i in range(tile_count(n)):
        first, tokens, width = tile_of(n, i)
        at = first * cols
        tile_codes(flat, at, cols, tokens, cols, width, codes, at, scales, at // 8)
