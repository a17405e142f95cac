"""A model's weights as the fused engine reads them: one arena, and one table of it. Lesson 11."""

import numpy as np
import numpy.typing as npt

from ..config import ModelConfig
from ..kernels.aligned import aligned_zeros, up_to_line
from ..kernels.matrix import FORMS, Matrix, pack, packed_bytes, padded
from ..kernels.products import STRIP
from ..quants import decode
from ..simd.jit import Foreign
from ..tensor import Tensor
from ..tensorfile import forget_pages
from ..weights import Layer, Weights
from . import step as s

Floats = npt.NDArray[np.float32]

# Where a layer's matrices stand in its row of the table, and those that share an input.
MATRICES = {"q": s.Q, "k": s.K, "v": s.V, "o": s.OUT, "gate": s.GATE, "up": s.UP, "down": s.DOWN}
INPUTS = {
    s.FOR_QKV: ("q", "k", "v"),
    s.FOR_OUT: ("o",),
    s.FOR_GATE_UP: ("gate", "up"),
    s.FOR_DOWN: ("down",),
}


class Plan:
    """Packed weights, and the table with their addresses.

    table : int64 [n_layers + 1, s.LAYER]
    nbytes : bytes of packed matrices that one token reads
    """

    def __init__(self, config: ModelConfig, weights: Weights[Tensor]):
        self.config = config
        self.table = np.zeros((config.n_layers + 1, s.LAYER), np.int64)
        self.nbytes = arena_bytes(config, weights)
        self._arena = aligned_zeros(self.nbytes, np.uint8)
        self._used = 0
        self._vectors: list[Floats] = []  # norms and biases, which the table has addresses of
        for row, layer in zip(self.table, weights.layers, strict=False):
            self._place_layer(row, layer)
        last = self.table[-1]
        last[s.FINAL_NORM] = self._place_vector(decode(weights.final_norm))
        last[s.FOR_HEAD] = self._place_matrix(last, s.HEAD, weights.head, None, None)

    def _place_layer(self, row: npt.NDArray[np.int64], layer: Layer[Tensor]) -> None:
        row[s.ATTN_NORM] = self._place_vector(decode(layer.attn_norm))
        row[s.FFN_NORM] = self._place_vector(decode(layer.ffn_norm))
        for takes, names in INPUTS.items():
            for name in names:
                bias = getattr(layer, f"{name}_bias")
                group = head_group(self.config, name)
                matrix = getattr(layer, name)
                row[takes] |= self._place_matrix(row, MATRICES[name], matrix, bias, group)

    def _place_matrix(
        self,
        row: npt.NDArray[np.int64],
        at: int,
        tensor: Tensor,
        bias: Tensor | None,
        group: int | None,
    ) -> int:
        """Pack a matrix into the arena; returns whether it takes s.FLOATS or s.CODED."""
        nbytes = packed_bytes(tensor, group)
        room = self._arena[self._used : self._used + nbytes]
        self._used += up_to_line(nbytes)
        matrix = pack(tensor, group, room)
        forget_pages(tensor)
        takes = s.CODED if matrix.coded else s.FLOATS
        row[at + s.PRODUCT] = matrix.form.product.address
        row[at + s.WEIGHTS] = room.ctypes.data
        row[at + s.TAKES] = takes
        if bias is not None:
            row[at + s.BIAS] = self._place_vector(in_strips(decode(bias), matrix))
        return takes

    def _place_vector(self, vector: Floats) -> int:
        """The address of a copy that is filled up with zeros to whole strips."""
        copy = aligned_zeros(padded(len(vector)), np.float32)
        copy[: len(vector)] = vector
        self._vectors.append(copy)
        return int(copy.ctypes.data)


def matrices(weights: Weights[Tensor]) -> list[tuple[str, Tensor]]:
    layers = [(name, getattr(layer, name)) for layer in weights.layers for name in MATRICES]
    return [*layers, ("head", weights.head)]


def arena_bytes(config: ModelConfig, weights: Weights[Tensor]) -> int:
    """What all packed matrices take."""
    groups = [(tensor, head_group(config, name)) for name, tensor in matrices(weights)]
    return sum(up_to_line(packed_bytes(tensor, group)) for tensor, group in groups)


def products_of(weights: Weights[Tensor]) -> list[Foreign]:
    """The functions that multiply with these weights, each once."""
    formats = {tensor.dtype.name for _, tensor in matrices(weights)}
    return [FORMS[name].product for name in sorted(formats & FORMS.keys())]


def head_group(config: ModelConfig, name: str) -> int | None:
    """Rows that begin in a strip of their own: one thread computes a whole head of q, k or v."""
    return config.head_dim if name in ("q", "k", "v") else None


def in_strips(bias: Floats, matrix: Matrix) -> Floats:
    """A bias with the gaps that the matrix has between its groups of rows."""
    groups = bias.reshape(-1, matrix.group)
    return np.pad(groups, ((0, 0), (0, -matrix.group % STRIP))).reshape(-1)
