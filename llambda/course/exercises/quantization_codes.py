"""Exercise 09.3 of lesson 09: activations to codes and scales, and the ways to get it wrong."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...kernels.activations import BLOCK, TOP, quantize
from .base import Answer, Raised, Wrong, result, same, shown

Floats = npt.NDArray[np.float32]
Given = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # [blocks, 32], [blocks]
ToCodes = Callable[[Any], Any]

NEAR = 1e-5  # of a scale: float32's rounding, and nothing else


def blocks_of(x: Floats) -> Floats:
    return x.reshape(-1, BLOCK)


def cases() -> list[Floats]:
    """Blocks without zeros: of several sizes, largest above and below zero, and one of ties."""
    rng = np.random.default_rng(93)
    some = rng.normal(size=(4, BLOCK)).astype(np.float32)
    some *= np.array([1, 30, 0.01, 5], np.float32)[:, None]
    some[0, 7], some[1, 3] = -4, 120  # largest magnitudes, one of either sign
    ties = np.resize(np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.5, -2.5, 126.5], np.float32), BLOCK)
    ties[0] = TOP  # so that the scale is 1
    return [some[0], some.reshape(-1), ties, -ties]


ZEROS = np.concatenate([np.linspace(-1, 1, BLOCK), np.zeros(BLOCK)]).astype(np.float32)


def as_asked(value: Any, blocks: int) -> Given:
    """What an answer returned, as numbers. Raises Wrong for another form."""
    if isinstance(value, Raised):
        raise Wrong(f"for {blocks} block(s) it stops with {value.said}.")
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise Wrong(f"two arrays are wanted, `codes, d`, and not {shown(value)}.")
    codes, d = (np.asarray(each) for each in value)
    if codes.dtype != np.int8:
        raise Wrong(f"the codes are {codes.dtype}. They are to be kept in a byte each: int8.")
    if codes.shape != (blocks, BLOCK):
        raise Wrong(
            f"for {blocks} block(s) the codes are to be [{blocks}, {BLOCK}], a row for each "
            f"block, and not {list(codes.shape)}."
        )
    if d.size != blocks:
        raise Wrong(f"{blocks} blocks need {blocks} scales, each its own, and not {d.size}.")
    if d.ndim > 1:
        raise Wrong(f"the scales are to be [{blocks}], one axis, and not {list(d.shape)}.")
    return codes.astype(np.float64), d.reshape(-1).astype(np.float64)


def planned(
    scale: Callable[[Floats], Floats] = lambda x: np.abs(x).max(-1) / np.float32(TOP),
    round_: Callable[[Floats], Floats] = np.rint,
    kept: Callable[[Floats], Any] = lambda d: d,
    limit: int = 0,
    divided: bool = True,
) -> ToCodes:
    """The exercise's function, right by default; a decision may be taken wrongly."""

    def to_codes(x: Floats) -> tuple[Any, Any]:
        blocks = blocks_of(x)
        d = scale(blocks)
        codes = round_(blocks / d[:, None] if divided else blocks)
        if limit:
            codes = np.clip(codes, -limit - 1, limit)
        return codes.astype(np.int8), kept(d)

    return to_codes


def away(x: Floats) -> Floats:
    """Ties away from zero."""
    return np.trunc(x + np.copysign(np.float32(0.5), x))


def over_128(x: Floats) -> Floats:
    return np.abs(x).max(-1) / np.float32(128)


def of_all(x: Floats) -> Floats:
    return np.full(len(x), np.abs(x).max() / np.float32(TOP))


def signed(x: Floats) -> Floats:
    largest = np.take_along_axis(x, np.abs(x).argmax(-1)[:, None], -1)[:, 0]
    return largest / np.float32(TOP)


OVER_128 = "you divide by 128, and then the largest number gets the code 128:"
MISTAKES: list[tuple[ToCodes, str]] = [
    (planned(over_128), f"{OVER_128} an int8 ends before, and what it becomes is luck."),
    (
        planned(over_128, limit=TOP),
        f"{OVER_128} cut to 127, it is wrong by a whole code, the worst of the block.",
    ),
    (
        planned(kept=lambda d: np.float32(1) / d),
        "the scale is returned inverted. What is stored is what a code is multiplied with.",
    ),
    (
        planned(kept=lambda d: d * np.float32(TOP)),
        "the largest magnitude is returned. The scale is that over 127, so that d * code is x.",
    ),
    (
        planned(round_=away),
        "ties go away from zero. 0.5 becomes 1 where the nearest *even* number is 0: use np.rint.",
    ),
    (
        planned(round_=lambda x: np.floor(x + np.float32(0.5))),
        "ties go up. floor(x + 0.5) makes 1 of 0.5 and 0 of -0.5: use np.rint.",
    ),
    (
        planned(round_=np.trunc),
        "the codes are cut off towards zero, as astype does it. Round to the nearest first.",
    ),
    (planned(round_=np.floor), "the codes are rounded down. Round to the nearest."),
    (
        planned(of_all),
        "one scale serves all blocks: a block of small numbers is left with few codes or none.",
    ),
    (
        planned(lambda x: x.max(-1) / np.float32(TOP)),
        "the largest number is not the largest magnitude: look at the block whose largest is "
        "negative.",
    ),
    (planned(signed), "the scale has a sign. It is the largest *magnitude* over 127."),
    (planned(divided=False), "the numbers are rounded as they are. Divide them by the scale."),
    (
        planned(lambda x: (x.max(-1) - x.min(-1)) / np.float32(255)),
        "the scale is the range over 255. That needs a minimum beside it: codes of -127 to 127 "
        "reach as far up as down.",
    ),
    (
        planned(kept=lambda d: d.astype(np.float16)),
        "the scale is rounded to a half. A file does that; here it stays a float32.",
    ),
]


def judge_codes(answer: Answer) -> str:
    """The remark for a right answer; raises Wrong for all others."""
    if not callable(answer):
        raise Wrong(f"a function is wanted, and {shown(answer)} is none.")
    inputs = cases()
    wanted = [numbers_of(to_right(x)) for x in inputs]
    given = [as_asked(called(answer, x), len(blocks_of(x))) for x in inputs]
    if not all(alike(a, b) for a, b in zip(given, wanted, strict=True)):
        for mistake, why in MISTAKES:
            if all(made_by(mistake, x, a) for x, a in zip(inputs, given, strict=True)):
                raise Wrong(why)
        raise Wrong(difference(inputs, given, wanted))
    judge_zeros(answer)
    return (
        "The error is at most half a scale, so one large number makes 31 others coarse: that is "
        "why a block is only 32 wide. llambda adds one case: a block so small that 127 over its "
        "largest overflows counts as zeros, too (`quantize` in llambda/kernels/activations.py)."
    )


def to_right(x: Floats) -> tuple[Any, Any]:
    return quantize(blocks_of(x))


def called(function: ToCodes, x: npt.NDArray[Any]) -> Any:
    with np.errstate(all="ignore"):
        return result(function, (x,))


def made_by(mistake: ToCodes, x: Floats, given: Given) -> bool:
    """Whether a mistake gives the same, in float32 or in Python's wider floats."""
    return any(alike(given, numbers_of(called(mistake, v))) for v in (x, x.astype(np.float64)))


def numbers_of(value: Any) -> Given:
    codes, d = value
    return codes.astype(np.float64), np.asarray(d, np.float64).reshape(-1)


def alike(a: Given, b: Given) -> bool:
    return same(a[0], b[0]) and bool(np.allclose(a[1], b[1], rtol=NEAR, atol=0))


def difference(inputs: list[Floats], given: list[Given], wanted: list[Given]) -> str:
    """The first number, or scale, that is not as it should be."""
    for x, (codes, d), (right, scale) in zip(inputs, given, wanted, strict=True):
        blocks = blocks_of(x)
        if not np.allclose(d, scale, rtol=NEAR, atol=0):
            i = int(np.argmin(np.isclose(d, scale, rtol=NEAR, atol=0)))
            top = np.abs(blocks[i]).max()
            return f"a block whose largest magnitude is {top:.6g} gets the scale {d[i]:.6g}."
        if (codes != right).any():
            i, j = np.argwhere(codes != right)[0]
            return (
                f"in a block with the scale {scale[i]:.6g}, {blocks[i, j]:.6g} gets the code "
                f"{codes[i, j]:.0f}; right is {right[i, j]:.0f}."
            )
    return "the codes are not right."


def judge_zeros(answer: ToCodes) -> None:
    """A block of zeros beside another. Raises Wrong where luck decides, or nan comes out."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="warn"):
        warnings.simplefilter("always")
        value = result(answer, (ZEROS,))
    zero = "a block of zeros has the largest magnitude 0, and 0 / 0 is no number."
    if isinstance(value, Raised):
        raise Wrong(f"{zero} Yours stops with {value.said}.")
    codes, d = as_asked(value, 2)
    if codes[1].any() or not np.isfinite(d[1]):
        raise Wrong(f"{zero} Its codes must be 0, and its scale finite; yours is {d[1]:g}.")
    if any("cast" in str(each.message) for each in caught):
        raise Wrong(
            f"{zero} Here the code of it happens to be 0; on another processor it is something "
            "else. Decide what such a block gets before you divide."
        )
    if not alike((codes[:1], d[:1]), numbers_of(to_right(ZEROS[:BLOCK]))):
        raise Wrong("a block is right by itself, and wrong beside a block of zeros.")
