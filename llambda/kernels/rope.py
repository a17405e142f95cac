"""Rotary position embedding (Su et al., RoFormer, 2021).

Element i of a head and element i + head_dim/2 are the two coordinates of a point, which position
p turns by the angle p * frequency[i]. This is Hugging Face's pairing; files that pair neighbours
are re-ordered when their weights are loaded.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import RopeConfig
from ..simd.arithmetic import add, mul, sub
from ..simd.jit import kernel
from ..simd.memory import store
from ..simd.widest import LANES, load

Floats = npt.NDArray[np.float32]


def frequencies(rope: RopeConfig, factors: Floats | None = None) -> Floats:
    """Radians a position for each pair: float32 [dim / 2].

    factors, a tensor that some files carry, divide the plain frequencies. A base that is none in
    float32 (1e39 is infinite there) gives frequencies of 0, infinity or NaN, without a warning.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    with np.errstate(all="ignore"):
        plain = (1.0 / np.power(np.float32(rope.base), exponents)).astype(np.float32)
        if factors is not None:
            plain = plain / factors
        match rope.scaling:
            case "linear":
                return plain / np.float32(rope.factor)
            case "llama3":
                return llama3_scaled(plain, rope)
            case _:
                return plain


def llama3_scaled(plain: Floats, rope: RopeConfig) -> Floats:
    """Llama 3.1's scaling: slow turns are slowed by `factor`, fast ones kept, with a band between.

    A wavelength of original_context / high_freq_factor or less is kept; one of original_context /
    low_freq_factor or more is slowed; in between the two are mixed (llama-models, rope scaling).
    """
    turns = rope.original_context * plain / np.float32(2 * math.pi)  # within the original context
    band = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((turns - np.float32(rope.low_freq_factor)) / np.float32(band), 0, 1)
    return ((1 - keep) * plain / np.float32(rope.factor) + keep * plain).astype(np.float32)


def table(turning: Floats, start: int, end: int) -> tuple[Floats, Floats]:
    """Cosine and sine of the angles at positions start to end - 1: two float32 [n, dim / 2]."""
    with np.errstate(all="ignore"):  # an infinite angle has no cosine: NaN
        angles = np.arange(start, end, dtype=np.float32)[:, None] * turning
        return np.cos(angles), np.sin(angles)


def rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Turn every head: x [n, heads, head_dim], cos and sin [n, head_dim / 2] -> [n, heads, ...]."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@kernel
def rotate_row(x: Any, at: int, cos: Any, sin: Any, rope_at: int, half: int) -> None:
    """rotate of one head in place, bit for bit: each product is rounded before the sum.

    x : float32; the head's 2 * half floats begin at `at`
    cos, sin : float32; the position's `half` floats begin at rope_at
    """
    whole = half // LANES * LANES
    for i in range(0, whole, LANES):
        a, b = load(x, at + i), load(x, at + half + i)
        c, s = load(cos, rope_at + i), load(sin, rope_at + i)
        store(x, at + i, sub(mul(a, c), mul(b, s)))
        store(x, at + half + i, add(mul(b, c), mul(a, s)))
    # A head ends where the next begins, so no register may reach over its end.
    for i in range(whole, half):
        first, second = x[at + i], x[at + half + i]
        x[at + i] = first * cos[rope_at + i] - second * sin[rope_at + i]
        x[at + half + i] = second * cos[rope_at + i] + first * sin[rope_at + i]
