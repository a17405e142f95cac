"""Threads that persist, for jobs in which all take part from begin to end. Lesson 11.

A pool wakes its threads for every matrix, which takes about as long as the matrix. Here a job is a
whole token: one call a thread, and barriers between its phases. After a job the threads stay awake
for about a millisecond, so that the next token finds them so.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from .barrier import (
    ABORTED,
    ARRIVED,
    ASLEEP,
    FINISHED,
    LATE,
    LINES,
    POSTED,
    Control,
    linger,
    new_control,
)
from .handoff import follow, lead, post
from .simd.jit import Foreign
from .threads import Call, Crew, Inbox, call_off, check_threads


class RunCall(Call):
    """One worker's part in the run of a number; `woken` when its flag was taken for it."""

    def __init__(self, function: Callable[[int], object], rank: int, number: int, woken: bool):
        super().__init__(function, rank)
        self.number = number
        self.woken = woken


def serve(control: Control, inbox: Inbox) -> None:
    """What a worker does. The inbox is the truth; the counters only save it from sleeping."""
    while (call := inbox.get()) is not None:
        assert isinstance(call, RunCall)
        if not call.claim(threading.current_thread()):
            continue  # called off
        if not call.woken:
            control[ASLEEP + call.argument * LINES] = 0
        call.run()
        rank, number = call.argument, call.number
        del call  # an idle thread keeps nothing alive
        follow(control, rank, number)


class Workers(Crew):
    """Threads that run jobs together. Any number of Python threads may use one, one at a time.

    threads : how many take part in a job, the calling one included; there may be more than cores
    control : the counters of these threads, for `barrier(control, threads)` in compiled jobs
    """

    def __init__(self, threads: int):
        self.threads = check_threads(threads)
        self.control = new_control(self.threads)
        follow(new_control(1), 0, 0)  # compile it here, not in a thread
        super().__init__(partial(serve, self.control), self.threads - 1)

    def _forget_threads(self) -> None:
        super()._forget_threads()
        self._one_run = threading.Lock()
        self._woken = np.zeros(self._count + 1, np.int64)
        self._caller: threading.Thread | None = None
        self._calls: list[RunCall] = []  # those of workers that may not have ended

    def _start(self) -> None:
        self.control[ASLEEP::LINES] = 1  # threads begin at their inboxes
        super()._start()

    def run_compiled(self, function: Foreign, argument: int, part: int | None = None) -> None:
        """Call function(argument, rank, part) in `part` of the threads; return when all have ended.

        From one such run to the next, threads that are awake need no Python, and the caller little.
        An interrupt is noticed before or after; then the threads end, and the next run starts new
        ones.
        """
        self._check_outside(self._caller)
        with self._one_run:
            if self._closed or len(self._threads) < self._count:
                self._run(lambda rank: function(argument, rank, self.threads))
            else:
                self._run_compiled(function, argument, self.threads if part is None else part)

    def _run_compiled(self, function: Foreign, argument: int, part: int) -> None:
        control = self.control
        call_off(self._calls)
        control[ARRIVED] = control[ABORTED] = control[LATE] = 0
        try:
            count = post(control, function.address, argument, part, self._woken)
            wake = partial(self._wake, function, argument, part=part)
            calls = [wake(int(rank)) for rank in self._woken[:count]]
            lead(control, part, part - 1 - count)
            for call in calls:
                call.wait()
        except BaseException:
            control[ABORTED] = 1
            if self._threads:
                self._end()
            for thread in self._threads:
                thread.join()
            self._inboxes, self._threads = [], []
            raise

    def _wake(self, function: Foreign, argument: int, rank: int, part: int) -> Call:
        def call_function(rank: int) -> None:
            function(argument, rank, part)

        call = RunCall(call_function, rank, self.control.item(POSTED), woken=True)
        self._inboxes[rank - 1].put(call)
        return call

    def run(self, job: Callable[[int], object]) -> None:
        """Call job(rank) in every thread, rank 0 in this one; return when all have ended.

        When a rank raises, barriers no longer wait and return False, so that the others can return.
        Then the error of the first such rank is raised, with notes of the others. So it is with an
        interrupt (Ctrl-C), which Python notices when rank 0 is not in compiled code. Then, and when
        rank 0 raises, others that have not begun never do. A second interrupt does not wait for the
        others, but the next run does.
        """
        self._check_outside(self._caller)
        with self._one_run:
            self._caller = threading.current_thread()
            try:
                self._run(job)
            finally:
                self._caller = None

    def _run(self, job: Callable[[int], object]) -> None:
        control = self.control

        def call_job(rank: int) -> None:
            try:
                job(rank)
            except BaseException:
                control[ABORTED] = 1
                raise

        call_off(self._calls)
        control[ARRIVED] = control[ABORTED] = control[LATE] = 0
        finished = control.item(FINISHED)
        number = control.item(POSTED) + 1
        calls = [RunCall(call_job, rank, number, woken=False) for rank in range(1, self.threads)]
        self._calls = calls
        try:
            control[POSTED] = number
            self._post(calls)
            job(0)
            linger(control, FINISHED, finished + len(calls))
            for call in calls:
                call.wait()
        except BaseException as error:
            control[ABORTED] = 1
            call_off(calls)
            self._calls = []
            add_notes(error, calls)
            raise
        self._calls = []
        for number, call in enumerate(calls, 1):
            if call.error is not None:
                add_notes(call.error, calls[number:])
                raise call.error


def add_notes(error: BaseException, calls: Sequence[Call]) -> None:
    """Tell of the errors in other calls."""
    for call in calls:
        if call.error is not None:
            error.add_note(f"Rank {call.argument} raised {call.error!r}")
