"""Exercise 03.2: bytes that come in pieces, and what a streaming decoder may get wrong."""

import codecs
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from .base import Answer, Raised, Wrong, result, shown


def splits(data: bytes) -> Iterator[list[bytes]]:
    """Every way to cut bytes into pieces that are not empty."""
    places = range(1, len(data))
    for n in range(len(data)):
        for cuts in combinations(places, n):
            yield [data[a:b] for a, b in pairwise((0, *cuts, len(data)))]


def corners() -> Iterator[str]:
    """For every first byte the first and the last character that it begins."""
    begins = [
        *range(0x80, 0x800, 0x40),
        *(0x800, *range(0x1000, 0x10000, 0x1000)),
        *(0x10000, *range(0x40000, 0x110000, 0x40000)),
        0x110000,
    ]
    for begin, end in pairwise(begins):
        yield chr(begin)
        yield chr(0xD7FF if begin == 0xD000 else end - 1)  # what follows there are surrogates


WHOLE = ["é🙂!".encode(), "a€b".encode()]
CORNERS = [letter.encode() for letter in corners()]
STRAY = [b"\xffABC", b"A\xff\xf0\x9f\x99\x82", b"\xf0\x9f\xffABC", b"A\x82BC"]
CUT = ["ok 🙂".encode()[:-1], "é".encode()[:1]]
NO_FIRST = [*range(0x80, 0xC0), *range(0xF8, 0x100)]
ALONE = [0x00, 0x7F]  # the outermost characters of one byte
NESTED = [b"\xe0\x80A", b"\xf0\x9f\xe2\x82\xacA", b"\xc3\xc3\xa9", b"\xed\xa0\x80A", b"\xf4\x90A"]
NESTED += [b"\xed\xa0", b"\xe0\x80", b"A\xf0\x80\x80", b"\xf4\x90", b"\xf5\x80", b"\xc0"]


def decoded(pieces: Sequence[bytes]) -> list[str]:
    """What Python's own incremental decoder gives for each piece, and at the end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [*map(decoder.decode, pieces), decoder.decode(b"", final=True)]


def run(answer: Answer, pieces: Sequence[bytes]) -> Any:
    """What the answer gives for each piece, and at the end. Raises Wrong if it is no text."""
    given = result(lambda pieces: pushed(answer(), pieces), (pieces,))
    for i, text in enumerate([] if isinstance(given, Raised) else given):
        if text is not None and not isinstance(text, str):
            name = "push" if i < len(pieces) else "flush"
            raise Wrong(
                f"{name} returns {type(text).__name__}, {shown(text)}. It should be a string: the "
                "text that may be shown now."
            )
    return given


def pushed(stream: Any, pieces: Sequence[bytes]) -> list[Any]:
    return [*map(stream.push, pieces), stream.flush()]


def judge_stream(answer: Answer) -> None:
    """Raise Wrong unless the answer is a decoder that shows the right text at the right time."""
    if not isinstance(answer, type):
        raise Wrong(f"a class is wanted, and {shown(answer)} is none.")
    if not hasattr(answer, "push"):
        raise Wrong("push is missing.")
    if not hasattr(answer, "flush"):
        raise Wrong("flush is missing: a text that ends inside a character loses its end.")
    given = run(answer, [b"\xff", b"A", b"B", b"C"])
    if not isinstance(given, Raised) and "A" not in "".join(filter(None, given[:-1])):
        raise Wrong(
            "it stalls: after the byte 0xFF, which can never become part of a character, all that "
            f"follows waits. [b'\\xff', b'A', b'B', b'C'], pushed one by one, gives {shown(given)}."
        )
    for data in WHOLE:
        judge_pieces(answer, data)
    for data in CORNERS:
        judge_corner(answer, data)
    for data in (*STRAY, *CUT):
        judge_pieces(answer, data)
    for byte in NO_FIRST:
        judge_stray(answer, byte)
    for byte in ALONE:
        judge_alone(answer, byte)
    for data in NESTED:
        judge_joined(answer, data)
    one, other = answer(), answer()
    one.push(b"\xc3")
    if other.push(b"A") != "A":
        raise Wrong("two streams share what they hold back: keep it in self, not in the class.")


def judge_corner(answer: Answer, data: bytes) -> None:
    for pieces in splits(data):
        given, right = run(answer, pieces), decoded(pieces)
        if given != right:
            raise Wrong(
                f"the byte {data[0]:#x} begins a character of {len(data)} bytes, and all others in "
                f"it are from 0x80 to 0xbf. {told(pieces, given, right)}"
            )


def judge_stray(answer: Answer, byte: int) -> None:
    why = "it only continues one" if byte < 0xC0 else "the table ends at 0xf7"
    for pieces in ([bytes([byte]), b"A"], [bytes([byte]) + b"A"]):
        given, right = run(answer, pieces), decoded(pieces)
        if given != right:
            raise Wrong(
                f"the byte {byte:#x} begins no character, for {why}, and has nothing to wait for. "
                f"{told(pieces, given, right)}"
            )


def judge_alone(answer: Answer, byte: int) -> None:
    pieces = [b"\xe2", bytes([byte])]
    given, right = run(answer, pieces), decoded(pieces)
    if given != right:
        raise Wrong(
            f"the byte {byte:#04x} is a character by itself, and continues none: neither it has to "
            f"wait, nor what stands in front of it. {told(pieces, given, right)}"
        )


def judge_joined(answer: Answer, data: bytes) -> None:
    """Only the text as a whole is judged: how soon a broken sequence is given up is left open."""
    whole = data.decode("utf-8", "replace")
    for pieces in splits(data):
        given = run(answer, pieces)
        if not isinstance(given, Raised) and "".join(filter(None, given)) == whole:
            continue
        why = ""
        if not isinstance(given, Raised):
            text = "".join(filter(None, given))
            if set(whole) - set(text):
                why = "a good character is lost: the byte that breaks one may begin the next. "
            elif given[-1] == "\ufffd" and len(text) < len(whole):
                why = (
                    "flush makes one U+FFFD of all that is left, whatever it is. Bytes that cannot "
                    "stand together have one each: have it decoded with 'replace'. "
                )
        raise Wrong(
            f"{why}{pieces}, pushed one after the other, gives {shown(given)}; all of it together "
            f"should be {whole!r}, as decode gives it."
        )


def told(pieces: list[bytes], given: Any, right: list[str]) -> str:
    return f"{pieces}, pushed one after the other, gives {shown(given)}; right is {shown(right)}."


def judge_pieces(answer: Answer, data: bytes) -> None:
    """Judge every way to cut the bytes, and a way with empty pieces."""
    for pieces in (*splits(data), [b"", data[:2], b"", data[2:]]):
        given, right = run(answer, pieces), decoded(pieces)
        if given != right:
            raise Wrong(f"{kind_of_mistake(given, right)}{told(pieces, given, right)}")


def kind_of_mistake(given: Any, right: list[str]) -> str:
    """What to say of texts that are not right, with a blank behind; nothing, if it is not known."""
    if isinstance(given, Raised):
        return ""
    if any(text is None for text in given[:-1]):
        return "push returns None where it has no text yet: return an empty string. "
    if given[:-1] == right[:-1]:
        return mistake_at_the_end(given[-1], right[-1])
    so_far, wanted = "", ""
    for a, b in zip(given[:-1], right[:-1], strict=True):
        so_far, wanted = so_far + a, wanted + b
        if so_far != wanted:
            break
    if so_far.count("\ufffd") > wanted.count("\ufffd"):
        behind = " behind a stray byte" if "\ufffd" in wanted else ""
        return (
            f"U+FFFD too early{behind}: the last bytes may still become a character, so hold them "
            "back. "
        )
    shown_later = "\ufffd" in "".join(filter(None, given))
    if wanted.startswith(so_far) and wanted[len(so_far)] == "\ufffd" and shown_later:
        return (
            "U+FFFD too late: a byte that can no longer become part of a character has nothing to "
            "wait for. "
        )
    if so_far == wanted.replace("\ufffd", ""):
        return "a byte that is part of no character was dropped. Show it as U+FFFD. "
    if wanted.startswith(so_far):
        return (
            "too much is held back: only an end that may still become a character has to wait, not "
            "what is complete in front of it. "
        )
    return ""


def mistake_at_the_end(given: Any, right: str) -> str:
    if given is None:
        return "no flush: it returns None. Return a string, perhaps an empty one. "
    if right and given.startswith(right):
        return (
            "one U+FFFD of every byte is too much: bytes that could have become one character "
            "together have one. Have what is left decoded with 'replace'. "
        )
    kind = "no flush of the end" if right else "flush says too much"
    return f"{kind}: what is unfinished when the text is over becomes U+FFFD. "
