"""The project's goals for speed, each measured and held against its number: `make bench`.

    python benchmarks/goals.py [--only decode,prefill] [--rounds 7] [--out benchmarks/results]

What is compared runs in turn, A B A B, on the same file with the same number of threads; a value is
the median of the ratios pair by pair, and the lowest and the highest stand beside it. Run it on a
computer that does nothing else. A part that fails is reported, and the others go on.

Writes DATE-MACHINE.json, with machine, versions and commit, and a picture of the same name.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import conditions
import duels
import gemm
import starts
from goal import Goal, Part, Settings, table
from llambda.ladder import versions
from llambda.machine import this_machine
from llambda.race import ROUNDS
from picture import draw

HERE = Path(__file__).parent
PARTS: dict[str, Part] = {
    "decode": duels.decode,
    "prefill": duels.prefill,
    "bandwidth": duels.bandwidth,
    "pytorch": duels.pytorch,
    "gemm": gemm.gemm,
    "exercise": gemm.exercise,
    "neighbours": conditions.neighbours,
    "position": conditions.position,
    "starts": starts.starts,
}


def main() -> int:
    arguments = parse()
    settings = Settings(arguments.rounds, (1, 2), say)
    goals: list[Goal] = []
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name in arguments.only or PARTS:
        say(f"== {name}")
        begin = time.perf_counter()
        try:
            for goal in PARTS[name](settings):
                goals.append(goal)  # one by one: what was measured before a failure stays
        except Exception as error:  # whatever it is, it must not cost the other parts
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
        seconds[name] = round(time.perf_counter() - begin, 1)
    machine = this_machine()
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine.as_dict(),
        "versions": versions(),
        "rounds": arguments.rounds,
        "seconds": seconds,
        "goals": [asdict(goal) | {"met": goal.met} for goal in goals],
        "failed": failed,
    }
    print(table(goals))
    for name, error in failed.items():
        print(f"{name} failed: {error}")
    name = file_name(result["date"], machine.model, arguments.only)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(goals, f"{machine.model}, {result['date'][:10]}", arguments.out / f"{name}.png")
    print(f"\n{arguments.out / name}.json and .png, in {sum(seconds.values()):.0f} s")
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=parts, metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="pairs of runs")
    parser.add_argument("--out", type=Path, default=HERE / "results", metavar="FOLDER")
    return parser.parse_args()


def parts(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)} in {', '.join(PARTS)}")
    return names


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def file_name(date: str, model: str, only: list[str] | None) -> str:
    machine = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return "-".join([date[:10], machine, *(only or [])])


def commit() -> str | None:
    """Of the checkout, with a + where it was changed; None outside of one."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+"]
    try:
        return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    sys.exit(main())
