"""The face that every rung has: an Engine is a plan, a State is one sequence's progress.

An Engine is immutable and may be shared by any number of threads. A State belongs to one sequence
at a time. Logits are valid until the state's next call.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..cache import check_positions
from ..config import ModelConfig
from ..errors import ContextError, InputError, plural, require_number
from ..tensor import Tensor
from ..weights import Sized, Weights

Floats = npt.NDArray[np.float32]

# What a trace holds, in the order of computation: `embed`, then for each layer i these names
# behind `blk.i.`, then `final_norm` and `logits`. Each array is [n, ...] for the n ids evaluated.
LAYER_ACTIVATIONS = (
    "attn_norm",  # [n, dim]
    "q",  # [n, n_heads, head_dim]
    "k",  # [n, n_kv_heads, head_dim]
    "v",  # [n, n_kv_heads, head_dim]
    "q_rope",  # [n, n_heads, head_dim]
    "k_rope",  # [n, n_kv_heads, head_dim]
    "attn_heads",  # [n, n_heads, head_dim]
    "attn_out",  # [n, dim], after the output projection
    "attn_residual",  # [n, dim]
    "ffn_norm",  # [n, dim]
    "gate",  # [n, ffn_dim]
    "up",  # [n, ffn_dim]
    "swiglu",  # [n, ffn_dim]
    "ffn_out",  # [n, dim]
    "ffn_residual",  # [n, dim]
)

Trace = dict[str, Floats]


def activation_names(n_layers: int) -> list[str]:
    """Every name a trace of a model with that many layers holds, in the order of computation."""
    layers = [f"blk.{i}.{name}" for i in range(n_layers) for name in LAYER_ACTIVATIONS]
    return ["embed", *layers, "final_norm", "logits"]


class State:
    """One sequence's progress through an engine.

    engine : the engine that made it, and the only one that can use it
    context : the most positions it has room for
    ids : the ids evaluated so far, one a position
    """

    def __init__(self, engine: "Engine", context: int):
        check_positions(context)
        self.engine = engine
        self.context = context
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        """Positions evaluated so far; the next id stands at this position."""
        return len(self.ids)

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on. 0 begins anew."""
        positions = f"0 to the state's {plural(self.length, 'position')}"
        require_number("length", length, 0, self.length, positions, whole=True)
        del self.ids[length:]


class Engine(ABC):
    """A way to run one model.

    Parameters
    ----------
    config : the model's sizes
    weights : the model's tensors, read and never written
    threads : threads to use; rungs that run on one thread take any number and use one
    cache : one of the rung's `caches`, the numbers that keys and values are kept as
    """

    name: ClassVar[str]
    caches: ClassVar[Sequence[str]] = ("f32",)
    config: ModelConfig
    threads: int

    @abstractmethod
    def __init__(
        self, config: ModelConfig, weights: Weights[Tensor], threads: int = 1, cache: str = "f32"
    ): ...

    @staticmethod
    @abstractmethod
    def weight_bytes(weights: Weights[Sized]) -> int:
        """Memory that an engine over these weights will take for them."""

    @abstractmethod
    def new_state(self, context: int) -> State:
        """A fresh sequence with room for `context` positions."""

    @abstractmethod
    def forward(
        self,
        state: State,
        ids: Sequence[int],
        all_logits: bool = False,
        trace: Trace | None = None,
    ) -> Floats:
        """Evaluate ids at the state's position and advance it.

        Returns the last id's logits, float32 [vocab_size], or with all_logits every id's,
        [n, vocab_size]. A dict given as trace is filled with the named activations. When this
        raises, the state is as it was.
        """

    def close(self) -> None:
        """End the engine's threads, if it has any. Harmless when called twice."""
        return


@runtime_checkable
class EvaluatesBatches(Protocol):
    """What some rungs can do besides."""

    def forward_batch(
        self, states: Sequence[State], ids_per_state: Sequence[Sequence[int]]
    ) -> list[Floats]:
        """Evaluate ids of several sequences; logits of the last one of each, [vocab_size].

        The bits are those of `forward`, one by one. When this raises, the states are as they were.
        """


def check_call(engine: Engine, state: State, ids: Sequence[int]) -> list[int]:
    """The ids as plain ints, if they can be evaluated: some, all tokens, and with room for them."""
    if state.engine is not engine:
        raise InputError("a state can only be used by the engine that made it")
    checked = check_ids(ids, engine.config.vocab_size)
    if not checked:
        raise InputError("there are no token ids to evaluate", fix="Give at least one.")
    if state.length + len(checked) > state.context:
        tokens = plural(len(checked), "token")
        raise ContextError(
            f"{tokens} at position {state.length} do not fit in a context of {state.context}",
            fix=more_room(engine.config, state.context),
        )
    return checked


def check_room(config: ModelConfig, prompt_ids: Sequence[int], context: int) -> None:
    """Raise ContextError for a prompt that is longer than the context."""
    if len(prompt_ids) > context:
        raise ContextError(
            f"the prompt has {plural(len(prompt_ids), 'token')} and the context {context}",
            fix=more_room(config, context),
        )


def more_room(config: ModelConfig, context: int) -> str:
    """What to do when a context is too small: a model's own is the largest that it has."""
    if context < config.context_length:
        return "Shorten the prompt or ask for a larger context."
    return "Shorten the prompt: this model has no larger context."


def check_ids(ids: Iterable[Any], vocab_size: int) -> list[int]:
    """The ids as plain ints, whatever kind of whole number they are; all must be tokens."""
    if isinstance(ids, bytes | bytearray | str | dict) or not isinstance(ids, Iterable):
        raise InputError(f"token ids must be a list of whole numbers, not {type(ids).__name__}")
    checked = []
    for token in ids:
        try:
            checked.append(operator.index(token))
        except TypeError:
            raise InputError(f"token id {token!r} is not a whole number") from None
        if not 0 <= checked[-1] < vocab_size:
            raise InputError(
                f"token id {token} is outside the vocabulary",
                fix=f"This model's ids go from 0 to {vocab_size - 1}.",
            )
    return checked
