"""ModelConfig from a Hugging Face config.json, in all its spellings.

Older files have rope_theta at the top and a rope_scaling with `type` or `rope_type`; transformers
5 writes one rope_parameters. All of them say the same few things.
"""

from pathlib import Path
from typing import Any

from .config import ARCHITECTURE, ModelConfig, RopeConfig, Settings, checked, short
from .errors import ModelFileError, UnsupportedError

DEFAULT_BASE = 10000.0

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

# Settings of training, of bookkeeping and of text generation: none of them touches a logit.
IGNORED = frozenset(
    """
    _attn_implementation_autoset _name_or_path attention_dropout bad_words_ids begin_suppress_tokens
    chunk_size_feed_forward decoder_start_token_id diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id id2label initializer_range is_decoder is_llama_config
    label2id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores prefix pretraining_tp
    problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class
    top_k top_p torch_dtype torchscript transformers.js_config transformers_version typical_p
    unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
    """.split()
)


def from_hf(values: dict[str, Any], where: Path) -> ModelConfig:
    """ModelConfig from config.json's object. Raises ModelFileError or UnsupportedError."""
    settings = Settings(values, where)
    kind = settings.take("model_type")
    if kind is None:
        raise ModelFileError(
            "model_type is missing: not a model's config.json",
            where=where,
            fix="Give a model's folder as transformers saves it.",
        )
    classes = settings.take("architectures", [])
    if kind != ARCHITECTURE or classes not in ([], ["LlamaForCausalLM"]):
        raise UnsupportedError(
            f"model_type {short(kind)}, architectures {short(classes)} is not supported",
            where=where,
            fix="Use a model of the llama architecture, such as SmolLM2 or Llama 3.",
        )
    dim = settings.count("hidden_size")
    n_heads = settings.count("num_attention_heads")
    default_head_dim = max(dim // n_heads, 1)
    head_dim = settings.count("head_dim", default_head_dim)
    config = ModelConfig(
        name=where.parent.resolve().name,
        n_layers=settings.count("num_hidden_layers"),
        dim=dim,
        n_heads=n_heads,
        n_kv_heads=settings.count("num_key_value_heads", n_heads),
        head_dim=head_dim,
        ffn_dim=settings.count("intermediate_size"),
        vocab_size=settings.count("vocab_size"),
        context_length=settings.count("max_position_embeddings"),
        norm_eps=settings.positive("rms_norm_eps", 1e-6),
        rope=rope_from_hf(settings, head_dim),
        tied=settings.flag("tie_word_embeddings"),
        attention_bias=settings.flag("attention_bias") or False,
        mlp_bias=settings.flag("mlp_bias") or False,
    )
    for key in TOKEN_IDS:
        settings.token_ids(key)
    settings.expect("hidden_act", "silu", "swish")
    settings.expect("rope_interleaved", False)
    settings.expect("partial_rotary_factor", 1.0)
    settings.expect("is_encoder_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("cross_attention_hidden_size")
    settings.expect("tie_encoder_decoder", False)
    settings.expect("pruned_heads", {})
    settings.finish(ignored=IGNORED)
    return checked(config, where)


def rope_from_hf(settings: Settings, head_dim: int) -> RopeConfig:
    """RoPE from rope_parameters, or from rope_theta and rope_scaling."""
    base = settings.positive("rope_theta", DEFAULT_BASE) if "rope_theta" in settings else None
    found = [
        (key, value)
        for key in ("rope_parameters", "rope_scaling")
        if (value := settings.take(key)) is not None
    ]
    for key, value in found:
        if not isinstance(value, dict):
            raise settings.invalid(key, value, "an object")
    if len(found) == 2 and found[0][1] != found[1][1]:
        raise settings.unsupported(*found[1])
    if not found:
        return RopeConfig(head_dim, base or DEFAULT_BASE)
    key, value = found[0]
    rope = Settings(value, settings.where, prefix=f"{key}.")
    inner = rope.positive("rope_theta") if "rope_theta" in rope else None
    if base is not None and inner is not None and base != inner:
        raise rope.unsupported("rope_theta", inner)
    result = scaled_rope(rope, head_dim, inner or base or DEFAULT_BASE)
    rope.expect("partial_rotary_factor", 1.0)
    rope.finish()
    return result


def scaled_rope(rope: Settings, head_dim: int, base: float) -> RopeConfig:
    """The kind of scaling and its numbers."""
    kind, older = rope.take("rope_type"), rope.take("type")
    if kind is None:
        kind = older
    elif older is not None and older != kind:
        raise rope.unsupported("type", older)
    match kind:
        case None | "default":
            return RopeConfig(head_dim, base)
        case "linear":
            rope.take("original_max_position_embeddings")
            return RopeConfig(head_dim, base, "linear", rope.positive("factor"))
        case "llama3":
            factor = rope.positive("factor")
            low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
            if low >= high:
                raise rope.invalid("high_freq_factor", high, f"a number above {low}")
            context = rope.count("original_max_position_embeddings")
            return RopeConfig(head_dim, base, "llama3", factor, low, high, context)
        case _:
            raise rope.unsupported("rope_type", kind)
