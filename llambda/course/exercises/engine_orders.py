"""Threads in slow motion: every order in which their steps can follow one another. Lesson 11.

A thread is a generator. It yields one access to memory that all share, and is given the outcome;
what it does in between is its own. All orders are tried that such threads can run in: so a fault
is found that shows once in a million runs, and no real memory is put at risk.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from ...errors import InputError

MOST_MOMENTS = 50_000  # that are looked at before it is given up
MOST_STEPS = 100  # of one thread
MOST_LOOKS = 4  # at one cell, one after the other


class TooManyOrdersError(InputError):
    """So many that it would take long to look at all."""


# ---------------------------------------------------------------- what a thread can do in one step


class Step(NamedTuple):
    """One access to shared memory, which no other thread interrupts."""

    kind: str
    cell: str
    value: Any = None

    def __str__(self) -> str:
        given = f", {self.value}" if self.kind in ("store", "add") else ""
        return f"{self.kind}({self.cell}{given})"


def load(cell: str) -> Step:
    """Gives what is in a cell; 0 before anything was stored there."""
    return Step("load", cell)


def store(cell: str, value: Any) -> Step:
    """Writes a cell."""
    return Step("store", cell, value)


def add(cell: str, value: int) -> Step:
    """Adds to a cell, and gives what was there before."""
    return Step("add", cell, value)


def until(cell: str, condition: Callable[[Any], object]) -> Step:
    """Waits until condition(what is in the cell) holds, and gives that."""
    return Step("until", cell, condition)


# ---------------------------------------------------------------- all orders

Thread = Generator[Step, Any, Any]
Past = tuple[tuple[str, str, Any], ...]  # of each step of a thread: kind, cell, what it gave
Way = tuple[tuple[int, Step], ...]  # (number of the thread, its step), one after the other


class Ended(NamedTuple):
    result: Any


class Moment(NamedTuple):
    """Where all are: what each thread has been given so far, and what is in the cells."""

    pasts: tuple[Past, ...]
    memory: tuple[tuple[str, Any], ...]


class Ending(NamedTuple):
    """One way in which all can end.

    results : what each thread returned; None when some wait for ever
    orders : in how many orders of steps it comes to this
    example : one of these orders
    waiting : of each thread, the cell that it waits for then; None for one that has ended
    """

    results: tuple[Any, ...] | None
    orders: int
    example: Way
    waiting: tuple[str | None, ...]


def every_order(threads: Sequence[Callable[[], Thread]]) -> list[Ending]:
    """How threads end, in all orders of their steps; the most frequent ending first.

    What is kept in cells must be hashable. Raises TooManyOrdersError, and InputError where threads
    are no such generators, or remember something outside of themselves and the cells.
    """
    following = [cache(partial(after, thread)) for thread in threads]
    first = Moment(((),) * len(threads), ())
    # All moments after so many steps, and how many orders lead there. Where each came from first.
    moments: Counter[Moment] = Counter({first: 1})
    came: dict[Moment, tuple[Moment, int, Step] | None] = {first: None}
    ends: dict[Any, tuple[int, Moment]] = {}
    while moments:
        later: Counter[Moment] = Counter()
        for moment, orders in moments.items():
            states = [next_of(past) for next_of, past in zip(following, moment.pasts, strict=True)]
            ready = [(i, s) for i, s in enumerate(states) if can_go_on(s, dict(moment.memory))]
            for i, step in ready:
                new = taken(moment, i, step)
                later[new] += orders
                came.setdefault(new, (moment, i, step))
            if not ready:
                before, where = ends.get(results(states), (0, moment))
                ends[results(states)] = before + orders, where
        if len(came) > MOST_MOMENTS:
            raise TooManyOrdersError(
                "these threads have too many orders", fix="Give them fewer steps."
            )
        moments = later
    found = [
        Ending(end, orders, way_to(moment, came), waiting(moment, following))
        for end, (orders, moment) in ends.items()
    ]
    return sorted(found, key=lambda each: -each.orders)


def after(thread: Callable[[], Thread], past: Past) -> Any:
    """What a thread does next, a Step or Ended: it is run from the start, and given its past."""
    running, steps = thread(), list[Step]()
    try:
        for given in (None, *(given for _, _, given in past)):
            step = running.send(given)
            if not isinstance(step, Step):
                raise InputError(f"a thread yields {step!r:.60}, which is none of its steps")
            steps.append(step)
    except StopIteration as end:
        steps.append(Step("end", ""))
        ended: Ended | None = Ended(end.value)
    else:
        ended = None
    if [(step.kind, step.cell) for step in steps[:-1]] != [(kind, cell) for kind, cell, _ in past]:
        raise InputError("a thread remembers something outside of the cells")
    if ended:
        return ended
    if len(steps) > MOST_STEPS:
        raise InputError("a thread takes steps without end")
    if steps[-MOST_LOOKS:] == [load(steps[-1].cell)] * MOST_LOOKS:
        raise InputError(
            f"a thread looks at {steps[-1].cell!r} over and over",
            fix="Wait with until(cell, condition).",
        )
    return steps[-1]


def can_go_on(state: Step | Ended, memory: dict[str, Any]) -> bool:
    """Not after the end, and not before what it waits for."""
    if isinstance(state, Ended):
        return False
    return state.kind != "until" or bool(state.value(memory.get(state.cell, 0)))


def taken(moment: Moment, number: int, step: Step) -> Moment:
    """The moment after a thread's step."""
    pasts, memory = list(moment.pasts), dict(moment.memory)
    gives = memory.get(step.cell, 0)
    if step.kind == "store":
        memory[step.cell], gives = step.value, None
    elif step.kind == "add":
        memory[step.cell] = gives + step.value
    pasts[number] = (*pasts[number], (step.kind, step.cell, gives))
    return Moment(tuple(pasts), tuple(sorted(memory.items())))


def results(states: Sequence[Step | Ended]) -> tuple[Any, ...] | None:
    """What all returned, or None when some still wait."""
    ends = [state.result for state in states if isinstance(state, Ended)]
    return tuple(ends) if len(ends) == len(states) else None


def waiting(moment: Moment, following: Sequence[Callable[[Past], Any]]) -> tuple[str | None, ...]:
    """The cell that each thread waits for."""
    states = [next_of(past) for next_of, past in zip(following, moment.pasts, strict=True)]
    return tuple(getattr(state, "cell", None) for state in states)


def way_to(moment: Moment, came: dict[Moment, tuple[Moment, int, Step] | None]) -> Way:
    """The steps that lead to a moment."""
    steps: list[tuple[int, Step]] = []
    while (before := came[moment]) is not None:
        moment, number, step = before
        steps.append((number, step))
    return tuple(reversed(steps))
