"""Exercise 03.1: words with the ranks of pieces, and other rules by which one may merge."""

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

Ranks = dict[str, int]

MERGE_CASES: list[tuple[str, Ranks]] = [
    ("abc", {"bc": 0, "ab": 1}),
    ("abc", {"ab": 0, "bc": 1, "abc": 2}),
    ("aaaaa", {"aa": 0}),
    ("aaaaaaa", {"aa": 0, "aaa": 1}),
    ("abcd", {"bc": 0, "ab": 1, "abcd": 2}),
    ("banana", {"an": 0, "na": 1, "ban": 2, "ana": 3}),
    ("lower", {"er": 0, "we": 1, "lo": 2, "low": 3, "lower": 4}),
    ("abab", {"ab": 1, "aba": 0}),  # a rank that only another merge gives a chance
    ("abac", {"ab": 1, "aba": 0}),
    ("abc", {"bc": 0, "ab": 0}),  # two pieces of one rank
    ("cab", {"ca": 0, "ab": 0}),
    ("xyzz", {"zz": 0, "xy": 1, "yzz": 1}),
    ("xabab", {"xa": 0, "ab": 1}),  # the end of `xa` is no piece
    ("acab", {"ab": 0}),  # the first `a` has no partner
    ("abcd", {"ab": 0, "cd": 1, "abcd": 2}),  # neither is a letter
    ("abc", {"bc": 150_000}),
    ("xyz", {"ab": 0}),
    ("x", {"x": 0}),
    ("", {"ab": 0}),
]


def by_choice(word: str, ranks: Ranks, key: Callable[[int, int, str], Any]) -> list[str]:
    """Merge, again and again, the pair that `key` of rank, place and joined piece puts first."""
    pieces = list(word)
    while True:
        found = [
            (key(ranks[a + b], i, a + b), i)
            for i, (a, b) in enumerate(pairwise(pieces))
            if a + b in ranks
        ]
        if not found:
            return pieces
        _, i = min(found)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def by_rank(word: str, ranks: Ranks) -> list[str]:
    return by_choice(word, ranks, lambda rank, place, piece: (rank, place))


def longest_match(word: str, ranks: Ranks) -> list[str]:
    pieces = []
    while word:
        n = max(n for n in range(1, len(word) + 1) if n == 1 or word[:n] in ranks)
        pieces.append(word[:n])
        word = word[n:]
    return pieces


def one_merge(word: str, ranks: Ranks) -> list[str]:
    found = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(word)) if a + b in ranks]
    i = min(found)[1] if found else len(word)
    return [*word[:i], *filter(None, [word[i : i + 2]]), *word[i + 2 :]]


def make_everywhere(pieces: list[str], best: str) -> list[str]:
    """All neighbours that give `best` when joined are joined, from the left."""
    made: list[str] = []
    for piece in pieces:
        fits = bool(made) and best not in (made[-1], piece) and made[-1] + piece == best
        made = [*made[:-1], best] if fits else [*made, piece]
    return made


def letters_to_pieces(word: str, ranks: Ranks) -> list[str]:
    """A merge adds a letter to a piece, or to a letter."""
    pieces = list(word)
    while found := [
        (ranks[a + b], i)
        for i, (a, b) in enumerate(pairwise(pieces))
        if a + b in ranks and 1 in (len(a), len(b))
    ]:
        i = min(found)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces


def all_at_once(word: str, ranks: Ranks) -> list[str]:
    pieces = list(word)
    while found := [(ranks[a + b], a + b) for a, b in pairwise(pieces) if a + b in ranks]:
        pieces = make_everywhere(pieces, min(found, key=lambda pair: pair[0])[1])
    return pieces


def one_pass(word: str, ranks: Ranks) -> list[str]:
    return reduce(make_everywhere, sorted(ranks, key=lambda piece: ranks[piece]), list(word))


def in_a_text(word: str, ranks: Ranks) -> list[str]:
    """The pieces stand in a text with blanks between, and a merge replaces the first place."""
    text = " ".join(word)
    while found := [
        (ranks[a + b], i, a, b) for i, (a, b) in enumerate(pairwise(text.split())) if a + b in ranks
    ]:
        _, _, a, b = min(found)
        text = text.replace(f"{a} {b}", a + b, 1)
    return text.split()


def by_first_piece(word: str, ranks: Ranks) -> list[str]:
    pieces = list(word)
    while found := [
        (ranks[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in ranks
    ]:
        i = pieces.index(pieces[min(found)[1]])
        pieces[i : i + 2] = ["".join(pieces[i : i + 2])]
    return pieces


MERGE_MISTAKES = [
    (
        longest_match,
        "that is the longest match from the left. Merging begins with single letters and asks only "
        "for the lowest rank, wherever it stands; a long piece exists only if merges lead to it.",
    ),
    (
        lambda word, ranks: by_choice(word, ranks, lambda rank, place, piece: place),
        "the leftmost pair that can merge is merged, whatever its rank. Look at all pairs, and "
        "take the one of the lowest rank.",
    ),
    (
        all_at_once,
        "a piece is made wherever it can be, all at once. Make one and look again: with the next "
        "letter it may be a piece of lower rank, and then that letter is needed.",
    ),
    (
        lambda word, ranks: by_choice(word, ranks, lambda rank, place, piece: (-rank, place)),
        "the highest rank goes first. A low rank is the frequent pair, which was learned early.",
    ),
    (
        lambda word, ranks: by_choice(word, ranks, lambda rank, place, piece: (rank, piece)),
        "among different pieces of equal rank the alphabet decides. The leftmost goes first: "
        "compare rank and place.",
    ),
    (
        lambda word, ranks: by_choice(
            word, ranks, lambda rank, place, piece: (rank, list(ranks).index(piece))
        ),
        "among different pieces of equal rank the one that stands first in ranks is made. The "
        "leftmost in the word goes first.",
    ),
    (
        one_pass,
        "the ranks are gone through once, from the lowest on. But a merge may give a chance to a "
        "piece whose rank was lower than its own: look at all ranks again after every merge.",
    ),
    (
        lambda word, ranks: by_choice(word, ranks, lambda rank, place, piece: (rank, -len(piece))),
        "among different pieces of equal rank the longer one is made. The leftmost goes first.",
    ),
    (
        lambda word, ranks: by_rank(
            word, {piece: ranks[piece] for piece in ranks if ranks[piece] < 99}
        ),
        "a high rank is taken for none. The ranks of a real vocabulary go beyond 100,000.",
    ),
    (
        letters_to_pieces,
        "two pieces of several letters are neighbours too, and may merge: after a merge, look at "
        "what now stands on its left and on its right.",
    ),
    (
        in_a_text,
        "the pair is looked for in a text, and found at the end of a longer piece. Keep the pieces "
        "in a list, and merge at the pair's place.",
    ),
    (
        by_first_piece,
        "the place of a pair is taken to be where the first of its two pieces stands first, and "
        "another piece may follow there. Remember the place together with the rank.",
    ),
    (
        lambda word, ranks: by_choice(word, ranks, lambda rank, place, piece: (rank, -place)),
        "among pairs of equal rank the last one is taken. The leftmost goes first.",
    ),
    (
        lambda word, ranks: by_rank(word, {piece: rank for piece, rank in ranks.items() if rank}),
        "rank 0 is passed over: in Python 0 counts as false. Ask whether the piece is in ranks.",
    ),
    (
        one_merge,
        "only one merge is done. What it made may merge again: look until no pair has a rank.",
    ),
    (
        lambda word, ranks: list(word),
        "nothing was merged. Here a rank belongs to the joined piece: look up a + b, not (a, b).",
    ),
]
