"""Errors: one printable line that says where, what, and what to do."""

import inspect
import math
import pickle
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llambda import errors
from llambda.errors import (
    InputError,
    LlambdaError,
    UnsupportedError,
    one_line,
    plural,
    require_number,
)


class Mute:
    def __repr__(self) -> str:
        raise ZeroDivisionError


KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)
]


@pytest.mark.parametrize(
    ("where", "fix", "message"),
    [
        (None, None, "it broke"),
        ("a.gguf", None, "a.gguf: it broke"),
        (None, "Mend it.", "it broke. Mend it."),
        ("a.gguf", "Mend it.", "a.gguf: it broke. Mend it."),
        ("a folder.", None, "a folder.: it broke"),
    ],
)
def test_a_message_says_where_what_and_what_to_do(where: str, fix: str, message: str):
    error = LlambdaError("it broke", where=where, fix=fix)
    assert str(error) == message
    assert (error.what, error.where, error.fix) == ("it broke", where, fix)


def test_there_is_one_base_and_wrong_values_are_value_errors():
    assert all(issubclass(kind, LlambdaError) for kind in KINDS)
    assert {kind.__name__ for kind in KINDS if issubclass(kind, ValueError)} == {
        "ModelFileError",
        "UnsupportedError",
        "InputError",
        "ContextError",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_the_way_to_another_process(kind: type[LlambdaError]):
    error = kind("a\nb", where="f", fix="Try.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == "f: a\\nb. Try."
    assert vars(again) == vars(error)


@given(st.text(st.characters()))
def test_any_text_becomes_one_printable_line(text: str):
    """The oracle is Unicode's categories: no control, format, surrogate or separator but space."""
    line = one_line(text)
    assert line.splitlines() == ([line] if line else [])
    assert line.isprintable()
    for character in line:
        assert character == " " or unicodedata.category(character)[0] not in "CZ"
    line.encode()  # no lone surrogate is left
    assert one_line(line) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain, with é and 日本", "plain, with é and 日本"),
        ("two\nlines\r\n", "two\\nlines\\r\\n"),
        ("\x1b[31m red \x07\0", "\\x1b[31m red \\x07\\x00"),
        ("a\u2028b\u202ec\u200bd", "a\\u2028b\\u202ec\\u200bd"),
        ("\ud800", "\\ud800"),
        ("C:\\new", "C:\\new"),
        ("", ""),
    ],
)
def test_what_cannot_be_printed_is_spelt_out(text: str, line: str):
    assert one_line(text) == line
    assert str(UnsupportedError(text)) == line


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 tensors"), (1, "1 tensor"), (2, "2 tensors"), (12345, "12,345 tensors")],
)
def test_plural(count: int, words: str):
    assert plural(count, "tensor") == words


def test_a_full_stop_at_the_end_of_what_is_wrong_is_not_doubled():
    assert str(LlambdaError("it broke.", fix="Mend it.")) == "it broke. Mend it."


@pytest.mark.parametrize("value", [1, 2, 7, np.int64(3), np.uint8(7)])
def test_a_whole_number_within_its_bounds_passes(value: Any):
    require_number("n", value, 1, 7, "from 1 to 7", whole=True)


@pytest.mark.parametrize("value", [0.0, 0.5, 1, np.float32(1), 1e308, True])
def test_a_number_within_its_bounds_passes(value: Any):
    require_number("n", value, 0, math.inf, "0 or more")


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        (0, True),
        (8, True),
        (3.0, True),
        (10**400, True),
        (-1e-9, False),
        (7.1, False),
        (math.nan, False),
        (math.inf, False),
        (-math.inf, False),
        (3j, False),
        ("3", False),
        (None, False),
        ([3], False),
    ],
)
def test_any_other_number_is_refused_with_its_name(value: Any, whole: bool):
    with pytest.raises(InputError) as caught:
        require_number("top_k", value, 1 if whole else 0, 7, "up to 7", whole)
    kind = "a whole number" if whole else "a number"
    assert str(caught.value) == f"top_k is {value!r}. It must be {kind}, up to 7."


@pytest.mark.parametrize(
    "value", ["x" * 5000, [7] * 5000, 10**600, 10**5000, Mute()], ids=["text", "list", *"abc"]
)
def test_a_value_is_quoted_at_a_length_that_can_be_read(value: Any):
    with pytest.raises(InputError) as caught:
        require_number("top_k", value, 0, 7, "up to 7", whole=True)
    assert len(str(caught.value)) < 600
    assert str(caught.value).startswith("top_k is ")
    assert str(caught.value).endswith(". It must be a whole number, up to 7.")


@pytest.mark.parametrize("letter", ["x", "\0", "\U0001f642", "\U000e0001"])
def test_no_error_tells_all_of_a_long_text(letter: str):
    """What is wrong and where may quote a file; what to do is our own text."""
    long = f"begin{letter * 5000}end"
    error = LlambdaError(f"odd {long}", where=long, fix="Mend it.")
    assert len(str(error)) < 1100
    assert len(error.what) < 600
    assert str(error).startswith("begin")
    assert "end: odd begin" in str(error)
    assert str(error).endswith("end. Mend it.")
    assert str(LlambdaError("x" * errors.LONGEST)) == "x" * errors.LONGEST


def test_without_an_upper_bound_infinity_is_still_refused():
    with pytest.raises(InputError, match="t is inf"):
        require_number("t", math.inf, 0, math.inf, "0 or more")
