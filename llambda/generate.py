"""The loop that makes text: prefill, then draw, show, step, until something ends it. Lesson 05."""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any

from .engines.base import Engine, State, check_ids
from .errors import ContextError, InputError, plural
from .eventlog import EventLog, peak_resident_mb
from .sampling import Sampler, Sampling, StopState
from .tokenizer import Tokenizer

LOGGED_BATCH = 32  # tokens a log event covers


class Generation:
    """One answer, made as it is read.

    Iterating yields pieces of text as soon as they may be shown, each of them whole characters.
    `text`, `ids`, `finish_reason` and `stats` run it to the end first.

    ids : every token drawn, with the one that ended the answer, if one did
    finish_reason : "stop" (an end token or stop string), "length" (max_tokens), "context" (the
        context is full) or "cancelled"
    seed : of the random draws, also when none was given

    A state that is given holds the first ids of the prompt, and not all of them.
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
        self.prompt_ids = check_ids(prompt_ids, engine.config.vocab_size)
        if not self.prompt_ids:
            raise InputError("the prompt is empty", fix="Give at least one token.")
        if len(self.prompt_ids) > context:
            raise ContextError(
                f"the prompt has {plural(len(self.prompt_ids), 'token')} and the context {context}",
                fix="Shorten the prompt or ask for a larger context.",
            )
        self.engine = engine
        self._stops = StopState(stop, tokenizer.stop_ids, max_tokens)
        room = min(int(context), len(self.prompt_ids) + int(max_tokens))
        self._state = engine.new_state(room) if state is None else state
        if self.prompt_ids[: self._state.length] != self._state.ids:
            raise InputError(
                "the state holds other ids than those the prompt begins with",
                fix="Take a new state, or truncate this one to what they have in common.",
            )
        self._sampler = Sampler(sampling)
        self._decoder = tokenizer.stream()
        self._log = log or EventLog()
        self._load_s = load_s
        self._prefill_s = self._first_token_s = self._decode_s = 0.0
        self._logged, self._batch_begin = 0, 0.0  # tokens that log events cover, and since when
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._finish_reason: str | None = None
        self._cancelled = False
        self._error: Exception | None = None
        self._running = self._run()
        self._reading = threading.Lock()  # several threads may read one answer

    @property
    def seed(self) -> int:
        return self._sampler.seed

    def __iter__(self) -> Iterator[str]:
        """Pieces from the first on, also on a second pass."""
        at = 0
        while at < len(self._pieces) or self._advance():
            yield self._pieces[at]
            at += 1

    def _advance(self) -> bool:
        """Make one more piece, if there is one."""
        with self._reading:
            if self._error is not None:  # reading on after a failure must not pass for an answer
                raise self._error
            piece = next(self._running, None)
            if piece is not None:
                self._pieces.append(piece)
        return piece is not None

    def cancel(self) -> None:
        """End here: what was made so far stays, and finish_reason is "cancelled".

        Any thread may call it: a step that runs in another thread meanwhile will be the last.
        """
        self._cancelled = True
        with suppress(ValueError):  # it is running: it will see the flag
            self._running.close()

    def _finished(self) -> "Generation":
        while self._advance():
            pass
        return self

    @property
    def text(self) -> str:
        return "".join(self._finished()._pieces)

    @property
    def ids(self) -> list[int]:
        return self._finished()._ids

    @property
    def finish_reason(self) -> str:
        return self._finished()._finish_reason or "cancelled"

    @property
    def stats(self) -> dict[str, Any]:
        """Counts, seconds, tokens a second (of the tokens after the first) and peak memory."""
        self._finished()
        steps = len(self._ids) - 1
        return {
            "prompt_tokens": len(self.prompt_ids),
            "new_tokens": len(self._ids),
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

    def _run(self) -> Generator[str, None, None]:
        """Yields pieces; on the way out, however it comes, the log is told."""
        begin = time.perf_counter()
        try:
            yield from self._make(begin)
            if not self._cancelled:
                self._finish_reason = self._stops.finish_reason or "context"
        except GeneratorExit:
            self._log_end(begin)
        except KeyboardInterrupt:
            self._log_end(begin)
            raise
        except Exception as error:
            self._error = error
            self._log.write("error", time.perf_counter() - begin, len(self._ids), error=str(error))
            raise
        else:
            self._log_end(begin)

    def _log_tokens(self) -> None:
        """An event for the tokens since the last one, if there are any."""
        now, count = time.perf_counter(), len(self._ids) - self._logged
        if count:
            self._log.write("tokens", now - self._batch_begin, count)
            self._logged, self._batch_begin = len(self._ids), now

    def _log_end(self, begin: float) -> None:
        self._log_tokens()
        reason = self._finish_reason or "cancelled"
        seconds = time.perf_counter() - begin
        self._log.write("finish", seconds, len(self._ids), finish_reason=reason, seed=self.seed)

    def _make(self, begin: float) -> Iterator[str]:
        """Prefill, then draw, show and step."""
        stops, state, history = self._stops, self._state, self.prompt_ids.copy()
        if stops.finish_reason is None:
            new = self.prompt_ids[state.length :]
            logits = self.engine.forward(state, new)
            self._prefill_s = time.perf_counter() - begin
            self._log.write("prefill", self._prefill_s, len(new))
        self._batch_begin = first = time.perf_counter()
        while stops.finish_reason is None and not self._cancelled:
            token = self._sampler.sample(logits, history)
            self._ids.append(token)
            history.append(token)
            if len(self._ids) == 1:
                first = time.perf_counter()
                self._first_token_s = first - begin
            self._decode_s = time.perf_counter() - first
            if len(self._ids) == self._logged + LOGGED_BATCH:
                self._log_tokens()
            if piece := stops.push(token, self._decoder.push(token)):
                yield piece
            if stops.finish_reason is None:
                if state.length == state.context:
                    break
                logits = self.engine.forward(state, [token])
        if not self._cancelled and (piece := stops.flush(self._decoder.flush())):
            yield piece
