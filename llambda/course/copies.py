"""The reader's copies of the lessons: which there are, making one, checking its exercises.

Each function here yields the lines that `llambda lesson` prints, and raises LlambdaError.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FileAccessError, LlambdaError, MissingPackageError, one_line
from ..paths import atomic_write, file_error, make_dir
from .lessons import (
    Cell,
    Lesson,
    exercises_in,
    find_lesson,
    is_solved,
    lesson_files,
    notebook_cells,
    read_lesson,
    read_notebook,
    verdicts_in,
)

if TYPE_CHECKING:
    from .execution import Execution

INSTALL = "Install what the course needs: make lab in a clone, else pip install 'llambda[course]'"
FOLDER = Path("llambda-lessons")  # in the current folder


def list_lessons(folder: Path | None = None) -> Iterator[str]:
    """A line for each lesson: what it is, and how far the reader's copy is."""
    folder = readers_folder(folder)
    found: dict[str, Lesson | LlambdaError] = {}
    for number, path in lesson_files().items():
        try:
            found[number] = read_lesson(path)
        except LlambdaError as error:
            found[number] = error
    width = max([len(each.title) for each in found.values() if isinstance(each, Lesson)], default=1)
    for number, lesson in found.items():
        if isinstance(lesson, LlambdaError):
            yield f"{number}  {lesson}"
            continue
        effort = f"{lesson.minutes:3} min  difficulty {lesson.difficulty} of 5"
        yield f"{number}  {lesson.title:{width}}  {effort}  {state(lesson, folder)}"
    yield f"your copies: {shown(folder)}; solved is what was run and saved in Jupyter"


def state(lesson: Lesson, folder: Path) -> str:
    """How far the copy of a lesson is, as it was last saved."""
    copy = copy_of(lesson, folder)
    if copy is None:
        return "not started"
    try:
        cells = read_copy(copy)
    except LlambdaError as error:
        return one_line(f"the copy cannot be read: {error.what}")
    verdicts = verdicts_in(cells)
    solved = [number for number in lesson.exercises if is_solved(verdicts.get(number, ""))]
    line = f"{len(solved)} of {len(lesson.exercises)} exercises solved"
    if solved:
        line += f": {' '.join(solved)}"
    if missing := set(lesson.exercises) - set(solved) - set(exercises_in(cells)):
        line += f"; not in this copy: {' '.join(sorted(missing))}"
    return line


def start_lesson(number: str, folder: Path | None = None, force: bool = False) -> Iterator[str]:
    """Copy a lesson into the reader's folder; with `force` in place of a copy, which is kept."""
    lesson, folder = find_lesson(number), readers_folder(folder)
    former = copy_of(lesson, folder)
    if former is not None and not force:
        raise FileAccessError(
            "there is a copy already",
            where=former,
            fix=f"Go on in it, or keep it aside and begin anew: {anew(lesson, folder)}",
        )
    fresh = untouched(read_notebook(lesson.path))
    copy = make_dir(folder) / lesson.path.name
    aside = None if former is None else keep_aside(former)
    try:
        with atomic_write(copy) as file:
            file.write(fresh)
    except BaseException:
        if aside is not None:
            move(aside, copy)
        raise
    if aside is not None:
        yield f"the former copy is kept as {shown(aside)}"
    yield f"lesson {lesson.number}, {lesson.title}, is copied to {shown(copy)}"
    yield f"open it with: {program('jupyter')} lab {quoted(copy)}"
    if find_spec("jupyterlab") is None:
        yield f"JupyterLab is not installed here. {INSTALL}"


def untouched(notebook: dict[str, Any]) -> bytes:
    """A notebook without what its cells gave, as bytes of a file."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    return f"{text}\n".encode("utf-8", "backslashreplace")  # \ud800 is what JSON writes, too


def keep_aside(copy: Path) -> Path:
    """Move a copy to the next free name, NN_topic.1.ipynb, whatever it is.

    It is not read, and may be of any size, damaged, a folder, or a link: what a link leads to
    stands elsewhere, perhaps in another's place, and is not written.
    """
    number = 1
    while os.path.lexists(aside := copy.with_suffix(f".{number}.ipynb")):
        number += 1
    return move(copy, aside)


def move(path: Path, to: Path) -> Path:
    """Give a file, link or folder another name. Raises LlambdaError."""
    try:
        return path.rename(to)
    except OSError as error:
        raise file_error(error, path) from error


def check_lesson(number: str, folder: Path | None = None) -> Iterator[str]:
    """Run the reader's copy and give the verdict on each exercise; the copy stays as it is.

    Raises LlambdaError unless all are solved.
    """
    lesson, folder = find_lesson(number), readers_folder(folder)
    copy = copy_of(lesson, folder)
    if copy is None:
        raise FileAccessError(
            f"no copy of lesson {lesson.number} is here",
            where=folder,
            fix=f"Make one: {start_command(lesson, folder)}",
        )
    fix = f"For a new copy, with this one kept: {anew(lesson, folder)}"
    try:
        cells = read_copy(copy)
    except LlambdaError as error:
        raise LlambdaError(error.what, where=copy, fix=error.fix or fix) from error
    code = [cell for cell in cells if cell.kind == "code" and cell.source.strip()]
    execution = run_quietly([cell.source for cell in code], copy.parent)
    yield from execution.errors()
    verdicts = verdicts_in(
        cell._replace(printed=execution.printed(index)) for index, cell in enumerate(code)
    )
    there = exercises_in(cells)
    for each in lesson.exercises:
        without = "has no verdict: no checker ran" if each in there else "is not in this copy"
        yield one_line(verdicts.get(each, f"{each} {without}"))
    unsolved = [each for each in lesson.exercises if not is_solved(verdicts.get(each, ""))]
    missing = [each for each in unsolved if each not in there]
    yield f"{len(lesson.exercises) - len(unsolved)} of {len(lesson.exercises)} solved"
    if execution.stopped is not None:
        mend = "Mend that cell, save the notebook and check again."
        raise LlambdaError(execution.stopped, where=copy, fix=mend)
    if missing:
        what = f"this copy lacks {', '.join(missing)}: perhaps it is of another version"
        raise LlambdaError(what, where=copy, fix=fix)
    if unsolved:
        raise LlambdaError(
            f"not solved: {', '.join(unsolved)}",
            where=copy,
            fix="Write an answer, save the notebook and check again.",
        )


def run_quietly(sources: list[str], folder: Path) -> "Execution":
    """Execute cells, with a line that counts them on a terminal."""
    try:
        from .execution import execute
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{error.name}, which runs notebooks, is not installed",
            fix=INSTALL,
        ) from error
    terminal = sys.stderr is not None and sys.stderr.isatty()

    def show(number: int, total: int) -> None:
        print(f"\rcell {number} of {total} ", end="", file=sys.stderr, flush=True)

    try:
        return execute(sources, folder, show if terminal else None)
    finally:
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- files and words


def readers_folder(given: Path | None) -> Path:
    """The folder of the copies: the given one, or else the default. Raises LlambdaError."""
    try:
        return default_folder() if given is None else given
    except OSError as error:  # the current folder is gone
        raise file_error(error, FOLDER) from error


def default_folder() -> Path:
    """Who works inside llambda-lessons means that one, and not one inside it."""
    return Path() if Path.cwd().name == FOLDER.name else FOLDER


def copy_of(lesson: Lesson, folder: Path) -> Path | None:
    """The reader's copy of a lesson, or what stands in its place; None if there is nothing.

    Raises LlambdaError for a folder that is none or not for us.
    """
    path = folder / lesson.path.name
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(error, folder) from error
    return path


def read_copy(copy: Path) -> list[Cell]:
    """The cells of a reader's copy. Raises LlambdaError; without a fix where a new copy is one."""
    if not os.path.isfile(copy):
        what = "a folder" if os.path.isdir(copy) else "a pipe or device"
        if copy.is_symlink() and not os.path.exists(copy):
            what = "a link that leads nowhere"
        raise FileAccessError(f"{what}, and no notebook", where=copy)
    return notebook_cells(read_notebook(copy))


def start_command(lesson: Lesson, folder: Path) -> str:
    """What to type to have a copy of a lesson in this folder."""
    more = "" if folder == default_folder() else f" --folder {quoted(folder)}"
    return f"{program('llambda')} lesson start {lesson.number}{more}"


def anew(lesson: Lesson, folder: Path) -> str:
    """What to type for a new copy beside the present one."""
    return f"{start_command(lesson, folder)} --force"


def program(name: str) -> str:
    """How to call a program of this Python: by name if a shell finds this one, else by its path."""
    here, found = Path(sys.executable).with_name(name), shutil.which(name)
    if not here.exists() or (found and Path(found).resolve() == here.resolve()):
        return name
    with suppress(ValueError, OSError):  # elsewhere than in the current folder, or there is none
        here = here.relative_to(Path.cwd())
    return quoted(here)


def quoted(path: Path) -> str:
    return shown(shlex.quote(str(path)))


def shown(path: object) -> str:
    return one_line(str(path))
