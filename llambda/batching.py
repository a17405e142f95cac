"""Many answers at once, which join and leave between steps. Lesson 12.

One token of one sequence costs reading every weight. So does one token of each of several, if they
are evaluated together; and since answers end when they like, another takes a place as soon as it is
free ("continuous batching": Yu et al., Orca, OSDI 2022). Prompts are evaluated beside the others'
tokens, a part in each step (Agrawal et al., Sarathi, 2023).
"""

import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

from .engines.base import Engine, EvaluatesBatches, State
from .errors import UnsupportedError, require_number
from .eventlog import EventLog
from .generate import Answer
from .sampling import Sampling
from .tokenizer import Tokenizer

MAX_RUNNING = 8
PROMPT_TOKENS = 64

Event = tuple[Answer, str]
Task = tuple[Answer, State, list[int]]  # what is to be evaluated for an answer


class Batch:
    """Answers in the making, all evaluated together: the same as each alone, bit for bit.

    context : the most positions of one answer
    max_running : the most answers that run at once; others wait in order, without memory
    prompt_tokens : the most tokens of prompts in one step, so that a long one stalls nobody

    `step` and `run` belong to one thread at a time. Any thread may submit, or cancel an answer; the
    next step lets it go. An interrupt (Ctrl-C) cancels those that run. What an answer fails with is
    its `error`; the others go on.

    The log's events are those of a generation, with the request's number, counted from 0; before
    them comes "join", whose seconds are those spent waiting.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        context: int,
        max_running: int = MAX_RUNNING,
        prompt_tokens: int = PROMPT_TOKENS,
        log: EventLog | None = None,
    ):
        require_number("max_running", max_running, 1, math.inf, "1 or more", whole=True)
        require_number("prompt_tokens", prompt_tokens, 1, math.inf, "1 or more", whole=True)
        if not isinstance(engine, EvaluatesBatches):
            raise UnsupportedError(
                f"the engine {engine.name!r} evaluates one sequence at a time",
                fix="Load the model with an engine that has forward_batch, such as 'fused'.",
            )
        self.engine = engine
        self.tokenizer = tokenizer
        self.context = context
        self.max_running = max_running
        self.prompt_tokens = prompt_tokens
        self._forward_batch = engine.forward_batch
        self._log = log or EventLog()
        self._numbers = count()
        self._waiting: deque[Answer] = deque()
        self._running: list[Answer] = []
        self._events: deque[Event] = deque()

    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        stop: Sequence[str] = (),
    ) -> Answer:
        """Ask for an answer to a prompt, given as text or as token ids. It joins when it can.

        Raises InputError or ContextError for what cannot be answered.
        """
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        write = partial(self._log.write, request=next(self._numbers))
        answer = Answer(
            self.engine, self.tokenizer, ids, sampling, max_tokens, stop, self.context, write
        )
        self._waiting.append(answer)
        return answer

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self._running or self._waiting)

    def run(self) -> Iterator[Event]:
        """Step until all is done, with what is submitted meanwhile; yields what `step` returns."""
        while self._events or self.busy:
            if not self._events:
                self._advance()
            while self._events:
                yield self._events.popleft()

    def step(self) -> list[Event]:
        """Evaluate the next token of every answer that runs, and some of their prompts.

        Returns (answer, new text) pairs. An answer's last one may have no text: its finish_reason
        is set.
        """
        self._advance()
        events = list(self._events)
        self._events.clear()
        return events

    def _advance(self) -> None:
        try:
            self._drop_cancelled()
            self._let_join()
            self._evaluate(self._tasks())
        except BaseException:  # an interrupt: nobody knows how far it all came
            for answer in [*self._running]:
                self._do(answer, answer.end)
            raise

    def _drop_cancelled(self) -> None:
        for answer in [*self._running, *self._waiting]:
            if answer.cancelled:
                self._do(answer, answer.end)

    def _let_join(self) -> None:
        while self._waiting and len(self._running) < self.max_running:
            answer = self._waiting.popleft()
            self._running.append(answer)
            self._do(answer, partial(self._start, answer))

    def _start(self, answer: Answer) -> None:
        answer.write("join", time.perf_counter() - answer.begin, len(answer.prompt_ids))
        answer.start(self.engine.new_state(answer.room))

    def _tasks(self) -> list[Task]:
        """One token of each answer that has begun, and of the prompts what may be evaluated."""
        prompts = [answer for answer in self._running if not answer.ids]
        shares = deal(self.prompt_tokens, [len(answer.next_ids) for answer in prompts])
        share = dict(zip(prompts, shares, strict=True))
        tasks = []
        for answer in self._running:
            ids = answer.next_ids[: share.get(answer, 1)]
            if ids and answer.state is not None:
                tasks.append((answer, answer.state, ids))
        return tasks

    def _evaluate(self, tasks: Sequence[Task]) -> None:
        """All in one call of the engine. Those whose prompt is done draw a token."""
        if not tasks:
            return
        try:
            states, ids = [state for _, state, _ in tasks], [ids for _, _, ids in tasks]
            logits = self._forward_batch(states, ids)
        except Exception as error:  # nobody knows whose it is
            for answer, _, _ in tasks:
                self._fail(answer, error)
            return
        for (answer, _, _), row in zip(tasks, logits, strict=True):
            if not answer.next_ids:
                self._do(answer, partial(answer.take, row))

    def _do(self, answer: Answer, work: Callable[[], str | None]) -> None:
        """What concerns one answer alone; so does its failure."""
        try:
            text = work()
        except Exception as error:
            self._fail(answer, error)
        else:
            self._tell(answer, text or "")

    def _fail(self, answer: Answer, error: Exception) -> None:
        answer.fail(without_frames(error))
        self._tell(answer, "")

    def _tell(self, answer: Answer, text: str) -> None:
        """An event, if there is anything to tell. An answer that has ended leaves."""
        if answer.finish_reason is not None:
            for queue in (self._running, self._waiting):
                if answer in queue:
                    queue.remove(answer)
        elif not text:
            return
        self._events.append((answer, text))


def deal(tokens: int, wanted: Sequence[int]) -> list[int]:
    """Tokens dealt like cards, one at a time and in turn, until all have what they want."""
    dealt = [0] * len(wanted)
    turn = deque(range(len(wanted)))
    for _ in range(min(tokens, sum(wanted))):
        i = turn.popleft()
        dealt[i] += 1
        if dealt[i] < wanted[i]:
            turn.append(i)
    return dealt


def without_frames(error: Exception) -> Exception:
    """The error with its traceback as a note: frames would keep the states in them alive."""
    if error.__traceback__ is not None:
        error.add_note("".join(traceback.format_exception(error)).rstrip())
        error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
