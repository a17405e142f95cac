"""How the next job reaches threads that are still awake: without Python. Lesson 11.

Between two tokens a worker lingers in compiled code, sees that a run was posted, and enters the
next compiled job at once. When none comes it goes to its inbox and sleeps there, but first puts up
a flag in `control`, and looks once more. The caller posts, and then looks for flags. So one of the
two sees the other, and whoever takes the flag down says what the worker does next: the caller, who
then sends a call to its inbox, or the worker itself, who has seen the run in the last moment.
"""

from typing import Any

from .barrier import (
    ARGUMENT,
    ASLEEP,
    COMPILED,
    DONE,
    FINISHED,
    FUNCTION,
    LINES,
    PART,
    POSTED,
    linger,
    reaches,
    take_turns,
)
from .simd.cpu import (
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap,
    nanoseconds,
    yield_core,
)
from .simd.foreign import call3
from .simd.jit import entry, kernel


@entry
def post(control: Any, function: int, argument: int, part: int, woken: Any) -> int:
    """Begin a run of the C function (argument, rank, part) at an address.

    part : how many threads take part: those of ranks below
    woken : int64 [part]; gets the ranks of workers that sleep, for the caller to wake
    Returns how many these are.
    """
    number = atomic_load(control, POSTED) + 1
    atomic_store(control, COMPILED, number)  # first: whoever had no part in the last run, and now
    atomic_store(control, PART, part)  # sees this part, sees too that it is another run's
    atomic_store(control, DONE, 0)
    atomic_store(control, FUNCTION, function)
    atomic_store(control, ARGUMENT, argument)
    atomic_store(control, POSTED, number)
    count = 0
    for rank in range(1, part):
        if take(control, ASLEEP + rank * LINES):
            woken[count] = rank
            count += 1
    return count


@kernel
def take(control: Any, flag: int) -> bool:
    """Take a flag down; False when another was faster, or it was not up."""
    return atomic_swap(control, flag, 0) == 1


@entry
def lead(control: Any, part: int, awake: int) -> None:
    """Take part in the run as rank 0, and return when `awake` workers have ended it."""
    call3(atomic_load(control, FUNCTION), atomic_load(control, ARGUMENT), 0, part)
    while not reaches(control, DONE, awake, nanoseconds()):
        yield_core()


@entry
def follow(control: Any, rank: int, number: int) -> None:
    """After the run of this number: take part in compiled ones while they come, and want this rank.

    Returns, with the flag up or taken by the caller, when the inbox has what comes next, or will.
    """
    atomic_add(control, FINISHED, 1)
    flag = ASLEEP + rank * LINES
    while True:
        linger(control, POSTED, number + 1)
        posted = atomic_load(control, POSTED)
        part = atomic_load(control, PART)
        if posted > number and rank < part and atomic_load(control, COMPILED) == posted:
            call3(atomic_load(control, FUNCTION), atomic_load(control, ARGUMENT), rank, part)
            number = posted
            atomic_add(control, DONE, 1)
        else:
            number = posted
            atomic_store(control, flag, 1)
            if atomic_load(control, POSTED) == number or not take(control, flag):
                break
    take_turns(rank)
