"""All layers of a decoder in one compiled call, which every thread makes. Lesson 11.

A layer has five phases. In each, a thread computes its share of the rows of some matrices, or of
the work of attention, and then waits for the others. What takes less time than waiting, the norms
and the quantization of a few tokens, every thread does for itself.
"""

from typing import Any

import numpy as np

from ..kernels import cached_attention as attention
from ..kernels import products
from ..kernels.products import STRIP
from ..kernels.swiglu import swiglu_row
from ..simd.foreign import call3, floats_at, longs_at
from ..simd.jit import foreign, inner
from ..threads import share
from . import step as s
from .parts import (
    keep_key,
    keep_value,
    multiply,
    now,
    onto_x,
    prepare,
    some_heads,
    spent,
    turn,
    wait,
)

NONE: Any = np.int64(
    0
)  # as an argument; 0 itself has a type of its own, for which all is compiled anew


@foreign
def forward(address: int, rank: int, threads: int) -> None:
    """The phases that the step at an address asks for, as thread `rank` of so many."""
    step = longs_at(address, s.STEP)
    control = longs_at(step[s.CONTROL], 0)
    for number in range(step[s.FIRST], step[s.LAST]):
        layer, phase = number // s.PHASES, number % s.PHASES
        w = longs_at(step[s.TABLE] + 8 * s.LAYER * layer, s.LAYER)
        if layer == step[s.N_LAYERS]:
            logits(step, w, control, rank, threads)
        elif phase == s.QKV:
            qkv(step, w, layer, control, rank, threads)
        elif phase == s.ATTENTION:
            attend(step, layer, control, rank, threads)
        elif phase == s.ATTN_OUT:
            attn_out(step, w, control, rank, threads)
        elif phase == s.GATE_UP:
            gate_up(step, w, control, rank, threads)
        else:
            ffn_out(step, w, control, rank, threads)
        if not wait(step, control, rank, threads):
            return


# ---------------------------------------------------------------- the phases


@inner
def qkv(step: Any, w: Any, layer: int, control: Any, rank: int, threads: int) -> None:
    """Norm; then a thread computes some heads of q, k and v, turns them, and stores k and v."""
    x = prepare(step, step[s.X], step[s.DIM_STRIDE], step[s.N], step[s.DIM], w[s.ATTN_NORM], NONE,
                w[s.FOR_QKV], control, rank, threads)  # fmt: skip
    heads, kv_heads = step[s.HEADS], step[s.KV_HEADS]
    first, last = share(heads + 2 * kv_heads, rank, threads)
    some_heads(step, w, s.Q, x, 0, heads, first, last, rank)
    some_heads(step, w, s.K, x, heads, kv_heads, first, last, rank)
    some_heads(step, w, s.V, x, heads + kv_heads, kv_heads, first, last, rank)
    since = now(step)
    for head in range(first, last):
        for token in range(step[s.N]):
            if head < heads:
                turn(step, head, token, step[s.Q_TURNED], step[s.Q_STRIDE], head)
            elif head < heads + kv_heads:
                turn(step, head, token, step[s.K_TURNED], step[s.KV_STRIDE], head - heads)
                keep_key(step, layer, head - heads, token)
            else:
                keep_value(step, layer, head - heads - kv_heads, token, head)
    spent(step, s.TURN, rank, since)


@inner
def attend(step: Any, layer: int, control: Any, rank: int, threads: int) -> None:
    since = now(step)
    own = step[s.OWN] + rank * step[s.OWN_BYTES]
    job = longs_at(own + 8 * products.JOB, attention.JOB)
    at = own + 8 * products.JOB
    job[attention.SEQUENCES], job[attention.N] = step[s.SEQUENCES], step[s.N_SEQUENCES]
    job[attention.LAYER], job[attention.KV_HEADS] = layer, step[s.KV_HEADS]
    job[attention.GROUP] = step[s.HEADS] // step[s.KV_HEADS]
    job[attention.HEAD_DIM] = step[s.HEAD_DIM]
    job[attention.Q], job[attention.Q_STRIDE] = step[s.Q_TURNED], step[s.Q_STRIDE]
    job[attention.OUT], job[attention.OUT_STRIDE] = step[s.MIXED], step[s.Q_STRIDE]
    job[attention.ROW], job[attention.SCORES] = step[s.ROW], step[s.SCORES]
    job[attention.OWN] = own + step[s.OWN_ATTENTION]
    if step[s.PREFILLS]:
        first, last = share(attention.prefill_units(job), rank, threads)
        call3(step[s.PREFILL], at, first, last)
    else:
        first, last = share(attention.score_units(job), rank, threads)
        call3(step[s.SCORE], at, first, last)
        spent(step, s.ATTEND, rank, since)
        wait(step, control, rank, threads)
        since = now(step)
        first, last = share(attention.mix_units(job), rank, threads)
        call3(step[s.MIX], at, first, last)
    spent(step, s.ATTEND, rank, since)


@inner
def attn_out(step: Any, w: Any, control: Any, rank: int, threads: int) -> None:
    """The mixed values of all heads through o, onto x."""
    x = prepare(step, step[s.MIXED], step[s.Q_STRIDE], step[s.N], step[s.HEADS] * step[s.HEAD_DIM],
                NONE, NONE, w[s.FOR_OUT], control, rank, threads)  # fmt: skip
    onto_x(step, w, s.OUT, x, step[s.HEADS] * step[s.HEAD_DIM], step[s.O_OUT], rank, threads)


@inner
def gate_up(step: Any, w: Any, control: Any, rank: int, threads: int) -> None:
    """Norm; then a thread computes some rows of gate and of up, and what these make together."""
    n, stride = step[s.N], step[s.FFN_STRIDE]
    x = prepare(step, step[s.X], step[s.DIM_STRIDE], n, step[s.DIM], w[s.FFN_NORM], NONE,
                w[s.FOR_GATE_UP], control, rank, threads)  # fmt: skip
    first, last = share(stride // STRIP, rank, threads)
    multiply(step, w, s.GATE, x, step[s.DIM], n, step[s.GATE_OUT], stride, first, last, rank)
    multiply(step, w, s.UP, x, step[s.DIM], n, step[s.UP_OUT], stride, first, last, rank)
    since = now(step)
    gate, up, inner = floats_at(step[s.GATE_OUT], 0), floats_at(step[s.UP_OUT], 0), floats_at(
        step[s.INNER], 0)  # fmt: skip
    for token in range(n):
        at = token * stride + first * STRIP
        swiglu_row(gate, at, up, at, (last - first) * STRIP, inner, at)
    spent(step, s.SWIGLU, rank, since)


@inner
def ffn_out(step: Any, w: Any, control: Any, rank: int, threads: int) -> None:
    """The inner activations through down, onto x."""
    x = prepare(step, step[s.INNER], step[s.FFN_STRIDE], step[s.N], step[s.FFN_DIM], NONE, NONE,
                w[s.FOR_DOWN], control, rank, threads)  # fmt: skip
    onto_x(step, w, s.DOWN, x, step[s.FFN_DIM], step[s.DOWN_OUT], rank, threads)


@inner
def logits(step: Any, w: Any, control: Any, rank: int, threads: int) -> None:
    """Of the tokens that are wanted."""
    n, dim, rows = step[s.N_WANTED], step[s.DIM], step[s.VOCAB_ROWS]
    x = prepare(step, step[s.X], step[s.DIM_STRIDE], n, dim, w[s.FINAL_NORM], step[s.WANTED],
                w[s.FOR_HEAD], control, rank, threads)  # fmt: skip
    first, last = share(rows // STRIP, rank, threads)
    multiply(step, w, s.HEAD, x, dim, n, step[s.LOGITS], rows, first, last, rank)
