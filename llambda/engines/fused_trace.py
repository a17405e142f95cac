"""What goes on inside a fused step: its phases one at a time, and a look at the buffers between.

The compiled code is the same, so what is seen is what a whole step computes, bit for bit.
"""

from collections.abc import Callable

from ..simd.tiles import TILE
from . import step as s
from .base import Floats, Trace
from .buffers import Buffers


def traced(buffers: Buffers, n: int, logits: Floats, run: Callable[[int, int], None]) -> Trace:
    """Run a step of n tokens, all of them wanted; returns the named activations."""
    config = buffers.config
    dim, ffn_dim, rows = config.dim, config.ffn_dim, int(buffers.step[s.HEAD_ROWS])
    n_heads, n_kv_heads, size = config.n_heads, config.n_kv_heads, config.head_dim
    seen: Trace = {"embed": buffers.x[:n, :dim].copy()}

    def heads(out: Floats, first: int, count: int, rows: int) -> Floats:
        """Some heads of a buffer in which each has so many rows: [n, count, head_dim]."""
        some = out[:n, first * rows : (first + count) * rows]
        return some.reshape(n, count, rows)[:, :, :size].copy()

    def normed() -> Floats:
        out = buffers.own_normed(n) if n <= TILE else buffers.normed[:n]
        return out[:, :dim].copy()

    for layer in range(config.n_layers):
        blk, phase = f"blk.{layer}", layer * s.PHASES
        run(phase + s.QKV, phase + s.QKV + 1)
        seen[f"{blk}.attn_norm"] = normed()
        seen[f"{blk}.q"] = heads(buffers.qkv_out, 0, n_heads, rows)
        seen[f"{blk}.k"] = heads(buffers.qkv_out, n_heads, n_kv_heads, rows)
        seen[f"{blk}.v"] = heads(buffers.qkv_out, n_heads + n_kv_heads, n_kv_heads, rows)
        seen[f"{blk}.q_rope"] = heads(buffers.q_turned, 0, n_heads, size)
        seen[f"{blk}.k_rope"] = heads(buffers.k_turned, 0, n_kv_heads, size)
        run(phase + s.ATTENTION, phase + s.ATTENTION + 1)
        seen[f"{blk}.attn_heads"] = heads(buffers.mixed, 0, n_heads, size)
        run(phase + s.ATTN_OUT, phase + s.ATTN_OUT + 1)
        seen[f"{blk}.attn_out"] = buffers.o_out[:n, :dim].copy()
        seen[f"{blk}.attn_residual"] = buffers.x[:n, :dim].copy()
        run(phase + s.GATE_UP, phase + s.GATE_UP + 1)
        seen[f"{blk}.ffn_norm"] = normed()
        seen[f"{blk}.gate"] = buffers.gate_out[:n, :ffn_dim].copy()
        seen[f"{blk}.up"] = buffers.up_out[:n, :ffn_dim].copy()
        seen[f"{blk}.swiglu"] = buffers.inner[:n, :ffn_dim].copy()
        run(phase + s.FFN_OUT, phase + s.FFN_OUT + 1)
        seen[f"{blk}.ffn_out"] = buffers.down_out[:n, :dim].copy()
        seen[f"{blk}.ffn_residual"] = buffers.x[:n, :dim].copy()
    phase = config.n_layers * s.PHASES
    run(phase, phase + 1)
    seen["final_norm"] = normed()
    seen["logits"] = logits[:n, : config.vocab_size].copy()
    return seen
