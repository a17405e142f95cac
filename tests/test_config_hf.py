"""config.json in every spelling: transformers says what it means, and nothing is passed over."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from models import COMMON, LINEAR, LLAMA3, VARIANTS, build, model_config, mutant, random_ids
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from llambda import config_hf
from llambda.config import ModelConfig, RopeConfig
from llambda.config_hf import IGNORED, TOKEN_IDS, from_hf
from llambda.errors import LlambdaError, ModelFileError, UnsupportedError
from llambda.kernels.rope import frequencies

WHERE = Path("models/small/config.json")
SIZES = {
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 44,
    "max_position_embeddings": 128,
}
GOOD = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}

# Settings as published with these models; what they say is known, so that it can be compared.
SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "use_cache": True,
    "vocab_size": 49152,
}
LLAMA32_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
TINYLLAMA_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.35.0",
    "use_cache": True,
    "vocab_size": 32000,
}
LLAMA2_7B = {  # knows neither attention_bias nor rope_theta nor head_dim
    "_name_or_path": "somewhere/Llama-2-7b-hf",
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}


def as_read(values: dict[str, Any]) -> dict[str, Any]:
    """The object as it comes out of a file."""
    return json.loads(json.dumps(values))


def read(**changes: Any) -> ModelConfig:
    """The config of a good file with some settings changed; ... takes one out."""
    changed = {key: value for key, value in (GOOD | changes).items() if value is not ...}
    return from_hf(as_read(changed), WHERE)


def refused(kind: type[LlambdaError] = UnsupportedError, **changes: Any) -> str:
    """The message with which a file of these settings is refused."""
    with pytest.raises(LlambdaError) as caught:
        read(**changes)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"{WHERE}: ")
    assert str(caught.value).isprintable()
    assert caught.value.fix
    return str(caught.value)


def theirs(values: dict[str, Any], folder: Path) -> transformers.LlamaConfig:
    """What transformers makes of the same file."""
    (folder / "config.json").write_text(json.dumps(values))
    return transformers.AutoConfig.from_pretrained(folder)


def same_frequencies(rope: RopeConfig, hf: transformers.LlamaConfig) -> bool:
    """Equal within four units in the last place: a power, a quotient and a mixture apart."""
    expected = LlamaRotaryEmbedding(hf).inv_freq.numpy()
    found = frequencies(rope)
    return found.shape == expected.shape and bool(
        np.all(np.abs(found - expected) <= 2.0**-21 * expected)
    )


# Sizes


def test_the_sizes():
    assert read() == ModelConfig(
        name="small",
        n_layers=3,
        dim=60,
        n_heads=6,
        n_kv_heads=2,
        head_dim=10,
        ffn_dim=96,
        vocab_size=44,
        context_length=128,
        norm_eps=1e-6,
        rope=RopeConfig(10),
        tied=None,
        attention_bias=False,
        mlp_bias=False,
    )


def test_the_model_is_called_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "some-model"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for where in (folder, Path("."), Path("../some-model"), tmp_path / "some-model" / ""):
        assert from_hf(GOOD, where / "config.json").name == "some-model"


def test_what_is_absent_has_transformers_defaults(tmp_path: Path):
    hf = theirs({"model_type": "llama", "num_attention_heads": 6, "hidden_size": 60}, tmp_path)
    ours = read(num_key_value_heads=...)
    assert ours.n_kv_heads == hf.num_key_value_heads == 6
    assert ours.head_dim == hf.head_dim == 10
    assert ours.norm_eps == hf.rms_norm_eps == 1e-6
    assert ours.rope.base == hf.rope_parameters["rope_theta"] == 10000.0
    assert (ours.attention_bias, ours.mlp_bias) == (hf.attention_bias, hf.mlp_bias)
    assert (hf.hidden_act, hf.attention_bias) == ("silu", False)


def test_the_width_of_a_head_may_be_given():
    assert read(head_dim=16).head_dim == 16
    assert read(head_dim=16).rope.dim == 16
    assert read(head_dim=None).head_dim == 10
    assert read(hidden_size=64, head_dim=8).head_dim == 8, "6 heads need not divide the width"


def test_null_is_absence():
    without = read(num_key_value_heads=...)
    assert read(num_key_value_heads=None, head_dim=None, rope_scaling=None) == without
    for key in ("rope_theta", "rope_parameters", "hidden_act", "sliding_window", "anything"):
        assert read(**{key: None}) == read()
    assert read(architectures=None) == read(architectures=...) == read()
    assert read(tie_word_embeddings=None, attention_bias=None, mlp_bias=None) == read()


@pytest.mark.parametrize("key", [key for key in SIZES if key != "num_key_value_heads"])
def test_a_missing_size_is_named(key: str):
    for absent in (..., None):
        assert f"the setting {key!r} is missing" in refused(ModelFileError, **{key: absent})


@pytest.mark.parametrize("key", [*SIZES, "head_dim"])
@pytest.mark.parametrize("value", [0, -1, 64.0, 1.5, "64", True, {"a": 1}, [], [64, 32], [True]])
def test_a_size_that_is_none(key: str, value: Any):
    kind = UnsupportedError if value == [64, 32] else ModelFileError
    message = refused(kind, **{key: value})
    assert key in message
    assert repr(value[0] if value == [True] else value) in message


@pytest.mark.parametrize(
    "value", [0, 0.0, -1e-5, math.nan, math.inf, 10**400, "1e-5", True, [], {}, [1e-5]]
)
def test_numbers_that_are_none(value: Any):
    for key in ("rms_norm_eps", "rope_theta"):
        assert f"{key} is " in refused(ModelFileError, **{key: value})


@pytest.mark.parametrize("value", [0, 1, "true", "no", [], {}, 0.5])
def test_flags_that_are_none(value: Any):
    for key in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
        message = refused(ModelFileError, **{key: value})
        assert f"{key} is {value!r}, where true or false is needed" in message


def test_flags():
    for value in (True, False):
        config = read(tie_word_embeddings=value, attention_bias=value, mlp_bias=not value)
        assert (config.tied, config.attention_bias, config.mlp_bias) == (value, value, not value)


def test_sizes_that_do_not_belong_together():
    assert "6 heads cannot share 4" in refused(ModelFileError, num_key_value_heads=4)
    assert "a head of 7 elements" in refused(ModelFileError, head_dim=7)
    assert "a head of 1 elements" in refused(ModelFileError, num_attention_heads=64)


# Rotation: one meaning, four spellings

SPELLINGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "old, with type": lambda rope: {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": inner_part(rope, "type"),
    },
    "old, with rope_type": lambda rope: {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": inner_part(rope, "rope_type"),
    },
    "old, with both": lambda rope: {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": inner_part(rope, "rope_type") | {"type": rope["rope_type"]},
    },
    "of transformers 5": lambda rope: {"rope_parameters": rope},
    "of transformers 5, from an old file": lambda rope: {
        "rope_parameters": rope | {"type": rope["rope_type"]}
    },
    "mixed": lambda rope: {
        "rope_theta": rope["rope_theta"],
        "rope_parameters": inner_part(rope, "rope_type"),
    },
}
ROPES = {
    "default": ({"rope_type": "default", "rope_theta": 500.0}, RopeConfig(8, 500.0)),
    "linear": (LINEAR, RopeConfig(8, 500.0, "linear", 2.5)),
    "llama3": (LLAMA3, RopeConfig(8, 100.0, "llama3", 32.0, 1.0, 4.0, 64)),
}


def inner_part(rope: dict[str, Any], name: str) -> dict[str, Any]:
    """Everything but the base, with this name for the type."""
    rest = {key: value for key, value in rope.items() if key not in ("rope_type", "rope_theta")}
    return {name: rope["rope_type"], **rest}


def complaints(reader: Callable[..., ModelConfig], folder: Path) -> list[str]:
    """The spellings that a reader of config.json misunderstands."""
    found = []
    for kind, (rope, expected) in ROPES.items():
        for spelling, spell in SPELLINGS.items():
            values = GOOD | {"head_dim": 8} | spell(rope)
            try:
                ours = reader(as_read(values), WHERE).rope
            except UnsupportedError:
                found.append(f"{kind}, {spelling}: refused")
                continue
            if ours != expected or not same_frequencies(ours, theirs(values, folder)):
                found.append(f"{kind}, {spelling}")
    return found


def test_every_spelling_means_the_same(tmp_path: Path):
    assert complaints(from_hf, tmp_path) == []


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        ("rope_from_hf", "inner or base or", "base or"),  # rope_theta within is not looked at
        ("rope_from_hf", "inner or base or", "inner or"),  # rope_theta at the top is not
        ("rope_from_hf", '("rope_parameters", "rope_scaling")', '("rope_scaling",)'),
        ("rope_from_hf", '("rope_parameters", "rope_scaling")', '("rope_parameters",)'),
        ("scaled_rope", "kind = older", "kind = None"),  # `type` is not
        ("scaled_rope", 'linear", rope.', 'linear", 1 / rope.'),
        ("scaled_rope", "factor, low, high, context", "8.0, low, high, context"),
        ("scaled_rope", "factor, low, high, context", "factor, high, low, context"),
        ("scaled_rope", "factor, low, high, context", "factor, low, high, 8192"),
    ],
)
def test_a_planted_mistake_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, old: str, new: str
):
    wrong = mutant(getattr(config_hf, function), (old, new))
    monkeypatch.setattr(config_hf, function, wrong)
    assert complaints(from_hf, tmp_path)


def test_the_numbers_of_llama_3():
    """By hand from Meta's formula: two of four frequencies lie in the smooth band."""
    rope = read(head_dim=8, rope_parameters=LLAMA3).rope
    expected = [1.0, 0.23668711, 3.7253549e-3, 9.882118e-4]
    np.testing.assert_allclose(frequencies(rope), expected, rtol=1e-6)


def test_without_any_setting_the_base_is_ten_thousand():
    for empty in ({}, {"rope_scaling": {}}, {"rope_parameters": {}}, {"rope_scaling": None}):
        assert read(**empty).rope == RopeConfig(10, 10000.0)
    assert read(rope_parameters={"rope_theta": 700}).rope == RopeConfig(10, 700.0)
    assert read(rope_theta=700).rope == RopeConfig(10, 700.0)
    assert read(rope_scaling={"rope_type": None, "type": None}).rope == RopeConfig(10)


def test_a_linear_scaling_may_know_where_it_started(tmp_path: Path):
    """transformers takes no notice of the original length either."""
    values = GOOD | {"rope_parameters": LINEAR | {"original_max_position_embeddings": 16}}
    rope = from_hf(as_read(values), WHERE).rope
    assert rope == RopeConfig(10, 500.0, "linear", 2.5)
    assert same_frequencies(rope, theirs(values, tmp_path))


def test_two_settings_that_agree_are_one():
    both = {"rope_type": "linear", "factor": 2.0}
    rope = read(rope_scaling=both, rope_parameters=both, rope_theta=9).rope
    assert rope == RopeConfig(10, 9.0, "linear", 2.0)
    assert read(rope_theta=9, rope_parameters={"rope_theta": 9.0}).rope == RopeConfig(10, 9.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_scaling": {"factor": 2.0, "type": "linear", "rope_type": "llama3"}}, "type = 'lin"),
        ({"rope_theta": 9, "rope_parameters": {"rope_theta": 8}}, "rope_theta = 8.0"),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": LINEAR}, "rope_scaling = {"),
        ({"rope_scaling": {"factor": 8.0}}, "rope_scaling.factor = 8.0"),  # of no type
        ({"rope_scaling": {"rope_type": "default", "factor": 8.0}}, "factor = 8.0"),
        ({"rope_scaling": LINEAR | {"attention_factor": 0.5}}, "attention_factor = 0.5"),
        ({"rope_scaling": LINEAR | {"beta_fast": 32}}, "rope_scaling.beta_fast = 32"),
        ({"rope_parameters": {"full_attention": LINEAR}}, "rope_parameters.full_attention = {"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_interleaved": True}, "rope_interleaved = True"),
    ],
)
def test_settings_that_contradict_or_are_not_understood(changes: dict[str, Any], words: str):
    assert words in refused(**changes)


@pytest.mark.parametrize(
    "kind",
    [
        *("yarn", "dynamic", "longrope", "su", "mrope", "proportional", "Linear", ""),
        *(5, True, 0.5, ["linear"], {}, {"a": 1}, []),
    ],
)
def test_another_scaling_is_refused_by_name(kind: Any):
    scaling = {"factor": 4.0, "original_max_position_embeddings": 64}
    for place in ("rope_scaling", "rope_parameters"):
        for name in ("type", "rope_type"):
            message = refused(**{place: scaling | {name: kind}})
            assert f"{place}.rope_type = {kind!r} is not supported" in message


@pytest.mark.parametrize("value", [[], [1], "linear", "", 0, 2.0, False, True])
def test_a_scaling_that_is_no_object(value: Any):
    for key in ("rope_scaling", "rope_parameters"):
        assert f"{key} is {value!r}, where an object is" in refused(ModelFileError, **{key: value})


def test_scalings_without_their_numbers():
    for key in ("factor", "low_freq_factor", "high_freq_factor"):
        for value in (None, "4", 0, math.nan, True):
            message = refused(ModelFileError, rope_parameters=LLAMA3 | {key: value})
            assert f"rope_parameters.{key}" in message
    for value in (None, 64.0, 0, "64"):
        changed = LLAMA3 | {"original_max_position_embeddings": value}
        message = refused(ModelFileError, rope_parameters=changed)
        assert "rope_parameters.original_max_position_embeddings" in message
    message = refused(ModelFileError, rope_scaling={"type": "linear"})
    assert "'rope_scaling.factor' is missing" in message


@pytest.mark.parametrize("high", [1.0, 0.5])
def test_a_smooth_band_must_have_a_width(high: float):
    """Its width is a divisor."""
    message = refused(ModelFileError, rope_parameters=LLAMA3 | {"high_freq_factor": high})
    assert f"high_freq_factor is {high}, where a number above 1.0 is needed" in message


# What is not implemented is refused with key and value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window", 4096),
        ("use_sliding_window", True),
        ("hidden_act", "gelu"),
        ("hidden_act", "relu"),
        ("hidden_act", ["silu"]),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("auto_map", {"AutoModelForCausalLM": "modeling_x.X"}),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("no_rope_layers", [1, 1, 0]),
        ("num_local_experts", 8),
        ("qk_norm", True),
        ("attn_logit_softcapping", 50.0),
        ("logits_scaling", 8.0),
        ("embedding_multiplier", 12.0),
        ("residual_multiplier", 0.22),
        ("attention_multiplier", 0.015),
        ("is_encoder_decoder", True),
        ("add_cross_attention", True),
        ("cross_attention_hidden_size", 64),
        ("tie_encoder_decoder", True),
        ("pruned_heads", {"0": [1]}),
        ("original_max_position_embeddings", 64),
        ("rms_norm_epsilon", 1e-5),
        ("a key of tomorrow", "x\ny"),
        ("", 1),
    ],
)
def test_what_would_change_the_numbers_is_refused(key: str, value: Any):
    assert f"{key} = {value!r} is not supported" in refused(**{key: value})


def test_a_long_value_is_cut_short():
    message = refused(strange=list(range(10_000)))
    assert "strange = [0, 1, 2, " in message
    assert len(message) < 250


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "silu"),
        ("hidden_act", "swish"),
        ("rope_interleaved", False),
        ("partial_rotary_factor", 1.0),
        ("is_encoder_decoder", False),
        ("add_cross_attention", False),
        ("tie_encoder_decoder", False),
        ("pruned_heads", {}),
        ("eos_token_id", [1, 2, 3]),
        ("bos_token_id", None),
    ],
)
def test_what_changes_nothing_is_accepted(key: str, value: Any):
    assert read(**{key: value}) == read()


@pytest.mark.parametrize("key", sorted(IGNORED))
def test_what_is_ignored_may_be_anything(key: str):
    for value in (0, [7], {"a": None}, "x", True):
        assert read(**{key: value}) == read()


@pytest.mark.parametrize("key", TOKEN_IDS)
def test_token_ids_are_of_their_kind(key: str):
    for value in (None, 0, -1, 7, [], [7, 8]):
        assert read(**{key: value}) == read()
    for value in ("7", True, 1.0, [7, "8"], [[7]], {"a": 7}):
        words = f"{key} is {value!r}, where a token id or a list of them"
        assert words in refused(ModelFileError, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_interleaved", 0),
        ("is_encoder_decoder", 0.0),
        ("partial_rotary_factor", True),
        ("add_bos_token", "false"),
        ("architectures", ""),
        ("architectures", {}),
        ("architectures", False),
    ],
)
def test_a_neutral_setting_is_of_its_kind(key: str, value: Any):
    """For Python 0 is False, and an empty text is as good as none."""
    assert key in (message := refused(**{key: value}))
    assert repr(value) in message


def test_what_is_ignored_changes_no_logit():
    """Of the ignored settings, those that LlamaConfig itself has."""
    changes = {
        "attention_dropout": 0.9,
        "bos_token_id": 9,
        "dtype": "float32",
        "eos_token_id": [3, 4],
        "initializer_range": 0.5,
        "pad_token_id": 5,
        "pretraining_tp": 2,
        "use_cache": False,
    }
    known = set(transformers.LlamaConfig().to_dict()) & {*IGNORED, *TOKEN_IDS}
    assert set(changes) <= known
    model, ids = build("grouped"), random_ids("grouped", 9)
    changed = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON | changes)).eval()
    changed.load_state_dict(model.hf.state_dict())
    with torch.inference_mode():
        logits = changed(torch.tensor([ids])).logits[0].numpy()
    assert np.array_equal(logits, model.hf_logits(ids))


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "llama4", "Llama", "", "x\n", 5, ["llama"]])
def test_another_model_type_is_refused_by_name(kind: Any):
    message = refused(model_type=kind)
    assert f"model_type {kind!r}, architectures" in message
    assert "llama architecture" in message


@pytest.mark.parametrize(
    "classes",
    [
        ["MistralForCausalLM"],
        ["LlamaModel"],
        ["LlamaForSequenceClassification"],
        ["LlamaForCausalLM", "LlamaForCausalLM"],
        "LlamaForCausalLM",
        {"a": 1},
        [["LlamaForCausalLM"]],
    ],
)
def test_another_class_is_refused_by_name(classes: Any):
    assert f"architectures {classes!r} is not supported" in refused(architectures=classes)


def test_a_file_that_is_no_models():
    for absent in (..., None):
        message = refused(ModelFileError, model_type=absent)
        assert "model_type is missing: not a model's config.json" in message


# Files as they are found and as they are written


def sizes(*numbers: Any, rope: RopeConfig, tied: bool) -> ModelConfig:
    return ModelConfig("small", *numbers, 1e-5, rope, tied, attention_bias=False, mlp_bias=False)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            SMOLLM2_135M,
            sizes(30, 576, 9, 3, 64, 1536, 49152, 8192, rope=RopeConfig(64, 1e5), tied=True),
            id="SmolLM2-135M",
        ),
        pytest.param(
            LLAMA32_1B,
            sizes(
                *(16, 2048, 32, 8, 64, 8192, 128256, 131072),
                rope=RopeConfig(64, 5e5, "llama3", 32.0, 1.0, 4.0, 8192),
                tied=True,
            ),
            id="Llama-3.2-1B",
        ),
        pytest.param(
            TINYLLAMA_1B,
            sizes(22, 2048, 32, 4, 64, 5632, 32000, 2048, rope=RopeConfig(64), tied=False),
            id="TinyLlama-1.1B",
        ),
        pytest.param(
            LLAMA2_7B,
            sizes(32, 4096, 32, 32, 128, 11008, 32000, 4096, rope=RopeConfig(128), tied=False),
            id="Llama-2-7B",
        ),
    ],
)
def test_published_files(values: dict[str, Any], expected: ModelConfig, tmp_path: Path):
    config = from_hf(as_read(values), WHERE)
    assert config == expected
    hf = theirs(values, tmp_path)
    assert config == model_config(hf, "small")
    assert same_frequencies(config.rope, hf)
    # The same file after transformers has read it and written it anew.
    hf.save_pretrained(tmp_path / "small")
    written = json.loads((tmp_path / "small" / "config.json").read_text())
    assert "rope_scaling" not in written
    assert from_hf(written, WHERE) == config


WRITTEN: dict[str, dict[str, Any]] = {
    **VARIANTS,
    "no groups": {"num_key_value_heads": None},
    "one group": {"num_key_value_heads": 1},
    "no width of a head": {"head_dim": None},
    "no rope": {"rope_parameters": None},
    "two ends": {"eos_token_id": [3, 5], "bos_token_id": None, "pad_token_id": 0},
    "labels": {"num_labels": 3, "problem_type": "single_label_classification"},
    "names": {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}},
    "training": {"attention_dropout": 0.1, "initializer_range": 0.5, "use_cache": False},
    "outputs": {"output_attentions": True, "output_hidden_states": True, "return_dict": False},
    "pieces": {"pretraining_tp": 2, "chunk_size_feed_forward": 4},
    "half": {"dtype": "bfloat16"},
    "old half": {"torch_dtype": "float16"},
    "from somewhere": {"name_or_path": "some/where", "tokenizer_class": "LlamaTokenizer"},
    "decoder": {"is_decoder": True},
    "tied": {"tie_word_embeddings": True},
    "half biased": {"attention_bias": True},
    "old linear": {
        "rope_parameters": None,
        "rope_theta": 9.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    "long": {
        "max_position_embeddings": 1_000_000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    },
}


@pytest.mark.parametrize("variant", WRITTEN)
def test_files_as_transformers_writes_them(variant: str, tmp_path: Path):
    hf = transformers.LlamaConfig(
        **COMMON | {"architectures": ["LlamaForCausalLM"]} | WRITTEN[variant]
    )
    hf.save_pretrained(tmp_path / "small")
    written = json.loads((tmp_path / "small" / "config.json").read_text())
    assert from_hf(written, tmp_path / "small" / "config.json") == model_config(hf, "small")
    assert same_frequencies(from_hf(written, WHERE).rope, hf)
    everything = as_read(hf.to_dict() | {"model_type": "llama"})  # the defaults too
    assert len(everything) > len(written)
    assert from_hf(everything, WHERE) == from_hf(written, WHERE)


def test_a_model_as_transformers_writes_it(tmp_path: Path):
    build("biased").hf.save_pretrained(tmp_path / "biased")
    written = json.loads((tmp_path / "biased" / "config.json").read_text())
    assert from_hf(written, tmp_path / "biased" / "config.json") == build("biased").config


# Anything at all

KEYS = [
    *(*GOOD, "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"),
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act", "pruned_heads"),
    *("partial_rotary_factor", "rope_interleaved", "torch_dtype", "eos_token_id", "unheard of"),
]
INNER = [
    *("rope_type", "type", "factor", "rope_theta", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "partial_rotary_factor", "unheard of"),
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70),
    st.sampled_from([2**63, 10**400, 1e308, -0.0, math.nan, math.inf]),
    st.floats(0, 100),
    st.sampled_from(["llama", "silu", "linear", "llama3", "default", "yarn", "", "a\nb", "\ud800"]),
)
objects = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=5)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(KEYS), objects, max_size=4))
def test_no_file_makes_it_crash(changes: dict[str, Any]):
    try:
        config = from_hf(as_read(GOOD | changes), WHERE)
    except LlambdaError as error:
        assert str(error).startswith(f"{WHERE}: ")
        assert str(error).isprintable()
        assert len(str(error)) < 600
        assert error.fix
    else:
        assert config.n_heads % config.n_kv_heads == 0
        assert config.head_dim % 2 == 0
        assert 0 < config.rope.base < math.inf
        assert config.rope.scaling in ("none", "linear", "llama3")
