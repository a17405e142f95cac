"""The exercises of lesson 03: merging by rank, a streaming decoder, four lists of ids."""

from collections.abc import Callable, Mapping

from ...bpe import LLAMA3, QWEN2, ByteLevelBPE, byte_glyphs, to_glyphs
from .base import Answer, Wrong, exercise, expect_calls, expect_choices, result
from .tokens_merge import MERGE_CASES, MERGE_MISTAKES, by_rank
from .tokens_stream import judge_stream

# ---------------------------------------------------------------- 03.1


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


@exercise("03.2", "Half a character", kind="code", minutes=15, difficulty=3)
def stream(answer: Answer) -> str:
    judge_stream(answer)
    return (
        "Never more than three bytes wait: the first byte of a character says how long it is. "
        "Python's codecs.getincrementaldecoder does the same, and llambda uses it."
    )


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
        if not isinstance(choice, str) or choice not in FAULTS:
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
