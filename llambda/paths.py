"""Where things lie: the data cache, the files that ship with the course, and safe writing.

Nothing is written outside the data cache and outputs that the caller names.
"""

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from .errors import FileAccessError, InputError, LlambdaError, ModelFileError, ResourceError

PACKAGE = Path(__file__).parent


def cache_dir() -> Path:
    """The data cache: $LLAMBDA_HOME, else the platform's user cache folder. Not created here."""
    home = os.environ.get("LLAMBDA_HOME")
    return Path(os.path.expanduser(home) if home else platformdirs.user_cache_dir("llambda"))


def models_dir() -> Path:
    """Where fetched models are kept, inside the data cache."""
    return cache_dir() / "models"


def data_dir() -> Path:
    """The tiny models that ship with the course: in an installed package, else the checkout."""
    installed = PACKAGE / "data"
    return installed if installed.is_dir() else PACKAGE.parent / "data"


def notebooks_dir() -> Path:
    """The lessons: in an installed package, else the checkout."""
    installed = PACKAGE / "notebooks"
    return installed if installed.is_dir() else PACKAGE.parent / "notebooks"


def numba_cache_dir() -> Path:
    """Numba's compile cache for exactly this code.

    Numba does not notice an edit in a function that lives in another file than its caller, so
    the folder's name is a hash of all sources and of the compiler's versions: an edit or an
    upgrade starts a new folder and never meets stale machine code. Left out is the course, which
    imports kernels and has none.
    """
    digest = hashlib.sha256()
    for source in sorted(set(PACKAGE.rglob("*.py")) - set(PACKAGE.glob("course/**/*.py"))):
        digest.update(source.relative_to(PACKAGE).as_posix().encode() + b"\0")
        digest.update(source.read_bytes() + b"\0")
    for package in ("numba", "llvmlite"):
        digest.update(f"{package} {metadata.version(package)}\0".encode())
    return cache_dir() / "numba" / digest.hexdigest()[:16]


def sha256(path: Path) -> str:
    """SHA-256 of a file's contents, in hex."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise file_error(error, path) from error


def make_dir(folder: Path) -> Path:
    """Create the folder and its parents if needed, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(error, folder) from error
    return folder


def require_space(folder: Path, nbytes: int, otherwise: str) -> None:
    """Raise ResourceError unless the disk that holds `folder` has `nbytes` free.

    otherwise : what else than to free some space can be done
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise file_error(error, folder) from error
    if free < nbytes:
        raise ResourceError(
            f"{math.ceil(nbytes / 1e5) / 10:.1f} MB are needed on this disk and "
            f"{free // 10**5 / 10:.1f} MB are free",  # so rounded, they never look the same
            where=folder,
            fix=f"Free some space, or {otherwise}.",
        )


def refuse_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Raise InputError if to write `output` is to write one of the inputs, by whatever link."""
    for path in inputs:
        with suppress(OSError):  # what is not there is not overwritten
            if output.samefile(path):
                raise InputError("the output is the input", where=output, fix="Name another file.")


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under its name whole, or not at all.

    The bytes go to a temporary file in the same folder, which is synced and renamed at the end.
    Whatever goes wrong, what was there before stays and the temporary file is removed. A link is
    followed, and a file that is replaced keeps its permissions. Raises FileAccessError for what is
    no file: a renamed one would take the place of a device, or of a link in a loop of links.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():
            raise FileAccessError("a pipe or device", where=path, fix="Name a file.")
        mode = target.stat().st_mode if target.exists() else None
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise file_error(error, Path(path)) from error


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """A JSON object. An absent file is an empty object if it is optional."""
    if optional and not path.exists():
        return {}
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise file_error(error, path) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"not JSON: {error}", where=path, fix="Fetch it again.") from error
    if not isinstance(data, dict):
        raise ModelFileError("JSON, but not an object", where=path, fix="Fetch it again.")
    return data


def file_error(error: OSError | ValueError, path: object) -> LlambdaError:
    """An operating system error on `path`, in words with a remedy.

    Python itself raises a ValueError for a path with a NUL or half of a surrogate pair.
    """
    if not isinstance(error, OSError):
        return FileAccessError("no file can have this name", where=path, fix="Give another.")
    match error.errno:
        case errno.ENOENT:
            return FileAccessError("no such file or folder", where=path, fix="Check the path.")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return FileAccessError(
                "permission denied", where=path, fix="Check who may read or write it (ls -l)."
            )
        case errno.EISDIR:
            return FileAccessError(
                "a folder where a file is needed", where=path, fix="Name a file."
            )
        case errno.ENOTDIR | errno.EEXIST:
            return FileAccessError(
                "a file where a folder is needed", where=path, fix="Name a folder."
            )
        case errno.ENOSPC | errno.EDQUOT:
            return ResourceError(
                "no space left on this disk", where=path, fix="Free some space and try again."
            )
        case errno.EFBIG:
            return ResourceError(
                "larger than a file may be here",
                where=path,
                fix="Raise the limit (ulimit -f), or write to another disk.",
            )
        case errno.ELOOP:
            return FileAccessError(
                "symbolic links that lead in a circle", where=path, fix="Name a file."
            )
        case errno.ENAMETOOLONG:
            return FileAccessError("the name is too long", where=path, fix="Use a shorter one.")
        case errno.EMFILE | errno.ENFILE:
            return ResourceError(
                "too many open files", where=path, fix="Close some, or raise the limit (ulimit -n)."
            )
        case _:
            return FileAccessError(
                error.strerror or str(error), where=path, fix="Check the disk, and try again."
            )
