"""How fast our own products can read weights at all: the ceiling that rungs are held against.

A sum over an array (probe.py) is not the fastest reader there is: a product over interleaved rows
keeps more loads on their way. So the limit is what the products themselves reach when they do
nothing else, over a matrix that no cache holds.
"""

import time
from typing import Self

import numpy as np

from .errors import ResourceError
from .kernels import products
from .kernels.aligned import aligned_zeros
from .kernels.products import STRIP
from .machine import available_memory
from .simd.jit import Foreign
from .threads import share
from .workers import Workers

MIB = 1 << 20
COLS = 1024
FORMS = (
    (products.f32, 4),
    (products.f16, 2),
)  # bytes of a number; machines differ in what is faster
PASSES = 3  # over the matrix, of which the fastest counts


class Stream:
    """A matrix of `nbytes`, times one vector over and over, in so many threads.

    Raises ResourceError where memory is short.
    """

    def __init__(self, threads: int, nbytes: int = 256 * MIB):
        if 2 * nbytes > available_memory():
            raise ResourceError(
                f"{nbytes / 1e6:.0f} MB are needed to measure the memory's speed",
                fix="Free some memory.",
            )
        self.threads = threads
        self._workers = Workers(threads)
        self._weights = aligned_zeros(nbytes // 4, np.float32)
        self._weights.fill(1)  # what was never written is not there: all zeros share one page
        self._x = aligned_zeros(COLS, np.float32)
        self._x.fill(1)
        self._out = aligned_zeros(nbytes // 2 // COLS, np.float32)
        self._job = np.zeros(products.JOB, np.int64)
        self._job[products.W] = self._weights.ctypes.data
        self._job[products.X] = self._x.ctypes.data
        self._job[products.OUT] = self._out.ctypes.data
        self._job[products.COLS] = COLS
        self._job[products.TOKENS] = self._job[products.TILES] = 1
        self._job[products.STRIDE] = len(self._out)

    def rate(self) -> float:
        """Bytes a second, of the fastest pass in the better form."""
        return max(self._rate(product, size) for product, size in FORMS)

    def _rate(self, product: Foreign, size: int) -> float:
        nbytes = COLS * STRIP * size
        strips = self._weights.nbytes // nbytes
        job = int(self._job.ctypes.data)
        product(job, 0, 0)  # compile it before it counts

        def multiply(rank: int) -> None:
            product(job, *share(strips, rank, self.threads))

        seconds = []
        for _ in range(PASSES):
            begin = time.perf_counter()
            self._workers.run(multiply)
            seconds.append(time.perf_counter() - begin)
        return strips * nbytes / min(seconds)

    def close(self) -> None:
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
