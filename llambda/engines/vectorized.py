"""Rung 4: whole registers at a time, out of memory in the order that they need. Lesson 08.

Operations are still called one after the other from Python, on one thread. Weights are float32 in
panels, and so are keys and values: a register holds the same column of several rows, and no sum
goes across it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..kernels import rows
from ..kernels.matrix import Matrix, multiply, pack, tiled
from ..kernels.panel_cache import PanelCache, attend, units
from ..quants import decode, decode_rows
from ..tensor import Tensor
from ..weights import Weights
from .base import Engine, Floats, State
from .cached import CachedState
from .scalar import ScalarEngine


class PanelState(CachedState):
    """The keys and values of every position so far, in panels."""

    def __init__(self, engine: Engine, context: int):
        State.__init__(self, engine, context)
        self.cache = PanelCache(engine.config, context)


class VectorizedEngine(ScalarEngine):
    name = "vectorized"

    def new_state(self, context: int) -> State:
        return PanelState(self, context)

    def prepare(self, weights: Weights[Tensor]) -> Weights[Any]:
        """Matrices packed, vectors as float32 arrays. Embeddings are read row by row, as stored."""
        used = replace(weights, embed=weights.head)
        return replace(used.map(self.prepare_one), embed=weights.embed)

    def prepare_one(self, weight: Tensor) -> Any:
        return decode(weight) if len(weight.shape) == 1 else self.pack(weight)

    def pack(self, matrix: Tensor) -> Matrix:
        return pack(Tensor.from_numpy(decode(matrix)))

    def share_out(self, total: int, work: Callable[[int, int], None]) -> None:
        """Have work(first, last) done for all numbers below total: here all at once."""
        work(0, total)

    def embed(self, ids: Sequence[int]) -> Floats:
        return decode_rows(self.weights.embed, ids)

    def linear(self, x: Floats, weight: Any, bias: Floats | None = None) -> Floats:
        tiles = tiled(x, weight.coded)
        out = np.empty((tiles.room, weight.padded_rows), np.float32)
        self.share_out(weight.strips, lambda first, last: multiply(weight, tiles, out, first, last))
        y = rows.cut(out[: len(x)], weight.rows)
        return y if bias is None else y + bias

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        return rows.rms_norm(x, weight, eps)

    def rotate(self, x: Floats, cos: Floats, sin: Floats) -> Floats:
        return rows.rotate(x, cos, sin)

    def attention(self, q: Floats, keys: Floats, values: Floats, start: int) -> Floats:
        out = np.empty_like(q)

        def work(first: int, last: int) -> None:
            attend(q, keys, values, start, out, first, last)

        self.share_out(units(q, keys), work)
        return out

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        return rows.swiglu(gate, up)
