"""Rung 6: several threads share each matrix, and each attention. Lesson 10.

An operation is cut into as many parts as there are threads; a pool makes one call for each part and
waits for all: fork, and join. Every number is computed as by one thread, to the last bit.

It can be slower than the rung before. To fork and to join through a queue takes tens of
microseconds, and with thirty layers a token does so 241 times: for each matrix and each attention.
In a small model that is more than the threads save.
"""

from collections.abc import Callable

from ..config import ModelConfig
from ..tensor import Tensor
from ..threads import Pool, share
from ..weights import Weights
from .quantized import QuantizedEngine


class ThreadedEngine(QuantizedEngine):
    name = "threaded"

    def __init__(
        self, config: ModelConfig, weights: Weights[Tensor], threads: int = 1, cache: str = "f32"
    ):
        super().__init__(config, weights)
        self.threads = threads
        self._pool = Pool(threads)

    def share_out(self, total: int, work: Callable[[int, int], None]) -> None:
        """One part for each thread, or fewer if there is too little to share."""
        parts = min(total, self.threads)
        self._pool.map(lambda part: work(*share(total, part, parts)), range(parts))

    def close(self) -> None:
        self._pool.close()
