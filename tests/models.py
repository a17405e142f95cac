"""Tiny random models that differ in one thing each, made by transformers, the outside witness.

Each comes in two forms: as Weights over the very arrays that transformers computes with, and as
a GGUF file, written with the `gguf` package in the row order that llama.cpp gives q and k.
`mutant` plants mistakes.
"""

import inspect
import textwrap
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from llambda.config import ModelConfig, RopeConfig
from llambda.tensor import Tensor
from llambda.weights import Layer, Weights

torch.set_num_threads(1)  # test workers share the cores, and threads that wait for each other spin

COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 44,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}
LLAMA3 = {  # head_dim 8: two of four frequencies lie in the smooth band
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "wide": {  # heads * head_dim = 48, wider than the residual stream
        "hidden_size": 24,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "narrow": {"hidden_size": 40, "head_dim": 6, "rms_norm_eps": 1e-2},
    "biased": {
        "hidden_size": 36,
        "num_attention_heads": 6,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "linear": {"rope_parameters": LINEAR, "tie_word_embeddings": True},
    "llama3": {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
}
PARTS = {  # field of Layer -> its module in transformers, its tensor in GGUF
    "attn_norm": ("input_layernorm", "attn_norm"),
    "q": ("self_attn.q_proj", "attn_q"),
    "k": ("self_attn.k_proj", "attn_k"),
    "v": ("self_attn.v_proj", "attn_v"),
    "o": ("self_attn.o_proj", "attn_output"),
    "ffn_norm": ("post_attention_layernorm", "ffn_norm"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}


@dataclass(frozen=True)
class Model:
    """One model three times: transformers', ours, and (write_gguf) a file."""

    hf: transformers.LlamaForCausalLM
    config: ModelConfig
    weights: Weights[Tensor]

    def hf_logits(self, ids: list[int]) -> np.ndarray:
        """What transformers makes of ids: float32 [n, vocab_size]."""
        with torch.inference_mode():
            return self.hf(torch.tensor([ids])).logits[0].numpy()

    def write_gguf(self, path: Path) -> Path:
        write_gguf(self.hf, path)
        return path


@cache
def build(variant: str) -> Model:
    """The random model of that name, the same in every run."""
    hf_config = transformers.LlamaConfig(**COMMON | VARIANTS[variant])
    hf = transformers.LlamaForCausalLM(hf_config).eval()
    hf.requires_grad_(False)
    draw_weights(hf, seed=zlib.crc32(variant.encode()))
    return Model(hf, model_config(hf_config, variant), model_weights(hf))


def random_ids(variant: str, n: int) -> list[int]:
    """The same n ids in every run."""
    source = np.random.default_rng(zlib.crc32(variant.encode()))
    return source.integers(0, build(variant).config.vocab_size, n).tolist()


def draw_weights(hf: transformers.LlamaForCausalLM, seed: int) -> None:
    """Weights under which every part matters: sharp attention, norms unlike 1, biases unlike 0."""
    source = torch.Generator().manual_seed(seed)
    for name, weight in hf.named_parameters():
        if "norm" in name:
            weight.uniform_(0.5, 1.5, generator=source)
        elif name.endswith("bias"):
            weight.normal_(0, 0.5, generator=source)
        else:
            gain = 1.5 if any(part in name for part in ("embed", "q_proj", "k_proj")) else 1.0
            weight.normal_(0, gain / weight.shape[1] ** 0.5, generator=source)


def model_config(hf: transformers.LlamaConfig, name: str) -> ModelConfig:
    rope = hf.rope_parameters
    scaling = rope["rope_type"].replace("default", "none")
    more = {"factor": rope["factor"]} if scaling != "none" else {}
    if scaling == "llama3":
        more["low_freq_factor"] = rope["low_freq_factor"]
        more["high_freq_factor"] = rope["high_freq_factor"]
        more["original_context"] = rope["original_max_position_embeddings"]
    return ModelConfig(
        name=name,
        n_layers=hf.num_hidden_layers,
        dim=hf.hidden_size,
        n_heads=hf.num_attention_heads,
        n_kv_heads=hf.num_key_value_heads,
        head_dim=hf.head_dim,
        ffn_dim=hf.intermediate_size,
        vocab_size=hf.vocab_size,
        context_length=hf.max_position_embeddings,
        norm_eps=hf.rms_norm_eps,
        rope=RopeConfig(hf.head_dim, rope["rope_theta"], scaling, **more),
        tied=hf.tie_word_embeddings,
        attention_bias=hf.attention_bias,
        mlp_bias=hf.mlp_bias,
    )


def model_weights(hf: transformers.LlamaForCausalLM) -> Weights[Tensor]:
    """Weights over transformers' own memory: the row order is already the canonical one."""
    state = hf.state_dict()

    def tensor(name: str) -> Tensor | None:
        return Tensor.from_numpy(state[name].numpy()) if name in state else None

    embed = tensor("model.embed_tokens.weight")
    layers = []
    for i in range(hf.config.num_hidden_layers):
        names = {part: f"model.layers.{i}.{module}" for part, (module, _) in PARTS.items()}
        matrices = {part: tensor(f"{name}.weight") for part, name in names.items()}
        biases = {f"{part}_bias": tensor(f"{name}.bias") for part, name in names.items()}
        no_norm = {name: bias for name, bias in biases.items() if "norm" not in name}
        layers.append(Layer(**matrices, **no_norm))
    return Weights(
        embed=embed,
        layers=tuple(layers),
        final_norm=tensor("model.norm.weight"),
        head=embed if hf.config.tie_word_embeddings else tensor("lm_head.weight"),
    )


def paired_rows(n_heads: int, head_dim: int) -> list[int]:
    """Which row of Hugging Face's q or k each GGUF row is: the two that turn together, in turn."""
    half = head_dim // 2
    return [
        head * head_dim + pair + side * half
        for head in range(n_heads)
        for pair in range(half)
        for side in (0, 1)
    ]


def write_gguf(hf: transformers.LlamaForCausalLM, path: Path) -> None:
    """The model as llama.cpp's converter would write it, in F32."""
    c, state = hf.config, hf.state_dict()
    rope = c.rope_parameters
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_vocab_size(c.vocab_size)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":  # stored as divisors of the plain frequencies
        plain = rope["rope_theta"] ** -(np.arange(0, c.head_dim, 2) / c.head_dim)
        scaled = hf.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    if not c.tie_word_embeddings:
        writer.add_tensor("output.weight", state["lm_head.weight"].numpy())
    rows = {
        "q": paired_rows(c.num_attention_heads, c.head_dim),
        "k": paired_rows(c.num_key_value_heads, c.head_dim),
    }
    for i in range(c.num_hidden_layers):
        for part, (module, name) in PARTS.items():
            for kind in ("weight", "bias"):
                array = state.get(f"model.layers.{i}.{module}.{kind}")
                if array is not None:
                    ordered = np.ascontiguousarray(array.numpy()[rows.get(part, slice(None))])
                    writer.add_tensor(f"blk.{i}.{name}.{kind}", ordered)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mutant(function: Callable[..., Any], *edits: tuple[str, str]) -> Callable[..., Any]:
    """The function with passages of its source replaced. Each must stand in it exactly once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edits:
        assert source.count(old) == 1, f"{function.__qualname__} no longer says {old!r}: edit anew"
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(
        compile(source, f"<mutant of {function.__qualname__}>", "exec"), function.__globals__, made
    )
    return made[function.__name__]
