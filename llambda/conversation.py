"""A conversation with one model: its messages, and the positions already evaluated for them."""

from collections.abc import Sequence
from typing import Any

from . import chat
from .generate import Generation
from .model import Model


class Conversation:
    """Questions and answers that build on one another.

    Every question is answered from the whole conversation, but only what is new is evaluated: the
    state is cut back to what the conversation now has in common with what it holds.

    messages : all so far, {"role": ..., "content": ...}
    settings : what `Model.generate` takes, used for every answer
    """

    def __init__(self, model: Model, system: str | None = None, **settings: Any):
        self.model = model
        self.settings = settings
        self.first = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[chat.Message] = [*self.first]
        self._state = model.engine.new_state(model.context)
        self._asked = self.messages

    def reset(self) -> None:
        """Begin anew, with the system message alone."""
        self.messages = [*self.first]

    def ask(self, question: str) -> Generation:
        """The answer, to be read. `keep` then takes both into the conversation.

        Raises ContextError when the conversation has outgrown the context.
        """
        self._asked = [*self.messages, {"role": "user", "content": question}]
        ids = chat.encode(self.model.tokenizer, self._asked)
        self._state.truncate(common_prefix(self._state.ids, ids))
        return self.model.generate(ids, state=self._state, **self.settings)

    def keep(self, answer: Generation) -> None:
        """Take the question and its answer in, as far as it went."""
        answer.cancel()
        self.messages = [*self._asked, {"role": "assistant", "content": answer.text}]


def common_prefix(old: Sequence[int], new: Sequence[int]) -> int:
    """How many ids both begin with, but not all of the new: its last one must be evaluated."""
    n = 0
    while n < min(len(old), len(new) - 1) and old[n] == new[n]:
        n += 1
    return n
