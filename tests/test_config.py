"""ModelConfig from GGUF metadata made by hand: what is read, and what is refused with its name.

The rules for RoPE's keys are those of llama.cpp (load_hparams in src/llama-model.cpp).
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from llambda.config import ModelConfig, RopeConfig, Settings, from_gguf
from llambda.errors import LlambdaError, ModelFileError, UnsupportedError

WHERE = Path("some") / "model.gguf"
GOOD: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Small",
    "general.file_type": 7,
    "llama.block_count": 3,
    "llama.embedding_length": 40,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 96,
    "llama.context_length": 512,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.rope.dimension_count": 10,
    "llama.rope.freq_base": 500000.0,
    "llama.vocab_size": 77,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}
COUNTS = [
    "block_count",
    "embedding_length",
    "attention.head_count",
    "feed_forward_length",
    "context_length",
]


def read(changes: dict[str, Any] | None = None, without: str = "") -> ModelConfig:
    """The config of GOOD with some changes; keys without a dot before them are the model's own."""
    own = {f"llama.{key}": value for key, value in (changes or {}).items()}
    metadata = {key: value for key, value in (GOOD | own).items() if key != f"llama.{without}"}
    return from_gguf(metadata, WHERE)


def refused(
    changes: dict[str, Any], kind: type[LlambdaError] = UnsupportedError, without: str = ""
) -> str:
    """The message with which the changed settings are refused."""
    with pytest.raises(LlambdaError) as caught:
        read(changes, without)
    assert type(caught.value) is kind, caught.value
    assert str(caught.value).startswith(f"{WHERE}: ")
    assert str(caught.value).isprintable()
    assert caught.value.fix
    return str(caught.value)


def test_all_that_is_read():
    assert read() == ModelConfig(
        name="Small",
        n_layers=3,
        dim=40,
        n_heads=4,
        n_kv_heads=2,
        head_dim=10,
        ffn_dim=96,
        vocab_size=77,
        context_length=512,
        norm_eps=1e-6,
        rope=RopeConfig(dim=10, base=500000.0),
    )
    assert read().n_groups == 2
    assert (read().tied, read().attention_bias, read().mlp_bias) == (None, None, None)


def test_the_metadata_are_left_alone():
    before = dict(GOOD)
    from_gguf(GOOD, WHERE)
    assert before == GOOD


@pytest.mark.parametrize("key", [*COUNTS, "attention.layer_norm_rms_epsilon"])
def test_a_required_setting_that_is_missing_is_named(key: str):
    message = refused({}, ModelFileError, without=key)
    assert f"'llama.{key}' is missing" in message


def test_settings_that_may_be_missing():
    assert read(without="attention.head_count_kv").n_kv_heads == 4
    assert read(without="rope.dimension_count").rope.dim == 10
    assert read(without="rope.freq_base").rope.base == 10000.0
    assert read(without="vocab_size").vocab_size == 3
    metadata = {key: value for key, value in GOOD.items() if key != "general.name"}
    assert from_gguf(metadata, WHERE).name == "model"


@pytest.mark.parametrize("tokens", [None, "abc", 3, {"a": 1}])
def test_without_a_vocabulary_its_size_is_missing(tokens: Any):
    metadata = GOOD | {"tokenizer.ggml.tokens": tokens}
    del metadata["llama.vocab_size"]
    with pytest.raises(ModelFileError, match=r"'llama\.vocab_size' is missing"):
        from_gguf(metadata, WHERE)
    with pytest.raises(ModelFileError, match=r"llama\.vocab_size is 0"):
        from_gguf(metadata | {"tokenizer.ggml.tokens": []}, WHERE)


@pytest.mark.parametrize(
    "value", ["3", True, False, 0, -1, 3.0, 3.5, math.nan, math.inf, [], [0], ["3"], b"3"]
)
@pytest.mark.parametrize(
    "key", [*COUNTS, "attention.head_count_kv", "attention.key_length", "vocab_size"]
)
def test_a_count_that_is_no_whole_number_of_at_least_one_is_refused(key: str, value: Any):
    message = refused({key: value}, ModelFileError)
    assert f"llama.{key} is " in message
    assert "a whole number of at least 1 is needed" in message


@pytest.mark.parametrize("value", ["x", True, 0, 0.0, -1e-5, math.nan, math.inf, -math.inf, [1.0]])
@pytest.mark.parametrize(
    "key",
    [
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.scaling.factor",
        "rope.scale_linear",
    ],
)
def test_a_number_that_is_not_finite_and_positive_is_refused(key: str, value: Any):
    message = refused({key: value}, ModelFileError)
    assert f"llama.{key} is {value!r}" in message


def test_whole_numbers_serve_as_numbers_if_a_float_can_hold_them():
    assert read({"rope.freq_base": 10**6}).rope.base == 1e6
    assert type(read({"rope.freq_base": 10**6}).rope.base) is float
    refused({"rope.freq_base": 10**400}, ModelFileError)


@pytest.mark.parametrize("number", [2**31, 2**32 + 5, 2**63, 2**64 - 1])
def test_u64_counts_are_kept_whole(number: int):
    big = {"context_length": number, "vocab_size": number, "n_layers": number}
    settings = {"context_length": number, "vocab_size": number, "block_count": number}
    assert read(settings) == dataclasses.replace(read(), **big)


# Heads


def test_a_number_for_each_layer_must_be_the_same_number():
    assert read({"attention.head_count_kv": [2, 2, 2]}).n_kv_heads == 2
    assert read({"feed_forward_length": [96] * 3}).ffn_dim == 96
    message = refused({"attention.head_count_kv": [2, 1, 2]})
    assert "llama.attention.head_count_kv = [2, 1, 2] is not supported" in message
    assert "llama.feed_forward_length = " in refused({"feed_forward_length": [96, 96, 95]})


def test_head_dim_is_a_setting_of_its_own():
    wide = {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16}
    assert read(wide).head_dim == 16
    assert read(wide).dim == 40
    assert read({"attention.key_length": 16}, without="rope.dimension_count").rope.dim == 16


def test_values_of_another_width_are_refused():
    message = refused({"attention.key_length": 10, "attention.value_length": 8})
    assert "llama.attention.value_length = 8 is not supported" in message
    assert "value_length = 20" in refused({"attention.value_length": 20})


@pytest.mark.parametrize("dim", [8, 5, 12, 0, "10"])
def test_a_partial_rotation_is_refused(dim: Any):
    message = refused({"rope.dimension_count": dim})
    assert f"llama.rope.dimension_count = {dim!r} is not supported" in message


def test_heads_must_share_equally():
    assert "4 heads cannot share 3" in refused({"attention.head_count_kv": 3}, ModelFileError)
    assert "4 heads cannot share 8" in refused({"attention.head_count_kv": 8}, ModelFileError)


def test_a_head_must_rotate_in_pairs():
    message = refused({"attention.key_length": 9, "rope.dimension_count": 9}, ModelFileError)
    assert "9 elements cannot be rotated in pairs" in message
    message = refused({"attention.head_count": 64}, ModelFileError, without="rope.dimension_count")
    assert "a head of 1 elements" in message


# Positions


@pytest.mark.parametrize(
    ("keys", "scaling", "factor"),
    [
        ({}, "none", 1.0),
        ({"type": "none"}, "none", 1.0),
        ({"type": "none", "factor": 4.0}, "none", 1.0),
        ({"type": "linear", "factor": 4.0}, "linear", 4.0),
        ({"type": "linear"}, "linear", 1.0),
        ({"factor": 4.0}, "linear", 4.0),  # llama.cpp takes linear when no type is named
        ({"factor": 1.0}, "none", 1.0),
        ({"type": "linear", "factor": 4.0, "original_context_length": 128}, "linear", 4.0),
        ({"type": "none", "finetuned": False}, "none", 1.0),
        ({"type": "linear", "factor": 2, "attn_factor": 1.0}, "linear", 2.0),
    ],
)
def test_scaling(keys: dict[str, Any], scaling: str, factor: float):
    rope = read({f"rope.scaling.{key}": value for key, value in keys.items()}).rope
    assert (rope.scaling, rope.factor) == (scaling, factor)
    assert (rope.dim, rope.base) == (10, 500000.0)


def test_the_key_of_older_files():
    old = {"rope.scale_linear": 8.0}
    assert read(old).rope == RopeConfig(10, 500000.0, "linear", 8.0)
    assert read(old | {"rope.scaling.type": "linear"}).rope.factor == 8.0
    assert read(old | {"rope.scaling.factor": 2.0}).rope.factor == 2.0
    assert read(old | {"rope.scaling.type": "none"}).rope.scaling == "none"
    assert read({"rope.scale_linear": 1.0}).rope.scaling == "none"


@pytest.mark.parametrize("kind", ["yarn", "longrope", "llama3", "Linear", "", 1, ["linear"], True])
def test_another_scaling_is_refused_by_name(kind: Any):
    message = refused({"rope.scaling.type": kind, "rope.scaling.factor": 4.0})
    assert f"llama.rope.scaling.type = {kind!r} is not supported" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("attention.causal", False),
        ("attention.sliding_window", 4096),
        ("attention.scale", 0.1),
        ("attention.layer_norm_epsilon", 1e-5),
        ("attention.clamp_kqv", 8.0),
        ("attention.key_length_mla", 8),
        ("rope.scaling.attn_factor", 0.5),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("rope.freq_base_swa", 10000.0),
        ("logit_scale", 2.0),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.2),
        ("use_parallel_residual", True),
        ("anything.else", "x\ny"),
    ],
)
def test_what_would_change_the_numbers_is_refused_with_key_and_value(key: str, value: Any):
    message = refused({key: value})
    assert f"llama.{key} = {value!r} is not supported" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 0),
        ("expert_used_count", 0),
        ("attention.causal", True),
        ("attention.sliding_window", 0),
        ("tensor_data_layout", "Meta AI original pth"),
    ],
)
def test_what_changes_nothing_is_accepted(key: str, value: Any):
    assert read({key: value}) == read()


def test_a_long_value_is_cut_short():
    message = refused({"strange": list(range(10_000))})
    assert "llama.strange = [0, 1, 2, " in message
    assert len(message) < 250


# Other files


@pytest.mark.parametrize(
    "name", ["qwen2", "gemma3", "gpt2", "llama4", "Llama", "", "clip\n", 5, ["llama"]]
)
def test_another_architecture_is_refused_by_name(name: Any):
    with pytest.raises(UnsupportedError) as caught:
        from_gguf(GOOD | {"general.architecture": name}, WHERE)
    assert f"architecture {name!r} is not supported" in str(caught.value)
    assert "llama" in caught.value.fix


@pytest.mark.parametrize("metadata", [{}, {"general.name": "x"}, {"llama.block_count": 3}])
def test_a_file_without_an_architecture_holds_no_model(metadata: dict[str, Any]):
    with pytest.raises(ModelFileError, match=r"general\.architecture is missing"):
        from_gguf(metadata, WHERE)


def test_keys_of_other_namespaces_concern_nobody_here():
    more = {"general.tags": ["x"], "tokenizer.ggml.model": "gpt2", "llamas.scale": 2, "x.y": 1}
    assert from_gguf(GOOD | more, WHERE) == read()


# Settings by themselves


def test_what_is_left_over_is_refused():
    settings = Settings({"a": 1, "b": None, "c": 2.5}, WHERE, "top.")
    assert "a" in settings
    assert "b" not in settings, "None counts as absent"
    assert settings.count("a") == 1
    with pytest.raises(UnsupportedError, match=r"top\.c = 2\.5 is not supported"):
        settings.finish()
    settings.finish(ignored=["c"])
    settings.finish()


def test_flags():
    settings = Settings({"yes": True, "no": False, "one": 1, "word": "true"}, WHERE)
    assert [settings.flag(key) for key in ("yes", "no", "absent")] == [True, False, None]
    for key in ("one", "word"):
        with pytest.raises(ModelFileError, match=f"{key} is .* true or false is needed"):
            settings.flag(key)
