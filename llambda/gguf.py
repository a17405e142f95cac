"""GGUF, llama.cpp's model file: a header, metadata, a table of contents, then one long array.

Layout (docs/gguf.md of ggml; versions 2 and 3, little-endian):

    "GGUF" | u32 version | u64 tensors | u64 keys | keys... | tensor infos... | padding | data

A string is a u64 length and that many bytes of UTF-8. A key is a string, a u32 value type and a
value. A tensor info is a string, a u32 number of axes, a u64 for each axis (fastest first), a u32
storage type and a u64 offset into the data. The data starts, and each tensor in it starts, at a
multiple of `general.alignment` (32 by default).

Nothing in the file is trusted: every count, length, offset and product is compared with the bytes
that are there before it is used. Lesson 02.
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ModelFileError, UnsupportedError, plural
from .gguf_split import is_split, join_parts
from .quants import BY_ID
from .tensor import count_bytes
from .tensorfile import TensorFile, TensorInfo, map_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_AXES = 4
MAX_NAME = 64  # bytes
MAX_KEY = 65535  # bytes
MAX_SIZE = 2**60  # elements: times eight bytes, still a signed 64-bit number

SCALARS = {  # value type -> struct code
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9
SMALLEST_KEY = 8 + 1 + 4 + 1  # bytes: length, one letter, type, one-byte value
SMALLEST_INFO = 8 + 1 + 4 + 4 + 8  # bytes: length, one letter, axes, type, offset


def open(path: str | Path) -> TensorFile:
    """Open a GGUF file, or all parts of a split one when given the first.

    Returns a TensorFile: metadata as Python values (numeric arrays and string arrays as lists),
    tensors over the file's memory map. Raises FileAccessError, ModelFileError or UnsupportedError.
    """
    path = Path(path)
    file = open_part(path)
    return join_parts(file, open_part) if is_split(file) else file


def open_part(path: Path) -> TensorFile:
    """One GGUF file on its own, checked from its first byte to its last."""
    mapped = map_file(path)
    try:
        cursor = Cursor(mapped, path)
        version, n_tensors, n_keys = read_header(cursor)
        metadata = read_metadata(cursor, n_keys)
        infos = read_infos(cursor, n_tensors, alignment_of(metadata, path))
    except BaseException:
        mapped.close()
        raise
    return TensorFile(path, metadata, infos, {path: mapped}, f"GGUF version {version}")


class Cursor:
    """A reading position in a file: it never passes the end, and says what it was reading."""

    def __init__(self, data: Any, path: Path):
        self.data = data
        self.path = path
        self.at = 0

    @property
    def remaining(self) -> int:
        return len(self.data) - self.at

    def fail(self, what: str, fix: str = "The file is damaged: fetch it again.") -> ModelFileError:
        return ModelFileError(what, where=self.path, fix=fix)

    def skip(self, nbytes: int, what: str) -> int:
        """Step over `nbytes` and return where they began."""
        if nbytes > self.remaining:
            raise self.fail(
                f"truncated: {what} needs {nbytes:,} bytes at byte {self.at:,} "
                f"and the file ends at {len(self.data):,}"
            )
        start = self.at
        self.at += nbytes
        return start

    def number(self, code: str, what: str) -> Any:
        """One little-endian number of a struct code."""
        start = self.skip(struct.calcsize("<" + code), what)
        return struct.unpack_from("<" + code, self.data, start)[0]

    def string(self, what: str) -> str:
        nbytes = self.number("Q", what)
        start = self.skip(nbytes, what)
        try:
            return str(self.data[start : start + nbytes], "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} at byte {start:,} is not UTF-8") from error

    def count(self, smallest: int, what: str) -> int:
        """A u64 count of things of at least `smallest` bytes each: no more than can be there."""
        count: int = self.number("Q", f"the number of {what}")
        if count * smallest > self.remaining:
            raise self.fail(
                f"{count:,} {what} cannot fit in the {self.remaining:,} bytes that follow"
            )
        return count


def read_header(cursor: Cursor) -> tuple[int, int, int]:
    """Magic, version and the two counts: (version, tensors, keys)."""
    start = bytes(cursor.data[:256])
    if start[:4] != MAGIC:
        raise cursor.fail(describe_foreign(start), "Give a .gguf file, or fetch it again.")
    cursor.skip(4, "the magic")
    version = cursor.number("I", "the version")
    if version and version & 0xFFFF == 0:
        raise UnsupportedError(
            "a big-endian GGUF file",
            where=cursor.path,
            fix="Get or convert a little-endian one.",
        )
    if version not in VERSIONS:
        raise UnsupportedError(
            f"GGUF version {version}; versions 2 and 3 are read",
            where=cursor.path,
            fix="Convert the model again with a current llama.cpp.",
        )
    n_tensors = cursor.count(SMALLEST_INFO, "tensors")
    n_keys = cursor.count(SMALLEST_KEY, "metadata keys")
    return version, n_tensors, n_keys


def describe_foreign(start: bytes) -> str:
    """What a file that does not begin with the magic seems to be."""
    if MAGIC.startswith(start):
        return f"truncated: the file holds only {plural(len(start), 'byte')}"
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "not a GGUF file but a web page: the download got an error page instead of the model"
    if text.startswith(b"version https://git-lfs"):
        return "not a GGUF file but a Git LFS pointer: the model itself was not downloaded"
    if start.startswith(b"PK"):
        return "not a GGUF file but a zip archive (a PyTorch checkpoint, perhaps)"
    return f"not a GGUF file: it begins with {start[:4]!r} instead of {MAGIC!r}"


def read_metadata(cursor: Cursor, n_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.string("a metadata key")
        nbytes = len(key.encode())
        if not 0 < nbytes <= MAX_KEY:
            raise cursor.fail(f"a metadata key has {nbytes:,} bytes, not 1 to {MAX_KEY:,}")
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r} stands twice")
        kind = cursor.number("I", f"the type of {key!r}")
        metadata[key] = read_value(cursor, kind, key)
    return metadata


def read_value(cursor: Cursor, kind: int, key: str) -> Any:
    if kind == STRING:
        return cursor.string(f"the value of {key!r}")
    if kind == ARRAY:
        return read_array(cursor, key)
    if kind not in SCALARS:
        raise cursor.fail(f"metadata key {key!r} has the unknown value type {kind}")
    if kind == BOOL:
        return read_bool(cursor.number("B", f"the value of {key!r}"), cursor, key)
    return cursor.number(SCALARS[kind], f"the value of {key!r}")


def read_bool(byte: int, cursor: Cursor, key: str) -> bool:
    if byte > 1:
        raise cursor.fail(f"metadata key {key!r} holds {byte} where 0 or 1 is needed")
    return bool(byte)


def read_array(cursor: Cursor, key: str) -> list[Any]:
    kind = cursor.number("I", f"the element type of {key!r}")
    if kind == STRING:
        what = f"a string of {key!r}"
        return [cursor.string(what) for _ in range(cursor.count(8, f"strings of {key!r}"))]
    if kind not in SCALARS:
        word = "nested arrays" if kind == ARRAY else f"elements of unknown type {kind}"
        raise cursor.fail(f"metadata key {key!r} holds {word}")
    code = "B" if kind == BOOL else SCALARS[kind]
    count = cursor.count(struct.calcsize(code), f"elements of {key!r}")
    start = cursor.skip(count * struct.calcsize(code), f"the value of {key!r}")
    values = np.frombuffer(cursor.data, f"<{np.dtype(code).str[1:]}", count, start).tolist()
    return [read_bool(byte, cursor, key) for byte in values] if kind == BOOL else values


def alignment_of(metadata: dict[str, Any], path: Path) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    whole = isinstance(alignment, int) and not isinstance(alignment, bool)
    if not whole or alignment < 1 or alignment & (alignment - 1):
        raise ModelFileError(
            f"general.alignment is {alignment!r}, not a power of two",
            where=path,
            fix="Convert the model again.",
        )
    return alignment


def read_infos(cursor: Cursor, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    """The table of contents. Each tensor must start where the one before it ended, padded."""
    entries = [read_info(cursor) for _ in range(n_tensors)]
    data_start = padded(cursor.at, alignment)
    infos: dict[str, TensorInfo] = {}
    due, exact = 0, True  # not exact after a tensor of unknown size
    for name, shape, kind, offset in entries:
        if name in infos:
            raise cursor.fail(f"tensor {name!r} stands twice")
        if offset % alignment or offset < due or (exact and offset != due):
            wanted = f"{due:,}" if exact else f"a multiple of {alignment} from {due:,} on"
            raise cursor.fail(f"tensor {name!r} has offset {offset:,} where {wanted} is due")
        info = make_info(cursor, name, shape, kind, data_start + offset)
        infos[name] = info
        due, exact = padded(offset + (info.nbytes or 0), alignment), info.nbytes is not None
    return infos


def read_info(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape, storage type, offset into the data) of one tensor."""
    name = cursor.string("a tensor's name")
    if not 0 < len(name.encode()) <= MAX_NAME:
        raise cursor.fail(f"a tensor's name has {len(name.encode())} bytes, not 1 to {MAX_NAME}")
    n_axes = cursor.number("I", f"the axes of {name!r}")
    if n_axes > MAX_AXES:
        raise cursor.fail(f"tensor {name!r} has {n_axes:,} axes, more than {MAX_AXES}")
    axes = [cursor.number("Q", f"the shape of {name!r}") for _ in range(n_axes)]
    if math.prod(n or 1 for n in axes) > MAX_SIZE:
        raise cursor.fail(f"tensor {name!r} has the impossible shape {axes[::-1]}")
    kind = cursor.number("I", f"the type of {name!r}")
    offset = cursor.number("Q", f"the offset of {name!r}")
    return name, tuple(reversed(axes)), kind, offset  # the file names the fastest axis first


def make_info(
    cursor: Cursor, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> TensorInfo:
    """Check one entry against its type and the file's size. An unknown type is only named."""
    size = len(cursor.data)
    form = BY_ID.get(kind)
    if form is None:
        if offset > size:
            raise cursor.fail(f"truncated: tensor {name!r} starts at {offset:,} of {size:,} bytes")
        return TensorInfo(name, f"type {kind}", None, shape, cursor.path, offset, None)
    block = form.dtype.block
    if (shape[-1] if shape else 1) % block:
        raise cursor.fail(
            f"tensor {name!r} has rows of {shape[-1] if shape else 1:,}, "
            f"which {form.name}'s blocks of {block} do not divide"
        )
    nbytes = count_bytes(shape, form.dtype)
    if offset + nbytes > size:
        raise cursor.fail(
            f"truncated: tensor {name!r} ({form.name} {list(shape)}) needs bytes {offset:,} to "
            f"{offset + nbytes:,} and the file ends at {size:,}"
        )
    return TensorInfo(name, form.name, form.dtype, shape, cursor.path, offset, nbytes)


def padded(nbytes: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // alignment) * alignment
