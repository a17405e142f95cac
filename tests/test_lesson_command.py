"""`llambda lesson`: the list, the reader's copies, and running them.

The lessons here are small ones made for the purpose; what the real ones hold is tested elsewhere.
"""

import asyncio
import contextlib
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import command
import pytest
from command import Result, assert_one_clear_line
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from llambda import paths
from llambda.course import copies, execution, lessons

AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


run = partial(command.run, "lesson")


# ---------------------------------------------------------------- small notebooks

Node = dict[str, Any]


def markdown(source: str) -> Node:
    return {"cell_type": "markdown", "id": "m", "metadata": {}, "source": source}


def code(source: str, *tags: str, printed: str = "") -> Node:
    """A code cell that has run."""
    output = {"output_type": "stream", "name": "stdout", "text": printed.splitlines(True)}
    return {
        "cell_type": "code",
        "id": "c",
        "metadata": {"tags": list(tags)},
        "source": source.splitlines(True),
        "execution_count": 7,
        "outputs": [output] if printed else [],
    }


def exercise(number: str, verdict: str = "not attempted yet", source: str = "") -> list[Node]:
    """The cells of one exercise; its checker prints the verdict, and printed it before."""
    line = f"{number} {verdict}"
    return [
        markdown(f"### Exercise {number} · The name\n\n*predict · 5 minutes*"),
        code("answer = ...", "exercise"),
        code(source or f"print({line!r})", "checker", printed=f"{line}\n"),
        markdown("<details><summary>Hint</summary>\n\nThink.\n\n</details>"),
    ]


def notebook(*cells: Node) -> bytes:
    metadata = {"kernelspec": {"name": "no such kernel", "display_name": "x", "language": "x"}}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    return json.dumps(whole).encode()


def front(number: str, title: str, minutes: int = 45) -> Node:
    return markdown(f"# {number} · {title}\n\n**Why?**\n\n*{minutes} minutes · difficulty 2 of 5*")


FIRST = front("00", "Your machine")
SOLVED = "solved. Well done."


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two lessons, 00 with the exercises 1 to 3 and 04 with none; we stand in an empty folder."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    exercises = [cell for i in "123" for cell in exercise(f"00.{i}")]
    first = notebook(FIRST, code("1 + 1", printed="2\n"), *exercises)
    (folder / "00_your_machine.ipynb").write_bytes(first)
    (folder / "04_forward.ipynb").write_bytes(notebook(front("04", "Forward", 120)))
    for other in ("build.py", "02_draft.1.ipynb", "private_00.ipynb"):
        (folder / other).touch()
    (folder / "py").mkdir()
    monkeypatch.setattr(lessons, "notebooks_dir", lambda: folder)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(copies, "program", lambda name: name)  # it has tests of its own
    return folder


COPY = Path("llambda-lessons/00_your_machine.ipynb")


def copy_with(*cells: Node) -> Path:
    """The reader's copy of lesson 00, with these cells."""
    COPY.parent.mkdir(exist_ok=True)
    COPY.write_bytes(notebook(FIRST, *cells))
    return COPY


def names(folder: Path = COPY.parent) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------- list


LAST = "your copies: llambda-lessons; solved is what was run and saved in Jupyter\n"


def test_the_list_of_lessons():
    assert run("list") == (
        0,
        "00  Your machine   45 min  difficulty 2 of 5  not started\n"
        "04  Forward       120 min  difficulty 2 of 5  not started\n" + LAST,
        "",
    )
    assert names(Path()) == [], "looking creates nothing"


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (
            ("not attempted yet", "not attempted yet", "not attempted yet"),
            "0 of 3 exercises solved",
        ),
        ((SOLVED, "not yet: solved. is not it", SOLVED), "2 of 3 exercises solved: 00.1 00.3"),
        ((SOLVED, SOLVED, SOLVED), "3 of 3 exercises solved: 00.1 00.2 00.3"),
    ],
)
def test_the_list_says_what_is_solved(verdicts: tuple[str, ...], said: str):
    copy_with(*(cell for i, v in enumerate(verdicts, 1) for cell in exercise(f"00.{i}", v)))
    first, second, _ = run("list").out.splitlines()
    assert first.endswith(f"difficulty 2 of 5  {said}")
    assert second.endswith("not started")


def test_only_a_checker_says_that_an_exercise_is_solved():
    claim = f"00.2 {SOLVED}\n"
    shown = code("answer", "checker")
    shown["outputs"] = [
        {"output_type": "stream", "name": "stderr", "text": claim},
        {"output_type": "execute_result", "data": {"text/plain": claim}, "metadata": {}},
    ]
    own = code("print(...)", printed=claim)
    quoted = exercise("00.1", f"not yet: {SOLVED}\n 00.2 {SOLVED}")
    copy_with(*quoted, *exercise("00.2"), own, shown, *exercise("00.3"))
    assert run("list").out.splitlines()[0].endswith("  0 of 3 exercises solved")


def test_a_copy_of_an_older_lesson_is_counted_by_todays_exercises():
    remark = code("### Exercise 00.2 in a comment")
    copy_with(*exercise("00.1", SOLVED), *exercise("00.7", SOLVED), remark)
    line = run("list").out.splitlines()[0]
    assert line.endswith("  1 of 3 exercises solved: 00.1; not in this copy: 00.2 00.3")


def cut(folder: Path) -> bytes:
    return (folder / "00_your_machine.ipynb").read_bytes()[:-9]


def with_cell(**fields: Any) -> bytes:
    return notebook({name: v for name, v in (code("1") | fields).items() if v != "gone"})


NO_NOTEBOOKS = {
    "empty": (b"", "no JSON"),
    "truncated": (cut, "no JSON"),
    "binary": (b"\x00\xff\xfe", "no JSON"),
    "deep": (b"[" * 100_000, "no JSON"),
    "long number": (b"9" * 5000, "no JSON"),
    "list": (b"[1]", "not a notebook"),
    "null": (b"null", "not a notebook"),
    "object": (b"{}", "not a notebook"),
    "version 3": (b'{"nbformat": 3, "worksheets": []}', "another format"),
    "no cells": (b'{"nbformat": 4}', "not a notebook"),
    "cells of another kind": (b'{"nbformat": 4, "cells": [1, "x"]}', "not a notebook"),
    "no source": (with_cell(source="gone"), "not a notebook"),
    "source of another kind": (with_cell(source=[1]), "not a notebook"),
    "no kind": (with_cell(cell_type=None), "not a notebook"),
    "tags of another kind": (with_cell(metadata={"tags": 5}), "not a notebook"),
    "outputs of another kind": (with_cell(outputs=[5]), "not a notebook"),
    "output without text": (
        with_cell(outputs=[{"output_type": "stream", "name": "stdout"}]),
        "not a notebook",
    ),
}


@pytest.fixture(params=NO_NOTEBOOKS)
def damaged(request: pytest.FixtureRequest, shelf: Path) -> tuple[Path, bytes, str]:
    """A copy that is no notebook, its bytes, and a word that says so."""
    content, word = NO_NOTEBOOKS[request.param]
    content = content(shelf) if callable(content) else content
    COPY.parent.mkdir()
    COPY.write_bytes(content)
    return COPY, content, word


def test_a_damaged_copy(damaged: tuple[Path, bytes, str]):
    copy, content, word = damaged
    status, out, err = run("list")
    assert (status, err) == (0, "")
    assert "the copy cannot be read: " in out.splitlines()[0]
    assert word in out.splitlines()[0]
    assert out.splitlines()[1].endswith("not started")
    assert_one_clear_line(run("check", 0), f"{copy}: ", word, "llambda lesson start 00 --force")
    assert run("start", 0, "--force").status == 0
    assert copy.with_suffix(".1.ipynb").read_bytes() == content


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: COPY.mkdir(), "a folder, and no notebook"),
        (lambda: os.mkfifo(COPY), "a pipe or device, and no notebook"),
        (lambda: COPY.symlink_to("nowhere"), "a link that leads nowhere, and no notebook"),
        (lambda: COPY.symlink_to(COPY.name), "a link that leads nowhere, and no notebook"),
        (lambda: COPY.symlink_to(os.devnull), "a pipe or device, and no notebook"),
    ],
)
def test_what_is_no_file_in_the_place_of_a_copy(make: Callable[[], None], words: str):
    COPY.parent.mkdir()
    make()
    before = COPY.lstat()
    assert f"the copy cannot be read: {words}\n" in run("list").out
    assert_one_clear_line(run("check", 0), f"{COPY}: {words}. For a new copy", "start 00 --force")
    assert_one_clear_line(run("start", 0), str(COPY), "there is a copy already")
    assert names() == [COPY.name]
    assert run("start", 0, "--force").status == 0
    kept = COPY.with_suffix(".1.ipynb").lstat()
    assert (kept.st_ino, kept.st_mode) == (before.st_ino, before.st_mode)
    assert "0 of 3" in run("list").out


def test_a_huge_copy_is_not_read():
    copy_with(code("my work"))
    os.truncate(COPY, 10**10)  # a hole: it takes no room on the disk
    words = "a notebook of more than 50 MB"
    assert f"the copy cannot be read: {words}\n" in run("list").out
    assert_one_clear_line(run("check", 0), f"{COPY}: {words}. Clear the outputs of its cells")
    assert run("start", 0, "--force").status == 0
    kept = COPY.with_suffix(".1.ipynb")
    assert kept.stat().st_size == 10**10
    with kept.open("rb") as file:
        assert b"my work" in file.read(10_000)


def test_the_largest_copy_that_is_read(monkeypatch: pytest.MonkeyPatch):
    copy_with(*exercise("00.1", SOLVED), code("#" * 10_000))  # more than the lesson itself has
    monkeypatch.setattr(lessons, "MOST_BYTES", COPY.stat().st_size)
    assert "1 of 3" in run("list").out
    monkeypatch.setattr(lessons, "MOST_BYTES", COPY.stat().st_size - 1)
    assert "the copy cannot be read" in run("list").out


@pytest.mark.parametrize("argv", [["list"], ["start", 0], ["check", 0]], ids=str)
def test_a_folder_that_is_none(argv: list[object]):
    Path("file").touch()
    for folder in ("file", "file/deeper"):
        words = f"llambda: {folder}: a file where a folder is needed. Name a folder."
        assert_one_clear_line(run(*argv, "--folder", folder), words)
    assert_one_clear_line(run(*argv, "--folder", "x" * 5000), "the name is too long")
    assert names(Path()) == ["file"]


@pytest.mark.parametrize("argv", [["list"], ["start", 0], ["check", 0]], ids=str)
def test_the_current_folder_is_gone(argv: list[object], tmp_path: Path):
    (tmp_path / "here").rmdir()
    assert_one_clear_line(run(*argv), "no such file or folder")


def test_a_damaged_lesson_is_one_line(shelf: Path):
    (shelf / "00_your_machine.ipynb").write_bytes(b"{")
    (shelf / "02_weights.ipynb").write_bytes(notebook(markdown("# 02 · Weights")))
    first, second, third, _ = run("list").out.splitlines()
    for line in (first, second):
        assert line.endswith("Install llambda again.")
    assert third.startswith("04  Forward  ")
    for number in (0, 2):
        for action in ("start", "check"):
            assert_one_clear_line(run(action, number), "Install llambda again.")
    (shelf / "04_forward.ipynb").unlink()
    assert run("list").out == f"{first}\n{second}\n{LAST}"


@pytest.mark.parametrize("argv", [["list"], ["start", 0], ["check", 0]], ids=str)
def test_no_lessons_at_all(argv: list[object], shelf: Path):
    for path in shelf.glob("*.ipynb"):
        path.unlink()
    assert_one_clear_line(run(*argv), str(shelf), "no lessons are here", "Install llambda again.")
    shutil.rmtree(shelf)
    assert_one_clear_line(run(*argv), "no lessons are here")


def test_lessons_are_in_the_package_or_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    package = tmp_path / "llambda"
    package.mkdir()
    monkeypatch.setattr(paths, "PACKAGE", package)
    assert paths.notebooks_dir() == tmp_path / "notebooks"
    (package / "notebooks").mkdir()
    assert paths.notebooks_dir() == package / "notebooks"


# ---------------------------------------------------------------- start


def test_start_makes_a_copy_without_outputs(shelf: Path):
    original = shelf / "00_your_machine.ipynb"
    before = original.read_bytes()
    result = run("start", 0)
    assert result == (
        0,
        f"lesson 00, Your machine, is copied to {COPY}\nopen it with: jupyter lab {COPY}\n",
        "",
    )
    assert names(Path()) == ["llambda-lessons"]
    assert names() == [COPY.name]
    copied, shipped = json.loads(COPY.read_bytes()), json.loads(before)
    for cell in shipped["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    assert copied == shipped
    assert COPY.read_text("utf-8").count("<details><summary>Hint") == 3
    assert original.read_bytes() == before
    assert run("list").out.splitlines()[0].endswith("0 of 3 exercises solved")


def test_half_a_character_is_copied_as_it_is(shelf: Path):
    halves = notebook(FIRST, markdown("\ud83d"), code("'\udcff'", printed="\ud83d"))
    (shelf / "00_your_machine.ipynb").write_bytes(halves)
    for force in ([], ["--force"]):
        assert run("start", 0, *force).status == 0
    cells = json.loads(COPY.read_text("utf-8"))["cells"]
    assert (cells[1]["source"], cells[2]["source"]) == ("\ud83d", ["'\udcff'"])
    assert run("list").out.splitlines()[0].endswith("0 of 0 exercises solved")


@pytest.mark.parametrize("number", ["4", "04", "004"])
def test_a_number_may_have_zeros(number: str):
    assert run("start", number).status == 0
    assert names() == ["04_forward.ipynb"]


@pytest.mark.parametrize("number", ["0", "00", "000"])
def test_zero_is_a_number(number: str):
    assert run("start", number).status == 0
    assert names() == [COPY.name]


WRONG_NUMBERS = ["", "1", "-1", "+4", "4.0", "4 ", "0x4", "forward", "0.1", "\u0664", "9" * 5000]


@pytest.mark.parametrize("number", WRONG_NUMBERS, ids=lambda number: f"{number[:9]!r}")
@pytest.mark.parametrize("action", ["start", "check"])
def test_a_wrong_number_names_the_lessons(action: str, number: str):
    words = f"no lesson {repr(number)[:100]}", "There are: 00, 04."
    assert_one_clear_line(run(action, number), *words)
    assert names(Path()) == []


def test_a_copy_is_never_overwritten():
    run("start", 0)
    COPY.write_bytes(b"my work")
    result = run("start", 0)
    assert_one_clear_line(result, f"{COPY}: there is a copy already", "start 00 --force")
    assert COPY.read_bytes() == b"my work"
    assert names() == [COPY.name]


def test_force_keeps_every_former_copy():
    copy_with(code("first"))
    first = COPY.read_bytes()
    kept = COPY.with_suffix(".1.ipynb")
    status, out, err = run("start", 0, "--force")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"the former copy is kept as {kept}"
    assert kept.read_bytes() == first
    fresh = COPY.read_bytes()
    COPY.write_bytes(b"second")
    COPY.with_suffix(".2.ipynb").symlink_to("nowhere")  # a name that is taken
    assert f"kept as {COPY.with_suffix('.3.ipynb')}\n" in run("start", 0, "--force").out
    assert kept.read_bytes() == first
    assert COPY.with_suffix(".3.ipynb").read_bytes() == b"second"
    assert COPY.read_bytes() == fresh
    assert not Path("llambda-lessons/nowhere").exists()


def test_force_on_a_link_changes_nothing_behind_it(tmp_path: Path):
    """What it leads to stands elsewhere: a copy of somebody else, or the lesson itself."""
    work = tmp_path / "work.ipynb"
    work.write_bytes(b"my work")
    COPY.parent.mkdir()
    COPY.symlink_to(work)
    assert run("start", 0, "--force").status == 0
    assert work.read_bytes() == b"my work"
    assert COPY.with_suffix(".1.ipynb").readlink() == work
    assert not COPY.is_symlink() and "0 of 3" in run("list").out


def test_a_link_to_a_copy_is_a_copy(tmp_path: Path):
    copy_with(*exercise("00.1", SOLVED))
    COPY.rename(tmp_path / "work.ipynb")
    COPY.symlink_to(tmp_path / "work.ipynb")
    assert "1 of 3" in run("list").out


def test_a_copy_that_cannot_be_moved_stays(monkeypatch: pytest.MonkeyPatch):
    copy_with(code("my work"))
    before = COPY.read_bytes()

    def fail(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", fail)
    assert_one_clear_line(run("start", 0, "--force"), f"{COPY}: permission denied")
    assert (names(), COPY.read_bytes()) == ([COPY.name], before)


def test_force_without_a_copy_just_starts():
    assert "kept" not in run("start", 0, "--force").out
    assert names() == [COPY.name]


def test_a_folder_of_ones_own():
    folder = Path("my folder/inner")
    status, out, err = run("start", 0, "--folder", folder)
    assert (status, err) == (0, "")
    assert f"jupyter lab '{folder}/{COPY.name}'\n" in out
    assert names(folder) == [COPY.name]
    assert names(Path()) == ["my folder"]
    again = run("start", 0, "--folder", folder)
    assert_one_clear_line(again, f"lesson start 00 --folder '{folder}' --force")
    assert "0 of 3" in run("list", "--folder", folder).out
    assert "0 of 3" not in run("list").out
    odd = run("start", 0, "--folder", "a\nb\udcff")
    assert (odd.status, odd.out.count("\n")) == (0, 2)


def test_inside_the_default_folder_it_is_meant(monkeypatch: pytest.MonkeyPatch):
    run("start", 0)
    monkeypatch.chdir(COPY.parent)
    assert "0 of 3" in run("list").out
    assert_one_clear_line(run("start", 0), f"llambda: {COPY.name}: there is a copy already")
    assert f"jupyter lab {'04_forward.ipynb'}\n" in run("start", 4).out
    assert names(Path()) == [COPY.name, "04_forward.ipynb"]


def test_a_program_is_named_as_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    own, other = tmp_path / ".venv" / "bin", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir(parents=True)
        for name in ("python", "jupyter"):
            (folder / name).touch(0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(other))
    assert copies.program("jupyter") == ".venv/bin/jupyter"
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{other}")
    assert copies.program("jupyter") == "jupyter"
    monkeypatch.chdir(other)
    monkeypatch.setenv("PATH", str(other))
    assert copies.program("jupyter") == str(own / "jupyter")
    assert copies.program("nowhere") == "nowhere"


def test_without_jupyterlab_start_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    line = "JupyterLab is not installed here. Install what the course needs: make lab in a clone"
    assert run("start", 0).out.splitlines()[-1].startswith(line)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_full_disk_loses_nothing(monkeypatch: pytest.MonkeyPatch, moment: str):
    """It is full when the former copy has another name already."""
    owner: Any = {"fsync": os, "replace": Path}[moment]

    def fail(*_: object) -> None:
        raise FULL

    copy_with(code("my work"))
    before = COPY.read_bytes()
    monkeypatch.setattr(owner, moment, fail)
    assert_one_clear_line(run("start", 0, "--force"), f"{COPY}: no space left on this disk")
    assert (names(), COPY.read_bytes()) == ([COPY.name], before)
    assert_one_clear_line(run("start", 4), "04_forward.ipynb: no space left on this disk")
    assert names() == [COPY.name]


@pytest.mark.skipif(AS_ROOT, reason="root may write into every folder")
def test_a_folder_that_may_not_be_written():
    COPY.parent.mkdir()
    COPY.parent.chmod(0o555)
    try:
        assert_one_clear_line(run("start", 0), "permission denied", "Check who may")
    finally:
        COPY.parent.chmod(0o755)


@pytest.mark.parametrize("method", ["mkdir", "lstat"])
def test_permission_denied(monkeypatch: pytest.MonkeyPatch, method: str):
    """Root may do everything, so the system's answer is planted."""
    real = getattr(Path, method)

    def denied(path: Path, *arguments: Any, **options: Any) -> Any:
        if "llambda-lessons" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, method, denied)
    assert_one_clear_line(run("start", 0), "llambda-lessons", "permission denied")


# ---------------------------------------------------------------- check, without a kernel

Runner = Callable[[list[str], Path], execution.Execution]


def ran(monkeypatch: pytest.MonkeyPatch, stopped: str | None = None, cells: int = 99) -> None:
    """Stand for the kernel: the first `cells` print, or raise, what they say themselves."""

    def execute(sources: list[str], folder: Path, progress: object) -> execution.Execution:
        assert folder == COPY.parent
        done = execution.Execution(sources)
        done.stopped = stopped
        for cell in done.cells[:cells]:
            out = io.StringIO()
            try:
                with contextlib.redirect_stdout(out):
                    exec(cell.source, {})
            except Exception as error:
                cell.outputs.append(
                    execution.v4.new_output(
                        "error", ename=type(error).__name__, evalue=str(error), traceback=[]
                    )
                )
            cell.outputs.insert(0, execution.v4.new_output("stream", text=out.getvalue()))
        return done

    monkeypatch.setattr(execution, "execute", execute)


def test_check_of_what_is_solved(monkeypatch: pytest.MonkeyPatch):
    ran(monkeypatch)
    copy_with(*(cell for i in "123" for cell in exercise(f"00.{i}", SOLVED)))
    lines = [f"00.{i} {SOLVED}\n" for i in "123"]
    assert run("check", 0) == (0, "".join(lines) + "3 of 3 solved\n", "")


def test_check_says_what_is_not_solved(monkeypatch: pytest.MonkeyPatch):
    ran(monkeypatch)
    wrong = exercise("00.2", "not yet: \x1b[1mbits for bytes")
    copy_with(*exercise("00.1"), *wrong, *exercise("00.3", SOLVED))
    status, out, err = run("check", 0)
    assert out.splitlines() == [
        "00.1 not attempted yet",
        "00.2 not yet: \\x1b[1mbits for bytes",
        f"00.3 {SOLVED}",
        "1 of 3 solved",
    ]
    assert_one_clear_line(Result(status, "", err), f"{COPY}: not solved: 00.1, 00.2. Write an")


def test_check_reads_no_stored_output(monkeypatch: pytest.MonkeyPatch):
    ran(monkeypatch, cells=0)
    copy_with(*(cell for i in "123" for cell in exercise(f"00.{i}", SOLVED)))
    lines = [f"00.{i} has no verdict: no checker ran" for i in "123"]
    assert run("check", 0).out.splitlines() == [*lines, "0 of 3 solved"]
    assert run("check", 0).status == 1


def test_check_of_an_older_copy(monkeypatch: pytest.MonkeyPatch):
    ran(monkeypatch)
    copy_with(*exercise("00.1", SOLVED), *exercise("00.7", SOLVED))
    status, out, err = run("check", 0)
    assert out.splitlines() == [
        f"00.1 {SOLVED}",
        "00.2 is not in this copy",
        "00.3 is not in this copy",
        "1 of 3 solved",
    ]
    words = "lacks 00.2, 00.3", "llambda lesson start 00 --force"
    assert_one_clear_line(Result(status, "", err), *words)


def test_check_names_cells_that_raise(monkeypatch: pytest.MonkeyPatch):
    ran(monkeypatch)
    cells = [code("\n# so\n1 / 0"), code("  \n"), markdown("1 / 0"), code("raise ValueError()")]
    many = code("raise ValueError(" + repr("\n\nfirst\nsecond") + ") # " + "x" * 99)
    copy_with(*cells, *(c for i in "123" for c in exercise(f"00.{i}", SOLVED)), many)
    status, out, err = run("check", 0)
    assert (status, err) == (0, "")
    assert out.splitlines()[:-4] == [
        "cell 1 (# so) raised ZeroDivisionError: division by zero",
        "cell 2 (raise ValueError()) raised ValueError",
        f"cell 9 ({many['source'][0][:50]}) raised ValueError: first",
    ]


def test_check_of_a_run_that_was_stopped(monkeypatch: pytest.MonkeyPatch):
    ran(monkeypatch, stopped="cell 3 (x) took more than 300 seconds", cells=2)
    copy_with(*(c for i in "123" for c in exercise(f"00.{i}", SOLVED)))
    status, out, err = run("check", 0)
    assert out.splitlines()[0] == f"00.1 {SOLVED}"
    assert out.splitlines()[-1] == "1 of 3 solved"
    assert_one_clear_line(
        Result(status, "", err), "cell 3 (x) took more than 300 seconds. Mend that cell, save"
    )
    ran(monkeypatch, stopped="the kernel died while cell 9 (x) ran")
    assert run("check", 0).status == 1, "even when all are solved before"


def test_check_of_a_lesson_without_exercises(monkeypatch: pytest.MonkeyPatch):
    ran(monkeypatch)
    run("start", 4)
    assert run("check", 4) == (0, "0 of 0 solved\n", "")


def test_check_without_a_copy():
    words = "llambda-lessons: no copy of lesson 00 is here", "Make one: llambda lesson start 00\n"
    assert_one_clear_line(run("check", 0), *words)
    assert names(Path()) == []


@pytest.mark.parametrize("package", ["nbclient", "ipykernel", "nbformat"])
def test_check_without_the_course_extra(monkeypatch: pytest.MonkeyPatch, package: str):
    run("start", 0)
    monkeypatch.delitem(sys.modules, "llambda.course.execution")
    monkeypatch.setitem(sys.modules, package, None)
    words = f"{package}, which runs notebooks, is not installed", "pip install 'llambda[course]'"
    assert_one_clear_line(run("check", 0), *words)


def test_the_list_and_start_need_nothing_of_jupyter(shelf: Path):
    program = f"""
import sys
for name in ("nbclient", "nbformat", "jupyter_client", "ipykernel", "IPython", "matplotlib"):
    sys.modules[name] = None
from pathlib import Path
from llambda import cli
from llambda.course import lessons
lessons.notebooks_dir = lambda: Path({str(shelf)!r})
sys.exit(cli.main(["lesson", "start", "0"]) or cli.main(["lesson", "list"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 of 3 exercises solved" in done.stdout


def test_cells_are_counted_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def execute(sources: list[str], folder: Path, progress: Any) -> execution.Execution:
        if progress is not None:
            progress(1, 2)
        return execution.Execution(sources)

    monkeypatch.setattr(execution, "execute", execute)
    for stream, wanted in ((Terminal(), "\rcell 1 of 2 \r\x1b[K"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        copies.run_quietly(["1"], Path())
        assert stream.getvalue() == wanted


# ---------------------------------------------------------------- one cell and its end


class Ending:
    """Stands for a client whose only cell ends in an error."""

    def __init__(self, error: BaseException, written: int):
        self.error, self.after = error, written

    async def async_execute_cell(self, *_: object) -> None:
        self.written = self.after
        raise self.error


@pytest.mark.parametrize(
    ("error", "written", "said"),
    [
        (CellTimeoutError("x"), 0, "cell 1 (x = 1) took more than 300 seconds"),
        (DeadKernelError("x"), 0, "the kernel died while cell 1 (x = 1) ran"),
        (DeadKernelError("x"), 10**9, "cell 1 (x = 1) writes without end"),
    ],
)
def test_what_ends_a_run(error: BaseException, written: int, said: str):
    (cell,) = execution.Execution(["x = 1"]).cells
    client: Any = Ending(error, written)
    assert asyncio.run(execution.run_cell(client, cell, 0)) == said


def test_no_place_for_the_kernels_files(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise FULL

    monkeypatch.setattr("tempfile.mkdtemp", fail)
    copy_with(code("1"))
    assert_one_clear_line(run("check", 0), "no space left on this disk")


# ---------------------------------------------------------------- with a kernel

NOISE = """
import os, sys, warnings
from pathlib import Path
from IPython.display import display
display({"image/png": 5}, raw=True)  # nothing that a notebook could hold
warnings.warn("a warning")
print("00.3 solved. On stderr it does not count.", file=sys.stderr)
os.system("echo a child speaks; echo loudly >&2")
Path("pid").write_text(f"{os.getpid()} {sys.executable} {os.environ['LLAMBDA_HOME']}")
"""
CHECK = """
from llambda.course.exercises.base import exercise
@exercise("00.{n}", "x", kind="predict", minutes=1, difficulty=1)
def judge(answer): return f"It is {{answer}}."
judge({answer})
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_check_runs_the_copy_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    broken = tmp_path / "jupyter/kernels/python3/kernel.json"  # a python3 that is not this one
    broken.parent.mkdir(parents=True)
    broken.write_text('{"argv": ["no-such-python"], "display_name": "x", "language": "x"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setattr(execution, "CELL_OUTPUT", 100_000)
    copy_with(
        code(NOISE, "checker"),
        code("print('x' * 60_000)"),
        code("print('x' * 60_000)"),
        *exercise("00.1", source=CHECK.format(n=1, answer="...")),
        code("undefined"),
        code("x = '\ud800'"),
        code("input()"),
        *exercise("00.2", source=CHECK.format(n=2, answer="42")),
        code("from IPython.display import clear_output\nwhile True: print('on', flush=True)"),
        *exercise("00.3", SOLVED),
    )
    before = COPY.read_bytes(), COPY.stat().st_mtime_ns
    status, out, err = run("check", 0)
    assert out.splitlines()[0] == (
        "cell 6 (undefined) raised NameError: name 'undefined' is not defined"
    )
    assert out.splitlines()[1].startswith(r"cell 7 (x = '\ud800') raised UnicodeEncodeError: ")
    assert out.splitlines()[2].startswith("cell 8 (input()) raised StdinNotImplementedError: ")
    assert out.splitlines()[3:] == [
        "00.1 not attempted yet",
        "00.2 solved. It is 42.",
        "00.3 has no verdict: no checker ran",
        "1 of 3 solved",
    ]
    words = "cell 11 (from IPython.display import clear_output) writes without end"
    assert_one_clear_line(Result(status, "", err), words)
    assert capfd.readouterr() == ("", "")
    assert (COPY.read_bytes(), COPY.stat().st_mtime_ns) == before
    assert names() == [COPY.name, "pid"], "a cell's folder is the copy's"
    pid, python, scratch = Path("llambda-lessons/pid").read_text().split()
    assert not is_running(int(pid))
    assert python == sys.executable
    assert not Path(scratch).exists()


PROGRAM = """
import sys
from pathlib import Path
from llambda import cli
from llambda.course import lessons
lessons.notebooks_dir = lambda: Path(sys.argv[1])
sys.exit(cli.main(["lesson", "check", "0"]))
"""


def test_an_interrupt_leaves_no_kernel(shelf: Path):
    work = "import subprocess; child = subprocess.Popen(['sleep', '60'])\n"
    note = "from pathlib import Path; Path('note').write_text(f'{os.getpid()} {child.pid}')\n"
    copy_with(code(f"import os, time\n{work}{note}os.rename('note', 'pids')\ntime.sleep(60)"))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(shelf)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    pids, deadline = Path("llambda-lessons/pids"), time.monotonic() + 60
    try:
        while not pids.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, b"", b"llambda: interrupted\n")
    kernel, child = map(int, pids.read_text().split())
    assert not is_running(kernel)
    while is_running(child) and time.monotonic() < deadline:  # until its new parent has noticed
        time.sleep(0.05)
    assert not is_running(child)


# ---------------------------------------------------------------- usage


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["dance"],
        ["list", "0"],
        ["list", "--force"],
        ["start"],
        ["start", "0", "4"],
        ["start", "0", "--folder"],
        ["check"],
        ["check", "0", "--force"],
    ],
    ids=" ".join,
)
def test_wrong_usage(argv: list[str]):
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert err.startswith("usage: llambda")
    assert re.search(r"\nllambda[a-z ]*: error: [^\n]+\n$", err)


@pytest.mark.parametrize("argv", [[], ["list"], ["start"], ["check"]], ids=" ".join)
def test_help(argv: list[str]):
    status, out, err = run(*argv, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: llambda {' '.join(['lesson', *argv])}")
    assert "show the traceback behind an error" in out


def test_debug_shows_the_traceback():
    for argv in (["start", "7", "--debug"], ["--debug", "start", "7"]):
        assert "\nTraceback" in "\n" + run(*argv).err
