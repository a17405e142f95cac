"""float32 -> stored blocks: the inverse of `quants.py`, as GGML's reference encoders do it.

A block's scale is chosen so that its largest value just fits. The codes are computed with the
exact float32 scale, and only then is the scale rounded to half precision and stored: that is the
reference's order, and it matters to the last bit (ggml-quants.c, quantize_row_*_ref).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .errors import InputError, UnsupportedError
from .quants import Q4_0, Q4_1, Q8_0, Bytes, Floats
from .tensor import BF16, F16, F32, DType


def encode_f32(x: Floats) -> Bytes:
    return x.astype("<f4").view(np.uint8)


def encode_f16(x: Floats) -> Bytes:
    return x.astype("<f2").view(np.uint8)


def encode_bf16(x: Floats) -> Bytes:
    """Round to the nearest upper half, ties to even; a NaN stays one, and quiet."""
    bits = x.view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    quiet = bits >> 16 | 0x40
    return np.where(np.isnan(x), quiet, rounded).astype("<u2").view(np.uint8)


def encode_q8_0(x: Floats) -> Bytes:
    """d = largest magnitude / 127; codes round half away from zero."""
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    codes = round_half_away(x * inverse(d)).astype(np.int8)
    return np.concatenate([half_bytes(d), codes.view(np.uint8)], axis=-1)


def encode_q4_0(x: Floats) -> Bytes:
    """d = the value of largest magnitude / -8, so that this one gets the code 0 exactly."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    d = largest / np.float32(-8)
    return np.concatenate([half_bytes(d), nibble_bytes(x * inverse(d) + np.float32(8.5))], axis=-1)


def encode_q4_1(x: Floats) -> Bytes:
    """m = the minimum, d = the range / 15."""
    m = x.min(axis=-1, keepdims=True)
    d = (x.max(axis=-1, keepdims=True) - m) / np.float32(15)
    codes = nibble_bytes((x - m) * inverse(d) + np.float32(0.5))
    return np.concatenate([half_bytes(d), half_bytes(m), codes], axis=-1)


def inverse(d: Floats) -> Floats:
    """1 / d, and 0 where that is no finite number: d is 0, or so small that it is stored as 0."""
    result = np.float32(1) / d
    return np.where(np.isfinite(result), result, np.float32(0))


def round_half_away(x: Floats) -> Floats:
    """C's roundf. Adding a half and cutting off would turn the float below 0.5 into 1."""
    size = np.abs(x)
    whole = np.floor(size)
    return np.copysign(whole + (size - whole >= 0.5), x)


def half_bytes(values: Floats) -> Bytes:
    """[..., 1] as two bytes of half precision each: uint8 [..., 2]."""
    return values.astype("<f2").view(np.uint8)


def nibble_bytes(codes: Floats) -> Bytes:
    """Codes cut to whole numbers of at most 15; the first half in the low nibbles."""
    whole: Bytes = np.minimum(codes, 15).astype(np.uint8)
    n = whole.shape[-1] // 2
    packed: Bytes = whole[..., :n] | whole[..., n:] << np.uint8(4)
    return packed


ENCODERS: dict[str, Callable[[Floats], Bytes]] = {
    F32.name: encode_f32,
    F16.name: encode_f16,
    BF16.name: encode_bf16,
    Q8_0.name: encode_q8_0,
    Q4_0.name: encode_q4_0,
    Q4_1.name: encode_q4_1,
}


def encode(values: npt.ArrayLike, dtype: DType) -> Bytes:
    """Values as stored in a format: float32 [..., n] -> uint8 [..., bytes of a row].

    A block with a value that is no finite number, or too large for its scale, decodes to none.
    Raises InputError when the format's blocks do not divide a row, UnsupportedError for a format
    that is only decoded here.
    """
    with np.errstate(over="ignore"):  # float64 values beyond float32 become inf
        x = np.ascontiguousarray(values, np.float32)
    if dtype.name not in ENCODERS:
        raise UnsupportedError(
            f"no encoder for {dtype}", fix=f"Choose one of {', '.join(ENCODERS)}."
        )
    *rows, n = x.shape
    if n % dtype.block:
        raise InputError(f"{dtype} needs rows of a multiple of {dtype.block}, not {n}")
    blocks = x.reshape(*rows, n // dtype.block, dtype.block)
    with np.errstate(all="ignore"):  # what overflows is stored as inf, as in the reference
        stored = ENCODERS[dtype.name](blocks)
    return stored.reshape(*rows, n // dtype.block * dtype.block_bytes)
