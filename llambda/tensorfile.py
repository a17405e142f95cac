"""A file of named tensors, whatever its format: the one face of `gguf` and `safetensors`."""

import errno
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from .errors import FileAccessError, ModelFileError, UnsupportedError
from .paths import file_error
from .quants import DECODED
from .tensor import DType, Tensor


def map_file(path: Path) -> mmap.mmap:
    """The file's bytes as a read-only memory map: nothing is read until it is looked at."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            raise FileAccessError("a pipe or device", where=path, fix="Copy it to a file first.")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelFileError("the file is empty", where=path, fix="Fetch it again.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise file_error(error, path) from error


def forget_pages(tensor: Tensor) -> None:
    """Give back the memory of a tensor in a mapped file, when a copy of it has been made.

    The tensor stays as valid as before: who reads it again reads the file again. Pages that it
    shares with its neighbours stay.
    """
    mapped, page = tensor.buffer, mmap.PAGESIZE
    first = -(-tensor.offset // page) * page
    last = (tensor.offset + tensor.nbytes) // page * page
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise") and first < last:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True)
class TensorInfo:
    """One entry of a file's table of contents.

    dtype is None for a storage type this package does not know; kind names it all the same.
    offset counts bytes from the start of the file at `path`; nbytes is None with an unknown type.
    """

    name: str
    kind: str
    dtype: DType | None
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int | None


@dataclass
class TensorFile(Mapping[str, Tensor]):
    """A table of contents over mapped files: `file[name]` is a Tensor that copies nothing.

    A Tensor keeps its map alive. After `close()` the file hands out no more tensors; those taken
    before stay valid, and the operating system's map goes with the last of them.
    """

    path: Path
    metadata: dict[str, Any]
    infos: dict[str, TensorInfo]
    maps: dict[Path, mmap.mmap] = field(repr=False)
    format: str = "unnamed"

    def __getitem__(self, name: str) -> Tensor:
        info = self.infos[name]
        if info.dtype is None:
            raise UnsupportedError(
                f"tensor {name!r} is stored as {info.kind}, which this engine does not know",
                where=info.path,
                fix=f"Use a file in one of {', '.join(f.name for f in DECODED)}.",
            )
        if info.path not in self.maps:
            raise ModelFileError("the file was closed", where=info.path, fix="Open it again.")
        return Tensor(self.maps[info.path], info.dtype, info.shape, offset=info.offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors whose type is known."""
        return sum(info.nbytes or 0 for info in self.infos.values())

    def forget_pages(self) -> None:
        """Give back the memory of what was read; who reads a tensor again reads the file again.

        For after an engine has made copies of the weights. The tensors stay as valid as before.
        """
        for mapped in self.maps.values():
            if hasattr(mapped, "madvise"):  # not on Windows
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let go of the maps. Harmless when called twice.

        A map is dropped, not closed: NumPy views do not tell it that they look into it, and to
        read one over a closed map would crash the process.
        """
        self.maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
