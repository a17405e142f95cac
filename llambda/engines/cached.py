"""Rung 2: keys and values are kept, so each call evaluates only its new tokens. Lesson 06.

The operations are the first rung's. What differs is which positions go through them, and that
attention reads its keys and values out of the cache.
"""

from collections.abc import Sequence
from functools import partial

from ..cache import KVCache
from .base import Engine, Floats, State, Trace, check_call
from .naive import NaiveEngine


class CachedState(State):
    """The keys and values of every position so far."""

    def __init__(self, engine: Engine, context: int):
        super().__init__(engine, context)
        self.cache = KVCache(engine.config, context)


class CachedEngine(NaiveEngine):
    name = "cached"

    def new_state(self, context: int) -> State:
        return CachedState(self, context)

    def forward(
        self,
        state: State,
        ids: Sequence[int],
        all_logits: bool = False,
        trace: Trace | None = None,
    ) -> Floats:
        ids = check_call(self, state, ids)
        assert isinstance(state, CachedState)
        store = partial(state.cache.extend, state.length)
        logits = self.evaluate(ids, state.length, store, len(ids), all_logits, trace)
        state.ids += ids
        return logits
