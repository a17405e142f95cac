"""The exercises of lesson 12: where arithmetic takes over, a tile, join and leave, a bubble."""

from collections.abc import Callable
from numbers import Integral
from typing import Any

from .base import Answer, Wrong, exercise, expect_number, shown
from .batching_serve import CASES, END, judge_serve

__all__ = ["END", "bubble", "crossover", "serve", "tile"]

FLOPS, BANDWIDTH, WEIGHT_BYTES, WEIGHT_FLOPS = 60e9, 24e9, 4, 2


@exercise("12.1", "Where arithmetic takes over", kind="predict", minutes=5, difficulty=2)
def crossover(answer: Answer) -> str:
    right = FLOPS / BANDWIDTH * WEIGHT_BYTES / WEIGHT_FLOPS
    mistakes: dict[float, str] = {
        FLOPS / BANDWIDTH: (
            "that is what the machine can compute for each *byte* that it reads. A weight has four "
            "bytes, and takes two operations for each text."
        ),
        FLOPS / BANDWIDTH * WEIGHT_BYTES: (
            "that counts a multiplication with its addition as one operation. They are two, and "
            "the 60 billion count both."
        ),
        FLOPS / BANDWIDTH / WEIGHT_FLOPS: (
            "that is a weight of one byte. A float32 has four, and so four times the operations "
            "fit into the time of its reading."
        ),
        BANDWIDTH / FLOPS: "upside down: that is how many bytes come in during one operation.",
        BANDWIDTH / FLOPS / WEIGHT_BYTES * WEIGHT_FLOPS: (
            "upside down: how long does reading a weight take, and how long does computing with it?"
        ),
        FLOPS / BANDWIDTH * WEIGHT_BYTES * 8 / WEIGHT_FLOPS: "a weight has 32 bits, and 4 bytes.",
        FLOPS / BANDWIDTH * WEIGHT_BYTES * WEIGHT_FLOPS: (
            "multiplied by the two operations instead of divided: each text needs both of them."
        ),
    }
    expect_number(answer, right, mistakes)
    return (
        "Reading a weight takes 4 bytes / 24 GB/s = 0.167 ns, and each text 2 / 60 GFLOP/s = "
        "0.033 ns. With weights of half a byte, multiplied as floats, it would be 0.6: there even "
        "one text would wait for arithmetic. So fewer bits help one reader, batches help many, and "
        "both together help less than their product."
    )


# ---------------------------------------------------------------- the tile

Tile = tuple[int, int]  # registers of rows, tokens
REGISTERS = (16, 32, 8, 12, 20, 24, 48, 64, 3, 5)


def needed(vectors: int, tokens: int) -> int:
    """Registers: the sums, a column's weights, and one token's number in all lanes."""
    return vectors * tokens + vectors + 1


def per_load(vectors: int, tokens: int) -> float:
    return vectors * tokens / (vectors + tokens)


def most(
    registers: int,
    takes: Callable[[int, int], int] = needed,
    worth: Callable[[int, int], float] = per_load,
) -> Tile:
    """The tile of most worth among those that fit, the one with fewest vectors if several."""
    fitting = [
        (v, t)
        for v in range(1, registers + 1)
        for t in range(1, registers + 1)
        if takes(v, t) <= registers
    ]
    return max(fitting or [(1, 1)], key=lambda tile: worth(*tile))


SPILL = "What does not fit is written to memory and read back, in every column: it *spills*."
TILE_MISTAKES: list[tuple[Callable[[int], Tile], str]] = [
    (
        lambda registers: most(registers, lambda v, t: v * t),
        f"the sums alone fill the registers, and none is left for weights and numbers. {SPILL}",
    ),
    (
        lambda registers: most(registers, lambda v, t: v * t + 1),
        f"the weights of the column are in no register. They are needed for every token. {SPILL}",
    ),
    (
        lambda registers: most(registers, lambda v, t: v * t + v),
        f"the token's number is in no register. It has to be in all lanes of one. {SPILL}",
    ),
    (
        lambda registers: most(registers, lambda v, t: v * t + 2),
        "that keeps one register of weights at a time. All weights of the column stay until the "
        f"last token has had them. {SPILL}",
    ),
    (
        lambda registers: most(registers)[::-1],
        "the other way round: rows come first, then tokens. Each register of rows costs one for "
        "its weights; all tokens share one for their numbers.",
    ),
    (
        lambda registers: most(registers, lambda v, t: v * t + v + t),
        "that keeps a register for the number of each token. They come one after the other, so one "
        "register is enough for all.",
    ),
    (
        lambda registers: most(registers, worth=lambda v, t: v * t),
        "that has the most sums, and not the most multiply-adds for each load.",
    ),
    (
        lambda registers: most(registers, worth=lambda v, t: -(v + t)),
        "that has the fewest loads, and hardly a multiply-add for them.",
    ),
    (
        lambda registers: most(registers, worth=lambda v, t: per_load(v, t) * (v == t)),
        "a square is the best of shapes only where it fits: try others, too.",
    ),
    (
        lambda registers: most(registers, worth=lambda v, t: per_load(v, t) * (v <= 2)),
        "two registers of rows are the package's choice, for a reason of its own; others have more "
        "multiply-adds for a load.",
    ),
]


@exercise("12.2", "The best tile", kind="code", minutes=12, difficulty=3)
def tile(answer: Answer) -> str:
    if not callable(answer):
        raise Wrong("a function is wanted.")
    given = {registers: tile_of(answer(registers), registers) for registers in REGISTERS}
    wrong = [registers for registers in REGISTERS if not best(registers, *given[registers])]
    if wrong:
        example = what_is_wrong(wrong[0], *given[wrong[0]])
        for mistake, why in TILE_MISTAKES:
            if all(given[registers] == mistake(registers) for registers in wrong):
                raise Wrong(f"{why} {example}")
        if len(wrong) < len(REGISTERS) and len(set(given.values())) == 1:
            raise Wrong(f"the same tile for any number of registers. {example}")
        raise Wrong(example)
    ours, twice = most(16), most(32)
    return (
        f"{ours[0]} x {ours[1]} with 16 registers, {per_load(*ours):.2f} multiply-adds a load, and "
        f"{twice[0]} x {twice[1]} with 32. The package takes 2 x 6 and 2 x 12, with "
        f"{per_load(2, 6):.2f} and {per_load(2, 12):.2f}. A core can start about two loads and two "
        "multiply-adds at a time: from 1 on loads no longer decide, and strips of two registers "
        "divide a head of 64 rows evenly, which three do not."
    )


def tile_of(given: Any, registers: int) -> Tile:
    """What was given as two whole numbers. Raises Wrong for everything else."""
    whole = isinstance(given, tuple | list) and all(isinstance(n, Integral) for n in given)
    if not whole or len(given) != 2 or min(given) < 1:
        raise Wrong(
            f"return two whole numbers from 1 on, (registers of rows, tokens); not {shown(given)}, "
            f"for {registers} registers."
        )
    return int(given[0]), int(given[1])


def best(registers: int, vectors: int, tokens: int) -> bool:
    fits = needed(vectors, tokens) <= registers
    return fits and per_load(vectors, tokens) >= per_load(*most(registers)) - 1e-9


def what_is_wrong(registers: int, vectors: int, tokens: int) -> str:
    took = f"For {registers} registers you have {vectors} x {tokens}"
    if (takes := needed(vectors, tokens)) > registers:
        return f"{took}, which takes {vectors * tokens} + {vectors} + 1 = {takes}."
    good = per_load(*most(registers))
    return f"{took}: {per_load(vectors, tokens):.3f} multiply-adds a load, where {good:.3f} fit."


# ---------------------------------------------------------------- join and leave


@exercise("12.3", "Join and leave", kind="code", minutes=25, difficulty=4)
def serve(answer: Answer) -> str:
    if not callable(answer):
        raise Wrong("a function is wanted.")
    for places, prompts in CASES:
        judge_serve(answer, places, prompts)
    return (
        "Every answer is the one it gets alone, and no place is empty while somebody waits. What "
        "your loop decides between two calls is all that continuous batching is. `Batch` adds to "
        "it long prompts in parts, texts that are cancelled, and errors that end one answer alone."
    )


# ---------------------------------------------------------------- the bubble

STAGES, MICRO_BATCHES = 2, 4


@exercise("12.4", "A bubble", kind="predict", minutes=5, difficulty=2)
def bubble(answer: Answer) -> str:
    slots = MICRO_BATCHES + STAGES - 1
    idle = STAGES * slots - STAGES * MICRO_BATCHES
    right = idle / (STAGES * slots)
    mistakes: dict[float, str] = {
        idle / (STAGES * MICRO_BATCHES): (
            "that is idle time over *busy* time. It is to be a share of all time, of both stages "
            "from the first turn to the last."
        ),
        idle / slots: (
            "two idle turns over five, but there are two stages, and each has five of them."
        ),
        1 / (STAGES * slots): (
            "only one of the two gaps: the second stage waits at the beginning, *and* the first "
            "has nothing left at the end."
        ),
        1 - right: "that is the share in which they work.",
        1 / STAGES: "that is for one micro-batch, when one stage always waits for the other.",
        idle: "that many turns are idle. Of how many?",
        100 * right: "that is in percent. A share is wanted, a number between 0 and 1.",
    }
    if isinstance(answer, int | float) and answer == 0:
        raise Wrong(
            "0 would need a second stage that has work before the first has made any. Draw the "
            "first turn, and the last."
        )
    expect_number(answer, right, mistakes)
    return (
        f"{STAGES} x {slots} turns, of which {idle} are idle. With p stages and m micro-batches it "
        "is (p - 1) / (m + p - 1): long trains of micro-batches hide the bubble, and eight stages "
        f"need {7 * 4} of them to come down to one fifth."
    )
