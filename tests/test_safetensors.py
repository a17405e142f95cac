"""safetensors files: literal bytes, the `safetensors` package as judge, and every lie.

What the package refuses is refused here too. Where this reader is the stricter of the two, a
table below says so and why.
"""

import gc
import json
import os
import shutil
import struct
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors as reference
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import build

from llambda import safetensors
from llambda.errors import FileAccessError, LlambdaError, ModelFileError, UnsupportedError
from llambda.quants import decode
from llambda.tensorfile import TensorFile

INDEX = "model.safetensors.index.json"


def entry(begin: int, end: int, shape: Any = (), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    """One entry of a header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


def raw_file(header: Any, data: bytes = b"", announced: int | None = None) -> bytes:
    """A whole file; the header as an object, as text or as bytes."""
    if not isinstance(header, str | bytes):
        header = json.dumps(header)
    start = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(start) if announced is None else announced) + start + data


def sample() -> bytes:
    """A valid file of some 400 bytes: a matrix, a scalar, nothing, a vector; not in this order.

    matrix is F32 [2, 3] with 0 to 5, one is F16 and 0.5, none is I8 [0, 5], vector is BF16 1, -2.
    """
    header = {
        "__metadata__": {"format": "pt", "é": ""},
        "vector": entry(26, 30, [2], "BF16"),
        "none": entry(24, 24, [0, 5], "I8"),
        "matrix": entry(0, 24, [2, 3]),
        "one": entry(24, 26, [], "F16"),
    }
    data = struct.pack("<6f", *range(6)) + struct.pack("<e", 0.5)
    return raw_file(json.dumps(header) + "  ", data + bytes.fromhex("803f 00c0"))


@pytest.fixture(scope="module")
def spot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file name for one file after the other."""
    return tmp_path_factory.mktemp("safetensors") / "model.safetensors"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(raw: bytes) -> Path:
        path = tmp_path / "model.safetensors"
        path.write_bytes(raw)
        return path

    return write


def attempt(path: Path) -> LlambdaError | None:
    """Open the file and touch all of its tensors. Any error but a LlambdaError escapes."""
    try:
        with safetensors.open(path) as file:
            for name in file:
                try:
                    file[name].blocks().sum()
                except UnsupportedError as error:
                    assert repr(name) in error.what
    except LlambdaError as error:
        assert str(error).isprintable()
        assert str(error).startswith(str(path))
        assert len(str(error)) < len(str(path)) + 1000
        assert error.fix
        return error
    return None


def refused(path: Path, kind: type[LlambdaError] = ModelFileError) -> str:
    """The message with which the file is refused."""
    error = attempt(path)
    assert type(error) is kind, error
    return str(error)


def reference_reads(raw: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]] | None:
    """What the package finds in these bytes, or None where it refuses them."""
    try:
        found = reference.deserialize(raw)
    except reference.SafetensorError:
        return None
    return {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in found}


def we_read(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]] | None:
    """The same of ours; None for the bytes of tensors that are only listed."""
    try:
        file = safetensors.open(path)
    except LlambdaError:
        return None
    return {
        name: (info.kind, info.shape, file[name].blocks().tobytes() if info.dtype else None)
        for name, info in file.infos.items()
    }


def agree(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Names, types and shapes are the same, and the bytes of what is more than listed."""
    return ours.keys() == theirs.keys() and all(
        mine[:2] == other[:2] and mine[2] in (None, other[2])
        for mine, other in ((ours[name], theirs[name]) for name in ours)
    )


@contextmanager
def at_once(seconds: float = 1.0) -> Iterator[None]:
    """Fails when the body computes for longer. A busy machine alone does not make it fail."""
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds


# Good files


def test_every_byte_of_a_small_file(write: Callable[[bytes], Path]):
    header = b'{"t":{"dtype":"F16","shape":[3,4],"data_offsets":[0,24]}}'
    raw = bytes.fromhex("3900000000000000") + header
    raw += bytes.fromhex("0000 003c 0040 0042 0044 0045 0046 0047 0048 8048 0049 8049")
    with safetensors.open(write(raw)) as file:
        info = file.infos["t"]
        assert (info.kind, info.shape, info.offset, info.nbytes) == ("F16", (3, 4), 65, 24)
        assert np.array_equal(file["t"].numpy(), np.arange(12).reshape(3, 4))
        assert (file.metadata, file.nbytes, file.format) == ({}, 24, "safetensors")


def test_the_sample(write: Callable[[bytes], Path]):
    """Unordered entries, a scalar, an empty tensor, trailing blanks: all of them legal."""
    path = write(sample())
    with safetensors.open(str(path)) as file:
        assert file.metadata == {"format": "pt", "é": ""}
        assert decode(file["matrix"]).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert decode(file["vector"]).tolist() == [1, -2]
        assert (file["one"].shape, decode(file["one"]).item()) == ((), 0.5)
        assert file["none"].numpy().shape == (0, 5)
    assert we_read(path) == reference_reads(sample())


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16],
    ids=["F32", "F16", "BF16"],
)
def test_values_are_torchs(tmp_path: Path, dtype: torch.dtype):
    source = torch.Generator().manual_seed(1)
    tensors = {
        "matrix": torch.randn(3, 5, generator=source).to(dtype),
        "cube": torch.randn(2, 1, 7, generator=source).to(dtype) * 1e4,
        "scalar": torch.tensor(-0.1).to(dtype),
        "empty": torch.zeros(0, 4).to(dtype),
        "odd": torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 1e-7, 65504.0]).to(dtype),
    }
    path = tmp_path / "model.safetensors"
    reference.torch.save_file(tensors, path, metadata={"format": "pt"})
    with safetensors.open(path) as file:
        assert file.keys() == tensors.keys()
        for name, tensor in tensors.items():
            expected = tensor.float().numpy()
            found = decode(file[name])
            assert (found.dtype, found.shape) == (np.float32, expected.shape)
            assert np.array_equal(found, expected, equal_nan=True), name
            assert np.array_equal(np.signbit(found), np.signbit(expected)), name


@pytest.mark.parametrize("bits", ["float16", "bfloat16"])
def test_every_pattern_of_a_half_comes_through(tmp_path: Path, bits: str):
    tensor = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(getattr(torch, bits))
    path = tmp_path / "model.safetensors"
    reference.torch.save_file({"all": tensor.reshape(256, 256)}, path)
    with safetensors.open(path) as file:
        found, expected = decode(file["all"]), tensor.float().numpy().reshape(256, 256)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.isnan(expected).any()
    assert not np.array_equal(found, expected.T, equal_nan=True)


def test_whole_numbers_and_doubles(tmp_path: Path):
    names = ("float64", "int64", "int32", "int16", "int8", "uint8")
    tensors = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in names}
    path = tmp_path / "model.safetensors"
    reference.torch.save_file(tensors, path)
    with safetensors.open(path) as file:
        for name, tensor in tensors.items():
            assert file[name].numpy().dtype == name
            assert np.array_equal(file[name].numpy(), tensor.numpy())


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("BOOL", 1),
        ("U16", 2),
        ("U32", 4),
        ("U64", 8),
        ("C64", 8),
        ("F4", 0.5),
        ("F6_E2M3", 0.75),
        ("F6_E3M2", 0.75),
        ("F8_E4M3", 1),
        ("F8_E4M3FNUZ", 1),
        ("F8_E5M2", 1),
        ("F8_E5M2FNUZ", 1),
        ("F8_E8M0", 1),
    ],
)
def test_a_type_without_a_decoder_is_listed_and_refused_when_needed(
    write: Callable[[bytes], Path], kind: str, size: float
):
    nbytes = int(8 * size)
    header = {"strange": entry(0, nbytes, [2, 4], kind), "plain": entry(nbytes, nbytes + 8, [2])}
    raw = raw_file(header, bytes(nbytes + 8))
    assert reference_reads(raw) is not None
    with safetensors.open(write(raw)) as file:
        info = file.infos["strange"]
        assert (info.kind, info.shape, info.dtype, info.nbytes) == (kind, (2, 4), None, nbytes)
        assert file["plain"].numpy().tolist() == [0, 0]
        with pytest.raises(UnsupportedError) as caught:
            file["strange"]
    assert f"'strange' is stored as {kind}" in str(caught.value)
    for wrong in (nbytes - 1, nbytes + 1):
        raw = raw_file({"strange": entry(0, wrong, [2, 4], kind)}, bytes(wrong))
        assert reference_reads(raw) is None
        assert f"takes {nbytes} bytes" in refused(write(raw))


def test_torchs_own_odd_types_are_listed(tmp_path: Path):
    """What shows that the names in the list are those that are written."""
    kinds = {
        "BOOL": torch.bool,
        "U16": torch.uint16,
        "U32": torch.uint32,
        "U64": torch.uint64,
        "C64": torch.complex64,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
        "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
        "F8_E8M0": torch.float8_e8m0fnu,
    }
    path = tmp_path / "model.safetensors"
    tensors = {kind: torch.zeros(8, dtype=torch.uint8).view(t) for kind, t in kinds.items()}
    reference.torch.save_file(tensors, path)
    with safetensors.open(path) as file:
        assert {name: info.kind for name, info in file.infos.items()} == {k: k for k in kinds}


# The package as judge

FOUR = entry(0, 4)
BOTH_REFUSE = {
    "an empty file": b"",
    "seven bytes": bytes(7),
    "an empty header": raw_file(""),
    "a header of blanks": raw_file("    "),
    "a header longer than the file": raw_file({"a": FOUR}, bytes(4), announced=10_000),
    "a header one byte too long": raw_file("{}", announced=3),
    "a header one byte too short": raw_file("{}", announced=1),
    "a header of 100 MB and a byte": raw_file("{}", announced=100_000_001),
    "a header of 2^63": raw_file("{}", announced=2**63),
    "a header of 2^64 - 1": raw_file("{}", announced=2**64 - 1),
    "a web page": b"<!DOCTYPE html><html><body>404</body></html>",
    "a GGUF file": b"GGUF\x03\0\0\0" + bytes(16),
    "big-endian length": struct.pack(">Q", 2) + b"{}",
    "a list": raw_file("[]"),
    "null": raw_file("null"),
    "half an object": raw_file('{"a":'),
    "a comma too many": raw_file('{"a":' + json.dumps(FOUR) + ",}", bytes(4)),
    "a zero byte behind the header": raw_file("{}\0"),
    "a byte order mark": raw_file(b"\xef\xbb\xbf{}"),
    "not UTF-8": raw_file(b'{"\xe9":' + json.dumps(FOUR).encode() + b"}", bytes(4)),
    "UTF-16": raw_file("{}".encode("utf-16-le")),
    "half a character in a name": raw_file('{"\\ud800":' + json.dumps(FOUR) + "}", bytes(4)),
    "half a character in the metadata": raw_file('{"__metadata__":{"a":"\\udc00"}}'),
    "a raw line break in a name": raw_file(b'{"a\nb":' + json.dumps(FOUR).encode() + b"}", b"1234"),
    "deep nesting": raw_file('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "a field twice": raw_file('{"a":{"dtype":"F32",' + json.dumps(FOUR)[1:] + "}", bytes(4)),
    "the metadata twice": raw_file('{"__metadata__":{},"__metadata__":{}}'),
    "metadata of numbers": raw_file({"__metadata__": {"a": 1}}),
    "metadata of lists": raw_file({"__metadata__": {"a": ["b"]}}),
    "metadata as a text": raw_file({"__metadata__": "pt"}),
    "a byte behind the data": raw_file({"a": FOUR}, bytes(5)),
    "a byte of data missing": raw_file({"a": FOUR}, bytes(3)),
    "data of nobody": raw_file({}, bytes(4)),
    "a hole at the start": raw_file({"a": entry(4, 8)}, bytes(8)),
    "a hole": raw_file({"a": FOUR, "b": entry(8, 12)}, bytes(12)),
    "the same bytes twice": raw_file({"a": FOUR, "b": FOUR}, bytes(4)),
    "an overlap": raw_file({"a": entry(0, 8, [2]), "b": entry(4, 8)}, bytes(8)),
    "an empty tensor inside another": raw_file({"a": FOUR, "b": entry(2, 2, [0])}, bytes(4)),
    "an empty tensor past the end": raw_file({"a": FOUR, "b": entry(8, 8, [0])}, bytes(4)),
    "the end before the beginning": raw_file({"a": entry(4, 0)}, bytes(4)),
    "a negative offset": raw_file({"a": entry(-4, 0)}, bytes(4)),
    "a negative axis": raw_file({"a": entry(0, 4, [-1, -1])}, bytes(4)),
    "too few bytes for the shape": raw_file({"a": entry(0, 4, [1000, 1000])}, bytes(4)),
    "too many bytes for the shape": raw_file({"a": entry(0, 8, [1])}, bytes(8)),
    "a product that wraps to 4": raw_file(
        {"a": entry(0, 16, [4194305, 4194305, 211106198978564])}, bytes(16)
    ),
    "a product that wraps to 0": raw_file({"a": entry(0, 0, [2**32, 2**32])}),
    "a product that wraps before the 0": raw_file({"a": entry(0, 0, [2**40, 2**40, 0])}),
    "an axis of 2^64": raw_file({"a": entry(0, 0, [2**64, 0])}),
    "axes of 4,000 digits": raw_file({"a": entry(0, 4, [10**4000, 10**4000])}, bytes(4)),
    "offsets of 4,000 digits": raw_file({"a": entry(10**4000, 10**4000 + 4)}, bytes(4)),
    "an axis of 5,000 digits": raw_file(f'{{"a":{{"shape":[{"1" * 5000}]}}}}'),
    "a fraction": raw_file({"a": entry(0, 4, [1.0])}, bytes(4)),
    "a flag for an axis": raw_file({"a": entry(0, 4, [True])}, bytes(4)),
    "a flag for an offset": raw_file({"a": entry(False, 4)}, bytes(4)),
    "an unknown type": raw_file({"a": entry(0, 4, [], "Q4_0")}, bytes(4)),
    "a type in small letters": raw_file({"a": entry(0, 4, [], "f32")}, bytes(4)),
    "a number for a type": raw_file({"a": entry(0, 4, [], 5)}, bytes(4)),
    "a list for a type": raw_file({"a": entry(0, 4, [], ["F32"])}, bytes(4)),
    "a text for a shape": raw_file({"a": FOUR | {"shape": "1"}}, bytes(4)),
    "a text for offsets": raw_file({"a": FOUR | {"data_offsets": "04"}}, bytes(4)),
    "one offset": raw_file({"a": FOUR | {"data_offsets": [4]}}, bytes(4)),
    "three offsets": raw_file({"a": FOUR | {"data_offsets": [0, 4, 4]}}, bytes(4)),
    "no shape": raw_file({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)),
    "no type": raw_file({"a": {"shape": [], "data_offsets": [0, 4]}}, bytes(4)),
    "null for an entry": raw_file({"a": None}),
    "NaN for an axis": raw_file({"a": entry(0, 4, [float("nan")])}, bytes(4)),
}
BOTH_ACCEPT = {
    "nothing": raw_file("{}"),
    "the sample": sample(),
    "a name that is empty": raw_file({"": FOUR}, bytes(4)),
    "a line break in a name": raw_file({"a\nb": FOUR}, bytes(4)),
    "any characters": raw_file('{"\\ud83d\\ude42é":' + json.dumps(FOUR) + "}", bytes(4)),
    "unordered": raw_file({"b": entry(4, 8), "a": FOUR}, bytes(8)),
    "header of an odd length": raw_file(json.dumps({"a": FOUR}) + " " * 3, bytes(4)),
    "line breaks behind the header": raw_file(json.dumps({"a": FOUR}) + "\n\t\r ", bytes(4)),
    "blanks inside": raw_file(json.dumps({"a": FOUR}, indent=3), bytes(4)),
    "empty tensors everywhere": raw_file(
        {"a": FOUR, "x": entry(0, 0, [0]), "y": entry(4, 4, [3, 0, 2]), "b": entry(4, 8)}, bytes(8)
    ),
    "eight axes": raw_file({"a": entry(0, 8, [1, 2, 1, 1, 1, 1, 1, 1])}, bytes(8)),
}
# What only the package accepts: none of it is written by anyone, and a reader that takes it can
# be made to see another model than the next reader does, or cannot give the tensor to NumPy.
STRICTER = {
    "a blank before the header": raw_file(" " + json.dumps({"a": FOUR}), bytes(4)),
    "a tensor twice": raw_file(f'{{"a":{json.dumps(FOUR)},"a":{json.dumps(FOUR)}}}', bytes(4)),
    "a key of the metadata twice": raw_file('{"__metadata__":{"a":"b","a":"c"}}'),
    "null for the metadata": raw_file({"__metadata__": None}),
    "a field of its own": raw_file({"a": entry(0, 4, more=1)}, bytes(4)),
    "a list for an entry": raw_file({"a": ["F32", [], [0, 4]]}, bytes(4)),
    "a hundred axes": raw_file({"a": entry(0, 4, [1] * 100)}, bytes(4)),
    "empty, but of an impossible size": raw_file({"a": entry(0, 0, [0, 2**40, 2**40])}),
}


@pytest.mark.parametrize("what", BOTH_REFUSE)
def test_what_the_package_refuses_is_refused(write: Callable[[bytes], Path], what: str):
    assert reference_reads(BOTH_REFUSE[what]) is None
    with at_once():
        refused(write(BOTH_REFUSE[what]))


@pytest.mark.parametrize("what", BOTH_ACCEPT)
def test_what_is_legal_is_read_alike(write: Callable[[bytes], Path], what: str):
    theirs = reference_reads(BOTH_ACCEPT[what])
    assert theirs is not None
    assert we_read(write(BOTH_ACCEPT[what])) == theirs
    assert attempt(write(BOTH_ACCEPT[what])) is None


@pytest.mark.parametrize("what", STRICTER)
def test_where_this_reader_is_the_stricter(write: Callable[[bytes], Path], what: str):
    assert reference_reads(STRICTER[what]) is not None
    refused(write(STRICTER[what]))


def test_minus_zero_is_zero(write: Callable[[bytes], Path]):
    """The one case where the package is the stricter: it takes -0 for a fraction."""
    header = json.dumps({"a": FOUR}).replace("[0, 4]", "[-0, 4]")
    assert reference_reads(raw_file(header, bytes(4))) is None
    assert attempt(write(raw_file(header, bytes(4)))) is None


# Truncated, and numbers that lie


def test_every_prefix_is_refused_at_once(spot: Path):
    raw = sample()
    assert 300 < len(raw) < 500
    spot.write_bytes(raw)
    assert attempt(spot) is None
    for end in reversed(range(len(raw))):
        os.truncate(spot, end)
        assert reference_reads(raw[:end]) is None
        with at_once():
            refused(spot)


def test_any_announced_length_but_the_right_one_is_refused(spot: Path):
    raw = sample()
    right = int.from_bytes(raw[:8], "little")
    near = range(right - 3, right + 40)
    far = [2**i + j for i in range(65) for j in (-1, 0, 1) if 0 <= 2**i + j < 2**64]
    blanks = {right - 1, right - 2}  # what is cut off would be data then
    for length in {0, *near, *far}:
        spot.write_bytes(struct.pack("<Q", length) + raw[8:])
        assert (attempt(spot) is None) is (length == right), length
    for length in blanks:
        assert "longer than its tensors" in refused_with_length(spot, raw, length)


def test_a_header_that_ends_behind_the_file(write: Callable[[bytes], Path]):
    for announced in (3, 9, 10, 11):
        message = refused(write(raw_file("{}", announced=announced)))
        assert f"a header of {announced} bytes is announced and 2 bytes follow" in message


def refused_with_length(spot: Path, raw: bytes, length: int) -> str:
    spot.write_bytes(struct.pack("<Q", length) + raw[8:])
    return refused(spot)


def test_a_header_above_the_limit_is_not_read(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001))
        file.truncate(8 + 100_000_001)  # a file with a hole: it takes no room
    tracemalloc.start()
    try:
        with at_once():
            assert "a header of 100,000,001 bytes is announced" in refused(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("axis", [0, 1, 2**62])
def test_a_shape_of_many_axes_is_cheap(write: Callable[[bytes], Path], axis: int):
    """The product of 60,000 large numbers takes half a minute."""
    with at_once(2):
        assert "impossible shape" in refused(
            write(raw_file({"a": entry(0, 4, [axis] * 60_000)}, bytes(4)))
        )


# Hypothesis: bytes changed anywhere, and headers put together at random


def check_against_the_package(raw: bytes, spot: Path) -> None:
    spot.write_bytes(raw)
    attempt(spot)  # lets no error pass but its own
    ours = we_read(spot)
    if ours is not None and b"-0" not in raw:
        theirs = reference_reads(raw)
        assert theirs is not None, "accepted, and the package refuses it"
        assert agree(ours, theirs)


@given(st.data())
def test_changed_bytes_never_crash_nor_lie(spot: Path, data: st.DataObject):
    raw = bytearray(sample())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["set", "insert", "delete", "digit", "copy"])):
            case "set":
                raw[at] = data.draw(st.integers(0, 255))
            case "insert":
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=3))
            case "delete":
                del raw[at : at + data.draw(st.integers(1, 9))]
            case "digit":
                raw[at : at + 1] = data.draw(st.sampled_from("0123456789")).encode()
            case "copy":
                other = data.draw(st.integers(0, len(raw) - 1))
                raw[at:at] = raw[other : other + 12]
        if not raw:
            break
    if data.draw(st.booleans()) and len(raw) > 8:  # the right length for the header as it is now
        end = bytes(raw).rfind(b"}  ")
        raw[:8] = struct.pack("<Q", max(end + 3 - 8, 0))
    check_against_the_package(bytes(raw), spot)


numbers = st.one_of(
    st.integers(0, 4),
    st.sampled_from([-1, 8, 2**31, 2**32, 2**63, 2**64 - 1, 2**64, 10**30, 1.0, True, None, "1"]),
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "U8", "F8_E4M3", "F4", "BOOL", "x", 1]),
        "shape": st.lists(numbers, max_size=3),
        "data_offsets": st.lists(numbers, min_size=2, max_size=2),
    }
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", "", "__metadata__"]), entries, max_size=3),
    st.integers(0, 12),
)
def test_random_headers_never_crash_nor_lie(spot: Path, header: dict[str, Any], nbytes: int):
    check_against_the_package(raw_file(header, bytes(range(nbytes))), spot)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["F32", "F16", "BF16", "U8", "I64", "BOOL"]),
            st.lists(st.integers(0, 3), max_size=3),
        ),
        max_size=5,
    ),
    st.randoms(use_true_random=False),
)
def test_random_sound_files_are_read_alike(spot: Path, layout: list[Any], rng: Any):
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I64": 8, "BOOL": 1}
    header, at = [], 0
    for i, (kind, shape) in enumerate(layout):
        end = at + sizes[kind] * int(np.prod(shape))
        header.append((f"t{i}", entry(at, end, shape, kind)))
        at = end
    rng.shuffle(header)
    raw = raw_file(dict(header), rng.randbytes(at))
    spot.write_bytes(raw)
    ours, theirs = we_read(spot), reference_reads(raw)
    assert ours is not None
    assert theirs is not None
    assert agree(ours, theirs)


# Other files and places


def test_what_is_no_file(tmp_path: Path):
    assert "no such file" in refused(tmp_path / "none", FileAccessError)
    message = refused(tmp_path, FileAccessError)
    assert message.startswith(f"{tmp_path}: a folder without model.safetensors or model.")
    assert "too long" in refused(tmp_path / ("x" * 300), FileAccessError)
    (tmp_path / "empty").touch()
    assert "the file is empty" in refused(tmp_path / "empty")


def test_a_folder_that_may_not_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def is_dir(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", is_dir)
    with pytest.raises(FileAccessError, match="permission denied"):
        safetensors.open(tmp_path / "model.safetensors")


def test_a_refused_file_is_not_kept_open(write: Callable[[bytes], Path], tmp_path: Path):
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    path = write(sample())
    with safetensors.open(path):
        assert str(path) in maps.read_text()
    path = write(sample() + b"x")
    refused(path)
    assert str(path) not in maps.read_text()


def test_views_outlive_the_file(write: Callable[[bytes], Path]):
    path = write(sample())
    with safetensors.open(path) as file:
        matrix = file["matrix"]
        mapped = weakref.ref(next(iter(file.maps.values())))
    with pytest.raises(ModelFileError, match="the file was closed"):
        file["matrix"]
    file.close()
    path.unlink()
    assert matrix.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert list(file) == ["vector", "none", "matrix", "one"], "what it held is still known"
    assert mapped() is not None
    del matrix
    gc.collect()
    assert mapped() is None


def test_nothing_is_copied_and_nothing_can_be_written(write: Callable[[bytes], Path]):
    with safetensors.open(write(sample())) as file:
        assert file["matrix"].buffer is next(iter(file.maps.values()))
        with pytest.raises(ValueError, match="read-only"):
            file["matrix"].numpy()[0, 0] = 1


# Shards


def sharded(folder: Path, parts: dict[str, list[str]], **changes: Any) -> Path:
    """A folder of F32 scalars: shard -> its tensors, and an index; changes to the index."""
    places = {}
    for shard, names in parts.items():
        header = {name: entry(4 * i, 4 * i + 4) for i, name in enumerate(names)}
        values = [float(ord(name[0])) for name in names]
        (folder / shard).write_bytes(raw_file(header, struct.pack(f"<{len(names)}f", *values)))
        places |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": 4 * len(places)}, "weight_map": places, **changes}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


TWO = {"one.safetensors": ["a", "b"], "two.safetensors": ["c"]}


def values_of(file: TensorFile) -> dict[str, str]:
    return {name: chr(int(file[name].item())) for name in file}


def test_shards_are_one_file(tmp_path: Path):
    for path in (sharded(tmp_path, TWO), tmp_path / INDEX, f"{tmp_path}/"):
        with safetensors.open(path) as file:
            assert values_of(file) == {"a": "a", "b": "b", "c": "c"}
            assert (file.path, file.metadata) == (tmp_path / INDEX, {"total_size": 12})
            assert sorted(part.name for part in file.maps) == sorted(TWO)
        with pytest.raises(ModelFileError, match="the file was closed"):
            file["c"]


def test_shards_of_transformers(tmp_path: Path):
    hf = build("biased").hf
    hf.save_pretrained(tmp_path, max_shard_size="10KB")
    expected = hf.state_dict()
    assert not (tmp_path / "model.safetensors").exists()
    with safetensors.open(tmp_path) as file:
        assert len(file.maps) > 3
        assert file.keys() == expected.keys()
        for name, tensor in expected.items():
            assert np.array_equal(file[name].numpy(), tensor.numpy())


def test_a_missing_shard_is_named(tmp_path: Path):
    sharded(tmp_path, TWO)
    (tmp_path / "two.safetensors").unlink()
    assert "the shard 'two.safetensors' is missing" in refused(tmp_path)
    assert "Fetch it into this folder" in refused(tmp_path / INDEX)
    (tmp_path / "two.safetensors").mkdir()
    assert "the shard 'two.safetensors' is missing" in refused(tmp_path)


def test_a_truncated_shard_is_named(tmp_path: Path):
    shard = sharded(tmp_path, TWO) / "two.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    error = attempt(tmp_path)
    assert isinstance(error, ModelFileError)
    assert str(error).startswith(f"{shard}: truncated")


def test_a_stray_file_is_not_looked_at(tmp_path: Path):
    sharded(tmp_path, TWO)
    (tmp_path / "three.safetensors").write_bytes(raw_file({"a": FOUR}, struct.pack("<f", 63)))
    (tmp_path / "zzz.safetensors").write_bytes(b"no model at all")
    with safetensors.open(tmp_path) as file:
        assert values_of(file) == {"a": "a", "b": "b", "c": "c"}


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"a": 1, "b": 1, "c": 1}, "'c' is not in 'one.safetensors', its shard"),
        ({"a": 2, "b": 1, "c": 2}, "'a' is not listed for this shard"),
        ({"a": 1, "c": 2}, "'b' is not listed for this shard"),
        ({"a": 1, "b": 1, "c": 2, "d": 2}, "'d' is not in 'two.safetensors', its shard"),
        ({"a": 1, "b": 1, "c": 2, "": 2}, "'' is not in 'two.safetensors', its shard"),
        ({"c": 2, "d": 1}, "'a' is not listed for this shard"),
    ],
)
def test_the_index_and_the_shards_must_agree(tmp_path: Path, places: dict[str, int], words: str):
    shards = {1: "one.safetensors", 2: "two.safetensors"}
    sharded(tmp_path, TWO, weight_map={name: shards[no] for name, no in places.items()})
    error = attempt(tmp_path)
    assert isinstance(error, ModelFileError)
    assert words in str(error)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path):
    sharded(tmp_path, {"one.safetensors": ["a", "b"], "two.safetensors": ["b", "c"]})
    error = attempt(tmp_path)
    assert "'b' is not listed for this shard" in str(error)


@pytest.mark.parametrize(
    "shard",
    [
        "../{}",
        "{0}/../{0}",
        "./{}",
        "sub/{}",
        "/{}",
        "{}/",
        "",
        ".",
        "..",
        "//",
        "../../etc/passwd",
    ],
)
def test_a_shard_must_lie_in_the_folder(tmp_path: Path, shard: str):
    """The shard exists where the index points to, and is not read all the same."""
    name = "one.safetensors"
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    sharded(folder, {name: ["a"]}, weight_map={"a": shard.format(name)})
    for place in (tmp_path, folder / "sub"):
        shutil.copy(folder / name, place)
    assert "is not a plain file name" in refused(folder)


def test_a_full_path_is_no_shard(tmp_path: Path):
    sharded(tmp_path, TWO)
    sharded(tmp_path, TWO, weight_map={"a": str(tmp_path / "one.safetensors")})
    assert "is not a plain file name" in refused(tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800", "a\nb", "~", "$HOME", "*"])
def test_odd_names_of_shards(tmp_path: Path, name: str):
    sharded(tmp_path, TWO, weight_map={"a": name})
    assert "is missing" in refused(tmp_path)


def test_links_to_shards_are_followed(tmp_path: Path):
    """The download cache of the hub keeps a folder of links to files elsewhere."""
    sharded(tmp_path, TWO)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name in (*TWO, INDEX):
        shutil.move(tmp_path / name, blobs / name[::-1])
        (tmp_path / name).symlink_to(Path("blobs") / name[::-1])
    with safetensors.open(tmp_path) as file:
        assert values_of(file) == {"a": "a", "b": "b", "c": "c"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an object"),
        ("{}", "weight_map is not an object of shard names"),
        ('{"weight_map": []}', "weight_map is not"),
        ('{"weight_map": {"a": 1}}', "weight_map is not"),
        ('{"weight_map": {"a": ["one.safetensors"]}}', "weight_map is not"),
    ],
)
def test_a_broken_index(tmp_path: Path, text: str, words: str):
    (sharded(tmp_path, TWO) / INDEX).write_text(text)
    assert words in refused(tmp_path)


def test_metadata_of_an_index_may_be_anything(tmp_path: Path):
    for metadata in (None, 5, [], "x"):
        with safetensors.open(sharded(tmp_path, TWO, metadata=metadata)) as file:
            assert file.metadata == {}
            assert len(file) == 3
