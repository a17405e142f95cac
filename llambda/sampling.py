"""From logits to one token: pure functions logits -> logits, then one draw. Lesson 05.

The order is llama.cpp's: repetition penalty, top-k, top-p, min-p, temperature last. It matters:
with the temperature first, top-p would see another distribution and keep other tokens. A token
that is ruled out has the logit -inf. Ties go to the lowest id.
"""

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import InputError, LlambdaError, quoted, require_float, require_number

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    temperature : divides the logits; below 1 sharper, above 1 flatter, 0 takes the best (greedy)
    top_k : keep the k best; 0 keeps all
    top_p : keep the smallest set of the best whose probabilities reach p; 1 keeps all
    min_p : keep what is at least min_p times as probable as the best; 0 keeps all
    repeat_penalty : weaken tokens that occurred before (Keskar et al., CTRL, 2019); 1 is off
    seed : of the random generator; None draws one

    Any real number is taken (a Fraction, one of NumPy's) and kept as a float.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        self._make_float("temperature", 0, math.inf, "0 or more")
        require_number("top_k", self.top_k, 0, math.inf, "0 (off) or more", whole=True)
        self._make_float("top_p", 0, 1, "between 0 and 1")
        self._make_float("min_p", 0, 1, "between 0 and 1")
        self._make_float("repeat_penalty", math.ulp(0), math.inf, "above 0")
        if self.seed is not None:
            require_number("seed", self.seed, 0, math.inf, "0 or more", whole=True)

    def _make_float(self, name: str, low: float, high: float, wanted: str) -> None:
        """NumPy divides by no Fraction. A frozen dataclass is set up like this."""
        value = require_float(name, getattr(self, name), low, high, wanted)
        object.__setattr__(self, name, value)


def penalize(logits: Floats, history: Iterable[int], penalty: float) -> Floats:
    """Weaken every token of the history once, however often it stands there.

    A positive logit is divided by the penalty and a negative one multiplied, so both fall. In
    float64, because an extreme penalty is 0 or infinite in float32.
    """
    seen = np.unique(np.fromiter(history, np.int64))
    result = logits.astype(np.float64)
    old = result[seen]
    with np.errstate(over="ignore"):
        result[seen] = np.where(old > 0, old / penalty, old * penalty)
    return result


def keep_top_k(logits: Floats, k: int) -> Floats:
    """Keep the k largest logits. 0, or more than there are, keeps all."""
    if k == 0 or k >= logits.size:
        return logits
    smallest = np.partition(logits, -k)[-k]
    above = np.flatnonzero(logits > smallest)
    ties = np.flatnonzero(logits == smallest)[: k - above.size]
    return only(logits, np.concatenate([above, ties]))


def keep_top_p(logits: Floats, p: float) -> Floats:
    """Keep the smallest set of the most probable tokens whose probabilities sum to p or more.

    The token that crosses p is in it, so the set is never empty.
    """
    if p >= 1:
        return logits
    possible = np.flatnonzero(logits > -np.inf)
    ranked = possible[np.argsort(-logits[possible], kind="stable")]
    reached = np.cumsum(softmax(logits[ranked]))
    return only(logits, ranked[: np.searchsorted(reached, p) + 1])


def keep_min_p(logits: Floats, min_p: float) -> Floats:
    """Keep tokens at least min_p times as probable as the most probable one."""
    if min_p == 0:
        return logits
    relative = np.exp(logits.astype(np.float64) - logits.max())
    return only(logits, np.flatnonzero(relative >= min_p))


def only(logits: Floats, ids: npt.NDArray[np.intp]) -> Floats:
    """The logits of these ids; -inf everywhere else."""
    result = np.full_like(logits, -np.inf)
    result[ids] = logits[ids]
    return result


def softmax(logits: Floats, temperature: float = 1.0) -> npt.NDArray[np.float64]:
    """Probabilities, in float64. The largest logit is taken off first, so nothing overflows."""
    distance = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):  # a tiny temperature may send a distance to -inf
        weights = np.exp(distance / temperature)
    return weights / weights.sum()


def draw(probabilities: npt.NDArray[np.float64], u: float) -> int:
    """The token at u in [0, 1) of the cumulative distribution; never one of probability zero."""
    cumulative = np.cumsum(probabilities)
    token = np.searchsorted(cumulative, u * cumulative[-1], side="right")
    last = np.flatnonzero(probabilities)[-1]  # u * sum may round up to the sum itself
    return int(min(token, last))


class Sampler:
    """Chooses the tokens of one sequence; its random numbers are its own."""

    def __init__(self, sampling: Sampling):
        self.sampling = sampling
        self.seed = secrets.randbits(32) if sampling.seed is None else int(sampling.seed)
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    def sample(self, logits: Floats, history: Sequence[int]) -> int:
        """One token. Raises LlambdaError when the logits are not numbers, InputError when they are
        none after the penalty.
        """
        settings = self.sampling
        if not np.isfinite(logits.max()):  # a NaN anywhere is the maximum
            raise LlambdaError(
                "the model's logits are not finite numbers",
                fix="The weights are damaged, or the engine has a fault: try another engine.",
            )
        if settings.repeat_penalty != 1 and history:
            logits = penalize(logits, history, settings.repeat_penalty)
            if not np.isfinite(logits.max()):
                raise InputError(
                    f"a repeat_penalty of {settings.repeat_penalty} makes logits infinite",
                    fix="Choose one nearer to 1.",
                )
        if settings.temperature == 0:
            return int(np.argmax(logits))
        logits = keep_top_k(logits, settings.top_k)
        logits = keep_top_p(logits, settings.top_p)
        logits = keep_min_p(logits, settings.min_p)
        return draw(softmax(logits, settings.temperature), self._random.random())


class StopState:
    """Decides when one sequence ends, and what of its text may be shown so far.

    Text that could be the beginning of a stop string is held back until it is disproved or the
    sequence ends. Of several stop strings, the one that is complete first counts.

    finish_reason : None while the sequence runs, then "stop" or "length"
    """

    def __init__(self, stop_strings: Iterable[str], stop_ids: Iterable[int], max_tokens: int):
        if not isinstance(stop_strings, Iterable):
            raise InputError(
                f"stop is {quoted(stop_strings)}", fix="It must be a text or several, in a list."
            )
        self.stop_strings = tuple(stop_strings)  # what is iterated once may be empty after that
        for stop in self.stop_strings:
            if not isinstance(stop, str) or not stop:
                raise InputError(
                    f"{quoted(stop)} is no stop string", fix="Give text of at least one character."
                )
        require_number("max_tokens", max_tokens, 0, math.inf, "0 or more", whole=True)
        self.stop_ids = frozenset(stop_ids)
        self.tokens_left = max_tokens
        self.held = ""
        self.found_string = False
        self.finish_reason: str | None = "length" if max_tokens == 0 else None

    def push(self, token: int, text: str) -> str:
        """Count one token that adds `text`; returns what may be shown now."""
        self.tokens_left -= 1
        if token in self.stop_ids:
            self.finish_reason = "stop"
            return ""
        shown = self._release(text)
        if self.finish_reason is None and self.tokens_left == 0:
            self.finish_reason = "length"
        return shown

    def flush(self, text: str) -> str:
        """The sequence is over, and `text` its last: returns all that was held back."""
        if self.found_string:
            return ""
        shown = self._release(text)
        return shown if self.found_string else shown + self.held

    def _release(self, text: str) -> str:
        """What may be shown of the text held back and this one; notices a stop string."""
        text = self.held + text
        found = [(text.find(s) + len(s), text.find(s)) for s in self.stop_strings if s in text]
        if found:
            self.found_string, self.finish_reason = True, "stop"
            return text[: min(found)[1]]
        keep = max((overlap(text, s) for s in self.stop_strings), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a beginning of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
