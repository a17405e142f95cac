"""Threads that share work: who takes what, and a pool with one queue. Lesson 10.

A compiled function that works without Python's lock (nogil) runs in several threads at once. A pool
keeps such threads, because to start one takes longer than a small matrix. `map` puts one call for
each task into a queue and waits until all have ended: fork, and join.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from numba.extending import register_jitable

from .errors import InputError, ResourceError, plural, require_number

MOST_THREADS = 256  # that may be asked for: all of a large machine's

T = TypeVar("T")
R = TypeVar("R")


def share(total: int, part: int, parts: int, unit: int = 1) -> tuple[int, int]:
    """(first, last) of the numbers below `total` that one part takes: first <= i < last.

    Part 0 to part parts - 1 follow one another and are all there is. They are cut at multiples of
    `unit`, for instance as many rows as fill a cache line with results, so that no two threads
    write one line. Their sizes differ by at most one unit (what total leaves of the last unit is
    less), and some are empty when there are more parts than units. Compiled code can call this too.
    """
    units = (total + unit - 1) // unit
    first, last = units * part // parts, units * (part + 1) // parts
    return first * unit, min(last * unit, total)


register_jitable(share)


class Call:
    """function(argument), called by the first thread that claims it; its outcome stays here."""

    def __init__(self, function: Callable[[Any], Any], argument: Any):
        self.function = function
        self.argument = argument
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = False
        self._claimed: dict[str, object] = {}
        self._running = threading.Lock()
        self._running.acquire()

    def claim(self, thread: object) -> bool:
        """Whether that thread was the first to ask. It may ask again."""
        return self._claimed.setdefault("by", thread) is thread

    def run(self) -> None:
        if not self.claim(threading.current_thread()):
            return
        try:
            self.result = self.function(self.argument)
        except BaseException as error:
            self.error = error
        self.ended = True
        self._running.release()

    def wait(self) -> None:
        """Return when it has ended. Only one thread may wait; when interrupted, it may again."""
        if not self.ended:
            self._running.acquire()


def call_off(calls: Iterable[Call]) -> None:
    """Those that no thread has begun never will be; return when the others have ended."""
    begun = [call for call in calls if not call.claim(None)]
    for call in begun:
        call.wait()


Inbox = SimpleQueue[Call | None]  # None sends a thread home


def serve(inbox: Inbox) -> None:
    """What a thread of a pool does."""
    while (call := inbox.get()) is not None:
        call.run()
        del call  # an idle thread keeps nothing alive


def send_home(inboxes: list[Inbox]) -> None:
    for inbox in inboxes:
        inbox.put(None)


class Crew:
    """Threads, each with an inbox of calls: what Pool and Workers have in common.

    They start when first needed. They end when the crew is closed or nobody refers to it any more
    (no thread does), and they keep no process from ending. A fork leaves them in the parent: the
    child starts its own.
    """

    def __init__(self, serve: Callable[[Inbox], None], count: int):
        self._name = type(self).__name__
        self._serve = serve
        self._count = count
        self._closed = False
        self._forget_threads()
        CREWS.add(self)

    def _forget_threads(self) -> None:
        """As if none had been started, whatever other threads were doing just now."""
        self._lock = threading.Lock()
        self._inboxes: list[Inbox] = []
        self._threads: list[threading.Thread] = []

    def _new_inboxes(self) -> list[Inbox]:
        return [SimpleQueue() for _ in range(self._count)]

    def _check_outside(self, *inside: threading.Thread | None) -> None:
        """Raise InputError in a thread of the crew, or one of `inside`."""
        if threading.current_thread() in [*self._threads, *inside]:
            raise InputError(
                "a call from inside a call would wait for itself",
                where=self._name,
                fix="Return from the one before you make the other.",
            )

    def _post(self, calls: Sequence[Call]) -> None:
        """Give the threads calls in turn."""
        with self._lock:  # so that closing lets the threads go after these calls, or refuses them
            if self._closed:
                raise InputError(
                    "used after close()", where=self._name, fix="Make or load another."
                )
            if len(self._threads) < self._count:
                self._start()
            for call, inbox in zip(calls, cycle(self._inboxes)):
                inbox.put(call)

    def _start(self) -> None:
        inboxes = self._new_inboxes()
        names = [f"llambda-{self._name.lower()}-{rank}" for rank in range(1, self._count + 1)]
        threads = [
            threading.Thread(target=self._serve, args=[inbox], name=name, daemon=True)
            for inbox, name in zip(inboxes, names, strict=True)
        ]
        self._end = weakref.finalize(self, send_home, inboxes)
        try:
            for thread in threads:
                thread.start()
        except BaseException as error:
            self._end()
            if not isinstance(error, RuntimeError):
                raise
            raise ResourceError(
                f"{plural(self._count, 'thread')} cannot be started", fix="Ask for fewer."
            ) from error
        self._inboxes, self._threads = inboxes, threads

    def close(self) -> None:
        """End the threads, when they have done what was asked of them. Closing twice is fine."""
        with self._lock:
            self._closed = True
            threads = self._threads
            if threads:
                self._end()
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_threads(threads: int) -> int:
    """Raise InputError for a number of threads that no work is cut for.

    Every phase waits for all of them, so that with a thousand on a few cores nothing gets done.
    """
    require_number("threads", threads, 1, MOST_THREADS, f"1 to {MOST_THREADS}", whole=True)
    return int(threads)


CREWS: weakref.WeakSet[Crew] = weakref.WeakSet()
LOCKS: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def fork_safe_lock() -> threading.Lock:
    """A lock that is free in a forked child: whoever held it in the parent did not come along."""
    lock = threading.Lock()
    LOCKS.add(lock)
    return lock


def after_fork() -> None:
    for crew in list(CREWS):
        crew._forget_threads()
    for lock in list(LOCKS):
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)


class Pool(Crew):
    """Threads that take calls out of one queue. Any number of Python threads may use one.

    threads : how many work; the one that waits for them does not
    """

    def __init__(self, threads: int):
        self.threads = check_threads(threads)
        super().__init__(serve, self.threads)

    def _new_inboxes(self) -> list[Inbox]:
        return [SimpleQueue()] * self._count  # one for all: whoever is free takes the next call

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> list[R]:
        """[function(task) for task in tasks], several at a time.

        When calls raise, all others are made nevertheless, and then the error of the first such
        task is raised. An interrupt (Ctrl-C) waits for the calls that have begun; others are
        dropped. A second interrupt does not wait.
        """
        self._check_outside()
        calls = [Call(function, task) for task in tasks]
        try:
            self._post(calls)
            for call in calls:
                call.wait()
        except BaseException:
            call_off(calls)
            raise
        for call in calls:
            if call.error is not None:
                raise call.error
        return [call.result for call in calls]
