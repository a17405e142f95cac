"""The stop strings of exercise 05.2: texts in pieces, and what a wrong answer has forgotten."""

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate

from ...sampling import overlap

STOP_CASES: list[tuple[Sequence[str], str]] = [
    (["The quick br", "own", " fox", " jumps"], "own fox"),
    (["a", "a", "a", "b"], "aab"),
    (["a", "a", "a", "b", "c"], "aab"),
    (["say ", "a stop! ", "Go", " on"], "stop"),
    (["one\n", "\ntwo", " three"], "\n\n"),
    (["x ", "own"], "own fox"),
    (["first stop, last stop"], "stop"),
    (["nothing", " to ", "see"], "end"),
    ([], "end"),
    (["x o", "k then", " on"], "own"),
    (["go", "t stop"], "op"),
    (["ab", "aba"], "aba"),
    (["1 + 1 = 2, ", "2. So"], "2."),
    (["st", "", "one"], "stop"),
]
STOP_FAULTS = {  # what is reported first stands first
    "spread": "a stop string that is spread over several pieces goes unnoticed: look for it in "
    "what is held back and the new piece together.",
    "restart": "one beginning was disproved, and another one was forgotten that is still open: "
    "after 'aaa' two letters may belong to 'aab'. Hold back the longest end that is a beginning.",
    "leak": "a part of the stop string is shown before it is complete. Hold back an end of the "
    "text that could be its beginning.",
    "lost": "what was held back is lost. When the next piece disproves it, it is text after all, "
    "and is shown before what is new.",
    "cut": "what was held back is lost where a stop string follows that does not begin in it. It "
    "stands before that stop string, and so is text.",
    "itself": "the stop string itself is shown, and the text should end before it.",
    "last": "the text ends at the last stop string, and should at the first.",
    "piece": "the new piece is searched alone, and before the stop string in it another one is "
    "complete that began in what was held back. Search both together, and only together.",
    "after": "text is shown that stands after the stop string.",
    "before": "text before the stop string is lost, where both come in one piece.",
    "pattern": "a stop string is text and no pattern. In a regular expression a dot stands for any "
    "character: use `in` and `find`, or put re.escape around it.",
    "tail": "the tail is lost: when no piece follows, what was held back is text after all.",
    "late": "nothing is lost, but it is shown too late. What cannot belong to a stop string any "
    "more is to be shown at once.",
    "other": "",
}


def right_pieces(pieces: Sequence[str], stop: str) -> list[str]:
    visible, held = [], ""
    for piece in pieces:
        text = held + piece
        if stop in text:
            visible.append(text[: text.find(stop)])
            return visible + [""] * (len(pieces) + 1 - len(visible))
        keep = overlap(text, stop)
        visible.append(text[: len(text) - keep])
        held = text[len(text) - keep :]
    return [*visible, held]


def stop_fault(pieces: Sequence[str], stop: str, given: Sequence[str]) -> str:
    """Which of STOP_FAULTS a wrong answer has, by what it shows and when."""
    end = next((i for i, text in enumerate(accumulate(pieces)) if stop in text), len(pieces))
    right, ours = (list(accumulate(texts)) for texts in (right_pieces(pieces, stop), given))
    if any(given[end + 1 :]) and ours[-1] != right[-1]:  # it went on
        noticed = stop in pieces[end] or stop not in ours[-1]
        return "after" if noticed else "restart" if stop == "aab" else "spread"
    if any(len(b) > len(a) for a, b in zip(right[:end], ours[:end], strict=True)):
        return "leak"
    if ours[-1] == right[-1]:
        return "late"
    text = "".join(pieces)
    if ours[-1] == text.rpartition(stop)[0] != "":
        return "last" if stop in pieces[end].partition(stop)[2] else "piece"
    if ours[-1] == re.split(stop, text)[0]:
        return "pattern"
    if ours[-1].startswith(right[-1]):
        return "itself" if ours[-1] == right[-1] + stop else "after"
    if right[-1].startswith(ours[-1]):
        return "tail" if end == len(pieces) else "before"
    if is_thinned(ours[-1], right[-1]):
        return "lost" if end == len(pieces) else "cut"
    return "other"


def is_thinned(some: Iterable[str], of: Iterable[str]) -> bool:
    """Whether all of `some` are in the other, in this order."""
    rest = iter(of)
    return all(letter in rest for letter in some)
