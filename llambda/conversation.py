"""A conversation with one model: its messages, and the positions already evaluated for them."""

import time
from collections.abc import Sequence
from typing import Any

from . import chat
from .errors import InputError, LlambdaError
from .eventlog import EventLog
from .generate import Generation
from .model import Model


class Conversation:
    """Questions and answers that build on one another.

    Every question is answered from the whole conversation, but only what is new is evaluated: the
    state is cut back to what the conversation now has in common with what it holds.

    first : the messages that it begins with, {"role": ..., "content": ...}
    messages : all so far
    log : is told of every answer, and of questions that have none
    settings : what `Model.generate` takes, used for every answer

    Raises InputError for settings that no answer can be made with.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        log: EventLog | None = None,
        **settings: Any,
    ):
        self.model = model
        self.log = log or EventLog()
        self.settings = settings
        self.first = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[chat.Message] = [*self.first]
        self._state = model.engine.new_state(model.context)
        self._asked: tuple[list[chat.Message], Generation] | None = None
        model.tokenizer.encode(system or "")
        model.generate([0], state=self._state, **settings)  # to have bad settings refused here

    def reset(self) -> None:
        """Begin anew, with the system message alone."""
        self.messages = [*self.first]

    def ask(self, question: str) -> Generation:
        """The answer, to be read. `keep` then takes both into the conversation.

        An earlier answer that has not ended cannot be read on. Raises ContextError when the
        conversation has outgrown the context.
        """
        asked: list[chat.Message] = [*self.messages, {"role": "user", "content": question}]
        begin = time.perf_counter()
        try:
            ids = chat.encode(self.model.tokenizer, asked)
            self._state.truncate(common_prefix(self._state.ids, ids))
            answer = self.model.generate(ids, state=self._state, log=self.log, **self.settings)
        except LlambdaError as error:  # from here on, the answer itself tells the log
            self.log.write("error", time.perf_counter() - begin, error=str(error))
            raise
        self._asked = asked, answer
        return answer

    def keep(self, answer: Generation) -> None:
        """Take the last question and its answer in, as far as it went."""
        if self._asked is None or self._asked[1] is not answer:
            raise InputError(
                "this is no answer to the last question",
                fix="Keep each answer before the next question is asked.",
            )
        answer.cancel()
        self.messages = [*self._asked[0], {"role": "assistant", "content": answer.text}]


def common_prefix(old: Sequence[int], new: Sequence[int]) -> int:
    """How many ids both begin with, but not all of the new: its last one must be evaluated."""
    n = 0
    while n < min(len(old), len(new) - 1) and old[n] == new[n]:
        n += 1
    return n
