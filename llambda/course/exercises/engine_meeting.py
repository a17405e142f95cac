"""Exercise 11.2: a barrier that can be used again and again, in every order of its steps."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...errors import LlambdaError
from .base import Answer, Wrong, said
from .engine_orders import Ending, Step, Thread, TooManyOrdersError, every_order, load, store

Barrier = Callable[[int], Thread]
CASES = [(2, "ABC"), (3, "A"), (3, "AB")]  # threads, phases


def worker(rank: int, barrier: Barrier, threads: int, phases: str) -> Thread:
    """In each phase: write a part, wait for all, and look at what the next thread wrote.

    Returns what it saw: 1 for a part that was there, 0 for one that was not.
    """
    seen = []
    for phase in phases:
        yield store(f"{phase}{rank}", 1)
        yield from barrier(threads)
        seen.append((yield load(f"{phase}{(rank + 1) % threads}")))
    return tuple(seen)


def judge_meeting(answer: Answer) -> None:
    """Raises Wrong for a barrier that lets somebody go too early, or nobody go."""
    if not callable(answer):
        raise Wrong("a function is wanted.")
    if not inspect.isgenerator(answer(2)):
        raise Wrong("a generator is wanted: every access to memory is a `yield`.")
    for threads, phases in CASES:
        workers = [partial(worker, rank, answer, threads, phases) for rank in range(threads)]
        try:
            endings = every_order(workers)
        except TooManyOrdersError:
            if threads == 3:  # an answer with many steps, which two threads have judged
                continue
            raise Wrong("these are too many steps. Two or three do, and a wait.") from None
        except LlambdaError as error:
            raise Wrong(f"{error}") from None
        except Exception as error:
            raise Wrong(f"with {threads} threads it stops with {said(error)}.") from None
        for ending in sorted(endings, key=when_early):
            if ending.results is None:
                why = why_stuck(ending, threads) if endings[1:] else why_always(ending)
                raise Wrong(f"{why} {numbers(ending, endings)}")
            if any(0 in seen for seen in ending.results):
                raise Wrong(f"{why_early(ending, threads)} {numbers(ending, endings)}")


def when_early(ending: Ending) -> int:
    """The first phase in which somebody goes on too early; many if nobody does."""
    phases = zip(*(ending.results or ()), strict=True)
    return next((i for i, seen in enumerate(phases) if 0 in seen), len(CASES[0][1]))


def numbers(ending: Ending, endings: Sequence[Ending]) -> str:
    """In how many orders it goes wrong like this, and how one of them ends."""
    total = sum(each.orders for each in endings)
    last = "; ".join(f"thread {number} {step}" for number, step in ending.example[-5:])
    return f"So it is in {ending.orders:,} of {total:,} orders. One of them ends: {last}."


def why_early(ending: Ending, threads: int) -> str:
    """A thread looked for a part that was not there yet. Why?"""
    results: Any = ending.results
    steps = [step for _, step in ending.example]
    if not any(step.kind == "until" for step in steps):
        return "nobody waits: yield until(cell, condition)."
    if any(seen[0] == 0 for seen in results):
        if threads == 3:
            return (
                "two are enough for it to go on, also of three: how many they are is an argument."
            )
        return "a thread is let go before the other has come."
    arrivals = {step.cell for step in steps if step.kind == "add"}
    if any(step.kind == "store" and step.cell in arrivals for step in steps):
        return (
            "a stale generation: the first meeting is right, and what a thread waits for has been "
            "true ever since. It has to learn the generation anew each time it comes."
        )
    return (
        "the first meeting is right, and a later one is not: the count of the earlier ones is "
        "still there, nobody has reset it, and so the first to come finds it full."
    )


def why_always(ending: Ending) -> str:
    """In every order they wait for ever. From the first meeting on?"""
    if any(step.kind == "load" and step.cell in ("A0", "A1") for _, step in ending.example):
        return (
            "the first meeting is right, and at the second nobody goes on: the count is not reset, "
            "and so nobody is the last to come any more."
        )
    return "nobody ever goes on: what they wait for does not come, in no order."


def why_stuck(ending: Ending, threads: int) -> str:
    """Somebody waits for ever. What did the waiting thread do, and in which order?"""
    number = next(i for i, cell in enumerate(ending.waiting) if cell is not None)
    cell = str(ending.waiting[number])
    own = since_part(ending, number)
    arrived = next((i for i, step in enumerate(own) if step.kind == "add"), None)
    looked = next((i for i, step in enumerate(own) if step == load(cell)), None)
    if threads == 3:
        return (
            "two threads are waited for, and with three somebody waits for ever: how many they are "
            "is an argument."
        )
    if arrived is None:
        return (
            "an arrival is lost: to load a cell and then to store it are two steps, and between "
            "them another thread does the same. add() is one."
        )
    steps = [step for _, step in ending.example]
    falls = any(step.cell == cell and (step.kind, step.value) == ("store", 0) for step in steps)
    if looked is None and not falls:
        return (
            f"a thread waits for one exact number in {cell}, and a faster one has made it larger "
            "before it looks. Wait until it is at least that."
        )
    if looked is None:
        return (
            f"a thread waits at {cell} for something that comes and goes again: before it looks, "
            "another is at the next barrier already. Wait for a number that only grows."
        )
    if looked > arrived:
        return (
            f"{cell} is loaded after arriving. By then the last may have come and let all go, and "
            "the thread waits for the barrier after this one."
        )
    return (
        "the last to come lets the others go too early: one of them arrives at the next barrier, "
        "and only then is the count reset, that arrival with it."
    )


def since_part(ending: Ending, number: int) -> list[Step]:
    """A thread's steps since it last wrote its part."""
    own = [step for each, step in ending.example if each == number]
    parts = [i for i, step in enumerate(own) if step.kind == "store" and is_part(step.cell, number)]
    return own[parts[-1] + 1 :]


def is_part(cell: object, number: int) -> bool:
    return cell in [f"{phase}{number}" for _, phases in CASES for phase in phases]
