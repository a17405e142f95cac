"""The two tiny models, written out by hand in PyTorch.

``Llama`` and ``GPT2`` name their parameters as the Hugging Face classes do (without the
``model.`` / ``transformer.`` prefix), so that exporting is a matter of adding that prefix.

Letters in the shape comments: B batch, T positions, D model width, H query heads,
K key/value heads, E width of one head, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of the llama-architecture model. Every matrix side is a multiple of 32 (Q8_0)."""

    vocab: int = 1024
    dim: int = 128
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 320
    context: int = 512
    rope_base: float = 10000.0
    eps: float = 1e-5


@dataclass(frozen=True)
class GPT2Config:
    """Shape of the GPT-2-architecture model; its feed-forward is 4 x dim, as in GPT-2."""

    vocab: int = 1024
    dim: int = 96
    layers: int = 2
    heads: int = 4
    context: int = 256
    eps: float = 1e-5


# ---------------------------------------------------------------- llama


class RMSNorm(nn.Module):
    """Divide each vector by its root mean square, then scale each coordinate."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rope_tables(config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles, each [context, E].

    Hugging Face's half-split order: coordinate i turns together with coordinate i + E/2,
    so the E/2 frequencies appear twice, one copy per half.
    """
    half = config.head_dim // 2
    frequency = config.rope_base ** (-torch.arange(half).float() / half)
    angle = torch.outer(torch.arange(config.context).float(), frequency)  # [context, E/2]
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the coordinate pairs (i, i + E/2) of x [B, heads, T, E] by their angles [T, E]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaAttention(nn.Module):
    """Grouped-query attention: H query heads share K key/value heads."""

    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.dim, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        b, t, _ = x.shape
        q, k, v = (
            proj(x).view(b, t, -1, self.c.head_dim).transpose(1, 2)  # [B, H or K, T, E]
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.c.heads // self.c.kv_heads  # query head h reads key/value head h // group
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, E]
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class SwiGLU(nn.Module):
    """The gated feed-forward network: down(silu(gate(x)) * up(x))."""

    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.gate_proj = nn.Linear(c.dim, c.ffn, bias=False)
        self.up_proj = nn.Linear(c.dim, c.ffn, bias=False)
        self.down_proj = nn.Linear(c.ffn, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    """One layer: normalise, attend, add; normalise, feed forward, add."""

    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(c.dim, c.eps)
        self.self_attn = LlamaAttention(c)
        self.post_attention_layernorm = RMSNorm(c.dim, c.eps)
        self.mlp = SwiGLU(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The whole decoder. The output matrix is the embedding matrix ("tied")."""

    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(LlamaBlock(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.dim, c.eps)
        cos, sin = rope_tables(c)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        init_weights(self, c.layers, ("o_proj", "down_proj"))

    def forward(self, ids: Tensor) -> Tensor:  # [B, T] -> logits [B, T, V]
        t = ids.shape[1]
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.norm(x) @ self.embed_tokens.weight.T


# ---------------------------------------------------------------- GPT-2


class Conv1D(nn.Module):
    """GPT-2's linear layer: it stores the weight as [in, out] and has a bias."""

    def __init__(self, n_in: int, n_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:  # [B, T, in] -> [B, T, out]
        return x @ self.weight + self.bias


class GPT2Attention(nn.Module):
    """Multi-head attention; c_attn computes queries, keys and values in one product."""

    def __init__(self, c: GPT2Config):
        super().__init__()
        self.heads = c.heads
        self.c_attn = Conv1D(c.dim, 3 * c.dim)
        self.c_proj = Conv1D(c.dim, c.dim)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2)  # [B, H, T, E]
            for part in self.c_attn(x).split(d, dim=-1)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(out.transpose(1, 2).reshape(b, t, d))


class GPT2MLP(nn.Module):
    """The plain feed-forward network, with the tanh form of GELU."""

    def __init__(self, c: GPT2Config):
        super().__init__()
        self.c_fc = Conv1D(c.dim, 4 * c.dim)
        self.c_proj = Conv1D(4 * c.dim, c.dim)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GPT2Block(nn.Module):
    """One layer: normalise, attend, add; normalise, feed forward, add."""

    def __init__(self, c: GPT2Config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c.dim, c.eps)
        self.attn = GPT2Attention(c)
        self.ln_2 = nn.LayerNorm(c.dim, c.eps)
        self.mlp = GPT2MLP(c)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """The whole decoder, with learned position vectors and a tied output matrix."""

    def __init__(self, c: GPT2Config):
        super().__init__()
        self.config = c
        self.wte = nn.Embedding(c.vocab, c.dim)
        self.wpe = nn.Embedding(c.context, c.dim)
        self.h = nn.ModuleList(GPT2Block(c) for _ in range(c.layers))
        self.ln_f = nn.LayerNorm(c.dim, c.eps)
        init_weights(self, c.layers, ("c_proj",))

    def forward(self, ids: Tensor) -> Tensor:  # [B, T] -> logits [B, T, V]
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


# ---------------------------------------------------------------- both


def init_weights(model: nn.Module, layers: int, residual: tuple[str, ...]) -> None:
    """Draw every matrix from a normal distribution.

    A matrix that reads width n gets deviation 1/sqrt(n). The matrices that write into the
    residual stream (named by ``residual``) are smaller by sqrt(2 * layers), the number of
    additions, so that the stream keeps its size. Embeddings are small because the tied
    output matrix would otherwise start with large, confident logits.
    """
    for name, p in model.named_parameters():
        if p.dim() != 2:
            continue  # norm scales stay 1, biases stay 0
        owner = name.split(".")[-2]
        if owner in ("embed_tokens", "wte", "wpe"):
            std = 0.05
        else:
            conv = owner.startswith("c_")  # Conv1D is [in, out], Linear is [out, in]
            std = 1 / math.sqrt(p.shape[0] if conv else p.shape[1])
            if owner in residual:
                std /= math.sqrt(2 * layers)
        nn.init.normal_(p, std=std)


def generate(model: nn.Module, ids: list[int], count: int, temperature: float, seed: int):
    """Continue ``ids`` by ``count`` tokens: greedily at temperature 0, else by sampling."""
    source = torch.Generator().manual_seed(seed)
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([ids[-model.config.context :]]))[0, -1]  # [V]
            if temperature == 0:
                ids.append(int(logits.argmax()))
            else:
                p = torch.softmax(logits / temperature, dim=-1)
                ids.append(int(torch.multinomial(p, 1, generator=source)))
    return ids
