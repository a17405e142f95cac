"""One goal, what was measured of it, and a table of many."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from llambda.race import Say, Spread


@dataclass(frozen=True)
class Goal:
    """A number that was measured, and the one it is held against.

    part, case : what was measured
    unit : of the numbers, "x llama.cpp" for instance
    value, low, high : median, least and most
    wanted : at least this, or with `at_most` at most; None where the number is only reported
    ceiling : what the machine would allow at best, where that is known
    """

    part: str
    case: str
    unit: str
    value: float
    low: float
    high: float
    wanted: float | None = None
    at_most: bool = False
    ceiling: float | None = None

    @property
    def met(self) -> bool | None:
        if self.wanted is None:
            return None
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    def times(self, number: float) -> float:
        """A number of this goal's unit as a multiple of the goal, where more is better."""
        assert self.wanted is not None
        return self.wanted / number if self.at_most else number / self.wanted


class Settings(NamedTuple):
    """What all parts are told.

    rounds : pairs of runs
    threads : numbers of threads to measure with; the last is all cores
    """

    rounds: int
    threads: tuple[int, ...]
    say: Say


Part = Callable[[Settings], Iterable[Goal]]


def of_spread(
    part: str,
    case: str,
    unit: str,
    spread: Spread,
    wanted: float | None = None,
    at_most: bool = False,
    ceiling: float | None = None,
) -> Goal:
    low, value, high = spread
    return Goal(part, case, unit, value, low, high, wanted, at_most, ceiling)


def geometric_mean(numbers: Iterable[float]) -> float:
    return exp(fmean(log(number) for number in numbers))


def mean_of(goals: list[Goal], wanted: float) -> Goal:
    """The geometric mean of cases, of their lows and of their highs."""
    first = goals[0]
    return Goal(
        first.part,
        f"geometric mean of {len(goals)}",
        first.unit,
        *(geometric_mean(getattr(goal, n) for goal in goals) for n in ("value", "low", "high")),
        wanted,
    )


def table(goals: Iterable[Goal]) -> str:
    verdicts = {True: "met", False: "NOT MET", None: ""}
    lines = [
        f"{'part':<11} {'case':<34} {'median':>8} {'low':>8} {'high':>8} {'goal':>9} "
        f"{'ceiling':>8}  unit"
    ]
    for goal in goals:
        sign = "" if goal.wanted is None else "<= " if goal.at_most else ">= "
        wanted = "" if goal.wanted is None else f"{goal.wanted:.4g}"
        ceiling = "" if goal.ceiling is None else f"{goal.ceiling:.3g}"
        lines.append(
            f"{goal.part:<11} {goal.case:<34} {goal.value:>8.3g} {goal.low:>8.3g} "
            f"{goal.high:>8.3g} {sign + wanted:>9} {ceiling:>8}  {goal.unit} {verdicts[goal.met]}"
        )
    return "\n".join(lines)
