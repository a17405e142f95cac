"""The reference: a llama-architecture decoder in PyTorch, every activation named. Lesson 04.

Written from the papers and from the published model's behaviour, sharing no operation with
`kernels/`: a mistake has to be made twice, in two ways of writing, before the two agree on it. It
keeps no cache, makes no chunks and is in no hurry. PyTorch is imported here and nowhere else.

The truth it computes is that of the decoded weights, in float32 or float64. Rotation angles are
float32 in both, because they belong to the model, which was trained with them so.

Beside it stands PyTorch in a hurry, to compare speeds with: its own fused operations, and a cache.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from .config import ModelConfig, RopeConfig
from .engines.base import Engine, Floats, State, Trace, check_call, check_ids
from .errors import InputError, MissingPackageError
from .quants import decode
from .tensor import Tensor
from .weights import Layer, Sized, Weights, float32_bytes

if TYPE_CHECKING:
    import torch

Activations = dict[str, npt.NDArray[Any]]


class Oracle:
    """The reference for one model.

    dtype : "float32" or "float64", in which everything but the angles is computed; weights are
        held as float32, which they are exactly, and converted where they are used
    Raises MissingPackageError where PyTorch is not installed.
    """

    def __init__(self, config: ModelConfig, weights: Weights[Tensor], dtype: str = "float32"):
        try:
            import torch
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "PyTorch, the reference to compare with, is not installed",
                fix="pip install torch, or see README.md for the course's environment.",
            ) from error
        if dtype not in ("float32", "float64"):
            raise InputError(f"no reference in {dtype!r}", fix="Choose float32 or float64.")
        self.config = config
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.weights = weights.map(lambda weight: torch.from_numpy(decode(weight)))
        self.turning = frequencies(config.rope)
        if self.weights.rope_factors is not None:
            self.turning = self.turning / self.weights.rope_factors

    def logits(self, ids: Sequence[int]) -> npt.NDArray[Any]:
        """What follows each id, given those before it: [n, vocab_size]."""
        return self.forward(ids)["logits"]

    def forward(self, ids: Sequence[int]) -> Activations:
        """Every activation of ids at positions 0 to n - 1, named as `engines.base` names them."""
        import torch

        tokens = torch.tensor(check_ids(ids, self.config.vocab_size), dtype=torch.int64)
        if len(tokens) == 0:
            raise InputError("there are no token ids to evaluate", fix="Give at least one.")
        seen: dict[str, torch.Tensor] = {}
        with torch.inference_mode():
            x = seen["embed"] = self.weights.embed[tokens].to(self.dtype)
            angles = torch.outer(torch.arange(len(tokens), dtype=torch.float32), self.turning)
            for i, layer in enumerate(self.weights.layers):
                block = self.block(x, layer, angles)
                seen.update({f"blk.{i}.{name}": value for name, value in block.items()})
                x = block["ffn_residual"]
            seen["final_norm"] = self.norm(x, self.weights.final_norm)
            seen["logits"] = self.linear(seen["final_norm"], self.weights.head)
        return {name: value.numpy() for name, value in seen.items()}

    def block(
        self, x: "torch.Tensor", layer: Layer["torch.Tensor"], angles: "torch.Tensor"
    ) -> dict[str, "torch.Tensor"]:
        """One decoder block on x [n, dim], with the angles [n, head_dim / 2] of its positions."""
        import torch

        c, n = self.config, len(x)
        a: dict[str, torch.Tensor] = {}
        a["attn_norm"] = self.norm(x, layer.attn_norm)
        a["q"] = self.linear(a["attn_norm"], layer.q, layer.q_bias).view(n, c.n_heads, c.head_dim)
        a["k"] = self.linear(a["attn_norm"], layer.k, layer.k_bias).view(n, -1, c.head_dim)
        a["v"] = self.linear(a["attn_norm"], layer.v, layer.v_bias).view(n, -1, c.head_dim)
        a["q_rope"] = self.rotate(a["q"], angles)
        a["k_rope"] = self.rotate(a["k"], angles)
        keys = a["k_rope"].repeat_interleave(c.n_groups, dim=1)  # one for each query head
        values = a["v"].repeat_interleave(c.n_groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", a["q_rope"], keys) / math.sqrt(c.head_dim)
        future = torch.ones(n, n, dtype=torch.bool).triu(diagonal=1)
        shares = scores.masked_fill(future, -math.inf).softmax(dim=-1)
        a["attn_heads"] = torch.einsum("hqk,khd->qhd", shares, values)
        a["attn_out"] = self.linear(a["attn_heads"].reshape(n, -1), layer.o, layer.o_bias)
        a["attn_residual"] = x + a["attn_out"]
        a["ffn_norm"] = self.norm(a["attn_residual"], layer.ffn_norm)
        a["gate"] = self.linear(a["ffn_norm"], layer.gate, layer.gate_bias)
        a["up"] = self.linear(a["ffn_norm"], layer.up, layer.up_bias)
        a["swiglu"] = torch.nn.functional.silu(a["gate"]) * a["up"]
        a["ffn_out"] = self.linear(a["swiglu"], layer.down, layer.down_bias)
        a["ffn_residual"] = a["attn_residual"] + a["ffn_out"]
        return a

    def linear(
        self, x: "torch.Tensor", weight: "torch.Tensor", bias: "torch.Tensor | None" = None
    ) -> "torch.Tensor":
        y = x @ weight.to(self.dtype).T
        return y if bias is None else y + bias.to(self.dtype)

    def norm(self, x: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * (mean_square + self.config.norm_eps).rsqrt() * weight.to(self.dtype)

    def rotate(self, x: "torch.Tensor", angles: "torch.Tensor") -> "torch.Tensor":
        """Pairs (i, i + head_dim/2) of x [n, heads, head_dim] as complex numbers, turned."""
        import torch

        half = x.shape[-1] // 2
        point = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous())
        turn = torch.complex(angles.cos().to(self.dtype), angles.sin().to(self.dtype))
        turned = point * turn[:, None, :]
        return torch.cat((turned.real, turned.imag), dim=-1)


def frequencies(rope: RopeConfig) -> "torch.Tensor":
    """Radians a position for each pair: float32 [dim / 2]."""
    import torch

    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    plain = 1.0 / rope.base**exponents
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "none":
        return plain
    # Llama 3.1: by how many positions one full turn takes, compared with the trained context.
    turn = 2 * math.pi / plain
    longest = rope.original_context / rope.low_freq_factor
    shortest = rope.original_context / rope.high_freq_factor
    mix = (rope.original_context / turn - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - mix) * plain / rope.factor + mix * plain
    scaled = torch.where(turn > longest, plain / rope.factor, between)
    return torch.where(turn < shortest, plain, scaled)


class TorchState(State):
    """The keys and values of every position so far."""

    def __init__(self, engine: "TorchEngine", context: int):
        import torch

        super().__init__(engine, context)
        c = engine.config
        self.cache = torch.zeros(c.n_layers, 2, 1, c.n_kv_heads, context, c.head_dim)


class TorchEngine(Engine):
    """What PyTorch does with the decoded weights in float32, on so many threads. It has no trace.

    Raises MissingPackageError where PyTorch is not installed.
    """

    name = "pytorch"

    def __init__(self, config: ModelConfig, weights: Weights[Tensor], threads: int = 1):
        self.config = config
        self.threads = threads
        self.oracle = Oracle(config, weights)

    @staticmethod
    def weight_bytes(weights: Weights[Sized]) -> int:
        """All of them as float32."""
        return float32_bytes(weights)

    def new_state(self, context: int) -> State:
        return TorchState(self, context)

    def forward(
        self,
        state: State,
        ids: Sequence[int],
        all_logits: bool = False,
        trace: Trace | None = None,
    ) -> Floats:
        import torch

        ids = check_call(self, state, ids)
        assert isinstance(state, TorchState) and trace is None
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode():
                logits = self._evaluate(state, torch.tensor(ids), all_logits).numpy()
        finally:
            torch.set_num_threads(before)
        state.ids += ids
        return logits if all_logits else logits[0]

    def _evaluate(self, state: TorchState, ids: "torch.Tensor", every: bool) -> "torch.Tensor":
        import torch

        weights, eps = self.oracle.weights, self.config.norm_eps
        positions = torch.arange(state.length, state.length + len(ids), dtype=torch.float32)
        angles = torch.outer(positions, self.oracle.turning).repeat(1, 2)
        turns = angles.cos()[:, None], angles.sin()[:, None]
        x = weights.embed[ids]
        for layer, cache in zip(weights.layers, state.cache, strict=True):
            x = self._block(x, layer, cache, state.length, turns)
        x = x if every else x[-1:]
        x = torch.nn.functional.rms_norm(x, x.shape[-1:], weights.final_norm, eps)
        return torch.nn.functional.linear(x, weights.head)

    def _block(
        self,
        x: "torch.Tensor",
        layer: Layer["torch.Tensor"],
        cache: "torch.Tensor",
        start: int,
        turns: tuple["torch.Tensor", "torch.Tensor"],
    ) -> "torch.Tensor":
        """One decoder block on x [n, dim]; the cache is [2, 1, n_kv_heads, context, head_dim]."""
        import torch

        f = torch.nn.functional
        c, n, end = self.config, len(x), start + len(x)
        h = f.rms_norm(x, x.shape[-1:], layer.attn_norm, c.norm_eps)
        q = turned(f.linear(h, layer.q, layer.q_bias).view(n, -1, c.head_dim), *turns)
        k = turned(f.linear(h, layer.k, layer.k_bias).view(n, -1, c.head_dim), *turns)
        v = f.linear(h, layer.v, layer.v_bias).view(n, -1, c.head_dim)
        cache[0, 0, :, start:end] = k.transpose(0, 1)
        cache[1, 0, :, start:end] = v.transpose(0, 1)
        keys, values = cache[:, :, :, :end]
        mask = x.new_ones(n, end).tril(start).bool() if n > 1 and start > 0 else None
        mixed = f.scaled_dot_product_attention(
            q.transpose(0, 1)[None], keys, values, mask, is_causal=n == end, enable_gqa=True
        )
        x = x + f.linear(mixed[0].transpose(0, 1).reshape(n, -1), layer.o, layer.o_bias)
        h = f.rms_norm(x, x.shape[-1:], layer.ffn_norm, c.norm_eps)
        gate, up = f.linear(h, layer.gate, layer.gate_bias), f.linear(h, layer.up, layer.up_bias)
        return x + f.linear(f.silu(gate) * up, layer.down, layer.down_bias)


def turned(x: "torch.Tensor", cos: "torch.Tensor", sin: "torch.Tensor") -> "torch.Tensor":
    """Pairs (i, i + head_dim/2) of x [n, heads, head_dim] by their positions' angles."""
    import torch

    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
