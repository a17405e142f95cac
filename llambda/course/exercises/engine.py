"""The exercises of lesson 11: the fewest barriers, one that can be used again, what is read."""

from .base import Answer, exercise, expect_number
from .engine_fewest import LAYER, fewest, judge_fewest
from .engine_meeting import judge_meeting


@exercise("11.1", "The fewest barriers", kind="code", minutes=15, difficulty=3)
def fewest_barriers(answer: Answer) -> str:
    judge_fewest(answer)
    two = len(fewest(LAYER + LAYER))
    return (
        f"{two} for two layers, {len(fewest(LAYER))} in one and one between them: what the fused "
        "engine has, too. That it is right to wait as late as possible is a small theorem. Every "
        "conflict is a stretch of places in which some barrier must stand; take the stretch that "
        "ends first, put the barrier at its end, and no other place settles more."
    )


@exercise("11.2", "A barrier, again and again", kind="code", minutes=15, difficulty=4)
def meeting(answer: Answer) -> str:
    judge_meeting(answer)
    return (
        "Right in every order of two threads at three barriers, and of three at two. The number "
        "that only grows is the generation. It may be a cell of its own, or the count itself if "
        "that is never reset: who arrives then waits until it is the next multiple of `threads`."
    )


WEIGHTS, FILE, POSITION = 96.4e6, 98.4e6, 46_080.0  # bytes: read for a token, the file, a position
AT = 2000
SPEED, BANDWIDTH = 188.0, 40e9  # tokens/s, bytes/s


@exercise("11.3", "The share at position 2,000", kind="predict", minutes=6, difficulty=2)
def share(answer: Answer) -> str:
    def of(nbytes: float) -> float:
        return SPEED * nbytes / BANDWIDTH

    cache = (AT + 1) * POSITION
    right = of(WEIGHTS + cache)
    rounded = "that is rounded too far for its neighbours to be told apart: give three digits."
    mistakes: dict[float, str] = {
        of(WEIGHTS): (
            "the cache is omitted. Attention reads the keys and values of all positions, for "
            "every token, and here they are nearly as many bytes as the weights."
        ),
        of(FILE): (
            "that is the size of the file, and no cache. A token reads the weights, not the "
            "vocabulary and the rest of the file; and it reads keys and values."
        ),
        of(FILE + cache): (
            "the file's size is taken for the bytes that a token reads. 2 MB of it are the "
            "vocabulary and the like, which no token reads."
        ),
        of(cache): "those are the keys and values alone. The weights are read as well.",
        of(WEIGHTS + cache / 2): (
            "only half of the cache is counted. A position's 46,080 bytes are its keys and values "
            "together, as float32."
        ),
        of(WEIGHTS + 3 * cache): (
            "the cache is counted three times, as if each query head had keys and values of its "
            "own. The 46,080 bytes are all that a position takes."
        ),
        of(WEIGHTS + 30 * cache): "46,080 bytes are a position in all 30 layers, not in one.",
        100 * right: "right, in percent. Give the share as a number between 0 and 1.",
        8 * right: "bits. Bandwidth and weights are both in bytes.",
        1 / right: "that is the inverse: what is read is divided by what could be read.",
        1 - right: "that is what is left. The share that is used was asked for.",
        0.89: rounded,
        0.9: rounded,
    }
    expect_number(answer, right, mistakes, share=0.003)
    half = (WEIGHTS + cache / 2) / (WEIGHTS + cache)
    return (
        f"{(WEIGHTS + cache) / 1e6:.1f} MB a token, of which the cache is {cache / 1e6:.1f}. Who "
        f"leaves it out thinks that half of the bandwidth is idle, and looks for waste where there "
        f"is none. Kept as float16 the cache is half, and a token reads {half:.0%} of that."
    )
