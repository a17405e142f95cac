"""The log of events: one JSON object a line, appended, and nothing but that."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from llambda.errors import FileAccessError, ResourceError
from llambda.eventlog import EventLog, peak_resident_mb, resident_mb

FIELDS = ["time", "event", "seconds", "tokens", "resident_mb"]


def test_an_event_is_a_line_of_json(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    log = EventLog(path)
    assert path.read_bytes() == b""
    before = time.time()
    log.write("prefill", 0.123456789, 7)
    log.write("load", 2, model="a\nb \u00e9 \udcff", engine=None)
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 3
    assert lines[2] == b""
    first, second = map(json.loads, lines[:2])
    assert list(first) == FIELDS
    assert (first["event"], first["seconds"], first["tokens"]) == ("prefill", 0.123457, 7)
    assert before - 0.001 <= first["time"] <= time.time() + 0.001
    assert list(second) == [*FIELDS, "model", "engine"]
    assert (second["tokens"], second["model"]) == (0, "a\nb \u00e9 \udcff")


def test_a_log_is_appended_to(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    for event in ("one", "two"):
        EventLog(str(path)).write(event, 0)
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["one", "two"]


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    EventLog().write("one", 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "no/such/folder.jsonl", "file/inside"])
def test_an_unwritable_path_is_found_out_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileAccessError):
        EventLog(name)


def test_a_name_that_no_file_can_have():
    with pytest.raises(FileAccessError, match="no file can have this name"):
        EventLog("a\0b")


def test_without_a_path_memory_is_not_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(psutil, "Process", None)
    EventLog().write("one", 0)


def test_nothing_is_said_while_python_shuts_down(tmp_path: Path, tiny_path: Path):
    """An answer that nobody read to its end ends with its names gone, or those of its modules."""
    code = (
        "import sys, llambda, llambda.config as other\n"
        "from llambda.eventlog import EventLog\n"
        f"model = llambda.load({str(tiny_path)!r}, 'naive')\n"
        "def begin(log):\n"
        "    answer = model.generate('The', max_tokens=9, log=log)\n"
        "    pieces = iter(answer)\n"
        "    next(pieces)\n"
        "    return answer, pieces\n"
        "log = EventLog(sys.argv[1])\n"
        "here, there = [begin(None), begin(log)], [begin(None), begin(log)]\n"
        "other.there = there\n"
        "del there\n"
    )
    path = tmp_path / "log.jsonl"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["prefill"] * 2


def test_a_full_disk_is_an_error_with_words():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    log = EventLog(full)  # nothing is written yet
    with pytest.raises(ResourceError, match="no space left on this disk"):
        log.write("one", 0)


def test_lines_of_several_threads_do_not_mix(tmp_path: Path):
    log = EventLog(tmp_path / "log.jsonl")

    def work(n: int) -> None:
        for i in range(50):
            log.write("step", i, n, text="x" * 3000)

    threads = [threading.Thread(target=work, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for n in range(4):
        assert [entry["seconds"] for entry in entries if entry["tokens"] == n] == list(range(50))


def test_memory_is_measured():
    # In a process of its own: its peak must rise by the 64 MB that it takes, and stay there.
    code = (
        "from llambda.eventlog import peak_resident_mb, resident_mb\n"
        "before = resident_mb()\n"
        "block = bytearray(b'x' * 64_000_000)\n"
        "during = resident_mb()\n"
        "del block\n"
        "print(before, during, resident_mb(), peak_resident_mb())\n"
    )
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "0"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    before, during, after, peak = map(float, out.stdout.split())
    assert during - before == pytest.approx(64, abs=3)
    assert after < during - 50
    assert peak >= during - 1
    assert 1 < resident_mb() <= peak_resident_mb() + 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a peak is a process's own anyway")
def test_the_peak_is_not_that_of_whoever_started_the_process():
    # The middle process holds 400 MB when it starts the inner one.
    inner = "from llambda.eventlog import peak_resident_mb; print(peak_resident_mb())"
    middle = (
        "import subprocess, sys\n"
        "block = bytearray(b'x' * 400_000_000)\n"
        f"subprocess.run([sys.executable, '-c', {inner!r}], check=True)\n"
    )
    out = subprocess.run([sys.executable, "-c", middle], capture_output=True, text=True, check=True)
    assert 1 < float(out.stdout) < 300
