"""Exercise 02.1: entries of GGUF metadata, files that are cut or lie, and readers that err."""

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from .base import Function, Wrong, said, same, shown

Entry = tuple[str, Any, int]  # name, value, where the next entry begins
Trap = tuple[bytes, int, str, str]  # a file, where its entry begins, what is wrong, what to learn


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word.encode())) + word.encode()


def entry(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


HEADER, AFTER = struct.pack("<4sIQQ", b"GGUF", 3, 0, 5), b"\x07" * 24  # what may stand around one
ENTRIES: list[tuple[bytes, tuple[str, Any]]] = [  # the bytes, and what they say
    (entry("width", 4, struct.pack("<I", 576)), ("width", 576)),
    (entry("llama.rope.base", 6, struct.pack("<f", 2.5)), ("llama.rope.base", 2.5)),
    (entry("größe", 10, struct.pack("<Q", 2**40 + 3)), ("größe", 2**40 + 3)),
    (entry("arch", 8, text("llama")), ("arch", "llama")),
    (entry("comments", 8, text("")), ("comments", "")),
    (entry("author", 8, text("Zoë 🙂")), ("author", "Zoë 🙂")),
    (entry("eos", 4, b"\xff\xff\xff\xff"), ("eos", 2**32 - 1)),
    (entry("seed", 10, b"\xfe" + b"\xff" * 7), ("seed", 2**64 - 2)),
]
AROUND = [  # at the file's start; behind the header; at an odd place; at the file's end
    (b"", AFTER),
    (HEADER, AFTER),
    (HEADER + ENTRIES[0][0], AFTER),
    (HEADER, b""),
]
RIGHT: dict[tuple[bytes, int], Entry] = {
    (before + raw + after, len(before)): (*says, len(before) + len(raw))
    for before, after in AROUND
    for raw, says in ENTRIES
}


# ---------------------------------------------------------------- readers that err


def but(change: Callable[[bytes, int, str, Any, int], Any]) -> Function:
    """A reader that makes something else of the file, `at` and what is right: name, value, end."""
    return lambda data, at: change(data, at, *RIGHT[data, at])


def padding(unit: int, layout: str, careful: bool, from_entry: bool = False) -> Function:
    """A reader that lets struct pad ("@"), or looks for the type at a multiple of `unit`.

    The multiple counts from the file's start or from the entry's.
    """

    def read(data: bytes, at: int) -> Entry:
        start = at if from_entry else 0
        (n,) = struct.unpack_from("<Q", data, at)
        name, at = data[at + 8 : at + 8 + n].decode(), at + 8 + n
        at += (start - at) % unit
        (kind,) = struct.unpack_from("<I", data, at)
        numbers = layout + "I" + {4: "I", 6: "f", 8: "Q", 10: "Q"}[kind]
        value, at = struct.unpack_from(numbers, data, at)[1], at + struct.calcsize(numbers)
        if kind == 8:
            if careful and at + value > len(data):
                raise ValueError("cut short")
            return name, data[at : at + value].decode(), at + value
        return name, value, at

    return read


def by_letters(data: bytes, at: int, name: str, value: Any, end: int) -> Entry:
    """What comes of going on by as many bytes as a string has letters."""
    if not name.isascii():
        raise ValueError("what is taken for the type stands inside the name")
    word = value if isinstance(value, str) else ""
    return name, value, end - len(word.encode()) + len(word)


def latin(word: Any) -> Any:
    return word.encode().decode("latin-1") if isinstance(word, str) else word


def in_ascii(data: bytes, at: int, name: str, value: Any, end: int) -> Entry:
    if not name.isascii() or not str(value).isascii():
        raise ValueError("no ASCII")
    return name, value, end


def unless(refused: Callable[[bytes, int, int], bool]) -> Function:
    """A reader that fails where `refused` of the file, `at` and the entry's end is true."""

    def read(data: bytes, at: int) -> Entry:
        if refused(data, at, RIGHT[data, at][2]):
            raise ValueError("refused")
        return RIGHT[data, at]

    return read


PADDED = "A file is packed without gaps: begin every format with '<', and round nothing up."
SIGNED = {"eos": 2**32, "seed": 2**64}
READERS_THAT_ERR: list[tuple[Function, str]] = [
    (
        but(by_letters),
        "a length counts bytes, and a letter beyond ASCII has several: go on by the length that "
        "the file gives, not by that of the decoded string.",
    ),
    (
        but(lambda data, at, name, value, end: (latin(name), latin(value), end)),
        "strings are UTF-8, where a letter may have several bytes. Latin-1 makes one letter of "
        "every byte.",
    ),
    (but(in_ascii), "a string beyond ASCII is refused. The bytes are UTF-8: decode them as such."),
    *(
        (padding(1, "@", careful), f"struct skips 4 bytes between the type and the value. {PADDED}")
        for careful in (False, True)
    ),
    *(
        (
            padding(unit, "<", False, from_entry),
            f"the type is looked for at the next multiple of {unit}. {PADDED}",
        )
        for unit in (4, 8)
        for from_entry in (False, True)
    ),
    (
        but(lambda data, at, name, value, end: (name, value, end - at)),
        "`end` counts from the entry. Count it from the file's start, as `at` does.",
    ),
    (
        but(lambda data, at, name, value, end: (name, value - SIGNED.get(name, 0), end)),
        "a u32 and a u64 have no sign: their letters are I and Q, not i and q.",
    ),
    (
        but(
            lambda data, at, name, value, end: (
                data[8 : 8 + len(name.encode())].decode(errors="replace"),
                value,
                end,
            )
        ),
        "the name is taken from the file's start, and not from `at` on.",
    ),
    (
        unless(lambda data, at, end: end == len(data)),
        "an entry that ends exactly where the file ends is refused, and it is all there. Nothing "
        "need follow: refuse if more bytes are wanted than are left, and not if as many are.",
    ),
    (
        unless(lambda data, at, end: at % 8 != 0),
        "it fails for an entry that begins at an odd place. Entries follow each other without "
        "gaps, so each begins at `at` exactly: round nothing up.",
    ),
    (
        unless(lambda data, at, end: at != 0),
        "it fails for an entry that is not at byte 0. Begin to read at `at`.",
    ),
    (
        but(lambda data, at, name, value, end: (name, value)),
        "`end` is missing: three things are wanted.",
    ),
]

# ---------------------------------------------------------------- files that are cut, or lie

BACKWARDS = 2**64 - 16  # as a signed number -16, and added to a position it wraps around
PLAIN = (2**63, 2**40, 200)
BACK = (
    "a length is a u64, Q, and no q; and here it becomes -16, or its sum with the position wraps "
    "around, so that reading goes on backwards"
)
HALF = "a length is a u64, Q, and no I; only four of its eight bytes are looked at"
TRUSTED = "a length is trusted"
COMPARE = (
    "A slice that passes the end is silently shorter: compare with the bytes that are left first."
)


def cuts() -> Iterator[Trap]:
    """Every beginning of every entry."""
    for raw, _ in ENTRIES:
        for n in range(len(raw)):
            yield HEADER + raw[:n], len(HEADER), f"an entry of {len(raw)} bytes is cut to {n}", ""


def lies() -> Iterator[Trap]:
    """A name, and then a string, that announces more bytes than there are."""
    before = struct.pack("<II", 4, 576)  # 16 bytes backwards from a name are a type and a value
    name, string = ENTRIES[0][0][8:], entry("arch", 8, b"")
    for lie, why in ((2**32 + 5, HALF), (BACKWARDS, BACK), *((n, TRUSTED) for n in PLAIN)):
        length = struct.pack("<Q", lie)
        for part, raw in (("name", length + name), ("string", string + length + b"llama")):
            data = before + raw + AFTER
            yield data, len(before), f"a {part} of {lie:,} bytes is announced in {len(data)}", why


# ---------------------------------------------------------------- types that are not asked for

OTHERS = {  # type -> its name, and the bytes that the value 1 takes
    0: ("u8", 1),
    1: ("i8", 1),
    2: ("u16", 2),
    3: ("i16", 2),
    5: ("i32", 4),
    7: ("bool", 1),
    9: ("array", 16),
    11: ("i64", 8),
    12: ("f64", 8),
}
UNKNOWN = (99, 13)


def answered(read: Function, data: bytes, at: int) -> Any:
    """What a reader gives: raises what it raises, and follows an iterator to its end."""
    found = read(data, at)
    return list(islice(found, 4)) if isinstance(found, Iterator) else found


def must_refuse(read: Function, traps: Iterable[Trap]) -> None:
    """Raise Wrong unless the answer raises ValueError for all of them."""
    crashed = None
    for data, at, what, why in traps:
        try:
            found = answered(read, data, at)
        except ValueError:
            continue
        except Exception as error:
            crashed = crashed or f"where {what} it ends in {said(error).partition(':')[0]}"
            continue
        if not why:
            if not isinstance(found, tuple | list) or len(found) != 3:
                why = "nothing is raised"
            elif not isinstance(found[1], str):
                why = "a number is made of fewer bytes than it has"
            else:
                why = "nothing is compared with what is left" if crashed else TRUSTED
        advice = "" if why in (BACK, HALF) else f" {COMPARE}"
        raise Wrong(f"{why}: {what}, and your reader answers {shown(found)}.{advice}")
    if crashed:
        raise Wrong(
            f"it refuses, but not cleanly: {crashed}. Compare with the bytes that are left before "
            "you read, and raise ValueError."
        )


def must_refuse_type(read: Function, kind: int) -> None:
    """Raise Wrong unless the answer raises ValueError for a value of this type."""
    name, size = OTHERS.get(kind, ("", 0))
    value = struct.pack("<IQI", 4, 1, 1) if name == "array" else struct.pack("<Q", 1)[:size]
    raw = entry("a", kind, value)
    try:
        found = answered(read, raw + AFTER, 0)
    except ValueError:
        return
    except Exception as error:
        raise Wrong(f"type {kind} ends in another error than ValueError: {said(error)}") from None
    if not name:
        raise Wrong(f"a value of type {kind} is accepted, and nobody can know where it ends.")
    end = found[2] if isinstance(found, tuple | list) and len(found) == 3 else None
    if not same(end, len(raw)):
        raise Wrong(
            f"type {kind} ({name}) is accepted, and reading goes on at byte {shown(end)}. But this "
            f"entry ends at byte {len(raw)}, and all that follows would be misread. Raise "
            "ValueError for every type other than 4, 6, 8 and 10."
        )
    raise Wrong(
        f"type {kind} ({name}) is accepted. Only 4, 6, 8 and 10 are asked for here: raise "
        "ValueError for all others."
    )
