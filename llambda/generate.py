"""The loop that makes text: prefill, then draw, show, step, until something ends it. Lesson 05."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any

from .engines.base import Engine, Floats, State, check_ids, check_room
from .errors import FileAccessError, InputError
from .eventlog import EventLog, peak_resident_mb
from .sampling import Sampler, Sampling, StopState
from .threads import fork_safe_lock
from .tokenizer import Tokenizer

LOGGED_BATCH = 32  # tokens a log event covers


class Answer:
    """One answer as it grows. Who runs it, alone or among others, evaluates ids for it.

    It is started in a state. Then, as long as it has one, some or all of `next_ids` are evaluated
    in it; when all are, their last logits go to `take`.

    ids : every token drawn, with the one that ended the answer, if one did
    pieces : its text so far, each of them whole characters
    finish_reason : None before the end, then "stop" (an end token or stop string), "length"
        (max_tokens), "context" (the context is full), "cancelled" or "error"
    error : what it failed with
    room : positions that its state must have
    state : None before it starts and after it has ended
    begin : when it was made, then when it started, as time.perf_counter() says
    write : tells the log, as `EventLog.write` does
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        stop: Sequence[str],
        context: int,
        write: Callable[..., None],
        load_s: float = 0.0,
    ):
        self.prompt_ids = check_ids(prompt_ids, engine.config.vocab_size)
        if not self.prompt_ids:
            raise InputError("the prompt is empty", fix="Give at least one token.")
        check_room(engine.config, self.prompt_ids, context)
        stops = [stop] if isinstance(stop, str) else stop
        self._stops = StopState(stops, tokenizer.stop_ids, max_tokens)
        self._sampler = Sampler(sampling)
        self._decoder = tokenizer.stream()
        self.engine = engine
        self.write = write
        self.room = min(int(context), len(self.prompt_ids) + int(max_tokens))
        self.state: State | None = None
        self.ids: list[int] = []
        self.pieces: list[str] = []
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.cancelled = self._told = False  # told: the log knows its end, an interrupt or not
        self._known = self.prompt_ids.copy()  # prompt and answer
        self._reused = 0  # ids that its state held before it started
        self._load_s = load_s
        self.begin = time.perf_counter()
        self._prefill_s = self._first_token_s = self._decode_s = 0.0
        self._logged, self._batch_begin = 0, 0.0  # tokens that log events cover, and since when

    @property
    def seed(self) -> int:
        """Of the random draws, also when none was given."""
        return self._sampler.seed

    @property
    def text(self) -> str:
        """All pieces so far. Raises its error, so that what was cut short passes for no answer."""
        if self.error is not None:
            raise self.error
        return "".join(self.pieces)

    @property
    def next_ids(self) -> list[int]:
        """The known ids that its state does not hold; none unless it runs."""
        return [] if self.state is None else self._known[self.state.length :]

    def start(self, state: State) -> None:
        """Begin in a state that holds none of the prompt's ids, or the first ones."""
        self.state, self._reused = state, state.length
        self.begin = time.perf_counter()
        if self._stops.finish_reason is not None:
            self._finish(self._stops.finish_reason)

    def take(self, logits: Floats) -> str:
        """Draw a token from the logits after all known ids; returns the text it lets be shown."""
        if self.cancelled:
            return self.end()
        if self.state is None:
            return ""
        if not self.ids:
            self._prefill_s = time.perf_counter() - self.begin
            self.write("prefill", self._prefill_s, len(self.prompt_ids) - self._reused)
            self._batch_begin = self.begin + self._prefill_s
        token = self._sampler.sample(logits, self._known)
        self.ids.append(token)
        self._known.append(token)
        self._count()
        piece = self._stops.push(token, self._decoder.push(token))
        ended = self._stops.finish_reason is not None or self.state.length == self.state.context
        if ended:
            piece += self._stops.flush(self._decoder.flush())
        if piece:
            self.pieces.append(piece)
        if ended:
            self._finish(self._stops.finish_reason or "context")
        return piece

    def cancel(self) -> None:
        """End here: what was made so far stays. The step that it is in, if any, will be its last.

        Any thread may call it.
        """
        self.cancelled = True

    def end(self) -> str:
        """Nobody runs it any further: cancelled, unless it ended. Returns what was held back."""
        if self._told:
            return ""
        piece = "" if self.finish_reason else self._stops.flush(self._decoder.flush())
        if piece:
            self.pieces.append(piece)
        self._finish(self.finish_reason or "cancelled")
        return piece

    def fail(self, error: Exception) -> None:
        """It cannot go on."""
        self.state, self.error, self.finish_reason, self._told = None, error, "error", True
        with suppress(FileAccessError):  # it may be the log itself that failed
            self.write("error", time.perf_counter() - self.begin, len(self.ids), error=str(error))

    @property
    def stats(self) -> dict[str, Any]:
        """Counts, seconds, tokens a second (of the tokens after the first) and peak memory."""
        steps = len(self.ids) - 1
        return {
            "prompt_tokens": len(self.prompt_ids),
            "new_tokens": len(self.ids),
            "load_s": round(self._load_s, 6),
            "prefill_s": round(self._prefill_s, 6),
            "first_token_s": round(self._first_token_s, 6),
            "decode_s": round(self._decode_s, 6),
            "tokens_per_s": round(steps / self._decode_s, 3) if self._decode_s > 0 else 0.0,
            "peak_rss_mb": peak_resident_mb(),
            "threads": self.engine.threads,
            "engine": self.engine.name,
            "seed": self.seed,
        }

    def _count(self) -> None:
        """A token was drawn: take the time, and tell the log of every so many."""
        since = time.perf_counter() - self.begin
        if len(self.ids) == 1:
            self._first_token_s = since
        self._decode_s = since - self._first_token_s
        if len(self.ids) == self._logged + LOGGED_BATCH:
            self._log_tokens()

    def _log_tokens(self) -> None:
        """An event for the tokens since the last one, if there are any."""
        now, count = time.perf_counter(), len(self.ids)
        if count > self._logged:
            self.write("tokens", now - self._batch_begin, count - self._logged)
            self._logged, self._batch_begin = count, now

    def _finish(self, reason: str) -> None:
        self.state, self.finish_reason = None, reason
        self._log_tokens()
        seconds = time.perf_counter() - self.begin
        self.write("finish", seconds, len(self.ids), finish_reason=reason, seed=self.seed)
        self._told = True


class Generation:
    """One answer, made as it is read.

    Iterating yields pieces of text as soon as they may be shown, each of them whole characters.
    `text`, `ids`, `finish_reason` and `stats` are those of an `Answer`, and run it to the end
    first: "stop", "length", "context" or "cancelled". What it fails with is raised.

    seed : of the random draws, also when none was given

    A state that is given holds the first ids of the prompt, and not all of them. Until the answer
    has ended nothing else may use it, or reading on raises InputError.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        stop: Sequence[str],
        context: int,
        load_s: float = 0.0,
        log: EventLog | None = None,
        state: State | None = None,
    ):
        write = (log or EventLog()).write
        self._answer = answer = Answer(
            engine, tokenizer, prompt_ids, sampling, max_tokens, stop, context, write, load_s
        )
        self.engine = engine
        self.prompt_ids = answer.prompt_ids
        self.seed = answer.seed
        if state is None:
            state = engine.new_state(answer.room)
        elif self.prompt_ids[:-1][: state.length] != state.ids:
            raise InputError(
                "the state holds other ids than the first of the prompt, or all of them",
                fix="Take a new state, or cut this one to less than they have in common.",
            )
        self._running = self._run(state)
        self._reading = fork_safe_lock()  # several threads may read one answer

    def __iter__(self) -> Iterator[str]:
        """Pieces from the first on, also on a second pass."""
        at, pieces = 0, self._answer.pieces
        while at < len(pieces) or self._advance() or at < len(pieces):
            yield pieces[at]
            at += 1

    def _advance(self) -> bool:
        """Make one more piece, if there is one."""
        with self._reading:
            if self._answer.error is not None:  # also for those who read on after a failure
                raise self._answer.error
            return next(self._running, None) is not None

    def cancel(self) -> None:
        """End here: what was made so far stays, and finish_reason is "cancelled".

        Any thread may call it: a step that runs in another thread meanwhile will be the last.
        """
        self._answer.cancel()
        try:
            self._running.close()
        except ValueError:  # it is running: it will see that it is cancelled
            return
        self._answer.end()  # also when it has not begun

    def _finished(self) -> Answer:
        while self._advance():
            pass
        return self._answer

    @property
    def text(self) -> str:
        return self._finished().text

    @property
    def ids(self) -> list[int]:
        return self._finished().ids

    @property
    def finish_reason(self) -> str:
        return self._finished().finish_reason or "cancelled"

    @property
    def stats(self) -> dict[str, Any]:
        return self._finished().stats

    def _run(self, state: State) -> Generator[str, None, None]:
        """Prefill, then draw, show and step. Left half way, the answer is cancelled."""
        answer = self._answer
        try:
            answer.start(state)
            held = self.prompt_ids[:-1][: state.length]
            while answer.state is not None and not answer.cancelled:
                check_untouched(state, held)
                held += (ids := answer.next_ids)
                logits = self.engine.forward(state, ids)
                check_untouched(state, held)  # another thread may have been quicker
                if piece := answer.take(logits):
                    yield piece
        except Exception as error:
            answer.fail(error)
            raise
        finally:
            answer.end()


def check_untouched(state: State, ids: list[int]) -> None:
    """Raise InputError unless the state holds what its answer evaluated, and nothing else."""
    if state.ids != ids:
        raise InputError(
            "the state was used for something else meanwhile",
            fix="Give each answer a state of its own, or let one end before the next begins.",
        )
