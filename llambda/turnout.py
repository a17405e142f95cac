"""How many threads take part in a run: fewer while other programs keep a core from them. Lesson 11.

At a barrier all wait for the one thread that has lost its core, hundreds of times a token. Then
fewer threads are faster: one core of one's own is better than two halves.
"""

FORGIVEN = 0.4  # share of the time in which a thread may wait for others that are late
LIMIT = 0.012  # seconds beyond that, until one thread less takes part: more than a hiccup
REST = 0.5  # seconds until one more is tried


class Turnout:
    """threads : how many should take part in the next run, `most` at first"""

    def __init__(self, most: int):
        self.threads = self._most = most
        self._lost = 0.0  # seconds, beyond what is forgiven
        self._next_try = 0.0

    def note(self, seconds: float, late: float, now: float) -> None:
        """A run took so many seconds, and its threads together waited `late` of them; now: time."""
        late_each = late / max(1, self.threads - 1)
        self._lost = max(0.0, self._lost + late_each - FORGIVEN * seconds)
        if self.threads > 1 and self._lost > LIMIT:
            self.threads -= 1
            self._lost = 0.0
            self._next_try = now + REST
        elif self.threads < self._most and now >= self._next_try:
            self.threads += 1
            self._lost = LIMIT / 2  # it comes back on trial
            self._next_try = now + REST
