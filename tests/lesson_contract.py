"""What every lesson keeps to, as checks: each is a function from a lesson to its complaints.

A lesson is a notebook, its text twin and the exercises that the package registers for it.
tests/test_lessons.py holds the lessons to these checks, and the checks to planted mistakes.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from build import METADATA, read_twin
from llambda.course.exercises import Exercise, of
from stored_outputs import cell_name, output_complaints, output_texts

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
MAX_LINES = 20  # of a code cell
MAX_MEDIAN = 6
MAX_COPIED = 3  # lines of a function that two notebooks may both define
TELLING = 10  # characters of an expression that nobody writes twice by chance

FETCH = "llambda fetch smollm2"
TAGS = {"nbval-ignore-output", "real", "core", "exercise", "checker"}
SECTIONS = ["Build", "Check", "Profile", "Break it", "Exercises", "Recap"]
TWIN_HEADER = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
"""
CELL_MARK = re.compile(r'# %%( \[markdown\])?( tags=\["[\w-]+"(, "[\w-]+")*\])?')
FRONT = re.compile(
    r"# (?P<number>\d\d) · \S.*\n\n"
    r"\*\*\S.*\?\*\*\n\n"
    r"(?s:.*)\*\*You will build\*\*(?s:.*)\*\*You will be able to\*\*(?s:.*)\*\*You need\*\*"
    r"(?s:.*)\n\*\d+ minutes · difficulty [1-5] of 5\*(?s:.*)"
)
TEXT = r"(?=\S)(?:(?!</?(?i:details|summary))[\s\S])+?"  # that opens and closes no fold
FOLDED = re.compile(
    rf"<details><summary>Hint</summary>\n\n{TEXT}\n\n</details>\n{{1,2}}"
    rf"<details><summary>Solution</summary>\n\n```python\n(?P<code>{TEXT})\n```\n\n"
    rf"{TEXT}\n\n</details>"
)
DRAWING = re.compile(r"llambda\.course\.(figures|picture|progress|plots\.finish)\b")
PYTHON_BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```")
NOT_THE_SAME_EVERYWHERE = {
    "an address": re.compile(r"\bat 0x[0-9a-f]+|\b0x[0-9a-f]{9,}", re.IGNORECASE),
    "a duration": re.compile(
        r"\d ?(?:ms|[uµμ]s|ns)\b|\d (?:s|sec|(?:milli|micro|nano)?seconds?|minutes?|hours?)\b"
        r"|\d\.\d+(?:s|sec)\b|\b\d{1,3}s\b|\dmin\b|\b\d+:\d\d:\d\d\b|\b(?:Wall|CPU) time"
    ),
    "a speed": re.compile(
        r"\d ?[A-Za-z]+ ?/ ?s(?:ec(?:ond)?)?\b|\d(?: \w+)? (?:a|per) second\b"
        r"|\d ?[kMGT]?(?:FLOPS|Hz|bps)\b"
    ),
    "a comparison of speeds": re.compile(
        r"(?:\btimes|\btwice|\bhalf|\d ?[x×%]?) ?(?:as (?:fast|slow)|faster|slower|quicker)\b"
        r"|\b(?:faster|slower|quicker|speed-?up)[:=]? ?(?:(?:by|of|is) )?(?:a factor of )?\d",
        re.IGNORECASE,
    ),
    "a NumPy scalar's repr": re.compile(r"\bnp\.(?:bool|float|int|str|uint)\w*\("),
    "a warning": re.compile(r"\b\w*Warning\b"),
}


@dataclass(frozen=True)
class Lesson:
    """A lesson as it lies in the checkout."""

    name: str  # 00_your_machine
    notebook: NotebookNode
    twin: NotebookNode
    twin_text: str
    exercises: Sequence[Exercise]

    @property
    def cells(self) -> list[NotebookNode]:
        return self.notebook.cells

    @property
    def code(self) -> Iterator[tuple[str, NotebookNode]]:
        """The code cells, each with the name that a complaint gives it."""
        for index, cell in enumerate(self.cells):
            if cell.cell_type == "code":
                yield cell_name(index, cell), cell


def lesson_names(folder: Path = NOTEBOOKS) -> list[str]:
    """Every lesson that has a twin or a notebook, in order."""
    paths = [*folder.glob("py/*.py"), *folder.glob("*.ipynb")]
    return sorted({path.stem for path in paths})


def read_lesson(name: str, folder: Path = NOTEBOOKS) -> Lesson:
    """A lesson of the checkout. AssertionError if it has only one of twin and notebook."""
    twin, notebook = folder / "py" / f"{name}.py", folder / f"{name}.ipynb"
    assert twin.exists(), f"{name} has no twin in notebooks/py/, and so cannot be edited"
    assert notebook.exists(), f"{name} is not recorded: make notebooks LESSON={name[:2]}"
    node = nbformat.read(notebook, as_version=nbformat.NO_CONVERT)
    text = twin.read_text("utf-8")
    return Lesson(name, node, read_twin(text), text, of(name[:2]))


# --- reading a cell ---------------------------------------------------------------------------


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def tree(cell: NotebookNode) -> ast.Module:
    """A cell's syntax; empty where it is no Python (see `python_complaints`)."""
    return parsed(cell.source)


def parsed(text: str) -> ast.Module:
    """The syntax of a text; empty where it is no Python."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def calls(cell: NotebookNode, name: str) -> list[ast.Call]:
    """The calls in a cell of a function or method of this name."""
    found = (node for node in ast.walk(tree(cell)) if isinstance(node, ast.Call))
    return [call for call in found if ast.unparse(call.func).split(".")[-1] == name]


def first_arguments(lesson: Lesson, function: str) -> list[str]:
    """The first argument, a text, of every call of a function in a lesson."""
    found = (call for _, cell in lesson.code for call in calls(cell, function))
    return [ast.literal_eval(call.args[0]) for call in found]


def headings(lesson: Lesson, mark: str) -> list[tuple[int, str]]:
    """The headings of one level, outside blocks of code, each with its cell's index."""
    return [
        (index, line.removeprefix(mark).strip())
        for index, cell in enumerate(lesson.cells)
        if cell.cell_type == "markdown"
        for line in outside_code(cell.source).splitlines()
        if line.startswith(mark)
    ]


def outside_code(text: str) -> str:
    """A markdown text without its blocks of code."""
    return re.sub(r"(?ms)^```.*?^```", "", text)


def exercise_cells(lesson: Lesson) -> dict[str, list[NotebookNode]]:
    """Exercise number -> its cells, from its heading to the next heading of level 2 or 3."""
    starts = sorted(headings(lesson, "### ") + headings(lesson, "## "))
    ends = [index for index, _ in starts[1:]] + [len(lesson.cells)]
    return {
        heading.split()[1]: lesson.cells[index:end]
        for (index, heading), end in zip(starts, ends, strict=True)
        if re.match(r"Exercise \d\d\.\d", heading)
    }


def solution(cells: list[NotebookNode]) -> str:
    """The code of an exercise's folded solution."""
    (found,) = (match for cell in cells if (match := FOLDED.fullmatch(cell.source)))
    return found["code"]


# --- the checks: the file ---------------------------------------------------------------------


def twin_complaints(lesson: Lesson) -> list[str]:
    """Twin and notebook hold the same cells, and the twin nothing that the notebook drops."""
    complaints = []
    if not lesson.twin_text.startswith(TWIN_HEADER):
        complaints.append("the twin does not begin with the header of all twins and a text cell")
    for line in lesson.twin_text.splitlines():
        if line.startswith("# %%") and not CELL_MARK.fullmatch(line):
            complaints.append(f"the twin has an odd cell mark: {line}")
    twin, notebook = lesson.twin.cells, lesson.cells
    if len(twin) != len(notebook):
        complaints.append(f"{len(twin)} cells in the twin, {len(notebook)} in the notebook")
    for index, (ours, theirs) in enumerate(zip(twin, notebook, strict=False)):
        for what in ("cell_type", "source"):
            if ours[what] != theirs[what]:
                complaints.append(f"{cell_name(index, ours)}: twin and notebook differ in {what}")
        if tags(ours) != tags(theirs):
            complaints.append(f"{cell_name(index, ours)}: twin and notebook differ in tags")
    return complaints


def form_complaints(lesson: Lesson) -> list[str]:
    """A valid notebook of the python3 kernel, run from top to bottom, with nothing volatile."""
    broken = nbformat.validator.iter_validate(lesson.notebook, version=4, version_minor=5)
    complaints = [f"not a valid notebook: {error.message}" for error in broken]
    if lesson.notebook.metadata != METADATA:
        complaints.append(f"metadata {dict(lesson.notebook.metadata)}")
    ids = [cell.get("id") for cell in lesson.cells]
    complaints += [f"the id {name} twice" for name in sorted({n for n in ids if ids.count(n) > 1})]
    counts = [cell.execution_count for _, cell in lesson.code]
    if counts != list(range(1, len(counts) + 1)):
        complaints.append("not run from top to bottom")
    for index, cell in enumerate(lesson.cells):
        if more := set(cell.metadata) - {"tags"}:
            complaints.append(f"{cell_name(index, cell)}: metadata {', '.join(sorted(more))}")
    return complaints


def python_complaints(lesson: Lesson) -> list[str]:
    """Code is plain Python. (nbval shows what a last `;` hides elsewhere.)"""
    complaints = []
    for name, cell in lesson.code:
        if not cell.source.strip():
            complaints.append(f"{name}: empty")
        elif not tree(cell).body:
            complaints.append(f"{name}: not Python")
        if cell.source.rstrip().endswith(";"):
            complaints.append(f"{name}: ends in a semicolon")
    return complaints


def import_complaints(lesson: Lesson) -> list[str]:
    """What a notebook imports exists; of llambda, every name."""
    complaints = []
    for name, cell in lesson.code:
        for node in ast.walk(tree(cell)):
            if isinstance(node, ast.Import):
                wanted = [(alias.name, None) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                wanted = [(node.module or ".", alias.name) for alias in node.names]
            else:
                continue
            complaints += [f"{name}: there is no {'.'.join(filter(None, pair))}"
                           for pair in wanted if not exists(*pair)]  # fmt: skip
    return complaints


def exists(module: str, name: str | None) -> bool:
    top = module.partition(".")[0]
    if top != "llambda":
        return bool(top) and importlib.util.find_spec(top) is not None
    try:
        if name is None or hasattr(importlib.import_module(module), name):
            return importlib.import_module(module) is not None
        return importlib.import_module(f"{module}.{name}") is not None
    except ModuleNotFoundError:
        return False


# --- the checks: the outputs ------------------------------------------------------------------


def stored_complaints(lesson: Lesson) -> list[str]:
    """No warnings, errors or paths of a machine are stored."""
    return [c for i, cell in enumerate(lesson.cells) for c in output_complaints(i, cell)]


def shown_complaints(lesson: Lesson) -> list[str]:
    """What readers are to see is stored, above all where nothing compares it: real, and drawn."""
    names, complaints = drawing_names(lesson), []
    for name, cell in lesson.code:
        kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
        printed = "\n".join(output_texts(cell))
        if "nbval-ignore-output" in tags(cell) and not cell.outputs and gives_something(cell):
            complaints.append(f"{name}: shows nothing; its outputs are lost")
        if draws(cell, names) and "image/png" not in kinds:
            complaints.append(f"{name}: draws, and no picture is stored")
        if FETCH in printed:
            complaints.append(f"{name}: recorded without the real model")
    return complaints


def gives_something(cell: NotebookNode) -> bool:
    """Whether a cell prints, or ends in an expression."""
    body = tree(cell).body
    return bool(calls(cell, "print") or (body and isinstance(body[-1], ast.Expr)))


def drawing_names(lesson: Lesson) -> dict[str, str]:
    """What a lesson imports to draw with, functions or modules: name -> where it comes from."""
    found = {}
    for _, cell in lesson.code:
        for node in ast.walk(tree(cell)):
            for alias in node.names if isinstance(node, ast.ImportFrom) else []:
                if match := DRAWING.match(f"{node.module}.{alias.name}"):
                    found[alias.asname or alias.name] = match[1]
    return found


def draws(cell: NotebookNode, names: dict[str, str]) -> bool:
    """Whether a cell calls what draws. Of figures, `x = parts(...)` only computes."""
    nodes = list(ast.walk(tree(cell)))
    statements = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        origin = names.get(ast.unparse(call.func).partition(".")[0])
        if origin is not None and (origin != "figures" or call in statements):
            return True
    return False


def compared_complaints(lesson: Lesson) -> list[str]:
    """What nbval compares is the same on every machine and in every run.

    What stands word for word in the lesson's code, or beside its checkers, is a constant.
    """
    modules = {inspect.getmodule(exercise.judge) for exercise in lesson.exercises}
    constants = [cell.source for _, cell in lesson.code] + [inspect.getsource(m) for m in modules]
    written = "\n".join(constants).lower()
    return [
        f"{name}: {what} in compared output: {found.group()}"
        for name, cell in lesson.code
        if "nbval-ignore-output" not in tags(cell)
        for text in output_texts(cell)
        for what, pattern in NOT_THE_SAME_EVERYWHERE.items()
        for found in pattern.finditer(text)
        if found.group().lower() not in written
    ]


def tag_complaints(lesson: Lesson) -> list[str]:
    """Only known tags; and those that a cell's contents ask for."""
    complaints = []
    for index, cell in enumerate(lesson.cells):
        if unknown := set(tags(cell)) - TAGS:
            complaints.append(f"{cell_name(index, cell)}: unknown tags {', '.join(unknown)}")
    for name, cell in lesson.code:
        kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
        shows = calls(cell, "show") or any(k.startswith("image/") or "html" in k for k in kinds)
        needs_smollm2 = any("'smollm2'" in ast.unparse(call) for call in calls(cell, "load"))
        if needs_smollm2 and "real" not in tags(cell):
            complaints.append(f"{name}: loads smollm2 and is not tagged real")
        if (shows or "real" in tags(cell)) and "nbval-ignore-output" not in tags(cell):
            complaints.append(f"{name}: to be tagged nbval-ignore-output")
        asserts = any(isinstance(node, ast.Assert) for node in ast.walk(tree(cell)))
        if "real" in tags(cell) and not asserts:
            complaints.append(f"{name}: tagged real, and asserts nothing")
        if "real" in tags(cell) and not says_how_to_fetch(cell):
            complaints.append(f"{name}: tagged real, and does not say how to get the model")
        if re.search(r"NBVAL_|PYTEST_VALIDATE", cell.source):
            complaints.append(f"{name}: tells nbval what to do by a comment; that is for tags")
    return complaints


def says_how_to_fetch(cell: NotebookNode) -> bool:
    """Whether a branch that is taken without the real model prints how to get it."""
    branches = [node for node in ast.walk(tree(cell)) if isinstance(node, ast.If)]
    return any(
        "is_here" in ast.unparse(branch.test)
        and any(FETCH in ast.unparse(line) for line in branch.orelse)
        for branch in branches
    )


# --- the checks: the lesson -------------------------------------------------------------------


def front_complaints(lesson: Lesson) -> list[str]:
    """First what the lesson is about, then the engine with this lesson's part lit."""
    complaints = []
    front = FRONT.fullmatch(lesson.cells[0].source)
    if front is None or front["number"] != lesson.name[:2]:
        complaints.append("the front lacks a part, or has it in another place")
    picture = (
        f'from llambda.course.picture import engine_picture\n\nengine_picture("{lesson.name[:2]}")'
    )
    second = lesson.cells[1]
    if second.source != picture or second.cell_type != "code":
        complaints.append("the second cell does not draw the engine")
    return complaints


def section_complaints(lesson: Lesson) -> list[str]:
    """The sections of every lesson, in their order; the last says what to remember."""
    complaints = []
    found = [heading.partition(":")[0] for _, heading in headings(lesson, "## ")]
    complaints += [
        f"## {name}: not the name of a section" for name in found if name not in SECTIONS
    ]
    complaints += [f"no section {name}" for name in SECTIONS if name not in found]
    first = [name for name in dict.fromkeys(found) if name in SECTIONS]
    if first != [name for name in SECTIONS if name in first] or found[-1:] != ["Recap"]:
        complaints.append(f"sections in the order {', '.join(first)}")
    recap = headings(lesson, "## ")[-1][0] if found else 0
    text = "\n".join(cell.source for cell in lesson.cells[recap:])
    if len(re.findall(r"[.?!](?=\s|$)", text)) < 3 or "further reading" not in text.lower():
        complaints.append("the recap has not three sentences and a further reading")
    return complaints


def habit_complaints(lesson: Lesson) -> list[str]:
    """The reader guesses before a surprise, and sees the package's form of what was built."""
    complaints = []
    guesses, outcomes = (first_arguments(lesson, name) for name in ("predict", "outcome"))
    if not guesses:
        complaints.append("nothing is predicted")
    here = lesson.name[:2]
    for name in guesses:  # a later lesson may bring the outcome
        if name[:2] < here or (name[:2] == here and name not in outcomes):
            complaints.append(f"predicted and of an earlier lesson, or without an outcome: {name}")
    complaints += [f"the outcome of a later lesson: {name}" for name in outcomes if name[:2] > here]
    if not any(calls(cell, "show") for _, cell in lesson.code):
        complaints.append("nothing of the package is shown")
    return complaints


def size_complaints(lesson: Lesson) -> list[str]:
    """Small cells, one idea each."""
    lines = {name: len(cell.source.splitlines()) for name, cell in lesson.code}
    complaints = [f"{name}: {n} lines" for name, n in lines.items() if n > MAX_LINES]
    if (median := statistics.median(lines.values())) > MAX_MEDIAN:
        complaints.append(f"the median code cell has {median:g} lines")
    return complaints


def exercise_complaints(lesson: Lesson) -> list[str]:
    """The exercises that the package registers, in order, each with all its parts."""
    complaints = []
    wanted = [f"Exercise {each.number} · {each.title}" for each in lesson.exercises]
    found = [text for _, text in headings(lesson, "### ") if text.startswith("Exercise")]
    if found != wanted:
        complaints.append(f"exercises are {found}, registered are {wanted}")
    for tag in ("exercise", "checker"):
        if (count := sum(tag in tags(cell) for _, cell in lesson.code)) != len(wanted):
            complaints.append(f"{count} cells tagged {tag} for {len(wanted)} exercises")
    topic = f"from llambda.course.exercises import {lesson.name[3:]} as check"
    if wanted and not any(topic in cell.source.splitlines() for _, cell in lesson.code):
        complaints.append(f"nowhere: {topic}")
    complaints += answers_given(lesson)
    for exercise in lesson.exercises:
        cells = exercise_cells(lesson).get(exercise.number, [])
        complaints += [f"{exercise.number}: {what}" for what in part_complaints(exercise, cells)]
    return complaints


def fold_complaints(lesson: Lesson) -> list[str]:
    """What is folded is closed, and closed where it ends; no solution is anywhere in the open."""
    complaints = []
    for index, cell in enumerate(lesson.cells):
        if cell.cell_type == "markdown":
            marks = re.findall(r"(?i)</?details\b[^>]*>", outside_code(cell.source))
            if marks != ["<details>", "</details>"] * (len(marks) // 2):
                complaints.append(f"{cell_name(index, cell)}: folds are {' '.join(marks)}")
    for number, cells in exercise_cells(lesson).items():
        for folded in cells:
            if match := FOLDED.fullmatch(folded.source):
                others = [(i, c) for i, c in enumerate(lesson.cells) if c is not folded]
                complaints += [
                    f"{cell_name(index, cell)}: holds the solution of {number}"
                    for index, cell in others
                    if gives_away(cell, match["code"])
                ]
    return complaints


def gives_away(cell: NotebookNode, solution: str) -> bool:
    """Whether a cell, or what it shows, holds a solution, its value, or one of its functions."""
    shown = "".join(map(squeezed, [cell.source, *map(plain, output_texts(cell))]))
    if any(squeezed(part) in shown for part in telling_parts(solution)):
        return True
    code = [cell.source] if cell.cell_type == "code" else PYTHON_BLOCK.findall(cell.source)
    bodies = {what_it_does(each) for each in function_nodes(solution)}
    return any(what_it_does(each) in bodies for text in code for each in function_nodes(text))


def plain(text: str) -> str:
    """What is read of an output that may be HTML, as shown source is."""
    return unescape(re.sub(r"<style>.*?</style>|</?\w[^<>]*>", "", text, flags=re.DOTALL))


def squeezed(text: str) -> str:
    """A text without comments and spaces."""
    return re.sub(r"#.*|\s", "", text)


def telling_parts(solution: str) -> Iterator[str]:
    """The whole of a solution; and of one line, `answer = ...`, what is assigned."""
    yield solution
    match parsed(solution).body:
        case [ast.Assign(value=value)] if len(ast.unparse(value)) >= TELLING:
            yield ast.get_source_segment(solution, value)


def function_nodes(text: str) -> Iterator[ast.FunctionDef]:
    """The functions and methods of a text that do more than one thing; none if it is no Python."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef) and "\n" in what_it_does(node):
            yield node


def what_it_does(function: ast.FunctionDef) -> str:
    """A function's body without its docstring."""
    body = function.body[ast.get_docstring(function) is not None :]
    return ast.unparse(ast.Module(body, []))


def answers_given(lesson: Lesson) -> Iterator[str]:
    """Names of answers that a cell before the stub binds: if the stub fails, that is judged."""
    bound: set[str] = set()
    for name, cell in lesson.code:
        if "exercise" in tags(cell):
            yield from (f"{name}: {each} has a value before" for each in names(cell) & bound)
        bound |= names(cell)


def names(cell: NotebookNode) -> set[str]:
    """What a cell binds at its top level."""
    found: set[str] = set()
    for node in tree(cell).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        else:
            stores = (n for n in ast.walk(node) if isinstance(n, ast.Name))
            found |= {n.id for n in stores if isinstance(n.ctx, ast.Store)}
    return found


def part_complaints(exercise: Exercise, cells: list[NotebookNode]) -> Iterator[str]:
    """One exercise: the text, its stub, directly below the checker and the folded answers."""
    at = next((i for i, cell in enumerate(cells) if "exercise" in tags(cell)), None)
    if at is None or len(cells) < at + 3:
        yield "no stub, checker and folded cell"
        return
    stub, checker, folded = cells[at : at + 3]
    effort = (
        f"*{exercise.kind} · {exercise.minutes} minutes · difficulty {exercise.difficulty} of 5*"
    )
    if list(filter(None, cells[0].source.splitlines()))[1:2] != [effort]:
        yield f"below the heading does not stand {effort}"
    if stub.outputs or not any(
        isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(tree(stub))
    ):
        yield "the stub is no `...`, or shows something"
    call = re.fullmatch(r"check\.\w+\((\w+)\)", checker.source)
    if "checker" not in tags(checker) or call is None or call[1] not in bound(stub):
        yield "the checker's cell is not one line, check.name(what the stub defines)"
    elif "".join(output_texts(checker)) != f"{exercise.number} not attempted yet\n":
        yield "the stored verdict is not that of an untouched stub"
    if folded.cell_type != "markdown" or not FOLDED.fullmatch(folded.source):
        yield "no folded hint and solution in their form"


def bound(cell: NotebookNode) -> set[str]:
    """The names that a cell defines."""
    nodes = tree(cell).body
    targets = {ast.unparse(t) for n in nodes if isinstance(n, ast.Assign) for t in n.targets}
    return targets | {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}


CHECKS = [
    twin_complaints,
    form_complaints,
    python_complaints,
    import_complaints,
    stored_complaints,
    shown_complaints,
    compared_complaints,
    tag_complaints,
    front_complaints,
    section_complaints,
    habit_complaints,
    size_complaints,
    exercise_complaints,
    fold_complaints,
]


# --- all lessons together ---------------------------------------------------------------------


def copied_complaints(lessons: Sequence[Lesson]) -> list[str]:
    """A function that two notebooks define belongs into the package."""
    seen: dict[str, str] = {}  # what it does -> lesson and name
    complaints = []
    for lesson in lessons:
        for function in functions(lesson):
            what = what_it_does(function)
            place = f"{lesson.name}: {function.name}"
            before = seen.setdefault(what, place)
            if not before.startswith(lesson.name) and what not in ("", "..."):
                complaints.append(f"{place} is {before} again")
    return complaints


def functions(lesson: Lesson) -> Iterator[ast.FunctionDef]:
    """The functions and methods of more than MAX_COPIED lines in a lesson's cells."""
    for _, cell in lesson.code:
        for node in ast.walk(tree(cell)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= MAX_COPIED:
                yield node


def table(lessons: Sequence[Lesson]) -> str:
    """A row a lesson: how many cells it has, how large they are, and what is in them."""
    rows = ["lesson               cells  code  median  largest  exercises  real"]
    for lesson in lessons:
        code = [cell for _, cell in lesson.code]
        lines = [len(cell.source.splitlines()) for cell in code]
        real = sum("real" in tags(cell) for cell in code)
        rows.append(
            f"{lesson.name:20} {len(lesson.cells):5}  {len(code):4}  {statistics.median(lines):6g}"
            f"  {max(lines):7}  {len(lesson.exercises):9}  {real:4}"
        )
    return "\n".join(rows)
