"""Exercise 11.1: where threads must wait for one another, and where they need not."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from .base import Answer, Raised, Wrong, result, shown


class Operation(NamedTuple):
    """What every thread does between two places where it may have to wait.

    reads : buffer -> "own", the part that the thread itself wrote, or "all" of it
    writes : buffer -> "own", a part of a buffer that all share, or "copy", the whole of it, into
        memory that is the thread's alone
    """

    name: str
    reads: Mapping[str, str]
    writes: Mapping[str, str]


Operations = Sequence[Operation]

LAYER = [
    Operation("norm", {"x": "all"}, {"normed": "copy"}),
    Operation("qkv", {"normed": "all"}, {"qkv": "own"}),
    Operation("turn", {"qkv": "own"}, {"q": "own", "cache": "own"}),
    Operation("score", {"q": "all", "cache": "all"}, {"scores": "own"}),
    Operation("mix", {"scores": "all", "cache": "all"}, {"mixed": "own"}),
    Operation("out", {"mixed": "all"}, {"y": "own"}),
    Operation("add", {"x": "own", "y": "own"}, {"x": "own"}),
    Operation("norm", {"x": "all"}, {"normed": "copy"}),
    Operation("gate_up", {"normed": "all"}, {"gate": "own", "up": "own"}),
    Operation("swiglu", {"gate": "own", "up": "own"}, {"inner": "own"}),
    Operation("down", {"inner": "all"}, {"y": "own"}),
    Operation("add", {"x": "own", "y": "own"}, {"x": "own"}),
]


def looks(operation: Operation) -> set[str]:
    """Buffers of which a thread reads what others may have written."""
    return {buffer for buffer, how in operation.reads.items() if how == "all"}


def changes(operation: Operation) -> set[str]:
    """Buffers of which others may see what a thread writes."""
    return {buffer for buffer, how in operation.writes.items() if how == "own"}


def fewest(operations: Operations) -> list[int]:
    """As late as possible: a barrier only where something would go wrong without."""
    barriers: list[int] = []
    read: set[str] = set()
    written: set[str] = set()
    for i, operation in enumerate(operations):
        if looks(operation) & written or changes(operation) & read:
            barriers.append(i)
            read, written = set(), set()
        read |= looks(operation)
        written |= changes(operation)
    return barriers


class Conflict(NamedTuple):
    """Two operations, and a buffer on account of which a barrier must stand between them."""

    first: int
    second: int
    buffer: str
    kind: str  # "written, then read" or "read, then written"


def conflicts(operations: Operations) -> Iterator[Conflict]:
    for j, second in enumerate(operations):
        for i in reversed(range(j)):
            for buffer in sorted(looks(second) & changes(operations[i])):
                yield Conflict(i, j, buffer, "written, then read")
            for buffer in sorted(changes(second) & looks(operations[i])):
                yield Conflict(i, j, buffer, "read, then written")


def settles(barriers: Sequence[int], conflict: Conflict) -> bool:
    return any(conflict.first < at <= conflict.second for at in barriers)


def unsettled(operations: Operations, barriers: Sequence[int]) -> Conflict | None:
    """The first conflict that no barrier stands in."""
    return next((c for c in conflicts(operations) if not settles(barriers, c)), None)


# ---------------------------------------------------------------- the programs that are asked for


def step(name: str, reads: str = "", writes: str = "") -> Operation:
    """Of a text such as "x all, y own"."""
    pairs = [dict(part.split() for part in text.split(", ") if part) for text in (reads, writes)]
    return Operation(name, *pairs)


SMALL: list[Operations] = [
    [step("a", "", "u own"), step("b", "u all", "v own"), step("c", "u all", "w own")],
    [step("a", "x all", "y own"), step("b", "y own", "x own")],
    [step("a", "", "u own"), step("b", "", "v own"), step("c", "u all", ""), step("d", "v all")],
    [step("a", "", "u own"), step("b", "", "v own"), step("c", "v own"), step("d", "u all")],
    [step("a", "", "n own"), step("b", "n all", "y own")],
]


def drawn(random: Random) -> Operations:
    """A few operations on four buffers and copies; none reads all of what it writes itself."""
    found: list[Operation] = []
    for name in "abcdefgh":
        uses = {buffer: random.choice(("own", "all", "w", "w", "")) for buffer in "stuv"}
        reads = {buffer: how for buffer, how in uses.items() if how in ("own", "all")}
        writes = {buffer: "own" for buffer, how in uses.items() if how == "w"}
        if found and "n" in found[-1].writes:
            reads["n"] = "all"
        elif random.random() < 0.4:
            writes["n"] = "copy"
        found.append(Operation(name, reads, writes))
    return found


def programs() -> Iterator[Operations]:
    yield LAYER + LAYER
    yield from SMALL
    random = Random(11)
    for _ in range(40):
        yield drawn(random)


# ---------------------------------------------------------------- the judge


def places(answer: Callable[[Operations], Any], operations: Operations) -> list[int]:
    """The places of an answer's barriers. Raises Wrong for everything else."""
    given = result(answer, (list(operations),))
    if isinstance(given, Raised):
        raise Wrong(f"for {written(operations)} there comes {shown(given)}.")
    if isinstance(given, int):
        raise Wrong("that is how many barriers there are. Wanted is where they stand, a list.")
    try:
        found = sorted({operator.index(at) for at in given})
    except TypeError:
        raise Wrong(
            f"a list of places is wanted, such as [3, 4], and {shown(given)} is none."
        ) from None
    if any(not 0 <= at < len(operations) for at in found):
        raise Wrong(f"{shown(found)} has places that are none: operations count from 0.")
    return [at for at in found if at > 0]  # before the first there is nothing to wait for


def written(operations: Operations) -> str:
    if operations == LAYER + LAYER:
        return "two layers"
    return " ".join(f"{o.name}({reading(o)} -> {reading(o, True)})" for o in operations)


def reading(operation: Operation, writes: bool = False) -> str:
    uses = operation.writes if writes else operation.reads
    return ", ".join(f"{buffer} {how}" for buffer, how in uses.items())


def judge_fewest(answer: Answer) -> None:
    """Raises Wrong for an answer that leaves out a barrier, or has one too many."""
    if not callable(answer):
        raise Wrong("a function is wanted.")
    for number, operations in enumerate(programs()):
        barriers = places(answer, operations)
        complaint = why_wrong(operations, barriers)
        if complaint is not None:
            where = "Two layers come out right, another list does not: " if number else ""
            raise Wrong(where + complaint)


def why_wrong(operations: Operations, barriers: Sequence[int]) -> str | None:
    conflict, right = unsettled(operations, barriers), fewest(operations)
    if conflict is not None:
        later = [at + 1 for at in barriers]
        if len(later) == len(right) and unsettled(operations, later) is None:
            return "a place is the operation *before* which a barrier stands, not behind which."
        return why_unsafe(operations, barriers, conflict)
    return why_too_many(operations, barriers, right) if len(barriers) > len(right) else None


def why_unsafe(operations: Operations, barriers: Sequence[int], conflict: Conflict) -> str:
    first, second = operations[conflict.first].name, operations[conflict.second].name
    buffer = conflict.buffer
    where = f"Seen in {written(operations)}."
    if conflict.kind == "read, then written":
        return (
            f"{second} writes its part of {buffer} while another thread may still be reading all "
            f"of it in {first}. A write after a read needs a barrier, too. {where}"
        )
    if conflict.second > conflict.first + 1:
        return (
            f"nothing stands between {first}, which writes {buffer}, and {second}, which reads all "
            "of it. They are no neighbours: remember everything that was written since the last "
            f"barrier. {where}"
        )
    if conflict.first in barriers:
        where = f"The barrier before {first} does not count for what {first} itself writes. {where}"
    return (
        f"nothing stands between {first} and {second}: {second} reads all of {buffer}, and another "
        f"thread may not have written its part of it yet. {where}"
    )


def why_too_many(operations: Operations, barriers: Sequence[int], right: Sequence[int]) -> str:
    counted = f"{written(operations)}: {len(barriers)} barriers, where {len(right)} do."
    if len(barriers) == len(operations) - 1:
        return f"a barrier before every operation is safe, and is all waiting. In {counted}"
    for at in barriers:
        if unsettled(operations, [each for each in barriers if each != at]) is None:
            return f"{why_idle(operations, barriers, at)} In {counted}"
    return (
        f"one barrier can settle more than one thing, if it stands as late as it may. In {counted}"
    )


def why_idle(operations: Operations, barriers: Sequence[int], at: int) -> str:
    """Why the barrier before operation `at` settles nothing."""
    before, after = operations[at - 1], operations[at]
    earlier = [each for each in barriers if each < at]
    if any(c.second == at and settles(earlier, c) for c in conflicts(operations)):
        return (
            f"the barrier before {after.name} is for something that an earlier barrier has "
            "settled. Behind a barrier, begin anew."
        )
    copies = [b for b, how in before.writes.items() if how == "copy" and b in after.reads]
    if copies:
        return (
            f"there is a barrier between {before.name} and {after.name}, for {copies[0]}. But "
            "every thread wrote a whole copy of it for itself: that is what the same work is done "
            "twice for."
        )
    own = [b for b, how in after.reads.items() if how == "own" and b in before.writes]
    if own:
        return (
            f"there is a barrier between {before.name} and {after.name}, for {own[0]}. But a "
            "thread reads only what it wrote itself, and need not wait for that."
        )
    if any(settles([at], conflict) for conflict in conflicts(operations)):
        return (
            f"the barrier before {after.name} can go: what it settles, another of yours settles, "
            "too. A barrier that stands as late as it may settles most."
        )
    return f"the barrier before {after.name} can go: nothing on either side of it concerns others."
