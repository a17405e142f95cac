"""The memory that the fused engine works in, and the step that says where it is. Lesson 11."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import ModelConfig
from ..kernels import cached_attention as attention
from ..kernels.aligned import aligned_zeros, up_to_line
from ..kernels.matrix import padded
from ..kernels.products import JOB
from ..simd.tiles import TILE
from ..tensor import ALIGNMENT
from . import step as s

Floats = npt.NDArray[np.float32]
Longs = npt.NDArray[np.int64]


class Buffers:
    """Room for `tokens` tokens in one call, for each thread's own work, and the step.

    Each buffer is float32 [tokens, stride] under the name of its field in the step, in lower case.
    """

    def __init__(self, config: ModelConfig, tokens: int, threads: int):
        self.config = config
        self.threads = threads
        self.step: Longs = np.zeros(s.STEP, np.int64)
        self.address = int(self.step.ctypes.data)
        self._kept: dict[int, Any] = {}
        self._row = self._scores = 0
        rows = -(-tokens // TILE) * TILE
        self._set_sizes()
        self._make_buffers(rows)
        self._make_own(0)
        self.tokens = self._make(s.TOKENS, 2 * rows, np.int64).reshape(rows, 2)
        sequences = self._make(s.SEQUENCES, attention.SEQUENCE * rows, np.int64)
        self.sequences = sequences.reshape(rows, attention.SEQUENCE)
        self.wanted = self._make(s.WANTED, rows, np.int64)

    def _set_sizes(self) -> None:
        c, step = self.config, self.step
        step[s.N_LAYERS], step[s.DIM], step[s.FFN_DIM] = c.n_layers, c.dim, c.ffn_dim
        step[s.HEADS], step[s.KV_HEADS], step[s.HEAD_DIM] = c.n_heads, c.n_kv_heads, c.head_dim
        step[s.EPS] = np.float64(np.float32(c.norm_eps)).view(np.int64)
        step[s.HEAD_ROWS] = padded(c.head_dim)
        step[s.VOCAB_ROWS] = padded(c.vocab_size)
        step[s.DIM_STRIDE], step[s.FFN_STRIDE] = padded(c.dim), padded(c.ffn_dim)
        step[s.QKV_STRIDE] = (c.n_heads + 2 * c.n_kv_heads) * step[s.HEAD_ROWS]
        step[s.Q_STRIDE] = padded(c.n_heads * c.head_dim)
        step[s.KV_STRIDE] = padded(c.n_kv_heads * c.head_dim)

    def _make(self, field: int, count: int, kind: Any = np.float32) -> npt.NDArray[Any]:
        array = aligned_zeros(count, kind)
        self._kept[field] = array
        self.step[field] = array.ctypes.data
        return array

    def _make_buffers(self, rows: int) -> None:
        step = self.step

        def make(field: int, stride: int) -> Floats:
            return self._make(field, rows * step[stride]).reshape(rows, -1)

        self.x, self.normed = make(s.X, s.DIM_STRIDE), make(s.NORMED, s.DIM_STRIDE)
        self.qkv_out = make(s.QKV_OUT, s.QKV_STRIDE)
        self.q_turned, self.k_turned = make(s.Q_TURNED, s.Q_STRIDE), make(s.K_TURNED, s.KV_STRIDE)
        self.mixed, self.o_out = make(s.MIXED, s.Q_STRIDE), make(s.O_OUT, s.DIM_STRIDE)
        self.gate_out, self.up_out = make(s.GATE_OUT, s.FFN_STRIDE), make(s.UP_OUT, s.FFN_STRIDE)
        self.inner, self.down_out = make(s.INNER, s.FFN_STRIDE), make(s.DOWN_OUT, s.DIM_STRIDE)
        self._make(s.TILES, rows * self._widest)
        self._make(s.CODES, rows * self._widest, np.int8)
        self._make(s.SCALES, rows * self._widest // 8)

    @property
    def _widest(self) -> int:
        return int(max(self.step[[s.DIM_STRIDE, s.Q_STRIDE, s.FFN_STRIDE]]))

    def make_room(self, context: int, sequences: int) -> None:
        """Let attention look at so many positions, in so many sequences."""
        c = self.config
        row = max(self._row, attention.row_size(context))
        scores = attention.scores_size(sequences, c.n_kv_heads, c.n_groups, row)
        if row > self._row:
            self._make_own(attention.own_size(c.n_groups, c.head_dim, row))
            self.step[s.ROW] = self._row = row
        if scores > self._scores:
            self._make(s.SCORES, scores)
            self._scores = scores

    def _make_own(self, attention_size: int) -> None:
        """Memory for each thread alone: two jobs, one tile of activations, and attention's."""
        step = self.step
        sizes = {
            s.OWN_NORMED: 4 * TILE * step[s.DIM_STRIDE],
            s.OWN_TILES: 4 * TILE * self._widest,
            s.OWN_CODES: TILE * self._widest,
            s.OWN_SCALES: TILE * self._widest // 2,
            s.OWN_ATTENTION: 4 * attention_size,
        }
        at = up_to_line(8 * (JOB + attention.JOB))
        for field, nbytes in sizes.items():
            step[field] = at
            at += up_to_line(nbytes)
        step[s.OWN_BYTES] = at + 2 * ALIGNMENT  # no two threads write to lines that go in pairs
        self._own = self._make(s.OWN, self.threads * step[s.OWN_BYTES], np.uint8)

    def own_normed(self, n: int) -> Floats:
        """What the first thread's norm gave, for n tokens that fit into a tile."""
        begin, stride = self.step[s.OWN_NORMED], self.step[s.DIM_STRIDE]
        return self._own[begin : begin + 4 * n * stride].view(np.float32).reshape(n, stride)
