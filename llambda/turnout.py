"""How many threads take part in a run: fewer while other programs keep a core from them. Lesson 11.

At a barrier all wait for the one thread that has lost its core, hundreds of times a token. Then
fewer threads are faster: one core of one's own is better than two halves.
"""

WINDOW = 0.01  # seconds of runs that are judged together
TOO_LATE = 0.4  # share of them that threads waited for others that were late
WARNINGS = 3  # windows in a row that are bad until a thread must rest: fewer may be a hiccup
REST = 0.5  # seconds until one more is tried


class Turnout:
    """threads : how many should take part in the next run, `most` at first"""

    def __init__(self, most: int):
        self.threads = self._most = most
        self._seconds = self._late = 0.0
        self._warnings = 0
        self._next_try = 0.0

    def note(self, seconds: float, late: float, now: float) -> None:
        """A run took so many seconds, and its threads together waited `late` of them; now: time."""
        self._seconds += seconds
        self._late += late
        if self._seconds >= WINDOW:
            share = self._late / max(1, self.threads - 1) / self._seconds
            self._seconds = self._late = 0.0
            self._judge(self.threads > 1 and share > TOO_LATE, now)

    def _judge(self, bad: bool, now: float) -> None:
        """A thread that has come back on trial must rest again after one bad window."""
        if bad:
            self._warnings += 1
            if self._warnings >= WARNINGS:
                self.threads -= 1
                self._next_try = now + REST
        elif self.threads == self._most:
            self._warnings = 0
        elif now >= self._next_try:
            self.threads += 1
