"""GGUF files: literal bytes from the specification, the `gguf` package's writer, and every lie.

Malformed files are judged by the specification alone: the `gguf` package accepts many of them and
hangs on some.
"""

import gc
import math
import os
import struct
import time
import tracemalloc
import weakref
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import gguf as reference
import numpy as np
import pytest
from gguf_bytes import F16, F32, KINDS, Q4_0, Q8_0, file, info, key, pad, sample, string, u32, u64
from hypothesis import given
from hypothesis import strategies as st

from llambda import gguf
from llambda.errors import FileAccessError, LlambdaError, ModelFileError, UnsupportedError
from llambda.quants import decode

EXTREMES = [0, 2**31, 2**32 + 1, 2**40, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def spot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file name for one file after the other."""
    return tmp_path_factory.mktemp("gguf") / "model.gguf"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(raw: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return path

    return write


def attempt(path: Path) -> LlambdaError | None:
    """Open the file and decode all of its tensors. Any error but a LlambdaError escapes."""
    try:
        with gguf.open(path) as model:
            for name in model:
                try:
                    decode(model[name], name)
                except UnsupportedError as error:
                    assert repr(name) in str(error)
    except LlambdaError as error:
        assert str(error).isprintable()
        assert str(error).startswith(str(path))
        assert error.fix
        return error
    return None


@contextmanager
def at_once(seconds: float = 0.5) -> Iterator[None]:
    """Fails when the body computes for longer. A busy machine alone does not make it fail."""
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds


def refused(path: Path, kind: type[LlambdaError] = ModelFileError) -> str:
    """The message with which the file is refused."""
    error = attempt(path)
    assert type(error) is kind, error
    return str(error)


# Good files


def test_the_header_is_what_the_specification_says(write: Callable[[bytes], Path]):
    raw = bytes.fromhex("47 47 55 46 03 00 00 00") + bytes(16)
    with gguf.open(write(raw)) as model:
        assert (len(model), model.metadata, model.nbytes) == (0, {}, 0)


def test_every_byte_of_a_small_file(write: Callable[[bytes], Path]):
    raw = bytes.fromhex(
        "47475546 03000000 0100000000000000 0100000000000000"  # GGUF 3, 1 tensor, 1 key
        "0100000000000000 6b 04000000 2a000000"  # k: u32 42
        "0100000000000000 74 02000000 0400000000000000 0300000000000000"  # t: 4 by 3,
        "01000000 0000000000000000"  # F16 at 0
        "0000000000 0000000000 00000000"  # from byte 82 to 96
        "0000 003c 0040 0042 0044 0045 0046 0047 0048 8048 0049 8049"
    )
    with gguf.open(write(raw)) as model:
        assert model.metadata == {"k": 42}
        entry = model.infos["t"]
        assert (entry.kind, entry.shape, entry.offset, entry.nbytes) == ("F16", (3, 4), 96, 24)
        assert np.array_equal(model["t"].numpy(), np.arange(12).reshape(3, 4))


def test_the_sample_is_read_alike_by_the_reference(write: Callable[[bytes], Path]):
    """What shows that gguf_bytes itself writes GGUF."""
    path = write(sample())
    theirs = reference.GGUFReader(path)
    with gguf.open(path) as ours:
        assert list(ours) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            expected = reference.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(decode(ours[tensor.name]), expected)
        for name, value in ours.metadata.items():
            assert value == theirs.get_field(name).contents()
        assert decode(ours["blocks"])[1, 0] == 24.0


VALUES = {
    "u8": [0, 255],
    "i8": [-128, 127],
    "u16": [0, 65535],
    "i16": [-32768, 32767],
    "u32": [0, 2**32 - 1],
    "i32": [-(2**31), 2**31 - 1],
    "f32": [-0.5, 3.4028234663852886e38, math.inf],
    "bool": [True, False],
    "str": ["", "é\n\0 日本語"],
    "u64": [0, 2**53 + 1, 2**64 - 1],
    "i64": [-(2**63), 2**63 - 1],
    "f64": [0.1, 5e-324, -math.inf],
}
VALUE_TYPES = reference.GGUFValueType
THEIR_TYPES = {
    "u8": VALUE_TYPES.UINT8, "i8": VALUE_TYPES.INT8, "u16": VALUE_TYPES.UINT16,
    "i16": VALUE_TYPES.INT16, "u32": VALUE_TYPES.UINT32, "i32": VALUE_TYPES.INT32,
    "f32": VALUE_TYPES.FLOAT32, "bool": VALUE_TYPES.BOOL, "str": VALUE_TYPES.STRING,
    "u64": VALUE_TYPES.UINT64, "i64": VALUE_TYPES.INT64, "f64": VALUE_TYPES.FLOAT64,
}  # fmt: skip


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_as_the_reference_writes_it(tmp_path: Path, version: int):
    path = tmp_path / "values.gguf"
    writer = reference.GGUFWriter(path, "llama")
    expected: dict[str, Any] = {"general.architecture": "llama"}
    for kind, values in VALUES.items():
        for i, value in enumerate(values):
            writer.add_key_value(f"{kind}.{i}", value, THEIR_TYPES[kind])
            expected[f"{kind}.{i}"] = value
        expected[f"{kind}.some"] = values * 3
        writer.add_key_value(f"{kind}.some", values * 3, VALUE_TYPES.ARRAY, THEIR_TYPES[kind])
    writer.add_tensor("matrix", np.arange(12, dtype=np.float32).reshape(3, 4))
    finish(writer)
    raw = bytearray(path.read_bytes())
    assert raw[4:8] == u32(3)
    raw[4:8] = u32(version)  # one little-endian layout in both
    path.write_bytes(raw)
    with gguf.open(path) as model:
        assert model.metadata == expected
        assert {name: type(value) for name, value in model.metadata.items()} == {
            name: type(value) for name, value in expected.items()
        }
        assert model["matrix"].shape == (3, 4)


def finish(writer: reference.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", [*KINDS, "str"])
def test_every_value_type_put_together_by_hand(write: Callable[[bytes], Path], kind: str):
    keys = [key(f"k{i}", kind, value) for i, value in enumerate(VALUES[kind])]
    keys += [key("some", f"[{kind}]", VALUES[kind]), key("none", f"[{kind}]", [])]
    with gguf.open(write(file(keys))) as model:
        assert list(model.metadata.values()) == [*VALUES[kind], VALUES[kind], []]


def test_rows_are_contiguous_and_shapes_are_numpys(tmp_path: Path):
    arrays = {
        "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
        "cube": np.arange(24, dtype=np.float16).reshape(2, 3, 4),
        "four": np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5),
        "row": np.arange(5, dtype=np.float32),
        "whole": np.arange(6, dtype=np.int32).reshape(1, 6),
        "double": np.arange(6, dtype=np.float64).reshape(6, 1),
    }
    path = tmp_path / "arrays.gguf"
    writer = reference.GGUFWriter(path, "llama")
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    finish(writer)
    with gguf.open(path) as model:
        assert list(model) == list(arrays)
        assert model.nbytes == sum(array.nbytes for array in arrays.values())
        for name, array in arrays.items():
            assert model[name].shape == array.shape
            assert model[name].is_contiguous
            assert np.array_equal(model[name].numpy(), array)


def test_numbers_without_axes_and_without_elements(write: Callable[[bytes], Path]):
    infos = [info("one", []), info("none", [4, 0], offset=32), info("last", [0], offset=32)]
    with gguf.open(write(file([], infos, pad(struct.pack("<f", 2.5))))) as model:
        assert decode(model["one"]).item() == 2.5
        assert decode(model["none"]).shape == (0, 4)
        assert decode(model["last"]).shape == (0,)


@pytest.mark.parametrize("alignment", [1, 2, 8, 32, 64, 4096])
def test_alignment_is_the_files(write: Callable[[bytes], Path], alignment: int):
    second = len(pad(bytes(12), alignment))
    infos = [info("a", [3]), info("b", [2], offset=second)]
    data = pad(struct.pack("<3f", 1, 2, 3), alignment) + struct.pack("<2f", 4, 5)
    keys = [key("general.alignment", "u32", alignment), key("odd", "str", "x")]
    with gguf.open(write(file(keys, infos, data, alignment=alignment))) as model:
        assert decode(model["a"]).tolist() == [1, 2, 3]
        assert decode(model["b"]).tolist() == [4, 5]
        assert model.infos["b"].offset % alignment == 0


def test_sixty_four_bytes_of_name_and_no_more(write: Callable[[bytes], Path]):
    with gguf.open(write(file([], [info("é" * 32, [1])], bytes(4)))) as model:
        assert list(model) == ["é" * 32]
    assert "65 bytes" in refused(write(file([], [info("a" * 65, [1])], bytes(4))))
    assert "0 bytes" in refused(write(file([], [info("", [1])], bytes(4))))


# Files that are something else


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"G", "truncated"),
        (b"GGU", "truncated"),
        (b"GGUF", "truncated"),
        (b"GGUF\3\0\0\0", "truncated"),
        (b"<!DOCTYPE html><html><body>404", "web page"),
        (b"\n  <html>", "web page"),
        (b'<?xml version="1.0"?><Error/>', "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (b"PK\3\4" + bytes(50), "zip"),
        (b"FUGG\3\0\0\0" + bytes(16), r"b'FUGG'"),
        (b"gguf\3\0\0\0" + bytes(16), r"b'gguf'"),
        (b"ggjt" + bytes(50), r"b'ggjt'"),
        (bytes(100), "not a GGUF file"),
        (b"\n\x1b[31m\r" * 9, "not a GGUF file"),
    ],
)
def test_what_is_no_gguf_is_called_by_its_name(
    write: Callable[[bytes], Path], raw: bytes, words: str
):
    assert words in refused(write(raw))


def test_a_zip_of_the_real_kind(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "model.bin", "w") as archive:
        archive.writestr("data.pkl", "x" * 300)
    assert "zip archive" in refused(tmp_path / "model.bin")


@pytest.mark.parametrize("version", [0, 1, 4, 2**31 + 1])
def test_another_version_is_refused_by_number(write: Callable[[bytes], Path], version: int):
    message = refused(write(file(version=version)), UnsupportedError)
    assert f"version {version};" in message


def test_a_big_endian_file_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "big.gguf"
    path.write_bytes(bytes.fromhex("47475546 00000003") + bytes(16))
    assert "big-endian" in refused(path, UnsupportedError)
    writer = reference.GGUFWriter(path, "llama", endianess=reference.GGUFEndian.BIG)
    writer.add_tensor("a", np.arange(4, dtype=np.float32))
    finish(writer)
    assert "big-endian" in refused(path, UnsupportedError)


def test_a_path_without_a_file(tmp_path: Path):
    assert "no such file" in refused(tmp_path / "none.gguf", FileAccessError)
    assert "no such file" in refused(tmp_path / "none" / "none.gguf", FileAccessError)
    assert "folder where a file" in refused(tmp_path, FileAccessError)
    (tmp_path / "file").touch()
    assert "file where a folder" in refused(tmp_path / "file" / "x", FileAccessError)
    assert "too long" in refused(tmp_path / ("x" * 300), FileAccessError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    other_end = os.open(tmp_path / "pipe", os.O_RDWR)  # so that a reader would not wait for ever
    try:
        assert "pipe" in refused(tmp_path / "pipe", FileAccessError)
    finally:
        os.close(other_end)
    assert "device" in refused(Path(os.devnull), FileAccessError)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file"
)
def test_a_file_that_may_not_be_read(write: Callable[[bytes], Path]):
    path = write(sample())
    path.chmod(0)
    assert "permission denied" in refused(path, FileAccessError)


# Truncated, and numbers that lie


def test_every_prefix_is_refused_at_once(spot: Path):
    raw = sample()
    assert 300 < len(raw) < 500
    spot.write_bytes(raw + b"more")  # what follows the last tensor belongs to nobody
    assert attempt(spot) is None
    os.truncate(spot, len(raw))
    assert attempt(spot) is None
    for end in reversed(range(len(raw))):
        os.truncate(spot, end)
        with at_once():
            refused(spot)


@pytest.mark.parametrize("width", [4, 8])
def test_any_extreme_number_anywhere_is_cheap(spot: Path, width: int):
    """Every u32 or u64 before the data, and every other run of as many bytes, at an extreme."""
    raw = sample()
    data = len(raw) - 64 - 2 * 34
    spot.write_bytes(raw)
    opened = 0
    with open(spot, "r+b", buffering=0) as target, measured_memory() as peak:
        for at in range(4, data):
            remaining = len(raw) - at - width
            for extreme in {e % 2 ** (8 * width) for e in [*EXTREMES, remaining, remaining + 1]}:
                overwrite(target, at, extreme.to_bytes(width, "little"))
                with at_once():
                    opened += attempt(spot) is None
                assert peak() < 2e6, (at, extreme)
            overwrite(target, at, raw[at : at + width])
    assert opened > 200, "some change a value and no structure"


def overwrite(target: BinaryIO, at: int, raw: bytes) -> None:
    target.seek(at)
    target.write(raw)


@contextmanager
def measured_memory() -> Iterator[Callable[[], int]]:
    """A function that tells the most bytes that Python held since it was last asked."""

    def peak() -> int:
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        return found

    tracemalloc.start()
    try:
        yield peak
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [2**63, 2**40, 2**32 + 1, 2**64 - 1, 30])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: file(n_tensors=n),
        lambda n: file(n_keys=n),
        lambda n: file([u64(n) + b"k" + u32(4) + u32(0)]),
        lambda n: file([string("k") + u32(8) + u64(n) + b"abc"]),
        lambda n: file([string("k") + u32(9) + u32(0) + u64(n) + bytes(9)]),
        lambda n: file([string("k") + u32(9) + u32(12) + u64(n) + bytes(16)]),
        lambda n: file([string("k") + u32(9) + u32(8) + u64(n) + bytes(16)]),
        lambda n: file([], [u64(n) + b"t" + u32(1) + u64(1) + u32(0) + u64(0)]),
        lambda n: file([], [info("t", [n])], bytes(8)),
        lambda n: file([], [info("t", [4, n])], bytes(64)),
        lambda n: file([], [info("t", [32, n], Q8_0)], bytes(68)),
        lambda n: file([], [info("t", [4], offset=n | 32)], bytes(16)),
    ],
)
def test_a_lying_count_is_refused(
    write: Callable[[bytes], Path], make: Callable[[int], bytes], count: int
):
    with at_once():
        refused(write(make(count)))


@pytest.mark.parametrize(
    "axes",
    [
        [4194305, 4194305, 211106198978564],  # the product is 4 in 64 bits
        [2**32, 2**32],  # 0 in 64 bits
        [2**63, 2],
        [2**62, 4],
        [2**63, 0],  # no element, yet no shape that NumPy could hold
        [0, 2**64 - 1],
        [2**40, 0, 2**40],
        [1, 1, 1, 2**61],
    ],
)
@pytest.mark.parametrize("kind", [F32, 99])
def test_a_shape_beyond_64_bits_is_refused(
    write: Callable[[bytes], Path], axes: list[int], kind: int
):
    assert "'t'" in refused(write(file([], [info("t", axes, kind)], bytes(64))))


@pytest.mark.parametrize("n_axes", [5, 8, 2**31, 2**32 - 1])
def test_too_many_axes_are_refused(write: Callable[[bytes], Path], n_axes: int):
    entry = string("t") + u32(n_axes) + u64(1) * 8 + u32(0) + u64(0)
    assert f"{n_axes:,} axes" in refused(write(file([], [entry], bytes(64))))


def test_a_long_key_before_many_strings_takes_no_longer(write: Callable[[bytes], Path]):
    """An error message prepared for each string would make this quadratic: minutes."""
    path = write(file([key("k" * 60_000, "[str]", [""] * 60_000)]))
    with at_once(2), gguf.open(path) as model:
        assert model.metadata["k" * 60_000] == [""] * 60_000
    assert "65,536 bytes" in refused(write(file([key("k" * 65_536, "u8", 1)])))


@given(raw=st.binary(max_size=300), head=st.sampled_from([b"", b"GGUF", b"GGUF\3\0\0\0"]))
def test_random_bytes_are_refused(spot: Path, raw: bytes, head: bytes):
    spot.write_bytes(head + raw)
    attempt(spot)


edits = st.lists(
    st.tuples(st.integers(0, 2**16), st.integers(0, 8), st.binary(max_size=8)),
    min_size=1,
    max_size=6,
)


@given(edits=edits)
def test_random_edits_raise_no_other_error(spot: Path, edits: list[tuple[int, int, bytes]]):
    """Bytes replaced, inserted and deleted, anywhere."""
    raw = sample()
    for at, removed, added in edits:
        at %= len(raw) + 1
        raw = raw[:at] + added + raw[at + removed :]
    spot.write_bytes(raw)
    attempt(spot)


@given(data=st.data())
def test_random_files_from_sound_parts_raise_no_other_error(spot: Path, data: st.DataObject):
    """Any number of keys and tensors with any types, axes and offsets: past the first checks."""
    numbers = st.integers(0, 70) | st.sampled_from(EXTREMES)
    names = st.sampled_from(["a", "b", "general.alignment", "split.count", "x\ny", ""])
    keys = [
        string(name) + u32(kind) + raw
        for name, kind, raw in data.draw(
            st.lists(st.tuples(names, st.integers(0, 14), st.binary(max_size=24)), max_size=3)
        )
    ]
    infos = [
        info(name, axes, kind, offset)
        for name, axes, kind, offset in data.draw(
            st.lists(
                st.tuples(
                    names,
                    st.lists(numbers, max_size=5),
                    st.sampled_from([0, 1, 2, 8, 12, 24, 30, 39, 99, 2**32 - 1]),
                    numbers.map(lambda n: n * 32 % 2**64) | numbers,
                ),
                max_size=4,
            )
        )
    ]
    spot.write_bytes(file(keys, infos, bytes(data.draw(st.integers(0, 900)))))
    attempt(spot)


# Contradictions


def test_a_name_that_stands_twice_is_refused(write: Callable[[bytes], Path]):
    message = refused(write(file([key("k", "u8", 1), key("k", "str", "x")])))
    assert "'k' stands twice" in message
    infos = [info("t", [8]), info("t", [8], offset=32)]
    assert "'t' stands twice" in refused(write(file([], infos, bytes(64))))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (string("") + u32(0) + b"\0", "0 bytes"),
        (string("k") + u32(7) + b"\2", "'k' holds 2"),
        (string("k") + u32(9) + u32(7) + u64(3) + b"\1\0\xff", "'k' holds 255"),
        (string("k") + u32(13) + bytes(8), "'k' has the unknown value type 13"),
        (string("k") + u32(2**32 - 1) + bytes(8), "unknown value type 4294967295"),
        (string("k") + u32(9) + u32(9) + u64(0), "'k' holds nested arrays"),
        (string("k") + u32(9) + u32(9) + u64(1) + u32(0) + u64(1) + b"\0", "nested arrays"),
        (string("k") + u32(9) + u32(77) + u64(0), "'k' holds elements of unknown type 77"),
        (string(b"\xff\xfe") + u32(0) + b"\0", "a metadata key at byte 32 is not UTF-8"),
        (string("k") + u32(8) + string(b"a\xc3"), "the value of 'k' at byte 45 is not UTF-8"),
        (string("k") + u32(9) + u32(8) + u64(1) + string(b"\xed\xa0\x80"), "string of 'k'"),
    ],
)
def test_a_bad_entry_is_refused(write: Callable[[bytes], Path], entry: bytes, words: str):
    assert words in refused(write(file([entry]) + bytes(64)))


def test_a_tensor_name_that_is_not_utf8_is_refused(write: Callable[[bytes], Path]):
    assert "not UTF-8" in refused(write(file([], [info(b"\x80", [1])], bytes(4))))


@pytest.mark.parametrize("kind", ["u32", "u64", "i32"])
@pytest.mark.parametrize("alignment", [0, 3, 33, 31])
def test_an_alignment_that_is_no_power_of_two_is_refused(
    write: Callable[[bytes], Path], alignment: int, kind: str
):
    keys = [key("general.alignment", kind, alignment)]
    message = refused(write(file(keys, [info("t", [1])], bytes(64))))
    assert f"general.alignment is {alignment}" in message


@pytest.mark.parametrize(
    ("kind", "value"),
    [("str", "32"), ("f32", 32.0), ("bool", True), ("[u32]", [32]), ("i32", -32), ("str", "\n")],
)
def test_an_alignment_that_is_no_number_is_refused(
    write: Callable[[bytes], Path], kind: str, value: Any
):
    assert "general.alignment" in refused(write(file([key("general.alignment", kind, value)])))


def test_a_huge_alignment_puts_the_data_behind_the_end(write: Callable[[bytes], Path]):
    keys = [key("general.alignment", "u32", 2**31)]
    assert "truncated" in refused(write(file(keys, [info("t", [1])], bytes(64))))
    assert attempt(write(file(keys))) is None


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([0, 16], "'b' has offset 16 where 32 is due"),
        ([0, 0], "'b' has offset 0 where 32 is due"),
        ([0, 64], "'b' has offset 64 where 32 is due"),
        ([32, 64], "'a' has offset 32 where 0 is due"),
        ([32, 0], "'a' has offset 32 where 0 is due"),
        ([0, 2**64 - 32], "'b' has offset"),
    ],
)
def test_overlaps_holes_and_odd_offsets_are_refused(
    write: Callable[[bytes], Path], offsets: list[int], words: str
):
    infos = [info(name, [5], offset=at) for name, at in zip("ab", offsets, strict=True)]
    assert words in refused(write(file([], infos, bytes(256))))


def test_a_tensor_must_lie_inside_the_file(write: Callable[[bytes], Path]):
    infos = [info("a", [5]), info("b", [5], offset=32)]
    assert attempt(write(file([], infos, bytes(52)))) is None
    message = refused(write(file([], infos, bytes(51))))
    assert "truncated: tensor 'b' (F32 [5]) needs bytes 128 to 148" in message
    assert "ends at 147" in message


@pytest.mark.parametrize(
    ("axes", "kind", "words"),
    [
        ([31], Q8_0, "rows of 31"),
        ([33, 2], Q4_0, "Q4_0's blocks of 32"),
        ([1, 32], Q8_0, "rows of 1"),
        ([], Q8_0, "rows of 1"),
        ([128], 12, "Q4_K's blocks of 256"),
    ],
)
def test_a_row_of_no_whole_number_of_blocks_is_refused(
    write: Callable[[bytes], Path], axes: list[int], kind: int, words: str
):
    assert words in refused(write(file([], [info("t", axes, kind)], bytes(4096))))


# Storage types


@pytest.mark.parametrize("kind", [4, 5, 31, 33, 38, 1000, 2**32 - 1])
def test_an_unknown_type_is_refused_only_when_it_is_needed(
    write: Callable[[bytes], Path], kind: int
):
    infos = [info("a", [2]), info("what", [7, 3], kind, 32), info("b", [2], offset=96)]
    data = pad(struct.pack("<2f", 1, 2)) + bytes(64) + struct.pack("<2f", 3, 4)
    with gguf.open(write(file([], infos, data))) as model:
        assert list(model) == ["a", "what", "b"]
        entry = model.infos["what"]
        assert (entry.dtype, entry.nbytes, entry.shape) == (None, None, (3, 7))
        assert (entry.kind, entry.offset) == (f"type {kind}", model.infos["a"].offset + 32)
        assert model.nbytes == 16
        assert decode(model["b"]).tolist() == [3, 4]
        with pytest.raises(UnsupportedError) as caught:
            model["what"]
    assert "'what'" in str(caught.value)
    assert f"type {kind}" in str(caught.value)


@pytest.mark.parametrize("offset", [0, 32, 33, 97, 2**63])
def test_what_follows_an_unknown_type_may_not_lie_before_it(
    write: Callable[[bytes], Path], offset: int
):
    infos = [info("a", [2]), info("b", [2], offset=32), info("what", [7], 99, 64)]
    infos.append(info("c", [2], offset=offset))
    message = refused(write(file([], infos, bytes(256))))
    assert "'c'" in message
    assert offset == 2**63 or "a multiple of 32 from 64 on" in message


def test_an_unknown_type_must_begin_inside_the_file(write: Callable[[bytes], Path]):
    infos = [info("a", [2], 99), info("b", [2], 99, 512)]
    assert "'b' starts at" in refused(write(file([], infos, bytes(256))))


def test_a_known_type_without_a_decoder_is_listed_and_named(write: Callable[[bytes], Path]):
    with gguf.open(write(file([], [info("t", [256, 2], 10)], bytes(168)))) as model:
        assert (model.infos["t"].kind, model.infos["t"].nbytes) == ("Q2_K", 168)
        with pytest.raises(UnsupportedError, match=r"'t' is stored as Q2_K"):
            decode(model["t"], "t")


def test_types_are_read_tensor_by_tensor(write: Callable[[bytes], Path]):
    infos = [
        info("a", [32], Q8_0),
        info("b", [2], F16, 64),
        info("c", [32], Q4_0, 96),
        info("d", [2], F32, 128),
    ]
    half = struct.pack("<e", 0.5)
    data = pad(half + bytes([1] * 32)) + pad(half * 2) + pad(half + bytes([0x9A] * 16))
    with gguf.open(write(file([], infos, data + struct.pack("<2f", 7, 8)))) as model:
        assert decode(model["a"]).tolist() == [0.5] * 32
        assert decode(model["b"]).tolist() == [0.5] * 2
        assert decode(model["c"]).tolist() == [1.0] * 16 + [0.5] * 16
        assert decode(model["d"]).tolist() == [7, 8]


# Messages


@pytest.mark.parametrize("name", ["a\nb", "\r\x1b[2J", "\0", "‮abc\u2028", "\u200b"])
def test_a_name_with_control_characters_gives_one_printable_line(
    write: Callable[[bytes], Path], name: str
):
    lies = [
        file([key(name, "u8", 1)] * 2),
        file([string(name) + u32(99)]) + bytes(20),
        file([], [info(name, [2**50])], bytes(8)),
        file([], [info(name, [2])] * 2, bytes(64)),
        file([key("general.alignment", "str", name)]),
    ]
    for raw in lies:
        message = refused(write(raw))
        assert message.isprintable()
        assert "\n" not in message
    with (
        gguf.open(write(file([], [info(name, [2], 99)], bytes(64)))) as model,
        pytest.raises(UnsupportedError) as caught,
    ):
        model[name]
    assert str(caught.value).isprintable()


# Open and closed


def test_a_closed_file_hands_out_no_more_tensors(write: Callable[[bytes], Path]):
    with gguf.open(write(sample())) as model:
        assert decode(model["matrix"])[2, 3] == 11
    with pytest.raises(LlambdaError, match="was closed"):
        model["matrix"]
    assert list(model) == ["matrix", "blocks"]
    assert model.metadata["a.count"] == 2**33 + 1
    model.close()


@pytest.mark.parametrize(
    "look", [lambda t: t, lambda t: t[1:].T, lambda t: t.numpy()[::-1], lambda t: t.blocks()]
)
def test_what_was_taken_before_stays_valid(
    write: Callable[[bytes], Path], look: Callable[[Any], Any]
):
    """To read over a map that was closed would crash the whole process."""
    path = write(sample())
    model = gguf.open(path)
    mapped = weakref.ref(model.maps[path])
    view = look(model["matrix"])
    model.close()
    assert mapped() is not None
    assert not mapped().closed
    assert np.asarray(view if isinstance(view, np.ndarray) else view.numpy()).size >= 8
    del view
    gc.collect()
    assert mapped() is None, "the map goes with the last view"


def test_closing_frees_the_map_at_once(write: Callable[[bytes], Path]):
    path = write(sample())
    with gguf.open(path) as model:
        decode(model["blocks"])
        mapped = weakref.ref(model.maps[path])
    assert mapped() is None


def test_a_refused_file_is_not_kept_open(write: Callable[[bytes], Path]):
    path = write(sample()[:-1])
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    errors = [attempt(path) for _ in range(20)]
    assert all(errors)
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_a_deleted_file_can_still_be_read(write: Callable[[bytes], Path]):
    path = write(sample())
    with gguf.open(str(path)) as model:
        path.unlink()
        assert decode(model["matrix"])[2, 3] == 11
    assert not path.exists()


def test_tensors_are_read_only_and_copy_nothing(write: Callable[[bytes], Path]):
    path = write(sample())
    with gguf.open(path) as model:
        tensor = model["matrix"]
        assert tensor.buffer is model.maps[path]
        assert tensor.offset == model.infos["matrix"].offset
        with pytest.raises(ValueError, match="read-only"):
            tensor.numpy()[0, 0] = 1


def test_it_is_a_mapping(write: Callable[[bytes], Path]):
    with gguf.open(write(sample())) as model:
        assert "matrix" in model
        assert "nothing" not in model
        assert model.get("nothing") is None
        assert {name: tensor.shape for name, tensor in model.items()} == {
            "matrix": (3, 4),
            "blocks": (2, 32),
        }
        with pytest.raises(KeyError):
            model["nothing"]


# Split over several files


def split_keys(number: Any, count: Any, total: Any, kind: str = "u16") -> list[bytes]:
    return [
        key("split.no", kind, number),
        key("split.count", kind, count),
        key("split.tensors.count", "i32", total),
    ]


def part(number: int, count: int, total: int, names: str, more: list[bytes] | None = None) -> bytes:
    """A part with one tensor of four numbers for each letter of names."""
    infos = [info(name, [4], offset=32 * i) for i, name in enumerate(names)]
    data = b"".join(pad(struct.pack("<4f", *([ord(name)] * 4))) for name in names)
    return file(split_keys(number, count, total) + (more or []), infos, data)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Three parts as the reference splits a model of five tensors."""
    writer = reference.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    writer.add_string("general.name", "split")
    for i, name in enumerate("abcde"):
        writer.add_tensor(name, np.full((2, i + 1), i, np.float32))
    finish(writer)
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


def test_the_first_part_opens_all(parts: list[Path]):
    with gguf.open(parts[0]) as model:
        assert list(model) == list("abcde")
        assert model.metadata["general.name"] == "split"
        assert model.nbytes == sum(2 * 4 * (i + 1) for i in range(5))
        for i, name in enumerate("abcde"):
            assert np.array_equal(decode(model[name]), np.full((2, i + 1), i, np.float32))
            assert model.infos[name].path == parts[i // 2]
    with pytest.raises(LlambdaError, match="was closed"):
        model["e"]


def test_another_part_points_to_the_first(parts: list[Path]):
    for path, number in ((parts[1], "00002"), (parts[2], "00003")):
        message = refused(path)
        assert f"part {number} of a model split in 3" in message
        assert "model-00001-of-00003.gguf" in message


def test_name_and_number_must_both_be_the_firsts(parts: list[Path]):
    first, second = parts[0].read_bytes(), parts[1].read_bytes()
    parts[0].write_bytes(second)
    parts[1].write_bytes(first)
    assert "part 00001 of a model split in 3" in refused(parts[0])
    assert "part 00002 of a model split in 3" in refused(parts[1])


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_part_is_named(parts: list[Path], missing: int):
    parts[missing].unlink()
    message = refused(parts[0])
    assert f"part {missing + 1} of 3 is missing" in message
    assert str(parts[missing]) in message


def test_a_truncated_part_is_named(parts: list[Path]):
    parts[2].write_bytes(parts[2].read_bytes()[:-40])
    with pytest.raises(ModelFileError, match=r"00003-of-00003\.gguf: truncated"):
        gguf.open(parts[0])


def test_a_renamed_part_is_refused(parts: list[Path]):
    path = parts[0].rename(parts[0].with_name("other.gguf"))
    assert "Name the parts" in refused(path)
    path = path.rename(path.with_name("model-00001-of-00002.gguf"))
    assert "Name the parts" in refused(path)


def test_parts_in_the_wrong_place_are_refused(parts: list[Path]):
    second, third = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(third)
    parts[2].write_bytes(second)
    with pytest.raises(ModelFileError, match=r"does not call itself part 2 of 3"):
        gguf.open(parts[0])


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (part(1, 2, 4, "cd"), None),
        (part(1, 2, 5, "cde"), "another number of tensors"),
        (part(1, 2, 4, "ab"), "repeats tensor 'a'"),
        (part(1, 2, 4, "cb"), "repeats tensor 'b'"),
        (part(1, 2, 4, "c"), "hold 3 tensors, not 4"),
        (part(1, 2, 4, "cde"), "hold 5 tensors, not 4"),
        (part(0, 2, 4, "cd"), "does not call itself part 2 of 2"),
        (part(2, 2, 4, "cd"), "does not call itself part 2 of 2"),
        (part(1, 3, 4, "cd"), "does not call itself part 2 of 2"),
        (part(1, 2, 4, "cd", [key("general.name", "str", "A")]), None),
        (part(1, 2, 4, "cd", [key("general.name", "str", "B")]), "its general.name differs"),
        (file([], [info("c", [4])], bytes(16)), "does not call itself part 2 of 2"),
    ],
)
def test_a_part_of_another_model_is_refused(tmp_path: Path, second: bytes, words: str | None):
    paths = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    paths[0].write_bytes(part(0, 2, 4, "ab", [key("general.name", "str", "A")]))
    paths[1].write_bytes(second)
    if words is None:
        with gguf.open(paths[0]) as model:
            assert [decode(model[name])[3] for name in "abcd"] == [97, 98, 99, 100]
        return
    with pytest.raises(ModelFileError) as caught:
        gguf.open(paths[0])
    assert words in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("count", [2, 10**5, 2**32, 2**63])
def test_a_lying_number_of_parts_is_refused_at_once(tmp_path: Path, count: int):
    path = tmp_path / f"m-00001-of-{count:05}.gguf"
    path.write_bytes(file(split_keys(0, count, 1, "u64"), [info("a", [4])], bytes(16)))
    with at_once():
        refused(path)


@pytest.mark.parametrize(
    "keys",
    [
        [key("split.count", "str", "3")],
        [key("split.count", "f32", 3.0)],
        [key("split.count", "[u16]", [3])],
        [key("split.count", "u16", 3)],
        [key("split.count", "u16", 3), key("split.no", "str", "0")],
        [key("split.count", "u16", 2), key("split.no", "u16", 0)],
    ],
)
def test_odd_split_keys_are_refused(tmp_path: Path, keys: list[bytes]):
    path = tmp_path / "m-00001-of-00003.gguf"
    path.write_bytes(file(keys, [info("a", [4])], bytes(16)))
    assert "part" in refused(path) or "split.count" in refused(path)


def test_parts_that_do_not_count_their_tensors_are_refused(tmp_path: Path):
    for number in range(2):
        keys = [key("split.no", "u16", number), key("split.count", "u16", 2)]
        path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
        path.write_bytes(file(keys, [info("ab"[number], [4])], bytes(16)))
    message = refused(tmp_path / "m-00001-of-00002.gguf")
    assert "it does not say how many tensors its parts hold together" in message
    assert "None" not in message


def test_a_model_in_one_part_needs_no_name(write: Callable[[bytes], Path]):
    assert attempt(write(part(0, 1, 1, "a"))) is None
    assert attempt(write(file([key("split.count", "u16", 0)], [info("a", [4])], bytes(16)))) is None


def test_a_split_model_keeps_no_map_when_closed(parts: list[Path]):
    with gguf.open(parts[0]) as model:
        maps = [weakref.ref(mapped) for mapped in model.maps.values()]
        kept = model["e"]
    assert [alive() is None for alive in maps] == [True, True, False]
    assert decode(kept)[1, 4] == 4
