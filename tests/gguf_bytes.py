"""GGUF files put together byte by byte with struct, from the specification alone.

Nothing of llambda and nothing of the `gguf` package is used, so that no mistake is shared, and
every field can be given a value that no honest writer would write.
"""

import struct
from typing import Any

KINDS = {  # name -> value type, struct code
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<?"),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}
STRING, ARRAY = 8, 9
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8  # storage types


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def key(name: str | bytes, kind: str, value: Any) -> bytes:
    """One metadata entry; kind is a name in KINDS, "str", or either in brackets for an array."""
    if kind.startswith("["):
        element = kind.strip("[]")
        payload = b"".join(plain(element, each) for each in value)
        return string(name) + u32(ARRAY) + u32(number_of(element)) + u64(len(value)) + payload
    return string(name) + u32(number_of(kind)) + plain(kind, value)


def number_of(kind: str) -> int:
    return STRING if kind == "str" else KINDS[kind][0]


def plain(kind: str, value: Any) -> bytes:
    return string(value) if kind == "str" else struct.pack(KINDS[kind][1], value)


def info(name: str | bytes, axes: list[int], kind: int = F32, offset: int = 0) -> bytes:
    """One entry of the table of contents; axes as the file has them, fastest first."""
    return string(name) + u32(len(axes)) + b"".join(map(u64, axes)) + u32(kind) + u64(offset)


def pad(raw: bytes, alignment: int = 32) -> bytes:
    return raw + bytes(-len(raw) % alignment)


def file(
    keys: list[bytes] | None = None,
    infos: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    n_tensors: int | None = None,
    n_keys: int | None = None,
) -> bytes:
    """A whole file. The two counts are those of the lists, unless told otherwise."""
    keys, infos = keys or [], infos or []
    start = b"GGUF" + u32(version)
    start += u64(len(infos) if n_tensors is None else n_tensors)
    start += u64(len(keys) if n_keys is None else n_keys)
    return pad(start + b"".join(keys) + b"".join(infos), alignment) + data


def sample() -> bytes:
    """A valid file of some 400 bytes, with a value of every shape and two unlike tensors.

    matrix: F32, numbers 0 to 11 in three rows of four. blocks: Q8_0, two rows of one block, whose
    scales are 0.5 and -1.5 and whose codes are -16 to 15.
    """
    codes = struct.pack("<32b", *range(-16, 16))
    keys = [
        key("general.architecture", "str", "llama"),
        key("a.count", "u64", 2**33 + 1),
        key("a.flag", "bool", True),
        key("a.factor", "f32", 0.25),
        key("a.numbers", "[u16]", [1, 500, 65535]),
        key("a.words", "[str]", ["", "é", "two"]),
    ]
    infos = [info("matrix", [4, 3]), info("blocks", [32, 2], Q8_0, 64)]
    rows = struct.pack("<e", 0.5) + codes + struct.pack("<e", -1.5) + codes
    return file(keys, infos, pad(struct.pack("<12f", *range(12))) + rows)
