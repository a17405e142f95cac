"""A first start compiles in two processes; what the second one cannot do, the first one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llambda.kernels import products
from llambda.simd import compiling
from llambda.simd.compiling import compile_together, second_process

PROGRAM = """
import sys
from llambda.kernels import products
from llambda.simd.compiling import compile_together

sys.executable = sys.executable if sys.argv[1] == "two" else "/no/such/python"
compile_together([products.bf16], [products.f32])
print(products.bf16.compiled.cache_hits, products.f32.compiled.cache_hits)
"""


@pytest.mark.parametrize(("processes", "hits"), [("two", "0 1"), ("one", "0 0"), ("again", "1 1")])
def test_each_process_finds_what_the_other_made(tmp_path: Path, processes: str, hits: str):
    environment = {**os.environ, "LLAMBDA_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, processes]
    if processes == "again":
        subprocess.run(command, env=environment, check=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (hits, "")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Processes that were started; each sleeps for a minute instead of compiling."""
    found: list[subprocess.Popen[bytes]] = []

    def popen(command: list[str], **options: int) -> subprocess.Popen[bytes]:
        found.append(start([sys.executable, "-c", "import time; time.sleep(60)"]))
        return found[-1]

    start = subprocess.Popen
    monkeypatch.setattr(compiling.subprocess, "Popen", popen)
    return found


def test_an_interrupt_leaves_no_process(started: list[subprocess.Popen[bytes]]):
    with pytest.raises(KeyboardInterrupt), second_process([products.f32]):
        assert started[0].poll() is None
        raise KeyboardInterrupt
    assert started[0].poll() is not None


@pytest.mark.parametrize(("keep", "first"), [(True, False), (False, True)])
def test_no_process_for_what_is_kept_or_cannot_be(
    keep: bool,
    first: bool,
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(compiling, "KEEP", keep)
    monkeypatch.setattr(compiling, "first_time", lambda: first)
    compile_together([products.f32], [products.f16])
    assert started == []
