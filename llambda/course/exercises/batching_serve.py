"""Join and leave, exercise 12.3: an engine that logs its calls, and what was forgotten."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from ...errors import InputError
from .base import Answer, Wrong, shown

END = 0
MANY_CALLS = 300  # more than any way to serve these requests needs

Texts = list[list[int]]


class Place:
    """Room for one text: the ids that it holds."""

    def __init__(self, ids: Sequence[int]):
        self.ids = list(ids)

    def truncate(self, length: int) -> None:
        """Forget all ids from `length` on; 0 empties the place."""
        del self.ids[length:]


@dataclass(frozen=True)
class Pair:
    """What one place got in one call: its number, the ids it held, and the new ones."""

    place: int
    held: tuple[int, ...]
    new: tuple[int, ...]


class Scripted:
    """An engine whose next id is a function of all ids of a text. It logs what it is asked."""

    def __init__(self, places: int):
        # Every place was in use before, by a text that somebody else has been given.
        self.places = [Place([9 + number, 200, 201, END]) for number in range(places)]
        self.calls: list[list[Pair]] = []

    def forward(self, places: Sequence[Place], new_ids: Sequence[Sequence[int]]) -> list[int]:
        """Put new ids behind what places hold, all in one call; the next id of each."""
        if not places:
            raise InputError("a call for nobody: then there is nothing to evaluate")
        if len(places) != len(new_ids):
            raise InputError(f"{len(places)} places, and new ids for {len(new_ids)}")
        if len({id(place) for place in places}) < len(places):
            raise InputError("a place stands twice in one call")
        if len(self.calls) == MANY_CALLS:
            raise InputError(
                f"more than {MANY_CALLS} calls: a text is over when its next id is END"
            )
        pairs = []
        for place, new in zip(places, new_ids, strict=True):
            if place not in self.places:
                raise InputError("a place that is none of those given")
            if not isinstance(new, list | tuple) or not new:
                raise InputError(f"{shown(new)} where a list of at least one id is wanted")
            pairs.append(Pair(self.places.index(place), tuple(place.ids), tuple(new)))
        self.calls.append(pairs)
        for place, new in zip(places, new_ids, strict=True):
            place.ids += new
        return [next_id(place.ids) for place in places]


def next_id(ids: Sequence[int]) -> int:
    """END when a text is as long as its first id says; before that some id from 1 to 250."""
    return END if len(ids) >= ids[0] else 1 + crc32(bytes(ids)) % 250


def alone(prompt: Sequence[int]) -> list[int]:
    """The answer to a prompt that nobody else is there with."""
    ids = list(prompt)
    while not ids or ids[-1] != END:
        ids.append(next_id(ids))
    return ids[len(prompt) :]


CASES: list[tuple[int, Texts]] = [  # places, prompts; a prompt's first id tells where its text ends
    (3, [[5, 11], [14, 12, 13], [4, 14], [9, 15], [6, 16, 17], [8, 18], [5, 19]]),
    (2, [[12, 21], [3, 22], [4, 23], [3, 24], [7, 25]]),
    (1, [[4, 31], [6, 32, 33]]),
    (4, [[6, 41], [3, 42]]),
    (2, []),
]


def fewest_calls(places: int, prompts: Texts) -> int:
    free = [0] * places  # the call from which a place is free
    for prompt in prompts:
        first = min(free)
        free[free.index(first)] = first + len(alone(prompt))
    return max(free)


def in_groups(places: int, prompts: Texts) -> int:
    """Calls when a group of requests waits for its slowest."""
    lengths = [len(alone(prompt)) for prompt in prompts]
    return sum(max(lengths[i : i + places]) for i in range(0, len(lengths), places))


def judge_serve(serve: Answer, places: int, prompts: Texts) -> None:
    engine = Scripted(places)
    given = [list(prompt) for prompt in prompts]
    case = f"({len(prompts)} requests, {places} {'place' if places == 1 else 'places'}.)"
    try:
        answers = serve(engine, list(engine.places), given)
    except InputError as error:
        raise Wrong(f"the engine refuses {error}. {case}") from None
    if given != prompts:
        raise Wrong(
            "`requests` is changed: it belongs to whoever asked. Work on a list of your own. "
            f"{case}"
        )
    judge_answers(answers, prompts, engine, case)
    judge_work(engine, prompts, case)
    judge_waiting(engine, prompts, places, case)


def judge_answers(answers: Any, prompts: Texts, engine: Scripted, case: str) -> None:
    wanted = [alone(prompt) for prompt in prompts]
    if not isinstance(answers, list | tuple) or not all(isinstance(a, list) for a in answers):
        raise Wrong(f"return a list with a list of ids for every request, not {shown(answers)}.")
    got = [list(map(int, answer)) for answer in answers]
    if got == wanted:
        return
    for explains, why in ANSWER_MISTAKES:
        if explains(got, wanted, prompts, engine):
            raise Wrong(f"{why} {case}")
    if len(got) != len(wanted):
        raise Wrong(f"{len(got)} answers for {len(wanted)} requests. {case}")
    i = next(i for i in range(len(wanted)) if got[i] != wanted[i])
    raise Wrong(
        f"request {i} gets {shown(got[i])}; alone it gets {shown(wanted[i])}. Hold together what "
        f"belongs together: request, place, next ids. {case}"
    )


def not_emptied(got: Texts, wanted: Texts, prompts: Texts, engine: Scripted) -> bool:
    """A prompt was put behind another text's ids."""
    return any(pair.held and pair.new == tuple(p) for pair in pairs(engine) for p in prompts)


def only_after_use(got: Texts, wanted: Texts, prompts: Texts, engine: Scripted) -> bool:
    """The scrap was there at the beginning, and never later."""
    first = engine.calls[0] if engine.calls else []
    later = [pair for call in engine.calls[1:] for pair in call]
    starts = [tuple(prompt) for prompt in prompts]
    return all(pair.held for pair in first) and not any(
        pair.held and pair.new in starts for pair in later
    )


def loses_its_past(got: Texts, wanted: Texts, prompts: Texts, engine: Scripted) -> bool:
    """A place was emptied between a text's prompt and its later ids."""
    starts = [tuple(prompt) for prompt in prompts]
    return any(not pair.held and pair.new not in starts for pair in pairs(engine))


def pairs(engine: Scripted) -> list[Pair]:
    return [pair for call in engine.calls for pair in call]


Explains = Callable[[Texts, Texts, Texts, Scripted], bool]
ANSWER_MISTAKES: list[tuple[Explains, str]] = [
    (
        lambda got, wanted, prompts, engine: got == [answer[:-1] for answer in wanted],
        "the last id of every answer is missing: END belongs to it.",
    ),
    (
        lambda got, wanted, prompts, engine: (
            got == [p + a for p, a in zip(prompts, wanted, strict=True)]
        ),
        "every answer begins with its prompt. Return only what is new.",
    ),
    (
        lambda got, wanted, prompts, engine: sorted(got) == sorted(wanted),
        "the right answers in another order: they stand as they ended, and are wanted as they "
        "were asked.",
    ),
    (
        only_after_use,
        "the places are emptied when a text leaves, but they were not empty to begin with: the "
        "first texts see what was there. Empty a place when somebody joins.",
    ),
    (
        not_emptied,
        "a place is not emptied for the next one: its prompt is put behind the text of the one "
        "before, and the model answers to both. That is how one user reads another's words.",
    ),
    (
        loses_its_past,
        "a place is emptied while its text is still running, and the text forgets what came "
        "before. Empty it once, when its request joins.",
    ),
    (
        lambda got, wanted, prompts, engine: (
            len(got) == len(wanted)
            and all(g == w[: len(g)] for g, w in zip(got, wanted, strict=True))
        ),
        "an answer stops before its END. When nobody waits any more, some are still running: go on "
        "until they have ended, too.",
    ),
]


def judge_work(engine: Scripted, prompts: Texts, case: str) -> None:
    """The answers are right; was anything evaluated that need not be?"""
    evaluated = sum(len(pair.new) for pair in pairs(engine))
    needed = sum(len(prompt) + len(alone(prompt)) - 1 for prompt in prompts)
    if any(END in pair.new for pair in pairs(engine)):
        raise Wrong(
            f"right, but END itself is evaluated. Whoever drew it has ended: let it leave. {case}"
        )
    if evaluated > needed:
        raise Wrong(
            f"right, but {evaluated} ids are evaluated where {needed} are enough. A place "
            f"remembers its text; after the prompt, give it the newest id alone. {case}"
        )


def judge_waiting(engine: Scripted, prompts: Texts, places: int, case: str) -> None:
    """The answers are right; did anybody wait for nothing?"""
    joined = [[pair.new for pair in call if not pair.held] for call in engine.calls]
    starts = [tuple(prompt) for prompt in prompts]
    if sorted(new for call in joined for new in call) != sorted(starts):
        raise Wrong(
            "right, but a prompt is evaluated in parts. The engine takes all of it in one call: "
            f"more ids, the same weights. {case}"
        )
    if [new for call in joined for new in sorted(call, key=starts.index)] != starts:
        raise Wrong(f"right, but who came first does not join first. {case}")
    calls, fewest = len(engine.calls), fewest_calls(places, prompts)
    if calls <= fewest:
        return
    taken = f"{calls} calls where {fewest} are enough."
    if all(len(call) == 1 for call in engine.calls):
        raise Wrong(
            f"right, but one after the other: no call has more than one text. {taken} {case}"
        )
    if calls == in_groups(places, prompts):
        raise Wrong(
            "right, but everybody waits for the slowest: a place that is free stays empty until "
            f"its whole group has ended. {taken} {case}"
        )
    if any(pauses(engine, number) for number in range(calls)):
        raise Wrong(
            "right, but in some calls texts that are running are left out. Prompts of those who "
            f"join and the newest ids of all others go into the same call. {taken} {case}"
        )
    raise Wrong(
        "right, but in some calls a place is free while somebody waits. Fill all free places "
        f"before every call. {taken} {case}"
    )


def pauses(engine: Scripted, number: int) -> bool:
    """Whether a text that has begun, and goes on later, is not in this call."""
    before, here, later = (
        engine.calls[:number],
        engine.calls[number],
        [pair for call in engine.calls[number + 1 :] for pair in call],
    )
    missing = {pair.place for call in before for pair in call} - {pair.place for pair in here}
    following = (next((p for p in later if p.place == place), None) for place in missing)
    return any(pair is not None and pair.held for pair in following)
