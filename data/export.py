"""Write trained models to disk: Hugging Face folders, GGUF files and recorded answers.

Everything here is a pure function of the two models and the tokenizer file, so it can be
repeated from the checkpoints without training.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from models import GPT2, Llama, generate
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor, nn

BOS = "<|endoftext|>"
VERSION = "5.24.0"  # the transformers release whose file layout is followed
GOLDEN_PROMPTS = ("The class statement", "The for statement", "An object")
GOLDEN_TOKENS = 48  # continuation length
GOLDEN_POSITIONS = 32  # positions with full logits

# Hugging Face module -> GGUF tensor, within one layer.
GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_json(path: Path, value: object) -> None:
    """Write readable JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- Hugging Face


def llama_config(model: Llama) -> dict:
    """config.json of a LlamaForCausalLM."""
    c = model.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "dtype": "float32",
        "eos_token_id": 0,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.dim,
        "initializer_range": 0.02,
        "intermediate_size": c.ffn,
        "max_position_embeddings": c.context,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "pad_token_id": None,
        "pretraining_tp": 1,
        "rms_norm_eps": c.eps,
        "rope_parameters": {"rope_theta": c.rope_base, "rope_type": "default"},
        "tie_word_embeddings": True,
        "transformers_version": VERSION,
        "use_cache": True,
        "vocab_size": c.vocab,
    }


def gpt2_config(model: GPT2) -> dict:
    """config.json of a GPT2LMHeadModel."""
    c = model.config
    return {
        "activation_function": "gelu_new",
        "add_cross_attention": False,
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "dtype": "float32",
        "embd_pdrop": 0.0,
        "eos_token_id": 0,
        "initializer_range": 0.02,
        "layer_norm_epsilon": c.eps,
        "model_type": "gpt2",
        "n_embd": c.dim,
        "n_head": c.heads,
        "n_inner": None,
        "n_layer": c.layers,
        "n_positions": c.context,
        "pad_token_id": None,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "transformers_version": VERSION,
        "use_cache": True,
        "vocab_size": c.vocab,
    }


def write_hugging_face(folder: Path, config: dict, weights: dict, tokenizer: Tokenizer) -> None:
    """A folder that ``from_pretrained`` reads. The tied output matrix is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    context = config.get("max_position_embeddings") or config["n_positions"]
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": 0, "transformers_version": VERSION},
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": BOS,
            "clean_up_tokenization_spaces": False,
            "eos_token": BOS,
            "model_max_length": context,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))


def prefixed(model: nn.Module, prefix: str) -> dict[str, Tensor]:
    """The weights under the names that the Hugging Face class gives them."""
    return {prefix + name: w.contiguous() for name, w in model.state_dict().items()}


# ---------------------------------------------------------------- GGUF


def interleave_heads(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a query or key matrix [heads * E, D] to llama.cpp's order.

    Hugging Face rotates row i of a head together with row i + E/2; llama.cpp rotates
    neighbours 2i and 2i + 1. So new row 2i is old row i, new row 2i + 1 old row i + E/2.
    """
    rows, width = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)


def gguf_tensors(model: Llama) -> dict[str, np.ndarray]:
    """All tensors under their GGUF names, queries and keys in llama.cpp's row order."""
    tensors = {}
    for name, weight in model.state_dict().items():
        array = weight.numpy()
        module = name.removesuffix(".weight")
        if module.endswith("q_proj"):
            array = interleave_heads(array, model.config.heads)
        elif module.endswith("k_proj"):
            array = interleave_heads(array, model.config.kv_heads)
        if module.startswith("layers."):
            _, layer, inner = module.split(".", 2)
            new = f"blk.{layer}.{GGUF_LAYER_NAMES[inner]}"
        else:
            new = {"embed_tokens": "token_embd", "norm": "output_norm"}[module]
        tensors[new + ".weight"] = np.ascontiguousarray(array)
    return tensors


def add_metadata(writer: GGUFWriter, model: Llama, quantized: bool) -> None:
    """The keys that say what the model is and which shape it has."""
    c = model.config
    writer.add_custom_alignment(32)
    writer.add_type("model")
    writer.add_name("tiny")
    writer.add_description("A tiny llama-architecture model trained on Python's documentation")
    writer.add_license("apache-2.0")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0 if quantized else LlamaFileType.ALL_F32)
    if quantized:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.dim)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.ffn)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_layer_norm_rms_eps(c.eps)
    writer.add_vocab_size(c.vocab)


def add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    """The keys of a byte-level BPE tokenizer, as in tokenizer.json."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    kinds = [gguf.TokenType.CONTROL if t == BOS else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def write_gguf(path: Path, model: Llama, tokenizer: Tokenizer, quantized: bool) -> None:
    """One GGUF file: all F32, or Q8_0 matrices with F32 norms. Tied: no output.weight."""
    writer = GGUFWriter(path, "llama")
    add_metadata(writer, model, quantized)
    add_tokenizer(writer, tokenizer)
    for name, array in gguf_tensors(model).items():
        if quantized and array.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---------------------------------------------------------------- recorded answers


def logits_of(model: nn.Module, ids: list[int]) -> np.ndarray:
    """The logits at every position, float32 [T, V]."""
    with torch.no_grad():
        return model(torch.tensor([ids]))[0].numpy()


def golden_case(model: nn.Module, tokenizer: Tokenizer, prompt: str) -> dict:
    """What the model answers to ``prompt``, greedily, and how sure it is of each token."""
    ids = tokenizer.encode(prompt).ids
    whole = generate(model, ids, GOLDEN_TOKENS, temperature=0, seed=0)
    best = np.sort(logits_of(model, whole)[len(ids) - 1 : -1], axis=-1)  # [48, V]
    margins = (best[:, -1] - best[:, -2]).tolist()
    return {
        "prompt": prompt,
        "ids": ids,
        "continuation_ids": whole[len(ids) :],
        "continuation": tokenizer.decode(whole[len(ids) :]),
        "margins": [round(m, 4) for m in margins],
        "min_margin": round(min(margins), 4),
    }


def write_golden(out: Path, name: str, model: nn.Module, tokenizer: Tokenizer) -> None:
    """``name_golden.json`` with the greedy answers, ``name_golden.npz`` with logits.

    The npz holds ``ids`` [T] and ``logits`` [T, V] of the first prompt, and ``long_ids`` [32]
    and ``long_logits`` [32, V] of that prompt with the beginning of its continuation.
    """
    cases = [golden_case(model, tokenizer, prompt) for prompt in GOLDEN_PROMPTS]
    ids = cases[0]["ids"]
    long_ids = (ids + cases[0]["continuation_ids"])[:GOLDEN_POSITIONS]
    write_json(out / f"{name}_golden.json", {"model": name, "cases": cases})
    np.savez_compressed(
        out / f"{name}_golden.npz",
        ids=np.array(ids, np.int64),
        logits=logits_of(model, ids),
        long_ids=np.array(long_ids, np.int64),
        long_logits=logits_of(model, long_ids),
    )


def export_all(tiny: Llama, gpt2: GPT2, tokenizer: Tokenizer, out: Path) -> None:
    """Write every file of the folder ``out``."""
    write_hugging_face(out / "tiny", llama_config(tiny), prefixed(tiny, "model."), tokenizer)
    gpt2_weights = prefixed(gpt2, "transformer.")
    write_hugging_face(out / "tiny-gpt2", gpt2_config(gpt2), gpt2_weights, tokenizer)
    write_gguf(out / "tiny.gguf", tiny, tokenizer, quantized=False)
    write_gguf(out / "tiny-q8_0.gguf", tiny, tokenizer, quantized=True)
    for name, model in (("tiny", tiny), ("tiny-gpt2", gpt2)):
        write_golden(out, name, model, tokenizer)
