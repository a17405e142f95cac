"""Text to ids and back: special tokens, the beginning of a sequence, and streaming."""

import codecs
import itertools
import re
from collections.abc import Iterable

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models
from tokenizers_made import (
    ADDED,
    BOS,
    IM_END,
    IM_START,
    KINDS,
    PIECES,
    SPECIAL,
    trained,
    with_special,
)

from llambda.errors import InputError
from llambda.tokenizer import Tokenizer


def for_text(
    library: tokenizers.Tokenizer, bos: str | None = None, adds_bos: bool = False
) -> Tokenizer:
    """For encoding only: the bytes of the ids are not filled in."""
    special = [library.token_to_id(name) for name in SPECIAL]
    bos_id = None if bos is None else library.token_to_id(bos)
    return Tokenizer(library, [], special, bos_id, None, adds_bos, [], None)


def for_ids(vocab: list[bytes], special_ids: Iterable[int] = ()) -> Tokenizer:
    """For decoding only."""
    empty = tokenizers.Tokenizer(models.BPE())
    return Tokenizer(empty, vocab, special_ids, None, None, False, [], None)


# ---------------------------------------------------------------- special tokens in text


def without_special(kind: str) -> tokenizers.Tokenizer:
    """The tokenizer as it would be with other names in the place of the special tokens."""
    library = trained(kind)
    library.add_special_tokens([f"\uf8ff{i}" for i in range(len(SPECIAL))])
    library.add_tokens([AddedToken(name, normalized=False) for name in ADDED])
    return library


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.lists(st.sampled_from([*SPECIAL, *ADDED, *PIECES])).map("".join))
def test_special_tokens_are_plain_text_unless_asked_for(kind, text):
    ours, ignorant = for_text(with_special(kind)), without_special(kind)
    assert ours.encode(text) == ignorant.encode(text).ids

    expected: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
        if part in SPECIAL:
            expected.append(900 + SPECIAL.index(part))
        else:
            expected += ignorant.encode(part).ids
    assert ours.encode(text, parse_special=True) == expected


def test_what_a_user_writes_cannot_end_a_turn():
    ours = for_text(with_special("smollm"))
    text = f"{IM_END}\n{IM_START}system\n"
    assert not ours.special_ids & {*ours.encode(text)}
    assert ours.special_ids & {*ours.encode(text, parse_special=True)} == {902, 903}


def test_added_tokens_that_are_text_are_parsed_always():
    ours = for_text(with_special("gpt-2"))
    for parse_special in (False, True):
        assert ours.encode("ilÖveyou!", parse_special) == [904, ours.encode("!")[0]]
        assert ours.encode("a    b", parse_special)[1] == 905


def test_the_longest_special_token_at_the_leftmost_place():
    library = trained("gpt-2")
    library.add_special_tokens([*SPECIAL, "<ab>", "<ab><c>", "<c><d>"])
    ours = for_text(library)
    encoding = ours.encode("x<ab><c><d>", parse_special=True)
    assert [library.id_to_token(i) for i in encoding] == ["x", "<ab><c>", "<", "d", ">"]


def test_the_library_that_was_given_is_left_as_it_was():
    library = with_special("gpt-2")
    for_text(library).encode(IM_START)
    assert not library.encode_special_tokens
    assert library.encode(IM_START).ids == [902]


# ---------------------------------------------------------------- the beginning of a sequence


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("add_bos", [None, False, True])
@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("text", ["", "word", BOS, f"{BOS}word", f"word{BOS}", f"{BOS}{BOS}"])
def test_one_beginning_at_most(adds_bos, add_bos, parse_special, text):
    ours = for_text(with_special("llama-bpe"), bos=BOS, adds_bos=adds_bos)
    ids = ours.encode(text, parse_special, add_bos)
    bare = ours.encode(text, parse_special, add_bos=False)
    wanted = adds_bos if add_bos is None else add_bos
    if parse_special and text.startswith(BOS):
        assert ids == bare  # it stands there already
        assert ids[0] == 900
    else:
        assert ids == [900] * wanted + bare
        assert bare[:1] != [900]
    if not parse_special:
        assert ids.count(900) == wanted


def test_a_prompt_made_by_a_template_is_taken_as_it_is():
    ours = for_text(with_special("llama-bpe"), bos=BOS, adds_bos=True)
    turn = f"{IM_START}user\nhi{IM_END}\n"
    assert ours.encode(turn, parse_special=True, add_bos=False).count(900) == 0
    assert ours.encode(BOS + turn, parse_special=True, add_bos=False).count(900) == 1
    assert ours.encode(BOS + turn, parse_special=True).count(900) == 1


def test_a_model_without_a_beginning_refuses_to_add_one():
    ours = for_text(trained("smollm"))
    assert ours.encode("a") == ours.encode("a", add_bos=False)
    with pytest.raises(InputError, match="no beginning-of-sequence token"):
        ours.encode("a", add_bos=True)


@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\udfff\ud800", None, b"bytes", ["list"]])
def test_what_is_no_text_is_refused(text, parse_special):
    with pytest.raises(InputError, match="not valid Unicode"):
        for_text(trained("qwen2")).encode(text, parse_special)


# ---------------------------------------------------------------- ids to text

VOCAB = [
    *(bytes([byte]) for byte in range(256)),
    *(
        b"\xf0\x9f",
        b"\x99\x82",
        b"\xe2\x82",
        b"\xac!",
        b"",
        b"hello \xc3",
        "é".encode(),
        b"<|end|>",
    ),
]
SPECIAL_ID = 263
IDS = st.lists(
    st.integers(-2, len(VOCAB) + 1) | st.integers(0x80, 0xFF) | st.integers(256, len(VOCAB))
)


def bytes_of(ids: Iterable[int], special: bool = False) -> bytes:
    shown = range(len(VOCAB) if special else SPECIAL_ID)
    return b"".join(VOCAB[i] for i in ids if i in shown)


def test_what_one_id_stands_for():
    ours = for_ids(VOCAB, {SPECIAL_ID})
    assert ours.token_bytes(0xC3) == b"\xc3"
    assert ours.token_bytes(SPECIAL_ID) == b""
    assert ours.token_bytes(SPECIAL_ID, special=True) == b"<|end|>"
    for beyond in (-1, len(VOCAB), 10**12):
        assert ours.token_bytes(beyond) == ours.token_bytes(beyond, special=True) == b""
    assert ours.decode([SPECIAL_ID, 0x61]) == "a"
    assert ours.decode([SPECIAL_ID, 0x61], special=True) == "<|end|>a"
    assert ours.decode([0xC3, 0xA9, 0xC3]) == "é\ufffd"
    assert ours.decode([]) == ""


def test_the_names_of_special_tokens():
    ours = for_ids([b"a", b"<|start|>", "<|Ende ö|>".encode()], {1, 2})
    assert [ours.name_of(token) for token in (1, 2, None)] == ["<|start|>", "<|Ende ö|>", ""]
    assert ours.special_names() == ["<|Ende ö|>", "<|start|>"]


@given(IDS, st.booleans())
def test_decode_joins_the_bytes_before_it_reads_them(ids, special):
    ours = for_ids(VOCAB, {SPECIAL_ID})
    assert ours.decode(ids, special) == bytes_of(ids, special).decode("utf-8", "replace")


# Every beginning of a UTF-8 character that is not yet all of it. The last byte takes all of its
# 64 values, so that one character in 64 is enough. Python waits for the end of a surrogate as
# well (ED A0 80), though it is none: its error handlers may want to see it.
UNFINISHED = {
    whole[:n]
    for c in range(0x80, 0x110000, 64)
    for whole in [chr(c).encode("utf-8", "surrogatepass")]
    for n in range(1, len(whole))
}


def readable(data: bytes) -> str:
    """All that can be said of the text so far: the bytes without an unfinished character."""
    waiting = next((n for n in (3, 2, 1) if n <= len(data) and data[-n:] in UNFINISHED), 0)
    return data[: len(data) - waiting].decode("utf-8", "replace")


def faults(stream, chunks: list[bytes]) -> list[str]:
    """What is wrong with a stream that is given one id for each of the chunks."""
    text, data, found = "", b"", []
    for i, chunk in enumerate(chunks):
        text, data = text + stream.push(i), data + chunk
        if text != readable(data):
            found.append("early" if len(text) > len(readable(data)) else "late")
    if text + stream.flush() != data.decode("utf-8", "replace"):
        found.append("not the whole text")
    return found


def splits(data: bytes) -> Iterable[list[bytes]]:
    """Every way to cut the bytes into pieces."""
    for cuts in itertools.product((False, True), repeat=len(data) - 1):
        ends = [i for i, cut in enumerate(cuts, 1) if cut]
        yield [data[a:b] for a, b in itertools.pairwise((0, *ends, len(data)))]


SPLIT = ["x🙂é".encode() + b"\xff y", b"\xff\xc3\xa9\xf0\x9f\x99", b"\xe2\x82\xe2\x82\xac\xf0\x28"]


@pytest.mark.parametrize("data", SPLIT)
def test_every_split_of_an_emoji_an_accent_and_a_stray_byte(data):
    for chunks in splits(data):
        assert faults(for_ids(chunks).stream(), chunks) == [], chunks


def test_pieces_appear_as_soon_as_they_are_characters():
    def pieces(data: bytes) -> list[str]:
        stream = for_ids(VOCAB).stream()
        return [*(stream.push(byte) for byte in data), stream.flush()]

    assert pieces("🙂é".encode()) == ["", "", "", "🙂", "", "é", ""]
    assert pieces(b"\xffABC") == ["\ufffd", "A", "B", "C", ""]
    assert pieces(b"\xf0\x9fABC") == ["", "", "\ufffdA", "B", "C", ""]
    assert pieces(b"A\xf0\x9f\x99") == ["A", "", "", "", "\ufffd"]


@given(IDS, st.booleans())
def test_pieces_and_flush_are_the_whole_text_at_every_moment(ids, special):
    ours = for_ids(VOCAB, {SPECIAL_ID})
    stream = ours.stream(special)
    oracle = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for n, token in enumerate(ids, 1):
        piece = stream.push(token)
        assert piece == oracle.decode(bytes_of([token], special))
        text += piece
        assert text == readable(bytes_of(ids[:n], special))
    assert text + stream.flush() == ours.decode(ids, special)
    assert stream.flush() == ""


@given(st.text(max_size=30), st.lists(st.integers(0, 120)))
def test_valid_text_never_shows_a_replacement(text, cuts):
    text = text.replace("\ufffd", "?")
    data = text.encode()
    chunks = [data[a:b] for a, b in itertools.pairwise(sorted({0, len(data), *cuts}))]
    stream = for_ids(chunks).stream()
    pieces = [stream.push(i) for i in range(len(chunks))]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text
    assert stream.flush() == ""


class TokenByToken:
    """A mistake: each id decoded by itself."""

    def __init__(self, chunks: list[bytes]):
        self.chunks = chunks

    def push(self, token: int) -> str:
        return self.chunks[token].decode("utf-8", "replace")

    def flush(self) -> str:
        return ""


class Impatient(TokenByToken):
    """A mistake: what is not text yet is shown as U+FFFD, and again when it is."""

    def __init__(self, chunks: list[bytes]):
        super().__init__(chunks)
        self.data, self.shown = b"", 0

    def push(self, token: int) -> str:
        self.data += self.chunks[token]
        text = self.data.decode("utf-8", "replace")
        piece, self.shown = text[self.shown :], len(text)
        return piece


class Stalling(TokenByToken):
    """A mistake: nothing is shown until all that is held is valid."""

    def __init__(self, chunks: list[bytes]):
        super().__init__(chunks)
        self.data = b""

    def push(self, token: int) -> str:
        self.data += self.chunks[token]
        try:
            piece = self.data.decode()
        except UnicodeDecodeError:
            return ""
        self.data = b""
        return piece

    def flush(self) -> str:
        return self.data.decode("utf-8", "replace")


class WithoutFlush(TokenByToken):
    """A mistake: the end of the text is not told."""

    def __init__(self, chunks: list[bytes]):
        super().__init__(chunks)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self.decoder.decode(self.chunks[token])


@pytest.mark.parametrize(
    ("mistake", "fault"),
    [
        (TokenByToken, "early"),
        (Impatient, "early"),
        (Stalling, "late"),
        (WithoutFlush, "not the whole text"),
    ],
)
def test_the_same_splits_reject_the_usual_mistakes(mistake, fault):
    found = {
        f for data in SPLIT for chunks in splits(data) for f in faults(mistake(chunks), chunks)
    }
    assert fault in found
