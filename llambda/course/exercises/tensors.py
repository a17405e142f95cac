"""The exercises of lesson 01: where an element lies, what reading costs, sums, foreign calls."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from .base import Answer, Wrong, exercise, expect_calls, expect_choices, result, shown
from .tensors_offset import OFFSET_CASES, OFFSET_MISTAKES, right_offset


@exercise("01.1", "Where does it lie?", kind="code", minutes=10, difficulty=2)
def offset(answer: Answer) -> str:
    given = result(answer, OFFSET_CASES[0]) if callable(answer) else None
    if isinstance(given, (np.ndarray, list, tuple, bytes, bytearray, memoryview)):
        raise Wrong(
            f"the answer is {shown(given)}, elements or a copy of them. An offset is one number: "
            "how many bytes into the buffer the element begins. Nothing is read to know it."
        )
    expect_calls(answer, OFFSET_CASES, right_offset, OFFSET_MISTAKES)
    return (
        "A view of a view needs nothing new: its start goes into the base and its steps into the "
        "strides, so a chain of views costs as little as one."
    )


SIDE, NUMBER, LINE = 576, 4, 64  # rows and columns; bytes of an F32, and of a cache line


def lines(starts: Iterable[int]) -> int:
    """Cache lines that hold the elements beginning at these bytes."""
    return len({start // LINE for start in starts})


@exercise("01.2", "A row and a column", kind="predict", minutes=5, difficulty=2)
def touched(answer: Answer) -> str:
    row, column = NUMBER, NUMBER * SIDE  # strides
    right = {
        "row": lines(row * j for j in range(SIDE)),
        "column": lines(column * i for i in range(SIDE)),
    }
    mistakes: dict[tuple[str, Any], str] = {
        ("row", SIDE // LINE): "a line holds 64 bytes, not 64 numbers: how many F32 is that?",
        ("column", SIDE // LINE): "no two F32 of a column share a line: a row lies between.",
        ("row", SIDE): "one line serves sixteen neighbours; it is fetched once for all of them.",
        ("row", SIDE * NUMBER): "these are the row's bytes; how many fit in a line?",
        ("row", right["row"] + 1): "the row begins on a line, so it also ends with one.",
        ("column", right["row"]): f"each takes its own line: they lie {column:,} bytes apart.",
        ("column", right["row"] * SIDE): "that is the whole matrix. A column needs less of it.",
        ("column", 1): "a line holds neighbours along a row; a column has one number of each row.",
    }
    expect_choices(answer, right, mistakes)
    return (
        "Sixteen times the lines for the same 2,304 bytes of numbers. Unless the other fifteen "
        "numbers of each line are used before it is pushed out of the cache, you pay for them too."
    )


TERMS = (1e8, 1.0, -1e8, 1.0)


def added(terms: Iterable[float]) -> float:
    """The sum from left to right in float32."""
    return float(reduce(np.add, map(np.float32, terms)))


@exercise("01.3", "Four numbers, two sums", kind="predict", minutes=5, difficulty=2)
def sums(answer: Answer) -> str:
    right = {
        "left to right": added(TERMS),
        "lanes": added([added(TERMS[0::2]), added(TERMS[1::2])]),
    }
    spacing = float(np.spacing(np.float32(TERMS[0])))
    mistakes: dict[tuple[str, Any], str] = {
        ("left to right", 2): (
            f"true of real numbers. But float32 numbers near 1e8 are {spacing:g} apart: what is "
            "1e8 + 1 rounded to one of them?"
        ),
        ("left to right", 0): "only the first 1 is lost. When the second one comes, 1e8 is gone.",
        ("left to right", TERMS[0]): "go on to the end: -1e8 follows.",
        ("lanes", right["left to right"]): (
            "in lanes neither 1 ever meets 1e8: add the even places, then the odd ones."
        ),
        ("lanes", 0): "the ones meet each other first, in a lane of their own.",
    }
    expect_choices(answer, right, mistakes)
    return (
        "Same numbers, same machine, another order. Neither is a bug; only a check that expects "
        "equal bits would be."
    )


LOST, UNDECLARED, WIDTH, ALIGNMENT = "lost owner", "missing argtypes", "float64", "alignment"
CAUSES = (LOST, UNDECLARED, WIDTH, ALIGNMENT)
REPORTS = {
    "A": """\
call      address = (weights * scale).ctypes.data
          total = lib.sum_f32(address, n)
declared  argtypes = [c_void_p, c_size_t], restype = c_float
seen      address printed by Python 55d0_c8e4_a310, received by the function 55d0_c8e4_a310
          right in every small test; in the server sometimes right, sometimes 1e+30
""",
    "B": """\
call      weights = aligned float32 array, kept in a global
          total = lib.sum_f32(weights.ctypes.data, n)
declared  restype = c_float
seen      address printed by Python 7f3a_b404_01c0, received by the function ffff_ffff_b404_01c0
          killed by SIGSEGV at its first load, every time
""",
    "C": """\
call      weights = np.array([1.0, 2.0, 3.0, 4.0]), kept in a global
          total = lib.sum_f32(weights.ctypes.data, 4)
declared  argtypes = [c_void_p, c_size_t], restype = c_float
seen      address printed by Python 55d0_c8e4_a330, received by the function 55d0_c8e4_a330
          3.875 in place of 10, every time; the function reads 0, 1.875, 0, 2
""",
    "D": """\
call      weights = float32 array, kept in a global
          total = lib.sum_f32(weights[1:].ctypes.data, n - 1)
declared  argtypes = [c_void_p, c_size_t], restype = c_float
seen      address printed by Python 7f3a_b404_01c4, received by the function 7f3a_b404_01c4
          killed by SIGSEGV at vmovaps ymm0, [rdi], every time; weights[8:] works
""",
}


@exercise("01.4", "Four foreign calls", kind="diagnose", minutes=5, difficulty=3)
def calls(answer: Answer) -> str:
    if isinstance(answer, Mapping):
        for key, choice in answer.items():
            if key in REPORTS and (not isinstance(choice, str) or choice not in CAUSES):
                raise Wrong(f"{key}: {shown(choice)} is none of {', '.join(map(repr, CAUSES))}.")
    owner = "every array here lives in a global, and the symptom is the same every time."
    mistakes: dict[tuple[str, Any], str] = {
        ("A", ALIGNMENT): (
            "an alignment fault strikes every time and at one instruction. This one comes and "
            "goes: what happens to the product when the first line is done?"
        ),
        ("A", UNDECLARED): "the types are declared, and the function received the whole address.",
        ("A", WIDTH): "doubles taken for floats give the same wrong numbers every time.",
        ("B", ALIGNMENT): (
            "it ends in c0, three times 64: as aligned as can be. Compare the two addresses."
        ),
        ("B", LOST): owner + " Compare the two addresses.",
        ("B", WIDTH): "it never got to read a number. Compare the two addresses.",
        ("C", ALIGNMENT): (
            "an alignment fault kills; it never changes a number. Which dtype has NumPy given "
            "this array?"
        ),
        ("C", UNDECLARED): "the types are declared, and the function received the whole address.",
        ("C", LOST): owner + " Which dtype has NumPy given this array?",
        ("D", LOST): owner + " Which instruction is it, and is the address a multiple of 32?",
        ("D", UNDECLARED): "the types are declared, and the function received the whole address.",
        ("D", WIDTH): "doubles taken for floats give wrong numbers; they do not kill.",
    }
    right = {"A": LOST, "B": UNDECLARED, "C": WIDTH, "D": ALIGNMENT}
    expect_choices(answer, right, mistakes)
    return (
        "Only one of four was alignment. Ask in this order: did the address arrive whole, is the "
        "owner alive, is the dtype right; and only then, what does the instruction demand?"
    )
