"""Every order in which the steps of some tasks can happen; and code that a test has to judge.

A task is a generator. It yields before each access to what tasks share: there another one may come
in between. It may yield a function, and then goes on only when that gives True. What lies between
two yields is one step, which nobody disturbs.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from .base import Wrong

Task = Generator[Any, None, Any]  # of functions () -> bool, and of None where any time is right
Made = tuple[Sequence[Task], Callable[[], Any]]

ENDED: Any = "ended"
MOST_ORDERS, MOST_STEPS = 20_000, 500  # a worker that does not stop would step for ever


def every_order(make: Callable[[], Made]) -> Iterator[tuple[list[int], Any]]:
    """Run tasks in every order of their steps: for each order, whose turn it was, and the outcome.

    make : gives fresh tasks, and a function that gives the outcome when all have ended
    The outcome is None when tasks are left and all of them wait. Raises Wrong when there are too
    many orders or steps.
    """
    unexplored: list[list[int]] = [[]]
    for _ in range(MOST_ORDERS):
        order = unexplored.pop()
        tasks, outcome = make()
        at = [next(task, ENDED) for task in tasks]
        for turn in range(MOST_STEPS + 1):
            ready = [rank for rank, gate in enumerate(at) if goes_on(gate)]
            if not ready:
                break
            if turn == MOST_STEPS:
                raise Wrong(f"after {MOST_STEPS} steps no task has come to its end.")
            if turn == len(order):
                unexplored += [[*order, rank] for rank in ready[1:]]
                order.append(ready[0])
            at[order[turn]] = next(tasks[order[turn]], ENDED)
        yield order, outcome() if all(gate is ENDED for gate in at) else None
        if not unexplored:
            return
    raise Wrong(f"more than {MOST_ORDERS:,} orders: fewer tasks or fewer numbers would do.")


def goes_on(gate: Any) -> bool:
    return gate is not ENDED and (gate is None or gate())


# ---------------------------------------------------------------- what hands out numbers


class Lock:
    def __init__(self) -> None:
        self.taken = False

    def acquire(self) -> Task:
        yield lambda: not self.taken
        self.taken = True

    def release(self) -> None:
        self.taken = False


class Numbers:
    """Hands out the numbers below n, each once, then None. One lock, and everything under it."""

    def __init__(self, n: int):
        self.n = n
        self.next = 0
        self.lock = Lock()

    def take(self) -> Task:
        """The next number; None if there is none left."""
        return (yield from self.take_under(self.lock))

    def take_under(self, lock: Lock) -> Task:
        yield from lock.acquire()
        number = self.next
        if number < self.n:
            yield
            self.next = number + 1
        yield
        lock.release()
        return number if number < self.n else None


class InOneStep(Numbers):
    def take(self) -> Task:
        yield
        number = self.next
        self.next += 1
        return number if number < self.n else None


class FromTheEnd(Numbers):
    def take(self) -> Task:
        number = yield from super().take()
        return None if number is None else self.n - 1 - number


class NoLock(Numbers):
    def take(self) -> Task:
        yield
        number = self.next
        if number >= self.n:
            return None
        yield
        self.next = number + 1
        return number


class TooEarly(Numbers):
    def take(self) -> Task:
        yield from self.lock.acquire()
        number = self.next
        yield
        self.lock.release()
        if number >= self.n:
            return None
        yield
        self.next = number + 1
        return number


class TwoLocks(Numbers):
    def __init__(self, n: int):
        super().__init__(n)
        self.made: Lock | None = None

    def take(self) -> Task:
        yield
        if self.made is None:
            yield
            self.made = Lock()
        return (yield from self.take_under(self.made))


class SharedResult(Numbers):
    def take(self) -> Task:
        yield from self.lock.acquire()
        none_left = self.next >= self.n
        if not none_left:
            yield
            self.given, self.next = self.next, self.next + 1
        yield
        self.lock.release()
        if none_left:
            return None
        yield
        return self.given


class LooksOutside(Numbers):
    def take(self) -> Task:
        yield
        if self.next >= self.n:
            return None
        yield from self.lock.acquire()
        number = self.next
        yield
        self.next = number + 1
        yield
        self.lock.release()
        return number


class KeepsTheLock(Numbers):
    def take(self) -> Task:
        yield from self.lock.acquire()
        number = self.next
        if number >= self.n:
            return None
        yield
        self.next = number + 1
        yield
        self.lock.release()
        return number
