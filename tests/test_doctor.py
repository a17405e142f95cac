"""The facts behind `llambda doctor`. What is measured is another module's matter."""

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from llambda import doctor, fetch
from llambda.machine import this_machine

FIELDS = {
    "llambda",
    "python",
    "machine",
    "packages",
    "cache_dir",
    "models",
    "bandwidth_gb_s",
    "fma_gflop_s",
    "ceiling_tokens_per_s",
    "notes",
}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Numbers of threads that were measured; 12.345678 GB/s and 50 GFLOP/s for each thread."""
    asked: list[int] = []

    def bandwidth(threads: int) -> float:
        asked.append(threads)
        return threads * 12.345678e9

    monkeypatch.setattr(doctor, "read_bandwidth", bandwidth)
    monkeypatch.setattr(doctor, "fma_peak", lambda threads: threads * 50e9)
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path / "home"))
    return asked


def with_machine(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    machine = replace(this_machine(), **changes)
    monkeypatch.setattr(doctor, "this_machine", lambda: machine)


def test_the_facts(measured: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with_machine(monkeypatch, default_threads=3, quota=3.5, usable_cores=3, kernel_path="avx2")
    facts = doctor.examine()
    assert set(facts) == FIELDS
    assert json.loads(json.dumps(facts))["bandwidth_gb_s"] == {"1": 12.35, "3": 37.04}
    assert facts["fma_gflop_s"] == {"1": 50, "3": 150}
    assert measured == [1, 3]
    assert facts["ceiling_tokens_per_s"]["smollm2 (135M, Q4_1)"] == 384.2  # 37.037 / 0.0964
    assert facts["packages"]["numpy"] == metadata.version("numpy")
    assert facts["cache_dir"] == str(tmp_path / "home")
    assert facts["models"]["smollm2"] is False
    assert facts["machine"]["default_threads"] == 3
    assert not (tmp_path / "home").exists()  # to look is not to write


def test_one_thread_is_measured_once(measured: list[int], monkeypatch: pytest.MonkeyPatch):
    with_machine(monkeypatch, default_threads=1)
    facts = doctor.examine()
    assert measured == [1]
    lines = doctor.report(facts).splitlines()
    assert "reading     12.3 GB/s with 1 thread" in lines
    assert "multiplying 50 GFLOP/s with 1 thread" in lines


def test_the_report(measured: list[int], monkeypatch: pytest.MonkeyPatch):
    with_machine(
        monkeypatch,
        model="Some CPU",
        architecture="x86_64",
        logical_cores=8,
        physical_cores=4,
        default_threads=3,
        quota=3.5,
        memory_bytes=16_000_000_000,
        available_bytes=1_500_000_000,
        features=("avx2", "fma"),
    )
    lines = doctor.report(doctor.examine()).splitlines()
    for line in (
        "processor   Some CPU (x86_64)",
        "features    avx2 fma",
        "cores       8 logical, 4 physical, quota 3.5; 3 threads by default",
        "memory      16.0 GB, 1.5 GB available",
        "reading     37.0 GB/s with 3 threads",
        "ceiling     384 tokens/s for smollm2 (135M, Q4_1)",
        f"package     numpy {metadata.version('numpy')}",
    ):
        assert line in lines
    assert lines[0].startswith("llambda 0.1.0, Python 3.")


def test_a_machine_without_features_or_quota(measured: list[int], monkeypatch: pytest.MonkeyPatch):
    with_machine(monkeypatch, features=(), quota=None, logical_cores=2, physical_cores=2,
                 default_threads=2)  # fmt: skip
    lines = doctor.report(doctor.examine()).splitlines()
    assert "features    none of those that matter" in lines
    assert "cores       2 logical, 2 physical; 2 threads by default" in lines


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that lacks nothing."""
    monkeypatch.setattr(doctor, "version_of", lambda package: "1.0")
    monkeypatch.setattr(fetch.KnownModel, "is_here", True)


def test_nothing_to_note(complete: None):
    assert doctor.notes("avx2", None, 4) == []
    assert doctor.notes("avx512-vnni", None, 4) == []


def test_notes(complete: None, monkeypatch: pytest.MonkeyPatch):
    (slow,) = doctor.notes("portable", None, 4)
    assert "AVX2" in slow
    assert doctor.notes("avx2", 2.5, 2) == [
        "a quota of 2.5 cores: more than 2 threads would be throttled"
    ]
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name == "torch" else "1")
    (missing,) = doctor.notes("avx2", None, 4)
    assert missing.startswith("torch is not installed; it is needed for comparing with PyTorch")
    monkeypatch.setattr(doctor, "version_of", lambda name: "1")
    monkeypatch.setattr(fetch.KnownModel, "is_here", False)
    assert doctor.notes("avx2", None, 4) == ["smollm2 is not fetched: run llambda fetch smollm2"]


def test_a_data_cache_that_cannot_be_used_is_a_finding(
    measured: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(doctor, "KEEP", False)
    facts = doctor.examine()
    assert facts["models"]["smollm2"] is False
    compiling, model = facts["notes"][-2:]
    assert compiling.startswith(f"nothing can be written to {tmp_path / 'file'}: kernels are")
    assert "set LLAMBDA_HOME" in compiling
    assert model.startswith("smollm2 cannot be looked for: ")
    assert "a file where a folder is needed" in model


def test_versions():
    assert doctor.version_of("numpy") == metadata.version("numpy")
    assert doctor.version_of("a-package-that-is-not-there") is None
    assert set(doctor.NEEDED_FOR) >= {"numpy", "numba", "tokenizers", "torch"}
