"""Engines measured in turn, A B C A B C, so that what disturbs one disturbs the others as well.

A computer is rarely quiet, and its speed moves by more than many an improvement. What holds still
is the ratio of two runs that stood side by side: so ratios are taken pair by pair.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from .engines.base import Engine

PROMPT = 512  # tokens of which the prefill is timed
START = 8  # tokens before those of which the decoding is timed
NEW = 32
ROUNDS = 7
# An engine whose run would take longer than SLOW seconds gets as many tokens as it can do in
# ENOUGH seconds each, in SLOW_ROUNDS of the rounds.
SLOW, ENOUGH, SLOW_ROUNDS = 10.0, 2.0, 3
PAUSE = 0.02  # seconds before each run, in which the threads of the one before fall asleep

Say = Callable[[str], object]  # takes a line that tells of progress


class Spread(NamedTuple):
    low: float
    median: float
    high: float


class Task(NamedTuple):
    """What an engine does in one run, tokens of a prompt and tokens decoded; and how often."""

    prompt: int
    new: int
    rounds: int


class Run(NamedTuple):
    """Tokens a second."""

    prefill: float
    decode: float


@dataclass
class Race:
    """All that was measured.

    runs : by engine and round
    bandwidth : bytes a second that weights could be read with, by round
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    runs: dict[str, dict[int, Run]] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)

    def speeds(self, name: str, what: str) -> dict[int, float]:
        """Tokens a second of "prefill" or "decode", by round."""
        return {number: getattr(run, what) for number, run in self.runs[name].items()}

    def speed(self, name: str, what: str) -> float:
        return median(self.speeds(name, what).values())

    def ratio(self, name: str, other: str, what: str) -> Spread:
        """How many times as fast as another, in the rounds that both took part in."""
        mine, others = self.speeds(name, what), self.speeds(other, what)
        return spread(mine[number] / others[number] for number in mine if number in others)

    def share(self, name: str, bytes_per_token: float) -> Spread:
        """Of the bandwidth, while decoding."""
        return spread(
            speed * bytes_per_token / self.bandwidth[number]
            for number, speed in self.speeds(name, "decode").items()
        )


def spread(values: Iterable[float]) -> Spread:
    values = list(values)
    return Spread(min(values), median(values), max(values))


def race(
    engines: Mapping[str, Engine],
    ids: Sequence[int],
    bandwidth: Callable[[], float],
    rounds: int = ROUNDS,
    say: Say = lambda line: None,
) -> Race:
    """Time engines of one model on one prompt.

    ids : PROMPT of them, or as many as the model has positions for
    bandwidth : measures bytes a second, once a round
    """
    found = Race()
    for name, engine in engines.items():
        found.tasks[name] = task_for(engine, ids, rounds)
        found.runs[name] = {}
        say(f"{name} is warm")
    for number in range(rounds):
        found.bandwidth.append(bandwidth())
        for name, engine in engines.items():
            if number < found.tasks[name].rounds:
                time.sleep(PAUSE)
                found.runs[name][number] = run_once(engine, ids, found.tasks[name])
        say(f"round {number + 1} of {rounds}")
    return found


def task_for(engine: Engine, ids: Sequence[int], rounds: int) -> Task:
    """Warm an engine up, and see how much it can do."""
    few = Task(min(START, len(ids)), 2, 1)
    run_once(engine, ids, few)  # compiles what is to be compiled
    speed = run_once(engine, ids, few)
    full = Task(len(ids), min(NEW, engine.config.context_length - few.prompt), rounds)
    if full.prompt / speed.prefill + full.new / speed.decode <= SLOW:
        run_once(engine, ids, full)
        return full
    return Task(
        between(few.prompt, ENOUGH * speed.prefill, full.prompt),
        between(few.new, ENOUGH * speed.decode, full.new),
        min(SLOW_ROUNDS, rounds),
    )


def between(low: int, value: float, high: int) -> int:
    return max(min(int(value), high), low)


def run_once(engine: Engine, ids: Sequence[int], task: Task) -> Run:
    """Evaluate a prompt; then decode greedily after a short one."""
    state = engine.new_state(task.prompt)
    begin = time.perf_counter()
    engine.forward(state, ids[: task.prompt])
    prefill = time.perf_counter() - begin
    start = ids[:START]
    state = engine.new_state(len(start) + task.new)
    logits = engine.forward(state, start)
    begin = time.perf_counter()
    for _ in range(task.new):
        logits = engine.forward(state, [int(logits.argmax())])
    return Run(task.prompt / prefill, task.new / (time.perf_counter() - begin))
