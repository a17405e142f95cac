"""A prefix used again, exercise 06.3: an engine that takes notes, and what was forgotten."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...config import ModelConfig, RopeConfig
from ...engines.base import State, Trace, check_call
from ...engines.naive import NaiveEngine
from ...errors import InputError
from .base import Answer, Wrong, same

Floats = npt.NDArray[np.float32]


class Recording(NaiveEngine):
    """An engine that only notes what it was asked to evaluate. Its logits tell its state's ids."""

    def __init__(self) -> None:
        self.config = ModelConfig("letters", 1, 8, 1, 1, 8, 8, 27, 32, 1e-5, RopeConfig(8))
        self.evaluated: list[int] = []

    def forward(
        self,
        state: State,
        ids: Sequence[int],
        all_logits: bool = False,
        trace: Trace | None = None,
    ) -> Floats:
        checked = check_call(self, state, ids)
        self.evaluated += checked
        start = state.length
        state.ids += checked
        if not all_logits:
            return logits_after(state.ids)
        return np.stack([logits_after(state.ids[: i + 1]) for i in range(start, state.length)])


def logits_after(ids: Sequence[int]) -> Floats:
    return np.random.default_rng(ids).normal(size=27).astype(np.float32)


REUSE_CASES = [  # held, asked for, the fewest to evaluate
    ("ABC", "ABCDE", 2), ("ABCD", "ABC", 1), ("ABCD", "ABCD", 1), ("ABCD", "ABXD", 2),
    ("ABCD", "ABXYZ", 3), ("ABCD", "XY", 2), ("ABCD", "A", 1), ("", "AB", 2),
    ("ABXD", "ABCD", 2), ("ABCD", "BACD", 4), ("ABAB", "ABAC", 1),
]  # fmt: skip


def numbers(letters: str) -> list[int]:
    return [ord(letter) - 64 for letter in letters]


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(64 + i) for i in ids)


NO_LOGITS = (
    "The cache keeps keys and values, but no logits: those of the last id come only from "
    "evaluating it, again if need be."
)


def judge_reuse(answer: Answer, held: str, asked: str, fewest: int) -> None:
    engine = Recording()
    state = engine.new_state(16)
    if held:
        engine.forward(state, numbers(held))
    engine.evaluated.clear()
    case = f"(The state holds {held or 'nothing'}, asked for is {asked}.)"
    ids = numbers(asked)
    try:
        logits = answer(engine, state, ids)
    except InputError as error:
        if "no token ids" in str(error):
            raise Wrong(f"no id is left for forward to evaluate. {NO_LOGITS} {case}") from None
        raise
    evaluated, holds = letters(engine.evaluated), letters(state.ids)
    if not evaluated:
        raise Wrong(f"nothing is evaluated. {NO_LOGITS} {case}")
    if state.ids is ids:
        raise Wrong(
            "`state.ids` is now the very list that was handed in: whoever appends to that list "
            f"changes the state too. `forward` itself notes what it evaluates. {case}"
        )
    if ids != numbers(asked):
        raise Wrong(
            f"the list `ids` that was handed in now holds {letters(ids) or 'nothing'}. It belongs "
            f"to the caller: take a slice of it. {case}"
        )
    if sorted(holds) == sorted(asked) and holds != asked:
        raise Wrong(
            f"the state now holds {holds}, the right ids in another order. An old id can be kept "
            f"only where it stands at the same place in both, and all before it do. {case}"
        )
    if len(holds) == len(asked) and holds != asked:
        raise Wrong(
            f"the state now holds {holds}: an old id was taken for a new one. Compare id by id, "
            f"and stop at the first that differs. {case}"
        )
    if holds.startswith(held) and holds not in (held, asked):
        raise Wrong(
            f"the state's length is not cut: it goes on behind {held} and now holds {holds}. "
            f"Truncate it to what the two have in common, and evaluate the rest. {case}"
        )
    if holds != asked:
        raise Wrong(f"the given state now holds {holds}. {case}")
    if logits is None:
        raise Wrong(f"nothing is returned: return what forward gives. {case}")
    if len(evaluated) < fewest:
        raise Wrong(
            f"only {evaluated} was evaluated where {asked[-fewest:]} is new. To write ids into "
            f"`state.ids` is to claim that their keys and values are there. {case}"
        )
    last = logits_after(numbers(asked))
    if not same(logits, last):
        if getattr(logits, "shape", None) == (len(evaluated), last.size):
            raise Wrong(f"logits after every id are returned; wanted are the last row's. {case}")
        raise Wrong(f"what is returned are not the logits after the last id. {case}")
    if len(evaluated) > fewest:
        raise Wrong(
            f"right, but {evaluated} was evaluated where {asked[-fewest:]} is enough. Keep what "
            f"the state and the ids have in common. {case}"
        )
