"""The standard streams of a command. Whoever starts it may have closed them; disks and pipes fail.

What a command answers goes to stdout, and is lost if that fails: an error, told from those of
files. What it says meanwhile goes to stderr, for whom it may concern: no error at all.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

from .errors import LlambdaError


class OutputError(LlambdaError):
    """The answer cannot be written to stdout."""


class ReaderGoneError(Exception):
    """Whoever read stdout has seen enough."""


class Closed(io.TextIOBase):
    """Stands for a stream that does not exist."""

    def write(self, text: str) -> int:
        raise OSError(None, "stdout is closed")


class Stream:
    """A standard stream whose errors go to `failed`. In all else it is the stream itself."""

    def __init__(self, stream: Any, failed: Callable[[OSError], None]):
        self._stream = stream
        self._failed = failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[..., object], *arguments: str) -> None:
        try:
            action(*arguments)
        except OSError as error:
            self._discard()
            self._failed(error)

    def _discard(self) -> None:
        """Send what is still to be written nowhere, or Python would try again at exit."""
        with suppress(OSError):  # a stream in memory, or a closed one
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


def lose_answer(error: OSError) -> None:
    if isinstance(error, BrokenPipeError):
        raise ReaderGoneError from error
    raise OutputError(f"cannot write the output: {error.strerror}.") from error


def lose_remark(error: OSError) -> None:
    """Nobody listens."""


@contextmanager
def standard_streams() -> Iterator[None]:
    """For the time of a command: stdout raises OutputError or ReaderGoneError, stderr nothing."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    out: Any = Stream(sys.stdout or Closed(), lose_answer)
    err: Any = Stream(sys.stderr or Closed(), lose_remark)
    with redirect_stdout(out), redirect_stderr(err):
        yield
