"""Exercises that answer at once, and say why a wrong answer is wrong.

A checker is a function of the reader's answer that returns a remark, or raises Wrong with what was
forgotten. `exercise` makes an Exercise of it, which a notebook calls:

    00.1 not attempted yet
    00.1 solved. <remark>
    00.1 not yet: <what was forgotten>

Checkers compare results, and never use the clock.
"""

import dis
import inspect
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ...errors import one_line

MOST_PRINTED = 10_000  # characters that an answer may print
MOST_YIELDED = 100_000  # values of an iterator: one may have no end
MANY = 8  # values of a list; of more, only the first and the last are shown

Answer = Any  # what the reader wrote: a number, a dict of choices, a function or a class
Function = Callable[..., Any]


class Wrong(Exception):  # noqa: N818 - an answer is wrong; nothing went wrong
    """An answer is wrong, and this is what was forgotten."""


@dataclass(frozen=True)
class Exercise:
    """One exercise of one lesson, and the judge of its answers."""

    number: str  # 00.1
    title: str
    kind: str  # code, predict or diagnose
    minutes: int
    difficulty: int  # 1 to 5
    judge: Callable[[Answer], str]

    def __call__(self, answer: Answer) -> None:
        """Print the verdict, on a line of its own, below what the answer prints itself."""
        with redirect_stdout(io.StringIO()) as printed:
            verdict = self.verdict(answer)
        if text := printed.getvalue().rstrip("\n"):
            print(text[:MOST_PRINTED])
        print(verdict)

    def verdict(self, answer: Answer) -> str:
        """One line: not attempted yet, solved, or not yet and why."""
        try:
            if untouched(answer):
                return f"{self.number} not attempted yet"
            if isinstance(answer, Mapping) and (open_ := [k for k in answer if answer[k] is ...]):
                raise Wrong(f"no answer yet for {', '.join(map(str, open_))}.")
            return f"{self.number} solved. {self.judge(answer)}"
        except Wrong as wrong:
            return f"{self.number} not yet: {wrong}"
        except (Exception, SystemExit) as error:
            return f"{self.number} not yet: your answer made the checker stop with {said(error)}"


EXERCISES: dict[str, Exercise] = {}


def exercise(
    number: str, title: str, *, kind: str, minutes: int, difficulty: int
) -> Callable[[Callable[[Answer], str]], Exercise]:
    """Make an Exercise of a function that judges an answer."""

    def register(judge: Callable[[Answer], str]) -> Exercise:
        EXERCISES[number] = Exercise(number, title, kind, minutes, difficulty, judge)
        return EXERCISES[number]

    return register


# ---------------------------------------------------------------- was it attempted?


def untouched(answer: Answer) -> bool:
    """Whether an answer is still the stub: `...`, a dict of them, or a function without a body."""
    if isinstance(answer, Mapping):
        return all(value is ... for value in answer.values())
    if isinstance(answer, type):
        methods = [value for value in vars(answer).values() if callable(value)]
        return bool(methods) and all(untouched(method) for method in methods)
    answer = inspect.unwrap(answer) if callable(answer) else answer  # a static method's function
    if hasattr(answer, "__code__"):
        steps = [step for step in dis.get_instructions(answer) if step.opname != "RESUME"]
        returned = [step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")]
        return len(steps) <= 2 and returned == [None]
    return answer is ...


# ---------------------------------------------------------------- the three kinds of answer


def expect_number(
    answer: Answer,
    right: float,
    mistakes: Mapping[float, str] | Mapping[int, str],
    share: float = 0.01,
) -> None:
    """Accept a number within `share` of the right one; explain those in `mistakes`.

    Raises Wrong for every other answer.
    """
    try:
        number = float(answer)
    except (TypeError, ValueError):
        raise Wrong(f"a number is wanted, and {shown(answer)} is none.") from None
    except OverflowError:  # a whole number that no float can hold
        number = math.inf if answer > 0 else -math.inf
    if near(number, right, share):
        return
    for wrong, why in mistakes.items():
        if near(number, wrong, share):
            raise Wrong(why)
    direction = "too large" if number > right else "too small"
    raise Wrong(f"{number:,.6g} is {direction}. Write down the unit of every factor, and multiply.")


def near(number: float, other: float, share: float) -> bool:
    return abs(number - other) <= share * abs(other)


def expect_choices(
    answer: Answer, right: Mapping[str, Any], mistakes: Mapping[tuple[str, Any], str]
) -> None:
    """Accept the right choice for every key; explain a wrong one by (key, choice).

    Raises Wrong for the first key whose choice is wrong, and for a missing key.
    """
    if not isinstance(answer, Mapping):
        raise Wrong(f"a dict with the keys {', '.join(right)} is wanted.")
    for key, choice in right.items():
        if key not in answer:
            raise Wrong(f"{key} is missing.")
        if not same(answer[key], choice):
            raise Wrong(f"{key}: {why_not(key, answer[key], mistakes)}")


def why_not(key: str, given: Any, mistakes: Mapping[tuple[str, Any], str]) -> str:
    """What to say to a wrong choice, of whatever kind it is."""
    for (name, wrong), why in mistakes.items():
        if name == key and same(given, wrong):
            return why
    if not np.isscalar(given):
        return f"one choice is wanted, by itself, and {shown(given)} is none."
    return "look at it again."


@dataclass(frozen=True)
class Raised:
    """What a call ended with instead of a value; equal to any other exception."""

    said: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised)


def expect_calls(
    function: Answer,
    cases: Sequence[tuple[Any, ...]],
    right: Function,
    mistakes: Sequence[tuple[Function, str]] = (),
    tolerance: float = 0.0,
) -> None:
    """Accept a function that gives what `right` gives, for every case (a tuple of arguments).

    Numbers may differ by `tolerance`. Where the answer is wrong it is compared with the functions
    in `mistakes`: the first that gives the same wrong results has the explanation. Every call gets
    arguments of its own, so that one that changes them harms nobody. Raises Wrong otherwise, with
    the first case that differs.
    """
    if not callable(function):
        raise Wrong(f"a function is wanted, and {shown(function)} is none.")
    wrong = [
        case for case in cases if not same(result(function, case), result(right, case), tolerance)
    ]
    if not wrong:
        return
    call = f"{getattr(function, '__name__', 'function')}({', '.join(map(shown, wrong[0]))})"
    given, wanted = result(function, wrong[0]), result(right, wrong[0])
    example = f"{call} gives {shown(given)}; right is {shown(wanted)}."
    for mistake, why in mistakes:
        if all(same(result(function, c), result(mistake, c), tolerance) for c in wrong):
            raise Wrong(f"{why} {example}")
    raise Wrong(example)


def result(function: Function, case: tuple[Any, ...]) -> Any:
    """What a call gives (of an iterator, a list of what it yields), or that it raised."""
    try:
        value = function(*deepcopy(case))
        return list(islice(value, MOST_YIELDED)) if isinstance(value, Iterator) else value
    except (Exception, SystemExit) as error:
        return Raised(said(error))


def said(error: BaseException) -> str:
    """The kind of an error and its words, on one line: `ValueError: ...`, `struct.error: ...`."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    try:
        words = str(error)
    except Exception:  # an answer may raise an error of its own making
        words = "(its text raises another error)"
    return one_line(f"{name}: {words}")


def same(a: Any, b: Any, tolerance: float = 0.0) -> bool:
    """Equal in kind and value; arrays in shape too. Numbers may differ by `tolerance`."""
    a, b = (x.item() if isinstance(x, np.generic) else x for x in (a, b))
    if isinstance(a, (bool, str, bytes, Raised)) or isinstance(b, (bool, str, bytes, Raised)):
        return type(a) is type(b) and bool(a == b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, int) and isinstance(b, int) and not tolerance:
        return a == b
    try:
        left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    except (TypeError, ValueError, OverflowError):
        return type(a) is type(b) and not isinstance(a, np.ndarray) and bool(a == b)
    if left.shape != right.shape:
        return False
    return bool(np.allclose(left, right, rtol=0, atol=tolerance, equal_nan=True))


def shown(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, Raised):
        return f"the error {value.said}"
    if isinstance(value, np.ndarray):
        numbers = np.array2string(value, precision=4, threshold=8, edgeitems=3, separator=", ")
        flat = " ".join(numbers.split())
        return f"{flat} of shape {value.shape}" if value.ndim > 1 else flat
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.6g}"
    if isinstance(value, (list, tuple)) and len(value) > MANY:
        first, last = (", ".join(map(shown, part)) for part in (value[:3], value[-3:]))
        return f"[{first}, ..., {last}] of length {len(value)}"
    text = one_line(repr(value))
    return text if len(text) <= 100 else f"{text[:97]}..."
