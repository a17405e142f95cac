"""Byte-level BPE by hand: text -> words -> ranked byte pairs -> token ids. Lesson 03.

A model reads neither words nor letters but pieces of UTF-8 bytes. A pattern first cuts the text
into words; inside a word, the neighbours whose pair was learned earliest are merged, again and
again, until no learned pair is left. `tokenizer.py` does the same with the `tokenizers` library;
this module exists to be read, and agrees with it id by id.
"""

import heapq
from collections.abc import Iterable, Sequence
from functools import cache

import regex

# How text is cut into words, by GGUF's name for it: each pattern cuts the pieces left by the one
# before. The sources are the tokenizers published with GPT-2, SmolLM, Llama 3 and Qwen 2.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")  # for text in NFC, the composed normal form
PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "llama-bpe": (LLAMA3,),
    "qwen2": (QWEN2,),
}


@cache
def byte_glyphs() -> tuple[str, ...]:
    """One printable character for each byte, as GPT-2's vocabulary spells bytes.

    Bytes that are printable Latin-1 characters stand for themselves; the 68 others (controls,
    blanks, the soft hyphen) take the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(spare)) for byte in range(256))


@cache
def glyph_bytes() -> dict[str, int]:
    """The way back: the byte for each of the 256 characters."""
    return {glyph: byte for byte, glyph in enumerate(byte_glyphs())}


def to_glyphs(data: bytes) -> str:
    """Bytes as the vocabulary spells them."""
    return "".join(byte_glyphs()[byte] for byte in data)


def split_words(text: str, patterns: Sequence[str]) -> list[str]:
    """Cut text by each pattern in turn: what matches is a word, and so is what lies between."""
    words = [text] if text else []
    for pattern in patterns:
        words = [piece for word in words for piece in isolate(pattern, word)]
    return words


def isolate(pattern: str, text: str) -> Iterable[str]:
    """Every match, and every stretch between matches, in order."""
    end = 0
    for match in regex.finditer(pattern, text):
        if match.start() > end:
            yield text[end : match.start()]
        yield match.group()
        end = match.end()
    if end < len(text):
        yield text[end:]


def merge(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Merge a word's characters by rank: the lowest rank first, the leftmost among equals.

    A heap holds the pairs that could be merged and a linked list the pieces that are left, so the
    time grows as n log n with the length of the word, however long it is. An entry of the heap is
    stale when one of its pieces has changed since, and is then passed over.
    """
    pieces: list[str] = list(word)
    after = list(range(1, len(pieces) + 1))  # the next piece that is left
    before = list(range(-1, len(pieces) - 1))
    heap: list[tuple[int, int, str, str]] = []

    def offer(left: int) -> None:
        right = after[left]
        if right < len(pieces):
            rank = ranks.get((pieces[left], pieces[right]))
            if rank is not None:
                heapq.heappush(heap, (rank, left, pieces[left], pieces[right]))

    for i in range(len(pieces)):
        offer(i)
    while heap:
        _, left, a, b = heapq.heappop(heap)
        right = after[left]
        if pieces[left] != a or right == len(pieces) or pieces[right] != b:
            continue
        pieces[left], pieces[right] = a + b, ""
        after[left] = after[right]
        if after[left] < len(pieces):
            before[after[left]] = left
        offer(left)
        if before[left] >= 0:
            offer(before[left])
    return [piece for piece in pieces if piece]


class ByteLevelBPE:
    """A tokenizer for plain text: no special tokens, no beginning-of-sequence token.

    Parameters
    ----------
    tokens : the vocabulary in order of id, spelled in byte glyphs
    merges : learned pairs, earliest first
    patterns : how text is cut into words, see PATTERNS
    ignore_merges : take a word that is itself a token whole, as Llama 3 does
    """

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[tuple[str, str]],
        patterns: Sequence[str],
        ignore_merges: bool = False,
    ):
        self.tokens = tokens
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.patterns = patterns
        self.ignore_merges = ignore_merges

    def encode(self, text: str) -> list[int]:
        """Token ids of the text. A byte without a token is left out, and its neighbours meet."""
        return [
            self.ids[piece]
            for word in split_words(text, self.patterns)
            for piece in self.pieces(to_glyphs(word.encode()))
        ]

    def pieces(self, word: str) -> list[str]:
        if self.ignore_merges and word in self.ids:
            return [word]
        return merge("".join(glyph for glyph in word if glyph in self.ids), self.ranks)

    def decode(self, ids: Iterable[int]) -> str:
        """The text; bytes that are not UTF-8 become U+FFFD."""
        glyphs = "".join(self.tokens[i] for i in ids)
        return bytes(glyph_bytes()[glyph] for glyph in glyphs).decode("utf-8", "replace")
