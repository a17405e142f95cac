"""What makes the lessons tests: `pytest` runs every notebook in notebooks/ and compares (nbval).

The options are in pyproject.toml. Here: only the lessons themselves are collected, each with a
data cache of its own, and a summary at the end says how long each took, and shows what tests have
recorded: `record_property("table", (heading, text))`. Texts under one heading stand together.
"""

import fcntl
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

import pytest
from nbval.plugin import IPyNbCell

from llambda.course.private_home import private_home

NOTEBOOKS = Path(__file__).parent / "notebooks"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Copies of a lesson (built, checkpointed, a reader's own) are no tests."""
    copy = collection_path.suffix == ".ipynb" and collection_path.parent != NOTEBOOKS
    return True if copy else None


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Kernels that start at once, under xdist, may choose the same free port; then one dies."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """A kernel starts in the setup of its notebook's first cell, and keeps what it inherits."""
    if not isinstance(item, IPyNbCell) or item.parent.kernel is not None:
        return (yield)
    with one_at_a_time(), ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for name, value in stack.enter_context(private_home()).items():
            patch.setenv(name, value)
        item.config.add_cleanup(stack.pop_all().close)
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds a notebook, its kernel's start included; and tables that tests have recorded."""
    seconds: dict[str, float] = defaultdict(float)
    tables: dict[str, list[str]] = defaultdict(list)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            file, _, cell = report.nodeid.partition("::")
            if cell and file.endswith(".ipynb"):
                seconds[file] += report.duration
            if report.when == "call":
                for heading, text in (v for name, v in report.user_properties if name == "table"):
                    tables[heading].append(text)
    for heading, texts in tables.items():
        terminalreporter.section(heading)
        for text in sorted(texts):  # workers finish in any order
            terminalreporter.write_line(text)
    if seconds:
        terminalreporter.section("seconds a notebook")
        for file, duration in sorted(seconds.items()):
            terminalreporter.write_line(f"{duration:6.1f} s  {file}")
