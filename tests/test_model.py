"""load(): names and paths, what it refuses and with which words, and a Model's life."""

import gc
import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from scripted import SIZES, SPARE, TOKENS, small_tensors, write_small

import llambda
from llambda import model as model_module
from llambda import weights
from llambda.cache import cache_bytes
from llambda.engines import RUNGS
from llambda.engines.fused import FusedState
from llambda.errors import (
    ContextError,
    FileAccessError,
    InputError,
    LlambdaError,
    ModelFileError,
    ResourceError,
    UnsupportedError,
)
from llambda.fetch import KNOWN
from llambda.tensor import Tensor
from llambda.tensorfile import TensorFile
from llambda.weights import halves_from_pairs

VOCAB_SIZE = SIZES["vocab_size"]
TYPES = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[TensorFile]:
    """The files that were closed."""
    files: list[TensorFile] = []
    monkeypatch.setattr(TensorFile, "close", lambda self: files.append(self) or self.maps.clear())
    return files


# ---------------------------------------------------------------- what is loaded


def test_a_path_and_its_text_are_the_same(path: Path):
    with llambda.load(path) as one, llambda.load(str(path)) as two:
        ids = one.tokenizer.encode("the cat on")
        assert np.array_equal(one.logits(ids), two.logits(ids))
        assert one.config == two.config
        assert one.config.name == "small"


def test_a_path_may_begin_with_the_home_folder(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.setenv("USERPROFILE", str(path.parent))
    assert llambda.load("~/small.gguf").config.name == "small"


def test_a_relative_path_starts_here(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(path.parent)
    assert llambda.load("small.gguf").config.name == "small"


def test_a_known_name_is_its_file_in_the_cache(path: Path, monkeypatch: pytest.MonkeyPatch):
    known = replace(KNOWN["smollm2"], member="x/little.gguf", nbytes=path.stat().st_size)
    monkeypatch.setitem(KNOWN, "little", known)
    monkeypatch.setenv("LLAMBDA_HOME", str(path.parent))
    with pytest.raises(FileAccessError, match=r"little has not been fetched.*llambda fetch little"):
        llambda.load("little")
    (path.parent / "models").mkdir()
    (path.parent / "models" / "little.gguf").write_bytes(path.read_bytes())
    assert llambda.load("little").config.name == "small"
    (path.parent / "models" / "little.gguf").write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileAccessError, match="has not been fetched"):
        llambda.load("little")


def test_tiny_is_the_model_that_ships(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_module, "data_dir", lambda: path.parent)
    (path.parent / "tiny.gguf").write_bytes(path.read_bytes())
    assert llambda.load("tiny").config.name == "small"


@pytest.mark.parametrize(("name", "kind"), [(None, "fused"), ("naive", "naive")])
def test_the_engine_is_the_named_one_or_the_best(path: Path, name: str | None, kind: str):
    assert llambda.load(path, engine=name).engine.name == kind


def test_the_context_is_the_models_own_up_to_4096(tmp_path: Path, path: Path):
    assert llambda.load(path).context == 64
    assert llambda.load(path, context=9).context == 9
    assert llambda.load(path, context=np.int64(64)).context == 64
    for length, wanted in ((4095, 4095), (4096, 4096), (2**31, 4096)):
        long = write_small(tmp_path / "long.gguf", sizes={"context_length": length})
        assert llambda.load(long).context == wanted
    assert llambda.load(long, context=5000).context == 5000


def test_logits(path: Path):
    with llambda.load(path) as model:
        logits = model.logits([5, 6, 7])
        assert (logits.shape, logits.dtype) == ((3, VOCAB_SIZE), np.float32)
        assert np.array_equal(model.logits(np.array([5, 6, 7])), logits)
        assert np.array_equal(model.logits([np.uint16(5), 6, 7]), logits)
        assert model.logits([5])[0] == pytest.approx(logits[0], abs=1e-5)
        greedy = model.generate([5, 6, 7], temperature=0, max_tokens=1)
        assert greedy.ids == [logits[-1].argmax()]


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([], InputError, "there are no token ids"),
        ([0, VOCAB_SIZE], InputError, f"token id {VOCAB_SIZE} is outside"),
        ([-1], InputError, "token id -1 is outside"),
        ([1.5], InputError, "token id 1.5 is not a whole number"),
        ([0] * 65, ContextError, "65 tokens at position 0 do not fit in a context of 64"),
    ],
)
@pytest.mark.parametrize("engine", RUNGS)
def test_logits_of_impossible_ids(path: Path, engine: str, ids: list[Any], error: Any, words: str):
    with llambda.load(path, engine) as model, pytest.raises(error, match=words):
        model.logits(ids)


def test_generate_takes_text_or_ids(path: Path):
    with llambda.load(path) as model:
        ids = model.tokenizer.encode("the cat")
        by_text = model.generate("the cat", temperature=0, max_tokens=8)
        assert by_text.prompt_ids == ids
        assert model.generate(ids, temperature=0, max_tokens=8).ids == by_text.ids
        assert model.generate(tuple(ids), temperature=0, max_tokens=8).text == by_text.text
        stop = by_text.text[2:4]
        for stops in (stop, [stop], (stop, "never")):
            stopped = model.generate("the cat", temperature=0, max_tokens=8, stop=stops)
            assert stopped.text == by_text.text.split(stop)[0]
            assert stopped.finish_reason == "stop"
        other = by_text.text[0] + "never"  # one stop string, and not six letters
        assert model.generate("the cat", temperature=0, max_tokens=8, stop=other).ids == by_text.ids


def test_special_tokens_of_a_prompt_are_text_unless_asked_for(path: Path):
    with llambda.load(path) as model:
        assert model.generate("<|im_start|>", parse_special=True).prompt_ids == [1]
        assert len(model.generate("<|im_start|>").prompt_ids) > 1


def test_the_defaults_of_generate_are_those_of_the_design(path: Path):
    with llambda.load(path) as model:
        generation = model.generate([5], seed=3)
        same = model.generate(
            [5], max_tokens=64, temperature=0.8, top_k=40, top_p=0.95, min_p=0, repeat_penalty=1,
            seed=3, stop=[],
        )  # fmt: skip
        assert generation.ids == same.ids
        assert len(generation.ids) == 64 or generation.finish_reason != "length"
        seeds = {model.generate([5]).seed for _ in range(4)}
        assert len(seeds) > 1


@pytest.mark.parametrize(
    "setting",
    [
        {"max_tokens": -1},
        {"temperature": -1},
        {"top_k": -1},
        {"top_p": 2},
        {"min_p": float("nan")},
        {"repeat_penalty": 0},
        {"seed": -1},
        {"stop": [""]},
    ],
)
def test_a_bad_setting_is_refused_before_any_work(path: Path, setting: dict[str, Any]):
    with llambda.load(path) as model, pytest.raises(InputError, match=next(iter(setting))):
        model.generate("the", **setting)


# ---------------------------------------------------------------- what is refused


def test_a_file_that_is_not_there(tmp_path: Path):
    (tmp_path / "file").touch()
    long = "x" * 5000
    for source in (tmp_path / "no.gguf", "no-such-model", "~nobody-has-this-name/x", "file/in"):
        with pytest.raises(FileAccessError) as caught:
            llambda.load(source)
        assert str(caught.value) == (
            f"{source}: no such file, and no model of that name. "
            "Give a .gguf file, a model's folder, or one of: tiny, smollm2."
        )
    with pytest.raises(FileAccessError, match="the name is too long"):
        llambda.load(long)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", Path("a\0b")])
def test_a_name_that_no_file_can_have(name: Any):
    with pytest.raises(FileAccessError, match="no file can have this name"):
        llambda.load(name)


@pytest.mark.parametrize(
    ("name", "words"), [("", "the model's name is empty"), (None, "None names no model"), (5, "5 "),
                        (b"tiny", "b'tiny' names no model"), ([], r"\[\] names no model")]
)  # fmt: skip
def test_what_names_no_model(name: Any, words: str):
    with pytest.raises(InputError, match=rf"^{words}.* Give a \.gguf file, .* tiny, smollm2\.$"):
        llambda.load(name)


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def denied(self: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(FileAccessError, match="permission denied"):
        llambda.load(tmp_path / "small.gguf")


@pytest.mark.parametrize("name", ["fastest", "", "Cached", 3])
def test_an_unknown_engine(path: Path, name: Any):
    with pytest.raises(InputError, match=rf"unknown engine {name!r}. Choose one of naive, cached"):
        llambda.load(path, engine=name)


def test_half_the_cache(path: Path, monkeypatch: pytest.MonkeyPatch):
    checked: list[int] = []
    monkeypatch.setattr(model_module, "check_memory", lambda needed, path: checked.append(needed))
    kept = {}
    for cache in ("f32", "f16"):
        with llambda.load(path, "fused", cache=cache) as model:
            state = model.engine.new_state(64)
            assert isinstance(state, FusedState)
            kept[cache] = state.cache.nbytes
            logits = model.engine.forward(state, [1, 2, 3]).copy()
            with llambda.load(path, "naive") as other:
                expected = other.logits([1, 2, 3])[-1]
            # A half is right to 1 in 2,048; codes of activations, that both have, to 1 in 254.
            np.testing.assert_allclose(logits, expected, atol=0.05 * np.abs(expected).max())
    assert kept["f16"] == kept["f32"] // 2
    assert checked[0] - checked[2] == cache_bytes(model.config, 64, "f16")


@pytest.mark.parametrize(
    ("engine", "cache", "words"),
    [
        ("naive", "f16", "the engine 'naive' has no cache of 'f16'. Choose f32, or the engine"),
        (None, "f8", "the engine 'fused' has no cache of 'f8'. Choose f32 or f16."),
    ],
)  # fmt: skip
def test_a_cache_that_an_engine_does_not_have(path: Path, engine: Any, cache: str, words: str):
    with pytest.raises(InputError, match=re.escape(words)):
        llambda.load(path, engine, cache=cache)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["threads", "context"])
def test_impossible_threads_and_context(path: Path, name: str, value: Any):
    words = f"{name} is {value!r}. It must be a whole number, 1 to "
    with pytest.raises(InputError, match=re.escape(words)):
        llambda.load(path, **{name: value})


def test_a_context_beyond_the_models(path: Path):
    words = "a context of 4,097 is more than the model's 64. Ask for less."
    with pytest.raises(ContextError, match=re.escape(words)):
        llambda.load(path, context=4097)


def test_memory_is_asked_for_before_it_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch):
    with llambda.load(path) as model:
        numbers = sum(array.size for array in small_tensors().values())
        needed = 4 * numbers + cache_bytes(model.config, 64)
        assert 4 * numbers == model.engine.weight_bytes(model.weights)
    monkeypatch.setattr(model_module, "available_memory", lambda: needed)
    llambda.load(path)
    monkeypatch.setattr(model_module, "available_memory", lambda: needed - 1)
    with pytest.raises(ResourceError, match=r"weights and cache take 0 MB of memory, and 0 MB are"):
        llambda.load(path)
    llambda.load(path, context=63)


@pytest.mark.parametrize("engine", RUNGS)
def test_nobody_keeps_what_an_engine_was_made_of(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
):
    """Rows of q and k are copied on the way to an engine, which has a form of its own."""
    copies: list[weakref.ref[np.ndarray]] = []

    def watched(rows: Tensor, n_heads: int) -> Tensor:
        copy = halves_from_pairs(rows, n_heads)
        copies.append(weakref.ref(copy.buffer))
        return copy

    monkeypatch.setattr(weights, "halves_from_pairs", watched)
    halves = {name: TYPES.F16 for name, array in small_tensors().items() if array.ndim == 2}
    small = write_small(tmp_path / "small.gguf", kinds=halves)
    with llambda.load(small, engine) as model:
        gc.collect()
        assert len(copies) == 4  # q and k of two layers
        assert [copy for copy in copies if copy() is not None] == []
        layer = model.weights.layers[0]
        assert [copy() is not None for copy in copies[4:]] == [True, True, False, False]
        assert np.array_equal(layer.q.numpy(), np.zeros((24, 16)))
        assert model.logits([5, 6]).shape == (2, VOCAB_SIZE)


def test_more_tokens_than_embeddings(tmp_path: Path):
    rows = len(TOKENS) - 1
    tensors = small_tensors()
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = tensors[name][:rows]
    short = write_small(tmp_path / "s.gguf", sizes={"vocab_size": rows}, tensors=tensors)
    with pytest.raises(UnsupportedError, match=f"{len(TOKENS)} tokens for {rows} embeddings"):
        llambda.load(short)
    assert SPARE > 0  # while spare rows are fine: the other tests have some


@pytest.mark.parametrize("kind", [TYPES.Q2_K, TYPES.IQ4_NL, TYPES.TQ1_0])
def test_a_storage_type_without_a_decoder_is_named(tmp_path: Path, kind: TYPES):
    name = "blk.1.ffn_up.weight"
    file = write_small(tmp_path / "s.gguf", kinds={name: kind})
    with pytest.raises(UnsupportedError, match=f"tensor '{name}' is stored as {kind.name}, which"):
        llambda.load(file)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<!DOCTYPE html>", b"\0" * 100])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes):
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"bad\.gguf: "):
        llambda.load(file)


# ---------------------------------------------------------------- closing


def test_a_closed_model_says_so(path: Path):
    with llambda.load(path, "cached") as model:
        generation = model.generate("the", temperature=0, max_tokens=4)
    model.close()
    for use in (
        lambda: model.generate("the"),
        lambda: model.logits([1]),
        model.batch,
        lambda: model.weights,
    ):
        with pytest.raises(InputError, match="the model was closed"):
            use()
    assert len(generation.ids) == 4  # one that was begun may go on, if it needs no threads
    with llambda.load(path) as model:
        generation = model.generate("the", temperature=0, max_tokens=4)
    with pytest.raises(InputError, match=r"used after close\(\)"):
        _ = generation.ids


def test_closing_lets_go_of_the_file(tmp_path: Path):
    file = write_small(tmp_path / "small.gguf")
    with llambda.load(file) as model:
        assert mapped(file)
    del model
    gc.collect()
    assert not mapped(file)
    file.unlink()


def mapped(path: Path) -> bool:
    """Whether this process has the file in its memory."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    return str(path) in maps.read_text()


@pytest.mark.parametrize("part", ["read_config", "read_tokenizer", "read_weights"])
@pytest.mark.parametrize("error", [ModelFileError("bad"), KeyboardInterrupt()])
def test_a_failed_load_closes_the_file(
    path: Path, closed: list[TensorFile], monkeypatch: pytest.MonkeyPatch, part: str, error: Any
):
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(f"llambda.modelfile.{part}", fail)
    with pytest.raises(type(error)):
        llambda.load(path)
    assert [file.path for file in closed] == [path]


def test_a_refused_load_closes_the_file(path: Path, closed: list[TensorFile]):
    for setting in ({"context": 0}, {"context": 10**6}):
        with pytest.raises(LlambdaError):
            llambda.load(path, **setting)
    assert len(closed) == 2
    model = llambda.load(path)
    assert len(closed) == 2
    model.close()
    assert len(closed) == 3


# ---------------------------------------------------------------- the real one


def test_the_real_model_answers(smollm2_path: Path):
    with llambda.load(smollm2_path) as model:
        assert model.context == 4096
        generation = model.generate("The capital of France is", temperature=0, max_tokens=3)
        assert generation.text == " Paris.\n"
        again = [model.generate("Once", seed=5, max_tokens=6).ids for _ in range(2)]
        assert again[0] == again[1]
