"""What was measured on this machine, kept from lesson to lesson: a small JSON file an entry.

The files lie in the data cache. An entry that is damaged, or that another machine or version of
llambda wrote, counts as missing: whoever asks measures again and writes it anew.
"""

import json
import re
import time
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
    try:
        entry = read_json(entry_file(name))
    except LlambdaError:
        return None
    return entry.get("value") if entry.get("machine") == machine_id() else None


def names(prefix: str) -> list[str]:
    """The names of all entries that begin with `prefix`, sorted; trusted or not."""
    return sorted(file.stem for file in entry_file(f"{prefix}x").parent.glob(f"{prefix}*.json"))


def record(name: str, value: Any) -> None:
    """Keep a value (anything JSON can hold) under a name, in place of what was there."""
    entry = {"machine": machine_id(), "time": round(time.time()), "value": value}
    file = entry_file(name)
    make_dir(file.parent)
    with atomic_write(file) as out:
        out.write(json.dumps(entry, indent=1).encode() + b"\n")
