"""Packed weights: read back from the layout that packing.py describes, and compared with the file.

What is read back is read by NumPy, in another way than it was written.
"""

import mmap
from pathlib import Path

import numpy as np
import pytest
from kernels_made import (
    BITS,
    CODED,
    FLOATS,
    HALVES,
    SMALL,
    WITH_MINIMUM,
    Stored,
    block_of,
    places,
    random_bytes,
    stored,
    tensor_of,
    weights,
    with_halves,
)

from llambda.errors import InputError, UnsupportedError
from llambda.kernels.matrix import FORMS, Matrix, pack, packed_bytes, padded
from llambda.kernels.products import STRIP
from llambda.quants import BY_NAME, decode
from llambda.simd.widest import LANES
from llambda.tensor import Tensor

U = 2.0**-24  # what rounding to float32 may cost, relatively

# Rows, rows of a group, blocks of the file.
SHAPES = [
    (1, 1, 1),
    (LANES - 1, LANES - 1, 2),
    (LANES, LANES, 1),
    (STRIP, STRIP, 3),
    (STRIP + 1, STRIP + 1, 1),
    (70, 70, 2),
    (3 * 8, 8, 1),
    (2 * (STRIP + 5), STRIP + 5, 2),
    (3 * STRIP, STRIP, 1),
]


# ---------------------------------------------------------------- the blocks, as tests read them


@pytest.mark.parametrize("name", CODED)
def test_blocks_hold_what_decode_reads(name: str):
    """It rounds d * scale * code exactly, and the sum with a minimum once."""
    raw = random_bytes(name, 9, 3 * block_of(name), 1)
    shape = (*raw.shape[:2], 2)
    raw = with_halves(name, raw, np.random.default_rng(2).normal(size=shape))
    tensor = tensor_of(name, raw, 3 * block_of(name))
    w = weights(name, stored(tensor))
    values = w.scale[..., None] * w.codes
    if w.minimum is not None:
        values = values + w.minimum[..., None]
    values, decoded = values.reshape(tensor.shape), decode(tensor)
    assert np.abs(decoded).max() > 1
    if name in WITH_MINIMUM:
        assert (np.abs(decoded - values) <= U * np.abs(values)).all()
    else:
        assert np.array_equal(decoded, values)


# ---------------------------------------------------------------- quantized weights, read back


def unpacked(name: str, matrix: Matrix) -> Stored:
    """All padded rows.

    [panel of LANES rows][block], a K format's halves before each eight blocks. In a block come
    codes, in eight groups of four columns; then bits, a plane after another; then what scales
    it has, each for all rows.
    """
    panels, blocks = matrix.padded_rows // LANES, matrix.cols // 32
    together = 8 if name in SMALL else 1
    data = matrix.data.reshape(panels, blocks // together, -1)
    head = 2 * LANES * len(HALVES[name]) if name in SMALL else 0
    records = data[..., head:].reshape(panels, blocks, -1)
    end = 4 * LANES * BITS[name]
    codes, scales = records[..., :end], records[..., end:]
    halves = data[..., :head] if name in SMALL else scales
    return Stored(
        unpacked_codes(codes, BITS[name]),
        by_row(np.ascontiguousarray(halves).view(np.uint16)),
        by_row(scales) if name in SMALL else np.zeros((matrix.padded_rows, 0, 2), np.uint8),
    )


def unpacked_codes(raw: np.ndarray, bits: int) -> np.ndarray:
    """[panels, blocks, bytes] -> [padded rows, cols]"""
    shape = (*raw.shape[:2], 8, LANES, 4)  # a group's four columns of every row
    if bits == 8:
        codes = raw.reshape(shape)
    else:
        nibbles = raw[..., : 16 * LANES].reshape(*raw.shape[:2], 4, 1, LANES, 4)
        codes = np.concatenate([nibbles & 15, nibbles >> 4], 3).reshape(shape)
        more = np.unpackbits(raw[..., 16 * LANES :], axis=-1, bitorder="little")
        planes = more.reshape(*raw.shape[:2], bits - 4, *shape[2:])
        for plane in range(bits - 4):
            codes = codes | planes[:, :, plane] << 4 + plane
    return codes.transpose(0, 3, 1, 2, 4).reshape(raw.shape[0] * LANES, -1)


def by_row(numbers: np.ndarray) -> np.ndarray:
    """[panels, blocks, kinds * LANES] -> [padded rows, blocks, kinds]"""
    panels, blocks, _ = numbers.shape
    apart = numbers.reshape(panels, blocks, -1, LANES)
    return apart.transpose(0, 3, 1, 2).reshape(panels * LANES, blocks, -1)


def check(name: str, matrix: Matrix, held: Stored, group: int) -> None:
    """Rows stand in their places, and zeros everywhere else."""
    at = places(matrix.rows, group, STRIP)
    for got, wanted in zip(unpacked(name, matrix), held, strict=True):
        assert got.dtype == wanted.dtype
        assert np.array_equal(got[at], wanted)
        assert not np.delete(got, at, 0).any()


@pytest.mark.parametrize("name", CODED)
def test_rows_of_blocks_are_read_back(name: str):
    """Random bytes, so halves may be infinite or not numbers: they are bits here."""
    for seed, (rows, group, blocks) in enumerate(SHAPES):
        cols = blocks * block_of(name)
        tensor = tensor_of(name, random_bytes(name, rows, cols, seed), cols)
        matrix = pack(tensor, group)
        assert (matrix.rows, matrix.cols, matrix.group) == (rows, cols, group)
        assert matrix.data.nbytes == packed_bytes(tensor, group)
        check(name, matrix, stored(tensor), group)


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("byte", [0x00, 0x80, 0xFF])
def test_bytes_that_are_all_the_same(name: str, byte: int):
    raw = np.full_like(random_bytes(name, STRIP + 1, 256, 0), byte)
    tensor = tensor_of(name, raw, 256)
    check(name, pack(tensor), stored(tensor), STRIP + 1)


@pytest.mark.parametrize("name", CODED)
def test_one_bit_of_a_block_is_one_bit_of_the_packed_one(name: str):
    """Nothing is stored twice, and nothing is left out."""
    dtype = BY_NAME[name].dtype
    raw = np.zeros((1, 1, dtype.block_bytes), np.uint8)
    nothing = pack(tensor_of(name, raw, dtype.block)).data.copy()
    seen = set()
    for bit in range(8 * dtype.block_bytes):
        raw[:] = 0
        raw[..., bit // 8] = 1 << bit % 8
        changed = np.unpackbits(pack(tensor_of(name, raw, dtype.block)).data ^ nothing)
        seen.add(tuple(np.flatnonzero(changed)))
    assert len(seen) == 8 * dtype.block_bytes
    assert {len(places) for places in seen} == {1}


# ---------------------------------------------------------------- numbers


def word(name: str) -> np.dtype:
    return np.dtype(f"u{FORMS[name].number}")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("cols", [1, 7, 256, 257])
def test_rows_of_numbers_are_read_back(name: str, cols: int):
    for seed, (rows, group, _) in enumerate(SHAPES):
        raw = random_bytes(name, rows, cols, seed)
        tensor = tensor_of(name, raw, cols)
        matrix = pack(tensor, group)
        assert matrix.data.nbytes == packed_bytes(tensor, group)
        strips = matrix.data.view(word(name)).reshape(-1, cols, STRIP)
        got = strips.transpose(0, 2, 1).reshape(-1, cols)
        at = places(rows, group, STRIP)
        assert np.array_equal(got[at], raw.reshape(rows, -1).view(word(name)))
        assert not np.delete(got, at, 0).any()


# ---------------------------------------------------------------- wherever the bytes are


@pytest.mark.parametrize("name", FORMS)
def test_maps_copies_and_parts_are_packed_by_the_same_code(name: str, tmp_path: Path):
    """One compiled signature for a format, for numbers one for each size; at odd addresses too."""
    raw = random_bytes(name, 2 * STRIP, 256, 3)
    tensor = tensor_of(name, raw, 256)
    wanted = pack(tensor).data
    path = tmp_path / "weights"
    path.write_bytes(bytes(33) + raw.tobytes())
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        mapped = Tensor(memory, tensor.dtype, tensor.shape, offset=33)
        assert np.array_equal(pack(mapped).data, wanted)
        del mapped
    copy = tensor.copy()
    assert np.array_equal(pack(copy).data, wanted)
    assert copy.blocks().flags.writeable
    twice = Tensor(
        np.repeat(raw, 2, axis=0).tobytes(),
        tensor.dtype,
        tensor.shape,
        strides=(2 * raw[0].nbytes, tensor.dtype.block_bytes),
    )
    assert np.array_equal(pack(twice).data, wanted)
    into = np.zeros(3 + len(wanted), np.uint8)[3:]
    assert pack(tensor, into=into).data is into
    assert np.array_equal(into, wanted)
    kinds = {signature[0].dtype for signature in FORMS[name].pack.signatures}
    assert len(FORMS[name].pack.signatures) == len(kinds) <= (2 if name in FLOATS else 1)


def test_groups_of_rows_are_filled_up():
    assert padded(1, 1) == STRIP
    assert padded(STRIP, STRIP) == STRIP
    assert padded(3 * 8, 8) == 3 * STRIP
    assert padded(2 * (STRIP + 1), STRIP + 1) == 4 * STRIP


def test_a_format_without_a_kernel_is_refused():
    dtype = BY_NAME["Q2_K"].dtype
    with pytest.raises(UnsupportedError, match="Q2_K"):
        pack(Tensor(bytes(dtype.block_bytes), dtype, (1, 256)))


def test_rows_that_are_not_whole_groups_are_refused():
    tensor = Tensor(bytes(3 * 4 * 32), BY_NAME["F32"].dtype, (3, 32))
    with pytest.raises(InputError, match="3 rows are not whole groups of 2"):
        pack(tensor, group=2)


@pytest.mark.parametrize("extra", [-1, 1])
def test_room_of_another_size_is_refused(extra: int):
    tensor = Tensor(bytes(4 * 32), BY_NAME["F32"].dtype, (1, 32))
    needed = packed_bytes(tensor)
    with pytest.raises(InputError, match=f"{needed + extra} bytes for a matrix of {needed}"):
        pack(tensor, into=np.zeros(needed + extra, np.uint8))


# ---------------------------------------------------------------- mistakes


def planted(name: str, held: Stored, mistake: str) -> Stored:
    """What a wrong packer would make of a file."""
    codes, halves, small = (each.copy() for each in held)
    blocks = codes.reshape(len(codes), -1, 32)
    if mistake == "nibbles exchanged":
        blocks = np.roll(blocks, 16, -1)
    if mistake == "neighbours exchanged":
        blocks = blocks.reshape(len(codes), -1, 2)[..., ::-1]
    if mistake == "the upper bits left out":
        blocks = blocks & 15
    if mistake == "scales of the next block":
        halves, small = np.roll(halves, 1, 1), np.roll(small, 1, 1)
    if mistake == "scale and minimum exchanged":
        halves, small = halves[..., ::-1], small[..., ::-1]
    return Stored(blocks.reshape(codes.shape), halves, small)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("Q4_0", "nibbles exchanged"),
        ("Q4_1", "neighbours exchanged"),
        ("Q5_0", "the upper bits left out"),
        ("Q6_K", "the upper bits left out"),
        ("Q8_0", "scales of the next block"),
        ("Q4_K", "scales of the next block"),
        ("Q5_1", "scale and minimum exchanged"),
        ("Q5_K", "scale and minimum exchanged"),
    ],
)
def test_a_wrong_order_is_noticed(name: str, mistake: str):
    cols = 2 * block_of(name)
    tensor = tensor_of(name, random_bytes(name, STRIP + 1, cols, 4), cols)
    matrix, held = pack(tensor), stored(tensor)
    check(name, matrix, planted(name, held, ""), STRIP + 1)
    with pytest.raises(AssertionError):
        check(name, matrix, planted(name, held, mistake), STRIP + 1)


def test_what_lies_between_groups_is_noticed():
    tensor = tensor_of("Q4_0", random_bytes("Q4_0", 8, 32, 5), 32)
    matrix, held = pack(tensor), stored(tensor)
    matrix.data[-1] = 1
    with pytest.raises(AssertionError):
        check("Q4_0", matrix, held, 8)
