"""Weights of every format for tests of kernels, and what their blocks hold, read with NumPy.

The layouts of blocks are those of ggml-common.h; test_packing.py compares what is read here with
what decode() reads.
"""

from typing import NamedTuple

import numpy as np

from llambda.kernels.matrix import FORMS
from llambda.quants import BY_NAME
from llambda.tensor import Tensor

FLOATS = [name for name, form in FORMS.items() if form.number]
CODED = [name for name, form in FORMS.items() if not form.number]
WITH_MINIMUM = ["Q4_1", "Q5_1", "Q4_K", "Q5_K"]
BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6}
OFFSET = {"Q4_0": 8, "Q5_0": 16, "Q6_K": 32, "Q8_0": 128}  # what a code is too large by
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}  # fmt: skip
SMALL = {"Q4_K": slice(4, 16), "Q5_K": slice(4, 16), "Q6_K": slice(192, 208)}


def block_of(name: str) -> int:
    return BY_NAME[name].dtype.block


def tensor_of(name: str, raw: np.ndarray, cols: int) -> Tensor:
    """Of the bytes of some rows."""
    return Tensor(raw.tobytes(), BY_NAME[name].dtype, (len(raw), cols))


# ---------------------------------------------------------------- made


def random_bytes(name: str, rows: int, cols: int, seed: int) -> np.ndarray:
    """uint8 [rows, blocks, bytes]"""
    dtype = BY_NAME[name].dtype
    shape = (rows, cols // dtype.block, dtype.block_bytes)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def with_halves(name: str, raw: np.ndarray, values: np.ndarray) -> np.ndarray:
    """raw with float16 values [..., 1 or 2] as scales, and minimums, of the blocks."""
    raw = raw.copy()
    for i, at in enumerate(HALVES[name]):
        half = np.ascontiguousarray(values[..., i : i + 1], np.float16)
        raw[..., at : at + 2] = half.view(np.uint8)
    return raw


def with_codes(name: str, raw: np.ndarray, byte: int) -> np.ndarray:
    """raw with all bytes of codes the same; a K format's small scales are made at most 3."""
    made = np.full_like(raw, byte)
    for at in HALVES[name]:
        made[..., at : at + 2] = raw[..., at : at + 2]
    if name in SMALL:
        small = raw[..., SMALL[name]]
        if name == "Q6_K":
            small = (small % 7 - np.uint8(3)).astype(np.uint8)  # -3 to 3
        else:
            small = small & np.repeat(np.array([3, 3, 0x33], np.uint8), 4)
        made[..., SMALL[name]] = small
    return made


# ---------------------------------------------------------------- read


class Stored(NamedTuple):
    """What a matrix of a quantized format holds.

    codes : uint8 [rows, cols]; those of Q8_0 moved up by 128
    halves : uint16 [rows, blocks, 1 or 2], the bits of d, and of m or dmin
    small : uint8 [rows, blocks of 32, 2] of the K formats: scale and minimum; the scales of two
        halves, signed, of Q6_K; [rows, 0, 2] else
    """

    codes: np.ndarray
    halves: np.ndarray
    small: np.ndarray


def stored(tensor: Tensor) -> Stored:
    raw, name = np.ascontiguousarray(tensor.blocks()), tensor.dtype.name
    codes = READ[name](raw).reshape(tensor.shape).astype(np.uint8)
    halves = [np.ascontiguousarray(raw[..., at : at + 2]).view("<u2") for at in HALVES[name]]
    small = np.zeros((len(raw), 0, 2), np.uint8)
    if name == "Q6_K":
        small = raw[..., SMALL[name]].reshape(len(raw), -1, 2)
    elif name in SMALL:
        small = six_bits(raw[..., SMALL[name]])
    return Stored(codes, np.concatenate(halves, -1), small)


def bits(raw: np.ndarray) -> np.ndarray:
    return np.unpackbits(np.ascontiguousarray(raw), axis=-1, bitorder="little")


def both_halves(raw: np.ndarray) -> np.ndarray:
    return np.concatenate([raw & 15, raw >> 4], -1)


def in_fours(raw: np.ndarray) -> np.ndarray:
    """K formats: 32 low nibbles and then 32 high ones of each 32 bytes."""
    return both_halves(raw.reshape(*raw.shape[:-1], 4, 32)).reshape(*raw.shape[:-1], 8, 32)


def read_q5_k(raw: np.ndarray) -> np.ndarray:
    fifth = np.swapaxes(bits(raw[..., 16:48, None]), -1, -2)  # [..., 8, 32]
    return in_fours(raw[..., 48:176]) | fifth << 4


def read_q6_k(raw: np.ndarray) -> np.ndarray:
    made = np.zeros((*raw.shape[:-1], 256), np.uint8)
    for column in range(256):
        n, k, i = column // 128, column // 32 % 4, column % 32
        low = raw[..., 64 * n + 32 * (k % 2) + i] >> 4 * (k // 2) & 15
        high = raw[..., 128 + 32 * n + i] >> 2 * k & 3
        made[..., column] = low | high << 4
    return made


READ = {
    "Q4_0": lambda raw: both_halves(raw[..., 2:18]),
    "Q4_1": lambda raw: both_halves(raw[..., 4:20]),
    "Q5_0": lambda raw: both_halves(raw[..., 6:22]) | bits(raw[..., 2:6]) << 4,
    "Q5_1": lambda raw: both_halves(raw[..., 8:24]) | bits(raw[..., 4:8]) << 4,
    "Q8_0": lambda raw: raw[..., 2:34].view(np.int8).astype(int) + 128,
    "Q4_K": lambda raw: in_fours(raw[..., 16:144]),
    "Q5_K": read_q5_k,
    "Q6_K": read_q6_k,
}


def six_bits(raw: np.ndarray) -> np.ndarray:
    """uint8 [rows, blocks, 12] -> [rows, 8 * blocks, 2]"""
    made = np.zeros((*raw.shape[:-1], 8, 2), np.uint8)
    for j in range(4):
        first, second, both = raw[..., j], raw[..., j + 4], raw[..., j + 8]
        made[..., j, 0], made[..., j, 1] = first & 63, second & 63
        made[..., j + 4, 0] = both & 15 | first >> 6 << 4
        made[..., j + 4, 1] = both >> 4 | second >> 6 << 4
    return made.reshape(len(raw), -1, 2)


class Weights(NamedTuple):
    """w = scale * (code - offset) + minimum, in whole numbers and float64.

    codes : int64 [rows, runs, columns of a run]: 32, or 16 in Q6_K
    scale, minimum : float64 [rows, runs]; minimum is None where there is none
    """

    codes: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray | None


def weights(name: str, held: Stored) -> Weights:
    rows = len(held.codes)
    run = 16 if name == "Q6_K" else 32
    codes = held.codes.astype(np.int64).reshape(rows, -1, run) - OFFSET.get(name, 0)
    halves = held.halves.view(np.float16).astype(np.float64)
    halves = np.repeat(halves, codes.shape[1] // halves.shape[1], axis=1)
    scale, minimum = halves[..., 0], halves[..., 1] if name in WITH_MINIMUM else None
    if name == "Q6_K":
        scale = scale * held.small.view(np.int8).reshape(rows, -1)
    elif name in SMALL:
        scale, minimum = scale * held.small[..., 0], -minimum * held.small[..., 1]
    return Weights(codes, scale, minimum)


def places(rows: int, group: int, strip: int) -> np.ndarray:
    """Where rows stand when every group of them begins in a strip of its own."""
    return np.concatenate(
        [np.arange(group) + i * -(-group // strip) * strip for i in range(rows // group)]
    )
