"""Byte-level BPE by hand against the `tokenizers` library, id by id."""

import heapq
import random
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers_made import (
    KINDS,
    YOUNG_LETTERS,
    YOUNG_NUMBERS,
    alphabet,
    any_text,
    assembled,
    fixed_texts,
    pre_tokenizer,
    tokens_and_merges,
    trained,
)

from llambda import bpe, gguf
from llambda.bpe import (
    PATTERNS,
    ByteLevelBPE,
    byte_glyphs,
    glyph_bytes,
    merge,
    split_words,
    to_glyphs,
)

# ---------------------------------------------------------------- the byte table


def test_byte_glyphs_are_one_character_each_and_the_librarys():
    glyphs = byte_glyphs()
    assert len(glyphs) == len(set(glyphs)) == 256
    assert sorted(glyphs) == alphabet()
    assert glyph_bytes() == {glyph: byte for byte, glyph in enumerate(glyphs)}
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for c in map(chr, range(0x800)):  # all bytes that can stand in UTF-8 but those of 3 and 4 bytes
        assert to_glyphs(c.encode()) == spell.pre_tokenize_str(c)[0][0]


def test_the_68_bytes_that_are_no_printable_character_are_shifted_in_order():
    shifted = [byte for byte, glyph in enumerate(byte_glyphs()) if ord(glyph) != byte]
    assert shifted == [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    assert [byte_glyphs()[byte] for byte in shifted] == [chr(0x100 + i) for i in range(68)]
    assert to_glyphs(b" \n\xad") == "\u0120\u010a\u0143"


def test_a_letter_is_spelled_by_its_bytes_not_by_its_code_point():
    assert to_glyphs("é".encode()) == "Ã©"
    every_byte = ByteLevelBPE(byte_glyphs(), [], PATTERNS["gpt-2"])
    assert every_byte.encode("é") == [195, 169]
    assert every_byte.decode([195, 169]) == "é"
    assert every_byte.decode([195]) == "\ufffd"


# ---------------------------------------------------------------- cutting into words

WORDS = [
    ("llama-bpe", "3333+777?", ["333", "3", "+", "777", "?"]),
    ("llama-bpe", "DON'T", ["DON", "'T"]),
    ("llama-bpe", "a\n\n b", ["a", "\n\n", " b"]),
    ("qwen2", "3333+777?", ["3", "3", "3", "3", "+", "7", "7", "7", "?"]),
    ("gpt-2", "3333+777?", ["3333", "+", "777", "?"]),
    ("gpt-2", "a 4 ½ b", ["a", " 4", " ½", " b"]),
    ("smollm", "a 4 ½ b", ["a", " ", "4", " ", "½", " b"]),
    ("gpt-2", "  1", [" ", " 1"]),
    ("smollm", "  1", ["  ", "1"]),
    ("gpt-2", "DON'T", ["DON", "'", "T"]),
    ("gpt-2", "don't", ["don", "'t"]),
    ("gpt-2", "a\u00a0b", ["a", "\u00a0", "b"]),
    ("gpt-2", "a \n b", ["a", " \n", " b"]),
    ("gpt-2", "a   ", ["a", "   "]),
    ("gpt-2", "日本語 x", ["日本語", " x"]),
    ("gpt-2", "\r\n x", ["\r\n", " x"]),
    ("gpt-2", "\u02bcs", ["\u02bcs"]),  # a letter, no apostrophe
    ("llama-bpe", "\u02bcs", ["\u02bcs"]),
    ("llama-bpe", "'\u017fe", ["'\u017f", "e"]),  # the long s is an s in lower case
]


@pytest.mark.parametrize(("kind", "text", "words"), WORDS)
def test_words(kind, text, words):
    assert split_words(text, PATTERNS[kind]) == words
    theirs = [piece for piece, _ in pre_tokenizer(kind).pre_tokenize_str(text)]
    assert theirs == [to_glyphs(word.encode()) for word in words]


@pytest.mark.parametrize("kind", KINDS)
@given(text=any_text)
def test_words_are_the_librarys_and_lose_nothing(kind, text):
    words = split_words(text, PATTERNS[kind])
    assert "".join(words) == text
    assert "" not in words
    theirs = [piece for piece, _ in pre_tokenizer(kind).pre_tokenize_str(text)]
    assert [to_glyphs(word.encode()) for word in words] == theirs


CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matched_by_regex(pattern: str) -> set[int]:
    return {ord(c) for c in regex.findall(pattern, "".join(CHARACTERS))}


@pytest.mark.parametrize(
    ("pattern", "young"),
    [(r"\p{L}", YOUNG_LETTERS), (r"\p{N}", YOUNG_NUMBERS), (r"\s", frozenset())],
)
def test_regex_and_oniguruma_differ_only_in_young_characters(pattern, young):
    without = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    rest = "".join(piece for piece, _ in without.pre_tokenize_str("".join(CHARACTERS)))
    theirs = {ord(c) for c in CHARACTERS} - {ord(c) for c in rest}
    assert len(theirs) >= 25  # white space is the smallest class
    assert theirs ^ matched_by_regex(pattern) <= young
    assert all(unicodedata.category(chr(c)) == "Cn" for c in young)  # Python knows Unicode 14 to 16


def test_regex_and_rust_differ_only_in_young_numbers():
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = digits.pre_tokenize_str("".join(f"{c}--" for c in CHARACTERS))
    theirs = {ord(piece) for piece, _ in pieces if len(piece) == 1}
    assert len(theirs) > 1900
    assert theirs ^ matched_by_regex(r"\p{N}") <= YOUNG_NUMBERS


# ---------------------------------------------------------------- merging

Ranks = dict[tuple[str, str], int]


def slow_merge(word: str, ranks: Ranks) -> list[str]:
    """The definition: merge the leftmost pair of lowest rank until none is left."""
    pieces = list(word)
    while True:
        found = [(ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in ranks]
        if not found:
            return pieces
        _, i = min(found)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def longest_match(word: str, ranks: Ranks) -> list[str]:
    """A mistake: the longest token at each place."""
    tokens = {*word, *(left + right for left, right in ranks)}
    pieces = []
    while word:
        n = max(n for n in range(1, len(word) + 1) if word[:n] in tokens)
        pieces.append(word[:n])
        word = word[n:]
    return pieces


def leftmost_pair(word: str, ranks: Ranks) -> list[str]:
    """A mistake: the first pair that can be merged, whatever its rank."""
    return slow_merge(word, dict.fromkeys(ranks, 0))


def rightmost_pair(word: str, ranks: Ranks) -> list[str]:
    """A mistake: the last among equals."""
    mirrored = {(right[::-1], left[::-1]): rank for (left, right), rank in ranks.items()}
    return [piece[::-1] for piece in reversed(slow_merge(word[::-1], mirrored))]


def overlapping_pairs(word: str, ranks: Ranks) -> list[str]:
    """A mistake: every pair of the word at once, though two may share a piece."""
    pieces = list(word)
    for pair in sorted(ranks, key=ranks.__getitem__):
        pieces = [
            a + b if (a, b) == pair else a for a, b in zip(pieces, [*pieces[1:], ""], strict=True)
        ]
    return pieces


def ranked(*merges: str) -> Ranks:
    return {(m.split()[0], m.split()[1]): rank for rank, m in enumerate(merges)}


MERGED = [
    ("abc", ranked("b c", "a b"), ["a", "bc"]),
    ("abc", ranked("a b", "b c", "ab c"), ["abc"]),
    ("aaaaa", ranked("a a"), ["aa", "aa", "a"]),
    ("aaaaaaa", ranked("a a", "aa a"), ["aa", "aa", "aaa"]),
    ("aaaaaaa", ranked("a a", "aa aa"), ["aaaa", "aa", "a"]),
    ("abab", ranked("b a", "a b", "a ba"), ["aba", "b"]),
    ("abcd", ranked("c d", "b cd", "a b"), ["a", "bcd"]),
    ("xyz", ranked("a b"), ["x", "y", "z"]),
    ("x", ranked("a b"), ["x"]),
    ("", ranked("a b"), []),
]


def library_merge(word: str, ranks: Ranks) -> list[str]:
    """What the library makes of it."""
    merges = sorted(ranks, key=ranks.__getitem__)
    texts = {*word, *(part for pair in merges for part in (*pair, "".join(pair)))}
    model = models.BPE({text: i for i, text in enumerate(sorted(texts))}, merges)
    return [token.value for token in model.tokenize(word)]


@pytest.mark.parametrize(("word", "ranks", "pieces"), MERGED)
def test_rank_order(word, ranks, pieces):
    assert merge(word, ranks) == slow_merge(word, ranks) == library_merge(word, ranks) == pieces


@pytest.mark.parametrize(
    "mistake", [longest_match, leftmost_pair, rightmost_pair, overlapping_pairs]
)
def test_the_same_cases_reject_the_usual_mistakes(mistake):
    assert any(mistake(word, ranks) != pieces for word, ranks, pieces in MERGED)


@st.composite
def vocabularies(draw: st.DrawFn) -> Ranks:
    """Merges over three letters, each part a letter or merged itself, in any order of rank."""
    pieces = ["a", "b", "c"]
    pairs: dict[tuple[str, str], None] = {}
    for _ in range(draw(st.integers(0, 12))):
        left, right = draw(st.sampled_from(pieces)), draw(st.sampled_from(pieces))
        if len(left + right) <= 8:
            pairs[left, right] = None
            pieces.append(left + right)
    return {pair: rank for rank, pair in enumerate(draw(st.permutations(list(pairs))))}


@given(vocabularies(), st.text("abc", max_size=40))
def test_merge_is_its_definition_and_the_librarys(ranks, word):
    assert merge(word, ranks) == slow_merge(word, ranks) == library_merge(word, ranks)


class Counting(dict):
    """Ranks that count how often a pair is looked up."""

    looked_up = 0

    def get(self, pair, default=None):
        self.looked_up += 1
        return super().get(pair, default)

    def __contains__(self, pair):
        self.looked_up += 1
        return super().__contains__(pair)


def test_merging_takes_few_steps_however_long_the_word(monkeypatch):
    pushed = []

    def push(heap, entry):
        pushed.append(1)
        heapq_push(heap, entry)

    heapq_push = heapq.heappush
    monkeypatch.setattr(bpe.heapq, "heappush", push)
    doubling = Counting({("a" * 2**i, "a" * 2**i): i for i in range(15)})
    letters = random.Random(1).choices("abcd", k=50_000)
    pairs = [(x, y) for x in "abcd" for y in "abcd"]
    longer = [(x + y, z + w) for x, y in pairs for z, w in pairs]
    for word, ranks in [
        ("a" * 50_000, doubling),
        ("".join(letters), Counting({pair: i for i, pair in enumerate(pairs + longer)})),
        ("".join(letters), Counting({pair: -i for i, pair in enumerate(pairs + longer)})),
    ]:
        pushed.clear()
        pieces = merge(word, ranks)
        assert "".join(pieces) == word
        assert len(pieces) < 25_000
        assert 50_000 < ranks.looked_up < 3 * len(word)
        assert 25_000 < len(pushed) < 3 * len(word)
    assert len(merge("a" * 50_000, doubling)) == sum(map(int, f"{50_000 % 2**15:b}")) + 1


def test_the_count_rejects_a_quadratic_merge():
    ranks = Counting({("a", "a"): 0})
    slow_merge("a" * 300, ranks)
    assert ranks.looked_up > 30 * 300


# ---------------------------------------------------------------- whole tokenizers


def by_hand(library: Tokenizer, kind: str, ignore_merges: bool = False) -> ByteLevelBPE:
    return ByteLevelBPE(*tokens_and_merges(library), PATTERNS[kind], ignore_merges)


def normal_form(library: Tokenizer, text: str) -> str:
    """Qwen 2 brings text into NFC first, which is no part of byte-level BPE."""
    return text if library.normalizer is None else library.normalizer.normalize_str(text)


def assert_same(library: Tokenizer, ours: ByteLevelBPE, text: str) -> None:
    theirs = library.encode(text, add_special_tokens=False).ids
    assert ours.encode(normal_form(library, text)) == theirs, ascii(text[:80])
    assert ours.decode(theirs) == library.decode(theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_the_librarys_on_fixed_texts(kind):
    library = trained(kind)
    ours = by_hand(library, kind, ignore_merges=kind == "llama-bpe")
    for text in fixed_texts():
        assert_same(library, ours, text)
        text = normal_form(library, text)
        ids = ours.encode(text)
        assert ours.decode(ids) == text
        if len(text) > 50_000:  # source code: merges are used
            assert len(ids) < 0.6 * len(text)


@pytest.mark.parametrize("kind", KINDS)
@given(text=any_text)
def test_ids_are_the_librarys_on_any_text(kind, text):
    library = trained(kind)
    assert_same(library, by_hand(library, kind, ignore_merges=kind == "llama-bpe"), text)


def test_one_text_tells_the_four_pre_tokenizers_apart():
    cuts = {kind: split_words("DON'T 3333+777", PATTERNS[kind]) for kind in KINDS}
    assert len({tuple(words) for words in cuts.values()}) == 4


def test_a_word_that_is_a_token_is_taken_whole_only_where_merges_are_ignored():
    tokens = [*alphabet(), "ab", "bc", "abc", "\u0120abc", "\u0120"]
    tokens = list(dict.fromkeys(tokens))
    merges = [("b", "c"), ("a", "b")]
    library = assembled(tokens, merges, "llama-bpe", ignore_merges=True)
    ours = by_hand(library, "llama-bpe", ignore_merges=True)
    spelled = [tokens[i] for i in ours.encode("abc abc abcc")]
    assert spelled == ["abc", "\u0120abc", "\u0120", "a", "bc", "c"]
    for text in ("abc abc abcc", *fixed_texts()[:20]):
        assert_same(library, ours, text)
    library = assembled(tokens, merges, "llama-bpe")
    ours = by_hand(library, "llama-bpe")
    assert [tokens[i] for i in ours.encode("abc")] == ["a", "bc"]
    assert_same(library, ours, "abc abc abcc")


@given(st.text("=*\x04\x06", max_size=12))
def test_a_byte_without_a_token_is_left_out_and_its_neighbours_meet(text):
    library = assembled(["=", "*", "==", "=*"], [("=", "="), ("=", "*")])
    assert_same(library, by_hand(library, "gpt-2"), text)


def test_neighbours_of_a_byte_without_a_token_are_merged():
    ours = ByteLevelBPE(["=", "=="], [("=", "=")], PATTERNS["gpt-2"])
    assert ours.encode("=\x04=") == [1]


def test_a_merge_learned_twice_has_its_last_rank():
    tokens = ["a", "b", "c", "ab", "bc"]
    merges = [("a", "b"), ("b", "c"), ("a", "b")]
    library = assembled(tokens, merges)
    assert Tokenizer.from_str(library.to_str()).encode("abc").tokens == ["a", "bc"]
    assert ByteLevelBPE(tokens, merges, PATTERNS["gpt-2"]).encode("abc") == [0, 4]


@pytest.mark.real
def test_ids_are_the_librarys_with_the_vocabulary_of_smollm2(smollm2_path: Path):
    metadata = gguf.open(smollm2_path).metadata
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    library = assembled(tokens, merges, "smollm")
    ours = ByteLevelBPE(tokens, merges, PATTERNS["smollm"])
    for text in fixed_texts():
        assert_same(library, ours, text)
    # it has no token for byte 4, which stands between two that merge
    assert to_glyphs(b"\x04") not in tokens
    assert ours.encode("=\x04=") == [tokens.index("==")]

    @given(text=any_text)
    def on_any_text(text):
        assert_same(library, ours, text)

    on_any_text()


def test_ids_are_the_librarys_with_the_vocabulary_of_tiny(tiny_path: Path):
    library = Tokenizer.from_file(str(tiny_path.parent / "tiny" / "tokenizer.json"))
    ours = by_hand(library, "smollm")
    for text in fixed_texts():
        assert_same(library, ours, text)

    @given(text=any_text)
    def on_any_text(text):
        assert_same(library, ours, text)

    on_any_text()
