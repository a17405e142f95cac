"""How many threads take part, decided from what runs have reported; no clock here."""

from itertools import pairwise

import pytest

from llambda.turnout import FORGIVEN, LIMIT, REST, Turnout

RUN = LIMIT / 4  # seconds, of a run in which all goes well


class Time:
    """Runs of a turnout, one after another."""

    def __init__(self, most: int):
        self.turnout = Turnout(most)
        self.now = 100.0

    def runs(self, count: int, late: float) -> int:
        """So many runs in which each other thread waits `late` seconds; the threads then."""
        for _ in range(count):
            self.now += RUN
            others = max(1, self.turnout.threads - 1)
            self.turnout.note(RUN, late * others, self.now)
        return self.turnout.threads


GOOD = 0.9 * FORGIVEN * RUN
BAD = FORGIVEN * RUN + 0.3 * LIMIT  # four of them are too many
RESTED = round(REST / RUN) + 1  # runs


def test_all_take_part_while_all_goes_well():
    assert Time(3).runs(1000, GOOD) == 3


def test_a_hiccup_costs_nobody_and_what_goes_on_costs_a_thread():
    time = Time(3)
    for _ in range(5):
        assert time.runs(3, BAD) == 3
        assert time.runs(100, GOOD) == 3
    assert time.runs(4, BAD) == 2


def test_a_little_too_late_is_noticed_if_it_goes_on():
    assert Time(2).runs(1000, 1.1 * FORGIVEN * RUN) == 1


def test_one_long_run_is_enough():
    turnout = Turnout(2)
    turnout.note(5.0, 3.0, 5.0)
    assert turnout.threads == 1


def test_a_long_run_with_little_waiting_is_not():
    turnout = Turnout(2)
    turnout.note(5.0, 1.9, 5.0)
    assert turnout.threads == 2


def test_while_the_neighbour_stays_one_more_is_tried_after_each_rest():
    time = Time(2)
    time.runs(4, BAD)
    seen = []
    for _ in range(10 * RESTED):
        # with two threads somebody is late, and with one nobody can be
        seen.append(time.runs(1, BAD if time.turnout.threads == 2 else 0))
    trials = sum(one < next_ for one, next_ in pairwise(seen))
    assert 9 <= trials <= 10
    assert seen.count(2) <= 2 * trials  # on trial two bad runs are too many


def test_when_the_neighbour_has_gone_all_come_back():
    time = Time(4)
    assert time.runs(30, BAD) == 1
    assert time.runs(RESTED, 0) == 2
    assert time.runs(2 * RESTED, 0) == 4
    assert time.runs(3, BAD) == 4  # and a hiccup is one again


def test_the_last_thread_stays():
    assert Time(2).runs(50, BAD) == 1


@pytest.mark.parametrize("most", [1, 2, 16])
def test_what_everybody_waits_counts_once(most: int):
    """15 threads that wait for one are as bad as one that waits for another."""
    turnout = Turnout(most)
    for i in range(100):
        turnout.note(RUN, GOOD * max(1, most - 1), i)
    assert turnout.threads == most
