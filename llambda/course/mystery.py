"""The broken engine of lesson 04, which the reader examines. What follows gives it away."""

import math

import numpy as np

from ..engines.base import Floats
from ..engines.naive import Keep, NaiveEngine, Store


class MysteryEngine(NaiveEngine):
    """`naive` with one fault: attention's scores are not divided by sqrt(head_dim).

    The keys that attention gets are longer by that factor, which is the same; in a trace all that
    comes before attention is right.
    """

    name = "mystery"

    def block(
        self,
        i: int,
        x: Floats,
        start: int,
        rope: tuple[Floats, Floats],
        store: Store,
        keep: Keep,
    ) -> Floats:
        undo = np.float32(math.sqrt(self.config.head_dim))

        def longer(layer: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
            keys, values = store(layer, k, v)
            return keys * undo, values

        return super().block(i, x, start, rope, longer, keep)
