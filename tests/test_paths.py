"""Folders, whole-or-nothing writing, hashes, and operating system errors in words."""

import errno
import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import llambda
from llambda import paths
from llambda.errors import (
    FileAccessError,
    InputError,
    LlambdaError,
    ModelFileError,
    ResourceError,
)

AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


# Folders


def test_the_cache_is_where_llambda_home_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path / "not there yet"))
    assert paths.cache_dir() == tmp_path / "not there yet"
    assert paths.models_dir().parent == paths.cache_dir()
    assert paths.numba_cache_dir().parents[1] == paths.cache_dir()
    assert list(tmp_path.iterdir()) == [], "asking creates nothing"


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("LLAMBDA_HOME", "~/models")
    assert paths.cache_dir() == tmp_path / "models"


@pytest.mark.parametrize("home", [None, ""])
def test_otherwise_the_cache_is_the_platforms(monkeypatch: pytest.MonkeyPatch, home: str | None):
    if home is None:
        monkeypatch.delenv("LLAMBDA_HOME", raising=False)
    else:
        monkeypatch.setenv("LLAMBDA_HOME", home)
    assert paths.cache_dir().is_absolute()
    assert "llambda" in paths.cache_dir().parts


def test_data_are_in_the_package_or_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    package = tmp_path / "llambda"
    monkeypatch.setattr(paths, "PACKAGE", package)
    (package / "inner").mkdir(parents=True)
    assert paths.data_dir() == tmp_path / "data"
    (package / "data").mkdir()
    assert paths.data_dir() == package / "data"


def test_folders_are_made_with_their_parents(tmp_path: Path):
    folder = tmp_path / "a" / "b"
    assert paths.make_dir(folder) == folder == paths.make_dir(folder)
    assert folder.is_dir()
    (tmp_path / "file").touch()
    for blocked in (tmp_path / "file", tmp_path / "file" / "c"):
        with pytest.raises(FileAccessError, match="a file where a folder is needed"):
            paths.make_dir(blocked)


# Numba's cache: another folder whenever other machine code could come out


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "llambda"
    (folder / "kernels").mkdir(parents=True)
    (folder / "a.py").write_text("x = 1\n")
    (folder / "kernels" / "b.py").write_text("y = 2\n")
    monkeypatch.setattr(paths, "PACKAGE", folder)
    return folder


def test_the_cache_stays_while_nothing_changes(package: Path):
    before = paths.numba_cache_dir()
    (package / "notes.txt").write_text("no source")
    (package / "course" / "figures").mkdir(parents=True)
    (package / "course" / "figures" / "simd.py").write_text("x = 1\n")
    os.utime(package / "a.py", (1, 1))
    assert paths.numba_cache_dir() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda p: (p / "a.py").write_text("x = 2\n"),
        lambda p: (p / "kernels" / "b.py").write_text("y = 3\n"),
        lambda p: (p / "kernels" / "b.py").write_text("y = 2"),
        lambda p: (p / "kernels" / "c.py").touch(),
        lambda p: (p / "a.py").unlink(),
        lambda p: (p / "a.py").rename(p / "b.py"),
        lambda p: (p / "a.py").rename(p / "kernels" / "a.py"),
        lambda p: ((p / "a.py").write_text(""), (p / "c.py").write_text("x = 1\n")),
    ],
)
def test_any_change_of_a_source_starts_another_cache(package: Path, change: object):
    before = paths.numba_cache_dir()
    change(package)
    assert paths.numba_cache_dir() != before


def test_the_course_has_no_compiled_code_that_is_kept():
    for source in Path(llambda.__file__).parent.glob("course/**/*.py"):
        assert not re.search(r"@(entry|foreign)\b|cache=", source.read_text()), source


@pytest.mark.parametrize("changed", ["numba", "llvmlite"])
def test_another_compiler_starts_another_cache(
    package: Path, monkeypatch: pytest.MonkeyPatch, changed: str
):
    real = paths.metadata.version
    before = paths.numba_cache_dir()
    monkeypatch.setattr(
        paths.metadata, "version", lambda name: "99" if name == changed else real(name)
    )
    assert paths.numba_cache_dir() != before


# Hashes and space


@pytest.mark.parametrize("size", [0, 1, 64, 300_000])
def test_sha256(tmp_path: Path, size: int):
    raw = bytes(i * i % 251 for i in range(size))
    (tmp_path / "f").write_bytes(raw)
    assert paths.sha256(tmp_path / "f") == hashlib.sha256(raw).hexdigest()


def test_sha256_of_no_file(tmp_path: Path):
    with pytest.raises(FileAccessError, match="no such file"):
        paths.sha256(tmp_path / "none")
    with pytest.raises(FileAccessError, match="folder where a file"):
        paths.sha256(tmp_path)


def test_space_that_is_there_suffices(tmp_path: Path):
    paths.require_space(tmp_path, 0, "wait")
    paths.require_space(tmp_path, 1, "wait")


def test_too_little_space_is_told_in_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=30_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    paths.require_space(tmp_path, 30_000_000, "wait")
    for nbytes, needed in ((145_000_000, "145.0"), (30_000_001, "30.1")):
        with pytest.raises(ResourceError) as caught:
            paths.require_space(tmp_path, nbytes, "wait")
        assert str(caught.value) == (
            f"{tmp_path}: {needed} MB are needed on this disk and 30.0 MB are free. "
            "Free some space, or wait."
        )


@pytest.mark.parametrize(
    ("free", "needed", "words"),
    [
        (0, 1, "0.1 MB are needed on this disk and 0.0 MB are free"),
        (348_160, 720_736, "0.8 MB are needed on this disk and 0.3 MB are free"),
        (1_049_999, 1_050_000, "1.1 MB are needed on this disk and 1.0 MB are free"),
        (99_999, 100_000, "0.1 MB are needed on this disk and 0.0 MB are free"),
    ],
)
def test_what_is_needed_is_never_told_as_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, needed: int, words: str
):
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ResourceError, match=words):
        paths.require_space(tmp_path, needed, "wait")


def test_space_of_a_missing_folder(tmp_path: Path):
    with pytest.raises(FileAccessError, match="no such file or folder"):
        paths.require_space(tmp_path / "none", 1, "wait")


# Whole or not at all


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A file with old content. Afterwards nothing but this file is in its folder."""
    path = tmp_path / "out" / "file.bin"
    path.parent.mkdir()
    path.write_bytes(b"old")
    yield path
    assert list(path.parent.iterdir()) == [path]


def test_a_new_file_appears_whole(tmp_path: Path):
    path = tmp_path / "new"
    with paths.atomic_write(path) as file:
        file.write(b"one ")
        assert not path.exists()
        file.write(b"two")
    assert path.read_bytes() == b"one two"
    assert list(tmp_path.iterdir()) == [path]


def test_an_old_file_is_replaced_at_the_end(target: Path):
    with paths.atomic_write(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize(
    "failure", [RuntimeError("x"), KeyboardInterrupt(), GeneratorExit(), LlambdaError("x")]
)
def test_a_failure_in_the_middle_leaves_the_old_file(target: Path, failure: BaseException):
    with pytest.raises(type(failure)) as caught, paths.atomic_write(target) as file:
        file.write(b"half")
        file.flush()
        raise failure
    assert caught.value is failure
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize("moment", ["writing", "syncing", "renaming"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_old_file(
    target: Path, monkeypatch: pytest.MonkeyPatch, moment: str, number: int
):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    if moment == "syncing":
        monkeypatch.setattr(os, "fsync", fail)
    elif moment == "renaming":
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ResourceError) as caught, paths.atomic_write(target) as file:
        file.write(b"half")
        if moment == "writing":
            fail()
    assert str(caught.value).startswith(f"{target}: no space left on this disk")
    assert target.read_bytes() == b"old"


def test_a_missing_folder_is_named(tmp_path: Path):
    path = tmp_path / "none" / "file"
    with pytest.raises(FileAccessError) as caught, paths.atomic_write(path):
        raise AssertionError("there is nothing to write to")
    assert str(caught.value) == f"{path}: no such file or folder. Check the path."
    assert not path.parent.exists()


@pytest.mark.parametrize("name", [".", "out", "..", "/"])
def test_a_folder_is_no_file(target: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(target.parents[1])
    with (
        pytest.raises(FileAccessError, match="a folder where a file is needed"),
        paths.atomic_write(Path(name)),
    ):
        raise AssertionError("there is nothing to write to")


def test_a_file_is_no_folder(target: Path):
    with (
        pytest.raises(FileAccessError, match="a file where a folder is needed"),
        paths.atomic_write(target / "inner"),
    ):
        raise AssertionError("there is nothing to write to")


@pytest.mark.skipif(AS_ROOT, reason="root may write into every folder")
def test_a_folder_that_may_not_be_written(target: Path):
    target.parent.chmod(0o555)
    try:
        with pytest.raises(FileAccessError, match="denied"), paths.atomic_write(target):
            raise AssertionError("there is nothing to write to")
    finally:
        target.parent.chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX's")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_those_of_any_new_file(tmp_path: Path, mask: int, mode: int):
    before = os.umask(mask)
    try:
        with paths.atomic_write(tmp_path / "f") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode


def test_many_writers_of_one_file_do_not_mix(target: Path):
    def write(letter: bytes) -> None:
        with paths.atomic_write(target) as file:
            for _ in range(20):
                file.write(letter * 1000)

    threads = [threading.Thread(target=write, args=(bytes([65 + i]),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raw = target.read_bytes()
    assert raw == raw[:1] * 20_000


def test_a_loop_of_links_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (tmp_path / "a", tmp_path / "a" / "x"):
        with pytest.raises(FileAccessError, match="in a circle"), paths.atomic_write(path):
            raise AssertionError("there is nothing to write to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "a").is_symlink()


def test_a_link_to_nothing_is_followed(tmp_path: Path):
    (tmp_path / "link").symlink_to("new")
    with paths.atomic_write(tmp_path / "link") as file:
        file.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").read_bytes() == b"x"


# Outputs that are inputs


def test_an_output_must_not_be_an_input_by_whatever_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    inputs = [tmp_path / "a", tmp_path / "absent", tmp_path / "b"]
    for name in "ab":
        (tmp_path / name).touch()
    (tmp_path / "soft").symlink_to("a")
    (tmp_path / "hard").hardlink_to("b")
    for name in ("a", "b", "./a", f"../{tmp_path.name}/b", "soft", "hard"):
        with pytest.raises(InputError, match=r"the output is the input\. Name another file\."):
            paths.refuse_inputs(Path(name), inputs)
    (tmp_path / "other").touch()
    for name in ("other", "absent", "new", "a/b"):
        paths.refuse_inputs(Path(name), inputs)


# JSON


def test_a_json_object_is_read(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text('{"a": [1, 2.5, null, "é"]}', "utf-8")
    assert paths.read_json(path) == {"a": [1, 2.5, None, "é"]}
    assert paths.read_json(tmp_path / "none", optional=True) == {}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b"<html>", "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": ' * 100_000, "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[1, 2]", "not an object"),
        (b"null", "not an object"),
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, raw: bytes, words: str):
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError) as caught:
        paths.read_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


def test_a_missing_json_file_is_named(tmp_path: Path):
    with pytest.raises(FileAccessError, match="no such file"):
        paths.read_json(tmp_path / "none")
    with pytest.raises(FileAccessError, match="folder where a file"):
        paths.read_json(tmp_path, optional=True)


# Errors of the operating system


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOENT, FileAccessError, "no such file or folder"),
        (errno.EACCES, FileAccessError, "permission denied"),
        (errno.EPERM, FileAccessError, "permission denied"),
        (errno.EROFS, FileAccessError, "permission denied"),
        (errno.EISDIR, FileAccessError, "a folder where a file is needed"),
        (errno.ENOTDIR, FileAccessError, "a file where a folder is needed"),
        (errno.EEXIST, FileAccessError, "a file where a folder is needed"),
        (errno.ENOSPC, ResourceError, "no space left"),
        (errno.EDQUOT, ResourceError, "no space left"),
        (errno.ENAMETOOLONG, FileAccessError, "the name is too long"),
        (errno.EFBIG, ResourceError, "larger than a file may be here"),
        (errno.ELOOP, FileAccessError, "symbolic links that lead in a circle"),
        (errno.EMFILE, ResourceError, "too many open files"),
    ],
)
def test_an_error_number_in_words_with_a_remedy(
    number: int, kind: type[LlambdaError], words: str, tmp_path: Path
):
    error = paths.file_error(OSError(number, os.strerror(number)), tmp_path / "f")
    assert type(error) is kind
    assert str(error).startswith(f"{tmp_path / 'f'}: {words}")
    assert error.fix
    assert "Errno" not in str(error)


@pytest.mark.parametrize("number", [errno.EIO, errno.EBUSY])
def test_any_other_error_number_in_the_systems_words(number: int):
    error = paths.file_error(OSError(number, os.strerror(number)), Path("f"))
    assert str(error) == f"f: {os.strerror(number)}. Check the disk, and try again."
    assert type(error) is FileAccessError


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have(name: str):
    with pytest.raises(ValueError) as caught:
        os.stat(name)
    error = paths.file_error(caught.value, name)
    assert type(error) is FileAccessError
    assert str(error).endswith(": no file can have this name. Give another.")


def test_an_error_without_a_number():
    words = "f: odd\\nthing. Check the disk, and try again."
    assert str(paths.file_error(OSError("odd\nthing"), Path("f"))) == words


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileAccessError, match="a pipe or device"), paths.atomic_write(pipe) as file:
        file.write(b"x")
    assert pipe.is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_a_link_is_followed_and_permissions_stay(tmp_path: Path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o600)
    link.symlink_to("real")
    with paths.atomic_write(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o600
