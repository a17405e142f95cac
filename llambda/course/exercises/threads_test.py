"""Exercise 10.2: a test that is tested, by three right classes and six racy ones."""

from typing import Any

import numpy as np

from . import threads_orders as orders
from .base import Answer, Wrong, shown
from .threads_orders import Numbers, Task

RIGHT: dict[type[Numbers], str] = {
    Numbers: "holds one lock around everything",
    orders.InOneStep: "reads and adds in one step",
    orders.FromTheEnd: "hands out the highest number first",
}
RACY: dict[type[Numbers], str] = {
    orders.NoLock: "reads and writes without a lock, so two workers get the same number",
    orders.TooEarly: "lets go of its lock before it writes, so two workers get the same number",
    orders.TwoLocks: "makes its lock when it is first needed, and two workers may make two",
    orders.SharedResult: (
        "keeps its result in a field that the next call overwrites, so that one number comes twice "
        "and another one never"
    ),
    orders.LooksOutside: "looks before it has the lock, and hands out one number too many",
    orders.KeepsTheLock: "keeps the lock when no number is left, and the other workers are stuck",
}


class Notes:
    """What a test did.

    made : objects;  most : the highest n
    calls, ends : of `take`, and those that gave None;  together : the most at a time
    """

    def __init__(self) -> None:
        self.made = self.most = self.calls = self.ends = self.together = 0
        self.begun = 0  # calls that have not returned


def watched(kind: type[Numbers], notes: Notes) -> type[Numbers]:
    """The same class, but it takes notes."""

    class Watched(kind):  # type: ignore[valid-type, misc]
        def __init__(self, n: int):
            notes.made += 1
            notes.most = max(notes.most, n)
            super().__init__(n)

        def take(self) -> Task:
            notes.calls += 1
            notes.begun += 1
            notes.together = max(notes.together, notes.begun)
            try:
                number = yield from super().take()
                notes.ends += number is None
                return number
            finally:
                notes.begun -= 1

    return Watched


def accepts(answer: Answer, kind: type[Numbers], notes: Notes) -> bool:
    try:
        given: Any = answer(watched(kind, notes))
    except TypeError as error:
        if "NoneType" not in str(error):
            raise
        why = "That is what `take` gives when no number is left."
        if kind in RACY:
            why = "That is the outcome where workers are stuck."
        raise Wrong(f"your test does not reckon with None, and stops: {error}. {why}") from None
    if given is None:
        raise Wrong("your test returns nothing. It should return True or False.")
    if not isinstance(given, bool | np.bool_):
        raise Wrong(f"your test returns {shown(given)}. It should return True or False.")
    return bool(given)


def judge_test(answer: Answer) -> None:
    """Raise Wrong unless the test accepts what is right and nothing else."""
    if not callable(answer):
        raise Wrong(f"a function is wanted, and {shown(answer)} is none.")
    notes = Notes()
    rejected = [kind for kind in RIGHT if not accepts(answer, kind, notes)]
    if notes.calls == 0:
        raise Wrong("your test never runs `take`: write `yield from numbers.take()`.")
    if rejected:
        raise Wrong(why_rejected(rejected, notes))
    if survivors := [kind for kind in RACY if accepts(answer, kind, Notes())]:
        raise Wrong(f"{why_passed(survivors, notes)} ({len(survivors)} of 6 racy classes pass.)")


def why_rejected(rejected: list[type[Numbers]], notes: Notes) -> str:
    if rejected == [orders.FromTheEnd]:
        return (
            "correct code is rejected: the class that hands out the highest number first. Nobody "
            "promised an order, so sort before you compare."
        )
    if notes.ends > notes.together * notes.made:  # more than one for each worker
        return (
            "correct code is rejected: your object is made once, and all orders share it. Make it "
            "inside of `make`, anew for every order."
        )
    return (
        f"correct code is rejected: a class that {RIGHT[rejected[0]]}. Promised is only that each "
        "number below n comes once and no other; not which worker gets it, nor how many."
    )


def why_passed(survivors: list[type[Numbers]], notes: Notes) -> str:
    if notes.together < 2 and notes.ends == notes.made:
        return "there is one worker, and one alone cannot race. Make two."
    if notes.together < 2:
        return (
            "one lucky run proves nothing: never are two workers inside of `take` at once. "
            "Let every_order run them."
        )
    if notes.made == len(RIGHT):
        return "your test is content with the first order that goes well, and all of them have to."
    why = f"a racy class passes: it {RACY[survivors[0]]}."
    names = set(survivors)
    if {orders.LooksOutside, orders.KeepsTheLock} <= names and orders.NoLock not in names:
        return f"{why} It goes wrong only at the end: let workers take until they get None."
    if names == {orders.KeepsTheLock}:
        return f"{why} Then every_order gives None in place of an outcome, which is not right."
    if names == {orders.SharedResult} and notes.most < 2:
        return f"{why} With a single number there is nothing to overwrite it with: hand out two."
    if names == {orders.SharedResult}:
        return f"{why} How many come is right: look which ones."
    if orders.LooksOutside in names and orders.NoLock not in names:
        return f"{why} No number comes twice: look whether each is one of those below n."
    if orders.NoLock in names and orders.LooksOutside not in names:
        return f"{why} No number is missing: look whether one comes twice."
    return why
