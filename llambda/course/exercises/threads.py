"""The exercises of lesson 10: parts of a matrix, a test for races, joins and tasks, four traces."""

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from .base import Answer, Raised, Wrong, exercise, expect_choices, expect_number, result, shown
from .threads_orders import every_order as every_order
from .threads_test import judge_test

Parts = list[tuple[int, int]]

LINE = 16  # float32 numbers in 64 bytes
SHARES = [
    (576, 3), (1536, 7), (49152, 2), (100, 3), (144, 4), (320, 6), (192, 32), (32, 32),
    (40, 2), (5, 2), (1, 1),
]  # fmt: skip


# ---------------------------------------------------------------- 10.1


def parts_of(answer: Answer, rows: int, threads: int) -> Parts:
    """What the answer gives, as pairs of whole numbers. Raises Wrong for everything else."""
    given = result(answer, (rows, threads))
    call = f"partition({rows}, {threads})"
    if given is None:
        raise Wrong(f"{call} returns nothing. A list of pairs is wanted.")
    if isinstance(given, Raised):
        raise Wrong(f"{call} gives {shown(given)}.")
    try:
        ends = [(first, last) for first, last in given]
    except (TypeError, ValueError):
        raise Wrong(f"{call} gives {shown(given)}, which is no list of pairs.") from None
    try:
        parts = [(index(first), index(last)) for first, last in ends]
    except TypeError:
        raise Wrong(f"{call} gives {shown(ends)}. Rows are whole numbers: divide by //.") from None
    if len(parts) == rows != threads:
        raise Wrong(
            f"a task for every row: {call} has {rows} of them. To fork and to join costs "
            "microseconds a task, and a row takes less. One part for each thread."
        )
    if len(parts) != threads:
        raise Wrong(
            f"{call} has {len(parts)} parts. Return one for each thread, also where some are empty."
        )
    return parts


def complete(parts: Parts, rows: int) -> str:
    """What is wrong with parts that should be all rows, each once, in order; "" if nothing is."""
    at = 0
    for first, last in parts:
        if last < first:
            more = " Is the second number a count?" if parts[0][0] == 0 else ""
            return f"the part ({first}, {last}) ends before it begins.{more}"
        if first == last:
            continue
        if first > at:
            closed = " The end of a part is the first row that is not in it." * (first == at + 1)
            return f"rows from {at} to {first - 1} are in no part.{closed}"
        if first < at:
            return f"row {first} is in two parts, and two threads write it."
        at = last
    if at > rows:
        return f"the last part ends at {at}: behind the {rows} rows a kernel would write elsewhere."
    if at < rows:
        return f"rows from {at} on are in no part: the remainder of the division is lost."
    return ""


def whole_lines(parts: Parts, rows: int) -> str:
    for first, last in parts:
        if first < last < rows and last % LINE:
            return (
                f"rows {last - 1} and {last} lie in one cache line, and two threads write it. "
                f"Share out lines of {LINE} numbers, and not rows."
            )
    return ""


def even(parts: Parts, rows: int) -> str:
    lines = [-(-last // LINE) - first // LINE if first < last else 0 for first, last in parts]
    if max(lines) - min(lines) <= 1:
        return ""
    counts = ", ".join(map(str, lines[:8])) + ", ..." * (len(lines) > 8)
    why = "all threads wait for the one with the most"
    if lines.count(0) == len(lines) - 1:
        why = "one thread does it all"
    elif lines[-1] == max(lines):
        why = f"the last thread takes all that is left, and {why}"
    elif lines[-1] == min(lines):
        why = f"the first threads are filled up, little is left for the last, and {why}"
    return f"parts of {counts} lines: {why}. They may differ by one line."


@exercise("10.1", "Whole lines", kind="code", minutes=10, difficulty=2)
def partition(answer: Answer) -> str:
    if not callable(answer):
        raise Wrong(f"a function is wanted, and {shown(answer)} is none.")
    given = [(parts_of(answer, *case), case) for case in SHARES]
    checks: Sequence[Callable[[Parts, int], str]] = (complete, whole_lines, even)
    for check in checks:
        for parts, (rows, threads) in given:
            if why := check(parts, rows):
                raise Wrong(f"{why} This is partition({rows}, {threads}).")
    return (
        "Complete, disjoint, whole lines, even to one line. No thread writes where another one "
        "reads or writes, so no lock is needed. llambda's `share` is this in two lines, and can "
        "be called from compiled code."
    )


# ---------------------------------------------------------------- 10.2


@exercise("10.2", "A test that no race survives", kind="code", minutes=20, difficulty=4)
def test(answer: Answer) -> str:
    judge_test(answer)
    return (
        "It accepts all three right classes and rejects all six racy ones, in every run. Two "
        "workers and two numbers are enough for that: most races show in a small case, if all of "
        "its orders are tried."
    )


# ---------------------------------------------------------------- 10.3

LAYERS, MATRICES = 30, 7
LOGICAL, PHYSICAL = 8, 4
JOIN, ROW = 36e-6, 25e-9  # seconds
ROWS = {"q": 576, "k": 192, "v": 192, "o": 576, "gate": 1536, "up": 1536, "down": 576}


def least_rows(threads: int) -> float:
    """Rows at which one thread takes as long as so many, and a join."""
    return JOIN / (ROW * (1 - 1 / threads))


JOINS_MISTAKES: dict[int, str] = {
    LAYERS: "that is one for each layer, and a layer has seven matrices, each with its join.",
    LAYERS * MATRICES: "the head, behind the last layer, is forgotten.",
    LAYERS * MATRICES + LAYERS + 1: (
        "attention is counted, too. Rung 6 does join after it, but the question is about matrices."
    ),
    MATRICES + 1: "that is one layer and the head.",
}
THREADS_MISTAKES: dict[int, str] = {
    LOGICAL: (
        "those are the logical cores. Two threads on one core share its multipliers: together they "
        "are as fast as one."
    ),
    1: "one part is no sharing.",
    ROWS["q"]: "a part for each row: every part has its price.",
}
ROWS_MISTAKES: dict[float, str] = {
    JOIN / ROW: (
        "that is what one thread computes in the time of a join. But sharing saves only three "
        "quarters of its time: four threads still need the fourth one."
    ),
    least_rows(
        LOGICAL
    ): "that is for eight threads that are as fast as eight. There are four cores.",
    JOIN / ROW * PHYSICAL: (
        "that is where each thread's part takes as long as the join. Compare one thread's time "
        "with a part's time *and* the join."
    ),
    JOIN / ROW / PHYSICAL: "the time of a row was multiplied by four, and should be divided.",
    least_rows(PHYSICAL) / 1000: "a microsecond is 1,000 nanoseconds: look at the units.",
}


@exercise("10.3", "Joins, and what is worth one", kind="predict", minutes=8, difficulty=3)
def joins(answer: Answer) -> str:
    right = least_rows(PHYSICAL)
    wanted: Mapping[str, tuple[float, Mapping[Any, str], float]] = {
        "joins": (LAYERS * MATRICES + 1, JOINS_MISTAKES, 1e-9),
        "parts": (PHYSICAL, THREADS_MISTAKES, 1e-9),
        "rows": (right, ROWS_MISTAKES, 0.01),
    }
    if not isinstance(answer, Mapping):
        raise Wrong(f"a dict with the keys {', '.join(wanted)} is wanted.")
    for key, (value, mistakes, share) in wanted.items():
        if key not in answer:
            raise Wrong(f"{key} is missing.")
        try:
            expect_number(answer[key], value, mistakes, share)
        except Wrong as wrong:
            raise Wrong(f"{key}: {wrong}") from None
    worth = [name for name, rows in ROWS.items() if rows > right]
    assert not worth
    return (
        f"Below {right:,.0f} rows a join costs more than it saves. The widest matrices of the "
        f"layers have {max(ROWS.values()):,}: of 211, only the head with its 49,152 rows is worth "
        "sharing. In larger models all of them are."
    )


# ---------------------------------------------------------------- 10.4

TRACES = {
    "A": """\
8 threads on 8 physical cores count words, and add each to one table
  result     right in 1,000 of 1,000 runs
  time       1 thread 100 ms, 2 threads 104 ms, 8 threads 131 ms
  a thread   works 14 ms, waits 117 ms in lock.acquire()""",
    "B": """\
4 threads compute a matrix product of 1,024 rows in 4 parts
  result     rows 512 to 767 are zeros, in every run; the others are right
  log        begin 0, begin 1, begin 2, begin 3, end 1, end 0, end 3
  time       as always""",
    "C": """\
4 threads add 1 to a counter, 1,000,000 times each
  result     4,000,000 in 9,991 runs; 3,999,998, 3,999,871 and others in 9 runs
  1 thread   4,000,000 in 10,000 runs
  log        begin 0, begin 1, begin 2, begin 3, end 0, end 1, end 3, end 2""",
    "D": """\
a sum of 1,000,000 float32 numbers, of which each thread adds up a part
  1 thread   499,917.66 in 10,000 of 10,000 runs
  2 threads  499,917.72 in 10,000 of 10,000 runs
  4 threads  499,917.69 in 10,000 of 10,000 runs""",
}
CAUSES = ("race", "contention", "order of addition", "lost exception", "oversubscription")


@exercise("10.4", "Four traces", kind="diagnose", minutes=6, difficulty=2)
def traces(answer: Answer) -> str:
    right = {
        "A": "contention",
        "B": "lost exception",
        "C": "race",
        "D": "order of addition",
    }
    mistakes = {
        ("A", "race"): (
            "a race gives wrong results now and then, and here 1,000 are right. The threads wait "
            "for a lock, which is there to prevent one: it costs time, not correctness."
        ),
        (
            "A",
            "oversubscription",
        ): "there are as many cores as threads, and two gain nothing either.",
        ("A", "lost exception"): "nothing is missing in the result.",
        ("A", "order of addition"): "counts are whole numbers: they add up alike in any order.",
        ("B", "race"): (
            "a race is wrong now and then, and never twice alike. Here the same rows are missing "
            "every time. Compare the lines that begin with those that end."
        ),
        ("B", "contention"): "nobody waits: it takes as long as always.",
        ("B", "order of addition"): "that changes last digits, and not whole rows to zero.",
        ("B", "oversubscription"): "that would be slow, and not wrong.",
        ("C", "lost exception"): "all four threads have ended, each at its end.",
        ("C", "contention"): "contention is slow, and not wrong.",
        ("C", "order of addition"): (
            "a counter is a whole number, exact in any order; and with as many threads the same "
            "program gives different results."
        ),
        ("C", "oversubscription"): "that would be slow, and not wrong.",
        ("D", "race"): (
            "with as many threads it is the same in 10,000 runs, and a race would not be. What "
            "changes is where the sum is cut."
        ),
        ("D", "contention"): "nothing is said of time.",
        ("D", "lost exception"): "a part that is missing would change more than the last digits.",
        ("D", "oversubscription"): "that would be slow, and no other number.",
    }
    for name, cause in answer.items() if isinstance(answer, Mapping) else ():
        if name in right and cause not in CAUSES:
            raise Wrong(f"{name}: {shown(cause)} is none of {', '.join(CAUSES)}.")
    expect_choices(answer, right, mistakes)
    return (
        "Three questions tell them apart. Is it wrong, or only slow? Wrong in every run, or now "
        "and then? Does it change with the run, or with the number of threads?"
    )
