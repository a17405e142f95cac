"""A weight matrix ready for its kernel: packed bytes, and how to multiply with them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedError
from ..tensor import Tensor
from . import packing, products
from . import quantized as q
from .activations import BLOCK
from .products import STRIP

Bytes = npt.NDArray[np.uint8]


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


def padded(rows: int, group: int) -> int:
    """Rows after every group of rows is filled up to whole strips."""
    return rows // group * -(-group // STRIP) * STRIP


def packed_bytes(tensor: Tensor, group: int | None = None) -> int:
    """What `pack` will need."""
    rows, cols = tensor.shape
    return padded(rows, group or rows) // STRIP * FORMS[tensor.dtype.name].strip_bytes(cols)


def pack(tensor: Tensor, group: int | None = None, into: Bytes | None = None) -> Matrix:
    """Pack a tensor [rows, cols], into zeros if they are given.

    Raises UnsupportedError for a format without a kernel.
    """
    rows, cols = tensor.shape
    group = group or rows
    form = FORMS.get(tensor.dtype.name)
    if form is None:
        raise UnsupportedError(f"there is no kernel for {tensor.dtype} weights")
    data = np.zeros(packed_bytes(tensor, group), np.uint8) if into is None else into
    raw = np.ascontiguousarray(tensor.blocks()).reshape(-1)
    raw.flags.writeable = False  # one compiled signature for maps and for copies
    if form.number:
        word = np.dtype(f"u{form.number}")
        form.pack(raw.view(word), rows, cols, group, data.view(word))
    else:
        form.pack(raw, rows, cols, group, data)
    return Matrix(form, rows, cols, group, data)
