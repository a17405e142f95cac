"""A weight matrix ready for its kernel: packed bytes, and how to multiply with them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InputError, UnsupportedError
from ..simd.jit import entry
from ..tensor import Tensor
from . import packing, products
from . import quantized as q
from .activations import BLOCK, WORDS, padded_tokens
from .aligned import aligned_zeros
from .products import STRIP
from .rows import tile_all_codes, tile_all_floats

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Form:
    """How weights of one file format are packed and multiplied.

    product : the C function of `products.py`
    pack : the function of `packing.py`
    record : bytes of a block of 32 columns and LANES rows; 0 for floats
    header : bytes before each eight blocks of a K format
    number : bytes of a float; 0 for quantized formats
    """

    product: Any
    pack: Any
    record: int = 0
    header: int = 0
    number: int = 0

    def strip_bytes(self, cols: int) -> int:
        """What a strip of rows takes."""
        blocks = cols // BLOCK
        quantized = 2 * (blocks * self.record + blocks // q.SUPER * self.header)
        return quantized + STRIP * cols * self.number


FORMS = {
    "F32": Form(products.f32, packing.pack_numbers, number=4),
    "F16": Form(products.f16, packing.pack_numbers, number=2),
    "BF16": Form(products.bf16, packing.pack_numbers, number=2),
    "Q4_0": Form(products.q4_0, packing.pack_q4_0, q.Q4_0),
    "Q4_1": Form(products.q4_1, packing.pack_q4_1, q.Q4_1),
    "Q5_0": Form(products.q5_0, packing.pack_q5_0, q.Q5_0),
    "Q5_1": Form(products.q5_1, packing.pack_q5_1, q.Q5_1),
    "Q8_0": Form(products.q8_0, packing.pack_q8_0, q.Q8_0),
    "Q4_K": Form(products.q4_k, packing.pack_q4_k, q.Q4_K, 2 * q.HALVES),
    "Q5_K": Form(products.q5_k, packing.pack_q5_k, q.Q5_K, 2 * q.HALVES),
    "Q6_K": Form(products.q6_k, packing.pack_q6_k, q.Q6_K, q.HALVES),
}


@dataclass(frozen=True)
class Matrix:
    """Packed weights [rows, cols].

    group : rows that begin in a strip of their own (a head), or all of them
    data : uint8, the strips one after another
    """

    form: Form
    rows: int
    cols: int
    group: int
    data: Bytes

    @property
    def coded(self) -> bool:
        """Whether activations come as codes, too."""
        return self.form.number == 0

    @property
    def padded_rows(self) -> int:
        return padded(self.rows, self.group)

    @property
    def strips(self) -> int:
        return self.padded_rows // STRIP


def padded(rows: int, group: int | None = None) -> int:
    """Rows after every group of rows, or all of them together, is filled up to whole strips."""
    group = group or rows
    return rows // group * -(-group // STRIP) * STRIP


def packed_bytes(tensor: Tensor, group: int | None = None) -> int:
    """What `pack` will need."""
    rows, cols = tensor.shape
    return padded(rows, group) // STRIP * FORMS[tensor.dtype.name].strip_bytes(cols)


def pack(tensor: Tensor, group: int | None = None, into: Bytes | None = None) -> Matrix:
    """Pack a tensor [rows, cols], into zeros if they are given.

    Raises UnsupportedError for a format without a kernel, InputError for other room.
    """
    rows, cols = tensor.shape
    group = group or rows
    form = FORMS.get(tensor.dtype.name)
    if form is None:
        raise UnsupportedError(f"there is no kernel for {tensor.dtype} weights")
    if rows % group:
        raise InputError(f"{rows} rows are not whole groups of {group}")
    needed = packed_bytes(tensor, group)
    data = aligned_zeros(needed, np.uint8) if into is None else into
    if data.nbytes != needed:
        raise InputError(f"{data.nbytes} bytes for a matrix of {needed}")
    raw = np.ascontiguousarray(tensor.blocks()).reshape(-1)
    raw.flags.writeable = False  # one compiled signature for maps and for copies
    if form.number:
        word = np.dtype(f"u{form.number}")
        form.pack(raw.view(word), rows, cols, group, data.view(word))
    else:
        form.pack(raw, rows, cols, group, data)
    return Matrix(form, rows, cols, group, data)


# ---------------------------------------------------------------- multiplying, from Python


class Tiles(NamedTuple):
    """n rows of activations as products take them (activations.py).

    room : how many rows there are with those of zeros that fill up the last tile
    x : float32 or, coded, int8 [room * cols]
    scales : float32 [room * cols / 8], or empty
    """

    n: int
    room: int
    x: npt.NDArray[Any]
    scales: Floats


NO_SCALES: Floats = np.empty(0, np.float32)


def tiled(x: Floats, coded: bool) -> Tiles:
    """x [n, cols], C-ordered, for matrices that take codes or for those that take floats."""
    n, cols = x.shape
    room = padded_tokens(n)
    if coded:
        codes = np.empty(room * cols, np.int8)
        scales = np.empty(room * cols // BLOCK * WORDS, np.float32)
        tile_all_codes(x, codes, scales)
        return Tiles(n, room, codes, scales)
    if n == 1:  # the columns of one token are a tile as they are
        return Tiles(n, room, x.reshape(-1), NO_SCALES)
    floats = np.empty(room * cols, np.float32)
    tile_all_floats(x, floats)
    return Tiles(n, room, floats, NO_SCALES)


def multiply(matrix: Matrix, x: Tiles, out: Floats, first: int, last: int) -> None:
    """Strips first to last of a matrix times all rows.

    out : C-ordered [x.room, matrix.padded_rows]; gets the numbers of those strips in every row
    """
    product = matrix.form.product.address
    multiply_tiles(product, matrix.data, matrix.cols, x.x, x.scales, x.n, out, first, last)


@entry
def multiply_tiles(product: int, weights: Bytes, cols: int, x: Any, scales: Floats, n: int,
                   out: Floats, first: int, last: int) -> None:  # fmt: skip
    job = np.empty(products.JOB, np.int64)
    products.multiply_tokens(
        product, job.ctypes.data, weights.ctypes.data, x.ctypes.data, x.itemsize,
        scales.ctypes.data, cols, n, out.ctypes.data, out.shape[1], first, last,
    )  # fmt: skip
