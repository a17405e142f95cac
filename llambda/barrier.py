"""How compiled threads wait for one another: they spin, then sleep. Lesson 11.

What they tell one another stands in an array of counters, `control`. Each has cache lines of its
own: otherwise a write to one would take the line with another away from the cores that read it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from .simd.cpu import (
    atomic_add,
    atomic_load,
    atomic_store,
    nanoseconds,
    pause,
    sleep_while,
    wake,
    yield_core,
)
from .simd.jit import entry, kernel

Control = npt.NDArray[np.int64]

LINES = 16  # int64 numbers in 128 bytes: two cache lines, since Intel's cores fetch them in pairs
ARRIVED = 1 * LINES  # threads that wait at the barrier
PASSED = 2 * LINES  # barriers that all threads have passed, in this run
SLEEPERS = PASSED + 1  # threads that went to sleep there, or are about to
ABORTED = 3 * LINES  # 1 when a thread has failed, so that nobody waits for it
POSTED = 4 * LINES  # number of the last run that the workers were given
FINISHED = 5 * LINES  # calls that workers have ended, of all runs
COMPILED = 6 * LINES  # number of the last run that is a C function's
FUNCTION, ARGUMENT = COMPILED + 1, COMPILED + 2  # its address and first argument
PART = COMPILED + 3  # threads that take part in it: those of ranks below
DONE = 7 * LINES  # workers that have ended it, of those that were awake
LATE = 8 * LINES  # nanoseconds that threads have waited for others that were late, in this run
ASLEEP = 9 * LINES  # and a line further for each rank: 1 when that worker must be woken

PATIENCE = 100_000  # nanoseconds that a thread spins before it sleeps: others that run are earlier
SPINS = 100  # pauses from one look at the clock to the next
NAP = 1_000_000  # nanoseconds of sleep at most: a thread that has failed wakes nobody
IDLE_ROUNDS = 10  # times PATIENCE, a millisecond: how long a thread stays awake for the next run
TURN = 300  # pauses in which a thread gets through the few lines of Python around a compiled job


def new_control(threads: int) -> Control:
    """Counters for so many threads, all 0, with room before the first and after the last."""
    return np.zeros(ASLEEP + (threads + 1) * LINES, np.int64)


@kernel
def reaches(control: Any, at: int, value: int, since: int) -> bool:
    """Whether control[at] is at least `value`, or becomes so before PATIENCE has passed."""
    while True:
        for _ in range(SPINS):
            if atomic_load(control, at) >= value:
                return True
            pause()
        if nanoseconds() - since > PATIENCE:
            return False


@kernel
def barrier(control: Any, threads: int) -> bool:
    """Wait until all threads have come here; what each wrote before, all can read after.

    False when a thread has failed. Then no barrier waits any more, and the caller must return.
    All that is kept from one barrier to the next is in `control`.
    """
    passed = atomic_load(control, PASSED)  # before arriving, since the last to arrive changes it
    if atomic_add(control, ARRIVED, 1) == threads - 1:
        atomic_store(control, ARRIVED, 0)  # before anyone is let go, and arrives at the next
        atomic_store(control, PASSED, passed + 1)
        if atomic_load(control, SLEEPERS) > 0:
            wake(control, PASSED)
    else:
        since = nanoseconds()
        if not reaches(control, PASSED, passed + 1, since):
            while atomic_load(control, PASSED) == passed and atomic_load(control, ABORTED) == 0:
                atomic_add(control, SLEEPERS, 1)
                sleep_while(control, PASSED, passed, NAP)
                atomic_add(control, SLEEPERS, -1)
            atomic_add(control, LATE, nanoseconds() - since)
    return atomic_load(control, ABORTED) == 0


@entry
def linger(control: Any, at: int, value: int) -> None:
    """Return when control[at] is at least `value`, or after about a millisecond."""
    for _ in range(IDLE_ROUNDS):
        if reaches(control, at, value, nanoseconds()):
            return
        yield_core()


@kernel
def take_turns(rank: int) -> None:
    """Pause, the longer the higher the rank; a compiled job does well to end with it.

    Threads that all at once need Python's lock find it taken, and go to sleep; to be woken takes
    much longer than what each wants to do with it.
    """
    for _ in range(rank * TURN):
        pause()
