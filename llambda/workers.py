"""Threads that persist, for jobs in which all take part from begin to end. Lesson 11.

A pool wakes its threads for every matrix, which takes about as long as the matrix. Here a job is a
whole token: one call a thread, and barriers between its phases. After a job the threads stay awake
for about a millisecond, so that the next token finds them so.
"""

import math
import threading
from collections.abc import Callable
from functools import partial

from .barrier import (
    ABORTED,
    ARRIVED,
    FINISHED,
    POSTED,
    Control,
    finish_and_linger,
    linger,
    new_control,
)
from .errors import require_number
from .threads import Call, Crew, Inbox, call_off


def serve(control: Control, inbox: Inbox) -> None:
    """What a worker does. The inbox is the truth; the counters only save it from sleeping."""
    while (call := inbox.get()) is not None:
        call.run()
        rank = call.argument
        del call  # an idle thread keeps nothing alive
        finish_and_linger(control, rank, control.item(POSTED))


class Workers(Crew):
    """Threads that run jobs together. Any number of Python threads may use one, one at a time.

    threads : how many take part in a job, the calling one included; there may be more than cores
    control : the counters of these threads, for `barrier(control, threads)` in compiled jobs
    """

    def __init__(self, threads: int):
        require_number("threads", threads, 1, math.inf, "1 or more", whole=True)
        self.threads = int(threads)
        self.control = new_control()
        finish_and_linger(new_control(), 0, -1)  # compile it here, not in a thread
        super().__init__(partial(serve, self.control), self.threads - 1)

    def _forget_threads(self) -> None:
        super()._forget_threads()
        self.control[:] = 0
        self._one_run = threading.Lock()
        self._caller: threading.Thread | None = None
        self._calls: list[Call] = []  # those of workers that may not have ended

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
        control[ARRIVED] = control[ABORTED] = 0
        finished = control.item(FINISHED)
        calls = self._calls = [Call(call_job, rank) for rank in range(1, self.threads)]
        try:
            self._post(calls)
            control[POSTED] += 1
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


def add_notes(error: BaseException, calls: list[Call]) -> None:
    """Tell of the errors in other calls."""
    for call in calls:
        if call.error is not None:
            error.add_note(f"Rank {call.argument} raised {call.error!r}")
