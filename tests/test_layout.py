"""The shape of the package: who may import whom, how long a module is, what no file may hold.

Every check is a function from text to a list of complaints, so that a planted mistake can show
that it would be noticed.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llambda"
MAX_LINES = 300

# Ground floor first: a module imports only from what stands above it. An entry that is a folder
# stands for all modules inside; those of engines/ have an order of their own.
ORDER = [
    "errors",
    "paths",
    "eventlog",
    "fetch",
    "machine",
    "probe",
    "tensor",
    "quants",
    "encode",
    "tensorfile",
    "gguf_split",
    "gguf",
    "gguf_write",
    "quantize",
    "safetensors",
    "config",
    "config_hf",
    "naming",
    "weights",
    "entries",
    "bpe",
    "tokenizer",
    "vocabulary",
    "chat",
    "modelfile",
    "sampling",
    "cache",
    "profiling",
    "simd",
    "kernels",
    "barrier",
    "threads",
    "handoff",
    "workers",
    "turnout",
    "streaming",
    "engines",
    "oracle",
    "race",
    "rival",
    "generate",
    "batching",
    "model",
    "conversation",
    "__init__",
    "describe",
    "check",
    "ladder",
    "ladder_report",
    "tour",
    "course",
    "doctor",
    "repl",
    "streams",
    "cli_parser",
    "cli",
    "__main__",
]
ENGINES = [
    "base",
    "blas",
    "naive",
    "cached",
    "scalar",
    "vectorized",
    "quantized",
    "threaded",
    "step",
    "plan",
    "buffers",
    "parts",
    "phases",
    "fused_trace",
    "fused_clock",
    "fused",
    "__init__",
]
MAY_IMPORT_TORCH = {"oracle", "course.pipeline_worker"}  # the second talks through its gloo

FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.}])/(?:home|root|work|Users)/\w"),
    "a package registry's host": re.compile(
        r"\b(?:pypi|pythonhosted|npmjs|anaconda|crates|deb\.debian|download\.pytorch)"
        r"\.(?:org|com|io)\b"
    ),
}

Sources = dict[str, str]  # the name inside the package -> the text: gguf, engines.naive, __init__


def package_sources() -> Sources:
    paths = {p.relative_to(PACKAGE).with_suffix(""): p for p in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(name.parts): path.read_text("utf-8") for name, path in paths.items()}


def dotted(name: str) -> str:
    """How a module is named in an import: engines.__init__ is llambda.engines."""
    return f"llambda.{name}".removesuffix(".__init__")


def imports(name: str, sources: Sources) -> Iterator[str]:
    """What a module imports, wherever in it, in absolute names: llambda.tensor, numpy, torch.nn."""
    known = {dotted(module) for module in sources}
    folder = f"llambda.{name}".split(".")[:-1]
    for node in ast.walk(ast.parse(sources[name])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            full = (f"{base}.{alias.name}" for alias in node.names)
            yield from (each if each in known else base for each in full)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def floor(name: str) -> tuple[int, int] | None:
    """The place of a module in ORDER, then in ENGINES; None when it has none."""
    top, _, inside = name.partition(".")
    if top not in ORDER or (top == "engines" and inside not in ENGINES):
        return None
    return ORDER.index(top), ENGINES.index(inside) if top == "engines" else 0


def order_complaints(sources: Sources) -> list[str]:
    names = {dotted(name): name for name in sources}
    complaints = [
        f"{name} has no place in ORDER or ENGINES" for name in sources if floor(name) is None
    ]
    for name in sources:
        for target in sorted({names[full] for full in imports(name, sources) if full in names}):
            here, there = floor(name), floor(target)
            if here and there and there > here:
                complaints.append(f"{name} imports {target}, which stands below it")
    return complaints


def torch_complaints(sources: Sources) -> list[str]:
    return [
        f"{name} imports torch"
        for name in sources
        if any(full.split(".")[0] == "torch" for full in imports(name, sources))
        and name not in MAY_IMPORT_TORCH
    ]


def length_complaints(sources: Sources) -> list[str]:
    lengths = {name: len(source.splitlines()) for name, source in sources.items()}
    return [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > MAX_LINES]


def hygiene_complaints(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: {what}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def text_files() -> Iterator[tuple[str, str]]:
    """Every text file that is, or could be, committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the git checkout, to know which files belong to the project")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listing, cwd=ROOT, text=True).split("\0"):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            yield name, text


def assert_none(complaints: list[str]) -> None:
    assert not complaints, "\n".join(complaints)


def test_modules_import_only_from_above():
    assert_none(order_complaints(package_sources()))


def test_only_the_oracle_imports_torch():
    assert_none(torch_complaints(package_sources()))


def test_modules_are_short():
    assert_none(length_complaints(package_sources()))


def test_files_name_no_machine_and_no_registry():
    files = dict(text_files())
    assert "pyproject.toml" in files
    assert_none([c for name, text in files.items() for c in hygiene_complaints(name, text)])


@pytest.mark.parametrize(
    ("name", "line", "target"),
    [
        ("errors", "from .paths import cache_dir", "paths"),
        ("errors", "from . import paths", "paths"),
        ("errors", "from llambda import paths", "paths"),
        ("errors", "import llambda.paths", "paths"),
        ("errors", "def f():\n    from .paths import cache_dir", "paths"),
        ("gguf", "import llambda", "__init__"),
        ("gguf", "from . import load", "__init__"),
        ("gguf", "from .engines import create", "engines.__init__"),
        ("kernels.gemv", "from ..engines.fused import Plan", "engines.fused"),
        ("engines.cached", "from .fused import Plan", "engines.fused"),
        ("engines.cached", "from . import fused", "engines.fused"),
        ("engines.naive", "from ..model import load", "model"),
        ("engines.base", "import_module('llambda.engines.naive')", "engines.naive"),
    ],
)
def test_an_import_from_below_is_noticed(name: str, line: str, target: str):
    complaint = f"{name} imports {target}, which stands below it"
    assert order_complaints({name: line, target: ""}) == [complaint]


@pytest.mark.parametrize(
    ("name", "line", "target"),
    [
        ("paths", "from .errors import LlambdaError", "errors"),
        ("engines.fused", "from .cached import Cached", "engines.cached"),
        ("engines.__init__", "from . import naive", "engines.naive"),
        ("kernels.gemv", "from .norm import rms_norm", "kernels.norm"),
        ("kernels.norm", "from .gemv import gemv", "kernels.gemv"),
        ("__init__", "from .model import load", "model"),
        ("cli", "from . import load", "__init__"),
    ],
)
def test_an_import_from_above_is_fine(name: str, line: str, target: str):
    assert order_complaints({name: line, target: ""}) == []


@pytest.mark.parametrize("name", ["helpers", "engines.helpers"])
def test_a_module_without_a_place_is_noticed(name: str):
    assert order_complaints({name: ""}) == [f"{name} has no place in ORDER or ENGINES"]


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "import torch.nn.functional as F",
        "from torch import nn",
        "def f():\n    import numpy, torch",
        "importlib.import_module('torch')",
    ],
)
def test_torch_outside_the_oracle_is_noticed(line: str):
    assert torch_complaints({"check": line, "oracle": line}) == ["check imports torch"]


def test_a_long_module_is_noticed():
    sources = {"long": "\n" * (MAX_LINES + 1), "short": "\n" * MAX_LINES}
    assert length_complaints(sources) == [f"long: {MAX_LINES + 1} lines"]


# Put together here, so that this file holds none of them itself.
@pytest.mark.parametrize("path", ["/" + "home/ada/model.gguf", '"/' + 'root/x"', "cd /" + "work/x"])
def test_a_machine_path_is_noticed(path: str):
    assert hygiene_complaints("f", f"\n{path}\n") == ["f:2: a path of one machine"]


@pytest.mark.parametrize("host", ["pypi", "files.pythonhosted", "download.pytorch"])
def test_a_registry_host_is_noticed(host: str):
    text = f"pip install -i https://{host}" + ".org/simple"
    assert hygiene_complaints("f", text) == ["f:1: a package registry's host"]


@pytest.mark.parametrize("text", ["tests/work/x", "https://example.org/home/x", "pytorch.org"])
def test_ordinary_text_is_fine(text: str):
    assert hygiene_complaints("f", text) == []
