"""Record the lessons: run each twin in py/ from top to bottom and store the notebook with outputs.

    make notebooks                   all of them
    make notebooks LESSON="04 05"    these

A cell keeps the id it had, and nothing that changes by itself is stored (times, versions, dates),
so that a diff shows what was edited. The real model must be here: what is stored comes from it.
A lesson that goes wrong leaves its notebook as it was, and the exit status is 1.
"""

import hashlib
import os
import sys
import time
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from llambda.course.private_home import private_home
from llambda.errors import LlambdaError
from llambda.fetch import KNOWN
from llambda.paths import atomic_write, file_error
from stored_outputs import cell_name, clean, output_complaints

FOLDER = Path(__file__).parent
MAX_SECONDS = 90  # for a lesson, once everything is compiled
CELL_TIMEOUT = 300  # s; with cold caches one cell may compile for long

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}


class RecordingError(LlambdaError):
    """A lesson cannot be recorded."""


def main(lessons: list[str], folder: Path = FOLDER) -> int:
    """Record the lessons that are named (04 or 04_forward), or all. Returns the exit status."""
    failed = False
    try:
        if not KNOWN["smollm2"].is_here:
            raise RecordingError(
                "smollm2 is not here, and what the lessons store comes from the real model",
                fix="Get it with: llambda fetch smollm2",
            )
        twins = chosen(lessons, folder)
    except LlambdaError as error:
        print(error, file=sys.stderr)
        return 1
    for twin in twins:
        try:
            seconds, cells = record(twin)
            print(f"{twin.stem}  {seconds:.1f} s  {cells} cells", flush=True)
        except LlambdaError as error:
            print(error, file=sys.stderr, flush=True)
            failed = True
    return int(failed)


def chosen(lessons: list[str], folder: Path) -> list[Path]:
    """The twins of these lessons, in order. RecordingError for a name that is none's."""
    twins = {path.stem: path for path in sorted((folder / "py").glob("[0-9][0-9]_*.py"))}
    for name in lessons:
        if not any(name in (stem, stem[:2]) for stem in twins):
            raise RecordingError(
                f"no lesson is called {name!r}", fix=f"There are: {', '.join(twins) or 'none'}."
            )
    return [twins[s] for s in twins if not lessons or s in lessons or s[:2] in lessons]


def record(twin: Path, max_seconds: float = MAX_SECONDS) -> tuple[float, int]:
    """Run one twin and write its notebook. Returns the seconds it took and how many cells it has.

    Raises RecordingError, with nothing written, when a cell fails, when an output must not be
    stored, and when it takes too long.
    """
    target = twin.parents[1] / f"{twin.stem}.ipynb"
    notebook = readable_twin(twin)
    for cell, name in zip(notebook.cells, cell_ids(old_cells(target), notebook.cells), strict=True):
        cell.id = name
    seconds = execute(notebook, twin.stem, target.parent)
    for index, cell in enumerate(notebook.cells):
        try:
            clean(cell)
        except ValueError as error:
            where = f"{twin.stem}, {cell_name(index, cell)}"
            raise RecordingError(str(error), where=where, fix="Nothing was written.") from error
    complaints = [c for i, cell in enumerate(notebook.cells) for c in output_complaints(i, cell)]
    if complaints:
        raise RecordingError("; ".join(complaints), where=twin.stem, fix="Nothing was written.")
    if seconds > max_seconds:
        raise RecordingError(
            f"took {seconds:.1f} s, and {max_seconds:g} are allowed",
            where=twin.stem,
            fix="Nothing was written. If it had to compile, run it again; else make it shorter.",
        )
    notebook.metadata = nbformat.from_dict(METADATA)
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        what = f"it would be no valid notebook: {error.message}"
        raise RecordingError(what, where=twin.stem, fix="Nothing was written.") from error
    with atomic_write(target) as file:
        file.write((nbformat.writes(notebook) + "\n").encode())
    return seconds, len(notebook.cells)


def readable_twin(path: Path) -> NotebookNode:
    """The cells of a twin. Raises LlambdaError for a file that is none."""
    try:
        return read_twin(path.read_text("utf-8"))
    except OSError as error:
        raise file_error(error, path) from error
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is no UTF-8"
        raise RecordingError(what, where=path.name, fix="Save it as UTF-8.") from error
    except Exception as error:  # jupytext's are of many kinds: of tags that are no list, for one
        what = f"jupytext cannot read it: {str(error).partition(chr(10))[0]}"
        raise RecordingError(what, where=path.name, fix="Look at its cell marks.") from error


def read_twin(text: str) -> NotebookNode:
    """The cells of a py:percent text, with their tags and no other metadata."""
    notebook = jupytext.reads(text, fmt="py:percent")
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = NotebookNode(tags=tags) if tags else NotebookNode()
    notebook.update(nbformat=4, nbformat_minor=5)
    return notebook


def old_cells(path: Path) -> list[NotebookNode]:
    """The cells of a notebook as it was recorded before; none if it was not.

    Raises RecordingError for what is no notebook: its cells may have ids that others refer to.
    """
    if not path.exists():
        return []
    try:
        cells = nbformat.read(path, as_version=4).cells
        for cell in cells:
            "".join((cell.cell_type, cell.source, cell.get("id", "")))  # all three are text
    except OSError as error:
        raise file_error(error, path) from error
    except Exception as error:  # nbformat has a different one for every kind of damage
        fix = "Take it back out of git, so that its cells keep their ids, or delete it."
        raise RecordingError("not a readable notebook", where=path.name, fix=fix) from error
    return cells


def cell_ids(old: list[NotebookNode], new: list[NotebookNode]) -> list[str]:
    """An id for every new cell: that of the same, moved or edited old cell, else a new one."""
    before, after = ([(c.cell_type, c.source) for c in cells] for cells in (old, new))
    ids = [""] * len(new)

    def carry(i: int, j: int) -> None:
        if not ids[j] and old[i].get("id", "") not in ids:  # "" is in it: ids[j] is
            ids[j] = old[i].id

    def likeness(i: int, j: int) -> float:
        return SequenceMatcher(None, before[i][1], after[j][1], autojunk=False).ratio()

    changes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    for kind, i1, i2, j1, j2 in changes:
        if kind == "equal":
            for i, j in zip(range(i1, i2), range(j1, j2), strict=True):
                carry(i, j)
    for i, j in product(range(len(old)), range(len(new))):
        if before[i] == after[j]:  # moved
            carry(i, j)
    for kind, i1, i2, j1, j2 in changes:
        if kind == "replace":  # edited: the likeliest pairs first
            pairs = [
                (likeness(i, j) + (i2 - i1 == j2 - j1 and i - i1 == j - j1), i, j)
                for i, j in product(range(i1, i2), range(j1, j2))
                if before[i][0] == after[j][0]
            ]
            for _, i, j in sorted(pair for pair in pairs if pair[0] > 0.5)[::-1]:
                carry(i, j)
    for j, (_, source) in enumerate(after):
        count = 0
        while not ids[j]:  # new
            name = hashlib.sha256(f"{j} {count} {source}".encode()).hexdigest()[:8]
            ids[j], count = "" if name in ids else name, count + 1
    return ids


def execute(notebook: NotebookNode, name: str, folder: Path) -> float:
    """Run all cells in a fresh kernel, and store what they print. Returns seconds."""
    running = 0

    def remember(cell: NotebookNode, cell_index: int) -> None:
        nonlocal running
        running = cell_index

    client = Client(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
        on_cell_start=remember,
    )
    begin = time.perf_counter()
    try:
        with private_home() as home:
            client.execute(env=os.environ | home, stderr=DEVNULL)  # the kernel's, not the cells'
    except CellExecutionError as error:
        failure = f"{error.ename}: {error.evalue}".strip().splitlines()[-1]
    except (CellTimeoutError, DeadKernelError) as error:
        failure = str(error).splitlines()[0]
    else:
        if client.unfit is None:
            return time.perf_counter() - begin
        running, failure = client.unfit
    where = f"{name}, {cell_name(running, notebook.cells[running])}"
    raise RecordingError(failure, where=where, fix="Nothing was written.")


class Client(NotebookClient):
    """A client that remembers which cell showed what no notebook can hold, and goes on."""

    unfit: tuple[int, str] | None = None

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        try:
            return super().process_message(msg, cell, cell_index)
        except nbformat.ValidationError as error:
            self.unfit = self.unfit or (cell_index, f"an output is not valid: {error.message}")
            return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
