"""The reference against transformers, on models that differ in every setting it knows."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from models import VARIANTS, Model, build, mutant, random_ids

from llambda import config, gguf, oracle, weights
from llambda.engines.base import activation_names
from llambda.errors import InputError, MissingPackageError
from llambda.oracle import Oracle

N = 70  # positions 0 to 69


def largest(difference: np.ndarray) -> float:
    return float(np.abs(difference).max())


def double_logits(model: Model, ids: list[int]) -> np.ndarray:
    """What transformers computes in float64, once its norms no longer turn back to float32."""
    hf = copy.deepcopy(model.hf).double()
    for parent in list(hf.modules()):
        for name, child in parent.named_children():
            if type(child).__name__ == "LlamaRMSNorm":
                size, eps = child.weight.shape, child.variance_epsilon
                norm = torch.nn.RMSNorm(size, eps, elementwise_affine=False)
                setattr(parent, name, torch.nn.Sequential(norm, Scale(child.weight)))
    with torch.inference_mode():
        return hf(torch.tensor([ids])).logits[0].numpy()


class Scale(torch.nn.Module):
    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_logits_equal_transformers(variant: str):
    model, ids = build(variant), random_ids(variant, N)
    logits = Oracle(model.config, model.weights).logits(ids)
    expected = model.hf_logits(ids)
    assert logits.dtype == np.float32
    assert logits.shape == expected.shape == (N, model.config.vocab_size)
    assert largest(logits - expected) <= 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_float64_logits_equal_transformers_far_more_closely(variant: str):
    model, ids = build(variant), random_ids(variant, N)
    logits = Oracle(model.config, model.weights, "float64").logits(ids)
    assert logits.dtype == np.float64
    assert largest(logits - double_logits(model, ids)) <= 1e-12


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gguf_file_gives_the_same_logits(variant: str, tmp_path):
    model, ids = build(variant), random_ids(variant, N)
    path = model.write_gguf(tmp_path / "model.gguf")
    with gguf.open(path) as file:
        read = config.from_gguf(file.metadata, path)
        logits = Oracle(read, weights.from_gguf(file, read)).logits(ids)
    assert largest(logits - model.hf_logits(ids)) <= 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_frequencies_are_those_of_transformers(variant: str):
    model = build(variant)
    expected = model.hf.model.rotary_emb.inv_freq
    torch.testing.assert_close(oracle.frequencies(model.config.rope), expected, rtol=3e-7, atol=0)


def test_llama3_frequencies_by_hand():
    rope = config.RopeConfig(8, 100.0, "llama3", 32.0, 1.0, 4.0, 64)
    by_hand = torch.tensor([1.0, 0.23668711, 3.7253549e-3, 9.882118e-4])
    torch.testing.assert_close(oracle.frequencies(rope), by_hand, rtol=3e-7, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_activation_has_its_documented_shape(dtype: str):
    model = build("wide")
    c = model.config
    seen = Oracle(c, model.weights, dtype).forward(random_ids("wide", 5))
    per_layer = {
        "attn_norm": (5, c.dim),
        "q": (5, c.n_heads, c.head_dim),
        "k": (5, c.n_kv_heads, c.head_dim),
        "v": (5, c.n_kv_heads, c.head_dim),
        "q_rope": (5, c.n_heads, c.head_dim),
        "k_rope": (5, c.n_kv_heads, c.head_dim),
        "attn_heads": (5, c.n_heads, c.head_dim),
        "attn_out": (5, c.dim),
        "attn_residual": (5, c.dim),
        "ffn_norm": (5, c.dim),
        "gate": (5, c.ffn_dim),
        "up": (5, c.ffn_dim),
        "swiglu": (5, c.ffn_dim),
        "ffn_out": (5, c.dim),
        "ffn_residual": (5, c.dim),
    }
    expected = {"embed": (5, c.dim), "final_norm": (5, c.dim), "logits": (5, c.vocab_size)}
    for i in range(c.n_layers):
        expected |= {f"blk.{i}.{name}": shape for name, shape in per_layer.items()}
    assert {name: value.shape for name, value in seen.items()} == expected
    assert list(seen) == activation_names(c.n_layers)
    assert {value.dtype for value in seen.values()} == {np.dtype(dtype)}


PLANTED = {  # name -> (variant, where, name there, passage, what stands in its place)
    "neighbours turn together": (
        "grouped",
        Oracle,
        "rotate",
        ("x[..., :half].contiguous(), x[..., half:].contiguous()", "x[..., ::2], x[..., 1::2]"),
    ),
    "turned backwards": ("grouped", Oracle, "rotate", ("angles.sin()", "-angles.sin()")),
    "key heads tiled": (
        "grouped",
        Oracle,
        "block",
        (
            'a["k_rope"].repeat_interleave(c.n_groups, dim=1)',
            'a["k_rope"].repeat(1, c.n_groups, 1)',
        ),
    ),
    "value heads tiled": (
        "wide",
        Oracle,
        "block",
        ('"v"].repeat_interleave(c.n_groups, dim=1)', '"v"].repeat(1, c.n_groups, 1)'),
    ),
    "scale of the wrong width": ("wide", Oracle, "block", ("sqrt(c.head_dim)", "sqrt(c.dim)")),
    "one position ahead": ("grouped", Oracle, "block", ("diagonal=1", "diagonal=2")),
    "the other half gated": (
        "grouped",
        Oracle,
        "block",
        ('silu(a["gate"]) * a["up"]', 'silu(a["up"]) * a["gate"]'),
    ),
    "no eps": ("narrow", Oracle, "norm", ("mean_square + self.config.norm_eps", "mean_square")),
    "biases dropped": ("biased", Oracle, "linear", ("y + bias.to(self.dtype)", "y")),
    "linear factor ignored": (
        "linear",
        oracle,
        "frequencies",
        ("plain / rope.factor\n", "plain\n"),
    ),
    "llama3 band divided whole": (
        "llama3",
        oracle,
        "frequencies",
        (
            "(1 - mix) * plain / rope.factor + mix * plain",
            "((1 - mix) * plain + mix * plain) / rope.factor",
        ),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_far_outside_the_bound(name: str, monkeypatch):
    variant, where, function, edit = PLANTED[name]
    monkeypatch.setattr(where, function, mutant(getattr(where, function), edit))
    model, ids = build(variant), random_ids(variant, N)
    logits = Oracle(model.config, model.weights).logits(ids)
    assert largest(logits - model.hf_logits(ids)) > 1e-2


def test_the_factors_of_a_file_are_needed(tmp_path):
    model, ids = build("llama3"), random_ids("llama3", N)
    path = model.write_gguf(tmp_path / "model.gguf")
    with gguf.open(path) as file:
        read = config.from_gguf(file.metadata, path)
        found = weights.from_gguf(file, read)
    assert found.rope_factors is not None
    without = copy.copy(found)
    object.__setattr__(without, "rope_factors", None)
    assert largest(Oracle(read, without).logits(ids) - model.hf_logits(ids)) > 1e-2


@pytest.mark.parametrize("ids", [[], [-1], [44], [0, 1, 1000], [1.5]])
def test_impossible_ids_are_refused(ids: list[int]):
    model = build("grouped")
    with pytest.raises(InputError, match="token id"):
        Oracle(model.config, model.weights).forward(ids)


def test_an_unknown_dtype_is_refused():
    model = build("grouped")
    with pytest.raises(InputError, match="bfloat16"):
        Oracle(model.config, model.weights, "bfloat16")


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    model = build("grouped")
    monkeypatch.setitem(sys.modules, "torch", None)  # what an import of it then meets: not there
    with pytest.raises(MissingPackageError, match=r"pip install torch.*README"):
        Oracle(model.config, model.weights)


def test_torch_is_imported_only_by_making_an_oracle():
    code = "import sys, llambda.check, llambda.oracle; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
