"""Tensor: a dtype, a shape and strides laid over a buffer of bytes. Lesson 01.

A tensor owns no numbers. It says how to find them: element (i, j, ...) of a plain dtype begins
`offset + i * strides[0] + j * strides[1] + ...` bytes into the buffer. Slicing, reversing and
transposing change those few integers and move no byte.

Block dtypes (`quants.py`) store several elements of the last axis together, so along that axis
one step of the stride goes from block to block, and a view may only cut between blocks.
"""

import ctypes
import math
import operator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .errors import InputError

ALIGNMENT = 64  # bytes: one cache line, and the widest vector register


@dataclass(frozen=True)
class DType:
    """How elements are stored.

    block : elements stored together (1 for plain dtypes, 32 or 256 for quantized ones)
    block_bytes : bytes of one block
    code : NumPy's little-endian type string, or None where NumPy has no such type
    """

    name: str
    block_bytes: int
    block: int = 1
    code: str | None = None

    def __repr__(self) -> str:
        return self.name


F64 = DType("F64", 8, code="<f8")
F32 = DType("F32", 4, code="<f4")
F16 = DType("F16", 2, code="<f2")
BF16 = DType("BF16", 2)
I64 = DType("I64", 8, code="<i8")
I32 = DType("I32", 4, code="<i4")
I16 = DType("I16", 2, code="<i2")
I8 = DType("I8", 1, code="<i1")
U8 = DType("U8", 1, code="<u1")
PLAIN = (F64, F32, F16, BF16, I64, I32, I16, I8, U8)

Index = int | slice


class Tensor:
    """A view of elements in a buffer.

    Parameters
    ----------
    buffer : anything with the buffer protocol: bytes, bytearray, mmap, a NumPy array
    dtype : how an element, or a block of them, is stored
    shape : elements along each axis
    strides : bytes between neighbours along each axis (between blocks along the last axis of a
        block dtype); None means contiguous, last axis fastest
    offset : bytes from the buffer's start to element (0, 0, ...)
    owner : whatever must stay alive as long as this view; the buffer itself if None

    Raises InputError when any element would lie outside the buffer.
    """

    __slots__ = ("buffer", "dtype", "offset", "owner", "shape", "strides")

    def __init__(
        self,
        buffer: Any,
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
        owner: Any = None,
    ):
        self.buffer = buffer
        self.dtype = dtype
        self.shape = tuple(int(n) for n in shape)
        if any(n < 0 for n in self.shape):
            raise InputError(f"a tensor cannot have shape {list(shape)}")
        row = self.shape[-1] if self.shape else 1
        if row % dtype.block:
            raise InputError(
                f"{dtype} stores blocks of {dtype.block}, which do not divide a row of {row}"
            )
        self.strides = contiguous_strides(self.grid, dtype) if strides is None else tuple(strides)
        if len(self.strides) != len(self.shape):
            raise InputError(f"shape {list(shape)} needs one stride an axis, got {list(strides)}")  # type: ignore[arg-type]
        self.offset = offset
        self.owner = buffer if owner is None else owner
        self._check_bounds()

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: DType = F32) -> Self:
        """A new tensor of undefined content whose first byte is 64-byte aligned."""
        nbytes = count_bytes(shape, dtype)
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        return cls(raw, dtype, shape, offset=-raw.ctypes.data % ALIGNMENT)

    @classmethod
    def from_numpy(cls, array: npt.NDArray[Any]) -> Self:
        """A tensor over the array's own memory: no copy, whatever its strides."""
        dtype = next((d for d in PLAIN if d.code and np.dtype(d.code) == array.dtype), None)
        if dtype is None:
            raise InputError(
                f"no tensor dtype for NumPy's {array.dtype}",
                fix=f"Convert it to one of {', '.join(d.name for d in PLAIN if d.code)} first.",
            )
        if array.size == 0:
            return cls(b"", dtype, array.shape)
        low, high = np.lib.array_utils.byte_bounds(array)
        raw = (ctypes.c_uint8 * (high - low)).from_address(low)
        raw.owner = array  # type: ignore[attr-defined] # NumPy views of the tensor keep only raw
        buffer = memoryview(raw) if array.flags.writeable else memoryview(raw).toreadonly()
        return cls(buffer, dtype, array.shape, array.strides, array.ctypes.data - low, owner=array)

    # What the numbers in the header say

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take, without gaps between them."""
        return count_bytes(self.shape, self.dtype)

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape with the last axis counted in blocks."""
        return (*self.shape[:-1], self.shape[-1] // self.dtype.block) if self.shape else ()

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other without gaps, last axis fastest."""
        expected = contiguous_strides(self.grid, self.dtype)
        return all(
            n == 1 or have == want
            for n, have, want in zip(self.grid, self.strides, expected, strict=True)
        )

    def byte_offset(self, *index: int) -> int:
        """Bytes from the buffer's start to the element (or, in a block dtype, the block)."""
        return self.offset + sum(i * s for i, s in zip(index, self.strides, strict=True))

    # Views: new integers over the same bytes

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Self:
        """The view that integers and slices select, as in NumPy."""
        keys = index if isinstance(index, tuple) else (index,)
        if len(keys) > self.ndim:
            raise InputError(f"{len(keys)} indices into a tensor of {self.ndim} axes")
        offset, shape, strides = self.offset, [], []
        for axis, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            key = keys[axis] if axis < len(keys) else slice(None)
            unit = self.dtype.block if axis == self.ndim - 1 else 1
            if isinstance(key, slice):
                start, stop, step = key.indices(n)
                length = len(range(start, stop, step))
                if unit > 1 and (step != 1 or start % unit or length % unit):
                    raise InputError(f"{self.dtype} can only be cut between blocks of {unit}")
                offset += start // unit * stride
                shape.append(length)
                strides.append(stride * step)
            else:
                if unit > 1:
                    raise InputError(f"one element of a {self.dtype} block has no address")
                position = operator.index(key)
                if not -n <= position < n:
                    raise InputError(f"index {position} on an axis of {n}")
                offset += position % n * stride
        if 0 in shape:
            offset = self.offset  # no element, so no place that could lie outside the buffer
        return type(self)(self.buffer, self.dtype, tuple(shape), tuple(strides), offset, self.owner)

    def transpose(self, *axes: int) -> Self:
        """The view with its axes in another order; all reversed if none are given."""
        order = axes or tuple(reversed(range(self.ndim)))
        if sorted(order) != list(range(self.ndim)):
            raise InputError(f"axes {order} do not name each of {self.ndim} axes once")
        if self.dtype.block > 1 and order[-1] != self.ndim - 1:
            raise InputError(f"{self.dtype} blocks lie along the last axis, which must stay last")
        shape = tuple(self.shape[axis] for axis in order)
        strides = tuple(self.strides[axis] for axis in order)
        return type(self)(self.buffer, self.dtype, shape, strides, self.offset, self.owner)

    @property
    def T(self) -> Self:  # noqa: N802 - the field's name
        return self.transpose()

    def reshape(self, *shape: int) -> Self:
        """The same elements in another shape: a view when contiguous, else a copy."""
        if math.prod(shape) != self.size:
            raise InputError(f"{list(self.shape)} does not hold the elements of {list(shape)}")
        source = self if self.is_contiguous else self.copy()
        return type(self)(source.buffer, self.dtype, shape, None, source.offset, source.owner)

    # Bytes, for NumPy and for foreign functions

    def copy(self) -> Self:
        """The same elements, contiguous, in new aligned memory."""
        result = type(self).empty(self.shape, self.dtype)
        result.blocks()[...] = self.blocks()
        return result

    def blocks(self) -> npt.NDArray[np.uint8]:
        """The stored bytes, without a copy: uint8 [*grid, block_bytes]."""
        shape = (*self.grid, self.dtype.block_bytes)
        return np.ndarray(shape, np.uint8, self.buffer, self.offset, (*self.strides, 1))

    def numpy(self) -> npt.NDArray[Any]:
        """A NumPy array over the same memory. Plain dtypes that NumPy knows only."""
        if self.dtype.code is None:
            raise InputError(
                f"NumPy has no dtype for {self.dtype}",
                fix="Decode it to float32 with llambda.quants.decode.",
            )
        return np.ndarray(self.shape, self.dtype.code, self.buffer, self.offset, self.strides)

    def item(self) -> Any:
        """The one element of a tensor of size 1, as a Python number."""
        if self.size != 1:
            raise InputError(f"item() needs one element, this tensor has {self.size}")
        return self.numpy().reshape(()).item()

    @property
    def address(self) -> int:
        """Where element (0, 0, ...) lies in memory. Valid while this tensor is alive."""
        return int(self.blocks().ctypes.data)

    def pointer(self, kind: Any) -> Any:
        """A typed pointer for a foreign function: `tensor.pointer(ctypes.c_float)`.

        The pointer keeps nothing alive: hold on to the tensor until the call is over.
        """
        if ctypes.sizeof(kind) != self.dtype.block_bytes:
            raise InputError(
                f"a pointer to {ctypes.sizeof(kind)}-byte {kind.__name__} into {self.dtype}, "
                f"whose elements take {self.dtype.block_bytes}"
            )
        return ctypes.cast(self.address, ctypes.POINTER(kind))

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, shape={self.shape}, strides={self.strides})"

    def _check_bounds(self) -> None:
        """Every byte that an index can reach must lie inside the buffer."""
        reach = [(n - 1) * stride for n, stride in zip(self.grid, self.strides, strict=True)]
        first = self.offset + sum(r for r in reach if r < 0)
        end = self.offset + sum(r for r in reach if r > 0) + self.dtype.block_bytes
        if 0 in self.shape:
            first = end = self.offset
        size = memoryview(self.buffer).nbytes
        if first < 0 or end > size:
            raise InputError(
                f"{self.dtype} {list(self.shape)} with strides {list(self.strides)} reaches bytes "
                f"{first} to {end} of a buffer of {size}"
            )


def contiguous_strides(grid: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Strides in bytes of elements that follow each other, last axis fastest."""
    strides: list[int] = []
    step = dtype.block_bytes
    for n in reversed(grid):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def count_bytes(shape: tuple[int, ...], dtype: DType) -> int:
    """Bytes of that many elements, in Python's unbounded integers."""
    return math.prod(shape) // dtype.block * dtype.block_bytes
