"""The exercises of lesson 04: a head, a rotation, three listings, a token's multiply-adds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...engines.base import LAYER_ACTIVATIONS
from .base import Answer, Raised, Wrong, exercise, expect_number, result, same, shown
from .forward_head import (
    HEAD,
    HEAD_SLIPS,
    Doubles,
    Slips,
    agrees,
    head,
    mixtures,
    must_bear_large_scores,
    shape_of,
)

# ---------------------------------------------------------------- 04.1


@exercise("04.1", "One head, with a window", kind="code", minutes=15, difficulty=3)
def one_head(answer: Answer) -> str:
    source = np.random.default_rng(4)
    cases: list[tuple[Any, ...]] = [
        (*(source.normal(0, 1.5, (n, size)).tolist() for size in (d, d, d + 1)), window)
        for n, d, window in [(6, 4, 6), (7, 3, 3), (5, 4, 1), (1, 2, 4)]
    ]
    with np.errstate(all="ignore"):  # a wrong answer may divide by nothing
        given = [result(answer, case) for case in cases]
    right = [head(*case, **HEAD) for case in cases]
    wrong = []
    for case, rows, good in zip(cases, given, right, strict=True):
        what = f"with {len(good)} positions and a window of {case[3]}"
        if isinstance(rows, Raised):
            raise Wrong(
                f"{what} it stops with {rows.said}. If a list is empty there: p itself is always "
                "visible, and a slice that begins at a negative number counts from the end. If an "
                "index is out of range: nothing after p is visible."
            )
        if shape_of(rows) != good.shape:
            raise Wrong(f"{what}, rows like those of v are wanted, and not {shown(rows)}.")
        for p, row in enumerate(np.asarray(rows, float)):
            if not same(row, good[p], 1e-4):
                wrong.append(f"{what}, row {p} is {shown(row)} where {shown(good[p])} is right.")
    if not wrong:
        must_bear_large_scores(answer)
        return (
            "A window bounds what a position reads, and so what a cache must keep (lesson 06). "
            "News still travels further: window - 1 positions in every layer."
        )
    for options, why in mixtures(HEAD, HEAD_SLIPS):
        made = [head(*case, **options) for case in cases]
        if not np.isnan(made[0][-1, 0]) and all(map(agrees, given, made)):
            raise Wrong(why)
    raise Wrong(wrong[0])


# ---------------------------------------------------------------- 04.2

ROPE: Any = {"pairs": "2i", "turned": "qk", "exponent": -2, "fixed": None, "unit": 1, "late": False}
ROPE_SLIPS: Slips = {
    "pairs": {
        "halves": "element i turns with element i + d/2, which is the order of Hugging Face and of "
        "this lesson. In this file the neighbours 2i and 2i + 1 turn together."
    },
    "turned": {
        "qkv": "v is turned too. Rotation is for the scores, so only q and k turn; v is what is "
        "handed over, and stays as it is.",
        "q": "only q is turned. A score sees the distance of two positions only if k turns too.",
        "": "nothing is turned at all.",
    },
    "exponent": {
        -1: "pair i has the frequency base ** (-2i / d). Yours has i / d in the exponent.",
        -4: "the exponent is -2i / d, with d the length of the whole row. Yours is twice that.",
        -0.5: "the exponent is -2i / d, and d, 8 here, is not the 32 of this lesson's model.",
        0: "all pairs turn equally fast. Pair i has the frequency base ** (-2i / d).",
        2: "the frequencies grow from pair to pair. The exponent is negative.",
    },
    "fixed": {10000.0: "base is an argument, and yours always takes 10,000."},
    "unit": {
        -1: "pairs turn backwards: (a, b) becomes (a cos - b sin, b cos + a sin).",
        np.pi / 180: "the angle is in radians, as math.cos wants it.",
    },
    "late": {
        True: "the second number of a pair is made from the first when that is turned already. "
        "Keep both old numbers until both new ones are made."
    },
}


def rope(q: Any, k: Any, v: Any, position: int, base: float, **options: Any) -> Doubles:
    """The rows of one head at one position, turned as the options say: [3, d]."""
    rows: Doubles = np.array([q, k, v], float)
    d, i = rows.shape[1], np.arange(rows.shape[1] // 2)
    one, other = (2 * i, 2 * i + 1) if options["pairs"] == "2i" else (i, i + len(i))
    frequency = (options["fixed"] or base) ** (options["exponent"] * i / d)
    cos, sin = (f(options["unit"] * position * frequency) for f in (np.cos, np.sin))
    for name, row in zip("qkv", rows, strict=True):
        if name in options["turned"]:
            a, b = row[one], row[other]
            row[one] = a * cos - b * sin
            row[other] = b * cos + (row[one] if options["late"] else a) * sin
    return rows


@exercise("04.2", "Rotate neighbours", kind="code", minutes=15, difficulty=3)
def rotation(answer: Answer) -> str:
    source = np.random.default_rng(2)
    cases: list[tuple[Any, ...]] = [
        (*source.normal(0, 1, (3, 8)).tolist(), position, base)
        for base in (10000.0, 100.0)
        for position in (0, 1, 500)
    ]
    given = [result(answer, case) for case in cases]
    for rows in given:
        if shape_of(rows) != (3, 8):
            raise Wrong(f"q, k and v are wanted back, three rows of 8, and not {shown(rows)}.")

    longer = (*source.normal(0, 1, (3, 12)).tolist(), 2, 100.0)

    def fits(options: Mapping[str, Any], positions: tuple[int, ...] = (0, 1, 500)) -> bool:
        return all(
            same(np.asarray(rows, float), rope(*case, **options), 1e-3)
            for rows, case in zip(given, cases, strict=True)
            if case[3] in positions
        )

    if fits(ROPE):
        rows = result(answer, longer)
        if shape_of(rows) != (3, 12) or not same(
            np.asarray(rows, float), rope(*longer, **ROPE), 1e-3
        ):
            raise Wrong(
                "right for rows of 8 numbers, and wrong for rows of 12: the length of a row is "
                "fixed somewhere. Both d and the number of pairs, d / 2, follow from len(q)."
            )
        return (
            "GGUF files of llama models are stored for this order, and Hugging Face's for halves. "
            "Whoever mixes them up is right at position 0, and at no other."
        )
    if not fits(ROPE, (0,)):
        raise Wrong(
            "even position 0, where nothing turns, does not give back q, k and v as they are."
        )
    for options, why in mixtures(ROPE, ROPE_SLIPS):
        if fits(options):
            raise Wrong(f"{why} (At position 0 nothing turns, and so the mistake does not show.)")
    raise Wrong(
        f"it is right at position {'0 and 1' if fits(ROPE, (0, 1)) else '0'} only. At position p "
        "pair i of q and of k turns by p * base ** (-2i / d) radians."
    )


# ---------------------------------------------------------------- 04.3

ORDER = ["embed", *LAYER_ACTIVATIONS, "final_norm", "logits"]

# Recorded from `tiny` on "The for statement is used to", for each operation of ORDER (those in the
# middle are layer 0's): how far off its worst element is, and how far it may be.
RECORDED = {
    "A": "0 1.27e-6 4.16e-8 1.41e-5 2.20e-7 6.98e-5 2.61e-7 9.15e-5 3.28e-8 1.43e-6 6.81e-7 "
    "1.47e-4 4.76e-7 1.46e-4 .950 3.24e-6 .751 7.72e-6 .524 2.83e-5 .635 3.47e-5 2.76 "
    "1.32e-4 2.43 1.14e-4 4.63 2.18e-4 9.75 1.07e-3 9.47 1.07e-3 5.92 2.81e-4 18.2 1.61e-3",
    "B": "0 1.27e-6 3.55e-5 2.38e-5 2.42e-4 2.30e-4 1.84e-4 1.77e-4 3.13e-5 2.98e-5 2.44e-4 "
    "2.33e-4 1.88e-4 1.81e-4 4.86e-5 1.35e-5 4.45e-5 1.57e-5 6.56e-5 3.26e-5 6.98e-5 4.03e-5 "
    "2.26e-4 1.36e-4 2.32e-4 1.58e-4 3.54e-4 1.52e-4 1.73e-3 1.56e-3 1.75e-3 1.59e-3 8.06e-4 "
    "5.25e-4 2.86e-3 2.06e-3",
    "C": "0 1.27e-6 4.16e-8 1.41e-5 2.20e-7 6.98e-5 2.61e-7 9.15e-5 3.28e-8 1.43e-6 6.81e-7 "
    "1.47e-4 4.76e-7 1.46e-4 3.28e-8 1.52e-6 5.19e-8 3.63e-6 .413 4.40e-5 .385 3.66e-5 1.34 "
    "1.34e-4 1.52 1.29e-4 2.94 1.75e-4 9.83 1.70e-3 9.75 1.67e-3 5.22 1.65e-4 26.2 1.09e-3",
}


def recorded(engine: str) -> dict[str, tuple[float, float]]:
    """Operation -> how far off, how far it may be; in the order of computation."""
    numbers = map(float, RECORDED[engine].split())
    return dict(zip(ORDER, zip(numbers, numbers, strict=True), strict=True))


def listing(engine: str) -> str:
    """What somebody sent of one broken engine: a table, the largest error first."""
    found = sorted(recorded(engine).items(), key=lambda item: item[1][0], reverse=True)
    rows = [f"{name:<14} {off:9.2e} {allowed:9.2e}" for name, (off, allowed) in found]
    return "\n".join([f"engine {engine:<7}    off by   allowed", *rows, ""])


@exercise("04.3", "The first divergence", kind="diagnose", minutes=10, difficulty=2)
def first(answer: Answer) -> str:
    if not isinstance(answer, Mapping) or not RECORDED.keys() <= answer.keys():
        raise Wrong(f"a dict with the keys {', '.join(RECORDED)} is wanted.")
    for engine in RECORDED:
        errors = recorded(engine)
        said = str(answer[engine]).removeprefix("blk.0.")
        if said not in ORDER:
            raise Wrong(f"{engine}: no operation is called {said!r}. Take a name of the listing.")
        if said == next(name for name, (off, allowed) in errors.items() if off > allowed):
            continue
        off, allowed = errors[said]
        if off == max(errors.values())[0]:
            why = "has the largest error, which says nothing of where it was made: errors grow."
        elif off <= allowed:
            why = f"is off by {off:.2e} where {allowed:.2e} is allowed, and so is right."
        else:
            why = "is wrong, but something before it is already. Follow the order of computation."
        raise Wrong(f"{engine}: {said} {why}")
    return (
        "A gave query head h the key/value head h % 2. B had an eps of 1e-6 in place of 1e-5, and "
        "still wrote the right text. C added attention's result to the normed x in place of x."
    )


# ---------------------------------------------------------------- 04.4


@exercise("04.4", "Multiply-adds", kind="predict", minutes=10, difficulty=2)
def multiply_adds(answer: Answer) -> str:
    layers, dim, q, kv, ffn = 30, 576, 9 * 64, 3 * 64, 1536
    layer, table = 2 * dim * q + 2 * dim * kv + 3 * dim * ffn, dim * 49152
    right = layers * layer + table
    mistakes: dict[float, str] = {
        2 * right: "those are flops. A multiplication with its addition is one multiply-add.",
        right + layers * 2 * dim * (q - kv): "k and v have 3 heads of 64, which the 9 query heads "
        "share: their matrices have 192 rows, not 576.",
        right - table: "the head is forgotten: one product with all 49,152 rows of the embedding.",
        right + table: "the embedding is counted as a product. It is a table: one row is looked "
        "up, without arithmetic.",
        right + (2 * layers + 1) * dim: "those are all the weights, and the norms' are no matrix.",
        layer + table: "that is one layer and the head. There are 30 layers.",
        right - layers * dim * ffn: "feed-forward has three: gate, up and down.",
        right - layers * dim * q: "attention has four matrices: q, k, v, and o behind it.",
    }
    rounded = "that is a rounded figure. Count them one by one: it comes out exactly."
    mistakes |= dict.fromkeys((134e6, 134.48e6, 134.5e6, 135e6), rounded)
    expect_number(answer, right, mistakes, share=1e-9)
    return (
        f"{right:,}. Each weight of a matrix is used once for a token, so this is also the number "
        "of weights in them: to make a token is to read the whole model once (lesson 00's ceiling)."
    )
