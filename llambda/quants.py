"""The block formats of weights: one table, their exact decoding and encoding. Lessons 02 and 09.

A quantized format stores a row of a matrix as blocks. A block holds small integer codes and one
or two scales; code times scale (plus an offset, in some formats) gives the weight back. Layouts
are those of GGML (ggml-common.h, ggml-quants.c in llama.cpp); all fields are little-endian, d and
m are IEEE half precision. In each 32-element block the low nibbles hold the first half of the
elements and the high nibbles the second half.

Every decoder takes uint8 [..., block_bytes] and returns float32 [..., block]; the encoders are in
`encode.py`. The arithmetic is float32 throughout, in the order of the reference, so results
agree with it bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import UnsupportedError
from .tensor import BF16, F16, F32, F64, I8, I16, I32, I64, DType, Tensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def decode_f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def decode_f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def decode_bf16(blocks: Bytes) -> Floats:
    """A bfloat16 is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def decode_q8_0(blocks: Bytes) -> Floats:
    """d[2] qs[32]: w = d * q, q signed."""
    return half(blocks, 0) * blocks[..., 2:34].view(np.int8).astype(np.float32)


def decode_q4_0(blocks: Bytes) -> Floats:
    """d[2] qs[16]: w = d * (q - 8)."""
    return half(blocks, 0) * (nibbles(blocks[..., 2:18]) - np.float32(8))


def decode_q4_1(blocks: Bytes) -> Floats:
    """d[2] m[2] qs[16]: w = d * q + m."""
    return half(blocks, 0) * nibbles(blocks[..., 4:20]) + half(blocks, 2)


def decode_q5_0(blocks: Bytes) -> Floats:
    """d[2] qh[4] qs[16]: w = d * (q - 16), the fifth bits of q in qh."""
    codes = nibbles(blocks[..., 6:22]) + 16 * bits(blocks[..., 2:6])
    return half(blocks, 0) * (codes - np.float32(16))


def decode_q5_1(blocks: Bytes) -> Floats:
    """d[2] m[2] qh[4] qs[16]: w = d * q + m, the fifth bits of q in qh."""
    codes = nibbles(blocks[..., 8:24]) + 16 * bits(blocks[..., 4:8])
    return half(blocks, 0) * codes + half(blocks, 2)


def decode_q4_k(blocks: Bytes) -> Floats:
    """d[2] dmin[2] scales[12] qs[128]: eight sub-blocks of 32, w = d*sc * q - dmin*m."""
    codes = group_nibbles(blocks[..., 16:144])
    return scaled_sub_blocks(blocks, codes)


def decode_q5_k(blocks: Bytes) -> Floats:
    """d[2] dmin[2] scales[12] qh[32] qs[128]: as Q4_K, bit s of qh[l] is lane l's fifth bit."""
    lanes = blocks[..., None, 16:48]  # [..., 1, 32]
    fifth = lanes >> np.arange(8, dtype=np.uint8)[:, None] & 1  # [..., 8, 32]
    codes = group_nibbles(blocks[..., 48:176]) + np.float32(16) * fifth
    return scaled_sub_blocks(blocks, codes)


def decode_q6_k(blocks: Bytes) -> Floats:
    """ql[128] qh[64] scales[16] d[2]: w = d*scale * (q - 32), a signed scale per 16 elements.

    Element 128n + 32k + l takes its low nibble from ql[64n + 32(k % 2) + l] (the byte's high
    nibble for k >= 2) and its two high bits from qh[32n + l] >> 2k.
    """
    outer = blocks.shape[:-1]
    ql = blocks[..., :128].reshape(*outer, 2, 1, 2, 32)  # [..., n, 1, k % 2, l]
    low = ql >> np.array([0, 4], np.uint8)[:, None, None] & 15  # [..., n, k // 2, k % 2, l]
    qh = blocks[..., 128:192].reshape(*outer, 2, 1, 32)  # [..., n, 1, l]
    high = qh >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3  # [..., n, k, l]
    codes = (low.reshape(high.shape) | high << 4).astype(np.float32) - np.float32(32)
    scales = half(blocks, 208) * blocks[..., 192:208].view(np.int8).astype(np.float32)
    return (scales[..., None] * codes.reshape(*outer, 16, 16)).reshape(*outer, 256)


def half(blocks: Bytes, at: int) -> Floats:
    """The half-precision number at byte `at` of every block: float32 [..., 1]."""
    return blocks[..., at : at + 2].view("<f2").astype(np.float32)


def nibbles(qs: Bytes) -> Floats:
    """All low nibbles, then all high ones: uint8 [..., n] -> float32 [..., 2n]."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.float32)


def bits(qh: Bytes) -> Floats:
    """The bits of each byte string, lowest first: uint8 [..., n] -> float32 [..., 8n]."""
    return np.unpackbits(qh, axis=-1, bitorder="little").astype(np.float32)


def group_nibbles(qs: Bytes) -> Floats:
    """K-quant order, 32 low then 32 high nibbles of each 32 bytes: [..., 128] -> [..., 8, 32]."""
    groups = qs.reshape(*qs.shape[:-1], 4, 32)
    return nibbles(groups).reshape(*qs.shape[:-1], 8, 32)


def scaled_sub_blocks(blocks: Bytes, codes: Floats) -> Floats:
    """d*sc * q - dmin*m with the 6-bit sc and m of eight sub-blocks, packed in bytes 4 to 15.

    The first four of each stand in the low six bits of bytes 0-3 (sc) and 4-7 (m); the last four
    have their low nibbles in bytes 8-11 and their upper two bits on top of bytes 0-3 and 4-7.
    """
    a, b, c = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    sc = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=-1).astype(np.float32)
    m = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=-1).astype(np.float32)
    scale, minimum = half(blocks, 0) * sc, half(blocks, 2) * m  # [..., 8]
    weights = scale[..., None] * codes - minimum[..., None]
    return weights.reshape(*blocks.shape[:-1], 256)


@dataclass(frozen=True)
class Format:
    """A storage format: its layout, GGML's number for it, and its decoder (None: not here)."""

    dtype: DType
    ggml_id: int
    decode: Callable[[Bytes], Floats] | None = None

    @property
    def name(self) -> str:
        return self.dtype.name

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.dtype.block_bytes / self.dtype.block


Q4_0 = DType("Q4_0", 18, 32)
Q4_1 = DType("Q4_1", 20, 32)
Q5_0 = DType("Q5_0", 22, 32)
Q5_1 = DType("Q5_1", 24, 32)
Q8_0 = DType("Q8_0", 34, 32)
Q4_K = DType("Q4_K", 144, 256)
Q5_K = DType("Q5_K", 176, 256)
Q6_K = DType("Q6_K", 210, 256)

DECODED = (
    Format(F32, 0, decode_f32),
    Format(F16, 1, decode_f16),
    Format(BF16, 30, decode_bf16),
    Format(Q8_0, 8, decode_q8_0),
    Format(Q4_0, 2, decode_q4_0),
    Format(Q4_1, 3, decode_q4_1),
    Format(Q5_0, 6, decode_q5_0),
    Format(Q5_1, 7, decode_q5_1),
    Format(Q4_K, 12, decode_q4_k),
    Format(Q5_K, 13, decode_q5_k),
    Format(Q6_K, 14, decode_q6_k),
)

# Known by size only, so that a file which holds them can be listed: (name, id, bytes, block).
LISTED = tuple(
    Format(DType(name, nbytes, block), ggml_id)
    for name, ggml_id, nbytes, block in (
        ("Q8_1", 9, 36, 32),
        ("Q2_K", 10, 84, 256),
        ("Q3_K", 11, 110, 256),
        ("Q8_K", 15, 292, 256),
        ("IQ2_XXS", 16, 66, 256),
        ("IQ2_XS", 17, 74, 256),
        ("IQ3_XXS", 18, 98, 256),
        ("IQ1_S", 19, 50, 256),
        ("IQ4_NL", 20, 18, 32),
        ("IQ3_S", 21, 110, 256),
        ("IQ2_S", 22, 82, 256),
        ("IQ4_XS", 23, 136, 256),
        ("IQ1_M", 29, 56, 256),
        ("TQ1_0", 34, 54, 256),
        ("TQ2_0", 35, 66, 256),
        ("MXFP4", 39, 17, 32),
        ("NVFP4", 40, 36, 64),
    )
) + tuple(Format(d, i) for d, i in ((I8, 24), (I16, 25), (I32, 26), (I64, 27), (F64, 28)))

BY_ID = {f.ggml_id: f for f in DECODED + LISTED}
BY_NAME = {f.name: f for f in DECODED + LISTED}


def decode(tensor: Tensor, name: str = "tensor") -> Floats:
    """The values as a new float32 array of the tensor's shape.

    Raises UnsupportedError, naming the tensor, for a format without a decoder.
    """
    form = BY_NAME.get(tensor.dtype.name)
    if form is None or form.decode is None:
        raise UnsupportedError(
            f"tensor {name!r} is stored as {tensor.dtype}, which this engine cannot decode",
            fix=f"Use a file in one of {', '.join(f.name for f in DECODED)}.",
        )
    with np.errstate(all="ignore"):  # inf and nan in a file are values, not events
        return form.decode(tensor.blocks()).reshape(tensor.shape)


def decode_rows(matrix: Tensor, rows: Sequence[int]) -> Floats:
    """Some rows of a matrix whose format has a decoder: float32 [len(rows), cols]."""
    form = BY_NAME[matrix.dtype.name]
    assert form.decode is not None
    with np.errstate(all="ignore"):
        return form.decode(matrix.blocks()[np.asarray(rows)]).reshape(len(rows), -1)
