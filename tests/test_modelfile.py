"""A model by way of a Hugging Face folder, of a GGUF file, and of transformers: one and the same.

The folders are written by transformers, the GGUF files by the `gguf` package.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import models
import numpy as np
import pytest
import tokenizers_made as made
import torch
import transformers
from models import COMMON, LLAMA3, VARIANTS, build, draw_weights, mutant, random_ids
from safetensors.torch import load_file, save_file

import llambda
from llambda import config_hf, describe, modelfile, weights
from llambda.config import ModelConfig
from llambda.engines import CachedEngine
from llambda.errors import FileAccessError, LlambdaError, ModelFileError, UnsupportedError
from llambda.quants import decode
from llambda.tensor import F32, Tensor
from llambda.tensorfile import forget_pages
from llambda.weights import Weights

N = 70  # positions 0 to 69
HALVES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Loaded = tuple[ModelConfig, Weights[Tensor]]


def load_parts(path: Path) -> Loaded:
    """Config and weights through the one door."""
    file = modelfile.open(path)
    config = modelfile.read_config(file)
    return config, modelfile.read_weights(file, config)


def our_logits(path: Path, ids: list[int]) -> np.ndarray:
    """Every id's logits: float32 [n, vocab_size]."""
    engine = CachedEngine(*load_parts(path))
    return engine.forward(engine.new_state(len(ids)), ids, all_logits=True).copy()


def their_logits(folder: Path, ids: list[int]) -> np.ndarray:
    """What transformers makes of the same folder, in float32."""
    hf = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return hf(torch.tensor([ids])).logits[0].numpy()


def largest(difference: np.ndarray) -> float:
    return float(np.abs(difference).max())


# The same logits through both readers and transformers


def rounded(variant: str, kind: str) -> transformers.LlamaForCausalLM:
    """The random model with weights that the type holds exactly, still in float32."""
    hf = deepcopy(build(variant).hf)
    for weight in hf.parameters():
        weight.copy_(weight.to(HALVES[kind]).float())
    return hf


def write_folder(hf: transformers.LlamaForCausalLM, kind: str, folder: Path, **how: Any) -> Path:
    deepcopy(hf).to(HALVES[kind]).save_pretrained(folder, **how)
    return folder


def write_gguf(hf: transformers.LlamaForCausalLM, kind: str, path: Path) -> Path:
    """As llama.cpp's converter does it: matrices in the type, vectors in F32."""

    class Writer(gguf.GGUFWriter):
        def add_tensor(self, name: str, array: np.ndarray, **_: Any) -> None:
            if array.ndim == 1:
                return super().add_tensor(name, array)
            stored_as = gguf.GGMLQuantizationType[kind]
            stored = gguf.quants.quantize(array, stored_as)
            return super().add_tensor(name, stored, raw_dtype=stored_as)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.gguf, "GGUFWriter", Writer)
        models.write_gguf(hf, path)
    return path


def disagreement(variant: str, kind: str, tmp_path: Path, **how: Any) -> dict[str, float]:
    """Three answers to the same ids: how far ours are from transformers', by reader."""
    hf, ids = rounded(variant, kind), random_ids(variant, N)
    folder = write_folder(hf, kind, tmp_path / "folder", **how)
    path = write_gguf(hf, kind, tmp_path / "model.gguf")
    expected = their_logits(folder, ids)
    assert expected.shape == (N, hf.config.vocab_size)
    assert largest(expected) > 1, "logits of some size"
    found = {"folder": our_logits(folder, ids), "gguf": our_logits(path, ids)}
    return {reader: largest(logits - expected) for reader, logits in found.items()}


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_readers_give_the_logits_of_transformers(variant: str, kind: str, tmp_path: Path):
    """Random weights, positions 0 to 69, fewer heads for keys than for queries."""
    config = build(variant).config
    assert config.n_heads > config.n_kv_heads > 1
    apart = disagreement(variant, kind, tmp_path)
    assert apart["folder"] <= 1e-4
    assert apart["gguf"] <= 1e-4
    for path in (tmp_path / "folder", tmp_path / "model.gguf"):
        with modelfile.open(path) as file:
            assert {i.kind for i in file.infos.values() if len(i.shape) == 2} == {kind}
            assert ("rope_freqs.weight" in file) is (variant == "llama3" and path.is_file())


@pytest.mark.parametrize(("variant", "kind"), [("biased", "F32"), ("llama3", "BF16")])
def test_shards_give_the_logits_of_transformers(variant: str, kind: str, tmp_path: Path):
    apart = disagreement(variant, kind, tmp_path, max_shard_size="9KB")
    assert len(list((tmp_path / "folder").glob("model-*-of-*.safetensors"))) > 2
    assert not (tmp_path / "folder" / "model.safetensors").exists()
    assert apart["folder"] <= 1e-4
    assert apart["gguf"] <= 1e-4


def test_both_readers_find_the_same_weights(tmp_path: Path):
    """Bit for bit, for the rows are moved and never computed."""
    hf = rounded("biased", "F16")
    one = load_parts(write_folder(hf, "F16", tmp_path / "folder"))[1]
    two = load_parts(write_gguf(hf, "F16", tmp_path / "model.gguf"))[1]
    pairs = list(zip(one.unique(), two.unique(), strict=True))
    assert len(pairs) == 3 + 3 * 16
    assert all(np.array_equal(decode(a), decode(b)) for a, b in pairs)


def unpaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "GGUF", replace(weights.GGUF, pairs=False))


def paired_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "HUGGING_FACE", replace(weights.HUGGING_FACE, pairs=True))


def keys_by_query_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = ('"k": config.n_kv_heads', '"k": config.n_heads')
    monkeypatch.setattr(weights, "in_halves", mutant(weights.in_halves, edit))


def exchanged_feed_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    names = weights.HUGGING_FACE.suffixes
    swapped = names | {"gate": names["up"], "up": names["gate"]}
    monkeypatch.setattr(weights, "HUGGING_FACE", replace(weights.HUGGING_FACE, suffixes=swapped))


def factors_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = ("rope_factors=factors", "rope_factors=None")
    monkeypatch.setattr(weights, "find", mutant(weights.find, edit))


def scaling_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = ('"llama3", factor', '"none", factor')
    monkeypatch.setattr(config_hf, "scaled_rope", mutant(config_hf.scaled_rope, edit))


def default_base(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = ("inner or base or", "base or")
    monkeypatch.setattr(config_hf, "rope_from_hf", mutant(config_hf.rope_from_hf, edit))


@pytest.mark.parametrize(
    ("plant", "reader"),
    [
        (unpaired, "gguf"),
        (keys_by_query_heads, "gguf"),
        (factors_ignored, "gguf"),
        (paired_twice, "folder"),
        (exchanged_feed_forward, "folder"),
        (scaling_ignored, "folder"),
        (default_base, "folder"),
    ],
)
def test_a_planted_mistake_in_a_reader_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None],
    reader: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    plant(monkeypatch)
    apart = disagreement("llama3", "F32", tmp_path)
    other = {"gguf": "folder", "folder": "gguf"}[reader]
    assert apart[reader] > 1e-2
    assert apart[other] <= 1e-4


def test_the_first_position_alone_would_hide_the_order_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    unpaired(monkeypatch)
    hf, ids = rounded("grouped", "F32"), random_ids("grouped", N)
    wrong = our_logits(write_gguf(hf, "F32", tmp_path / "model.gguf"), ids)
    expected = build("grouped").hf_logits(ids)
    assert largest(wrong[0] - expected[0]) <= 1e-4
    assert largest(wrong[1] - expected[1]) > 1e-2


# The head: what transformers 5 does with it, and what is done here


@pytest.fixture
def folder_with(tmp_path: Path) -> Callable[..., Path]:
    """A folder of the variant "grouped" with tensors and settings changed; None takes one out."""

    def folder_with(
        tensors: dict[str, torch.Tensor | None] | None = None,
        variant: str = "grouped",
        **settings: Any,
    ) -> Path:
        folder = tmp_path / variant
        build(variant).hf.save_pretrained(folder)
        file = folder / "model.safetensors"
        changed = load_file(file) | (tensors or {})
        save_file({k: v for k, v in changed.items() if v is not None}, file, {"format": "pt"})
        config = json.loads((folder / "config.json").read_text()) | settings
        kept = {k: v for k, v in config.items() if v is not ...}
        (folder / "config.json").write_text(json.dumps(kept))
        return folder

    return folder_with


EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
IDS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(autouse=True)
def quiet_transformers() -> Iterator[None]:
    """It complains of the folders below on stderr."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(before)
    transformers.logging.enable_progress_bar()


@pytest.mark.parametrize("tied", [False, True, ...])
def test_a_head_of_its_own_is_used_whatever_the_flag_says(
    folder_with: Callable[..., Path], tied: Any
):
    """transformers 5 does so too: that two unlike tensors are there refutes a flag that ties."""
    folder = folder_with(tie_word_embeddings=tied)
    expected = build("grouped").hf_logits(IDS)
    assert largest(their_logits(folder, IDS) - expected) <= 1e-4
    assert largest(our_logits(folder, IDS) - expected) <= 1e-4
    parts = load_parts(folder)[1]
    assert parts.head is not parts.embed


@pytest.mark.parametrize("tied", [False, True, ...])
def test_a_head_equal_to_the_embedding(folder_with: Callable[..., Path], tied: Any):
    embed = build("grouped").hf.state_dict()[EMBED].clone()
    folder = folder_with({HEAD: embed}, tie_word_embeddings=tied)
    assert largest(our_logits(folder, IDS) - their_logits(folder, IDS)) <= 1e-4
    untied = build("grouped").hf_logits(IDS)
    assert largest(our_logits(folder, IDS) - untied) > 1e-2


def test_without_a_head_a_tied_model_uses_its_embedding(folder_with: Callable[..., Path]):
    folder = folder_with({HEAD: None}, tie_word_embeddings=True)
    expected = their_logits(folder, IDS)
    assert largest(our_logits(folder, IDS) - expected) <= 1e-4
    parts = load_parts(folder)[1]
    assert parts.head is parts.embed
    assert largest(expected - build("grouped").hf_logits(IDS)) > 1e-2


def test_without_a_head_an_untied_model_is_refused(folder_with: Callable[..., Path]):
    """transformers draws a random head instead, and says so in a warning."""
    folder = folder_with({HEAD: None}, tie_word_embeddings=False)
    _, report = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert HEAD in report["missing_keys"]
    with pytest.raises(ModelFileError, match=r"'lm_head\.weight' is missing"):
        load_parts(folder)


def test_without_a_head_and_without_a_flag_the_embedding_serves(folder_with: Callable[..., Path]):
    """A difference: transformers takes absence for "untied" and draws a random head."""
    folder = folder_with({HEAD: None}, tie_word_embeddings=...)
    _, report = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert HEAD in report["missing_keys"]
    parts = load_parts(folder)[1]
    assert parts.head is parts.embed


@pytest.mark.parametrize("tied", [False, True, ...])
def test_a_model_without_an_embedding_is_refused(folder_with: Callable[..., Path], tied: Any):
    """A difference: with a flag that ties, transformers would use the head for it."""
    folder = folder_with({EMBED: None}, tie_word_embeddings=tied)
    with pytest.raises(ModelFileError, match=r"'model\.embed_tokens\.weight' is missing"):
        load_parts(folder)


def test_a_head_in_another_shard_is_found(tmp_path: Path):
    hf = build("grouped").hf
    hf.save_pretrained(tmp_path, max_shard_size="6KB")
    places = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert places[EMBED] != places[HEAD]
    assert largest(our_logits(tmp_path, IDS) - build("grouped").hf_logits(IDS)) <= 1e-4


# Every tensor needed, none left over

LAYER = "model.layers.1."
NEEDED = [
    *(EMBED, "model.norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight"),
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
]
BIASES = [
    *(f"self_attn.{part}_proj.bias" for part in "qkvo"),
    *(f"mlp.{part}_proj.bias" for part in ("gate", "up", "down")),
]


def full_name(name: str) -> str:
    return name if name.startswith("model.") else LAYER + name


@pytest.mark.parametrize("name", [full_name(name) for name in NEEDED])
def test_a_missing_tensor_is_named(folder_with: Callable[..., Path], name: str):
    folder = folder_with({name: None})
    with pytest.raises(ModelFileError) as caught:
        load_parts(folder)
    assert f"tensor {name!r} is missing" in str(caught.value)
    assert str(caught.value).startswith(str(folder))


@pytest.mark.parametrize("name", [full_name(name) for name in BIASES])
def test_a_missing_bias_is_named(folder_with: Callable[..., Path], name: str):
    with pytest.raises(ModelFileError) as caught:
        load_parts(folder_with({name: None}, "biased"))
    assert f"tensor {name!r} is missing" in str(caught.value)


@pytest.mark.parametrize("name", [full_name(name) for name in BIASES])
def test_a_bias_that_the_settings_deny_is_named(folder_with: Callable[..., Path], name: str):
    """Absence is denial, as in transformers."""
    others = [f"model.layers.{i}.{bias}" for i in range(3) for bias in BIASES]
    removed = {other: None for other in others if other != name}
    for said in (False, None, ...):
        with pytest.raises(ModelFileError) as caught:
            load_parts(folder_with(removed, "biased", attention_bias=said, mlp_bias=said))
        assert f"tensor {name!r} has no place" in str(caught.value)


@pytest.mark.parametrize("part", ["self_attn", "mlp"])
def test_biases_of_one_half_only(folder_with: Callable[..., Path], part: str):
    """attention_bias and mlp_bias are two settings."""
    others = [f"model.layers.{i}.{bias}" for i in range(3) for bias in BIASES]
    removed = {other: None for other in others if part not in other}
    flags = {"attention_bias": part == "self_attn", "mlp_bias": part == "mlp"}
    folder = folder_with(removed, "biased", **flags)
    expected = their_logits(folder, IDS)
    assert largest(our_logits(folder, IDS) - expected) <= 1e-4
    assert largest(build("biased").hf_logits(IDS) - expected) > 1e-2


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.3.input_layernorm.weight",  # a layer more than the settings tell
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.block_sparse_moe.gate.weight",
        "model.layers.00.mlp.up_proj.weight",
        "model.norm.bias",
        "lm_head.bias",
        "embed_tokens.weight",
        "token_embd.weight",
        "rotary_emb.inv_freq.weight",
    ],
)
def test_a_tensor_that_nobody_takes_is_named(folder_with: Callable[..., Path], name: str):
    with pytest.raises(ModelFileError) as caught:
        load_parts(folder_with({name: torch.ones(4)}))
    assert f"tensor {name!r} has no place" in str(caught.value)
    assert caught.value.fix


def test_frequencies_that_older_files_keep_are_passed_over(folder_with: Callable[..., Path]):
    frequencies = {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.full((4,), 9.0) for i in range(3)
    }
    folder = folder_with(frequencies | {"model.rotary_emb.inv_freq": torch.ones(4)})
    assert largest(our_logits(folder, IDS) - build("grouped").hf_logits(IDS)) <= 1e-4


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (EMBED, (43, 32)),
        ("model.norm.weight", (1, 32)),
        (LAYER + "self_attn.q_proj.weight", (16, 32)),
        (LAYER + "self_attn.k_proj.weight", (32, 32)),
        (LAYER + "mlp.up_proj.weight", (32, 48)),
        (LAYER + "mlp.down_proj.weight", (48, 32)),
    ],
)
def test_a_tensor_of_another_shape_is_named(
    folder_with: Callable[..., Path], name: str, shape: tuple[int, ...]
):
    with pytest.raises(ModelFileError) as caught:
        load_parts(folder_with({name: torch.ones(shape)}))
    assert f"tensor {name!r} has shape {list(shape)}" in str(caught.value)


def test_heads_need_not_make_up_the_width(tmp_path: Path):
    """Two heads of 8 over a width of 12: the scale is 1/sqrt(8), and o maps 16 to 12."""
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    hf = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON | sizes)).eval()
    hf.requires_grad_(False)
    draw_weights(hf, seed=1)
    folder = write_folder(hf, "F32", tmp_path / "folder")
    layer = load_parts(folder)[1].layers[0]
    assert (layer.q.shape, layer.k.shape, layer.o.shape) == ((16, 12), (8, 12), (12, 16))
    ids = np.random.default_rng(0).integers(0, 44, N).tolist()
    expected = their_logits(folder, ids)
    assert largest(our_logits(folder, ids) - expected) <= 1e-4
    path = write_gguf(hf, "F32", tmp_path / "model.gguf")
    assert largest(our_logits(path, ids) - expected) <= 1e-4


def test_one_file_is_preferred_to_an_index(tmp_path: Path):
    """As transformers does it, when both are there."""
    build("grouped").hf.save_pretrained(tmp_path, max_shard_size="9KB")
    other = deepcopy(build("grouped").hf)
    draw_weights(other, seed=99)
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path)
    expected = their_logits(tmp_path / "other", IDS)
    assert largest(their_logits(tmp_path, IDS) - expected) == 0
    assert largest(our_logits(tmp_path, IDS) - expected) <= 1e-4
    assert largest(build("grouped").hf_logits(IDS) - expected) > 1e-2


# What is no model


def refused(path: Path, kind: type[LlambdaError]) -> str:
    with pytest.raises(LlambdaError) as caught:
        llambda.load(path)
    assert type(caught.value) is kind
    assert str(caught.value).isprintable()
    assert caught.value.fix
    return str(caught.value)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A folder with all that a model needs."""
    library = made.with_special("smollm")
    size = library.get_vocab_size(with_added_tokens=True)
    settings = COMMON | {"vocab_size": size + 3, "rope_parameters": LLAMA3}
    hf = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
    hf.requires_grad_(False)
    draw_weights(hf, seed=7)
    folder = tmp_path / "whole"
    hf.save_pretrained(folder)
    made.write_folder(folder, library, tokenizer_config={"bos_token": made.BOS, "eos_token": None})
    return folder


def test_a_folder_generates_what_transformers_generates(whole: Path):
    hf = transformers.LlamaForCausalLM.from_pretrained(whole)
    with llambda.load(whole, engine="cached") as model:
        ids = model.tokenizer.encode("The word is x_y 42.")
        library = transformers.PreTrainedTokenizerFast(tokenizer_file=str(whole / "tokenizer.json"))
        assert ids == library.encode("The word is x_y 42.")
        generation = model.generate("The word is x_y 42.", max_tokens=12, temperature=0)
        found = generation.ids
        assert generation.prompt_ids == ids
        assert generation.text == library.decode(found, skip_special_tokens=True)
    with torch.inference_mode():
        for token in found:
            assert token == int(hf(torch.tensor([ids])).logits[0, -1].argmax())
            ids = [*ids, token]
    assert len(set(found)) > 3


@pytest.mark.parametrize("spelling", ["{}/", "{}//", "{}/.", "{}/../whole", "."])
def test_ways_to_name_a_folder(whole: Path, spelling: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(whole)
    with llambda.load(spelling.format(whole)) as model:
        assert model.config.name == "whole"
        assert model.logits([1, 2]).shape == (2, model.config.vocab_size)


def test_a_folder_without_its_parts(whole: Path):
    (whole / "tokenizer.json").rename(whole / "t")
    message = refused(whole, FileAccessError)
    assert message.startswith(f"{whole}: a folder without tokenizer.json. Fetch it from")
    (whole / "t").rename(whole / "tokenizer.json")

    (whole / "model.safetensors").rename(whole / "w")
    message = refused(whole, FileAccessError)
    assert message.startswith(f"{whole}: a folder without model.safetensors")
    (whole / "w").rename(whole / "model.safetensors")

    (whole / "config.json").rename(whole / "c")
    message = refused(whole, ModelFileError)
    assert message.startswith(f"{whole}: a folder without config.json. Give a model's folder")
    (whole / "config.json").mkdir()
    assert "without config.json" in refused(whole, ModelFileError)
    (whole / "config.json").rmdir()
    (whole / "c").rename(whole / "config.json")
    llambda.load(whole).close()


def test_an_empty_folder_is_no_model(tmp_path: Path):
    assert "a folder without config.json" in refused(tmp_path, ModelFileError)


def test_weights_alone_are_no_model(whole: Path):
    message = refused(whole / "model.safetensors", ModelFileError)
    assert "weights without their settings" in message
    assert "Give the folder that holds it" in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_of_the_folder_is_no_model(whole: Path, name: str):
    assert "not a GGUF file" in refused(whole / name, ModelFileError)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"model_type": "llama"'])
def test_a_broken_config(whole: Path, text: str):
    (whole / "config.json").write_text(text)
    assert refused(whole, ModelFileError).startswith(f"{whole / 'config.json'}: ")


def test_settings_and_weights_of_different_models(whole: Path):
    settings = json.loads((whole / "config.json").read_text())
    for changes, words in (
        ({"hidden_size": 36}, "has shape"),
        ({"num_hidden_layers": 4}, "'model.layers.3.input_layernorm.weight' is missing"),
        ({"num_hidden_layers": 2}, "'model.layers.2.input_layernorm.weight' has no place"),
        ({"attention_bias": True}, "'model.layers.0.self_attn.q_proj.bias' is missing"),
    ):
        (whole / "config.json").write_text(json.dumps(settings | changes))
        assert words in refused(whole, ModelFileError)


def test_more_tokens_than_embeddings(whole: Path):
    settings = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps(settings | {"vocab_size": 300}))
    assert "for 300 embeddings" in refused(whole, UnsupportedError)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "bool", "uint16", "int8", "float64"])
def test_a_type_that_no_engine_decodes_is_refused_by_name(whole: Path, kind: str):
    file, name = whole / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(file)
    tensors[name] = torch.ones(tensors[name].shape).to(getattr(torch, kind))
    save_file(tensors, file)
    message = refused(whole, UnsupportedError)
    assert f"{name!r} is stored as" in message
    facts = describe.describe_file(whole)
    assert facts["runs"]["engine"] is None
    assert f"{name!r} is stored as" in facts["runs"]["why"]


def test_a_folder_can_be_described(whole: Path):
    facts = describe.describe_file(whole)
    assert facts["format"] == "Hugging Face folder"
    assert facts["metadata"]["model_type"] == "llama"
    assert facts["runs"]["config"]["rope"]["scaling"] == "llama3"
    with modelfile.open(whole) as file:
        assert facts["parameters"] == sum(file[name].size for name in file)
        assert facts["types"] == {"F32": {"tensors": len(file), "bytes": file.nbytes}}


def test_a_folder_that_may_not_be_searched(whole: Path, monkeypatch: pytest.MonkeyPatch):
    usual = Path.is_file

    def is_file(self: Path) -> bool:
        if self.name == "config.json":
            raise PermissionError(13, "Permission denied", str(self))
        return usual(self)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert "permission denied" in refused(whole, FileAccessError)


def test_a_closed_model_lets_go_of_all_shards(tmp_path: Path):
    build("grouped").hf.save_pretrained(tmp_path, max_shard_size="9KB")
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    with modelfile.open(tmp_path) as file:
        assert maps.read_text().count(os.fspath(tmp_path)) == len(file.maps) > 2
    assert os.fspath(tmp_path) not in maps.read_text()
    with pytest.raises(ModelFileError, match="the file was closed"):
        file[EMBED]


def resident(path: Path) -> int:
    """kB of a file's maps that this process holds in memory."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path.resolve()))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells")
def test_memory_of_one_tensor_is_given_back(tiny_path: Path):
    file = modelfile.open(tiny_path)
    for tensor in file.values():
        decode(tensor)
    held = resident(tiny_path)
    tensor = file["token_embd.weight"]
    values = decode(tensor)
    forget_pages(tensor)
    assert 0 <= tensor.nbytes // 1024 - (held - resident(tiny_path)) <= 8  # part of a page each end
    np.testing.assert_array_equal(decode(tensor), values)
    forget_pages(Tensor(bytes(8), F32, (2,)))  # in no file: nothing happens


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells")
def test_memory_of_a_file_is_given_back(tiny_path: Path):
    file = modelfile.open(tiny_path)
    before = {name: decode(file[name]) for name in file}
    assert resident(tiny_path) > 1000
    file.forget_pages()
    assert resident(tiny_path) == 0
    for name, values in before.items():
        np.testing.assert_array_equal(decode(file[name]), values)
