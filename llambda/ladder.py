"""Rungs measured side by side: the same prompt, the same weights, the same machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .engines.base import Engine

REPEATS = 7  # runs a median is taken over, unless told otherwise


@dataclass(frozen=True)
class Rung:
    """How fast one engine is: tokens a second, medians of a few runs."""

    name: str
    threads: int
    prefill_tok_s: float
    decode_tok_s: float


def measure(
    engine: Engine, prompt_ids: Sequence[int], new_tokens: int, repeats: int = REPEATS
) -> Rung:
    """Evaluate the prompt, then decode greedily; the first run warms up and does not count."""
    runs = [timed_run(engine, prompt_ids, new_tokens) for _ in range(repeats + 1)][1:]
    return Rung(
        engine.name,
        engine.threads,
        len(prompt_ids) / median(prefill for prefill, _ in runs),
        new_tokens / median(decode for _, decode in runs),
    )


def timed_run(engine: Engine, prompt_ids: Sequence[int], new_tokens: int) -> tuple[float, float]:
    """Seconds for the prompt, and for the new tokens."""
    state = engine.new_state(len(prompt_ids) + new_tokens)
    begin = time.perf_counter()
    logits = engine.forward(state, prompt_ids)
    middle = time.perf_counter()
    for _ in range(new_tokens):
        logits = engine.forward(state, [int(logits.argmax())])
    return middle - begin, time.perf_counter() - middle
