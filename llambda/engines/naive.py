"""Rung 1: the model as it is written in the papers, in NumPy on one thread. Lesson 04.

Every call evaluates the whole sequence again, from its first token. That is all that is needed to
be right, and what the next rung stops doing.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..config import ModelConfig
from ..kernels.attention import attention
from ..kernels.linear import linear
from ..kernels.norm import rms_norm
from ..kernels.rope import frequencies, rotate, table
from ..kernels.swiglu import swiglu
from ..quants import decode
from ..tensor import Tensor
from ..weights import Sized, Weights, float32_bytes
from .base import LAYER_ACTIVATIONS, Engine, Floats, State, Trace, check_call
from .blas import one_blas_thread

Keep = Callable[[str, Floats], None]
Store = Callable[[int, Floats, Floats], tuple[Floats, Floats]]


class NaiveEngine(Engine):
    name = "naive"

    def __init__(
        self, config: ModelConfig, weights: Weights[Tensor], threads: int = 1, cache: str = "f32"
    ):
        self.config = config
        self.threads = 1
        self.weights = self.prepare(weights)
        self.turning = frequencies(config.rope, self.weights.rope_factors)

    @staticmethod
    def weight_bytes(weights: Weights[Sized]) -> int:
        """All of them as float32."""
        return float32_bytes(weights)

    def new_state(self, context: int) -> State:
        return State(self, context)

    def forward(
        self,
        state: State,
        ids: Sequence[int],
        all_logits: bool = False,
        trace: Trace | None = None,
    ) -> Floats:
        ids = check_call(self, state, ids)
        every_id = [*state.ids, *ids]
        logits = self.evaluate(every_id, 0, remember_nothing, len(ids), all_logits, trace)
        state.ids = every_id
        return logits

    def evaluate(
        self,
        ids: Sequence[int],
        start: int,
        store: Store,
        n_new: int,
        all_logits: bool,
        trace: Trace | None,
    ) -> Floats:
        """Logits after ids, which stand at positions `start` and on; the last n_new are asked for.

        store(layer, k, v) takes these positions' keys and values, and gives back those of all
        positions from 0 to the last, each [n_kv_heads, m, head_dim].
        """

        def keep(name: str, value: Floats) -> None:
            if trace is not None:
                trace[name] = value[-n_new:].copy()

        with self.one_thread(), np.errstate(all="ignore"):  # damage shows in the logits
            rope = table(self.turning, start, start + len(ids))
            x = self.embed(ids)  # [n, dim]
            keep("embed", x)
            for i in range(self.config.n_layers):
                x = self.block(i, x, start, rope, store, keep)
            x = self.rms_norm(x, self.weights.final_norm, self.config.norm_eps)
            keep("final_norm", x)
            rows = n_new if all_logits or trace is not None else 1
            logits = self.linear(x[-rows:], self.weights.head)  # [rows, vocab_size]
            keep("logits", logits)
        return logits if all_logits else logits[-1]

    def one_thread(self) -> AbstractContextManager[None]:
        """What keeps the evaluation on one thread: NumPy's matrix product would take all cores."""
        return one_blas_thread()

    def block(
        self,
        i: int,
        x: Floats,
        start: int,
        rope: tuple[Floats, Floats],
        store: Store,
        keep: Keep,
    ) -> Floats:
        """Decoder block i: attention, then the feed-forward part, each added to x [n, dim]."""
        config, layer = self.config, self.weights.layers[i]

        def heads(y: Floats) -> Floats:
            return y.reshape(len(y), -1, config.head_dim)  # [n, heads, head_dim]

        h = self.rms_norm(x, layer.attn_norm, config.norm_eps)
        q = heads(self.linear(h, layer.q, layer.q_bias))
        k = heads(self.linear(h, layer.k, layer.k_bias))
        v = heads(self.linear(h, layer.v, layer.v_bias))
        q_rope, k_rope = self.rotate(q, *rope), self.rotate(k, *rope)
        keys, values = store(i, k_rope, v)
        mixed = self.attention(q_rope, keys, values, start)  # [n, n_heads, head_dim]
        attn_out = self.linear(mixed.reshape(len(x), -1), layer.o, layer.o_bias)
        after_attn = x + attn_out

        h2 = self.rms_norm(after_attn, layer.ffn_norm, config.norm_eps)
        gate = self.linear(h2, layer.gate, layer.gate_bias)
        up = self.linear(h2, layer.up, layer.up_bias)
        inner = self.swiglu(gate, up)  # [n, ffn_dim]
        ffn_out = self.linear(inner, layer.down, layer.down_bias)
        after_ffn = after_attn + ffn_out

        seen = (h, q, k, v, q_rope, k_rope, mixed, attn_out, after_attn,
                h2, gate, up, inner, ffn_out, after_ffn)  # fmt: skip
        for name, value in zip(LAYER_ACTIVATIONS, seen, strict=True):
            keep(f"blk.{i}.{name}", value)
        return after_ffn

    # What the model is made of. A faster rung has its own in place of some of these.

    def prepare(self, weights: Weights[Tensor]) -> Weights[Any]:
        """The weights as the operations take them: here all as float32 arrays."""
        return weights.map(decode)

    def embed(self, ids: Sequence[int]) -> Floats:
        return self.weights.embed[np.asarray(ids)]  # [n, dim]

    def linear(self, x: Floats, weight: Any, bias: Floats | None = None) -> Floats:
        return linear(x, weight, bias)

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        return rms_norm(x, weight, eps)

    def rotate(self, x: Floats, cos: Floats, sin: Floats) -> Floats:
        return rotate(x, cos, sin)

    def attention(self, q: Floats, keys: Floats, values: Floats, start: int) -> Floats:
        return attention(q, keys, values, start)

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        return swiglu(gate, up)


def remember_nothing(layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
    """Keys and values as they came, as attention takes them: [n_kv_heads, n, head_dim]."""
    return k.swapaxes(0, 1), v.swapaxes(0, 1)
