"""From nothing to the first token: processes of their own, warm and cold."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from goal import Goal, Settings, of_spread
from llambda.model import resolve
from llambda.paths import models_dir
from llambda.race import spread

# Through a shell, which forks: the largest memory that a process had counts on after an exec, and
# this one's is not to be taken for the command's.
SHELL = ["sh", "-c", '"$@"; exit $?', "sh"]
COMMAND = [*SHELL, sys.executable, "-m", "llambda", "generate", "smollm2", "Once upon a time",
           "--json", "--max-tokens", "1", "--temperature", "0"]  # fmt: skip


class Start(NamedTuple):
    """One process. seconds : until it has written its first token and ended"""

    seconds: float
    stats: dict[str, Any]
    said: str


def start(home: Path | None = None) -> Start:
    """Generate one token, with the usual data cache or with another; stderr is a terminal."""
    env = os.environ | ({"LLAMBDA_HOME": str(home)} if home else {})
    shown, terminal = os.openpty()
    begin = time.perf_counter()
    try:
        done = subprocess.run(COMMAND, env=env, check=True, stdout=subprocess.PIPE, stderr=terminal)
        seconds = time.perf_counter() - begin
        os.write(terminal, b"\n")  # so that there is something to read
        said = os.read(shown, 10_000).decode()
    finally:
        os.close(terminal)
        os.close(shown)
    return Start(seconds, json.loads(done.stdout)["stats"], said)


def starts(settings: Settings) -> list[Goal]:
    start()  # compiles, and brings the file into memory
    warm = [start() for _ in range(settings.rounds)]
    cold = first_start()
    file_mb = resolve("smollm2").stat().st_size / 1e6

    def goal(case: str, unit: str, numbers: list[float], most: float) -> Goal:
        return of_spread("starts", case, unit, spread(numbers), most, at_most=True)

    said = float(bool(cold.said.strip()))
    return [
        goal("load", "s", [each.stats["load_s"] for each in warm], 1.0),
        goal("resident memory beyond the file", "MB",
             [each.stats["peak_rss_mb"] - file_mb for each in warm], 250.0),
        goal("second start to first token", "s", [each.seconds for each in warm], 2.0),
        goal("first start ever to first token", "s", [cold.seconds], 15.0),
        of_spread("starts", "first start ever tells of it", "lines", spread([said]), 1.0),
    ]  # fmt: skip


def first_start() -> Start:
    """With a data cache that holds the models and nothing compiled."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "models").symlink_to(models_dir().resolve())
        return start(home)
