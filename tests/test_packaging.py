"""What the project promises about being installed and checked.

pyproject.toml, constraints.txt, environment.yml, Makefile, README.md and .ci/run say the same
things in six languages; here they are held against each other and against what is installed.
Every check is a function that returns complaints, so that a planted mistake can show that it
would be noticed.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]

CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
CUDA = re.compile(r"nvidia-|cuda-|triton")  # what only torch's CUDA builds depend on
NOT_IN_CORE = re.compile(r"torch|jupyter|ipykernel|ipython|notebook|matplotlib|transformers")

Pins = dict[str, str]  # canonical name -> exact version


# --- the files, as data ---------------------------------------------------------------------


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def requirements(*extras: str) -> list[Requirement]:
    """The direct requirements of the core and of these extras; `llambda[course]` is spelled out."""
    found = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    for extra in extras:
        for need in map(Requirement, EXTRAS[extra]):
            found += requirements(*need.extras) if need.name == "llambda" else [need]
    return list({str(need): need for need in found}.values())


def constraint_pins(text: str) -> Pins:
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return dict(name_and_version(line, "==") for line in lines if line)


def name_and_version(spec: str, sign: str) -> tuple[str, str]:
    """`numpy==2.4.6`, or conda's `pytorch=2.13.0=cpu*`: the name as PyPI spells it, the version."""
    name, _, version = spec.partition(sign)
    name = CONDA_NAMES.get(name, name) if sign == "=" else name
    return canonicalize_name(name), version.partition("=")[0]


def environment_pins(environment: dict) -> tuple[Pins, Pins]:
    """What conda installs, and what pip then adds; python, pip and options aside."""
    conda = [item for item in environment["dependencies"] if isinstance(item, str)]
    (pip,) = (item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    return (
        dict(name_and_version(s, "=") for s in conda if s.split("=")[0] not in ("python", "pip")),
        dict(name_and_version(s, "==") for s in pip if not s.startswith("-")),
    )


def reachable(
    needs: Iterable[Requirement],
    requires: Callable[[str], list[str] | None] = metadata.requires,
) -> set[str]:
    """Canonical names of all that the installed packages' own metadata ask for, here."""
    seen: set[tuple[str, str]] = set()  # (name, one extra or "")
    todo = [(need.name, extra) for need in needs for extra in ["", *need.extras]]
    while todo:
        name, extra = todo.pop()
        if (key := (canonicalize_name(name), extra)) in seen:
            continue
        seen.add(key)
        for need in map(Requirement, requires(name) or []):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                todo += [(need.name, each) for each in ["", *need.extras]]
    return {name for name, _ in seen}


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name).partition("+")[0]  # 2.13.0+cpu is torch 2.13.0
    except metadata.PackageNotFoundError:
        return None


# --- the checks -----------------------------------------------------------------------------


def constraint_complaints(text: str) -> list[str]:
    """A line that is not `name==version` plain and simple, or says a name twice."""
    complaints, seen = [], set()
    for line in filter(None, (line.split("#")[0].strip() for line in text.splitlines())):
        if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.]+", line):
            complaints.append(f"{line}: not an exact, portable pin")
        name = canonicalize_name(line.partition("==")[0])
        if name in seen:
            complaints.append(f"{name}: twice")
        if CUDA.match(name):
            complaints.append(f"{name}: belongs to CUDA builds of torch only")
        seen.add(name)
    return complaints


def disagreements(pins: Pins, others: Pins) -> list[str]:
    return [
        f"{name}: {version} here, {others.get(name, 'nothing')} in constraints.txt"
        for name, version in pins.items()
        if others.get(name) != version
    ]


def installed_complaints(
    pins: Pins, version_of: Callable[[str], str | None] = installed_version
) -> list[str]:
    return [
        f"{name}: pinned to {version}, {version_of(name) or 'not'} installed"
        for name, version in pins.items()
        if version_of(name) != version
    ]


def range_complaints(needs: Iterable[Requirement], pins: Pins) -> list[str]:
    """Requirements that their own pin does not satisfy, or that have none."""
    complaints = []
    for need in needs:
        pin = pins.get(canonicalize_name(need.name))
        if pin is None or not need.specifier.contains(pin, prereleases=True):
            complaints.append(f"{need} is not met by the pin {pin}")
    return complaints


FROM_PIP = {"gguf"}  # conda-forge lags behind, and pip brings nothing that conda has


def environment_complaints(environment: dict, pins: Pins) -> list[str]:
    complaints = []
    conda, pip = environment_pins(environment)
    if environment["channels"] != ["conda-forge", "nodefaults"]:
        complaints.append("channels must be conda-forge and nodefaults")
    if not any(re.fullmatch(r"pytorch=.*=cpu\*", str(d)) for d in environment["dependencies"]):
        complaints.append("pytorch must be a CPU build")
    if pip_options(environment) != ["-e .[test]"]:
        complaints.append("pip must be asked for -e .[test], with no other option")
    complaints += disagreements(conda | pip, pins)
    direct = {canonicalize_name(need.name) for need in requirements("test")}
    from_conda = {canonicalize_name(need.name) for need in requirements("course")}
    complaints += [f"{name}: missing" for name in sorted(direct - set(conda | pip))]
    complaints += [
        f"{name}: must come from conda" for name in sorted((from_conda & set(pip)) - FROM_PIP)
    ]
    return complaints


def pip_options(environment: dict) -> list[str]:
    (pip,) = (item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    return [line for line in pip if line.startswith("-")]


def targets(makefile: str) -> set[str]:
    (phony,) = re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    return {name for name in phony.split() if re.search(rf"^{name}:", makefile, re.MULTILINE)}


def command_complaints(readme: str, makefile: str, ci: str) -> list[str]:
    """README's commands exist in the Makefile, and CI runs the very same test command, no more."""
    code = re.findall(r"(?ms:```.*?```)|`[^`\n]+`|(?m:^ {4}.*$)", readme)
    named = set(re.findall(r"\bmake ([a-z]+)", "\n".join(code)))
    complaints = [f"README does not name make {name}" for name in {"tour", "test"} - named]
    complaints += [f"README names make {n}, no target" for n in named - targets(makefile)]
    runs = {command.strip() for command in re.findall(r"^phase ([^|#\n]+)", ci, re.MULTILINE)}
    complaints += [f".ci/run does not run {name}" for name in {"make test"} - runs]
    before = {"make .venv/test.done", ".venv/bin/llambda fetch smollm2"}
    complaints += [f".ci/run runs more: {name}" for name in sorted(runs - before - {"make test"})]
    return complaints


def tool_complaints(makefile: str, contributing: str) -> list[str]:
    """What `make test` runs is what CONTRIBUTING.md says, in this order, and portable forms too."""
    recipe = re.findall(r"(?m)^test:.*\n((?:\t.*\n)+)", makefile)[0]
    tools = re.findall(r"\$\(BIN\)/([a-z]+(?: [a-z]+)?(?: --check)?)", recipe)
    said = re.findall(r"`make test` runs ([^.]*?), in this order", contributing)[0]
    complaints = [] if re.findall("`([^`]+)`", said) == list(dict.fromkeys(tools)) else [said]
    portable = "NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= $(BIN)/pytest"
    return complaints + ([] if portable in recipe else ["portable forms are not tested"])


# --- as things are --------------------------------------------------------------------------

PINS = constraint_pins(read("constraints.txt"))
resolved_here = pytest.mark.skipif(
    sys.platform != "linux"
    or sys.version_info[:2] != (3, 11)
    or Path(sys.prefix, "conda-meta").exists(),
    reason="constraints.txt was resolved by pip on Linux with Python 3.11",
)


def assert_none(complaints: list[str]) -> None:
    assert not complaints, "\n".join(complaints)


def test_constraints_are_exact():
    assert_none(constraint_complaints(read("constraints.txt")))


def test_pins_lie_within_the_ranges_of_pyproject():
    assert_none(range_complaints(requirements("test"), PINS))


def test_the_build_backend_is_the_pinned_one():
    assert_none(
        disagreements(constraint_pins("\n".join(PROJECT["build-system"]["requires"])), PINS)
    )


@resolved_here
def test_what_is_installed_is_what_is_pinned():
    assert_none(installed_complaints(PINS))


@resolved_here
def test_all_that_the_test_extra_brings_is_pinned_and_nothing_else():
    found = {name for name in reachable(requirements("test")) if not CUDA.match(name)}
    assert found == set(PINS)


def test_the_core_brings_no_torch_and_no_jupyter():
    assert not list(filter(NOT_IN_CORE.match, reachable(requirements())))


def test_environment_agrees_with_constraints():
    assert_none(environment_complaints(yaml.safe_load(read("environment.yml")), PINS))


def test_readme_makefile_and_ci_agree():
    assert_none(command_complaints(read("README.md"), read("Makefile"), read(".ci/run")))
    assert_none(tool_complaints(read("Makefile"), read("CONTRIBUTING.md")))
    names = re.findall(r"PORTABLE := \$\(patsubst %,tests/test_%.py,(.*)\)", read("Makefile"))[0]
    assert all((ROOT / f"tests/test_{name}.py").is_file() for name in names.split())


def test_makefile_and_pyproject_want_the_same_python():
    low, high = re.findall(r"\((3), (\d+)\)", read("Makefile"))
    wanted = f">={'.'.join(low)},<{'.'.join(high)}"
    assert PROJECT["project"]["requires-python"] == wanted


def test_wheel_and_sdist_carry_what_they_should(tmp_path: Path):
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    lessons = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("notebooks/*.ipynb")}
    assert files >= {"LICENSE", "README.md", "Makefile", "constraints.txt", "data/tiny.gguf"}
    assert files >= {"conftest.py", "notebooks/build.py"} | lessons
    assert not [name for name in files if name.startswith((".ci", ".venv", "dist"))]

    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    ask = "from llambda.paths import data_dir; print(data_dir() / 'tiny.gguf')"
    run = [sys.executable, "-c", ask]  # as an installed package: site/ is where it runs
    out = subprocess.run(run, cwd=tmp_path / "site", check=True, capture_output=True, text=True)
    shipped = Path(out.stdout.strip())
    assert shipped.is_relative_to(tmp_path / "site")
    assert shipped.read_bytes() == (ROOT / "data/tiny.gguf").read_bytes()
    assert lessons
    for name in lessons:
        assert (shipped.parents[1] / name).read_bytes() == (ROOT / name).read_bytes()


# --- what the commands do when something is missing -----------------------------------------


def run(command: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTEST"))}
    return subprocess.run(command, cwd=cwd, env=clean | env, capture_output=True, text=True)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("import sys; sys.version_info = (3, 10, 4)", "llambda needs Python 3.11 to 3.14, and "),
        ("import sys; sys.modules['ensurepip'] = None", "comes without venv. On Debian and "),
    ],
)
def test_make_says_in_one_line_what_python_lacks(tmp_path: Path, before: str, message: str):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    python = script(
        tmp_path / "python3", f"""exec {sys.executable} -c "{before}; exec('''$2''')" """
    )
    done = run(["make", "tour"], tmp_path, PYTHON=str(python))
    first, last = done.stderr.splitlines()
    assert message in first
    assert last.startswith("make: ***")
    assert not (tmp_path / ".venv").exists()


def test_the_environment_that_builds_the_package_is_pinned_too(tmp_path: Path):
    """What pip starts to build it inherits the variables, and no option."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    script(tmp_path / ".venv/bin/pip", "")
    told = 'echo "$PIP_CONSTRAINT $PIP_BUILD_CONSTRAINT" > log'
    script(tmp_path / ".venv/bin/python", told)
    done = run(["make", ".venv/core.done"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text() == "constraints.txt constraints.txt\n"


@pytest.mark.parametrize(
    ("failures", "log"),
    [
        (0, ["make .venv/test.done ", "fetch smollm2", "make test 1"]),
        (1, ["make .venv/test.done ", "fetch smollm2", "fetch smollm2", "make test 1"]),
        (2, ["make .venv/test.done ", "fetch smollm2", "fetch smollm2"]),
    ],
)
def test_ci_fetches_with_one_retry_and_then_requires_the_model(
    tmp_path: Path, failures: int, log: list[str]
):
    ci = tmp_path / ".ci/run"
    ci.parent.mkdir()
    shutil.copy(ROOT / ".ci/run", ci)
    script(tmp_path / "bin/make", 'echo "make $* $LLAMBDA_REQUIRE_REAL" >> log')
    fetch = f'echo "$*" >> log; [ $(grep -c fetch log) -gt {failures} ]'
    script(tmp_path / ".venv/bin/llambda", fetch)
    path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
    done = run([str(ci)], tmp_path, PATH=path, LLAMBDA_REQUIRE_REAL="")
    assert (tmp_path / "log").read_text().splitlines() == log
    assert done.returncode == (failures == 2)


@pytest.mark.parametrize(("require", "outcome"), [("0", "3 skipped"), ("1", "3 errors")])
def test_real_tests_are_skipped_for_a_reader_and_fail_in_ci(
    tmp_path: Path, require: str, outcome: str
):
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = real\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_asks(smollm2_path): pass\n"
        "@pytest.mark.real\n"
        "def test_marked(): pass\n"
        "@pytest.mark.real\n"
        "def test_both(smollm2_path): pass\n"
        "def test_ordinary(tiny_path): pass\n"
    )
    env = {"LLAMBDA_HOME": str(tmp_path), "LLAMBDA_REQUIRE_REAL": require}
    env |= {"PYTHONPATH": str(ROOT)}
    done = run([sys.executable, "-m", "pytest", "-rs"], tmp_path, **env)
    assert f"1 passed, {outcome}" in done.stdout
    assert "llambda fetch smollm2" in done.stdout


# --- planted mistakes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["numpy>=2", "numpy", "torch==2.13.0+cpu", "numpy @ file", "nvidia-nccl==1", "-e ."]
)
def test_a_loose_constraint_is_noticed(line: str):
    assert constraint_complaints(f"# a comment\nruff==0.17.6\n{line}")


def test_a_name_pinned_twice_is_noticed():
    assert constraint_complaints("PyYAML==6.0.4\npyyaml==6.0.3") == ["pyyaml: twice"]


def test_a_pin_that_differs_is_noticed():
    assert disagreements({"numpy": "2.4.5"}, {"numpy": "2.4.6"})
    assert disagreements({"numpy": "2.4.6"}, {})


def test_an_installed_version_that_differs_is_noticed():
    pins = {"numpy": "2.4.6", "ruff": "0.17.6", "mypy": "2.4.1"}
    versions = {"numpy": "2.4.6", "ruff": "0.17.5"}
    assert installed_complaints(pins, versions.get) == [
        "ruff: pinned to 0.17.6, 0.17.5 installed",
        "mypy: pinned to 2.4.1, not installed",
    ]


def test_a_pin_below_the_minimum_is_noticed():
    needs = [Requirement("numpy>=2.2"), Requirement("mypy>=2")]
    assert range_complaints(needs, {"numpy": "2.1.9", "mypy": "2.4.1"})
    assert range_complaints(needs, {"numpy": "2.2"}) == ["mypy>=2 is not met by the pin None"]


def test_the_walk_follows_extras_and_markers():
    packages = {
        "a": ["b[fast]>=1", "never; python_version < '3'", "unasked; extra == 'x'"],
        "b": ["C-c; extra == 'fast'", "a"],
        "C-c": None,
    }
    assert reachable([Requirement("a")], packages.__getitem__) == {"a", "b", "c-c"}


@pytest.mark.parametrize("name", ["torch", "jupyterlab", "jupyter-core", "matplotlib"])
def test_a_heavy_package_in_the_core_is_noticed(name: str):
    packages = {"llama": [f"{name}>=1"], name: []}
    assert list(filter(NOT_IN_CORE.match, reachable([Requirement("llama")], packages.get))) == [
        name
    ]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("numpy=2.4.6", "numpy=2.4.5", "numpy: 2.4.5 here, 2.4.6 in constraints.txt"),
        ("numpy=2.4.6", "numpy", "numpy:  here, 2.4.6 in constraints.txt"),
        ("pytorch=2.13.0=", "pytorch=2.12.0=", "torch: 2.12.0 here, 2.13.0 in constraints.txt"),
        ("=cpu*", "", "pytorch must be a CPU build"),
        ("ruff==0.17.6", "ruff==0.17.5", "ruff: 0.17.5 here, 0.17.6 in constraints.txt"),
        ("- psutil=7.2.2", "", "psutil: missing"),
        ("- pytest==9.2.0", "", "pytest: missing"),
        ("- nodefaults", "- defaults", "channels must be conda-forge and nodefaults"),
        (
            "-e .[test]",
            "-e .",
            "pip must be asked for -e .[test], with no other option",
        ),
    ],
)
def test_a_wrong_environment_is_noticed(old: str, new: str, complaint: str):
    text = read("environment.yml")
    assert old in text
    planted = re.sub(r"(?m)^ *- *\n", "", text.replace(old, new))
    before, after = (environment_complaints(yaml.safe_load(t), PINS) for t in (text, planted))
    assert [each for each in after if each not in before] == [complaint]


def test_commands_that_do_not_exist_are_noticed():
    makefile = ".PHONY: tour test\ntour:\ntest:\n"
    ci = "phase make test\n"
    readme = "Run `make tour`, then\n\n    make test\n\nand make sense of it.\n"
    assert command_complaints(readme, makefile, ci) == []
    assert command_complaints(readme + "`make lab`", makefile, ci) == [
        "README names make lab, no target"
    ]
    assert command_complaints("`make tour`", makefile, ci) == ["README does not name make test"]
    assert command_complaints(readme, makefile, "phase pytest") == [
        ".ci/run does not run make test",
        ".ci/run runs more: pytest",
    ]
    assert command_complaints(readme, makefile.replace("test:", ""), ci)
    surplus = f"{ci}phase env A=1 .venv/bin/pytest tests/test_simd.py\n"
    assert command_complaints(readme, makefile, surplus) == [
        ".ci/run runs more: env A=1 .venv/bin/pytest tests/test_simd.py"
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\t$(BIN)/mypy\n", ""),
        ("ruff format --check", "ruff format"),
        ("\t$(BIN)/mypy\n", "\t$(BIN)/mypy\n\t$(BIN)/lychee\n"),
        ("NUMBA_CPU_NAME=generic", ""),
    ],
)
def test_a_tool_that_is_not_told_of_is_noticed(old: str, new: str):
    makefile = read("Makefile")
    assert old in makefile
    assert tool_complaints(makefile.replace(old, new), read("CONTRIBUTING.md"))
