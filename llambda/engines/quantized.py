"""Rung 5: weights stay as small as they are in the file, and so do activations. Lesson 09.

A token reads every weight once, so bytes are time: four bits a weight are an eighth of float32's.
Whole numbers of at most eight bits are multiplied and added exactly. What is lost is lost where
activations are rounded to codes, once for each matrix.
"""

from ..kernels.matrix import Matrix, pack
from ..tensor import Tensor
from ..weights import Sized, Weights, stored_bytes
from .vectorized import VectorizedEngine


class QuantizedEngine(VectorizedEngine):
    name = "quantized"

    @staticmethod
    def weight_bytes(weights: Weights[Sized]) -> int:
        """As stored, in another order."""
        return stored_bytes(weights)

    def pack(self, matrix: Tensor) -> Matrix:
        return pack(matrix)
