"""Errors that a person can act on: each says what is wrong, where, and what to do.

Everything llambda raises on purpose derives from `LlambdaError`; the command line turns it into
one line on stderr and exit status 1. Kinds that are also a `ValueError` are about a value that
was given: a file's bytes, a prompt, a setting.
"""

import math
from numbers import Integral, Real
from typing import Any

LONGEST = 500  # characters of a fault, or of its place, that are told


class LlambdaError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    what : what is wrong, a clause without a full stop
    where : the file, option or tensor concerned; comes first in the message
    fix : what the reader can do about it, one sentence
    """

    def __init__(self, what: str, *, where: object = None, fix: str | None = None):
        self.what = shortened(what)
        self.where = where
        self.fix = fix
        message = shortened(one_line(what))
        if where is not None:
            message = f"{shortened(one_line(str(where)))}: {message}"
        if fix is not None:
            message = f"{message.rstrip('.')}. {one_line(fix)}"
        super().__init__(message)


class FileAccessError(LlambdaError):
    """A file or folder is missing, unreadable or cannot be written."""


class ModelFileError(LlambdaError, ValueError):
    """A model file's bytes contradict its format: truncated, lying lengths, no model at all."""


class UnsupportedError(LlambdaError, ValueError):
    """The file is well formed, but holds something this engine does not implement."""


class InputError(LlambdaError, ValueError):
    """A prompt, token id or setting that cannot be used."""


class ContextError(InputError):
    """More positions are asked for than the model or the state has room for."""


class ResourceError(LlambdaError):
    """Not enough memory or disk space."""


class DownloadError(LlambdaError):
    """A model could not be fetched, or what arrived is not what was expected."""


class MissingPackageError(LlambdaError):
    """An optional package (torch, for instance) is needed and not installed."""


def require_number(
    name: str, value: Any, low: float, high: float, wanted: str, whole: bool = False
) -> None:
    """Raise InputError unless the value is a finite number from low to high, both included."""
    right_kind = isinstance(value, Integral if whole else Real)
    if not right_kind or not low <= value <= high or value == math.inf:
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{name} is {quoted(value)}", fix=f"It must be {kind}, {wanted}.")


def require_float(name: str, value: Any, low: float, high: float, wanted: str) -> float:
    """The number as a float, whatever kind of real number it is. Raises as require_number does."""
    require_number(name, value, low, high, wanted)
    try:
        number = float(value)
    except OverflowError:  # a whole number or a fraction beyond all floats
        raise InputError(f"{name} is {quoted(value)}", fix="It must fit into a float.") from None
    require_number(name, number, low, high, wanted)  # a long double may be infinite now
    return number


def quoted(value: Any) -> str:
    """How Python writes the value, at a length that can be read."""
    try:
        return shortened(repr(value))
    except Exception:  # a whole number of thousands of digits, or a class that cannot say
        return f"a value of type {type(value).__name__}"


def shortened(text: str) -> str:
    """The text without its middle, if it is long: a name or value out of a file has any length."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 100]} ... {text[-100:]}"


def one_line(text: str) -> str:
    """The text on one line, printable: names that come out of a file may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plural(count: int, noun: str) -> str:
    """`3 tensors`, `1 tensor`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
