"""What learners answer in lesson 10, and a phrase that the explanation must hold."""

import itertools

from llambda.course.exercises.threads import every_order

LINE = 16

# ---------------------------------------------------------------- 10.1


def remainder_lost(rows, threads):
    each = rows // threads
    return [(part * each, part * each + each) for part in range(threads)]


def one_row_a_task(rows, threads):
    return [(row, row + 1) for row in range(rows)]


def shared_line(rows, threads):
    return [(rows * i // threads, rows * (i + 1) // threads) for i in range(threads)]


def half_line_lost(rows, threads):
    lines = rows // LINE
    cuts = [LINE * (lines * i // threads) for i in range(threads + 1)]
    return list(itertools.pairwise(cuts))


def last_takes_the_rest(rows, threads):
    each = rows // LINE // threads * LINE
    ends = [*(each * i for i in range(threads)), rows]
    return list(itertools.pairwise(ends))


def first_are_filled(rows, threads):
    each = -(-rows // threads // LINE) * LINE
    return [(min(i * each, rows), min((i + 1) * each, rows)) for i in range(threads)]


def behind_the_end(rows, threads):
    lines = -(-rows // LINE)
    cuts = [LINE * (lines * i // threads) for i in range(threads + 1)]
    return [(cuts[i], cuts[i + 1]) for i in range(threads)]


def good_cuts(rows, threads):
    lines = -(-rows // LINE)
    return [min(rows, LINE * (lines * i // threads)) for i in range(threads + 1)]


def with_the_last_row(rows, threads):
    cuts = good_cuts(rows, threads)
    return [(a, b - 1) if a < b else (a, b) for a, b in itertools.pairwise(cuts)]


def first_and_count(rows, threads):
    cuts = good_cuts(rows, threads)
    return [(a, b - a) for a, b in itertools.pairwise(cuts)]


def one_row_twice(rows, threads):
    cuts = good_cuts(rows, threads)
    return [(a, min(b + 1, rows)) for a, b in itertools.pairwise(cuts)]


def in_lines(rows, threads):
    lines = -(-rows // LINE)
    return [(lines * i // threads, lines * (i + 1) // threads) for i in range(threads)]


def without_empty_parts(rows, threads):
    return [(a, b) for a, b in itertools.pairwise(good_cuts(rows, threads)) if a < b]


def everything_to_one(rows, threads):
    return [(0, rows)] + [(rows, rows)] * (threads - 1)


def prints(rows, threads):
    print(good_cuts(rows, threads))


def only_ends(rows, threads):
    return good_cuts(rows, threads)[1:]


def divides_with_a_slash(rows, threads):
    return [(a * 1.0, b * 1.0) for a, b in itertools.pairwise(good_cuts(rows, threads))]


# ---------------------------------------------------------------- 10.2


def worker_of(numbers, taken):
    while True:
        number = yield from numbers.take()
        if number is None:
            return
        taken.append(number)


def maker(kind, n=2, workers=2, outcome=sorted):
    def make():
        numbers, taken = kind(n), []
        return [worker_of(numbers, taken) for _ in range(workers)], lambda: outcome(taken)

    return make


def one_lucky_run(kind):
    numbers, taken = kind(3), []
    for _ in range(2):
        for _ in worker_of(numbers, taken):
            pass
    return sorted(taken) == [0, 1, 2]


def one_worker(kind):
    return all(taken == [0, 1] for _, taken in every_order(maker(kind, workers=1, n=2)))


def any_order(kind):
    return any(taken == [0, 1] for _, taken in every_order(maker(kind)))


def in_this_order(kind):
    return all(taken == [0, 1] for _, taken in every_order(maker(kind, outcome=list)))


def fair(kind):
    def make():
        numbers, mine, yours = kind(2), [], []
        return [worker_of(numbers, mine), worker_of(numbers, yours)], lambda: (mine, yours)

    return all(len(mine) == len(yours) == 1 for _, (mine, yours) in every_order(make))


def made_once(kind):
    numbers, taken = kind(2), []

    def make():
        taken.clear()
        return [worker_of(numbers, taken), worker_of(numbers, taken)], lambda: sorted(taken)

    return all(outcome == [0, 1] for _, outcome in every_order(make))


def takes_once(kind):
    def make():
        numbers, taken = kind(2), []

        def worker():
            taken.append((yield from numbers.take()))

        return [worker(), worker()], lambda: sorted(taken)

    return all(outcome == [0, 1] for _, outcome in every_order(make))


def stuck_is_fine(kind):
    outcomes = [taken for _, taken in every_order(maker(kind))]
    return all(taken == [0, 1] for taken in outcomes if taken is not None)


def expects_no_none(kind):
    return all(len(taken) == 2 for _, taken in every_order(maker(kind)))


def sorts_none(kind):
    def make():
        numbers, taken = kind(1), []

        def worker():
            for _ in range(2):
                taken.append((yield from numbers.take()))

        return [worker(), worker()], lambda: taken

    return all(sorted(taken)[-1] == 0 for _, taken in every_order(make))


def counts_them(kind):
    return all(taken == 2 for _, taken in every_order(maker(kind, outcome=len)))


def none_twice(kind):
    for _, taken in every_order(maker(kind)):
        if taken is None or len(set(taken)) < len(taken):
            return False
    return True


def none_missing(kind):
    return all(taken == {0, 1} for _, taken in every_order(maker(kind, outcome=set)))


def one_number(kind):
    return all(taken == [0] for _, taken in every_order(maker(kind, n=1)))


def too_many(kind):
    outcomes = [taken for _, taken in every_order(maker(kind, n=4, workers=3))]
    return all(taken == [0, 1, 2, 3] for taken in outcomes)


def never_ends(kind):
    def make():
        numbers = kind(2)

        def worker():
            while True:
                yield from numbers.take()

        return [worker(), worker()], lambda: True

    return all(outcome for _, outcome in every_order(make))


def gives_the_outcomes(kind):
    return [taken for _, taken in every_order(maker(kind))]


def says_it(kind):
    print(all(taken == [0, 1] for _, taken in every_order(maker(kind))))


def takes_nothing(kind):
    return kind(2).n == 2


# ---------------------------------------------------------------- 10.3, 10.4

RIGHT = {"joins": 211, "parts": 4, "rows": 1920}
CAUSES = {"A": "contention", "B": "lost exception", "C": "race", "D": "order of addition"}

WRONG = {
    "10.1": [
        ("remainder lost", remainder_lost, "rows from 1533 on"),
        ("a task for each row", one_row_a_task, "a task for every row"),
        ("a shared line", shared_line, "lie in one cache line"),
        ("the last line lost", half_line_lost, "rows from 96 on"),
        ("the last takes the rest", last_takes_the_rest, "takes all that is left"),
        ("the first are filled up", first_are_filled, "the first threads are filled up"),
        ("behind the end", behind_the_end, "behind the"),
        ("the last row included", with_the_last_row, "the first row that is not in it"),
        ("a count for the end", first_and_count, "Is the second number a count?"),
        ("a row twice", one_row_twice, "is in two parts"),
        ("lines for rows", in_lines, "rows from 36 on"),
        ("empty parts left out", without_empty_parts, "also where some are empty"),
        ("all to one", everything_to_one, "one thread does it all"),
        ("printed", prints, "returns nothing"),
        ("no pairs", only_ends, "no list of pairs"),
        ("floats", divides_with_a_slash, "divide by //"),
    ],
    "10.2": [
        ("one lucky run", one_lucky_run, "one lucky run"),
        ("one worker", one_worker, "one alone cannot race"),
        ("any for all", any_order, "the first order that goes well"),
        ("correct code rejected: an order", in_this_order, "sort before you compare"),
        ("correct code rejected: fairness", fair, "not which worker gets it"),
        ("made once", made_once, "all orders share it"),
        ("each takes one", takes_once, "until they get None"),
        ("stuck is fine", stuck_is_fine, "in place of an outcome"),
        ("counted", counts_them, "How many come is right"),
        ("no number twice", none_twice, "one of those below n"),
        ("no number missing", none_missing, "No number is missing"),
        ("a single number", one_number, "hand out two"),
        ("too many orders", too_many, "more than 20,000 orders"),
        ("a worker without an end", never_ends, "no task has come to its end"),
        ("None for an outcome", expects_no_none, "where workers are stuck"),
        ("None for a number", sorts_none, "`take` gives when no number is left"),
        ("outcomes returned", gives_the_outcomes, "your test returns [[0, 1]"),
        ("printed", says_it, "returns nothing"),
        ("nothing taken", takes_nothing, "never runs"),
    ],
    "10.3": [
        ("one a layer", RIGHT | {"joins": 30}, "seven matrices"),
        ("no head", RIGHT | {"joins": 210}, "the head, behind"),
        ("attention, too", RIGHT | {"joins": 241}, "attention is counted"),
        ("one layer", RIGHT | {"joins": 8}, "one layer and the head"),
        ("logical cores", RIGHT | {"parts": 8}, "logical cores"),
        ("one part", RIGHT | {"parts": 1}, "no sharing"),
        ("a part a row", RIGHT | {"parts": 576}, "a part for each row"),
        ("the part's time forgotten", RIGHT | {"rows": 1440}, "still need the fourth"),
        ("eight cores", RIGHT | {"rows": 1646}, "eight threads"),
        ("a part as long as a join", RIGHT | {"rows": 5760}, "where each thread's part"),
        ("multiplied by four", RIGHT | {"rows": 360}, "should be divided"),
        ("units", RIGHT | {"rows": 1.92}, "look at the units"),
        ("one number", 211, "a dict with the keys"),
        ("a key missing", {"joins": 211, "parts": 4}, "rows is missing"),
        ("not a number", RIGHT | {"parts": "four"}, "a number is wanted"),
        ("something else", RIGHT | {"rows": 3000}, "too large"),
    ],
    "10.4": [
        ("contention called a race", CAUSES | {"A": "race"}, "it costs time"),
        ("swallowed exception called a race", CAUSES | {"B": "race"}, "never twice alike"),
        ("contention: too many threads", CAUSES | {"A": "oversubscription"}, "two gain nothing"),
        ("A: exception", CAUSES | {"A": "lost exception"}, "nothing is missing"),
        ("A: order", CAUSES | {"A": "order of addition"}, "add up alike"),
        ("B: contention", CAUSES | {"B": "contention"}, "nobody waits"),
        ("B: order", CAUSES | {"B": "order of addition"}, "whole rows to zero"),
        ("B: oversubscription", CAUSES | {"B": "oversubscription"}, "B: that would be slow"),
        ("a race called an exception", CAUSES | {"C": "lost exception"}, "all four threads"),
        ("C: contention", CAUSES | {"C": "contention"}, "C: contention is slow"),
        ("C: order", CAUSES | {"C": "order of addition"}, "exact in any order"),
        ("C: oversubscription", CAUSES | {"C": "oversubscription"}, "C: that would be slow"),
        ("order of addition called a race", CAUSES | {"D": "race"}, "where the sum is cut"),
        ("D: contention", CAUSES | {"D": "contention"}, "nothing is said of time"),
        ("D: exception", CAUSES | {"D": "lost exception"}, "more than the last digits"),
        ("D: oversubscription", CAUSES | {"D": "oversubscription"}, "no other number"),
        ("another word", CAUSES | {"D": "rounding"}, "is none of"),
    ],
}
