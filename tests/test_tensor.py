"""Tensor against NumPy: the same elements at the same addresses, whatever the view."""

import ctypes
import itertools
import math
import mmap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llambda.errors import InputError
from llambda.tensor import BF16, F32, F64, I16, I32, PLAIN, U8, DType, Tensor

PAIR = DType("PAIR", 3, 2)  # a block dtype small enough to see: two elements in three bytes
NUMPY_DTYPES = [dtype for dtype in PLAIN if dtype.code]

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
slices = st.builds(
    slice,
    st.none() | st.integers(-7, 7),
    st.none() | st.integers(-7, 7),
    st.none() | st.integers(-3, 3).filter(bool),
)


def counted(shape: tuple[int, ...], dtype: DType = F32) -> np.ndarray:
    return np.arange(math.prod(shape)).astype(dtype.code).reshape(shape)


def assert_same(tensor: Tensor, array: np.ndarray) -> None:
    """The same header and the same elements."""
    assert (tensor.shape, tensor.ndim, tensor.size) == (array.shape, array.ndim, array.size)
    assert tensor.nbytes == array.nbytes
    assert tensor.numpy().dtype == array.dtype
    assert np.array_equal(tensor.numpy(), array)
    if array.size:
        assert tensor.is_contiguous == array.flags.c_contiguous
        assert steps(tensor) == steps(array)


def steps(view: Any) -> list[int]:
    """The strides that matter: those of axes with more than one element."""
    return [stride for n, stride in zip(view.shape, view.strides, strict=True) if n > 1]


# Views. Each function makes one random step, in Tensor and in NumPy.


def cut(data: st.DataObject, tensor: Tensor, array: np.ndarray) -> tuple[Tensor, np.ndarray]:
    keys = [
        data.draw(slices | st.integers(-n, n - 1) if n else slices)
        for n in array.shape[: data.draw(st.integers(0, array.ndim))]
    ]
    index = keys[0] if len(keys) == 1 and data.draw(st.booleans()) else tuple(keys)
    return tensor[index], array[(*keys, ...)]  # the dots keep a single element an array


def turn(data: st.DataObject, tensor: Tensor, array: np.ndarray) -> tuple[Tensor, np.ndarray]:
    order = data.draw(st.permutations(range(array.ndim)))
    return tensor.transpose(*order), array.transpose(order)


def flip_axes(data: st.DataObject, tensor: Tensor, array: np.ndarray) -> tuple[Tensor, np.ndarray]:
    return tensor.T, array.T


def copy(data: st.DataObject, tensor: Tensor, array: np.ndarray) -> tuple[Tensor, np.ndarray]:
    return tensor.copy(), array.copy()


def reshape(data: st.DataObject, tensor: Tensor, array: np.ndarray) -> tuple[Tensor, np.ndarray]:
    if array.size == 0:
        shape = data.draw(st.sampled_from([(0,), (3, 0), (0, 2), (2, 0, 5)]))
    else:
        first = data.draw(st.sampled_from(divisors(array.size)))
        second = data.draw(st.sampled_from(divisors(array.size // first)))
        shape = (first, second, array.size // first // second)
        shape = data.draw(st.sampled_from([shape, (array.size,), array.shape[::-1]]))
    return tensor.reshape(*shape), array.copy().reshape(shape)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@given(st.data(), shapes, st.sampled_from(NUMPY_DTYPES))
def test_any_chain_of_views_is_numpys(data: st.DataObject, shape: tuple[int, ...], dtype: DType):
    array = counted(shape, dtype)
    tensor = Tensor.from_numpy(array)
    assert_same(tensor, array)
    for step in data.draw(st.lists(st.sampled_from([cut, turn, flip_axes, copy, reshape]))):
        tensor, array = step(data, tensor, array)
        assert_same(tensor, array)


@given(st.data(), shapes, st.sampled_from(NUMPY_DTYPES))
def test_views_copy_nothing(data: st.DataObject, shape: tuple[int, ...], dtype: DType):
    """Every element of a view lies at the address that NumPy computes for it."""
    base = counted(shape, dtype)
    tensor, array = Tensor.from_numpy(base), base
    for step in data.draw(st.lists(st.sampled_from([cut, turn, flip_axes]))):
        tensor, array = step(data, tensor, array)
    if array.size:
        assert tensor.address == array.ctypes.data
        index = tuple(data.draw(st.integers(0, n - 1)) for n in array.shape)
        address = base.ctypes.data + tensor.byte_offset(*index)
        assert address == array[(*index, ...)].ctypes.data


@given(st.data(), shapes)
def test_a_strided_numpy_view_is_taken_as_it_is(data: st.DataObject, shape: tuple[int, ...]):
    _, array = cut(data, Tensor.from_numpy(counted(shape)), counted(shape))
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    tensor = Tensor.from_numpy(array)
    assert_same(tensor, array)
    if array.size:
        assert tensor.address == array.ctypes.data


@pytest.mark.parametrize("step", [-1, -2, 2])
def test_a_reversed_array_keeps_its_order(step: int):
    array = counted((4, 6))[::step, ::step]
    assert_same(Tensor.from_numpy(array), array)
    assert_same(Tensor.from_numpy(array)[::-1].T, array[::-1].T)


def test_a_reshape_of_contiguous_elements_shares_them_and_any_other_does_not():
    tensor = Tensor.from_numpy(counted((4, 6)))
    assert tensor.reshape(8, 3).address == tensor.address
    assert tensor[1:3].reshape(12).address == tensor[1:3].address
    assert tensor.T.reshape(24).address != tensor.address


def test_writing_through_a_view_reaches_the_source():
    array = counted((3, 4))
    Tensor.from_numpy(array)[::-1, 1].numpy()[0] = 99
    assert array[2, 1] == 99


def test_without_axes():
    tensor = Tensor(np.float64(2.5).tobytes(), F64, ())
    assert (tensor.shape, tensor.strides, tensor.size, tensor.nbytes) == ((), (), 1, 8)
    assert tensor.item() == tensor.T.item() == tensor[()].item() == tensor.copy().item() == 2.5
    assert tensor.reshape(1, 1).shape == (1, 1)
    assert tensor.byte_offset() == 0


def test_one_element_becomes_a_python_number():
    tensor = Tensor.from_numpy(counted((2, 3), I32))
    assert tensor[1, 2].item() == 5
    assert type(tensor[1, 2].item()) is int
    with pytest.raises(InputError, match="6"):
        tensor.item()


@pytest.mark.parametrize("index", [(3,), (-4,), (0, 4), (0, 0, 0), (slice(None), -5)])
def test_an_index_outside_is_refused(index: tuple[Any, ...]):
    with pytest.raises(InputError):
        Tensor.from_numpy(counted((3, 4)))[index]


@pytest.mark.parametrize("index", [1.0, "1", None, ..., [0, 1]])
def test_what_is_no_index_is_refused(index: Any):
    with pytest.raises(TypeError):
        Tensor.from_numpy(counted((3, 4)))[index]


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.reshape(5),
        lambda t: t.reshape(-1),
        lambda t: t.reshape(-3, -4),
        lambda t: t.reshape(3, 4, 0),
        lambda t: t.transpose(0),
        lambda t: t.transpose(0, 0),
        lambda t: t.transpose(0, 2),
        lambda t: t.transpose(0, -1),
    ],
)
def test_an_impossible_view_is_refused(view: Callable[[Tensor], Tensor]):
    with pytest.raises(InputError):
        view(Tensor.from_numpy(counted((3, 4))))


# Bounds


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=3),
    st.integers(-4, 30),
    st.integers(0, 30),
    st.sampled_from([U8, I16, F32, F64]),
)
def test_exactly_the_views_inside_the_buffer_are_accepted(
    axes: list[tuple[int, int]], offset: int, size: int, dtype: DType
):
    """The oracle looks at every element that the header can reach."""
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    width = dtype.block_bytes
    reached = [
        offset + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, shape))
    ]
    inside = all(at >= 0 and at + width <= size for at in reached) and 0 <= offset <= size
    buffer = bytes(range(size))
    if not inside:
        with pytest.raises(InputError):
            Tensor(buffer, dtype, shape, strides, offset)
        return
    tensor = Tensor(buffer, dtype, shape, strides, offset)
    found = [number.tobytes() for number in tensor.numpy().flat]
    assert found == [buffer[at : at + width] for at in reached]
    assert tensor.blocks().tobytes() == b"".join(found)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4,), None, 0),
        ((3,), None, 1),
        ((3,), None, -1),
        ((2,), (12,), 0),
        ((2,), (-4,), 0),
        ((2, 2), (4, -4), 0),
        ((), (), 9),
        ((2**62,), None, 0),
        ((2**32, 2**32), (0, 4), 0),
        ((2**64 + 3,), None, 0),
        ((2,), (2**64 + 4,), 0),
        ((-1,), None, 0),
        ((3, -1), None, 0),
        ((3,), (4, 4), 0),
        ((0,), None, 13),
        ((0,), None, -1),
    ],
)
def test_a_view_beyond_twelve_bytes_is_refused(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, offset: int
):
    with pytest.raises(InputError):
        Tensor(bytes(12), F32, shape, strides, offset)


# Memory


@pytest.mark.parametrize("dtype", [*PLAIN, PAIR], ids=repr)
@pytest.mark.parametrize("shape", [(2,), (0,), (3, 10), (7, 1, 2)])
def test_new_memory_is_aligned_to_a_cache_line(dtype: DType, shape: tuple[int, ...]):
    kept = [Tensor.empty(shape, dtype) for _ in range(20)]
    kept += [tensor.copy() for tensor in kept]
    assert {tensor.address % 64 for tensor in kept} == {0}
    assert all(tensor.is_contiguous and tensor.shape == shape for tensor in kept)


def test_a_view_keeps_its_source_alive_and_no_longer_than_needed():
    array = counted((1000,))
    alive = weakref.ref(array)
    view = Tensor.from_numpy(array)[::-2].reshape(2, 250)
    del array
    assert alive() is None, "reshape had to copy, and a copy needs no source"
    assert view.numpy()[0, 0] == 999

    array = counted((1000,))
    alive = weakref.ref(array)
    view = Tensor.from_numpy(array)[::-2][3:]
    del array
    assert alive() is not None
    assert view.numpy()[0] == 993
    del view
    assert alive() is None


@pytest.mark.parametrize("look", [Tensor.numpy, Tensor.blocks])
def test_a_numpy_view_outlives_its_tensor(look: Callable[[Tensor], np.ndarray]):
    array = counted((1000,))
    alive = weakref.ref(array)
    seen = look(Tensor.from_numpy(array)[2:])
    del array
    assert alive() is not None
    assert seen.reshape(-1).view("<f4")[0] == 2
    del seen
    assert alive() is None


def test_an_owner_lives_as_long_as_a_view_of_a_view():
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    view = Tensor(bytes(24), F32, (2, 3), owner=owner).T[1:].transpose(1, 0)[::-1]
    del owner
    assert alive() is not None
    del view
    assert alive() is None


@pytest.mark.parametrize("kind", ["bytes", "mmap", "array"])
def test_what_may_not_be_written_stays_read_only(kind: str, tmp_path: Path):
    raw = counted((6,)).tobytes()
    if kind == "array":
        array = np.frombuffer(raw, "<f4")
        tensor = Tensor.from_numpy(array.reshape(2, 3)[::-1])[::-1]
    elif kind == "mmap":
        (tmp_path / "raw").write_bytes(raw)
        with open(tmp_path / "raw", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tensor = Tensor(mapped, F32, (2, 3))
    else:
        tensor = Tensor(raw, F32, (2, 3))
    assert np.array_equal(tensor.numpy(), counted((2, 3)))
    for view in (tensor.numpy(), tensor.blocks(), tensor.T[1:].numpy()):
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 1
    tensor.copy().numpy()[...] = 1


@pytest.mark.parametrize("buffer", [bytearray(24), np.zeros(6, "<f4"), memoryview(bytearray(24))])
def test_what_may_be_written_can_be(buffer: Any):
    tensor = Tensor(buffer, F32, (2, 3))
    tensor[1].numpy()[...] = [1, 2, 3]
    assert bytes(memoryview(buffer))[12:] == np.array([1, 2, 3], "<f4").tobytes()


@pytest.mark.parametrize("dtype", ["bool", ">f4", ">i8", "c8", "O", "S3", "u4", "M8[s]"])
def test_an_array_of_another_dtype_is_refused(dtype: str):
    with pytest.raises(InputError, match="Convert it"):
        Tensor.from_numpy(np.zeros(3, dtype))


# Foreign functions

libc = ctypes.CDLL(None)


def test_a_foreign_function_reads_the_elements():
    tensor = Tensor.empty((3, 5))
    tensor.numpy()[...] = counted((3, 5))
    expected = counted((5,)) + 10
    row = tensor[2]
    assert libc.memcmp(row.pointer(ctypes.c_float), expected.ctypes, 20) == 0
    assert ctypes.string_at(row.address, 20) == expected.tobytes()
    assert [row.pointer(ctypes.c_float)[i] for i in range(5)] == [10, 11, 12, 13, 14]
    assert tensor[::-1].pointer(ctypes.c_float)[0] == 10


def test_a_foreign_function_writes_the_elements():
    numbers = [5, -3, 900, 0, -70]
    tensor = Tensor.from_numpy(np.array([[1] * 5, numbers], "<i4"))[1]
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int32)
    )
    libc.qsort(tensor.pointer(ctypes.c_int32), 5, 4, kind(lambda a, b: a[0] - b[0]))
    assert tensor.numpy().tolist() == sorted(numbers)


def test_a_pointer_of_another_width_is_refused():
    with pytest.raises(InputError, match=r"8-byte c_double .* F32"):
        Tensor.empty((3,)).pointer(ctypes.c_double)


# Block dtypes: the last axis is cut between blocks only


def pairs(rows: int, blocks: int) -> tuple[Tensor, np.ndarray]:
    """A tensor of PAIR and its bytes [rows, blocks, 3]."""
    raw = np.arange(rows * blocks * 3, dtype=np.uint8)
    return Tensor(raw, PAIR, (rows, 2 * blocks)), raw.reshape(rows, blocks, 3)


@given(st.data(), st.integers(0, 5), st.integers(0, 5))
def test_views_of_blocks_are_numpys_of_the_block_bytes(data: st.DataObject, rows: int, blocks: int):
    tensor, raw = pairs(rows, blocks)
    keep, start = data.draw(slices), data.draw(st.integers(0, blocks))
    stop = data.draw(st.integers(start, blocks))
    view, expected = tensor[keep, 2 * start : 2 * stop], raw[keep, start:stop]
    assert view.shape == (len(expected), 2 * (stop - start))
    assert np.array_equal(view.blocks(), expected)
    assert np.array_equal(view.copy().blocks(), expected)
    assert view.copy().is_contiguous
    assert view.nbytes == expected.size
    if expected.size:
        assert tensor.byte_offset(0, start) == 3 * start
        assert view.address == expected.ctypes.data
        again = view.reshape(len(expected) * (stop - start), 2)
        assert np.array_equal(again.blocks().reshape(-1), expected.reshape(-1))


def test_blocks_over_three_axes_may_be_transposed_but_the_last():
    raw = np.arange(2 * 3 * 4 * 3, dtype=np.uint8)
    tensor = Tensor(raw, PAIR, (2, 3, 8))
    expected = raw.reshape(2, 3, 4, 3).transpose(1, 0, 2, 3)
    view = tensor.transpose(1, 0, 2)
    assert np.array_equal(view.blocks(), expected)
    assert np.array_equal(view.reshape(6, 8).blocks(), expected.reshape(6, 4, 3))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[:, 1:5],
        lambda t: t[:, 0:3],
        lambda t: t[:, ::2],
        lambda t: t[:, ::4],
        lambda t: t[:, ::-1],
        lambda t: t[:, 6:2:-1],
        lambda t: t[0, 0],
        lambda t: t[0, -1],
        lambda t: t.T,
        lambda t: t.transpose(1, 0),
        lambda t: t.reshape(40, 1),
        lambda t: t.reshape(8, 5),
        lambda t: t.reshape(2, 4, 1, 5),
        lambda t: t.numpy(),
        lambda t: t.item(),
    ],
)
def test_a_view_through_a_block_is_refused(view: Callable[[Tensor], Any]):
    with pytest.raises(InputError):
        view(pairs(4, 5)[0])


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (2, 1)])
def test_a_row_that_is_no_whole_number_of_blocks_is_refused(shape: tuple[int, ...]):
    with pytest.raises(InputError, match="PAIR stores blocks of 2"):
        Tensor(bytes(100), PAIR, shape)


def test_a_dtype_unknown_to_numpy_has_bytes_but_no_array():
    tensor = Tensor(bytes([1, 2, 3, 4]), BF16, (2,))
    assert tensor[1:].blocks().tolist() == [[3, 4]]
    with pytest.raises(InputError, match=r"no dtype for BF16.*decode"):
        tensor.numpy()


def test_the_header_can_be_printed():
    assert repr(Tensor(bytes(24), F32, (2, 3)).T) == "Tensor(F32, shape=(3, 2), strides=(4, 12))"
