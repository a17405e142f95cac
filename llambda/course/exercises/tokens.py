"""The exercises of lesson 03: merging by rank, a streaming decoder, four lists of ids."""

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from ...bpe import LLAMA3, QWEN2, ByteLevelBPE, byte_glyphs, to_glyphs
from .base import Answer, Raised, Wrong, exercise, expect_calls, expect_choices, result, shown

# ---------------------------------------------------------------- 03.1

Ranks = dict[str, int]

MERGE_CASES: list[tuple[str, Ranks]] = [
    ("abc", {"bc": 0, "ab": 1}),
    ("abc", {"ab": 0, "bc": 1, "abc": 2}),
    ("aaaaa", {"aa": 0}),
    ("aaaaaaa", {"aa": 0, "aaa": 1}),
    ("abcd", {"bc": 0, "ab": 1, "abcd": 2}),
    ("banana", {"an": 0, "na": 1, "ban": 2, "ana": 3}),
    ("lower", {"er": 0, "we": 1, "lo": 2, "low": 3, "lower": 4}),
    ("xyz", {"ab": 0}),
    ("x", {"x": 0}),
    ("", {"ab": 0}),
]


def by_choice(word: str, ranks: Ranks, key: Callable[[int, int], Any]) -> list[str]:
    """Merge, again and again, the pair that `key` of rank and place puts first."""
    pieces = list(word)
    while True:
        found = [
            (key(ranks[a + b], i), i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in ranks
        ]
        if not found:
            return pieces
        _, i = min(found)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def by_rank(word: str, ranks: Ranks) -> list[str]:
    return by_choice(word, ranks, lambda rank, place: (rank, place))


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


MERGE_MISTAKES = [
    (
        longest_match,
        "that is the longest match from the left. Merging begins with single letters and asks only "
        "for the lowest rank, wherever it stands; a long piece exists only if merges lead to it.",
    ),
    (
        lambda word, ranks: by_choice(word, ranks, lambda rank, place: place),
        "the leftmost pair that can merge is merged, whatever its rank. Look at all pairs, and "
        "take the one of the lowest rank.",
    ),
    (
        lambda word, ranks: by_choice(word, ranks, lambda rank, place: (-rank, place)),
        "the highest rank goes first. A low rank is the frequent pair, which was learned early.",
    ),
    (
        lambda word, ranks: by_choice(word, ranks, lambda rank, place: (rank, -place)),
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


@exercise("03.1", "Merging without pairs", kind="code", minutes=5, difficulty=2)
def bpe(answer: Answer) -> str:
    for case in MERGE_CASES if callable(answer) else ():
        pieces, word = result(answer, case), case[0]
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            continue
        if "".join(pieces) != word and len(set(word)) == 1:
            raise Wrong(
                f"pairs overlap. {word!r} became {pieces}, which no longer spells it: a letter "
                "that one merge has used up is not there for the next."
            )
        if "".join(pieces) != word:
            raise Wrong(f"{word!r} became {pieces}: letters were lost or doubled in a merge.")
    expect_calls(answer, MERGE_CASES, by_rank, MERGE_MISTAKES)
    return (
        "The files of tiktoken, and those of Llama 3 as Meta gives them out, look like this: no "
        "pairs, only pieces in order of rank, and the rank is the id as well."
    )


# ---------------------------------------------------------------- 03.2


def splits(data: bytes) -> Iterator[list[bytes]]:
    """Every way to cut bytes into pieces that are not empty."""
    places = range(1, len(data))
    for n in range(len(data)):
        for cuts in combinations(places, n):
            yield [data[a:b] for a, b in pairwise((0, *cuts, len(data)))]


WHOLE = ["é🙂!".encode(), "a€b".encode()]
STRAY = [b"\xffABC", b"A\xff\xf0\x9f\x99\x82", b"\xf0\x9f\xffABC", b"A\x82BC"]
CUT = ["ok 🙂".encode()[:-1], "é".encode()[:1]]
NESTED = [b"\xe0\x80A", b"\xf0\x9f\xe2\x82\xacA", b"\xc3\xc3\xa9", b"\xed\xa0\x80A", b"\xf4\x90A"]


def decoded(pieces: Sequence[bytes]) -> list[str]:
    """What Python's own incremental decoder gives for each piece, and at the end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [*map(decoder.decode, pieces), decoder.decode(b"", final=True)]


def run(answer: Answer, pieces: Sequence[bytes]) -> Any:
    """What the answer gives for each piece, and at the end."""
    stream = answer()
    return [*map(stream.push, pieces), stream.flush()]


@exercise("03.2", "Half a character", kind="code", minutes=15, difficulty=3)
def stream(answer: Answer) -> str:
    if not isinstance(answer, type):
        raise Wrong(f"a class is wanted, and {shown(answer)} is none.")
    if not hasattr(answer, "push"):
        raise Wrong("push is missing.")
    if not hasattr(answer, "flush"):
        raise Wrong("flush is missing: a text that ends inside a character loses its end.")
    given = result(run, (answer, [b"\xff", b"A", b"B", b"C"]))
    if not isinstance(given, Raised) and "A" not in "".join(filter(None, given[:-1])):
        raise Wrong(
            "it stalls: after the byte 0xFF, which can never become part of a character, all that "
            f"follows waits. [b'\\xff', b'A', b'B', b'C'], pushed one by one, gives {shown(given)}."
        )
    for data in (*WHOLE, *STRAY, *CUT):
        for pieces in (*splits(data), [b"", data[:2], b"", data[2:]]):
            judge_stream(pieces, result(run, (answer, pieces)), decoded(pieces), data in CUT)
    for data in NESTED:  # how soon a broken sequence is given up is left to the answer
        for pieces in splits(data):
            given = result(run, (answer, pieces))
            whole = data.decode("utf-8", "replace")
            if isinstance(given, Raised) or "".join(given) != whole:
                eaten = not isinstance(given, Raised) and set(whole) - set("".join(given))
                why = "a good character is lost: the byte that breaks one may begin the next. "
                raise Wrong(
                    f"{why if eaten else ''}{pieces}, pushed one after the other, gives "
                    f"{shown(given)}; all of it together should be {whole!r}, as decode gives it."
                )
    one, other = answer(), answer()
    one.push(b"\xc3")
    if other.push(b"A") != "A":
        raise Wrong("two streams share what they hold back: keep it in self, not in the class.")
    return (
        "Never more than three bytes wait: the first byte of a character says how long it is. "
        "Python's codecs.getincrementaldecoder does the same, and llambda uses it."
    )


def judge_stream(pieces: list[bytes], given: Any, right: list[str], cut: bool) -> None:
    """Raise Wrong with the kind of mistake, if what was given is not right."""
    case = f"{pieces}, pushed one after the other, gives {shown(given)}; right is {shown(right)}."
    if isinstance(given, Raised):
        raise Wrong(case)
    if any(text is None for text in given[:-1]):
        raise Wrong(f"push returns None where it has no text yet: return an empty string. {case}")
    if given == right:
        return
    if given[:-1] == right[:-1]:
        if given[-1] is None:
            raise Wrong(f"no flush: it returns None. Return a string, perhaps an empty one. {case}")
        end = "no flush of the end" if cut else "flush says too much"
        raise Wrong(f"{end}: what is unfinished when the text is over becomes U+FFFD. {case}")
    so_far, wanted = "", ""
    for a, b in zip(given[:-1], right[:-1], strict=True):
        so_far, wanted = so_far + a, wanted + b
        if so_far == wanted:
            continue
        if so_far.count("\ufffd") > wanted.count("\ufffd"):
            behind = " behind a stray byte" if "\ufffd" in wanted else ""
            raise Wrong(
                f"U+FFFD too early{behind}: the last bytes may still become a character, so hold "
                f"them back. {case}"
            )
        if wanted.startswith(so_far) and wanted[len(so_far)] == "\ufffd" in "".join(given):
            raise Wrong(
                "U+FFFD too late: a byte that can no longer become part of a character has nothing "
                f"to wait for. {case}"
            )
        if so_far == wanted.replace("\ufffd", ""):
            raise Wrong(
                f"a byte that is part of no character was dropped. Show it as U+FFFD. {case}"
            )
        if wanted.startswith(so_far):
            raise Wrong(
                "too much is held back: only an end that may still become a character has to wait, "
                f"not what is complete in front of it. {case}"
            )
        break
    raise Wrong(case)


# ---------------------------------------------------------------- 03.3

BOS, END = "<s>", "</s>"
WORDS = ["Name", " three", " colours", " means", " what", "Add", " and", " be", " or", " not"]
WORDS += ["to", " to", "be", "or", "not", "333", "777", "33", "77"]
MERGES = list(
    dict.fromkeys(
        (word[:i], word[i])
        for word in (to_glyphs(word.encode()) for word in WORDS)
        for i in range(1, len(word))
    )
)
VOCABULARY = list(dict.fromkeys([BOS, END, *byte_glyphs(), *(a + b for a, b in MERGES)]))


def encoder(pattern: str) -> Callable[[str], list[int]]:
    return ByteLevelBPE(VOCABULARY, MERGES, (pattern,), ignore_merges=True).encode


encode, by_single_digits = encoder(LLAMA3), encoder(QWEN2)
FAULTS = ["bos twice", "special from text", "digits", "lost space", "nothing"]


def made_lists() -> dict[str, tuple[str, list[int], str]]:
    """Four texts, the ids that a faulty tokenizer made of them, and its fault."""
    template, typed = "Name three colours.", "<s> means what?"
    sum_, spaced = "Add 3333 and 777.", "to be or not to be"
    rest = typed.removeprefix(BOS)
    bare = [i for word in spaced.split() for i in encode(word)]
    return {
        "A": (template, [0, 0, *encode(template)], "bos twice"),
        "B": (typed, [0, 0, *encode(rest)], "special from text"),
        "C": (sum_, [0, *by_single_digits(sum_)], "digits"),
        "D": (spaced, [0, *bare], "lost space"),
    }


LISTS = {name: (text, ids) for name, (text, ids, _) in made_lists().items()}


@exercise("03.3", "Four lists of ids", kind="diagnose", minutes=5, difficulty=2)
def lists(answer: Answer) -> str:
    for name, choice in answer.items() if isinstance(answer, Mapping) else ():
        if choice not in FAULTS:
            raise Wrong(f"{name}: choose one of {', '.join(map(repr, FAULTS))}.")
    right = {name: fault for name, (_, _, fault) in made_lists().items()}
    fine = "not all is well: cut the text by hand as the rules say, and compare."
    decodes = "decode the pieces and compare with the text, blank by blank: all blanks are there."
    once = "look at the beginning: the token <s> stands there exactly once, as it should."
    untyped = "the text holds no name of a special token, so no user typed one."
    mistakes = {
        ("A", "special from text"): (
            "the text does not hold <s>, so it cannot have come out of the text. Who else adds it?"
        ),
        ("B", "bos twice"): (
            "read the text again: the user typed <s>. The tokenizer added one <s>, as it should; "
            "the other is text that was taken for a signal."
        ),
        ("D", "digits"): "there is not a digit in this text.",
        ("C", "special from text"): untyped,
        ("D", "special from text"): untyped,
    }
    for name, (text, _) in LISTS.items():
        mistakes |= {(name, "nothing"): fine, (name, "lost space"): decodes}
        if name in "CD":
            mistakes[name, "bos twice"] = once
        elif not any(sign.isdigit() for sign in text):
            mistakes[name, "digits"] = "there is not a digit in this text."
    expect_choices(answer, right, mistakes)
    return (
        "A and B begin alike and have different causes: a program that says <s> twice, and a user "
        "who is believed. Only the text beside the ids tells them apart."
    )
