"""What a vocabulary is made of, entry by entry: the wrong kind is refused by key and value.

Python is lenient: the text 'false' is true, and True is 1. A model file gets no such grace.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .config import short
from .errors import ModelFileError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # GGUF's token types
AGAIN = "Convert the model again."


def damaged(what: str, where: Path) -> ModelFileError:
    """The error for a vocabulary that contradicts itself."""
    return ModelFileError(what, where=where, fix="Fetch or convert the model again.")


def checked_id(value: Any, size: int, name: str, where: Path) -> int | None:
    """A token id out of a file, or None where the file gives none."""
    if value is not None and not (type(value) is int and 0 <= value < size):
        raise ModelFileError(f"{name} = {short(value)} is no token", where=where, fix=AGAIN)
    return value


def checked_flag(values: dict[str, Any], key: str, default: bool, where: Path) -> bool:
    """True or false out of a file, or the default where the file does not say."""
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelFileError(f"{key} = {short(value)} is not true or false", where=where, fix=AGAIN)
    return default if value is None else value


def is_type(entry: Any) -> bool:
    return type(entry) is int and NORMAL <= entry <= BYTE


def is_number(entry: Any) -> bool:
    return type(entry) in (int, float)


def is_text(entry: Any) -> bool:
    return isinstance(entry, str)


def check_each(
    values: Any, key: str, fits: Callable[[Any], bool], wanted: str, where: Path
) -> None:
    """Refuse what is no list, or the first of its entries that does not fit."""
    if not isinstance(values, list):
        raise ModelFileError(f"{key} = {short(values)} is not a list", where=where, fix=AGAIN)
    for i, entry in enumerate(values):
        if not fits(entry):
            raise ModelFileError(
                f"{key}[{i}] = {short(entry)} is not {wanted}", where=where, fix=AGAIN
            )


def checked_template(value: Any, where: Path) -> str | None:
    if value is not None and not isinstance(value, str):
        raise damaged("the chat template is not a text", where)
    return value


def string_list(metadata: dict[str, Any], key: str, where: Path) -> list[str]:
    value: Any = metadata.get(key)
    if value is None:
        raise ModelFileError(f"{key} is missing", where=where, fix=AGAIN)
    check_each(value, key, is_text, "a text", where)
    return list(value)


def split_merge(merge: str, where: Path) -> tuple[str, str]:
    """'a b' -> ('a', 'b')"""
    left, blank, right = merge.partition(" ")
    if not (left and blank and right) or " " in right:
        raise damaged(f"{merge!r} in tokenizer.ggml.merges is not a pair", where)
    return left, right
