"""Compiled jobs reach every worker exactly once, whether it is awake, asleep or on its way."""

import faulthandler
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator, Iterator
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numba import njit

from llambda.barrier import ABORTED, ARRIVED, ASLEEP, LATE, LINES, barrier, new_control
from llambda.errors import InputError
from llambda.simd.foreign import longs_at
from llambda.simd.jit import foreign
from llambda.workers import Workers

LIMIT = 120  # seconds for what takes a few

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs sched_yield, fork and signals")


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Ends the process if a test hangs, and says where."""
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@foreign
def count(argument: int, rank: int, threads: int) -> None:
    """Count a rank's calls, and after a barrier those in which all had been counted."""
    at = longs_at(argument, 2)
    calls, control = longs_at(at[0], 0), longs_at(at[1], 0)
    calls[2 * rank * LINES] += 1
    mine = calls[2 * rank * LINES]
    barrier(control, threads)
    together = True
    for other in range(threads):
        together = together and calls[2 * other * LINES] == mine
    barrier(control, threads)
    if together:
        calls[(2 * rank + 1) * LINES] += 1


class Counter:
    """Workers, and how often each rank was called."""

    def __init__(self, threads: int):
        self.workers = Workers(threads)
        self.calls = np.zeros((threads, 2, LINES), np.int64)
        self.argument = np.array([self.calls.ctypes.data, self.workers.control.ctypes.data])
        self.runs = 0

    def compiled(self) -> None:
        self.workers.run_compiled(count, self.argument.ctypes.data)
        self.runs += 1
        assert self.calls[:, :, 0].tolist() == [[self.runs, self.runs]] * len(self.calls)

    def compiled_by(self, part: int) -> None:
        """By the first `part` threads, counted anew."""
        self.calls[:] = self.runs = 0
        self.workers.run_compiled(count, self.argument.ctypes.data, part)
        called = [[1, 1]] * part + [[0, 0]] * (len(self.calls) - part)
        assert self.calls[:, :, 0].tolist() == called
        self.calls[:] = 0

    def in_python(self) -> None:
        ranks: list[int] = []
        self.workers.run(ranks.append)
        assert sorted(ranks) == list(range(len(self.calls)))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_worker_takes_part_once(threads: int):
    """Right after one another, after a pause in which all go to sleep, and just when they do."""
    counter = Counter(threads)
    draw = random.Random(threads)
    with counter.workers:
        for _ in range(400):
            match draw.randrange(4):
                case 0:
                    counter.in_python()
                case 1:
                    time.sleep(draw.choice([0, 1e-4, 1e-3, 2e-3, 5e-3]))
            counter.compiled()


def test_a_run_may_be_some_threads_only():
    """Whoever has no part goes to sleep, and comes back when it is wanted, at any moment."""
    counter = Counter(4)
    draw = random.Random(5)
    with counter.workers:
        for _ in range(1000):
            if draw.randrange(4) == 0:
                time.sleep(draw.choice([0, 1e-5, 1e-4, 1e-3]))
            counter.compiled_by(draw.choice([1, 2, 4, 4]))
        counter.compiled()


def test_time_spent_waiting_for_a_late_thread_is_counted():
    counter = Counter(2)
    with counter.workers:
        counter.compiled()
        meet(new_control(1), 1)  # compiled now, and not while somebody waits
        control = counter.workers.control
        since = time.perf_counter_ns()
        counter.workers.run(lambda rank: late(control) if rank else meet(control, 2))
        counted = control[LATE]
        assert 20e6 <= counted <= time.perf_counter_ns() - since
        counter.compiled_by(1)
        assert control[LATE] == 0


def late(control: Any) -> None:
    """20 ms after the other, whenever that comes."""
    while control[ARRIVED] == 0:
        time.sleep(0.001)
    time.sleep(0.02)
    meet(control, 2)


@njit(nogil=True)
def meet(control: Any, threads: int) -> bool:
    return barrier(control, threads)


def test_a_run_that_failed_leaves_nothing_behind():
    counter = Counter(3)

    def fail(rank: int, at: int) -> None:
        if rank == at:
            raise ValueError("planted")

    with counter.workers:
        for at in (0, 1, 2) * 20:
            with pytest.raises(ValueError, match="planted"):
                counter.workers.run(partial(fail, at=at))
            assert counter.workers.control[ABORTED] == 1
            counter.compiled()


def test_closed_workers_refuse():
    counter = Counter(2)
    counter.compiled()
    counter.workers.close()
    with pytest.raises(InputError, match="used after close"):
        counter.compiled()


def test_a_worker_that_was_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch):
    """The check above, with a rank that is never counted."""
    counter = Counter(2)
    with counter.workers:
        counter.compiled()
        counter.calls[1] -= 1
        with pytest.raises(AssertionError):
            counter.compiled()


def finish(script: str) -> str:
    begin = f"""
        import sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_handoff import *
        import signal, threading
    """
    text = textwrap.dedent(begin) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_ends_with_workers_awake():
    assert finish("counter = Counter(3)\ncounter.compiled()\ncounter.compiled()\nprint(1)") == "1\n"


def test_a_forked_child_has_workers_of_its_own():
    said = finish(
        """
        import warnings
        warnings.simplefilter("ignore")  # from Python 3.12 on, a fork beside threads warns
        counter = Counter(3)
        counter.compiled()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            counter.compiled()
            counter.compiled()
            os._exit(17)
        status = os.waitpid(child, 0)[1]
        counter.compiled()
        print(os.waitstatus_to_exitcode(status))
        """
    )
    assert said == "17\n"


def test_an_interrupt_at_any_moment_leaves_all_usable():
    said = finish(
        """
        draw = random.Random(7).uniform
        interrupts = 0

        def interrupt(*_):
            global interrupts
            interrupts += 1
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        counter = Counter(3)
        counter.compiled()
        seconds = []
        for _ in range(100):
            began = time.perf_counter()
            counter.workers.run_compiled(count, counter.argument.ctypes.data)
            seconds.append(time.perf_counter() - began)
        counter.runs += 100
        longest = 1.5 * min(seconds)  # also on a busy machine
        for _ in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw(1e-6, longest))
                counter.workers.run_compiled(count, counter.argument.ctypes.data)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
            counter.calls[:] = counter.runs = 0
            counter.compiled()
        assert threading.active_count() == 3
        print(interrupts > 50)
        """
    )
    assert said == "True\n"


def test_atomic_counts_of_the_flags_end_at_one():
    """Asleep, every worker's flag is up once; awake and in a run, it is down."""
    counter = Counter(3)
    with counter.workers:
        for _ in range(20):
            counter.compiled()
            time.sleep(0.02)
        flags = counter.workers.control[ASLEEP::LINES][1:3]
        deadline = time.monotonic() + LIMIT / 2
        while flags.tolist() != [1, 1] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert flags.tolist() == [1, 1]


# ---------------------------------------------------------------- all orders of the last moment
# The caller posts and looks for the flag; the worker puts it up and looks for a post. Every step is
# one access to shared memory, and between two of them the other may take any number of its own.

Steps = Iterator[None]


def swapped(shared: dict[str, int]) -> Generator[None, None, bool]:
    """take() as it is: one atomic exchange."""
    yield
    before, shared["flag"] = shared["flag"], 0
    return before == 1


def subtracted(shared: dict[str, int]) -> Generator[None, None, bool]:
    """A plausible other one: subtract, and add again if the flag was not up."""
    yield
    shared["flag"] -= 1
    if shared["flag"] == 0:
        return True
    yield
    shared["flag"] += 1
    return False


def caller(shared: dict[str, int], take: Any) -> Steps:
    yield
    shared["posted"] = 1
    shared["woken"] = yield from take(shared)


def worker(shared: dict[str, int], take: Any, raised: Any) -> Steps:
    yield
    raised(shared)
    yield
    shared["runs"] = bool(shared["posted"]) and (yield from take(shared))


def outcomes(take: Any, raised: Any) -> set[tuple[bool, bool]]:
    """(the caller wakes the worker, the worker runs by itself) in every order of their steps."""
    found = set()
    for order in set(permutations("c" * 4 + "w" * 5)):
        shared = {"posted": 0, "flag": 0, "woken": 0, "runs": 0}
        going = {"c": caller(shared, take), "w": worker(shared, take, raised)}
        for turn in order:
            next(going[turn], None)
        found.add((bool(shared["woken"]), bool(shared["runs"])))
    return found


def test_exactly_one_of_the_two_knows_of_the_run():
    """Both would run it twice, and none not at all: not in any order."""
    assert outcomes(swapped, lambda shared: shared.update(flag=1)) == {(True, False), (False, True)}


def test_flags_that_are_counted_lose_a_run():
    def raised(shared: dict[str, int]) -> None:
        shared["flag"] += 1

    assert (False, False) in outcomes(subtracted, raised)
