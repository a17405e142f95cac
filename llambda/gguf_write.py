"""Writing GGUF version 3. `gguf.py` describes the layout."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .errors import InputError
from .gguf import (
    ARRAY,
    BOOL,
    MAGIC,
    MAX_AXES,
    MAX_KEY,
    MAX_NAME,
    SCALARS,
    STRING,
    alignment_of,
    padded,
)
from .paths import atomic_write
from .quants import BY_NAME, Bytes
from .tensor import DType, count_bytes

VERSION = 3
U32, I32, F32, U64, I64, F64 = 4, 5, 6, 10, 11, 12  # value types
WHOLE = {U32, I32, U64, I64}


@dataclass(frozen=True)
class Entry:
    """One tensor to be written. data() gives its stored bytes when its turn has come."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: Callable[[], Bytes]


def write(path: Path, metadata: Mapping[str, Any], tensors: Sequence[Entry]) -> None:
    """Write a file that appears whole or not at all; one tensor is in memory at a time.

    Numbers in the metadata get the type that llama.cpp uses where they fit: u32 for whole numbers
    and f32 for others, i32 and f32 in arrays; a number that would change gets a wider type.
    """
    alignment = alignment_of(dict(metadata), path)
    if len({entry.name for entry in tensors}) < len(tensors):
        raise InputError("two tensors have the same name", where=path)
    with atomic_write(path) as file:
        file.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            kind = value_type(value, key)
            file.write(name_bytes(key, MAX_KEY) + struct.pack("<I", kind))
            file.write(value_bytes(kind, value, key))
        offset = 0
        for entry in tensors:
            file.write(info_bytes(entry, offset))
            offset = padded(offset + count_bytes(entry.shape, entry.dtype), alignment)
        if tensors:
            pad(file, alignment)
        for entry in tensors:
            data = entry.data().tobytes()
            if len(data) != count_bytes(entry.shape, entry.dtype):
                raise InputError(f"tensor {entry.name!r} has {len(data)} bytes of data")
            file.write(data)
            pad(file, alignment)


def pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def string_bytes(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeError as error:
        raise InputError(f"{text!r} is not valid Unicode") from error
    return struct.pack("<Q", len(data)) + data


def name_bytes(name: str, longest: int) -> bytes:
    data = string_bytes(name)
    if not 0 < len(data) - 8 <= longest:
        raise InputError(f"the name {name!r} has {len(data) - 8:,} bytes, not 1 to {longest:,}")
    return data


def info_bytes(entry: Entry, offset: int) -> bytes:
    """A row of the table of contents; the fastest axis comes first."""
    if len(entry.shape) > MAX_AXES:
        raise InputError(f"tensor {entry.name!r} has more than {MAX_AXES} axes")
    axes = struct.pack(f"<I{len(entry.shape)}Q", len(entry.shape), *reversed(entry.shape))
    kind = BY_NAME[entry.dtype.name].ggml_id
    return name_bytes(entry.name, MAX_NAME) + axes + struct.pack("<IQ", kind, offset)


def value_type(value: Any, key: str) -> int:
    """The value type to store a Python value as."""
    match value:
        case bool():
            return BOOL
        case str():
            return STRING
        case int():
            for kind in (U32, I32, U64, I64):
                if fits(value, kind):
                    return kind
        case float():
            return F32 if value != value or fits(value, F32) else F64
        case list() | tuple():
            return ARRAY
    raise InputError(f"metadata {key!r} cannot hold {value!r}")


def fits(value: float, kind: int) -> bool:
    """Whether the value survives being stored as that type."""
    code = "<" + SCALARS[kind]
    try:
        return bool(struct.unpack(code, struct.pack(code, value))[0] == value)
    except (struct.error, OverflowError):
        return False


def value_bytes(kind: int, value: Any, key: str) -> bytes:
    if kind == STRING:
        return string_bytes(value)
    if kind != ARRAY:
        return struct.pack("<" + SCALARS[kind], value)
    kind = element_type(value, key)
    entries = b"".join(value_bytes(kind, entry, key) for entry in value)
    return struct.pack("<IQ", kind, len(value)) + entries


def element_type(values: Sequence[Any], key: str) -> int:
    """One type for all entries of an array."""
    kinds = {value_type(entry, key) for entry in values}
    if kinds <= WHOLE:
        for kind in (I32, U32, I64, U64):
            if all(fits(entry, kind) for entry in values):
                return kind
    for kind, may_hold in ((F32, {F32}), (F64, {F32, F64}), (BOOL, {BOOL}), (STRING, {STRING})):
        if kinds <= may_hold:
            return kind
    raise InputError(f"the list {key!r} has no type that holds all its values")
