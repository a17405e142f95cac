"""Sharing work, the pool, the workers and their barrier: what they promise, and under stress.

A mistake here rarely gives a wrong number and often a wait without end. So what may be killed runs
in a process of its own, with a time limit; and `watchdog` ends this one when a test hangs.
"""

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from models import mutant
from numba import njit

import llambda.workers
from llambda.barrier import (
    ABORTED,
    LINES,
    PASSED,
    POSTED,
    SLEEPERS,
    barrier,
    linger,
    new_control,
    take_turns,
)
from llambda.errors import InputError, ResourceError
from llambda.machine import allowed_cpus
from llambda.simd.cpu import atomic_add, pause, sleep_while, wake, yield_core
from llambda.threads import Pool, share
from llambda.workers import Workers

CPUS = len(allowed_cpus())
LIMIT = 120  # seconds for what takes one or two

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs sched_yield, fork and signals")


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Ends the process if a test hangs, and says where."""
    faulthandler.dump_traceback_later(2 * LIMIT, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


# ---------------------------------------------------------------- sleeping

MINUTE = 60_000_000_000  # nanoseconds


@njit(nogil=True)
def nap(counters: Any, at: int, value: int, nanoseconds: int) -> None:
    """Come, sleep, and go: each is counted."""
    atomic_add(counters, 0, 1)
    sleep_while(counters, at, value, nanoseconds)
    atomic_add(counters, 1, 1)


@njit(nogil=True)
def wake_at(counters: Any, at: int) -> None:
    wake(counters, at)


def test_nobody_sleeps_on_another_value_or_for_ever():
    counters = np.array([0, 0, 7], np.int64)
    nap(counters, 2, 8, MINUTE)
    nap(counters, 2, 7, 1000)
    nap(counters, 2, 7, 0)
    wake_at(counters, 2)  # nobody
    assert counters.tolist() == [3, 3, 7]


@pytest.mark.skipif(sys.platform != "linux", reason="needs futex")
def test_sleepers_sleep_until_they_are_woken():
    counters = np.array([0, 0, 7, 7], np.int64)
    sleepers = [threading.Thread(target=nap, args=(counters, 2, 7, MINUTE)) for _ in range(3)]
    for sleeper in sleepers:
        sleeper.start()
    while counters[0] < 3:
        time.sleep(0.001)
    time.sleep(0.05)  # from counting to sleeping; too short would only let a mistake pass
    wake_at(counters, 3)  # another place
    assert counters[1] == 0
    while any(sleeper.is_alive() for sleeper in sleepers):  # each may not be asleep yet
        wake_at(counters, 2)
        time.sleep(0.001)
    assert counters.tolist() == [3, 3, 7, 7]


@pytest.mark.skipif(sys.platform != "linux", reason="needs futex")
@pytest.mark.parametrize("woken", [True, False])
def test_who_sleeps_at_the_barrier_is_woken(woken: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llambda.barrier, "NAP", MINUTE)
    edits = [] if woken else [("wake(control, PASSED)", "pass")]
    meet = njit(nogil=True)(mutant(barrier.py_func, ("@kernel\n", ""), *edits))
    control = new_control(2)
    sleeper = threading.Thread(target=meet, args=(control, 2), daemon=True)
    sleeper.start()
    while control[SLEEPERS] == 0:
        time.sleep(0.001)
    time.sleep(0.1)  # from counting to sleeping
    meet(control, 2)
    sleeper.join(LIMIT if woken else 0.5)
    assert sleeper.is_alive() == (not woken)
    wake_at(control, PASSED)


# ---------------------------------------------------------------- sharing


@pytest.mark.parametrize("unit", [1, 3, 16])
def test_shares_are_contiguous_complete_and_even(unit: int):
    for total, parts in product(range(70), range(1, 8)):
        shares = [share(total, part, parts, unit) for part in range(parts)]
        assert shares[0][0] == 0
        assert shares[-1][1] == total
        assert all(one[1] == next_[0] for one, next_ in pairwise(shares))
        assert all(first % unit == 0 or first == total for first, _ in shares)
        units = [-(-last // unit) - -(-first // unit) for first, last in shares]
        assert min(units) >= 0
        assert max(units) - min(units) <= 1


def test_compiled_code_shares_alike():
    @njit
    def shares(total, parts, out):
        for part in range(parts):
            out[0, part], out[1, part] = share(total, part, parts)
            out[2, part], out[3, part] = share(total, part, parts, 16)

    for total, parts in product(range(50), (1, 3, 8)):
        out = np.zeros((4, parts), np.int64)
        shares(total, parts, out)
        assert [*zip(*out[:2], strict=True)] == [share(total, part, parts) for part in range(parts)]
        assert [*zip(*out[2:], strict=True)] == [
            share(total, part, parts, 16) for part in range(parts)
        ]


# ---------------------------------------------------------------- the pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


def test_results_have_the_order_of_the_tasks(pool: Pool):
    second = threading.Event()

    def task(number: int) -> int:
        if number == 0:
            assert second.wait(LIMIT)  # so that they end in another order
        if number == 1:
            second.set()
        return number**2

    assert pool.map(task, range(100)) == [number**2 for number in range(100)]
    assert pool.map(task, iter(())) == []


def test_all_threads_of_the_pool_work_and_no_other(pool: Pool):
    meet = threading.Barrier(2, timeout=LIMIT)

    def name(_: int) -> str:
        meet.wait()
        return threading.current_thread().name

    assert set(pool.map(name, range(6))) == {"llambda-pool-1", "llambda-pool-2"}


@njit(nogil=True)
def meet(control, threads, rank):
    passed = barrier(control, threads)
    take_turns(rank)
    return passed


def test_compiled_tasks_run_at_the_same_time(pool: Pool):
    """Each waits for the other, and gives Python's lock back meanwhile."""
    control = new_control(2)
    assert pool.map(lambda rank: meet(control, 2, rank), range(2)) == [True, True]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_first_task_that_failed_is_reported_when_all_have_ended(
    pool: Pool, kind: type[BaseException]
):
    later, ended = threading.Event(), []

    def task(number: int) -> None:
        if number == 3:
            assert later.wait(LIMIT)
        elif number == 4:
            later.set()
        elif number > 4:
            time.sleep(0.01)
        ended.append(number)
        if number in (3, 4):
            raise kind(number)

    with pytest.raises(kind) as raised:
        pool.map(task, range(20))
    assert raised.value.args == (3,)
    assert sorted(ended) == list(range(20))
    assert pool.map(abs, [-1, -2]) == [1, 2]


def test_tasks_that_cannot_be_listed(pool: Pool):
    with pytest.raises(ZeroDivisionError):
        pool.map(abs, (1 // n for n in (1, 0)))
    assert pool.map(abs, [-1]) == [1]


def test_a_pool_serves_many_callers(pool: Pool):
    got: dict[int, list[int]] = {}
    callers = [
        threading.Thread(target=lambda n=n: got.update({n: pool.map(abs, range(-n, 0))}))
        for n in range(20)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert got == {n: list(range(n, 0, -1)) for n in range(20)}


def test_tasks_are_done_before_a_pool_is_closed():
    pool, began, go, got = Pool(1), threading.Event(), threading.Event(), []

    def task(number: int) -> int:
        began.set()
        assert go.wait(LIMIT)
        return number

    caller = threading.Thread(target=lambda: got.extend(pool.map(task, range(5))))
    caller.start()
    assert began.wait(LIMIT)
    closer = threading.Thread(target=pool.close)
    closer.start()
    while not pool._closed:
        time.sleep(0.001)
    go.set()
    closer.join()
    caller.join()
    assert got == list(range(5))


# ---------------------------------------------------------------- what both have in common


def use_pool(pool: Pool, call: Callable[[int], object]) -> None:
    pool.map(call, range(pool.threads))


def use_workers(workers: Workers, call: Callable[[int], object]) -> None:
    workers.run(call)


BOTH = pytest.mark.parametrize(
    ("make", "use"), [(Pool, use_pool), (Workers, use_workers)], ids=["pool", "workers"]
)


@BOTH
@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", None, 257, 10**20])
def test_threads_are_a_positive_number(make: Any, use: Any, threads: object):
    with pytest.raises(InputError, match=r"threads is .* It must be a whole number, 1 to 256\."):
        make(threads)


@BOTH
def test_closed_threads_end(make: Any, use: Any):
    before = set(threading.enumerate())
    with make(3) as crew:
        assert set(threading.enumerate()) == before, "threads start when they are needed"
        use(crew, abs)
        assert len(set(threading.enumerate()) - before) >= 2
    assert set(threading.enumerate()) == before
    crew.close()
    words = f"{make.__name__}: used after close(). Make or load another."
    with pytest.raises(InputError) as raised:
        use(crew, abs)
    assert str(raised.value) == words


@BOTH
def test_forgotten_threads_end(make: Any, use: Any):
    before = set(threading.enumerate())
    crew = make(3)
    use(crew, abs)
    threads = set(threading.enumerate()) - before
    gone = weakref.ref(crew)
    del crew
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()


@BOTH
def test_idle_threads_keep_nothing_alive(make: Any, use: Any):
    class Held:
        def __call__(self, rank: int) -> None:
            pass

    with make(2) as crew:
        held = Held()
        gone = weakref.ref(held)
        use(crew, held)
        del held
        until = time.monotonic() + LIMIT
        while gone() is not None and time.monotonic() < until:  # a thread may just be letting go
            time.sleep(0.001)
        assert gone() is None


@BOTH
def test_a_call_from_inside_is_refused(make: Any, use: Any):
    errors: SimpleQueue[str] = SimpleQueue()
    with make(2) as crew:

        def call(rank: int) -> None:
            try:
                use(crew, abs)
            except InputError as error:
                errors.put(str(error))

        use(crew, call)
        use(crew, abs)
    assert {errors.get(), errors.get()} == {
        f"{make.__name__}: a call from inside a call would wait for itself. "
        "Return from the one before you make the other."
    }


@BOTH
def test_no_more_threads_to_be_had(make: Any, use: Any, monkeypatch: pytest.MonkeyPatch):
    before = set(threading.enumerate())
    start = threading.Thread.start

    def one_only(thread: threading.Thread) -> None:
        if thread.name.endswith("2"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with make(3) as crew:
        monkeypatch.setattr(threading.Thread, "start", one_only)
        with pytest.raises(ResourceError, match=r"threads cannot be started. Ask for fewer."):
            use(crew, abs)
        monkeypatch.undo()
        use(crew, abs)
    for thread in set(threading.enumerate()) - before:  # the one that had started
        thread.join(LIMIT)
        assert not thread.is_alive()


# ---------------------------------------------------------------- the workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(3) as made:
        yield made


def test_every_rank_is_called_once_in_a_thread_of_its_own(workers: Workers):
    seen: list[dict[int, threading.Thread]] = []
    for _ in range(2):
        calls: SimpleQueue[tuple[int, threading.Thread]] = SimpleQueue()
        workers.run(lambda rank, calls=calls: calls.put((rank, threading.current_thread())))
        seen.append(dict(calls.get() for _ in range(3)))
        assert calls.empty()
    assert seen[0] == seen[1], "the threads persist"
    assert seen[0][0] is threading.current_thread()
    names = ["llambda-workers-1", "llambda-workers-2"]
    assert [seen[0][rank].name for rank in (1, 2)] == names
    assert all(seen[0][rank].daemon for rank in (1, 2))


def test_one_worker_is_the_calling_thread():
    before = threading.enumerate()
    with Workers(1) as workers:
        seen = []
        workers.run(lambda rank: seen.append((rank, threading.current_thread())))
        assert seen == [(0, threading.current_thread())]
        assert threading.enumerate() == before
        with pytest.raises(ValueError, match="alone"):
            workers.run(partial(fail, {0: "alone"}))


def test_they_work_again_after_they_slept(workers: Workers):
    for _ in range(3):
        time.sleep(0.05)
        check_usable(workers)


def check_usable(workers: Workers) -> None:
    """Every rank comes to a barrier, and passes it."""
    passed: SimpleQueue[bool] = SimpleQueue()
    workers.run(lambda rank: passed.put(meet(workers.control, workers.threads, rank)))
    assert [passed.get() for _ in range(workers.threads)] == [True] * workers.threads
    assert passed.empty()


def test_the_counters_only_save_time(monkeypatch: pytest.MonkeyPatch):
    """Workers that never linger find their calls all the same."""
    monkeypatch.setattr(llambda.workers, "linger", lambda *_: None)
    monkeypatch.setattr(llambda.workers, "follow", lambda *_: None)
    with Workers(3) as workers:
        for _ in range(20):
            check_usable(workers)


def test_lingering_has_an_end():
    control = new_control(2)
    control[POSTED] = 7
    linger(control, POSTED, 7)
    linger(control, POSTED, 8)  # nobody ever posts that


def test_callers_take_turns(workers: Workers):
    running, most, total = 0, 0, [0, 0, 0]

    def job(rank: int) -> None:
        nonlocal running, most
        if rank == 0:
            running += 1
            most = max(most, running)
        meet(workers.control, 3, rank)
        total[rank] += 1
        meet(workers.control, 3, rank)
        if rank == 0:
            running -= 1

    callers = [
        threading.Thread(target=lambda: [workers.run(job) for _ in range(25)]) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert most == 1
    assert total == [100] * 3


def fail(messages: dict[int, str], rank: int) -> None:
    if rank in messages:
        raise ValueError(messages[rank])


@pytest.mark.parametrize("ranks", [(0,), (2,), (1, 2), (0, 1, 2)])
def test_the_error_of_the_first_rank_arrives(workers: Workers, ranks: tuple[int, ...]):
    messages = {rank: f"planted in {rank}" for rank in ranks}
    all_have_begun = threading.Barrier(3, timeout=LIMIT)

    def job(rank: int) -> None:
        all_have_begun.wait()
        fail(messages, rank)

    with pytest.raises(ValueError, match=messages[ranks[0]]) as raised:
        workers.run(job)
    notes = [f"Rank {rank} raised ValueError('{messages[rank]}')" for rank in ranks[1:]]
    assert getattr(raised.value, "__notes__", []) == notes
    check_usable(workers)


# ---------------------------------------------------------------- the barrier


@njit
def dawdle(rank, n, threads):
    """A wait that differs from rank to rank and round to round, rarely a long one."""
    if (rank + n) % threads == 0:
        for _ in range(n * 2654435761 % 300):
            pause()
        if n % 7 == 0:
            yield_core()


@njit(nogil=True)
def exchange(control, threads, rank, slots, rounds, before, after):
    """Write a number, read those of all; how many were not of this round. -1 for a failed barrier.

    before, after : whether there is a barrier before and after the reading
    """
    wrong = 0
    for n in range(1, rounds + 1):
        dawdle(rank, n, threads)
        slots[rank * LINES] = n
        if before and not barrier(control, threads):
            return -1
        dawdle(rank, 3 * n + 1, threads)
        for other in range(threads):
            wrong += slots[other * LINES] != n
        if after and not barrier(control, threads):
            return -1
    return wrong


def exchanged(workers: Workers, rounds: int, before: bool = True, after: bool = True) -> list[int]:
    slots = np.zeros(workers.threads * LINES, np.int64)
    wrong = [-2] * workers.threads

    def job(rank: int) -> None:
        count = exchange(workers.control, workers.threads, rank, slots, rounds, before, after)
        wrong[rank] = count

    workers.run(job)
    return wrong


@pytest.mark.parametrize("threads", sorted({1, 2, 3, 2 * CPUS + 1}))
def test_what_was_written_before_a_barrier_is_read_after_it(threads: int):
    with Workers(threads) as workers:
        for rounds in (1, 2, 3000):  # each run begins where the last one left the counters
            assert exchanged(workers, rounds) == [0] * threads


def test_barriers_right_behind_one_another():
    """All arrive at the same moment, again and again: an arrival that is lost would hang this."""

    @njit(nogil=True)
    def passed(control, n):
        for i in range(n):
            if not barrier(control, 2):
                return i
        return n

    with Workers(2) as workers:
        counts = [0, 0]

        def job(rank: int) -> None:
            counts[rank] = passed(workers.control, 30_000)

        workers.run(job)
    assert counts == [30_000] * 2


@pytest.mark.parametrize("missing", ["before", "after"])
@pytest.mark.parametrize("threads", [2, 3])
def test_a_missing_barrier_is_noticed(threads: int, missing: str):
    with Workers(threads) as workers:
        assert sum(exchanged(workers, 3000, **{missing: False})) > 0


@njit(nogil=True)
def barriers(control, threads, rank, n):
    """How many of n barriers were passed, when the one after them is not."""
    for i in range(n):
        dawdle(rank, i, threads)
        if not barrier(control, threads):
            return i
    return n


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("at", [0, 1, 500])
def test_nobody_waits_for_a_rank_that_failed(threads: int, at: int):
    """The others wait without end for the one, were it not for its failure."""
    with Workers(threads) as workers:
        for bad in range(threads):
            passed = {}

            def job(rank: int, bad: int = bad, passed: dict[int, int] = passed) -> None:
                n = at if rank == bad else 10**9
                passed[rank] = barriers(workers.control, threads, rank, n)
                if rank == bad:
                    raise ValueError("planted")

            with pytest.raises(ValueError, match="planted"):
                workers.run(job)
            assert passed.pop(bad) == at
            assert all(at - 1 <= n <= at for n in passed.values())
            check_usable(workers)


def test_counters_share_no_cache_line():
    """128 bytes apart, from each other and from what else may lie beside the array."""
    at = np.flatnonzero(counters_of_a_run())
    assert len(at) == 8  # with the flags of both ranks
    assert all(second - first >= 16 for first, second in pairwise([-1, *at]))
    assert at[-1] + 16 <= new_control(2).size


def counters_of_a_run() -> np.ndarray:
    """Where a run that failed has written anything, or a barrier that waits."""
    control = new_control(2)
    with Workers(2) as workers, pytest.raises(ValueError, match="planted"):
        workers.run(lambda rank: meet(workers.control, 2, rank))
        try:
            workers.run(partial(fail, {1: "planted"}))
        finally:
            control[:] = workers.control
    waiting = new_control(2)
    waiting[ABORTED] = 1
    assert not meet(waiting, 2, 0)
    return control + waiting


# ---------------------------------------------------------------- processes

PRELUDE = """
import os, signal, sys, threading, time
from numba import njit
from llambda.barrier import barrier
from llambda.threads import Pool
from llambda.workers import Workers

@njit(nogil=True)
def meet(control, threads):
    return barrier(control, threads)

def usable(workers):
    passed = []
    workers.run(lambda rank: passed.append(meet(workers.control, workers.threads)))
    assert passed == [True] * workers.threads, passed

workers, pool = Workers(3), Pool(2)
usable(workers)
assert pool.map(abs, [-1, -2]) == [1, 2]
"""


def start(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    """What it printed, if it ended well and in time."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"no end: {process.communicate()}")
    assert process.returncode == 0, (process.returncode, err)
    return out


ALIVE = {
    "awake": "",
    "asleep": "time.sleep(0.1)",
    "busy": """
started = threading.Semaphore(0)
def job(rank):
    started.release()
    if rank == 1:
        time.sleep(1000)
    meet(workers.control, 3)
threading.Thread(target=workers.run, args=[job], daemon=True).start()
threading.Thread(target=pool.map, args=[time.sleep, [1000] * 4], daemon=True).start()
for _ in range(3):
    started.acquire()
""",
}


@pytest.mark.parametrize("state", ALIVE)
def test_a_process_ends_whatever_its_threads_do(state: str):
    assert finish(start(ALIVE[state] + "\nprint('end')")) == "end\n"


FORK = """
import warnings
warnings.simplefilter("ignore")  # from Python 3.12 on, a fork beside threads warns
began, go = threading.Semaphore(0), threading.Event()
def hold(rank):
    began.release()
    go.wait()
busy = threading.Thread(target=workers.run, args=[hold]) if BUSY else None
if busy:
    busy.start()
    for _ in range(3):
        began.acquire()
child = os.fork()
if child == 0:
    signal.alarm(60)
    usable(workers)
    assert pool.map(abs, [-1, -2]) == [1, 2]
    workers.close()
    pool.close()
    os._exit(17)
status = os.waitpid(child, 0)[1]
go.set()
if busy:
    busy.join()
usable(workers)
assert pool.map(abs, [-1, -2]) == [1, 2]
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_has_workers_of_its_own(busy: bool):
    assert finish(start(f"BUSY = {busy}\n{FORK}")) == "17\n"


FORK_OF_A_MODEL = """
import warnings
import llambda
warnings.simplefilter("ignore")  # from Python 3.12 on, a fork beside threads warns
model = llambda.load("tiny", engine=ENGINE, threads=2)
model.generate("The", max_tokens=2).text  # no fork while Numba compiles
ended = threading.Event()
def generate():
    while not ended.is_set():
        model.generate("The", max_tokens=20).text
busy = threading.Thread(target=generate)
busy.start()
said = []
for _ in range(10):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        model.generate("The", max_tokens=2).text
        os._exit(17)
    said.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ended.set()
busy.join()
print(said == [17] * 10)
"""


@pytest.mark.parametrize("engine", ["naive", "fused"])
def test_a_forked_child_can_use_a_model_that_was_busy(engine: str):
    assert finish(start(f"ENGINE = {engine!r}\n{FORK_OF_A_MODEL}")) == "True\n"


INTERRUPTS = """
def rank_0_has_ended(rank):
    if rank:
        passed.append(meet(workers.control, 3))  # in vain

def rank_0_is_busy(rank):
    rank_0_has_ended(rank)
    while rank == 0:
        time.sleep(0.01)

for job in (rank_0_has_ended, rank_0_is_busy):
    passed = []
    print("ready", flush=True)
    try:
        workers.run(job)
    except KeyboardInterrupt:
        print("interrupted", passed, flush=True)
    usable(workers)

go, ended = threading.Event(), []
def task(number):
    go.wait()
    time.sleep(0.01)
    ended.append(number)

def interrupt(*_):
    go.set()
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
print("ready", flush=True)
try:
    pool.map(task, range(1000))
except KeyboardInterrupt:
    before = list(ended)
    assert pool.map(abs, [-1, -2]) == [1, 2]
    print("interrupted", ended == before and len(ended) < 500, flush=True)
"""


def test_after_an_interrupt_all_have_ended_and_can_be_used():
    process = start(INTERRUPTS)
    assert process.stdout is not None
    for said in ("[False, False]", "[False, False]", "True"):
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        time.sleep(0.3)  # it is waiting by now; if not, the outcome must be the same
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == f"interrupted {said}\n", process.communicate()[1]
    assert finish(process) == ""


STORM = """
import random
draw = random.Random(7).uniform
interrupts = 0

def interrupt(*_):
    global interrupts
    left[0] -= 1
    if left[0] < 0:
        return
    interrupts += 1
    raise KeyboardInterrupt

def once(use):
    signal.setitimer(signal.ITIMER_REAL, draw(1e-6, longest), 2e-5)
    use()
    signal.setitimer(signal.ITIMER_REAL, 0)

def twice(use):
    try:
        once(use)
    except KeyboardInterrupt:  # the second may come from here
        signal.setitimer(signal.ITIMER_REAL, 0)

signal.signal(signal.SIGALRM, interrupt)
threads = threading.active_count()
for use in (lambda: usable(workers), lambda: pool.map(abs, range(3))):
    for most in (1, 2):
        times = []
        for _ in range(100):
            began = time.perf_counter()
            use()
            times.append(time.perf_counter() - began)
        longest = 1.5 * sorted(times)[50]
        for _ in range(600):
            left = [most]
            try:
                twice(use)
            except KeyboardInterrupt:
                pass
            left = [0]
            signal.setitimer(signal.ITIMER_REAL, 0)
    usable(workers)
    assert pool.map(abs, [-1, -2]) == [1, 2]
assert threading.active_count() == threads
print(interrupts > 500)
"""


def test_an_interrupt_at_any_moment_leaves_all_usable():
    assert finish(start(STORM)) == "True\n"
