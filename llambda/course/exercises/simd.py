"""The exercises of lesson 08: a kernel with a tail, how many sums to run at once, five listings."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...errors import plural
from ...simd.listing import asm
from ...simd.target import target_has
from .base import Answer, Wrong, exercise, expect_number, said
from .simd_listings import LISTINGS as LISTINGS
from .simd_listings import listings as listings
from .simd_rehearsal import Notes, rehearse

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

LENGTHS = range(67, 0, -1)  # of x; long ones first: what they show is easier to explain
ROWS = 3
LONG, SHORT = 1024, 31  # columns, for counting
STALE = 7.0  # what y holds before
UNIT = 2.0**-24

RNG = np.random.default_rng(8)
NUMBERS: Floats = RNG.uniform(0.5, 2, (ROWS + 1) * LENGTHS[0]).astype(np.float32)


def given(n: int, rows: int = ROWS) -> tuple[Floats, Floats, Floats]:
    """w (flat), x and y of a call. The numbers have one sign, so that none hides behind others."""
    return (
        np.resize(NUMBERS[::-1], rows * n),
        np.resize(NUMBERS, n),
        np.full(rows, STALE, np.float32),
    )


def partial(w: Floats, x: Floats, first: int, last: int) -> Doubles:
    """What the columns from first to last add to each row, in float64."""
    rows = w.astype(np.float64).reshape(-1, len(x))
    return rows[:, max(first, 0) : last] @ x[max(first, 0) : last].astype(np.float64)


def near(y: Floats, wanted: Doubles, n: int) -> npt.NDArray[np.bool_]:
    """Within n + 2 roundings of a share UNIT each: of sums of positive numbers it is theirs, too.

    A row of n products takes n roundings; two more are for sums of a number and a tail.
    """
    return np.abs(y - wanted) <= (n + 2) * UNIT * np.abs(wanted)


# ---------------------------------------------------------------- 08.1


@exercise("08.1", "A kernel with a tail", kind="code", minutes=20, difficulty=4)
def products(answer: Answer) -> str:
    check_compiled(answer)
    explain([in_python(answer, *given(n))[0] for n in LENGTHS], "")
    check_counts(answer)
    compiled = []
    for n in LENGTHS:
        w, x, y = given(n)
        answer(w, x, y)
        compiled.append(y)
    explain(compiled, "Run in Python it is right, and compiled it is not. ")
    check_listing(answer)
    return (
        "All lengths from 1 to 67 are right, and no multiply-add waits for the one before. Where "
        "the lanes are columns, every row has a tail; where the lanes are rows, as in strips, a "
        "row of any length has none."
    )


def check_compiled(answer: Answer) -> None:
    if not callable(answer):
        raise Wrong("a function is wanted.")
    if not hasattr(answer, "py_func"):
        raise Wrong("the function is not compiled: @njit stands in the line above `def`.")
    if answer.targetoptions.get("fastmath"):
        raise Wrong(
            "`fastmath` is set. It allows the compiler to change your sums, and fastmath=True even "
            "to assume that no number is infinite or nan. Here *you* choose the order of the "
            "additions, lane by lane, so nobody needs leave to change it."
        )


def in_python(answer: Answer, w: Floats, x: Floats, y: Floats) -> tuple[Floats, Notes]:
    """y afterwards, and what was noted."""
    try:
        return y, rehearse(answer, w, x, y)
    except (NotImplementedError, AttributeError, TypeError) as error:
        raise Wrong(
            "before it is compiled, your function is run in Python, with stand-ins for the vector "
            f"functions that the exercise names. That ended with {said(error)}. Use no others, and "
            "give them the arguments that are listed."
        ) from None


Mistake = Callable[[Floats, Floats], Doubles]  # (w, x) -> what y holds then


def dropped(size: int) -> tuple[Mistake, str]:
    """All but whole groups of this size."""
    why = f"the tail is dropped: of a row, only whole groups of {size} are counted."
    return lambda w, x: partial(w, x, 0, len(x) // size * size), why


def twice(size: int) -> tuple[Mistake, str]:
    why = f"the tail is counted twice: all that stands behind whole groups of {size}."
    return lambda w, x: partial(w, x, 0, len(x)) + partial(w, x, len(x) // size * size, len(x)), why


def stepped_back(w: Floats, x: Floats) -> Doubles:
    n = len(x)
    again = partial(w, x, n - 8, n // 8 * 8) if n % 8 else 0
    return partial(w, x, 0, n) + again


MISTAKES: list[tuple[Mistake, str]] = [
    (lambda w, x: np.full(ROWS, STALE), "nothing is written to y."),
    (
        lambda w, x: partial(w, x, 0, len(x)) + STALE,
        "the products are added onto what y held before: overwrite it.",
    ),
    (
        lambda w, x: np.full(ROWS, partial(w, x, 0, len(x))[0]),
        "every row gets row 0's products: row r begins at w[r * len(x)].",
    ),
    (
        lambda w, x: np.cumsum(partial(w, x, 0, len(x))),
        "a row goes on with the sums of the row before it: begin each row with new ones.",
    ),
    *map(dropped, (8, 16, 32, 64)),
    *map(twice, (8, 16, 32, 64)),
    (
        stepped_back,
        "the tail comes with numbers that are in the sum already: the last eight of a row are "
        "loaded again, to fill a register. Load the first few lanes only.",
    ),
]


def explain(results: list[Floats], begin: str) -> None:
    """Raise Wrong, with what was forgotten, unless y is right for all LENGTHS."""
    cases = [given(n) for n in LENGTHS]
    wrong = [
        (w, x, y)
        for (w, x, _), y in zip(cases, results, strict=True)
        if not near(y, partial(w, x, 0, len(x)), len(x)).all()
    ]
    if not wrong:
        return
    w, x, y = wrong[0]
    right = partial(w, x, 0, len(x))
    row = int((~near(y, right, len(x))).argmax())
    example = f"For len(x) = {len(x)}, y[{row}] is {y[row]:.6g}; right is {right[row]:.6g}."
    for mistake, why in MISTAKES:
        if all(near(y, mistake(w, x), len(x)).all() for w, x, y in wrong):
            raise Wrong(f"{begin}{why} {example}")
    raise Wrong(
        f"{begin}{example} Row r begins at w[r * len(x)], and each of its len(x) products counts "
        "once."
    )


def check_counts(answer: Answer) -> None:
    """Raise Wrong for a kernel that is right and does not use the registers well."""
    notes, half, short = (in_python(answer, *given(n, rows=4))[1] for n in (LONG, LONG // 2, SHORT))
    needed = 4 * LONG // 8
    if notes.muls >= needed // 2:
        raise Wrong(
            "products and sums are computed one after the other, by `mul` and `add`. `fma` does "
            "both in one instruction, and rounds once."
        )
    for n, noted in ((LONG, notes), (SHORT, short)):
        if noted.fmas < 4 * (n // 8):
            called = f"called {plural(noted.fmas, 'time')}" if noted.fmas else "never called"
            raise Wrong(
                f"4 rows of {n:,} numbers hold {4 * (n // 8)} whole groups of eight, and `fma` was "
                f"{called}. The other products were computed one at a time: at most the last seven "
                "of a row may be."
            )
    if notes.totals > half.totals:
        raise Wrong(
            f"`total` is called {notes.totals} times for 4 rows of {LONG:,}, and {half.totals} "
            "times for rows half as long: it is inside the loop. It takes several instructions, "
            "each waiting for the one before. Keep eight sums, and add across the lanes once a row."
        )
    if notes.waits > notes.fmas // 2:
        raise Wrong(
            f"{notes.waits} of {notes.fmas} multiply-adds need the result of the one just before. "
            "That is one accumulator, a chain: each link waits for the last, some four cycles. "
            "Let two sums take turns, and add them up at the end of the row."
        )


def check_listing(answer: Answer) -> None:
    """Raise Wrong if the compiled loops call anything; where listings can be read."""
    if target_has("avx2", "fma") and any(line.startswith("call") for line in asm(answer)):
        raise Wrong("there is a call in the innermost loop, which costs more than all the rest.")


# ---------------------------------------------------------------- 08.2

LATENCY, A_CYCLE, WIDTH = 4, 2, 8


@exercise("08.2", "How many sums at once", kind="predict", minutes=4, difficulty=2)
def accumulators(answer: Answer) -> str:
    right = LATENCY * A_CYCLE
    remarks: dict[float, str] = {
        A_CYCLE: (
            "that many start in one cycle. In the next, and in the one after it, others are to "
            "start, and the results of the first are not there yet."
        ),
        LATENCY: (
            "that hides the latency of one unit, with one start a cycle. This core starts two a "
            "cycle."
        ),
        right * WIDTH: (
            "that counts lanes. The eight lanes of a register move together: a register is one "
            "accumulator."
        ),
        WIDTH * A_CYCLE: (
            "lanes times starts: so many sums of single numbers begin in one cycle. Asked for are "
            "registers, and they have to last until the first result is there."
        ),
        LATENCY + A_CYCLE: "latency and rate multiply: in each of 4 cycles 2 are started.",
    }
    expect_number(answer, right, remarks, share=1e-9)
    return (
        "4 cycles x 2 a cycle: that many multiply-adds are on their way at any time, and they must "
        "belong to different sums. The same product, of latency and rate, says how many requests "
        "must be on their way to memory: that is why a kernel asks ahead."
    )
