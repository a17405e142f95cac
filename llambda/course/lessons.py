"""The list of lessons, and what a notebook file says: its cells, its exercises, their verdicts.

A lesson is notebooks/NN_topic.ipynb. Its first cell says title, minutes and difficulty; a heading
`### Exercise NN.1 · ...` begins an exercise, and a cell tagged `checker` prints its verdict. All
of it is read from the file's JSON, so nothing of Jupyter is needed here.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import FileAccessError, InputError, LlambdaError, ResourceError
from ..paths import file_error, notebooks_dir

NAME = re.compile(r"(\d\d)_\w+\.ipynb", re.ASCII)
TITLE = re.compile(r"^# \d\d · (.+)$", re.MULTILINE)
EFFORT = re.compile(r"^\*(\d+) minutes · difficulty (\d) of 5\*$", re.MULTILINE)
EXERCISE = re.compile(r"^### Exercise (\d\d\.\d+)\b", re.MULTILINE)
VERDICT = re.compile(r"^(\d\d\.\d+) (?:solved|not attempted yet|not yet)\b.*", re.MULTILINE)
AGAIN = "Install llambda again."
MOST_BYTES = 50_000_000  # of a notebook that is read; as they ship they have less than one million


class Cell(NamedTuple):
    """One cell of a notebook: what counts here."""

    kind: str  # code, markdown or raw
    source: str
    tags: tuple[str, ...]
    printed: str  # what went to stdout when it last ran


class Lesson(NamedTuple):
    """A lesson that exists."""

    number: str  # 04
    path: Path
    title: str
    minutes: int
    difficulty: int  # 1 to 5
    exercises: tuple[str, ...]  # 04.1, 04.2, ...


def lesson_files() -> dict[str, Path]:
    """Number -> notebook of every lesson, in order. Raises LlambdaError where there is none."""
    folder = notebooks_dir()
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    found = {match[1]: path for path in paths if (match := NAME.fullmatch(path.name))}
    if not found:
        raise FileAccessError("no lessons are here", where=folder, fix=AGAIN)
    return found


def find_lesson(number: str) -> Lesson:
    """The lesson of a number as people write it: 4 or 04. Raises LlambdaError."""
    known = lesson_files()
    plain = number.lstrip("0").zfill(2) if number else number
    if plain not in known:
        raise InputError(f"there is no lesson {number!r}", fix=f"There are: {', '.join(known)}.")
    return read_lesson(known[plain])


def read_lesson(path: Path) -> Lesson:
    """What a lesson's notebook says of itself. Raises LlambdaError if it is damaged."""
    try:
        cells = notebook_cells(read_notebook(path))
    except LlambdaError as error:
        raise LlambdaError(error.what, where=path, fix=AGAIN) from error
    front = cells[0].source if cells else ""
    title, effort = TITLE.search(front), EFFORT.search(front)
    if title is None or effort is None:
        raise LlambdaError("a lesson without a title and its minutes", where=path, fix=AGAIN)
    minutes, difficulty = map(int, effort.groups())
    return Lesson(path.name[:2], path, title[1], minutes, difficulty, exercises_in(cells))


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises LlambdaError for what is no file, not for us, or too much."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise FileAccessError("a pipe or device", where=path, fix="Move it away.")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise file_error(error, path) from error
    if len(content) > MOST_BYTES:
        raise ResourceError(
            f"a notebook of more than {MOST_BYTES / 1e6:.0f} MB",
            where=path,
            fix="Clear the outputs of its cells in Jupyter, and save it.",
        )
    return content


def read_notebook(path: Path) -> dict[str, Any]:
    """A notebook file as JSON, of format 4 and with cells of the right form.

    Raises LlambdaError for any other file.
    """
    try:
        notebook = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise LlambdaError(f"not a notebook: no JSON ({error})", where=path) from error
    try:
        if notebook["nbformat"] != 4:
            raise LlambdaError("a notebook of another format than 4", where=path)
        notebook_cells(notebook)
    except (AttributeError, KeyError, TypeError) as error:
        raise LlambdaError("JSON, but not a notebook", where=path) from error
    return notebook


def notebook_cells(notebook: dict[str, Any]) -> list[Cell]:
    """The cells of a notebook. What is not in its place raises KeyError, TypeError and so on."""
    return [
        Cell(
            "" + cell["cell_type"],
            text(cell["source"]),
            tuple(cell.get("metadata", {}).get("tags", ())),
            "".join(
                text(output["text"])
                for output in cell.get("outputs", ())
                if output["output_type"] == "stream" and output["name"] == "stdout"
            ),
        )
        for cell in notebook["cells"]
    ]


def text(lines: str | list[str]) -> str:
    """A notebook stores text as one string or as a list of lines."""
    return "".join(lines)


def exercises_in(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The numbers of the exercises, in order."""
    headings = (EXERCISE.findall(cell.source) for cell in cells if cell.kind == "markdown")
    return tuple(number for each in headings for number in each)


def verdicts_in(cells: Iterable[Cell]) -> dict[str, str]:
    """Exercise -> the line that its checker printed, as far as checkers have run."""
    printed = (cell.printed for cell in cells if "checker" in cell.tags)
    return {match[1]: match[0] for each in printed for match in VERDICT.finditer(each)}


def is_solved(verdict: str) -> bool:
    return verdict.partition(" ")[2].startswith("solved")
