"""Rung 7: a token is one compiled call, in threads that stay. Lesson 11.

Python prepares a step, numbers in an array, and every thread enters compiled code once. There the
phases of all layers follow one another, with a barrier after each. Nothing is allocated, and what
the threads share is one arena of packed weights.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from ..barrier import LATE
from ..cache import enough_memory
from ..config import ModelConfig
from ..errors import InputError
from ..kernels import cached_attention as attention
from ..kernels.aligned import aligned_zeros
from ..kernels.kv_layout import head_size, up_to_lanes
from ..kernels.matrix import padded
from ..kernels.rope import frequencies, table
from ..quants import decode, decode_rows
from ..simd.compiling import compile_together
from ..simd.tiles import TILE
from ..tensor import Tensor
from ..threads import fork_safe_lock
from ..turnout import Turnout
from ..weights import Sized, Weights, stored_bytes
from ..workers import Workers
from . import step as s
from .base import Engine, Floats, State, Trace, check_call
from .buffers import Buffers
from .fused_clock import Clock, clock_on
from .fused_trace import traced
from .phases import forward
from .plan import Plan, products_of

CHUNK = 256  # tokens in one step: a prompt's weights are read once for so many


class FusedState(State):
    """Keys and values of every position so far, in the order that attention reads them."""

    def __init__(self, engine: "FusedEngine", context: int):
        super().__init__(engine, context)
        config = engine.config
        self.room = up_to_lanes(context)
        heads = config.n_layers * config.n_kv_heads
        kind = np.uint16 if engine.cache == "f16" else np.float32
        self.cache = aligned_zeros(heads * head_size(self.room, config.head_dim), kind)
        self.logits = aligned_zeros(padded(config.vocab_size), np.float32)


@dataclass(frozen=True)
class Piece:
    """Some of the new ids of one sequence: ids[first:last]."""

    state: FusedState
    ids: Sequence[int]
    first: int
    last: int

    @property
    def ends(self) -> bool:
        return self.last == len(self.ids)


class FusedEngine(Engine):
    """All rungs' ideas at once."""

    name = "fused"
    caches = ("f32", "f16")

    def __init__(
        self, config: ModelConfig, weights: Weights[Tensor], threads: int = 1, cache: str = "f32"
    ):
        self.config = config
        self.threads = threads
        self.cache = cache
        self._embed = weights.embed
        kernels = KERNELS[cache]
        compile_together([forward], [*kernels, *products_of(weights)])
        self._plan = Plan(config, weights)
        self._workers = Workers(threads)
        self._turnout = Turnout(self._workers.threads)
        self._buffers = Buffers(config, CHUNK, threads)
        factors = None if weights.rope_factors is None else decode(weights.rope_factors)
        self._turning = frequencies(config.rope, factors)
        self._turns: tuple[Floats, Floats] = table(self._turning, 0, 0)
        self._one_call = fork_safe_lock()
        step = self._buffers.step
        step[s.TABLE] = self._plan.table.ctypes.data
        step[s.CONTROL] = self._workers.control.ctypes.data
        step[s.TURNS] = config.head_dim // 2
        step[s.HALVES] = cache == "f16"
        step[s.SCORE], step[s.MIX], step[s.PREFILL] = (kernel.address for kernel in kernels)

    @staticmethod
    def weight_bytes(weights: Weights[Sized]) -> int:
        """As stored, in another order; a few rows more where heads do not fill a strip."""
        return stored_bytes(weights)

    def new_state(self, context: int) -> State:
        with self._one_call, enough_memory(self.config, context, self.cache):
            state = FusedState(self, context)
            if context > len(self._turns[0]):
                self._turns = table(self._turning, 0, context)
                step = self._buffers.step
                step[s.COS], step[s.SIN] = (part.ctypes.data for part in self._turns)
            return state

    def forward(
        self,
        state: State,
        ids: Sequence[int],
        all_logits: bool = False,
        trace: Trace | None = None,
    ) -> Floats:
        if not all_logits and trace is None:
            return self.forward_batch([state], [ids])[0]
        with self._one_call:
            ids = check_call(self, state, ids)
            assert isinstance(state, FusedState)
            logits = self._every_token(state, ids, trace)
            state.ids += ids
        return logits if all_logits else logits[-1]

    def forward_batch(
        self, states: Sequence[State], ids_per_state: Sequence[Sequence[int]]
    ) -> list[Floats]:
        """Evaluate new ids of several sequences together: the last one's logits of each.

        The same bits as one by one, and each state's logits are valid until its next call.
        """
        if len({id(state) for state in states}) < len(states):
            raise InputError("a state can stand only once in a batch")
        with self._one_call:  # also for the checks: another thread may use a state
            checked = [check_call(self, *pair) for pair in zip(states, ids_per_state, strict=True)]
            fused = [state for state in states if isinstance(state, FusedState)]
            for pieces in steps(fused, checked):
                self._last_tokens(pieces)
            for state, ids in zip(fused, checked, strict=True):
                state.ids += ids
        return [state.logits[: self.config.vocab_size] for state in fused]

    def profile(self) -> AbstractContextManager[Clock]:
        """Time the calls within the block; one block at a time, whose Clock is read at its end."""
        return clock_on(self._buffers.step, self.threads, self._one_call)

    def close(self) -> None:
        self._workers.close()

    def _last_tokens(self, pieces: Sequence[Piece]) -> None:
        """Evaluate a step; the logits of sequences that end in it go to their states."""
        ends = np.cumsum([piece.last - piece.first for piece in pieces]) - 1
        wanted = [int(end) for end, piece in zip(ends, pieces, strict=True) if piece.ends]
        states = [piece.state for piece in pieces if piece.ends]
        if len(states) == 1:
            self._run(pieces, wanted, states[0].logits)
            return
        rows = np.empty((len(states) + TILE, self._buffers.step[s.VOCAB_ROWS]), np.float32)
        self._run(pieces, wanted, rows)
        for state, row in zip(states, rows, strict=False):
            state.logits[:] = row

    def _every_token(self, state: FusedState, ids: list[int], trace: Trace | None) -> Floats:
        """Logits of all ids, [n, vocab_size]."""
        rows = np.empty((len(ids) + TILE, self._buffers.step[s.VOCAB_ROWS]), np.float32)
        parts: list[Trace] = []
        for pieces in steps([state], [ids]):
            first, n = pieces[0].first, pieces[0].last - pieces[0].first
            if trace is None:
                self._run(pieces, range(n), rows[first:])
            else:
                self._write_step(pieces, range(n), rows[first:])
                parts.append(traced(self._buffers, n, rows[first:], self._run_phases))
        logits = rows[: len(ids), : self.config.vocab_size]
        if trace is not None:
            trace.update(
                {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            )
        return logits

    def _run(self, pieces: Sequence[Piece], wanted: Sequence[int], out: Floats) -> None:
        """All phases of one step; out gets the logits of the wanted tokens, row after row."""
        self._write_step(pieces, wanted, out)
        phases = self.config.n_layers * s.PHASES
        self._run_phases(0, phases + 1 if wanted else phases)

    def _run_phases(self, first: int, last: int) -> None:
        buffers = self._buffers
        buffers.step[s.FIRST], buffers.step[s.LAST] = first, last
        begin = time.monotonic()
        self._workers.run_compiled(forward, buffers.address, self._turnout.threads)
        end = time.monotonic()
        self._turnout.note(end - begin, self._workers.control[LATE] / 1e9, end)

    def _write_step(self, pieces: Sequence[Piece], wanted: Sequence[int], out: Floats) -> None:
        buffers, step = self._buffers, self._buffers.step
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            new = piece.last - piece.first
            end = piece.state.length + piece.last
            n = len(ids)
            buffers.tokens[n : n + new, 0] = i
            buffers.tokens[n : n + new, 1] = range(end - new, end)
            buffers.sequences[i] = piece.state.cache.ctypes.data, piece.state.room, end, new
            ids += piece.ids[piece.first : piece.last]
        buffers.x[: len(ids), : self.config.dim] = decode_rows(self._embed, ids)
        buffers.wanted[: len(wanted)] = wanted
        buffers.make_room(max(piece.state.room for piece in pieces), len(pieces))
        step[s.N], step[s.N_SEQUENCES], step[s.N_WANTED] = len(ids), len(pieces), len(wanted)
        step[s.PREFILLS] = len(ids) > len(pieces)
        step[s.LOGITS] = out.ctypes.data


KERNELS = {
    "f32": (attention.score_f32, attention.mix_f32, attention.prefill_f32),
    "f16": (attention.score_f16, attention.mix_f16, attention.prefill_f16),
}


def steps(
    states: Sequence[FusedState], ids_per_state: Sequence[Sequence[int]]
) -> Iterator[list[Piece]]:
    """The new ids of some sequences, cut into steps of at most CHUNK tokens."""
    pieces: list[Piece] = []
    room = CHUNK
    for state, ids in zip(states, ids_per_state, strict=True):
        first = 0
        while first < len(ids):
            last = min(len(ids), first + room)
            pieces.append(Piece(state, ids, first, last))
            room -= last - first
            first = last
            if room == 0:
                yield pieces
                pieces, room = [], CHUNK
    if pieces:
        yield pieces
