"""A first start compiles in two processes, so that on two cores it takes little more than half.

Machine code is kept on disk, where one process finds what the other has made.
"""

import importlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .jit import KEEP, Foreign, first_time

ROOT = Path(__file__).parents[2]  # where this package is; the second process imports the same one


def compile_together(here: Sequence[Foreign], there: Sequence[Foreign]) -> None:
    """Compile some functions in this process and others in a second one, if none are kept yet.

    What goes wrong in the second process is left to the first use of its functions in this one.
    """
    if KEEP and first_time():
        with second_process(there):
            for each in here:
                _ = each.address


@contextmanager
def second_process(functions: Sequence[Foreign]) -> Iterator[None]:
    """One that compiles functions during the block; it has ended when the block has."""
    names = [f"{each.function.__module__}:{each.function.__name__}" for each in functions]
    command = [sys.executable, "-m", __name__, *names]
    nothing = subprocess.DEVNULL
    try:
        second = subprocess.Popen(command, cwd=ROOT, stdin=nothing, stdout=nothing, stderr=nothing)
    except OSError:  # no Python that can be started, or no room for it
        yield
        return
    try:
        yield
        second.wait()
    finally:
        second.kill()  # if the block was left half way
        second.wait()


def main(names: Sequence[str]) -> None:
    for name in names:
        module, _, function = name.partition(":")
        foreign: Foreign = getattr(importlib.import_module(module), function)
        _ = foreign.address


if __name__ == "__main__":
    main(sys.argv[1:])
