"""Recording a lesson (notebooks/build.py), and running the lessons as tests (conftest.py)."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from lesson_contract import NOTEBOOKS, TWIN_HEADER
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import build
from llambda.course.private_home import SHARED, private_home
from llambda.errors import LlambdaError
from llambda.paths import cache_dir
from stored_outputs import clean, machine_path, plain_png

ROOT = NOTEBOOKS.parent
HERE = TWIN_HEADER + "# Text\n"


def code(*sources: str) -> str:
    return "".join(f"\n# %%\n{source}\n" for source in sources)


def twin(folder: Path, text: str, name: str = "00_made_up") -> Path:
    """A twin in a folder of lessons."""
    path = folder / "py" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def cells(*sources: str) -> list[nbformat.NotebookNode]:
    """Code cells with ids that tell where they were made."""
    made = [nbformat.v4.new_code_cell(source) for source in sources]
    for number, cell in enumerate(made):
        cell.id = f"old-{number}"
    return made


# --- recording --------------------------------------------------------------------------------

LESSON = HERE + code(
    "print('a', flush=True)\nprint('b')",
    "import matplotlib.pyplot as plt\n\n_ = plt.plot([1, 2])",
    "from llambda.paths import cache_dir\n\nsorted(path.name for path in cache_dir().iterdir())",
)


def test_a_recording_is_complete_and_always_the_same(tmp_path: Path):
    path = twin(tmp_path, LESSON)
    seconds, count = build.record(path)
    assert 0 < seconds < build.MAX_SECONDS and count == 4
    first = (tmp_path / "00_made_up.ipynb").read_bytes()
    build.record(path)
    assert (tmp_path / "00_made_up.ipynb").read_bytes() == first

    text, printed, picture, home = nbformat.reads(first.decode(), 4).cells
    assert text.source == "Text"
    assert [(out.name, out.text) for out in printed.outputs] == [("stdout", "a\nb\n")]
    png = base64.b64decode(picture.outputs[0].data["image/png"])
    assert png.startswith(b"\x89PNG") and b"Matplotlib" not in png
    assert "ledger" not in home.outputs[0].data["text/plain"]
    assert [cell.metadata for cell in (text, printed, picture, home)] == [{}] * 4


def test_an_edited_lesson_keeps_the_ids_of_its_cells(tmp_path: Path):
    build.record(twin(tmp_path, HERE + code("1", "2", "3")))
    before = [cell.id for cell in nbformat.read(tmp_path / "00_made_up.ipynb", 4).cells]
    build.record(twin(tmp_path, HERE + code("0", "1", "2 + 2", "3")))
    after = [cell.id for cell in nbformat.read(tmp_path / "00_made_up.ipynb", 4).cells]
    assert [after[0], *after[2:]] == before
    assert after[1] not in before


DISPLAY = "from IPython.display import display\ndisplay({{'image/png': {}}}, raw=True)"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("1 / 0", ", cell 2 (1 / 0): ZeroDivisionError: division by zero. Nothing was written."),
        (
            "raise ValueError('a\\nb')",
            ", cell 2 (raise ValueError('a\\nb')): b. Nothing was written.",
        ),
        ("import os\nos._exit(1)", ", cell 2 (import os): Kernel died. Nothing was written."),
        ("import sys\nprint('Hm', file=sys.stderr)", ": cell 2 (import sys) writes to stderr: Hm."),
        ("import sys\nsys.executable", ": cell 2 (import sys) shows a path of this machine: /"),
        (
            DISPLAY.format("'iVBORw0KGgo='"),
            f", cell 2 ({DISPLAY.splitlines()[0]}): what is shown as a PNG picture is damaged.",
        ),
        (
            DISPLAY.format("5"),
            f", cell 2 ({DISPLAY.splitlines()[0]}): an output is not valid: 5 is not valid under",
        ),
    ],
)
def test_what_goes_wrong_is_said_and_nothing_is_written(tmp_path: Path, source: str, says: str):
    (tmp_path / "00_made_up.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook()))
    before = (tmp_path / "00_made_up.ipynb").read_bytes()
    with pytest.raises(build.RecordingError) as failure:
        build.record(twin(tmp_path, HERE + code(source)))
    assert str(failure.value).startswith(f"00_made_up{says}")
    assert "Nothing was written." in str(failure.value)
    assert (tmp_path / "00_made_up.ipynb").read_bytes() == before


def test_a_cell_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build, "CELL_TIMEOUT", 1)
    with pytest.raises(build.RecordingError, match=r"cell 2 \(while True: .*timed out"):
        build.record(twin(tmp_path, HERE + code("while True: pass")))


def test_a_long_lesson_is_refused(tmp_path: Path):
    with pytest.raises(build.RecordingError, match=r"took .* s, and 0.1 are allowed"):
        build.record(twin(tmp_path, HERE), max_seconds=0.1)
    assert not (tmp_path / "00_made_up.ipynb").exists()


def old(*cells: object) -> bytes:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


TEXT = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "Text"}


@pytest.mark.parametrize(
    "content",
    [
        b"<<<<<<< ours\n",
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b"null",
        b"3",
        b"{}",
        b'{"nbformat": 4}',
        b'{"nbformat": 3, "worksheets": []}',
        b'{"nbformat": 9, "cells": []}',
        old(1),
        old({}),
        old(TEXT | {"source": 5}),
        old(TEXT | {"id": 7}),
    ],
    ids=lambda content: content[-20:].decode("latin-1"),
)
def test_a_damaged_notebook_is_not_replaced(tmp_path: Path, content: bytes):
    target = tmp_path / "00_made_up.ipynb"
    target.write_bytes(content)
    with pytest.raises(build.RecordingError) as failure:
        build.record(twin(tmp_path, HERE))
    says = "00_made_up.ipynb: not a readable notebook. Take it back out of git,"
    assert str(failure.value).startswith(says)
    assert target.read_bytes() == content


@pytest.mark.filterwarnings("ignore")  # nbformat warns of the same
def test_a_cell_that_had_an_impossible_id(tmp_path: Path):
    target = tmp_path / "00_made_up.ipynb"
    target.write_bytes(old(TEXT | {"id": "a cell"}))
    with pytest.raises(build.RecordingError, match="no valid notebook: 'a cell' does not match"):
        build.record(twin(tmp_path, HERE))
    assert target.read_bytes() == old(TEXT | {"id": "a cell"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"# %%\n'caf\xe9'\n", "00_made_up.py: byte 9 is no UTF-8. Save it as UTF-8."),
        (b'# %% tags="core"\n1\n', "00_made_up.py: jupytext cannot read it: 'core' is not of type"),
        (b"# %% tags=[1]\n1\n", "00_made_up.py: jupytext cannot read it: "),
    ],
)
def test_a_twin_that_is_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: bytes,
    says: str,
):
    monkeypatch.setattr(build.KNOWN["smollm2"].__class__, "is_here", True)
    twin(tmp_path, "").write_bytes(text)
    assert build.main([], tmp_path) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith(says)


def test_folders_where_files_are_needed(tmp_path: Path):
    path = twin(tmp_path, HERE)
    (tmp_path / "00_made_up.ipynb").mkdir()
    with pytest.raises(LlambdaError, match=r"00_made_up\.ipynb: a folder where a file is needed"):
        build.record(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(LlambdaError, match=r"00_made_up\.py: a folder where a file is needed"):
        build.record(path)


def test_without_the_real_model_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path))
    twin(tmp_path, HERE)
    assert build.main([], tmp_path) == 1
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert "smollm2 is not here" in err and "llambda fetch smollm2" in err
    assert not list(tmp_path.glob("*.ipynb"))


def test_lessons_are_chosen_by_number_or_name(tmp_path: Path):
    paths = [twin(tmp_path, HERE, name) for name in ("00_a", "01_b", "02_c")]
    twin(tmp_path, HERE, "helper")
    assert build.chosen([], tmp_path) == paths
    assert build.chosen(["02", "00_a"], tmp_path) == [paths[0], paths[2]]
    with pytest.raises(build.RecordingError, match=r"no lesson is called '1'\. There are: 00_a, 0"):
        build.chosen(["00", "1"], tmp_path)


def test_a_failing_lesson_does_not_keep_others_from_being_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(build.KNOWN["smollm2"].__class__, "is_here", True)
    twin(tmp_path, HERE + code("x"), "00_a")
    twin(tmp_path, HERE, "01_b")
    assert build.main([], tmp_path) == 1
    out, err = capsys.readouterr()
    assert re.fullmatch(r"01_b  \d+\.\d s  1 cells\n", out)
    assert err.startswith("00_a, cell 2 (x): NameError: name 'x' is not defined.")
    assert [path.name for path in tmp_path.glob("*.ipynb")] == ["01_b.ipynb"]


# --- ids and outputs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "ids"),
    [
        (["a = 1", "b = 2", "c = 3"], ["old-0", "old-1", "old-2"]),
        (["b = 2", "c = 3"], ["old-1", "old-2"]),
        (["c = 3", "a = 1", "b = 2"], ["old-2", "old-0", "old-1"]),
        (["a = 1", "b = 20 + x", "c = 3"], ["old-0", "old-1", "old-2"]),
        (["a = 1", "something else", "c = 3"], ["old-0", "old-1", "old-2"]),
        (["a = 1", "new", "b = 20", "c = 3"], ["old-0", None, "old-1", "old-2"]),
        (["a = 1", "c = 3", "print('of another kind')"], ["old-0", "old-2", None]),
    ],
)
def test_ids_are_carried_over(sources: list[str], ids: list[str | None]):
    old, new = cells("a = 1", "b = 2", "c = 3"), cells(*sources)
    found = build.cell_ids(old, new)
    assert [name if name.startswith("old") else None for name in found] == ids
    assert len(set(found)) == len(found)
    assert build.cell_ids(old, new) == found
    for name in found:
        assert re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", name)


def test_a_cell_of_another_kind_is_another_cell():
    old, new = cells("words"), [nbformat.v4.new_markdown_cell("words")]
    assert build.cell_ids(old, new) != ["old-0"]


def test_equal_new_cells_have_different_ids():
    assert len(set(build.cell_ids([], cells("x", "x", "x")))) == 3


def test_old_cells_without_ids_or_with_the_same_are_no_trouble():
    old = cells("a", "b", "c")
    old[1].id = "old-0"
    del old[2]["id"]
    found = build.cell_ids(old, cells("a", "b", "c"))
    assert found[0] == "old-0" and len(set(found)) == 3 and all(found)


def png(picture: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def test_a_picture_keeps_what_is_seen_and_nothing_else():
    picture = Image.effect_mandelbrot((80, 60), (-2, -1.5, 1, 1.5), 90).convert("RGB")
    words = PngInfo()
    words.add_text("Software", "Version 3")
    words.add(b"tIME", b"\x07\xea\x01\x02\x03\x04\x05")
    plain = plain_png(png(picture, pnginfo=words))
    assert plain == plain_png(png(picture))
    assert not any(word in plain for word in (b"tEXt", b"Software", b"tIME"))
    seen = np.asarray(Image.open(io.BytesIO(plain)).convert("RGB")).astype(int)
    assert np.array_equal(seen, np.asarray(picture))  # it has less than 256 colours


@pytest.mark.parametrize(
    "data", ["", "nonsense!", "é", ["iVBORw0KGgo="], 5, "R0lGODlhAQABAAAAACw=", "iVBORw0KGgo="]
)
def test_what_is_no_picture_is_not_stored(data: object):
    cell = cells("x")[0]
    cell.outputs = [nbformat.from_dict({"data": {"image/png": data}})]
    with pytest.raises(ValueError, match="what is shown as a PNG picture is"):
        clean(cell)


def test_a_truncated_picture_is_not_stored():
    whole = png(Image.effect_mandelbrot((80, 60), (-2, -1.5, 1, 1.5), 90))
    for length in range(8, len(whole) - 20, 37):
        with pytest.raises(ValueError, match="PNG picture is damaged"):
            plain_png(whole[:length])


def test_a_picture_of_many_colours_keeps_nearly_what_is_seen():
    picture = Image.linear_gradient("L").convert("RGB").resize((300, 300), Image.Resampling.BICUBIC)
    picture.putpixel((5, 5), (255, 0, 0))
    plain = plain_png(png(picture))
    seen = np.asarray(Image.open(io.BytesIO(plain)).convert("RGB")).astype(int)
    assert np.abs(seen - np.asarray(picture))[10:].max() <= 2


def test_times_of_execution_are_dropped():
    cell = cells("x")[0]
    cell.metadata = nbformat.from_dict({"tags": ["core"], "execution": {"iopub.execute": "now"}})
    clean(cell)
    assert cell.metadata == {"tags": ["core"]}


@pytest.mark.parametrize(
    "text", ["in /tmp/x", "('/usr/lib/python3')", str(ROOT), str(ROOT / "data"), sys.prefix]
)
def test_a_path_of_this_machine_is_found(text: str):
    assert machine_path(text)


@pytest.mark.parametrize(
    "text", ["llambda/cache.py, line 12", "/proc/cpuinfo", "https://example.org/home/x", "a/tmp/b"]
)
def test_other_words_with_slashes_are_fine(text: str):
    assert machine_path(text) is None


# --- a home for each kernel -------------------------------------------------------------------


def test_a_private_home_shares_what_is_large_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path))
    (tmp_path / "ledger.json").write_text("{}")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/a.gguf").write_text("weights")
    with private_home() as variables:
        monkeypatch.setenv("LLAMBDA_HOME", variables["LLAMBDA_HOME"])
        home = cache_dir()
        assert sorted(path.name for path in home.iterdir()) == sorted(SHARED)
        assert (home / "models/a.gguf").read_text() == "weights"
        (home / "numba/new").write_text("machine code")
        (home / "ledger.json").write_text("[]")
    assert not home.exists()
    assert (tmp_path / "models/a.gguf").read_text() == "weights"
    assert (tmp_path / "numba/new").read_text() == "machine code"
    assert (tmp_path / "ledger.json").read_text() == "{}"


# --- the lessons as tests ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What matters of a checkout: two lessons, one of which does not give what is stored."""
    folder = tmp_path_factory.mktemp("checkout")
    notebooks = folder / "notebooks"
    for name in ("pyproject.toml", "conftest.py", "notebooks/stored_outputs.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    home = "import os\nfrom pathlib import Path\n\nhome = Path(os.environ['LLAMBDA_HOME'])\n"
    alone = "sorted(path.name for path in home.iterdir() if path.name != 'ipython')"
    ledger = "_ = (home / 'ledger.json').write_text('{}')"
    for name in ("00_a", "01_b"):
        build.record(twin(notebooks, HERE + code(home + alone, ledger), name))
    spoiled = (notebooks / "01_b.ipynb").read_text().replace("['models', 'numba']", "['models']")
    (notebooks / "01_b.ipynb").write_text(spoiled)
    for copy in ("build", "notebooks/.ipynb_checkpoints", "site", "notebooks/copies"):
        (folder / copy).mkdir()
        shutil.copy(notebooks / "01_b.ipynb", folder / copy)
    (folder / "tests").mkdir()
    (folder / "tests/test_table.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('row', ['b row', 'a row'])\n"
        "def test_table(record_property, row):\n"
        "    record_property('table', ('rows', row))\n"
        "def test_another(record_property):\n"
        "    record_property('table', ('others', 'c row'))\n"
    )
    return folder


@pytest.mark.parametrize("options", [[], ["-n", "2", "."]])
def test_pytest_runs_the_lessons_strictly_and_apart(
    checkout: Path, tmp_path: Path, options: list[str]
):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    env |= {"LLAMBDA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    assert "1 failed, 6 passed" in done.stdout, done.stdout
    assert "FAILED notebooks/01_b.ipynb::Cell 0" in done.stdout
    assert re.findall(r"^ +\d+\.\d s  (.*)$", done.stdout, re.MULTILINE) == [
        "notebooks/00_a.ipynb",
        "notebooks/01_b.ipynb",
    ]
    shown = [line.strip("= ") for line in done.stdout.splitlines()]
    at, other = shown.index("rows"), shown.index("others")
    assert shown[at : at + 3] == ["rows", "a row", "b row"]
    assert shown[other : other + 2] == ["others", "c row"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(SHARED)
