"""What learners answer in lesson 12, and a phrase that the explanation must hold."""

from collections import deque
from itertools import product

END = 0


# ---------------------------------------------------------------- 12.2


def shapes(registers):
    return list(product(range(1, registers + 1), repeat=2))


def ratio(shape):
    rows, tokens = shape
    return rows * tokens / (rows + tokens)


def sums_only(registers):
    return max((s for s in shapes(registers) if s[0] * s[1] <= registers), key=ratio)


def weights_uncounted(registers):
    return max((s for s in shapes(registers) if s[0] * s[1] < registers), key=ratio)


def number_uncounted(registers):
    return max((s for s in shapes(registers) if s[0] * (s[1] + 1) <= registers), key=ratio)


def one_weight_at_a_time(registers):
    fitting = [s for s in shapes(registers) if s[0] * s[1] + 2 <= registers]
    return max(fitting, key=ratio)


def a_number_for_each(registers):
    fitting = [s for s in shapes(registers) if s[0] * s[1] + s[0] + s[1] <= registers]
    return max(fitting, key=ratio)


def fitting_shapes(registers):
    return [s for s in shapes(registers) if s[0] * s[1] + s[0] + 1 <= registers]


def right_tile(registers):
    return max(fitting_shapes(registers), key=ratio)


def turned_around(registers):
    rows, tokens = right_tile(registers)
    return tokens, rows


def most_sums(registers):
    return max(fitting_shapes(registers), key=lambda s: s[0] * s[1])


def fewest_loads(registers):
    return 1, 1


def squares(registers):
    return max(s for s in fitting_shapes(registers) if s[0] == s[1])


def two_rows(registers):
    return max((s for s in fitting_shapes(registers) if s[0] <= 2), key=ratio)


def the_same_for_all(registers):
    return 3, 4


def a_single_number(registers):
    return ratio(right_tile(registers))


def at_most_four_tokens(registers):
    return max((s for s in fitting_shapes(registers) if s[1] <= 4), key=ratio)


# ---------------------------------------------------------------- 12.3


def loop(engine, places, requests, *, reset="join", may_join=None, take=deque.popleft):
    """A right scheduler, and where it may go wrong."""
    waiting = deque(enumerate(requests))
    answers = [[] for _ in requests]
    free, running = list(places), []
    while waiting or running:
        while waiting and free and (may_join is None or may_join(running)):
            number, prompt = take(waiting)
            place = free.pop(0)
            if reset == "join":
                place.truncate(0)
            running.append((number, place, prompt))
        following = engine.forward([p for _, p, _ in running], [ids for _, _, ids in running])
        going_on = []
        for (number, place, _), token in zip(running, following, strict=True):
            answers[number].append(token)
            if token == END:
                free.append(place)
                if reset == "leave":
                    place.truncate(0)
            else:
                going_on.append((number, place, [token]))
        running = going_on
    return answers


def group_by_group(engine, places, requests):
    answers = []
    for first in range(0, len(requests), len(places)):
        answers += loop(engine, places, requests[first : first + len(places)])
    return answers


def never_empties(engine, places, requests):
    return loop(engine, places, requests, reset="never")


def empties_at_the_end(engine, places, requests):
    return loop(engine, places, requests, reset="leave")


def one_by_one(engine, places, requests):
    return loop(engine, places[:1], requests)


def last_come_first(engine, places, requests):
    return loop(engine, places, requests, take=deque.pop)


def one_joins_a_step(engine, places, requests):
    joined = []

    def may_join(running):
        new = len(engine.calls) not in joined
        joined.append(len(engine.calls))
        return new

    return loop(engine, places, requests, may_join=may_join)


def drops_the_end(engine, places, requests):
    return [answer[:-1] for answer in loop(engine, places, requests)]


def with_prompts(engine, places, requests):
    answers = loop(engine, places, requests)
    return [prompt + answer for prompt, answer in zip(requests, answers, strict=True)]


def as_they_end(engine, places, requests):
    ended = []
    waiting, running, free = deque(requests), [], list(places)
    while waiting or running:
        while waiting and free:
            place = free.pop()
            place.truncate(0)
            running.append((place, waiting.popleft(), []))
        following = engine.forward([p for p, _, _ in running], [ids for _, ids, _ in running])
        before, running = running, []
        for (place, _, answer), token in zip(before, following, strict=True):
            answer.append(token)
            if token == END:
                ended.append(answer)
                free.append(place)
            else:
                running.append((place, [token], answer))
    return ended


def takes_requests_away(engine, places, requests):
    answers, running, free, number = [[] for _ in requests], [], list(places), 0
    while requests or running:
        while requests and free:
            place = free.pop()
            place.truncate(0)
            running.append((number, place, requests.pop(0)))
            number += 1
        following = engine.forward([p for _, p, _ in running], [ids for _, _, ids in running])
        before, running = running, []
        for (who, place, _), token in zip(before, following, strict=True):
            answers[who].append(token)
            if token == END:
                free.append(place)
            else:
                running.append((who, place, [token]))
    return answers


class Watched:
    """An engine in front of which something is done to every call."""

    def __init__(self, engine, before):
        self.engine, self.before = engine, before
        self.calls = engine.calls

    def forward(self, places, ids):
        return self.before(self.engine, places, ids)


def evaluates_all_again(engine, places, requests):
    def before(engine, places, ids):
        texts = [place.ids + new for place, new in zip(places, ids, strict=True)]
        for place in places:
            place.truncate(0)
        return engine.forward(places, texts)

    return loop(Watched(engine, before), places, requests)


def in_parts(engine, places, requests):
    def before(engine, places, ids):
        for place, new in zip(places, ids, strict=True):
            for token in new[:-1]:
                engine.forward([place], [[token]])
        return engine.forward(places, [new[-1:] for new in ids])

    return loop(Watched(engine, before), places, requests)


def prompts_by_themselves(engine, places, requests):
    def before(engine, places, ids):
        following, old = {}, [bool(place.ids) for place in places]
        for kind in (False, True):
            some = [i for i in range(len(places)) if old[i] == kind]
            if some:
                made = engine.forward([places[i] for i in some], [ids[i] for i in some])
                following.update(zip(some, made, strict=True))
        return [following[i] for i in range(len(places))]

    return loop(Watched(engine, before), places, requests)


def empties_all(engine, places, requests):
    def before(engine, some, ids):
        if any(not place.ids for place in some):
            for place in places:
                place.truncate(0)
        return engine.forward(some, ids)

    return loop(Watched(engine, before), places, requests)


def evaluates_the_end(engine, places, requests):
    def before(engine, some, ids):
        following = engine.forward(some, ids)
        ended = [place for place, token in zip(some, following, strict=True) if token == END]
        if ended:
            engine.forward(ended, [[END]] * len(ended))
        return following

    return loop(Watched(engine, before), places, requests)


def mixes_rows(engine, places, requests):
    def before(engine, some, ids):
        return engine.forward(some, ids)[::-1]

    return loop(Watched(engine, before), places, requests)


def never_ends(engine, places, requests):
    for place, prompt in zip(places, requests, strict=False):
        place.truncate(0)
        ids = prompt
        while True:
            ids = engine.forward([place], [ids])
    return []


def calls_for_nobody(engine, places, requests):
    answers = loop(engine, places, requests)
    engine.forward([], [])
    return answers


def returns_nothing(engine, places, requests):
    loop(engine, places, requests)


def forgets_the_last(engine, places, requests):
    return loop(engine, places, requests[:-1])


def stops_when_nobody_waits(engine, places, requests):
    answers, waiting, running, free = [[] for _ in requests], deque(requests), [], list(places)
    while waiting:
        while waiting and free:
            place = free.pop()
            place.truncate(0)
            running.append((answers[len(requests) - len(waiting)], place, waiting.popleft()))
        following = engine.forward([p for _, p, _ in running], [ids for _, _, ids in running])
        before, running = running, []
        for (answer, place, _), token in zip(before, following, strict=True):
            answer.append(token)
            if token == END:
                free.append(place)
            else:
                running.append((answer, place, [token]))
    return answers


def all_at_once(engine, places, requests):
    return loop(engine, [type(places[0])([]) for _ in requests], requests)


WRONG = {
    "12.1": [
        ("flops a byte", 2.5, "for each *byte*"),
        ("a MAC is one operation", 10, "as one operation"),
        ("a weight of one byte", 1.25, "a weight of one byte"),
        ("upside down", 0.4, "bytes come in during"),
        ("upside down again", 0.2, "how long does computing"),
        ("bits", 40, "32 bits"),
        ("times two", 20, "instead of divided"),
        ("one more", 6, "too large"),
    ],
    "12.2": [
        ("operands uncounted", sums_only, "the sums alone fill"),
        ("weights uncounted", weights_uncounted, "weights of the column are in no register"),
        ("number uncounted", number_uncounted, "token's number is in no register"),
        ("one weight at a time", one_weight_at_a_time, "one register of weights at a time"),
        ("the other way round", turned_around, "other way round"),
        ("a register for each number", a_number_for_each, "a register for the number of each"),
        ("most sums", most_sums, "has the most sums"),
        ("fewest loads", fewest_loads, "has the fewest loads"),
        ("squares", squares, "a square is the best"),
        ("two rows", two_rows, "the package's choice"),
        ("the same for all", the_same_for_all, "the same tile for any number"),
        ("the ratio", a_single_number, "return two whole numbers"),
        ("at most four tokens", at_most_four_tokens, "you have 6 x 4"),
    ],
    "12.3": [
        ("waits for the slowest", group_by_group, "waits for the slowest"),
        ("place not reset", never_empties, "is not emptied for the next one"),
        ("reset only when it leaves", empties_at_the_end, "not empty to begin with"),
        ("one after the other", one_by_one, "one after the other"),
        ("last come, first served", last_come_first, "does not join first"),
        ("one joins a step", one_joins_a_step, "a place is free while somebody waits"),
        ("END dropped", drops_the_end, "END belongs to it"),
        ("prompts returned", with_prompts, "begins with its prompt"),
        ("in the order of ending", as_they_end, "in another order"),
        ("requests taken away", takes_requests_away, "belongs to whoever asked"),
        ("all evaluated again", evaluates_all_again, "give it the newest id alone"),
        ("prompts in parts", in_parts, "evaluated in parts"),
        ("prompts by themselves", prompts_by_themselves, "running are left out"),
        ("running texts emptied", empties_all, "while its text is still running"),
        ("END evaluated", evaluates_the_end, "END itself is evaluated"),
        ("rows mixed up", mixes_rows, "Hold together what belongs"),
        ("never ends", never_ends, "a text is over when"),
        ("a call for nobody", calls_for_nobody, "a call for nobody"),
        ("nothing returned", returns_nothing, "not None"),
        ("stops when nobody waits", stops_when_nobody_waits, "stops before its END"),
        ("the last one forgotten", forgets_the_last, "6 answers for 7"),
        ("places of one's own", all_at_once, "none of those given"),
    ],
    "12.4": [
        ("idle over busy", 1 / 4, "over *busy* time"),
        ("none", 0, "work before the first has made any"),
        ("one stage's turns", 2 / 5, "two idle turns over five"),
        ("one gap", 1 / 10, "only one of the two gaps"),
        ("the share of work", 0.8, "in which they work"),
        ("one micro-batch", 0.5, "for one micro-batch"),
        ("turns", 2, "that many turns"),
        ("percent", 20, "in percent"),
        ("something else", 0.3, "too large"),
    ],
}
