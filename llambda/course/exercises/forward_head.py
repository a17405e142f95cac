"""One attention head in all its wrong forms, for exercise 04.1: which mistake gives these rows?"""

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Answer, Wrong, result, same, shown

Doubles = npt.NDArray[np.float64]
Slips = Mapping[str, Mapping[Any, str]]  # option -> its wrong values -> what was forgotten


def mixtures(right: Mapping[str, Any], slips: Slips) -> Iterator[tuple[dict[str, Any], str]]:
    """One wrong option or two, the single ones first: all options, and the explanation."""
    for count in (1, 2):
        for names in combinations(slips, count):
            for values in product(*(slips[name] for name in names)):
                chosen = dict(zip(names, values, strict=True))
                yield {**right, **chosen}, " Also, ".join(slips[n][chosen[n]] for n in names)


def shape_of(rows: Any) -> tuple[int, ...]:
    try:
        return np.asarray(rows, float).shape
    except (TypeError, ValueError, OverflowError):
        return ()


HEAD: Any = {"scale": "sqrt", "over": "keys", "mask": "before", "ahead": 0, "reach": 0}
HEAD_SLIPS: Slips = {
    "scale": {
        "none": "the scores are not divided by sqrt(d), d being the length of a query. Without "
        "that the largest score takes nearly everything.",
        "n": "the scores are divided by the root of the number of positions, and not by sqrt(d).",
        "values": "the scores are divided by the root of a value's length. A query's counts.",
        **{
            d: f"the scores are divided by sqrt({d}), however long a query is: d is len(q[0]), and "
            "no constant."
            for d in (4, 32)  # of the checker's first case, and of this lesson's model
        },
    },
    "over": {
        "queries": "softmax runs over the queries: what all of them give to one key adds up to 1. "
        "It must run over the keys: what one query gives to all of its keys adds up to 1.",
        "nothing": "the shares of a query do not add up to 1: divide by the sum of their exp.",
    },
    "mask": {
        "after": "the mask comes after softmax. The hidden keys have already taken their shares, "
        "so what is left adds up to less than 1. Hide keys before softmax sees their scores.",
        "zero": "hidden keys get the score 0, and exp(0) is 1: they take a share as every other. "
        "A hidden score is -inf, since exp(-inf) is 0.",
        "split": "the window is cut after softmax, when keys further back have taken their shares.",
    },
    "ahead": {
        1: "off by one: position p also sees position p + 1, the very token it should predict.",
        -1: "off by one: position p does not see itself. Its own position counts.",
        99: "nothing is hidden: position 0 already sees what comes later.",
        "window": "the window reaches to both sides. A causal head sees nothing after p.",
    },
    "reach": {
        1: "off by one at the far end: `window` counts the own position, so the oldest visible "
        "one is p - window + 1. Yours reaches one further.",
        -1: "off by one at the far end: `window` positions are visible, and yours sees one less.",
        99: "`window` is not used: position p may see itself and the window - 1 before it.",
    },
}


def head(q: Any, k: Any, v: Any, window: int, **options: Any) -> Doubles:
    """Causal attention of one head; every option has one right value."""
    q, k, v = (np.asarray(table, float) for table in (q, k, v))
    n, d = q.shape
    back = np.arange(n)[:, None] - np.arange(n)  # how far a key lies behind its query
    past = back >= -(window - 1 if options["ahead"] == "window" else options["ahead"])
    near, all_ = back < window + options["reach"], np.ones((n, n))
    split = {"before": (past & near, all_), "after": (all_, past & near), "split": (past, near)}
    split["zero"] = all_, all_
    before, after = split[options["mask"]]  # what is hidden before softmax, and after it
    sizes = {"sqrt": d, "none": 1, "n": n, "values": v.shape[1]}
    scores = q @ k.T / sizes.get(options["scale"], options["scale"]) ** 0.5
    weights = np.exp(scores * (past & near) if options["mask"] == "zero" else scores) * before
    if options["over"] != "nothing":
        with np.errstate(invalid="ignore"):  # nan where a query sees nothing
            weights = weights / weights.sum(int(options["over"] == "keys"), keepdims=True)
    out: Doubles = (weights * after) @ v
    return out


def agrees(rows: Any, other: Doubles) -> bool:
    """Equal wherever `other` is defined: a query that sees nothing may give anything."""
    at = ~np.isnan(other).any(axis=1)
    return same(np.asarray(rows, float)[at], other[at], 1e-4)


# Three positions, with scores that are exact even in float32: first 1,024, 1,023.5 and 1,023, and
# then -1,024, -1,023.5 and, at the last position alone, 1,024.
LARGE_Q, LARGE_V = [[32.0, 0, 0, 0]] * 3, [[1.0, 2.0], [5.0, -1.0], [-3.0, 4.0]]
HIGH, LOW = ([[x, 0, 0, 0] for x in row] for row in ([64, 63.96875, 63.9375], [-64, -63.96875, 64]))
E = np.exp(-0.5)
HIGH_SHARES = [[1, 0, 0], [1 / (1 + E), E / (1 + E), 0], np.array([1, E, E**2]) / (1 + E + E**2)]
LOW_SHARES = [[1, 0, 0], [E / (1 + E), 1 / (1 + E), 0], [0, 0, 1]]


def must_bear_large_scores(answer: Answer) -> None:
    """Raise Wrong if a head that is right for ordinary scores is not for large ones."""
    for keys, shares in ((HIGH, HIGH_SHARES), (LOW, LOW_SHARES)):
        with np.errstate(all="ignore"):
            rows = result(answer, (LARGE_Q, keys, LARGE_V, 3))
        right = np.array(shares) @ LARGE_V
        if same(rows, right, 1e-4):
            continue
        given = np.asarray(rows, float) if shape_of(rows) == right.shape else None
        if given is None:
            what = f"it gives {shown(rows)}"
        else:
            p = next(i for i in range(len(right)) if not same(given[i], right[i], 1e-4))
            what = f"row {p} is {shown(given[p])} where {shown(right[p])} is right"
        where = "near 1,024" if keys is HIGH else "down to -1,024"
        told = f"(Ordinary scores come out right. With scores {where} {what}.)"
        finite = given is not None and bool(np.isfinite(given).all())
        if finite and keys is HIGH:
            raise Wrong(told.strip("()"))
        if finite:
            raise Wrong(
                "a number such as -1000 does not hide a key: a score that is seen may be lower "
                f"still, and then the hidden ones take all. Use -inf. {told}"
            )
        if keys is HIGH:
            raise Wrong(
                "exp(1024) is too large for a float. Take the largest score off all scores of a "
                f"query before exp: their shares stay the same. {told}"
            )
        raise Wrong(
            "what is taken off before exp must be the largest score that this query sees. If it "
            "is that of a hidden key, or of another query, every exp may become 0, and nothing is "
            f"left to divide by. {told}"
        )
