"""What learners answer in lesson 01, and a phrase that the explanation must hold."""

import numpy as np


def begin_and_step(key, n):
    """Where a slice begins in an axis of n elements, and how far apart its elements are."""
    picked = range(n)[key]
    return picked.start, picked.step


def counts_elements(base, shape, strides, keys, index):
    (i0, di), (j0, dj) = (begin_and_step(key, n) for key, n in zip(keys, shape, strict=True))
    row, column = i0 + di * index[0], j0 + dj * index[1]
    return base + row * shape[1] + column


def counts_elements_and_no_base(base, shape, strides, keys, index):
    return counts_elements(0, shape, strides, keys, index)


def divides_by_four(base, shape, strides, keys, index):
    (i0, di), (j0, dj) = (begin_and_step(key, n) for key, n in zip(keys, shape, strict=True))
    nbytes = (i0 + di * index[0]) * strides[0] + (j0 + dj * index[1]) * strides[1]
    return base + nbytes // 4


def divides_all_by_four(base, shape, strides, keys, index):
    return (base + 4 * (divides_by_four(0, shape, strides, keys, index))) // 4


def multiplies_by_four(base, shape, strides, keys, index):
    (i0, di), (j0, dj) = (begin_and_step(key, n) for key, n in zip(keys, shape, strict=True))
    row, column = i0 + di * index[0], j0 + dj * index[1]
    return base + (row * strides[0] + column * strides[1]) * 4


def forgets_the_base(base, shape, strides, keys, index):
    byte = 0
    for axis in (0, 1):
        positions = list(range(shape[axis]))[keys[axis]]
        byte += positions[index[axis]] * strides[axis]
    return byte


def trusts_the_shape(base, shape, strides, keys, index):
    i = list(range(shape[0]))[keys[0]][index[0]]
    j = list(range(shape[1]))[keys[1]][index[1]]
    return base + 4 * (i * shape[1] + j)


def returns_a_copy(base, shape, strides, keys, index):
    return np.zeros(shape, np.float32)[keys].copy()


def measures_in_a_copy(base, shape, strides, keys, index):
    columns = len(range(shape[1])[keys[1]])
    width = min(abs(stride) for stride in strides)
    return (index[0] * columns + index[1]) * width


def measures_in_a_copy_from_the_base(base, shape, strides, keys, index):
    return base + measures_in_a_copy(base, shape, strides, keys, index)


def ignores_the_slices(base, shape, strides, keys, index):
    return base + int(np.dot(strides, index))


def forgets_the_start(base, shape, strides, keys, index):
    steps = [begin_and_step(key, n)[1] for key, n in zip(keys, shape, strict=True)]
    return base + sum(i * d * s for i, d, s in zip(index, steps, strides, strict=True))


def adds_the_start_in_elements(base, shape, strides, keys, index):
    byte = base
    for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
        start, step = begin_and_step(key, n)
        byte += start
        byte += stride * step * i
    return byte


def reverses_from_the_end(base, shape, strides, keys, index):
    byte = base
    for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
        start, step = begin_and_step(key, n)
        byte += stride * ((start if step > 0 else n - 1) + step * i)
    return byte


def forgets_the_step(base, shape, strides, keys, index):
    starts = [begin_and_step(key, n)[0] for key, n in zip(keys, shape, strict=True)]
    return base + sum((b + i) * s for b, i, s in zip(starts, index, strides, strict=True))


def loses_the_sign(base, shape, strides, keys, index):
    byte = base
    for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
        start, step = begin_and_step(key, n)
        byte += start * stride
        byte += i * stride * abs(step)
    return byte


def loses_the_sign_of_a_stride(base, shape, strides, keys, index):
    picked = [range(n)[key][i] for n, key, i in zip(shape, keys, index, strict=True)]
    return base + abs(picked[0] * strides[0]) + abs(picked[1] * strides[1])


def takes_none_for_zero(base, shape, strides, keys, index):
    byte = base
    for stride, key, i in zip(strides, keys, index, strict=True):
        start = 0 if key.start is None else key.start
        step = 1 if key.step is None else key.step
        byte += (start + i * step) * stride
    return byte


def knows_no_none(base, shape, strides, keys, index):
    byte = base
    for stride, key, i in zip(strides, keys, index, strict=True):
        byte += key.start * stride
        byte += key.step * i * stride
    return byte


def takes_zero_for_missing(base, shape, strides, keys, index):
    byte = base
    for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
        step = key.step or 1
        start = key.start or (0 if step > 0 else n - 1)
        start = max(0, start + n) if start < 0 else min(start, n - 1)
        byte += (start + i * step) * stride
    return byte


def start_of(key, n):
    """Where a slice begins, if what it says is in the axis."""
    if key.start is None:
        return n - 1 if (key.step or 1) < 0 else 0
    return key.start + n if key.start < 0 else key.start


def begins_outside(base, shape, strides, keys, index):
    places = [start_of(k, n) + i * (k.step or 1)
              for k, n, i in zip(keys, shape, index, strict=True)]  # fmt: skip
    return base + places[0] * strides[0] + places[1] * strides[1]


def begins_behind_the_end(base, shape, strides, keys, index):
    byte = base
    for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
        start = max(start_of(key, n), 0)
        byte += stride * (start + i * (1 if key.step is None else key.step))
    return byte


def begins_before_the_start(base, shape, strides, keys, index):
    byte = base
    for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
        start = min(start_of(key, n), n - 1)
        byte += stride * (start + i * (1 if key.step is None else key.step))
    return byte


def begins_one_behind_the_end(base, shape, strides, keys, index):
    byte = base
    for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
        start = min(max(start_of(key, n), 0), n)
        byte += stride * (start + i * (1 if key.step is None else key.step))
    return byte


def counts_from_the_end_backwards_only(base, shape, strides, keys, index):
    byte = base
    for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
        start, step = begin_and_step(key, n)
        if step > 0 and key.start:
            start = key.start
        byte += stride * (start + step * i)
    return byte


RIGHT_CAUSES = {"A": "lost owner", "B": "missing argtypes", "C": "float64", "D": "alignment"}

WRONG = {
    "01.1": [
        ("elements for bytes", counts_elements, "added to a base that is in bytes"),
        ("elements for bytes, no base", counts_elements_and_no_base, "the number of elements"),
        ("divided by four", divides_by_four, "the way from the base is divided"),
        ("all divided by four", divides_all_by_four, "the whole offset is divided"),
        ("strides taken for elements", multiplies_by_four, "multiplied by 4"),
        ("base dropped", forgets_the_base, "the base is dropped"),
        ("strides from the shape", trusts_the_shape, "worked out from the shape"),
        ("a copy returned", returns_a_copy, "elements or a copy of them"),
        ("place in a copy", measures_in_a_copy, "a new array"),
        ("place in a copy, base", measures_in_a_copy_from_the_base, "copied to the base"),
        ("slices ignored", ignores_the_slices, "slices are ignored"),
        ("start forgotten", forgets_the_start, "start is forgotten"),
        ("start in elements", adds_the_start_in_elements, "start is in elements"),
        ("reversed from the end", reverses_from_the_end, "only if its start is left out"),
        ("step forgotten", forgets_the_step, "step is forgotten"),
        ("sign lost", loses_the_sign, "sign of the step"),
        ("sign of a stride lost", loses_the_sign_of_a_stride, "sign of a stride"),
        ("None is 0", takes_none_for_zero, "only for a positive step"),
        ("None crashes", knows_no_none, "they are None"),
        ("0 is missing", takes_zero_for_missing, "counts as false"),
        ("start never moved", begins_outside, "at both ends"),
        ("start behind the end", begins_behind_the_end, "moved to the last element, if"),
        ("start one behind the end", begins_one_behind_the_end, "moved to n, and not to n - 1"),
        ("start before the first", begins_before_the_start, "begins at 0 in an axis"),
        ("negative start forwards", counts_from_the_end_backwards_only, "forwards as well"),
        ("a number", 60, "a function is wanted"),
    ],
    "01.2": [
        ("elements for bytes", {"row": 9, "column": 576}, "row: a line holds"),
        ("elements for bytes, column", {"row": 36, "column": 9}, "no two F32 of a column"),
        ("a column like a row", {"row": 36, "column": 36}, "2,304 bytes apart"),
        ("a line a number", {"row": 576, "column": 576}, "sixteen neighbours"),
        ("bytes", {"row": 2304, "column": 576}, "row's bytes"),
        ("unaligned", {"row": 37, "column": 576}, "begins on a line"),
        ("everything", {"row": 36, "column": 36 * 576}, "whole matrix"),
        ("one line a column", {"row": 36, "column": 1}, "one number of each row"),
        ("half an answer", {"row": 36, "column": ...}, "no answer yet for column"),
    ],
    "01.3": [
        ("real numbers", {"left to right": 2, "lanes": 2}, "8 apart"),
        ("both ones lost", {"left to right": 0, "lanes": 2}, "only the first 1 is lost"),
        ("stopped too early", {"left to right": 1e8, "lanes": 2}, "-1e8 follows"),
        ("lanes like a loop", {"left to right": 1, "lanes": 1}, "neither 1 ever meets"),
        ("nothing in lanes", {"left to right": 1, "lanes": 0}, "lane of their own"),
    ],
    "01.4": [
        ("alignment for a lost owner", {**RIGHT_CAUSES, "A": "alignment"}, "comes and goes"),
        ("alignment for no argtypes", {**RIGHT_CAUSES, "B": "alignment"}, "aligned as can be"),
        ("alignment for float64", {**RIGHT_CAUSES, "C": "alignment"}, "never changes a number"),
        ("argtypes for a lost owner", {**RIGHT_CAUSES, "A": "missing argtypes"}, "A: the types"),
        ("float64 for a lost owner", {**RIGHT_CAUSES, "A": "float64"}, "the same wrong numbers"),
        ("lost owner for no argtypes", {**RIGHT_CAUSES, "B": "lost owner"}, "B: every array"),
        ("float64 for no argtypes", {**RIGHT_CAUSES, "B": "float64"}, "never got to read"),
        ("lost owner for float64", {**RIGHT_CAUSES, "C": "lost owner"}, "C: every array"),
        ("argtypes for float64", {**RIGHT_CAUSES, "C": "missing argtypes"}, "C: the types"),
        ("lost owner for alignment", {**RIGHT_CAUSES, "D": "lost owner"}, "D: every array"),
        ("argtypes for alignment", {**RIGHT_CAUSES, "D": "missing argtypes"}, "D: the types"),
        ("float64 for alignment", {**RIGHT_CAUSES, "D": "float64"}, "do not kill"),
        ("a name of one's own", {**RIGHT_CAUSES, "B": "argtypes"}, "none of 'lost owner'"),
    ],
}
