"""Exercise 01.1: views of a matrix, and the ways to miss an element's byte in them."""

from collections.abc import Callable
from math import prod
from typing import Any

Shape = tuple[int, ...]
Keys = tuple[slice, ...]
Place = Callable[[int, int, slice, int], int]  # elements, stride, key, index -> bytes on one axis

ALL, BACK = slice(None), slice(None, None, -1)
OFFSET_CASES: list[tuple[int, Shape, Shape, Keys, Shape]] = [
    (0, (4, 8), (32, 4), (ALL, ALL), (2, 3)),
    (64, (4, 8), (32, 4), (slice(1, 3), ALL), (1, 5)),
    (0, (4, 8), (32, 4), (ALL, slice(1, None, 2)), (3, 2)),
    (64, (4, 8), (32, 4), (slice(1, 3), BACK), (0, 0)),
    (128, (5, 6), (64, 4), (BACK, slice(1, 5)), (1, 2)),  # rows padded to a cache line
    (16, (5, 6), (12, 2), (slice(-2, None, -1), slice(4, 0, -2)), (2, 1)),
    (8, (6, 5), (8, 48), (slice(1, None, 3), slice(None, None, -2)), (1, 2)),  # a transpose
    (28, (4, 8), (32, -4), (slice(1, 3), ALL), (1, 2)),  # a view that is reversed already
    # Starts that a slice moves, or that one may take for missing.
    (32, (4, 8), (32, 4), (slice(0, None, -1), slice(9, None, -3)), (0, 2)),
    (64, (4, 8), (32, 4), (slice(0, None, -1), slice(2, None)), (0, 3)),
    (16, (5, 6), (24, 4), (slice(1, 4), slice(7, None, -1)), (1, 3)),
    (64, (5, 6), (24, 4), (slice(-9, None, 2), ALL), (1, 3)),
    (32, (5, 6), (24, 4), (slice(1, None, 2), slice(-3, None)), (0, 1)),
]


def by_axis(place: Place) -> Callable[..., int]:
    """The base and what `place` gives for each axis."""

    def walk(base: int, *of_each_axis: tuple[Any, ...]) -> int:
        return base + sum(place(*axis) for axis in zip(*of_each_axis, strict=True))

    return walk


def by_slice(place: Callable[[int, int, int, int], int]) -> Callable[..., int]:
    """As by_axis, for a place that depends on the slice's start and step, stride and index."""

    def on_axis(n: int, stride: int, key: slice, i: int) -> int:
        start, _, step = key.indices(n)
        return place(start, step, stride, i)

    return by_axis(on_axis)


right_offset = by_slice(lambda start, step, stride, i: (start + i * step) * stride)


def by_start(place: Callable[[int, int, int], int]) -> Callable[..., int]:
    """An offset for which `place` of elements, start and step is where the view begins."""

    def on_axis(n: int, stride: int, key: slice, i: int) -> int:
        step = key.step or 1
        start = key.start if key.start is not None else n - 1 if step < 0 else 0
        return (place(n, start, step) + i * step) * stride

    return by_axis(on_axis)


def from_end(n: int, start: int) -> int:
    """A start that may count from the end, as it counts from the beginning."""
    return start + n if start < 0 else start


def in_elements(base: int, shape: Shape, strides: Shape, keys: Keys, index: Shape) -> int:
    """The number of elements before this one, in a matrix without gaps."""
    gapless = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return right_offset(0, shape, gapless, keys, index)


def in_a_copy(base: int, shape: Shape, strides: Shape, keys: Keys, index: Shape) -> int:
    """The bytes before this element in a new array that holds the view's elements only."""
    kept = tuple(len(range(*key.indices(n))) for n, key in zip(shape, keys, strict=True))
    return min(map(abs, strides)) * in_elements(0, kept, strides, (ALL,) * len(kept), index)


BYTES = " The strides are in bytes already: nothing is left to convert."
INDICES = " `key.indices(n)` knows all these rules."
OFFSET_MISTAKES: list[tuple[Callable[..., Any], str]] = [
    (
        lambda base, *rest: right_offset(0, *rest),
        "the base is dropped: the matrix itself begins `base` bytes into the buffer.",
    ),
    (
        in_elements,
        "this is the number of elements before this one, and bytes are asked for. Use the strides, "
        "and begin at the base.",
    ),
    (
        lambda base, *rest: base + in_elements(base, *rest),
        "elements are added to a base that is in bytes. The strides say how many bytes a step is.",
    ),
    (
        lambda base, *rest: base + right_offset(0, *rest) // 4,
        "the way from the base is divided by 4, which makes elements of bytes." + BYTES,
    ),
    (
        lambda *case: right_offset(*case) // 4,
        "the whole offset is divided by 4, which makes elements of bytes." + BYTES,
    ),
    (
        by_slice(lambda start, step, stride, i: 4 * (start + i * step) * stride),
        "the strides are multiplied by 4, as if they counted elements." + BYTES,
    ),
    (
        by_slice(lambda start, step, stride, i: (start + i * step) * abs(stride)),
        "the sign of a stride is lost: in a view that is reversed already it is negative.",
    ),
    (
        lambda base, *rest: base + 4 * in_elements(base, *rest),
        "the strides are worked out from the shape. Rows may have gaps between them, and a "
        "transpose walks the other way: use the strides that are given.",
    ),
    (
        in_a_copy,
        "that is the place in a new array that holds a copy of the view. Nothing is copied: the "
        "element stays where the matrix has it.",
    ),
    (
        lambda base, *rest: base + in_a_copy(base, *rest),
        "that would be the place if the view were copied to the base, without gaps. Nothing is "
        "copied: the element stays where the matrix has it.",
    ),
    (
        by_start(lambda n, start, step: range(n)[start or (n - 1 if step < 0 else 0) :: step][0]),
        "a start of 0 counts as false in Python, so it is taken for one that is left out. "
        "Backwards from 0 there is one element only: compare with None." + INDICES,
    ),
    (
        by_start(lambda n, start, step: max(from_end(n, start), 0)),
        "a start behind the end is moved to the last element, if the view goes backwards."
        + INDICES,
    ),
    (
        by_start(lambda n, start, step: min(max(from_end(n, start), 0), n)),
        "a start behind the end is moved to n, and not to n - 1: there is no element n." + INDICES,
    ),
    (
        by_start(lambda n, start, step: min(from_end(n, start), n - 1)),
        "a start before the first element is moved to it: slice(-9, None) begins at 0 in an axis "
        "of 5." + INDICES,
    ),
    (
        by_start(lambda n, start, step: from_end(n, start)),
        "a slice may begin outside of the axis, at both ends: it is moved to the first element "
        "there is on its way." + INDICES,
    ),
    (
        by_start(lambda n, start, step: start if start < 0 < step else range(n)[start::step].start),
        "a negative start counts from the end, forwards as well as backwards." + INDICES,
    ),
    (
        by_slice(lambda start, step, stride, i: i * stride),
        "the slices are ignored: `index` counts in the view, not in the matrix.",
    ),
    (
        by_slice(lambda start, step, stride, i: i * step * stride),
        "the view's start is forgotten. A reversed view begins at the last element.",
    ),
    (
        by_slice(lambda start, step, stride, i: start + i * step * stride),
        "the view's start is in elements: it needs the stride as well as the step does.",
    ),
    (
        by_axis(
            lambda n, stride, key, i: (
                range(n)[slice(None, None, key.step) if (key.step or 1) < 0 else key][i] * stride
            )
        ),
        "a reversed view begins at the last element only if its start is left out: let "
        "`key.indices(n)` work it out.",
    ),
    (
        by_slice(lambda start, step, stride, i: (start + i) * stride),
        "the step is forgotten: one step in the view is `step` elements of the matrix.",
    ),
    (
        by_slice(lambda start, step, stride, i: (start + i * abs(step)) * stride),
        "the sign of the step is lost: a reversed view walks towards smaller addresses.",
    ),
    (
        by_axis(lambda n, stride, key, i: ((key.start or 0) + i * (key.step or 1)) * stride),
        "a missing start is 0 only for a positive step. Backwards it is the last element, and a "
        "negative start counts from the end: let `key.indices(n)` work it out.",
    ),
    (
        by_axis(lambda n, stride, key, i: (key.start + i * key.step) * stride),
        "a slice may leave start or step out, and then they are None: let `key.indices(n)` work "
        "them out.",
    ),
]
