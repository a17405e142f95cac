"""The GGUF writer, read back by the `gguf` package and compared with that package's own writer."""

import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from gguf_bytes import KINDS, file, info, key, pad
from hypothesis import given
from hypothesis import strategies as st
from models import mutant

from llambda import gguf, gguf_write
from llambda.encode import encode
from llambda.errors import InputError, LlambdaError, ModelFileError
from llambda.gguf_write import Entry, write
from llambda.quants import BY_NAME, decode
from llambda.tensor import F32, DType, count_bytes

FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]


def entry(name: str, array: np.ndarray, kind: str = "F32") -> Entry:
    """An array, stored in a format."""
    dtype = BY_NAME[kind].dtype
    return Entry(name, dtype, array.shape, lambda: encode(array, dtype))


def plain(name: str, shape: tuple[int, ...], dtype: DType = F32) -> Entry:
    """Bytes that count from 0."""
    nbytes = count_bytes(shape, dtype)
    return Entry(name, dtype, shape, lambda: np.arange(nbytes).astype(np.uint8))


def matrix(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made.gguf"


@pytest.fixture(scope="module")
def spot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file name for one file after the other."""
    return tmp_path_factory.mktemp("write") / "made.gguf"


def types_of(path: Path) -> dict[str, list[GGUFValueType]]:
    """The value types of all keys, as the package reads them."""
    fields = reference.GGUFReader(path).fields.values()
    return {field.name: list(field.types) for field in fields if "GGUF." not in field.name}


def values_of(path: Path) -> dict[str, Any]:
    fields = reference.GGUFReader(path).fields.values()
    return {field.name: field.contents() for field in fields if "GGUF." not in field.name}


def same(a: Any, b: Any) -> bool:
    """Equal values of equal Python types; NaN equals itself."""
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or (a != a and b != b))


# The whole file


def test_every_byte_of_a_small_file(path: Path):
    metadata = {"k": 42, "words": ["", "é"], "flag": True, "numbers": [1, -2], "half": 0.5}
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    codes = np.arange(34, dtype=np.uint8)
    blocks = Entry("b", BY_NAME["Q8_0"].dtype, (32,), lambda: codes)
    write(path, metadata, [entry("a", array, "F16"), blocks])
    expected = file(
        [
            key("k", "u32", 42),
            key("words", "[str]", ["", "é"]),
            key("flag", "bool", True),
            key("numbers", "[i32]", [1, -2]),
            key("half", "f32", 0.5),
        ],
        [info("a", [4, 3], 1, 0), info("b", [32], 8, 32)],
        pad(array.astype("<f2").tobytes()) + pad(codes.tobytes()),
    )
    assert path.read_bytes() == expected


@pytest.mark.parametrize("alignment", [None, 32, 64, 4096])
def test_the_bytes_are_those_of_the_packages_writer(
    path: Path, tmp_path: Path, alignment: int | None
):
    arrays = {"matrix": matrix(3, 64), "vector": matrix(1, 5)[0], "cube": np.ones((2, 1, 3))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    metadata = {"general.architecture": "llama"}
    theirs = reference.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    if alignment:
        theirs.add_custom_alignment(alignment)
        metadata["general.alignment"] = alignment
    theirs.add_uint32("count", 7)
    theirs.add_int32("negative", -7)
    theirs.add_float32("factor", 0.25)
    theirs.add_bool("flag", False)
    theirs.add_uint64("large", 2**40)
    theirs.add_float64("exact", 0.1)
    theirs.add_string("text", "Straße 🙂\n")
    theirs.add_array("whole", [1, 2, 3])
    theirs.add_array("words", ["a", "bc"])
    metadata |= {"count": 7, "negative": -7, "factor": 0.25, "flag": False, "large": 2**40}
    metadata |= {"exact": 0.1, "text": "Straße 🙂\n", "whole": [1, 2, 3], "words": ["a", "bc"]}
    for name, array in arrays.items():
        theirs.add_tensor(name, array)
    q8_0 = GGMLQuantizationType.Q8_0
    quantized = reference.quants.quantize(arrays["matrix"], q8_0)
    theirs.add_tensor("blocks", quantized, raw_dtype=q8_0)
    theirs.write_header_to_file()
    theirs.write_kv_data_to_file()
    theirs.write_tensors_to_file()
    theirs.close()

    entries = [entry(name, array) for name, array in arrays.items()]
    write(path, metadata, [*entries, entry("blocks", arrays["matrix"], "Q8_0")])
    assert path.read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


@pytest.mark.parametrize("alignment", [None, 1, 8, 32, 64, 256])
def test_tensors_start_at_multiples_of_the_alignment(path: Path, alignment: int | None):
    metadata = {} if alignment is None else {"general.alignment": alignment}
    shapes = [(3,), (5, 1), (1,), (2, 3), (64,)]
    entries = [plain(f"t{i}", shape) for i, shape in enumerate(shapes)]
    write(path, metadata, entries)
    with gguf.open(path) as model:
        assert list(model) == [e.name for e in entries]
        for e in entries:
            assert model.infos[e.name].offset % (alignment or 32) == 0
            assert model[e.name].blocks().tobytes() == e.data().tobytes()
    assert path.stat().st_size % (alignment or 32) == 0, "the last one is filled up too"
    if (alignment or 32) % 8 == 0:  # the package's reader wants its numbers aligned
        theirs = {t.name: t for t in reference.GGUFReader(path).tensors}
        for e in entries:
            assert theirs[e.name].data.tobytes() == e.data().tobytes()


def test_the_fastest_axis_comes_first_in_the_file(path: Path):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    write(path, {}, [entry("cube", array)])
    found = reference.GGUFReader(path).tensors[0]
    assert found.shape.tolist() == [4, 3, 2]
    assert np.array_equal(found.data, array)
    with gguf.open(path) as model:
        assert np.array_equal(model["cube"].numpy(), array)


@pytest.mark.parametrize("shape", [(), (5,), (0,), (1, 1), (4, 0), (2, 3, 4), (1, 2, 1, 3)])
def test_any_number_of_axes(path: Path, shape: tuple[int, ...]):
    write(path, {}, [plain("t", shape), plain("u", (2,))])
    with gguf.open(path) as model:
        assert model["t"].shape == shape
        assert model["u"].blocks().tobytes() == bytes(range(8))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_alike(path: Path, kind: str):
    arrays = {"wide": matrix(3, 96), "tall": matrix(7, 32), "row": matrix(1, 64)[0]}
    write(path, {}, [entry(name, array, kind) for name, array in arrays.items()])
    theirs = {t.name: t for t in reference.GGUFReader(path).tensors}
    with gguf.open(path) as model:
        assert model.keys() == theirs.keys() == arrays.keys()
        for name, array in arrays.items():
            tensor = theirs[name]
            assert tensor.tensor_type.name == model.infos[name].kind == kind
            assert tensor.shape.tolist() == list(array.shape[::-1])
            expected = reference.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(decode(model[name]), expected.reshape(array.shape))
            assert np.allclose(expected.reshape(array.shape), array, atol=0.5)


@pytest.mark.parametrize("kind", sorted(set(BY_NAME) - set(FORMATS)))
def test_bytes_of_any_other_format_come_through(path: Path, kind: str):
    form = BY_NAME[kind]
    e = plain("t", (2, form.dtype.block), form.dtype)
    write(path, {}, [e, plain("after", (3,))])
    with gguf.open(path) as model:
        assert model.infos["t"].kind == kind
        assert model["t"].blocks().tobytes() == e.data().tobytes()
        assert model["after"].blocks().tobytes() == bytes(range(12))


def test_a_file_of_nothing(path: Path):
    write(path, {}, [])
    assert path.read_bytes() == bytes.fromhex("47475546 03000000") + bytes(16)
    with gguf.open(path) as model:
        assert (len(model), model.metadata) == (0, {})


# Values and their types

U32, I32, F32_, U64, I64, F64, BOOL, TEXT, ARRAY = (
    GGUFValueType[name]
    for name in "UINT32 INT32 FLOAT32 UINT64 INT64 FLOAT64 BOOL STRING ARRAY".split()
)


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (0, [U32]),
        (7, [U32]),
        (2**32 - 1, [U32]),
        (2**32, [U64]),
        (2**64 - 1, [U64]),
        (-1, [I32]),
        (-(2**31), [I32]),
        (-(2**31) - 1, [I64]),
        (-(2**63), [I64]),
        (True, [BOOL]),
        (False, [BOOL]),
        (0.0, [F32_]),
        (-0.0, [F32_]),
        (0.5, [F32_]),
        (1.0, [F32_]),
        (float(np.float32(0.1)), [F32_]),
        (0.1, [F64]),
        (1e300, [F64]),
        (1e-46, [F64]),
        (math.inf, [F32_]),
        (-math.inf, [F32_]),
        (math.nan, [F32_]),
        ("", [TEXT]),
        ("Straße 🙂\0\n\u2028", [TEXT]),
        ([], [ARRAY, I32]),
        ([1, 2], [ARRAY, I32]),
        ((3, -4), [ARRAY, I32]),
        ([2**31 - 1], [ARRAY, I32]),
        ([2**31], [ARRAY, U32]),
        ([1, 2**32 - 1], [ARRAY, U32]),
        ([-1, 2**32 - 1], [ARRAY, I64]),
        ([1, 2**32], [ARRAY, I64]),
        ([2**63 - 1, -(2**63)], [ARRAY, I64]),
        ([0, 2**63], [ARRAY, U64]),
        ([2**31, 2**64 - 1], [ARRAY, U64]),
        ([0.5, -2.0], [ARRAY, F32_]),
        ([0.5, 0.1], [ARRAY, F64]),
        ([math.nan, math.inf, 1.0], [ARRAY, F32_]),
        ([math.nan, 1e300], [ARRAY, F64]),
        ([True, False, True], [ARRAY, BOOL]),
        (["a", "", "🙂"], [ARRAY, TEXT]),
    ],
)
def test_a_value_gets_a_type_that_keeps_it(path: Path, value: Any, kinds: list[GGUFValueType]):
    write(path, {"before": 1, "k": value, "after": "x"}, [])
    if value != []:  # of which the package's reader keeps no type
        assert types_of(path)["k"] == kinds
        assert same(values_of(path)["k"], list(value) if isinstance(value, tuple) else value)
    with gguf.open(path) as model:
        assert same(model.metadata["k"], list(value) if isinstance(value, tuple) else value)
        assert (model.metadata["before"], model.metadata["after"]) == (1, "x")


@pytest.mark.parametrize("kind", [*KINDS, "str"])
def test_a_value_of_every_type_survives_being_read_and_written(path: Path, kind: str):
    """Narrow types come out as wider ones, and the values as they were."""
    if kind == "str":
        values: list[Any] = ["", "a b", "é🙂", "\0"]
    elif kind == "bool":
        values = [False, True]
    elif kind in ("f32", "f64"):
        values = [0.0, -1.5, math.inf, 2.0**-140]
        values += [0.1, 1e300] if kind == "f64" else []
    else:
        bits, signed = int(kind[1:]), kind[0] == "i"
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        values = [low, 0, 1, high // 2, high]
    keys = [key(f"k{i}", kind, value) for i, value in enumerate(values)]
    path.write_bytes(file([*keys, key("all", f"[{kind}]", values), key("none", f"[{kind}]", [])]))
    with gguf.open(path) as model:
        metadata = model.metadata
    write(path, metadata, [])
    with gguf.open(path) as model:
        assert list(model.metadata) == list(metadata), "in the same order"
        assert all(same(model.metadata[k], metadata[k]) for k in metadata)
        assert model.metadata["all"] == values
    theirs = values_of(path)
    assert all(same(theirs[k], metadata[k]) for k in metadata)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": 1},
        b"bytes",
        {1, 2},
        1j,
        np.int64(4),
        np.float32(0.5),
        2**64,
        -(2**63) - 1,
        [None],
        [1, "a"],
        [1, 2.5],
        [True, 1],
        [True, "a"],
        [[1], [2]],
        [[]],
        [-1, 2**63],
        [1, 2**64],
        [b"a"],
        "\ud800",
        ["a", "\udcff"],
    ],
)
def test_a_value_that_no_type_holds(path: Path, value: Any):
    with pytest.raises(InputError) as caught:
        write(path, {"good": 1, "bad": value}, [plain("t", (3,))])
    assert str(caught.value).isprintable()
    assert list(path.parent.iterdir()) == []


keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
wholes = st.integers(-(2**63), 2**64 - 1) | st.integers(-9, 300)
values = st.one_of(
    st.booleans(),
    wholes,
    st.floats(),
    st.floats(width=32),
    texts,
    st.lists(st.booleans(), max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), max_size=5),
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=5),
    st.lists(st.floats() | st.floats(width=32), max_size=5),
    st.lists(texts, max_size=5),
)


@given(st.dictionaries(keys.filter(lambda name: not name.startswith("GGUF.")), values, max_size=5))
def test_any_metadata_comes_back(spot: Path, metadata: dict[str, Any]):
    write(spot, metadata, [plain("t", (3,))])
    with gguf.open(spot) as model:
        ours = model.metadata
        assert model["t"].blocks().tobytes() == bytes(range(12))
    theirs = values_of(spot)
    assert list(ours) == list(metadata)
    for name, value in metadata.items():
        assert same(ours[name], value)
        if value != []:
            assert same(theirs[name], value)


# What the reader would refuse is not written


@pytest.mark.parametrize("alignment", [0, -32, 3, 48, True, 32.0, "32", None, [32]])
def test_an_alignment_that_is_none(path: Path, alignment: Any):
    with pytest.raises(ModelFileError, match="not a power of two"):
        write(path, {"general.alignment": alignment}, [])
    assert not path.exists()


def test_a_huge_alignment_fills_no_disk(path: Path):
    """Where there are no data, there is nothing to align."""
    write(path, {"general.alignment": 2**40}, [])
    assert path.stat().st_size < 100
    with gguf.open(path) as model:
        assert model.metadata == {"general.alignment": 2**40}


@pytest.mark.parametrize(
    ("metadata", "entries", "words"),
    [
        ({}, [plain("t", (1,)), plain("u", (1,)), plain("t", (2,))], "same name"),
        ({}, [plain("", (1,))], "'' has 0 bytes, not 1 to 64"),
        ({}, [plain("é" * 33, (1,))], "has 66 bytes, not 1 to 64"),
        ({}, [plain("t", (1,) * 5)], "'t' has more than 4 axes"),
        ({}, [plain("\ud800", (1,))], "not valid Unicode"),
        ({"": 1}, [], "'' has 0 bytes"),
        ({"k" * 65536: 1}, [], "has 65,536 bytes, not 1 to 65,535"),
    ],
)
def test_names_and_axes_that_no_file_may_have(
    path: Path, metadata: dict[str, Any], entries: list[Entry], words: str
):
    with pytest.raises(InputError) as caught:
        write(path, metadata, entries)
    assert words in str(caught.value)
    assert list(path.parent.iterdir()) == []


def test_the_longest_names(path: Path):
    write(path, {"k" * 65535: 1}, [plain("é" * 32, (1,))])
    with gguf.open(path) as model:
        assert list(model) == ["é" * 32]


# Whole or not at all, one tensor at a time


def failing(error: BaseException) -> Callable[[], np.ndarray]:
    def data() -> np.ndarray:
        raise error

    return data


@pytest.mark.parametrize(
    "error", [InputError("no"), MemoryError(), KeyboardInterrupt(), ValueError("x")]
)
@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_failure_in_the_middle_leaves_what_was_there(
    path: Path, error: BaseException, before: bytes | None
):
    if before is not None:
        path.write_bytes(before)
    entries = [plain("t", (9000,)), Entry("u", F32, (2,), failing(error)), plain("v", (2,))]
    with pytest.raises(type(error)) as caught:
        write(path, {"k": 1}, entries)
    assert caught.value is error
    assert (path.read_bytes() if path.exists() else None) == before
    assert [p for p in path.parent.iterdir() if p != path] == []


@pytest.mark.parametrize("nbytes", [0, 4, 11, 13, 24])
def test_data_of_another_size_than_announced(path: Path, nbytes: int):
    wrong = Entry("t", F32, (3,), lambda: np.zeros(nbytes, np.uint8))
    with pytest.raises(InputError, match=f"tensor 't' has {nbytes} bytes of data"):
        write(path, {}, [wrong])
    assert list(path.parent.iterdir()) == []


def test_places_where_nothing_can_be_written(tmp_path: Path):
    for place in (tmp_path, tmp_path / "none" / "made.gguf"):
        with pytest.raises(LlambdaError) as caught:
            write(place, {}, [Entry("t", F32, (1,), failing(AssertionError()))])
        assert str(caught.value).startswith(str(place))


def test_one_tensor_is_in_memory_at_a_time(path: Path):
    alive: list[weakref.ref[Any]] = []
    order: list[str] = []

    def entry_of(name: str) -> Entry:
        def data() -> np.ndarray:
            assert not any(ref() is not None for ref in alive[:-1]), "all but the last are gone"
            array = np.zeros(4 * 1000, np.uint8)
            alive.append(weakref.ref(array))
            order.append(name)
            return array

        return Entry(name, F32, (1000,), data)

    write(path, {}, [entry_of(name) for name in "abcde"])
    assert order == list("abcde")
    with gguf.open(path) as model:
        assert list(model) == order


def test_layouts_of_the_data(path: Path):
    """Bytes of any shape and stride are written in their logical order."""
    stored = np.arange(24, dtype=np.uint8).reshape(4, 6)
    views = {"rows": stored.reshape(2, 3, 4), "turned": stored.T, "back": stored[::-1]}
    write(path, {}, [Entry(name, F32, (6,), lambda v=view: v) for name, view in views.items()])
    with gguf.open(path) as model:
        for name, view in views.items():
            assert model[name].blocks().tobytes() == view.tobytes()


# The real model's metadata


def test_the_real_models_metadata_keeps_every_type(path: Path, smollm2_path: Path):
    """Byte for byte what stands in the file, behind the magic, the version and the counts."""
    with gguf.open(smollm2_path) as model:
        metadata = model.metadata
    assert len(metadata) > 20
    write(path, metadata, [])
    again = path.read_bytes()
    with smollm2_path.open("rb") as file:
        original = file.read(len(again))
    assert original[:8] == again[:8]
    assert original[16:] == again[16:]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(U32, I32, U64, I64)", "(I32, U32, U64, I64)"),
        ("(U32, I32, U64, I64)", "(U64, I64)"),
        ("F32 if value != value or fits(value, F32) else F64", "F32"),
        ("F32 if value != value or fits(value, F32) else F64", "F64"),
        ("F32 if value != value or fits(value, F32) else F64", "F32 if fits(value, F32) else F64"),
    ],
)
def test_a_planted_mistake_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
):
    """Other orders of preference, by the table above."""
    monkeypatch.setattr(gguf_write, "value_type", mutant(gguf_write.value_type, (old, new)))
    write(path, {"whole": 7, "exact": 0.1, "half": 0.5, "nan": math.nan}, [])
    right = {"whole": [U32], "exact": [F64], "half": [F32_], "nan": [F32_]}
    assert types_of(path) != right
