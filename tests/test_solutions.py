"""Every folded solution solves its exercise, and every wrong answer is told what is wrong with it.

The wrong answers that learners give are in tests/wrong_answers/, one module a lesson:
WRONG = {"00.1": [(name, answer, phrase), ...]}. The phrase must be in the explanation of that
answer, and of no other wrong answer to the same exercise.
"""

import ast
import importlib
import io
import linecache
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from typing import Any

import lessons_made
import pytest
from lesson_contract import Lesson, exercise_cells, lesson_names, read_lesson, solution, tags, tree
from lessons_made import MADE_UP, made

from llambda.course.exercises.base import Exercise, Wrong

WrongAnswer = tuple[str, Any, str]  # a name, the answer, a phrase of its explanation

lesson = cache(read_lesson)


def wrong_answers(name: str) -> dict[str, list[WrongAnswer]]:
    return importlib.import_module(f"wrong_answers.{name[3:]}").WRONG


# --- the checks -------------------------------------------------------------------------------


def imports(lesson: Lesson) -> str:
    """What the notebook's cells import, outside functions."""
    nodes = (node for _, cell in lesson.code for node in tree(cell).body)
    return "\n".join(
        ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)
    )


def last_line(*parts: str) -> str:
    """The last line that pieces of code print when they run one after the other."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(io.StringIO()) as printed:
        for number, part in enumerate(parts):
            file = f"<part {number}>"  # known to inspect.getsource, as a notebook's cells are
            linecache.cache[file] = (len(part), None, part.splitlines(keepends=True), file)
            exec(compile(part, file, "exec"), namespace)
    return printed.getvalue().rstrip().rpartition("\n")[2]


def solution_complaints(lesson: Lesson) -> list[str]:
    """Every solution solves its exercise, and an untouched stub is not attempted yet."""
    complaints = []
    for number, cells in exercise_cells(lesson).items():
        (stub,) = (cell.source for cell in cells if "exercise" in tags(cell))
        (checker,) = (cell.source for cell in cells if "checker" in tags(cell))
        said = last_line(imports(lesson), stub, solution(cells), checker)
        if not said.startswith(f"{number} solved."):
            complaints.append(f"the solution of {number}: {said}")
        said = last_line(imports(lesson), stub, checker)
        if said != f"{number} not attempted yet":
            complaints.append(f"the stub of {number}: {said}")
    return complaints


def verdict_on(exercise: Exercise, answer: object) -> str:
    """What a learner reads. (Learners all use the stub's name; here every function has its own.)"""
    verdict = exercise.verdict(answer)
    name = getattr(answer, "__name__", "")
    return verdict.replace(f"{name}(", "answer(") if name else verdict


def wrong_complaints(exercise: Exercise, answers: Sequence[WrongAnswer]) -> list[str]:
    """Every wrong answer is recognized, and has an explanation of its own."""
    start = f"{exercise.number} not yet: "
    verdicts = [verdict_on(exercise, answer) for _, answer, _ in answers]
    complaints = [] if answers else [f"{exercise.number} has no wrong answers"]
    for verdict, (name, _, phrase) in zip(verdicts, answers, strict=True):
        name = f"{exercise.number}, {name}"
        if not verdict.startswith(start) or phrase not in verdict.removeprefix(start):
            complaints.append(f"{name}: {verdict!r} does not explain {phrase!r}")
        elif sum(phrase in other for other in verdicts) > 1:
            complaints.append(f"{name}: {phrase!r} is also said of another wrong answer")
        if verdicts.count(verdict) > 1:
            complaints.append(f"{name}: another wrong answer has the same explanation")
    return complaints


# --- as things are ----------------------------------------------------------------------------


def test_there_are_exercises():
    assert all(lesson(name).exercises for name in lesson_names())


@pytest.mark.parametrize("name", lesson_names())
def test_solutions_solve(name: str):
    found = solution_complaints(lesson(name))
    assert not found, "\n".join(found)


@pytest.mark.filterwarnings("ignore")  # a wrong answer may well divide by zero
@pytest.mark.parametrize("name", lesson_names())
def test_wrong_answers_are_explained(name: str):
    wrong = wrong_answers(name)
    assert list(wrong) == [exercise.number for exercise in lesson(name).exercises]
    for exercise in lesson(name).exercises:
        found = wrong_complaints(exercise, wrong[exercise.number])
        assert not found, "\n".join(found)


# --- planted mistakes -------------------------------------------------------------------------

TEXT = MADE_UP.replace("from llambda.course.exercises import your_machine", "import lessons_made")
STUB = "00.1 not attempted yet"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("answer = 2", "answer = 1 + 1", []),
        ("answer = 2", "answer = 3", ["the solution of 00.1: 00.1 not yet: too many"]),
        ("answer = 2", "answr = 2", [f"the solution of 00.1: {STUB}"]),
        ("answer = ...", "answer = 1", ["the stub of 00.1: 00.1 not yet: too few"]),
        ("check.ceiling(answer)", "check.ceiling(...)", [f"the solution of 00.1: {STUB}"]),
        ("answer = 2\n", "answer = 2\n# print('00.1 solved.')\n", []),
        (
            "check.ceiling(answer)",
            "answer",
            ["the solution of 00.1: ", "the stub of 00.1: "],
        ),
    ],
)
def test_a_solution_that_does_not_solve_is_noticed(old: str, new: str, found: list[str]):
    assert old in TEXT
    assert solution_complaints(made(TEXT.replace(old, new))) == found


def test_a_solution_may_need_the_imports_of_other_cells_and_nothing_else():
    needs_import = TEXT.replace("answer = 2", "answer = outcome and 2")
    assert solution_complaints(made(needs_import)) == []
    needs_function = made(TEXT.replace("answer = 2", "answer = double(1)"))
    with pytest.raises(NameError, match="double"):
        solution_complaints(needs_function)


FEW, MANY = ("one", 1, "too few"), ("three", 3, "too many")


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([], "has no wrong answers"),
        ([FEW, ("two", 2, "Yes")], "two: '00.1 solved. Yes.' does not explain 'Yes'"),
        ([FEW, ("none", ..., "attempted")], "does not explain 'attempted'"),
        ([FEW, ("three", 3, "too few")], "'00.1 not yet: too many' does not explain"),
        ([FEW, ("three", 3, "not yet")], "does not explain 'not yet'"),
        ([FEW, MANY, ("one again", 1.0, "few")], "one again: another wrong answer has the same"),
        ([("one", 1, "too"), MANY], "one: 'too' is also said of another"),
    ],
)
def test_a_wrong_answer_without_its_explanation_is_noticed(
    answers: list[WrongAnswer], complaint: str
):
    assert wrong_complaints(lessons_made.ceiling, [FEW, MANY]) == []
    found = wrong_complaints(lessons_made.ceiling, answers)
    assert any(complaint in line for line in found), found


def test_explanations_that_differ_only_in_the_name_of_the_function_are_one():
    def one():
        return 1

    def another():
        return 1

    def judge(function):
        raise Wrong(f"{function.__name__}() gives {function()}")

    calls = Exercise("00.2", "Calls", "code", 5, 1, judge)
    assert calls.verdict(one) != calls.verdict(another)
    found = wrong_complaints(calls, [("one", one, "gives"), ("another", another, "answer()")])
    assert [line for line in found if "another wrong answer has the same explanation" in line]
