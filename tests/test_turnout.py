"""How many threads take part, decided from what runs have reported; no clock here."""

from itertools import pairwise

import pytest

from llambda.turnout import REST, TOO_LATE, WARNINGS, WINDOW, Turnout

RUN = WINDOW / 4  # seconds


class Time:
    """Runs of a turnout, one after another."""

    def __init__(self, most: int):
        self.turnout = Turnout(most)
        self.now = 100.0

    def windows(self, count: int, share: float) -> int:
        """So many windows in which each other thread waits that share; returns the threads then."""
        for _ in range(4 * count):
            self.now += RUN
            waiting = max(1, self.turnout.threads - 1)
            self.turnout.note(RUN, share * RUN * waiting, self.now)
        return self.turnout.threads


BAD, GOOD = TOO_LATE * 1.1, TOO_LATE * 0.9
RESTED = round(REST / WINDOW) + 1  # windows


def test_all_take_part_while_all_goes_well():
    assert Time(3).windows(100, GOOD) == 3


def test_a_hiccup_costs_nobody_and_some_in_a_row_one_thread():
    time = Time(3)
    for _ in range(5):
        assert time.windows(WARNINGS - 1, BAD) == 3
        assert time.windows(1, GOOD) == 3
    assert time.windows(WARNINGS, BAD) == 2


def test_less_than_a_window_says_nothing():
    turnout = Turnout(2)
    turnout.note(WINDOW * 0.9, WINDOW, 1.0)
    assert turnout.threads == 2


def test_one_run_may_be_a_window():
    turnout = Turnout(2)
    for i in range(WARNINGS):
        turnout.note(5.0, 5.0, 5.0 * i)
    assert turnout.threads == 1


def test_while_the_neighbour_stays_one_more_is_tried_for_a_window_after_each_rest():
    time = Time(2)
    time.windows(WARNINGS, BAD)
    seen = []
    for _ in range(10 * RESTED):
        # with two threads somebody is late, and with one nobody can be
        seen.append(time.windows(1, BAD if time.turnout.threads == 2 else 0))
    assert 8 <= seen.count(2) <= 10
    assert all(one + next_ < 4 for one, next_ in pairwise(seen))


def test_when_the_neighbour_has_gone_all_come_back():
    time = Time(4)
    assert time.windows(20, BAD) == 1
    assert time.windows(RESTED, 0) > 1
    assert time.windows(3, 0) == 4
    assert time.windows(1, BAD) == 4  # and a hiccup is one again


def test_the_last_thread_stays():
    assert Time(2).windows(50, BAD) == 1


@pytest.mark.parametrize("most", [1, 2, 16])
def test_what_everybody_waits_counts_once(most: int):
    """15 threads that wait for one are as bad as one that waits for another."""
    turnout = Turnout(most)
    for i in range(WARNINGS):
        turnout.note(WINDOW, WINDOW * GOOD * max(1, most - 1), i)
    assert turnout.threads == most
