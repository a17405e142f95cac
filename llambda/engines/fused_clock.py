"""Where the fused engine's threads spend their time, in the processor's own ticks. Lesson 11.

The compiled code reads the tick counter only where a step has a clock; else it costs a comparison.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import numpy.typing as npt

from ..profiling import Ticks
from ..simd.cpu import cycles
from ..simd.jit import entry
from . import step as s

KINDS = {
    "prepare": s.PREPARE,  # norms, and activations as products take them
    "multiply": s.MULTIPLY,
    "turn": s.TURN,  # RoPE, and keys and values on their way into the cache
    "attend": s.ATTEND,
    "swiglu": s.SWIGLU,
    "add": s.ADD,  # onto the residual stream
    "wait": s.WAIT,  # for other threads
}


@entry
def read_ticks() -> int:
    return cycles()


class Clock:
    """What every thread's time was spent on.

    elapsed : seconds from begin to end
    seconds : by kind of work, of each thread. What is missing of `elapsed` is Python's
    """

    def __init__(self, threads: int):
        self.elapsed = 0.0
        self.seconds: dict[str, list[float]] = {}
        self._ticks: npt.NDArray[np.int64] = np.zeros((threads, s.CLOCKS), np.int64)
        self.address = int(self._ticks.ctypes.data)
        read_ticks()  # compile it before it counts
        self._counter = Ticks(read_ticks)

    def stop(self) -> None:
        ticks, self.elapsed = self._counter.look()
        seconds = self._ticks * (self.elapsed / ticks)
        self.seconds = {kind: seconds[:, place].tolist() for kind, place in KINDS.items()}


@contextmanager
def clock_on(
    step: npt.NDArray[np.int64], threads: int, one_call: AbstractContextManager[object]
) -> Iterator[Clock]:
    """Within the block the calls that this step is written for are timed.

    one_call : the lock that a call holds; a clock is not taken away from one that runs
    """
    clock = Clock(threads)
    with one_call:
        step[s.CLOCK] = clock.address
    try:
        yield clock
    finally:
        with one_call:
            step[s.CLOCK] = 0
        clock.stop()
