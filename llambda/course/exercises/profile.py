"""The exercises of lesson 07: a ledger, the most to gain, where attention catches up, profiles."""

from collections.abc import Mapping
from typing import Any

from ...profiling import most_to_gain
from .base import Answer, Wrong, exercise, expect_choices, expect_number, shown
from .profile_ledger import judge_ledger


@exercise("07.1", "A ledger of your own", kind="code", minutes=12, difficulty=2)
def ledger(answer: Answer) -> str:
    judge_ledger(answer)
    return (
        "Operations over bytes: 1 for the norm, a half for every matrix whatever its shape, and "
        "for attention half of the query heads that share a key/value head. The length of the "
        "text is in none of the three: both columns grow with it alike."
    )


SHARE, OF_ROOF, LANES = 0.8, 0.6, 8


@exercise("07.2", "The most to gain", kind="predict", minutes=5, difficulty=2)
def gain(answer: Answer) -> str:
    right = most_to_gain(SHARE, OF_ROOF)
    mistakes = {
        LANES: (
            f"{LANES} lanes multiply {LANES} numbers at a time, but they wait for the same bytes: "
            "memory does not get faster. And a fifth of the time is not in the products at all."
        ),
        most_to_gain(SHARE, 1 / LANES): (
            f"that is Amdahl's law with products {LANES} times as fast. But they wait for bytes, "
            "and at the full bandwidth they still take 60% of what they take now."
        ),
        most_to_gain(SHARE, 0): (
            "that is Amdahl's law alone, as if the products would then take no time. They must "
            "still read their bytes, which takes 60% of what they take now."
        ),
        most_to_gain(1, OF_ROOF): (
            "that is the roof alone, as if the products were all of the time. They are 80% of it, "
            "and the other 20% stay."
        ),
        1 / (SHARE * OF_ROOF): (
            "the other 20% of the time are lost from the sum. They are not touched, so they stay."
        ),
        most_to_gain(SHARE, 1 - OF_ROOF): (
            "that takes away 60% of the products' time. At 60% of the bandwidth it is 60% that "
            "remain, and 40% that could go."
        ),
        1 + SHARE * (1 - OF_ROOF): (
            "32% of the time are saved, and that is right. But how many times as fast is a program "
            "that takes 68% of its time?"
        ),
        1 / right: (
            "that is the time that remains, as a share. How many times as fast is the program?"
        ),
        1 - 1 / right: (
            "that is the share of time saved. What remains is 1 less that, and how many times as "
            "fast is the program then?"
        ),
        100 * (1 - 1 / right): (
            "that is what is saved of the time, in percent. How many times as fast is the program?"
        ),
        100 * (right - 1): "that is a percentage. How many times as fast: 1 would be no change.",
        1 / SHARE: (
            "that divides by the share of the products. It is their time that shrinks: what is the "
            "sum of what remains of it, and of the rest?"
        ),
    }
    expect_number(answer, right, mistakes)
    return (
        "The 20% that are not touched, and 60% of the 80%: 0.2 + 0.48 = 0.68 of the time. The loss "
        "is a product, 0.8 times 0.4, so a part that has little time or little distance to its "
        "roof has little to give."
    )


LAYERS, HEADS, KV_HEADS, WIDTH = 30, 9, 3, 64
WEIGHTS, HEAD = 134_479_872, 49_152 * 576  # multiply-adds of one token, and the head's share


@exercise("07.3", "Where attention catches up", kind="predict", minutes=6, difficulty=3)
def attention_catches_up(answer: Answer) -> str:
    a_position = LAYERS * HEADS * WIDTH * 2
    right = WEIGHTS / a_position
    mistakes = {
        WEIGHTS / (LAYERS * KV_HEADS * WIDTH * 2): (
            "that counts key/value heads, which is right for bytes: at that length the cache is as "
            "large as the weights are in float32. But each of the 9 *query* heads computes."
        ),
        2 * right: (
            "twice too many. A position costs a head two products, one for its score and one for "
            "its value in the mix; or else operations were compared with multiply-adds."
        ),
        2 * right * HEADS / KV_HEADS: (
            "key/value heads are counted in place of query heads, and only one product of two, for "
            "the score and for the mix."
        ),
        right / 2: (
            "half of it: the weights were counted in multiply-adds and attention in single "
            "operations. Use one unit for both."
        ),
        right * LAYERS: "attention is in every layer, and the weights were those of all layers.",
        right * WIDTH: "a score is a product of two rows of 64 numbers, not of two numbers.",
        right * HEADS: "that is one query head, and every layer has 9.",
        (WEIGHTS - HEAD) / a_position: (
            "the head is left out: its 28 million multiply-adds are weights as well."
        ),
    }
    expect_number(answer, right, mistakes)
    return (
        "34,560 multiply-adds for every position looked at. Time is another matter: there bytes "
        "count, and the cache has as many as the weights in float32 only after "
        f"{right * HEADS / KV_HEADS:,.0f} positions: three query heads share what is read."
    )


COMPILE = "the compile counted"
NESTED = "nested spans added"
PREFILL = "prefill counted as decode"
NOISE = "a disturbed machine"
CAUSES = (COMPILE, NESTED, PREFILL, NOISE)

REPORTS = {
    "A": """\
16 tokens in a new process, with compiled kernels; a stopwatch said 3,604 ms
               calls          ms   longest ms   share
norms            976     2,318.1      2,296.4     64%
gate_up          960       421.7          0.9     12%
ffn_out          480       226.3          0.9      6%
all others     3,872       634.2         12.4     18%
together                 3,600.3                 100%
(and in another new process nearly the same, norms 2,331.0 ms)
conclusion: the norms take two thirds of the time, so they come first
""",
    "B": """\
16 tokens; a stopwatch around them said 1,648 ms
               calls          ms   longest ms   share
token             16     1,645.9        108.2     35%
layer            480     1,478.0          3.6     32%
matrices       3,376     1,204.5         10.1     26%
all others     2,912       329.7          1.2      7%
together                 4,658.1                 100%
conclusion: a quarter of the time is in the matrices, and no more can be gained there
""",
    "C": """\
16 tokens after a prompt of 240; a stopwatch around it all said 4,021 ms
               calls          ms   longest ms   share
matrices       3,587     3,306.8         46.7     82%
all others     3,094       707.5          9.8     18%
together                 4,014.3                 100%
for each of the 256 tokens 15.7 ms; the matrices do 17 billion operations a second
(memory brings 12 billion bytes a second, and a token takes half an operation a byte)
conclusion: the model answers with 64 tokens a second
""",
}
RIGHT = {"A": COMPILE, "B": NESTED, "C": PREFILL}

ADDS_UP = "the parts add up to what the stopwatch said, so nothing is counted twice."
ALWAYS = (
    "a disturbance makes some calls of every kind slower. What would it need to make this table?"
)
WARM = "no call is out of the ordinary here: compare the longest with the average of its row."
WHY_NOT: dict[tuple[str, Any], str] = {
    ("A", NESTED): f"{ADDS_UP} Compare the norms' longest call with all 976.",
    ("A", PREFILL): (
        "976 calls are 61 for each of 16 tokens, so there is no prompt among them. Look at the "
        "longest call."
    ),
    ("A", NOISE): (
        "noise would not come back at the same place in another process. One call of 976 takes "
        "99% of the norms' time: which call of a compiled function would that be?"
    ),
    ("B", COMPILE): f"{WARM} And compare the sum with the stopwatch.",
    ("B", PREFILL): (
        "16 tokens, 16 calls: it is decoding only. Compare the sum with the stopwatch."
    ),
    ("B", NOISE): f"{ALWAYS} The stopwatch said 1,648 ms, and the parts add up to more.",
    ("C", COMPILE): (
        "the longest call is 1% of its row. Something that happens once does not explain it."
    ),
    ("C", NESTED): f"{ADDS_UP} Does the speed of the products surprise you?",
    ("C", NOISE): (
        "noise makes slow, and this is too fast: how many operations a second does memory allow, "
        "if a token takes half an operation a byte?"
    ),
}


@exercise("07.4", "Three bad profiles", kind="diagnose", minutes=7, difficulty=2)
def profiles(answer: Answer) -> str:
    for name, cause in answer.items() if isinstance(answer, Mapping) else ():
        if name in REPORTS and (not isinstance(cause, str) or cause not in CAUSES):
            raise Wrong(f"{name}: {shown(cause)} is none of {', '.join(map(repr, CAUSES))}.")
    expect_choices(answer, RIGHT, WHY_NOT)
    return (
        "Each has a witness who was not asked: a stopwatch around the whole, a column for the "
        f"longest call, the roof. Only {NESTED!r} breaks a sum; the other two add up, and are "
        "wrong all the same."
    )
