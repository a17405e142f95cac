"""Two processes, each with some of the layers, give the bits of one engine; none stays behind."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import llambda
from llambda.course import pipeline_worker

LIMIT = 120  # seconds for what takes a few
TEXTS, NEW = [[1, 2, 3, 4, 5], [7, 8]], 3


def start(path: Path, rank: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "llambda.course.pipeline_worker", str(path), str(rank)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def write_job(folder: Path, cut: int, **changes: object) -> Path:
    job = {"model": "tiny", "cut": cut, "texts": TEXTS, "new": NEW}
    path = folder / "job.json"
    path.write_text(json.dumps(job | changes))
    return path


def alone() -> np.ndarray:
    logits = []
    with llambda.load("tiny", engine=pipeline_worker.ENGINE) as model:
        for text in TEXTS:
            state = model.engine.new_state(len(text) + NEW)
            rows = [model.engine.forward(state, text).copy()]
            while len(rows) < NEW:
                rows.append(model.engine.forward(state, [int(rows[-1].argmax())]).copy())
            logits.append(rows)
    return np.swapaxes(logits, 0, 1)  # [new, texts, vocab_size]


def finished(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit status and stderr, when it has ended by itself: its stdin stays open until then."""
    with process:  # closes its pipes at the end
        try:
            status = process.wait(LIMIT)
        finally:
            process.kill()
        assert process.stderr is not None
        return status, process.stderr.read().decode()


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_two_stages_are_one_engine(tmp_path: Path, cut: int):
    path = write_job(tmp_path, cut)
    workers = [start(path, rank) for rank in (0, 1)]
    ends = [finished(worker) for worker in workers]
    assert ends == [(0, ""), (0, "")]
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), alone())


def test_a_layer_that_is_missing_is_noticed(tmp_path: Path):
    with llambda.load("tiny", engine=pipeline_worker.ENGINE) as model:
        layers = model.config.n_layers
    assert layers > 1
    paths = [write_job(tmp_path, cut).rename(tmp_path / f"{cut}.json") for cut in (1, 2)]
    workers = [start(path, rank) for rank, path in enumerate(paths)]  # layer 1 is in neither
    assert [finished(worker)[0] for worker in workers] == [0, 0]
    assert not np.array_equal(np.load(tmp_path / "logits.npy"), alone())


NO_MODEL = json.dumps({"model": "no-such-model", "cut": 1, "texts": TEXTS, "new": 1})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{", "JSONDecodeError"),
        ("{}", "KeyError"),
        (NO_MODEL, "no such file"),
    ],
)
def test_a_failure_is_one_line(tmp_path: Path, content: str | None, words: str):
    path = tmp_path / "job.json"
    if content is not None:
        path.write_text(content)
    workers = [start(path, rank) for rank in (0, 1)]
    for rank, (status, said) in enumerate(map(finished, workers)):
        assert status == 1
        assert said.startswith(f"rank {rank}: ")
        assert said.count("\n") == 1
        assert words in said


def test_a_worker_ends_with_whoever_started_it(tmp_path: Path):
    worker = start(write_job(tmp_path, 1), 0)  # the other never comes
    time.sleep(0.5)
    assert worker.poll() is None
    assert worker.stdin is not None
    worker.stdin.close()
    assert finished(worker) == (1, "rank 0: whoever started it is gone\n")
