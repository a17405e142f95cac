"""Every lesson keeps to the contract, and every clause of it notices a planted mistake.

The checks are in tests/lesson_contract.py. A made-up lesson that keeps to all of them is spoiled
in one place at a time.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import nbformat
import pytest
from IPython.display import Code
from lesson_contract import (
    CHECKS,
    NOTEBOOKS,
    Lesson,
    copied_complaints,
    lesson_names,
    read_lesson,
    table,
)
from lessons_made import MADE_UP, made, shown, stream
from nbformat import NotebookNode

lesson = cache(read_lesson)


def complaints(lesson: Lesson) -> dict[str, list[str]]:
    """The name of every check that complains, with what it says."""
    found = {check.__name__.removesuffix("_complaints"): check(lesson) for check in CHECKS}
    return {name: lines for name, lines in found.items() if lines}


def readme_rows(names: list[str]) -> list[str]:
    """The README's table of lessons, as the lessons' own front cells would have it."""
    rows = []
    for name in names:
        front = lesson(name).notebook.cells[0].source
        title, question, minutes = (
            re.search(pattern, front, re.MULTILINE)[1]
            for pattern in (r"^# \d\d · (.+)$", r"^\*\*(.+)\*\*$", r"^\*(\d+) minutes")
        )
        rows.append(f"| {name[:2]} | [{title}](notebooks/{name}.ipynb) | {question} | {minutes} |")
    return rows


# --- as things are ----------------------------------------------------------------------------


def test_there_are_lessons():
    assert lesson_names()


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", lesson_names())
def test_a_lesson_keeps_to_the_contract(name: str, check: Callable[[Lesson], list[str]]):
    found = check(lesson(name))
    assert not found, "\n".join(found)


def test_nothing_is_pasted_from_one_lesson_to_another():
    found = copied_complaints([lesson(name) for name in lesson_names()])
    assert not found, "\n".join(found)


def test_the_readme_lists_the_lessons():
    text = (NOTEBOOKS.parent / "README.md").read_text("utf-8")
    listed = re.findall(r"^\| \d\d \|.*$", text, re.MULTILINE)
    assert listed == readme_rows(lesson_names())


def test_the_lessons_in_figures(record_property: Callable[[str, object], None]):
    """The figures are checked above; conftest.py prints the table below the results."""
    text = table([lesson(name) for name in lesson_names()])
    record_property("table", ("the lessons in figures", text))
    assert len(text.splitlines()) == 1 + len(lesson_names())


# --- planted mistakes -------------------------------------------------------------------------


def test_the_made_up_lesson_is_flawless():
    assert complaints(made()) == {}


BROKEN = "## Break it: a fault\n#\n# ## Exercises"
TITLE = "# ### Exercise 00.1 · The ceiling\n"
CHECKER = '# %% tags=["checker"]\n'
CLOSED = "# </details>\n#\n"
FOLD = "# <details><summary>In Lisp</summary>\n#\n# Text\n#\n# </details>\n"
HINT = "# <details><summary>Hint</summary>\n#\n# Think.\n#\n# </details>\n"


@pytest.mark.parametrize(
    ("check", "old", "new", "complaint"),
    [
        ("twin", "display_name: Python 3", "display_name: My Python", "header of all twins"),
        ("twin", '# %% tags=["core"]', '# %% Twice tags=["core"]', "odd cell mark"),
        ("python", "double(2)", "double(2", "not Python"),
        ("python", "double(2)", "%timeit double(2)", "not Python"),
        ("python", "double(2)", "double(2);", "semicolon"),
        ("import", "import engine_picture", "import engine_photo", "picture.engine_photo"),
        ("import", "import llambda.course", "import llambda.courses", "no llambda.courses"),
        ("import", "from llambda import machine", "from llambda import tractor", "llambda.tractor"),
        ("import", "import llambda.course", "import llambada", "no llambada"),
        ("tag", '["core"]', '["Core"]', "unknown tags Core"),
        ("tag", '["nbval-ignore-output"]\nimport', '["core"]\nimport', "nbval-ignore-output"),
        ("tag", '["nbval-ignore-output"]\nfrom', '["core"]\nfrom', "nbval-ignore-output"),
        ("tag", '["nbval-ignore-output", "real"]', '["real"]', "nbval-ignore-output"),
        ("tag", "get it with: llambda fetch smollm2", "alas", "does not say how to get"),
        ("tag", 'KNOWN["smollm2"].is_here', "True", "does not say how to get"),
        ("tag", "# %% tags=[\"core\"]\n", "# %% tags=[\"core\"]\n# NBVAL_SKIP\n", "by a comment"),
        ("tag", '["nbval-ignore-output", "real"]', '["nbval-ignore-output"]', "not tagged real"),
        ("tag", "assert model", "model", "asserts nothing"),
        ("front", "# # 00 · Your machine", "# # 01 · Your machine", "front"),
        ("front", "this computer do?", "this computer do.", "front"),
        ("front", "**You will build**", "**You build**", "front"),
        ("front", "**You will be able to**", "**You will**", "front"),
        ("front", "**You need**", "**Needed:**", "front"),
        ("front", "*45 minutes · difficulty 1 of 5*", "*45 minutes*", "front"),
        ("front", 'engine_picture("00")', 'engine_picture("01")', "second cell"),
        ("section", "## Check: with", "## Test: with", "## Test: not the name"),
        ("section", "## Profile", "### Profile", "no section Profile"),
        ("section", "# ## no heading\n# ```", "# ```\n# ## a heading", "## a heading: not the"),
        ("section", BROKEN, "## Exercises\n#\n# ## Break it: a fault", "order"),
        ("section", "## Recap", "## Recap\n#\n# ## Build: more", "order"),
        ("section", "One. Two. Three.", "One.", "recap"),
        ("section", "**Further reading.**", "**Books.**", "recap"),
        ("habit", "predict(", "print(", "nothing is predicted"),
        ("habit", "outcome(", "print(", "without an outcome: 00.ceiling"),
        ("habit", "00.ceiling", "/.ceiling", "of an earlier lesson, or without"),
        ("habit", '"00.ceiling"', '"01.ceiling"', "of a later lesson: 01.ceiling"),
        ("habit", "llambda.course.show(", "print(", "nothing of the package"),
        ("size", "double(2)", "double(2)\n" * 15, "21 lines"),
        ("size", "double(2)\n", "double(2)\n\n# %%\n" + ("1\n" * 7 + "\n# %%\n") * 9, "median"),
        ("exercise", "00.1 · The ceiling", "00.1 · A ceiling", "registered"),
        ("exercise", "### Exercise 00.1", "### Exercise 00.2", "registered"),
        ("exercise", "# ## Recap", TITLE + "#\n# ## Recap", "registered"),
        ("exercise", "*predict · 5", "*predict · 6", "does not stand *predict · 5 minutes"),
        ("exercise", "*predict ·", "*code ·", "does not stand *predict · 5 minutes"),
        ("exercise", '# %% tags=["exercise"]', "# %%", "0 cells tagged exercise"),
        ("exercise", '# %% tags=["core"]', '# %% tags=["checker"]', "2 cells tagged checker"),
        ("exercise", "your_machine as check", "your_machine", "nowhere: from llambda.course"),
        ("exercise", "answer = ...", "answer = 2", "the stub is no"),
        ("exercise", "guess = ...", "guess = answer = ...", "answer has a value before"),
        ("exercise", "check.ceiling(answer)", "check.ceiling(2)", "checker's cell"),
        ("exercise", "check.ceiling(answer)", "check.ceiling(guess)", "checker's cell"),
        ("exercise", CHECKER, "# %%\ndouble(3)\n\n" + CHECKER, "checker's cell"),
        ("exercise", HINT, "", "no folded hint"),
        ("exercise", "# Think.\n#\n", "", "no folded hint"),
        ("exercise", "<summary>Solution", "<summary>Answer", "no folded hint"),
        ("exercise", "# ```python\n", "# ```\n", "no folded hint"),
        ("exercise", "# It is two.\n#\n", "", "no folded hint"),
        ("exercise", "# Think.\n", f"# Think.\n#\n{CLOSED}# Hm.\n", "no folded hint"),
        ("exercise", "# Think.\n", f"{CLOSED}# Hm.\n", "no folded hint"),
        ("exercise", "# Think.\n", "# <DETAILS>Think.\n", "no folded hint"),
        ("exercise", "# ```python\n", f"{CLOSED}# ```python\n", "no folded hint"),
        ("exercise", "# ```python\n", f"# Hm.\n#\n{CLOSED}# ```python\n", "no folded hint"),
        ("exercise", "# answer = 2\n", f"# pass\n# ```\n#\n{CLOSED}# answer = 2\n", "no folded"),
        ("exercise", "# It is two.\n", f"{CLOSED}# It is two.\n", "no folded hint"),
        ("fold", "# It is two.\n", f"{CLOSED}# It is two.\n", "folds are <details> </details>"),
        ("fold", "# How many?\n", FOLD.replace("# </details>\n", ""), "folds are <details>"),
        ("fold", "# How many?\n", FOLD.replace("<details>", "<details open>"), "<details open>"),
        ("fold", "# How many?\n", FOLD.replace("</details>", "</Details>"), "</Details>"),
        ("fold", "# How many?\n", FOLD.replace("# Text\n", FOLD), "<details> <details>"),
        ("fold", "# How many?\n", f"# How many?\n#\n{CLOSED}", "folds are </details>"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_text_is_noticed(check: str, old: str, new: str, complaint: str):
    assert old in MADE_UP
    found = complaints(made(MADE_UP.replace(old, new)))
    assert any(complaint in line for line in found.get(check, [])), found


TWO = "answer = 2\n"
TWICE = "def twice(x):\n    first = x\n    return first + x\n"
TWICE_AGAIN = TWICE.replace("twice", "again")
INDENTED = TWICE.replace("def twice(x", "def twice(self, x").replace("\n", "\n    ").rstrip(" ")
METHOD = f'class Two:\n    """Two."""\n\n    {INDENTED}'
SUM = "answer = sum(range(10, 110))\n"


def commented(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("solution", "elsewhere"),
    [
        (TWO, "# %% [markdown]\n# ```python\n# answer  =  2  # really\n# ```\n"),
        (TWO, "# %% [markdown]\n# The last line was `answer = 2`.\n"),
        (TWO, '# %% tags=["core"]\nanswer = 2\n'),
        (SUM, "# %% [markdown]\n# Ten positions and so on: sum(range(10,110)).\n"),
        (SUM, "# %%\nprint(sum(range(10, 110)))\n"),
        (TWICE, "# %%\ndef double(x):\n    first = x  # once\n    return first + x\n"),
        (TWICE, '# %%\ndef double(y, x):\n    """2 x"""\n    first = x\n    return first + x\n'),
        (TWICE, f"# %% [markdown]\n# ```python\n{commented(TWICE_AGAIN)}# ```\n"),
        (TWICE, f"# %% [markdown]\n# ```\n{commented(TWICE)}# ```\n"),
        (METHOD, "# %%\ndef double(x):\n    first = x\n    return first + x\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["# %% [markdown]\n# ## Build", "# %% [markdown]\n# ## Recap"])
def test_a_solution_in_the_open_is_noticed(solution: str, elsewhere: str, place: str):
    assert place in MADE_UP
    folded = MADE_UP.replace("# answer = 2\n", commented(solution))
    assert complaints(made(folded)) == {}
    found = complaints(made(folded.replace(place, f"{elsewhere}\n{place}")))
    assert any(line.endswith("holds the solution of 00.1") for line in found["fold"]), found


@pytest.mark.parametrize("kind", ["text/plain", "text/html"])
def test_a_solution_that_is_shown_is_noticed(kind: str):
    lesson = made(MADE_UP.replace("# answer = 2\n", commented(TWICE)))
    text = TWICE if kind == "text/plain" else Code(TWICE, language="python")._repr_html_()
    give(lesson, "show(", shown(kind, text))
    assert complaints(lesson)["fold"] == [
        "cell 6 (import llambda.course): holds the solution of 00.1"
    ]


@pytest.mark.parametrize(
    ("solution", "elsewhere"),
    [
        (TWICE, "# %%\ndef double(x):\n    first = x\n    return first - x\n"),
        ("def twice(x):\n    return 2 * x\n", "# %%\ndef double(x):\n    return 2 * x\n"),  # short
        ("answer = 2 + 2\n", "# %%\n2 + 2\n"),
        (TWO, f"# %% [markdown]\n{FOLD}"),
        (TWO, "# %% [markdown]\n# Open the hint:\n#\n# ```html\n# <details>\n# ```\n"),
    ],
)
def test_what_is_no_solution_may_be_shown(solution: str, elsewhere: str):
    folded = MADE_UP.replace("# answer = 2\n", commented(solution))
    place = "# %% [markdown]\n# ## Recap"
    assert "fold" not in complaints(made(folded.replace(place, f"{elsewhere}\n{place}")))


@pytest.mark.parametrize(
    ("code", "noticed"),
    [
        ("from llambda.course.figures.tokens import lanes\n\nlanes(1)", True),
        ("from llambda.course.figures import tokens as drawn\n\ndrawn.lanes(1)", True),
        ("from llambda.course.progress import ladder_so_far\n\n_ = ladder_so_far('x')", True),
        ("from llambda.course.plots import figure, finish\n\nfinish(figure())", True),
        ("from llambda.course.figures.weights import parts_of\n\nparts = parts_of(1)", False),
        ("from llambda.course.plots import OURS, figure\n\nfigure(OURS)", False),
    ],
)
def test_a_picture_that_is_lost_is_noticed(code: str, noticed: bool):
    lesson = made(MADE_UP.replace("double(2)", code))
    said = "cell 5 (def double(x):): draws, and no picture is stored"
    assert complaints(lesson).get("shown", []) == [said] * noticed
    give(lesson, "def double", shown("image/png", "iVBO"))
    assert "shown" not in complaints(lesson)


def cell_with(lesson: Lesson, text: str) -> NotebookNode:
    return next(cell for cell in lesson.cells if text in cell.source)


def edit(lesson: Lesson, text: str, **new: object) -> None:
    cell_with(lesson, text).update(new)


def give(lesson: Lesson, text: str, *outputs: NotebookNode) -> None:
    cell_with(lesson, text).outputs.extend(outputs)


NOT_HERE = stream("smollm2 is not here; get it with: llambda fetch smollm2\n")
ERROR = nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])


@pytest.mark.parametrize(
    ("check", "spoil", "complaint"),
    [
        ("twin", lambda it: it.cells.pop(), "cells in the twin"),
        ("twin", lambda it: edit(it, "double(2)", source="double(3)"), "differ in source"),
        ("twin", lambda it: edit(it, "## Recap", cell_type="raw"), "differ in cell_type"),
        ("twin", lambda it: edit(it, "double(2)", metadata={}), "differ in tags"),
        ("form", lambda it: it.notebook.metadata.kernelspec.update(name="mine"), "'mine'"),
        ("form", lambda it: it.notebook.metadata.language_info.update(version="3"), "'3'"),
        ("form", lambda it: edit(it, "double(2)", id=it.cells[0].id), "twice"),
        ("form", lambda it: edit(it, "double(2)", id="a cell"), "not a valid notebook"),
        ("form", lambda it: cell_with(it, "double(2)").pop("id"), "not a valid notebook"),
        ("form", lambda it: edit(it, "double(2)", colour="red"), "not a valid notebook"),
        ("form", lambda it: edit(it, "double(2)", execution_count=None), "top to bottom"),
        ("form", lambda it: edit(it, "double(2)", execution_count=9), "top to bottom"),
        ("form", lambda it: it.cells[1].metadata.update(execution={}), "metadata execution"),
        ("python", lambda it: edit(it, "double(2)", source=" "), "empty"),
        ("stored", lambda it: give(it, "double(2)", stream("Hm", "stderr")), "stderr: Hm"),
        ("stored", lambda it: give(it, "double(2)", ERROR), "ends in an error: ValueError"),
        ("stored", lambda it: give(it, "double(2)", stream(f"at {NOTEBOOKS}")), "shows a path"),
        ("stored", lambda it: give(it, "show(", shown("text/plain", "/tmp/x")), "path of this"),
        ("shown", lambda it: edit(it, "engine_picture(", outputs=[]), "draws, and no picture"),
        ("shown", lambda it: edit(it, "engine_picture(", outputs=[stream("P")]), "no picture"),
        ("shown", lambda it: edit(it, "show(", outputs=[]), "its outputs are lost"),
        ("shown", lambda it: edit(it, "is_here", outputs=[]), "its outputs are lost"),
        ("shown", lambda it: edit(it, "is_here", outputs=[NOT_HERE]), "without the real model"),
        ("shown", lambda it: give(it, "double(2)", NOT_HERE), "without the real model"),
        ("tag", lambda it: give(it, "double(2)", shown("image/png", "iVBO")), "to be tagged"),
        ("tag", lambda it: give(it, "double(2)", shown("text/html", "<b>")), "to be tagged"),
        ("exercise", lambda it: edit(it, "check.ceiling", outputs=[]), "stored verdict"),
        ("exercise", lambda it: give(it, "answer = ...", stream("?")), "shows something"),
    ],
)
def test_a_mistake_in_the_notebook_is_noticed(
    check: str, spoil: Callable[[Lesson], object], complaint: str
):
    lesson = made()
    spoil(lesson)
    found = complaints(lesson)
    assert any(complaint in line for line in found.get(check, [])), found


@pytest.mark.parametrize(
    "text",
    [
        "<f at 0x7f>",
        "0x7f682d9baf80",
        "took 3.2 ms",
        "12 µs",
        "4 seconds",
        "12.5 s",
        "3.2s",
        "12ms",
        "12s",
        "40 microseconds",
        "3 minutes",
        "2min",
        "0:00:12",
        "Wall time: now",
        "259 tok/s",
        "259 tokens/s",
        "4.6 a second",
        "259 tokens per second",
        "24.1 GB/s",
        "24.1 GiB/s",
        "3 it/sec",
        "60 GFLOP/s",
        "60 GFLOPS",
        "3.2 GHz",
        "3.2 times faster",
        "3.2x faster",
        "3.2 × faster",
        "12 % slower",
        "12% slower",
        "twice as fast",
        "many Times Faster",
        "faster by a factor of 3",
        "speedup: 3.2",
        "speed-up of 3",
        "np.float64(0.5)",
        "[np.int32(3)]",
        "DeprecationWarning: old",
    ],
)
def test_output_that_differs_elsewhere_is_noticed(text: str):
    lesson = made()
    give(lesson, "double(2)", stream(f"x {text} y"))
    give(lesson, "show(", stream(f"x {text} y"))  # it is not compared
    assert list(complaints(lesson)) == ["compared"]


@pytest.mark.parametrize(
    "text",
    [
        "0x3c00",
        "0x7f800000",
        "96 MB a token",
        "the 1980s",
        "3 steps",
        "259 tokens",
        "1.5 B",
        "a[3:10]",
        "min 3 max 5",
        "faster: True",
        "it is faster than line 3, is it not",
        "1 / sum",
        "8 threads/socket",
    ],
)
def test_output_that_is_the_same_everywhere_is_fine(text: str):
    lesson = made()
    give(lesson, "double(2)", stream(f"x {text} y"))
    assert complaints(lesson) == {}


def test_what_is_written_in_the_code_is_the_same_everywhere():
    lesson = made(MADE_UP.replace("double(2)", "double(0x7F3AB40401C0)"))
    give(lesson, "def double", stream("0x7f3ab40401c0"))
    assert complaints(lesson) == {}
    give(lesson, "def double", stream("0x7f3ab40401c1"))
    assert list(complaints(lesson)) == ["compared"]


def test_the_largest_cell_that_is_allowed():
    twenty = MADE_UP.replace("double(2)", "\n".join(["double(2)"] * 14))
    assert complaints(made(twenty)) == {}


def test_a_lesson_of_another_number_is_held_to_its_own():
    assert "front" in complaints(replace(made(), name="01_your_machine"))


@pytest.mark.parametrize(
    ("old", "new", "again"),
    [
        ("double", "twice", True),  # another name
        ('    """Twice x."""\n', '    """The same, said otherwise\n\n    than there."""\n', True),
        ("y = x + x", "y = x + x  # a remark", True),
        ("y = x + x", "y = 2 * x", False),
        ("    y = x + x\n    return y", "    ...\n\n\n\n", False),  # a stub
        ('    """Twice x."""\n', "", False),  # three lines: too short to matter
    ],
)  # fmt: skip
def test_a_pasted_function_is_noticed(old: str, new: str, again: bool):
    assert old in MADE_UP
    spoiled = MADE_UP.replace(old, new)
    first, second = made(spoiled), made(spoiled, "01_tensors")
    assert copied_complaints([first]) == []
    found = copied_complaints([made(), second])
    name = "twice" if "twice" in new else "double"
    assert found == [f"01_tensors: {name} is 00_your_machine: double again"] * again


def test_half_a_lesson_is_noticed(tmp_path: Path):
    (tmp_path / "py").mkdir()
    (tmp_path / "py/00_your_machine.py").write_text(MADE_UP)
    (tmp_path / "01_tensors.ipynb").write_text("{}")
    assert lesson_names(tmp_path) == ["00_your_machine", "01_tensors"]
    with pytest.raises(AssertionError, match="not recorded: make notebooks LESSON=00"):
        read_lesson("00_your_machine", tmp_path)
    with pytest.raises(AssertionError, match="has no twin"):
        read_lesson("01_tensors", tmp_path)


def test_a_row_of_the_table():
    assert table([made()]).splitlines()[1].split() == ["00_your_machine", *"17 9 3 8 1 1".split()]
