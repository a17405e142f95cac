"""`quantize` on small models: every tensor as the `gguf` package would store it, or no file.

The sources are written by the `gguf` package or byte by byte.
"""

import errno
import os
import shutil
import struct
from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf as reference
import gguf_bytes as raw
import models
import numpy as np
import pytest
import tokenizers_made as made
import torch
import transformers
from gguf import GGMLQuantizationType, LlamaFileType
from models import COMMON, build, draw_weights, random_ids

import llambda
from llambda import gguf, gguf_write, modelfile
from llambda.encode import ENCODERS
from llambda.engines import CachedEngine
from llambda.errors import (
    FileAccessError,
    InputError,
    LlambdaError,
    ModelFileError,
    ResourceError,
    UnsupportedError,
)
from llambda.gguf_split import SPLIT_KEYS
from llambda.quantize import FILE_TYPES, encode_tensor, quantize
from llambda.quants import decode
from llambda.tensor import F32, Tensor

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
VARIANTS = ["grouped", "llama3", "linear"]
N = 70
FILE_TYPE, VERSION = "general.file_type", "general.quantization_version"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small F32 models, written by the `gguf` package."""
    folder = tmp_path_factory.mktemp("sources")
    for variant in VARIANTS:
        build(variant).write_gguf(folder / f"{variant}.gguf")
    return folder


@pytest.fixture
def source(sources: Path, tmp_path: Path) -> Path:
    """One of them, alone in a folder."""
    return Path(shutil.copy(sources / "grouped.gguf", tmp_path / "in.gguf"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "made.gguf"


def stored(array: np.ndarray, kind: str) -> bytes:
    """What the package makes of float32 rows."""
    return reference.quants.quantize(array, GGMLQuantizationType[kind]).tobytes()


def values(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file, decoded by the package, in the file's shape."""
    return {
        t.name: reference.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1])
        for t in reference.GGUFReader(path).tensors
    }


def write(path: Path, arrays: dict[str, Any], **metadata: Any) -> Path:
    """A file of arrays in F32, or of (stored bytes, type) pairs; by the package."""
    writer = reference.GGUFWriter(path, "llama")
    for name, value in metadata.items():
        writer.add_uint32(name, value)
    for name, array in arrays.items():
        if isinstance(array, tuple):
            writer.add_tensor(name, array[0], raw_dtype=GGMLQuantizationType[array[1]])
        else:
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def refused(
    source: Path, target: Path, kind: str = "Q8_0", error: type[LlambdaError] = InputError
) -> str:
    """The message; neither is the target changed nor anything left beside it."""
    folder = target.parent
    before = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()} if folder.is_dir() else {}
    with pytest.raises(LlambdaError) as caught:
        quantize(source, target, kind)
    assert type(caught.value) is error, caught.value
    assert str(caught.value).isprintable()
    after = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()} if folder.is_dir() else {}
    assert before == after
    return str(caught.value)


def logits_of(path: Path, ids: list[int]) -> np.ndarray:
    file = modelfile.open(path)
    config = modelfile.read_config(file)
    engine = CachedEngine(config, modelfile.read_weights(file, config))
    return engine.forward(engine.new_state(len(ids)), ids, all_logits=True).copy()


# What is written


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["grouped", "llama3"])
def test_every_tensor_is_stored_as_the_package_stores_it(
    sources: Path, target: Path, variant: str, kind: str
):
    """Vectors, and rows of 48 where blocks have 32, stay F32."""
    path = sources / f"{variant}.gguf"
    quantize(path, target, kind)
    before = {t.name: t for t in reference.GGUFReader(path).tensors}
    after = {t.name: t for t in reference.GGUFReader(target).tensors}
    assert list(after) == list(before)
    block = reference.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
    kept = set()
    for name, tensor in after.items():
        assert tensor.shape.tolist() == before[name].shape.tolist()
        fits = len(tensor.shape) > 1 and tensor.shape[0] % block == 0
        assert tensor.tensor_type.name == (kind if fits else "F32"), name
        assert tensor.data.tobytes() == stored(before[name].data, tensor.tensor_type.name), name
        if not fits:
            kept.add(name.split(".")[-2])
    vectors = {"attn_norm", "ffn_norm", "output_norm"}
    vectors |= {"rope_freqs"} if variant == "llama3" else set()
    assert kept == (vectors if block == 1 else vectors | {"ffn_down"})


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_is_kept_and_says_what_the_file_is(source: Path, target: Path, kind: str):
    quantize(source, target, kind)
    with gguf.open(source) as old, gguf.open(target) as new:
        assert new.metadata == old.metadata | {
            FILE_TYPE: new.metadata[FILE_TYPE],
            VERSION: 2,
        }
        name = LlamaFileType(new.metadata[FILE_TYPE]).name
    assert name == ("ALL_F32" if kind == "F32" else f"MOSTLY_{kind}")
    fields = reference.GGUFReader(target).fields
    assert fields[FILE_TYPE].types == [reference.GGUFValueType.UINT32]
    assert fields[VERSION].contents() == reference.GGML_QUANT_VERSION


def test_a_type_that_was_said_before_is_replaced(tmp_path: Path, target: Path):
    path = write(tmp_path / "in.gguf", {"m": normal(2, 32)}, **{FILE_TYPE: 1, VERSION: 1, "x": 5})
    quantize(path, target, "Q4_0")
    with gguf.open(target) as file:
        assert file.metadata["x"] == 5
        assert (file.metadata[FILE_TYPE], file.metadata[VERSION]) == (2, 2)


def test_every_type_is_tested_here():
    assert sorted(FILE_TYPES) == sorted(ENCODERS) == sorted(KINDS)


def test_tensors_of_any_number_of_axes(tmp_path: Path, target: Path):
    arrays = {
        "cube": normal(2, 3, 32),
        "row": normal(1, 64),
        "vector": normal(64),
        "narrow": normal(4, 16),
        "odd": normal(3, 33),
        "single": normal(1),
    }
    quantize(write(tmp_path / "in.gguf", arrays), target, "Q8_0")
    with gguf.open(target) as file:
        kinds = {name: info.kind for name, info in file.infos.items()}
        assert kinds == dict.fromkeys(arrays, "F32") | {"cube": "Q8_0", "row": "Q8_0"}
        for name, array in arrays.items():
            assert file[name].shape == array.shape
            assert file[name].blocks().tobytes() == stored(array, kinds[name])


def test_scalars_and_empty_tensors(tmp_path: Path, target: Path):
    path = tmp_path / "in.gguf"
    infos = [raw.info("scalar", []), raw.info("none", [32, 0], offset=32)]
    path.write_bytes(raw.file([], infos, raw.pad(struct.pack("<f", 0.5))))
    for kind in KINDS:
        quantize(path, target, kind)
        with gguf.open(target) as file:
            assert file["scalar"].item() == 0.5
            assert (file["none"].shape, file.infos["none"].kind) == ((0, 32), kind)


def test_a_file_without_tensors(tmp_path: Path, target: Path):
    path = write(tmp_path / "in.gguf", {}, x=1)
    quantize(path, target, "Q4_1")
    with gguf.open(target) as file:
        assert (len(file), file.metadata["x"]) == (0, 1)


def test_a_file_of_another_alignment(tmp_path: Path, target: Path):
    path = write(tmp_path / "in.gguf", {"a": normal(2, 32), "b": normal(3, 32)})
    with gguf.open(path) as file:
        metadata = file.metadata | {"general.alignment": 256}
        entries = [
            gguf_write.Entry(name, F32, file[name].shape, file[name].blocks) for name in file
        ]
        gguf_write.write(tmp_path / "wide.gguf", metadata, entries)
    quantize(tmp_path / "wide.gguf", target, "Q8_0")
    with gguf.open(target) as file:
        assert [info.offset % 256 for info in file.infos.values()] == [0, 0]
    assert np.array_equal(values(target)["b"], values_after(normal(3, 32), "Q8_0"))


def values_after(array: np.ndarray, kind: str) -> np.ndarray:
    """What is left of an array when it was stored."""
    type_ = GGMLQuantizationType[kind]
    return reference.quants.dequantize(reference.quants.quantize(array, type_), type_)


# From any format to any


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("was", KINDS)
def test_from_every_format_to_every_format(tmp_path: Path, target: Path, was: str, kind: str):
    array = normal(5, 96)
    type_ = GGMLQuantizationType[was]
    path = write(tmp_path / "in.gguf", {"m": (reference.quants.quantize(array, type_), was)})
    quantize(path, target, kind)
    with gguf.open(target) as file:
        assert file.infos["m"].kind == kind
        assert file["m"].blocks().tobytes() == stored(values_after(array, was), kind)


@pytest.mark.parametrize("was", ["Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_from_formats_that_are_only_read(tmp_path: Path, target: Path, was: str):
    block, nbytes = reference.GGML_QUANT_SIZES[GGMLQuantizationType[was]]
    blocks = np.random.default_rng(0).integers(0, 256, (3, 2 * nbytes)).astype(np.uint8)
    view = blocks.reshape(3, 2, nbytes)
    for at in [208] if was == "Q6_K" else [0, 2]:
        view[..., at : at + 2] = np.array([0.01], "<f2").view(np.uint8)
    path = write(tmp_path / "in.gguf", {"m": (blocks, was)})
    expected = reference.quants.dequantize(blocks, GGMLQuantizationType[was])
    assert expected.shape == (3, 2 * block)
    for kind in ("F32", "Q8_0"):
        quantize(path, target, kind)
        with gguf.open(target) as file:
            assert file["m"].blocks().tobytes() == stored(expected, kind)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_the_same_type_is_copied_byte_by_byte(tmp_path: Path, target: Path, kind: str):
    """Also blocks that no encoder makes: any codes, any scales."""
    nbytes = reference.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    width = 3 * nbytes if nbytes > 2 else 64
    data = np.random.default_rng(1).integers(0, 256, (4, width)).astype(np.uint8)
    path = write(tmp_path / "in.gguf", {"m": (data, kind), "v": normal(7)})
    quantize(path, target, kind)
    with gguf.open(target) as file:
        assert file["m"].blocks().tobytes() == data.tobytes()
        assert file["v"].blocks().tobytes() == normal(7).tobytes()
        again = decode(file["m"])
    encoded = stored(np.nan_to_num(again), kind)
    assert encoded != data.tobytes(), "decoding and encoding would have changed them"


@pytest.mark.parametrize("kind", KINDS)
def test_to_do_it_twice_changes_nothing(source: Path, target: Path, tmp_path: Path, kind: str):
    quantize(source, target, kind)
    quantize(target, tmp_path / "again.gguf", kind)
    assert (tmp_path / "again.gguf").read_bytes() == target.read_bytes()


# The model that comes out


def relative(difference: np.ndarray, to: np.ndarray) -> float:
    return float(np.linalg.norm(difference) / np.linalg.norm(to))


def stored_weights(variant: str, kind: str) -> tuple[transformers.LlamaForCausalLM, float]:
    """transformers' model with the weights that are left, and the largest relative loss."""
    hf, loss = deepcopy(build(variant).hf), 0.0
    for weight in hf.parameters():
        block = reference.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
        if weight.ndim == 2 and weight.shape[1] % block == 0:
            left = values_after(weight.numpy(), kind)
            loss = max(loss, relative(left - weight.numpy(), weight.numpy()))
            weight.copy_(torch.from_numpy(np.array(left, np.float32)))
    return hf, loss


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_models_run_and_lose_what_their_formats_lose(sources: Path, target: Path, variant: str):
    """The logits are those of transformers with the weights as stored, and near the original's.

    A number passes 4 matrices a layer (v, o, gate or up, down), the embedding and the head: 14.
    To first order each adds its relative loss, and rotation, softmax and SiLU enlarge none much.
    """
    ids, lost = random_ids(variant, N), {}
    original = build(variant).hf_logits(ids)
    for kind in KINDS:
        quantize(sources / f"{variant}.gguf", target, kind)
        found = logits_of(target, ids)
        hf, loss = stored_weights(variant, kind)
        with torch.inference_mode():
            expected = hf(torch.tensor([ids])).logits[0].numpy()
        assert np.abs(found - expected).max() <= 1e-4
        lost[kind] = relative(found - original, original)
        assert loss <= lost[kind] <= 14 * loss + 1e-5
    assert lost["F32"] < 1e-5
    assert 10 * lost["F16"] < 2 * lost["BF16"] < lost["Q8_0"] < lost["Q4_1"] / 5
    assert 5 * lost["Q8_0"] < lost["Q4_0"]


def test_a_model_with_a_tokenizer_generates(tmp_path: Path, target: Path):
    library = made.with_special("smollm")
    metadata = made.gguf_metadata(library, "smollm")
    size = len(metadata["tokenizer.ggml.tokens"])
    settings = COMMON | {"vocab_size": size, "tie_word_embeddings": True}
    hf = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
    hf.requires_grad_(False)
    draw_weights(hf, seed=3)
    models.write_gguf(hf, tmp_path / "bare.gguf")
    with gguf.open(tmp_path / "bare.gguf") as file:
        entries = [
            gguf_write.Entry(name, F32, file[name].shape, file[name].blocks) for name in file
        ]
        gguf_write.write(tmp_path / "in.gguf", file.metadata | metadata, entries)
    quantize(tmp_path / "in.gguf", target, "Q8_0")
    with llambda.load(tmp_path / "in.gguf") as one, llambda.load(target) as two:
        prompt = "The word is x_y 42."
        ids = one.tokenizer.encode(prompt)
        assert two.tokenizer.encode(prompt) == ids
        assert two.tokenizer.vocab == one.tokenizer.vocab
        a, b = one.logits(ids), two.logits(ids)
        assert 0 < relative(a - b, a) < 0.2
        assert len(two.generate(prompt, max_tokens=5, seed=1).ids) == 5
    assert target.stat().st_size < (tmp_path / "in.gguf").stat().st_size


# Split models


class SplitWriter(reference.GGUFWriter):
    def __init__(self, path: Path, arch: str):
        super().__init__(path, arch, split_max_tensors=10)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The model "grouped" in four files."""
    folder = tmp_path / "parts"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(models.gguf, "GGUFWriter", SplitWriter)
        build("grouped").write_gguf(folder / "m.gguf")
    found = sorted(folder.iterdir())
    assert [part.name for part in found] == [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    return found


def test_parts_become_one_file(parts: list[Path], source: Path, target: Path, tmp_path: Path):
    quantize(parts[0], target, "Q8_0")
    quantize(source, tmp_path / "whole.gguf", "Q8_0")
    with gguf.open(target) as one, gguf.open(tmp_path / "whole.gguf") as whole:
        assert list(one) == list(whole)
        assert one.metadata == whole.metadata
        assert not one.metadata.keys() & set(SPLIT_KEYS)
        assert len(one.maps) == 1
        for name in whole:
            assert one[name].blocks().tobytes() == whole[name].blocks().tobytes()


def test_no_part_may_be_written_over(parts: list[Path]):
    for part in parts:
        assert "the output is the input" in refused(parts[0], part)


def test_another_part_than_the_first_is_refused(parts: list[Path], target: Path):
    assert "Open its first part" in refused(parts[1], target, error=ModelFileError)
    parts[2].unlink()
    assert "part 3 of 3 is missing" in refused(parts[0], target, error=ModelFileError)


# Refusals: nothing is written, and what was there stays


@pytest.mark.parametrize(
    "spelling", ["{0}", "{1}/../{1.name}/{0.name}", "{1}/./{0.name}", "link", "hard"]
)
def test_the_output_must_not_be_the_input(source: Path, tmp_path: Path, spelling: str):
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "hard").hardlink_to(source)
    target = Path(os.path.join(tmp_path, spelling.format(source, tmp_path)))
    assert target.samefile(source)
    message = refused(source, target)
    assert "the output is the input" in message
    assert message.endswith("Name another file.")
    assert "the output is the input" in refused(tmp_path / "link", source)


def test_the_output_must_not_be_the_input_by_a_relative_name(
    source: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(source.parent)
    assert "the output is the input" in refused(source, Path("in.gguf"))
    assert "the output is the input" in refused(Path("in.gguf"), source)


@pytest.mark.parametrize("kind", ["Q5_0", "Q4_K", "q8_0", "F64", "I8", "", "Q8_0 ", "x\n"])
def test_an_unknown_type(source: Path, target: Path, kind: str):
    message = refused(source, target, kind)
    assert f"unknown type {kind!r}" in message
    assert "F32, F16, BF16, Q8_0, Q4_0, Q4_1" in message


def test_a_folder_is_not_quantized(tmp_path: Path, target: Path):
    build("grouped").hf.save_pretrained(tmp_path / "folder")
    message = refused(tmp_path / "folder", target)
    assert message.startswith(f"{tmp_path / 'folder'}: a folder, and only GGUF files")
    assert "convert_hf_to_gguf.py" in message
    weights = tmp_path / "folder" / "model.safetensors"
    assert "not a GGUF file" in refused(weights, target, error=ModelFileError)


def test_sources_that_are_none(source: Path, tmp_path: Path, target: Path):
    assert "no such file" in refused(tmp_path / "none.gguf", target, error=FileAccessError)
    (tmp_path / "empty.gguf").touch()
    assert "is empty" in refused(tmp_path / "empty.gguf", target, error=ModelFileError)
    os.truncate(source, source.stat().st_size - 32)
    assert "truncated" in refused(source, target, error=ModelFileError)


def test_targets_that_are_none(source: Path, target: Path, tmp_path: Path):
    message = refused(source, target.parent, error=FileAccessError)
    assert f"{target.parent}: a folder where a file is needed" in message
    missing = tmp_path / "none" / "made.gguf"
    assert f"{missing.parent}: no such file or folder" in refused(
        source, missing, error=FileAccessError
    )
    assert not missing.parent.exists()
    below = source / "made.gguf"
    assert refused(source, below, error=FileAccessError).startswith(str(source))


@pytest.mark.parametrize("kind", ["Q2_K", "Q8_1"])
def test_a_source_format_without_a_decoder(tmp_path: Path, target: Path, kind: str):
    nbytes = reference.GGML_QUANT_SIZES[GGMLQuantizationType["Q2_K"]][1]
    blocks = np.zeros((2, nbytes if kind == "Q2_K" else 36), np.uint8)
    if kind == "Q8_1":  # of whose size the package has another opinion
        path = tmp_path / "in.gguf"
        path.write_bytes(raw.file([], [raw.info("strange", [32, 2], 9)], blocks.tobytes()))
    else:
        path = write(tmp_path / "in.gguf", {"strange": (blocks, kind)})
    message = refused(path, target, error=UnsupportedError)
    assert f"'strange' is stored as {kind}" in message


def test_a_source_format_that_nobody_knows(tmp_path: Path, target: Path):
    path = tmp_path / "in.gguf"
    path.write_bytes(raw.file([], [raw.info("strange", [32, 2], 77)], bytes(64)))
    assert "'strange' is stored as type 77" in refused(path, target, error=UnsupportedError)


@pytest.mark.parametrize(
    ("kind", "fits", "too_large"),
    [
        ("F16", 65519, 65520),
        ("BF16", 3.38e38, 3.4e38),
        ("Q8_0", 127 * 65500, 127 * 65530),
        ("Q4_0", 8 * 65500, 8 * 65530),
        ("Q4_1", -65500, -65530),
    ],
)
def test_values_that_are_too_large_for_a_format(
    tmp_path: Path, target: Path, kind: str, fits: float, too_large: float
):
    array = normal(3, 64)
    array[2, 40] = fits
    quantize(write(tmp_path / "in.gguf", {"good": normal(2, 32), "m": array}), target, kind)
    assert np.isfinite(values(target)["m"]).all()
    array[2, 40] = too_large
    path = write(tmp_path / "in.gguf", {"good": normal(2, 32), "m": array})
    message = refused(path, target, kind, UnsupportedError)
    assert f"tensor 'm' has values too large for {kind}" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(tmp_path: Path, target: Path, value: float):
    array = normal(3, 64)
    array[1, 63] = value
    path = write(tmp_path / "in.gguf", {"good": normal(2, 32), "m": array})
    for kind in KINDS[1:]:
        message = refused(path, target, kind, ModelFileError)
        assert message.startswith(str(path))
        assert "tensor 'm' holds values that are no finite numbers" in message


def test_what_is_copied_is_not_looked_into(tmp_path: Path, target: Path):
    """Bytes that do not change cannot get worse."""
    vector = normal(7)
    vector[3] = np.nan
    path = write(tmp_path / "in.gguf", {"v": vector, "m": normal(2, 32)})
    quantize(path, target, "Q8_0")
    with gguf.open(target) as file:
        assert file["v"].blocks().tobytes() == vector.tobytes()


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_disk_that_is_too_small(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None
):
    """Seen before anything is written, by the size of the result."""
    if before is not None:
        target.write_bytes(before)
    with gguf.open(source) as file:
        elements = sum(file[name].size for name in file)
    usage = shutil.disk_usage(target.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=4 * elements - 1))
    message = refused(source, target, "F32", ResourceError)
    assert message.startswith(f"{target.parent}: ")
    assert message.endswith("Free some space, or write to another disk.")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=4 * elements))
    quantize(source, target, "F32")
    assert target.read_bytes() != before


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        (errno.ENOSPC, ResourceError, "no space left on this disk"),
        (errno.EDQUOT, ResourceError, "no space left on this disk"),
        (errno.EACCES, FileAccessError, "permission denied"),
        (errno.EROFS, FileAccessError, "permission denied"),
        (errno.EIO, FileAccessError, "error"),
    ],
)
@pytest.mark.parametrize("before", [None, b"what was there"])
@pytest.mark.parametrize("moment", ["writing", "syncing", "renaming"])
def test_a_disk_that_fails_on_the_way(
    source: Path,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[LlambdaError],
    words: str,
    before: bytes | None,
    moment: str,
):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    if before is not None:
        target.write_bytes(before)
    place = {
        "writing": (gguf_write, "pad"),
        "syncing": (os, "fsync"),
        "renaming": (Path, "replace"),
    }
    monkeypatch.setattr(*place[moment], fail)
    message = refused(source, target, "Q4_0", error)
    assert message.startswith(f"{target}: ")
    assert words in message


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write into every folder"
)
def test_a_folder_that_may_not_be_written(source: Path, target: Path):
    target.parent.chmod(0o555)
    try:
        assert "permission denied" in refused(source, target, error=FileAccessError)
    finally:
        target.parent.chmod(0o755)


def test_an_interruption_leaves_nothing(source: Path, target: Path):
    def progress(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(source, target, "Q8_0", progress)
    assert list(target.parent.iterdir()) == []


# Progress


def test_progress_counts_tensors(source: Path, target: Path):
    seen: list[tuple[int, int]] = []
    there: list[bool] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        there.append(target.exists())

    quantize(source, target, "Q8_0", progress)
    with gguf.open(source) as file:
        total = len(file)
    assert seen == [(done, total) for done in range(total + 1)]
    assert there == [False] * total + [True], "the last call is for the finished file"


# Planted mistakes


def test_a_copy_that_decodes_first_is_noticed(tmp_path: Path):
    """The comparison of test_the_same_type_is_copied_byte_by_byte, with the shortcut left out."""
    data = np.random.default_rng(1).integers(0, 256, (4, 3 * 34)).astype(np.uint8)
    data.reshape(4, 3, 34)[..., :2] = np.array([0.5], "<f2").view(np.uint8)
    tensor = Tensor(data, gguf.BY_ID[8].dtype, (4, 96))
    right = encode_tensor(tensor, tensor.dtype, "m", tmp_path)
    assert right.tobytes() == data.tobytes()
    wrong = models.mutant(encode_tensor, ("if tensor.dtype == dtype:", "if False:"))
    assert wrong(tensor, tensor.dtype, "m", tmp_path).tobytes() != data.tobytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("len(shape) >= 2 and ", ""),
        ("len(shape) >= 2", "len(shape) >= 1"),
        ("len(shape) >= 2", "len(shape) > 2"),
        (" and shape[-1] % dtype.block == 0", ""),
        ("shape[-1] % dtype.block", "shape[0] % dtype.block"),
    ],
)
def test_another_choice_of_tensors_is_noticed(
    sources: Path, target: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
):
    from llambda import quantize as module

    wrong = models.mutant(module.stored_as, (old, new))
    monkeypatch.setattr(module, "stored_as", wrong)
    with pytest.raises((AssertionError, LlambdaError)):
        test_every_tensor_is_stored_as_the_package_stores_it(sources, target, "grouped", "Q8_0")
