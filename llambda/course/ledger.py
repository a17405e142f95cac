"""What was measured on this machine, kept from lesson to lesson: a small JSON file an entry.

The files lie in the data cache. An entry that is damaged, or that another machine or version of
llambda wrote, counts as missing: whoever asks measures again and writes it anew.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import LlambdaError
from ..machine import this_machine
from ..paths import atomic_write, cache_dir, make_dir, read_json


def machine_id() -> str:
    """What a measurement depends on: the CPU's name, the cores of this process, the version."""
    machine = this_machine()
    return f"{machine.model}, {machine.usable_cores} cores, llambda {__version__}"


def entry_file(name: str) -> Path:
    """Where an entry lies; its name may hold letters, digits, dots, dashes and underscores."""
    if not re.fullmatch(r"[\w.-]+", name):
        raise LlambdaError(f"{name!r} is no name of a ledger entry")
    return cache_dir() / "ledger" / f"{name}.json"


def recall(name: str) -> Any:
    """The value of an entry that this machine wrote; None if there is none to trust."""
    file = entry_file(name)
    if not file.is_file():  # a pipe would wait for ever
        return None
    try:
        entry = read_json(file)
    except LlambdaError:
        return None
    return entry.get("value") if entry.get("machine") == machine_id() else None


def names(prefix: str) -> list[str]:
    """The names of all entries that begin with `prefix`, sorted; trusted or not."""
    return sorted(file.stem for file in entry_file(f"{prefix}x").parent.glob(f"{prefix}*.json"))


def as_number(value: object) -> float | None:
    """A finite number as a float, whatever its type; None for all else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def rate(name: str, measure: Callable[[], float]) -> float:
    """A positive number of this machine: from the ledger, else measured now and kept there."""
    kept = as_number(recall(name))
    if kept is None or kept <= 0:
        kept = measure()
        record(name, kept)
    return kept


def rates(name: str, measure: Callable[[], Mapping[int, float]]) -> dict[str, float]:
    """The same of several: number of threads -> a positive number."""
    kept = recall(name)
    numbers = [as_number(value) for value in kept.values()] if isinstance(kept, dict) else []
    if not numbers or not all(number and number > 0 for number in numbers):
        kept = {str(threads): number for threads, number in measure().items()}
        record(name, kept)
    return kept


def record(name: str, value: Any) -> None:
    """Keep a value (anything JSON can hold) under a name, in place of what was there.

    On a full disk, or where nothing may be written, it is not kept: no reason to stop a lesson.
    """
    entry = {"machine": machine_id(), "time": round(time.time()), "value": value}
    file = entry_file(name)
    with suppress(LlambdaError):
        make_dir(file.parent)
        with atomic_write(file) as out:
            out.write(json.dumps(entry, indent=1).encode() + b"\n")
