"""The exercises of lesson 05: top-p, a stop string held back, positions, seeds."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import (
    Answer,
    Raised,
    Wrong,
    exercise,
    expect_choices,
    expect_number,
    result,
    same,
    shown,
)
from .generate_stops import STOP_CASES, STOP_FAULTS, right_pieces, stop_fault

Floats = npt.NDArray[np.float64]
Order = Callable[[Floats], npt.NDArray[np.intp]]  # of the ids
Count = Callable[[Floats, float], int]  # of those to keep, from the running sums and p

# ---------------------------------------------------------------- 05.1

UNEVEN = np.array([0.125, 0.5, 0.25, 0.125])
NUCLEUS_CASES = [
    (np.array([0.5, 0.25, 0.25]), 0.5),
    (np.array([0.5, 0.25, 0.25]), 0.625),
    (UNEVEN, 0.75),
    (UNEVEN, 0.5625),
    (UNEVEN, 0.0),
    (UNEVEN, 1.0),
    (np.array([0.25, 0.25, 0.25, 0.25]), 0.5),
]
# Sixteen equal tokens have the first half, and twelve of them reach p. In arrays as short as those
# above NumPy's sort leaves equals in order whether it is asked to or not.
MANY_EQUALS, TWELVE = np.array([1, 2, 1] * 16) / 64, 0.375
TOLERANCE = 1e-6  # for those who compute in float32

BEST: Order = lambda p: np.argsort(-p, kind="stable")  # noqa: E731
REVERSED: Order = lambda p: np.argsort(p, kind="stable")[::-1]  # noqa: E731
WORST: Order = lambda p: np.argsort(p, kind="stable")  # noqa: E731
UNSORTED: Order = lambda p: np.arange(p.size)  # noqa: E731

UP_TO: Count = lambda reached, p: int((reached <= p).sum())  # noqa: E731
BELOW: Count = lambda reached, p: int((reached < p).sum())  # noqa: E731
CROSSING: Count = lambda reached, p: BELOW(reached, p) + 1  # noqa: E731
ONE_MORE: Count = lambda reached, p: UP_TO(reached, p) + 1  # noqa: E731
STARTS_BELOW: Count = lambda reached, p: BELOW(np.append(0, reached[:-1]), p)  # noqa: E731
NEVER_NONE: list[Count] = [lambda r, p: max(1, UP_TO(r, p)), lambda r, p: max(1, BELOW(r, p))]
ANY_COUNT = [UP_TO, BELOW, CROSSING, ONE_MORE, STARTS_BELOW, *NEVER_NONE]


def kept_by(order: Order, count: Count) -> list[list[int]]:
    """The ids kept in each case by an order and a rule how many."""
    orders = [(order(row), row, p) for row, p in NUCLEUS_CASES]
    return [sorted(ids[: count(np.cumsum(row[ids]), p)].tolist()) for ids, row, p in orders]


CROSSING_LOST = "the token that crosses p is lost: what is kept must add up to p or more."
CROSSING_REPLACED = "one token at least is not enough: the one that crosses p is kept, whatever p."
NOTHING_LEFT = "p = 0 leaves nothing to draw from. The best token is always kept."
TOO_MANY = "one token too many where the sum is exactly p: p is reached, so the set is complete."
NOT_SORTED = "the sum runs along the ids, unsorted. Sort first: the set is of the best tokens."
SORTED_UP = "the sort begins with the least probable token, and the set is of the best."
EACH_ALONE = "each token is compared with p by itself. It is the running sum that must reach p."
NOT_PUT_BACK = "so many tokens, but in sorted order: what is kept must stay at the place of its id."
ALL_EQUALS = (
    "all tokens are kept that are as probable as the last one needed. Of equals the lowest ids "
    "come first, and only as many as are needed."
)
HIGHEST_OF_EQUALS = (
    "of equal tokens the highest id was kept, not the lowest. Reversing a sort reverses the equals "
    "as well: sort -probabilities, with kind='stable'."
)
NUCLEUS_MISTAKES: list[tuple[list[Order], list[Count], str]] = [
    ([BEST, REVERSED], [UP_TO, BELOW], CROSSING_LOST),
    ([BEST, REVERSED], NEVER_NONE, CROSSING_REPLACED),
    ([BEST, REVERSED], [STARTS_BELOW], NOTHING_LEFT),
    ([BEST, REVERSED], [ONE_MORE], TOO_MANY),
    ([UNSORTED], ANY_COUNT, NOT_SORTED),
    ([WORST], ANY_COUNT, SORTED_UP),
    ([REVERSED], [CROSSING], HIGHEST_OF_EQUALS),
]


@exercise("05.1", "Top-p", kind="code", minutes=8, difficulty=2)
def nucleus(answer: Answer) -> str:
    with np.errstate(all="ignore"):  # 0 / 0, where a rule leaves nothing
        rows = [distribution(result(answer, case), *case) for case in NUCLEUS_CASES]
    kept = [np.flatnonzero(row > 0).tolist() for row in rows]
    right = kept_by(BEST, CROSSING)
    if kept != right:
        at = next(i for i, ids in enumerate(kept) if ids != right[i])
        told = f"{nucleus_call(*NUCLEUS_CASES[at])} keeps {kept[at]}; right is {right[at]}."
        for orders, counts, why in NUCLEUS_MISTAKES:
            if any(kept == kept_by(*rule) for rule in product(orders, counts)):
                raise Wrong(f"{why} {told}")
        in_order = kept == [list(range(len(ids))) for ids in right]
        alone = kept == [np.flatnonzero(row >= p).tolist() for row, p in NUCLEUS_CASES]
        equals = kept == [
            np.flatnonzero(row >= row[ids].min()).tolist()
            for (row, _), ids in zip(NUCLEUS_CASES, right, strict=True)
        ]
        rules = {NOT_PUT_BACK: in_order, EACH_ALONE: alone, ALL_EQUALS: equals}
        why = next((f"{why} " for why, broken in rules.items() if broken), "")
        raise Wrong(f"{why}{told}")
    for case, ids, out in zip(NUCLEUS_CASES, right, rows, strict=True):
        wanted = np.zeros_like(case[0])
        wanted[ids] = case[0][ids]
        if not same(out, wanted / wanted.sum(), TOLERANCE):
            told = f"{nucleus_call(*case)} gives {shown(out)}; right is "
            if same(out, wanted, TOLERANCE):
                told = (
                    f"the right tokens, but they no longer add up to 1: divide by the sum. {told}"
                )
            raise Wrong(f"{told}{shown(wanted / wanted.sum())}.")
    must_be_stable(answer)
    must_make_a_new_array(answer)
    return "The best token stays, and top-p costs at most ln(1/p) nats: two facts to test with."


def must_be_stable(answer: Answer) -> None:
    """Raise Wrong if of many equal tokens others are kept than those of the lowest ids."""
    row = distribution(result(answer, (MANY_EQUALS, TWELVE)), MANY_EQUALS, TWELVE)
    kept, right = np.flatnonzero(row > 0), np.arange(1, 36, 3)
    if not np.array_equal(kept, right):
        raise Wrong(
            "of many equal tokens others are kept than those of the lowest ids. np.argsort leaves "
            "equals in order only if it is asked to: kind='stable'. Of np.array([1, 2, 1] * 16) "
            f"/ 64 at p = {TWELVE:g}, {kept.tolist()} are kept; right is {right.tolist()}."
        )


def must_make_a_new_array(answer: Answer) -> None:
    """Raise Wrong if a call changes the array that it is given, or gives that one back."""
    for row, p in NUCLEUS_CASES:
        own = row.copy()
        given = answer(own, p)
        if not np.array_equal(own, row):
            raise Wrong(
                "the array that came in is changed, and whoever called has lost the probabilities. "
                f"Write into a new one. After {nucleus_call(row, p)} it holds {shown(own)}."
            )
        if isinstance(given, np.ndarray) and np.shares_memory(given, own):
            raise Wrong(
                f"{nucleus_call(row, p)} gives back the very array that came in. If one is changed "
                "later, so is the other: make a copy."
            )


def nucleus_call(row: Floats, p: float) -> str:
    return f"top_p({shown(row)}, {p:g})"


def distribution(given: Any, row: Floats, p: float) -> Floats:
    """What a call gave, if it has the right shape; nothing kept, if it stopped for p = 0."""
    if isinstance(given, Raised):
        if p == 0:
            return np.zeros(row.size)
        raise Wrong(f"{nucleus_call(row, p)} stops with {shown(given)}.")
    try:
        numbers = np.asarray(given)
    except ValueError:  # rows of several lengths
        numbers = np.zeros(())
    if numbers.shape == row.shape and numbers.dtype.kind == "f":
        return np.asarray(numbers, np.float64)
    told = f"{nucleus_call(row, p)} gives {shown(given)}."
    raise Wrong(f"an array of {row.size} probabilities is wanted; {told}")


# ---------------------------------------------------------------- 05.2


@exercise("05.2", "Held back", kind="code", minutes=12, difficulty=3)
def held_back(answer: Answer) -> str:
    found: dict[str, str] = {}
    for pieces, stop in STOP_CASES:
        given, right = result(answer, (pieces, stop)), right_pieces(pieces, stop)
        told = f"show_pieces({pieces}, {stop!r}) gives {shown(given)}; right is {right}."
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise Wrong(f"a list of strings is wanted. {told}")
        if len(given) != len(pieces) + 1:
            empty = " (An empty piece is a piece as well.)" if "" in pieces else ""
            raise Wrong(f"one string for each piece is wanted, and one for the end.{empty} {told}")
        if given != right:
            found.setdefault(stop_fault(pieces, stop, given), told)
    for fault, why in STOP_FAULTS.items():
        if fault in found:
            raise Wrong(f"{why} {found[fault]}".strip())
    return "What is held is always shorter than the stop string, so no reader waits long."


# ---------------------------------------------------------------- 05.3

PROMPT, NEW = 10, 100


@exercise("05.3", "Work done again", kind="predict", minutes=5, difficulty=2)
def positions(answer: Answer) -> str:
    right = sum(range(PROMPT, PROMPT + NEW))
    once = "that is each position once. This loop evaluates the whole text again for every token."
    no_prompt = "the prompt is forgotten. It is evaluated in every step, too."
    close = (
        "close, but a count comes out exactly. Take the first step and the last together, the "
        "second and the last but one: how many pairs are there, and how many positions in each?"
    )
    mistakes: dict[float, str] = {
        **dict.fromkeys(range(right - 50, right + 51), close),
        PROMPT + NEW: once,
        PROMPT + NEW - 1: once,
        sum(range(PROMPT + 1, PROMPT + NEW + 1)): "one too many in each row. The first new token "
        "is chosen after the prompt's 10, and after the hundredth nothing is evaluated.",
        sum(range(PROMPT, PROMPT + NEW + 1)): "one step too many: after the hundredth new token "
        "nothing is evaluated.",
        NEW * NEW: "100 times 100 takes all steps to be equally long. They grow from 10 to 109.",
        NEW * (PROMPT + NEW): "that takes every step to be as long as the text in the end. They "
        "grow from 10 to 109.",
        NEW * PROMPT + NEW * NEW // 2: "that takes the new tokens' part for half of 100 times 100. "
        "They add 0 to the first step and 99 to the last: 0 + 1 + ... + 99.",
        NEW
        * NEW
        // 2: "half of 100 times 100 is an estimate, and the prompt is not in it. The steps "
        "grow from 10 to 109.",
        NEW * PROMPT: "the new tokens are forgotten. They belong to the text that is evaluated.",
        **{sum(range(first, NEW + first)): no_prompt for first in (0, 1)},
        sum(range(1, PROMPT + NEW)): "that evaluates the prompt token by token. Its 10 tokens "
        "come in one call, the first.",
    }
    expect_number(answer, right, mistakes, share=1e-9)
    return f"10 + 11 + ... + 109, and only {PROMPT + NEW - 1} of them for the first time."


# ---------------------------------------------------------------- 05.4

REPORTS = {
    "nightly test": """\
Each run is a fresh process, which makes one text after another on one machine.
           run 1                    run 2                    run 3
  seed 0   'a list of the names'    'None if there is no'    'an object with the'
  seed 1   'the number of items'    'the number of items'    'the number of items'
  seed 2   'true if the string'     'true if the string'     'true if the string'
""",
    "two visitors": """\
One server. Ada and Ben send the same prompt, both with seed 7. The random numbers used,
  when Ben waits until Ada has her text:
    Ada  0.625 0.897 0.776 ...    Ben  0.625 0.897 0.776 ...
  when both ask at the same moment:
    Ada  0.625 0.776 0.225 ...    Ben  0.897 0.300 0.874 ...
""",
    "two programs": """\
The same model, prompt and seed; temperature 0.5 and top-p 0.8 in both.
                     program A        program B
  random numbers     0.625 0.897      0.625 0.897
  logits             3 2 1            3 2 1
  tokens kept        0 and 1          0
  tokens drawn       0, 1             0, 0
""",
    "two machines": """\
The same program, model file, prompt, seed and settings.
                               machine A      machine B
  random numbers               the same       the same
  tokens 1 to 211              the same       the same
  random number for token 212  0.338660       0.338660
  running sum up to ' the'     0.338662       0.338658
  token 212                    ' the'         ' this'
""",
}
CAUSES = dict(zip(REPORTS, ("unset", "shared", "order", "last bits"), strict=True))
SEED_0 = "seeds 1 and 2 repeat, so that is in order. What is special about the one that does not?"
NUMBERS = "the random numbers themselves differ, and they come before any logit and any rule."
EQUAL = "the random numbers are the same from the first on, so seed and generator are in order."
NOT_THE_CAUSE = {
    **{("nightly test", cause): SEED_0 for cause in ("shared", "continued", "last bits", "order")},
    ("two visitors", "unset"): "the seed is used: one after the other, both get the same numbers.",
    ("two visitors", "continued"): "then Ben would go on where Ada's text ended. But if he waits "
    "he begins anew, and if not, the two take turns at one series.",
    **{("two visitors", cause): NUMBERS for cause in ("last bits", "order")},
    **{(two, cause): EQUAL
       for two in ("two programs", "two machines") for cause in ("unset", "shared", "continued")},
    ("two programs", "last bits"): "the logits are the same. What is kept is the first that "
    "differs: at temperature 0.5 the best token alone has 0.87.",
    ("two machines", "order"): "another order would show long before token 212, and this is one "
    "program. Compare the running sums.",
}  # fmt: skip


@exercise("05.4", "Same seed, different text", kind="diagnose", minutes=5, difficulty=2)
def causes(answer: Answer) -> str:
    expect_choices(answer, CAUSES, NOT_THE_CAUSE)
    return "Seed, numbers, logits, kept tokens, draw: the first that differs is where to look."
