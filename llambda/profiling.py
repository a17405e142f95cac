"""Where the time goes, and how far that is from the limits. Lesson 07.

Three questions, in this order. How long does each part take? Spans say so, from outside, for
engines written in Python; the fused engine counts ticks itself (engines/fused_clock.py). How much
does each part compute and read? A formula of the model's sizes: `costs`. And how fast could that
be? The roof: no part computes faster than the processor, or on more than memory brings.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from math import inf, prod
from typing import Any, NamedTuple

from .cache import cache_bytes
from .config import ModelConfig
from .errors import InputError
from .weights import Layer, Weights, layer_shapes

# ---------------------------------------------------------------- spans


@dataclass
class Span:
    """One named part of a program.

    calls : how often it ended
    seconds : in all of them together, with spans inside it
    inside : how much of that was in spans inside it
    """

    calls: int = 0
    seconds: float = 0.0
    inside: float = 0.0

    @property
    def own(self) -> float:
        """Seconds in no other span: those of all spans add up to the whole."""
        return self.seconds - self.inside


NOTHING = nullcontext()


class Profiler:
    """Adds up calls and seconds of named parts of a program, in one thread.

    on : when False, a span is nothing at all: measuring costs about as much as a call
    spans : by path, in the order in which they were first begun: "decode", and "decode/attention"
        for what went on inside it
    """

    def __init__(self, on: bool = True):
        self.on = on
        self.spans: dict[str, Span] = {}
        self._path: list[str] = []

    def span(self, name: str) -> AbstractContextManager[None]:
        """Within the block time is counted as `name`."""
        return self._span(name) if self.on else NOTHING

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        outer = self.spans.get("/".join(self._path))
        self._path.append(name)
        span = self.spans.setdefault("/".join(self._path), Span())
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self._path.pop()
            span.calls += 1
            span.seconds += seconds
            if outer is not None:
                outer.inside += seconds

    @contextmanager
    def watch(self, thing: Any, method: str, name: str | Callable[..., str]) -> Iterator[None]:
        """Within the block each call of a method of one object is a span.

        name : of the span, or what makes it of the call's arguments
        Outside the block the object is as it was: what is not watched costs nothing.
        """
        if method in vars(thing):
            raise InputError(f"{method} is watched already")
        function = getattr(thing, method)

        @wraps(function)
        def watched(*arguments: Any) -> Any:
            with self.span(name if isinstance(name, str) else name(*arguments)):
                return function(*arguments)

        setattr(thing, method, watched)
        try:
            yield
        finally:
            delattr(thing, method)

    @property
    def whole(self) -> float:
        """Seconds in any span."""
        return sum(span.own for span in self.spans.values())

    def own(self) -> dict[str, float]:
        """Own seconds by the last part of the path, wherever it stood."""
        found: dict[str, float] = {}
        for path, span in self.spans.items():
            name = path.rpartition("/")[2]
            found[name] = found.get(name, 0.0) + span.own
        return found

    def report(self) -> str:
        """A table: calls, milliseconds with and without what is inside, share of the whole."""
        lines = [f"{'':<28}   calls         ms     own ms  share"]
        for path, span in self.spans.items():
            *above, name = path.split("/")
            lines.append(
                f"{'  ' * len(above) + name:<28} {span.calls:>7} {span.seconds * 1e3:>10.2f} "
                f"{span.own * 1e3:>10.2f} {span.own / (self.whole or 1):>6.1%}"
            )
        return "\n".join(lines)


METHODS = {  # of the engines written in Python -> the operation, named as in `costs`
    "embed": "embed",
    "rms_norm": "norms",
    "rotate": "rope",
    "attention": "attention",
    "swiglu": "swiglu",
}
MATRICES = {
    "qkv": ("q", "k", "v"),
    "attn_out": ("o",),
    "gate_up": ("gate", "up"),
    "ffn_out": ("down",),
}


@contextmanager
def watch_operations(profiler: Profiler, engine: Any) -> Iterator[None]:
    """Within the block the operations of an engine in Python are spans, named as in `costs`.

    What is left, storing keys and values for instance, is in no span of these.
    """
    weights = engine.weights
    named = {id(weights.head): "head"}
    for layer in weights.layers:
        for operation, fields in MATRICES.items():
            named |= {id(getattr(layer, field)): operation for field in fields}

    def linear(x: Any, weight: Any, *bias: Any) -> str:
        return named[id(weight)]

    with ExitStack() as stack:
        for method, operation in METHODS.items():
            stack.enter_context(profiler.watch(engine, method, operation))
        stack.enter_context(profiler.watch(engine, "linear", linear))
        yield


class Ticks:
    """A counter of ticks beside the clock: how long a tick is comes out between two looks.

    read : gives the counter's value
    """

    def __init__(self, read: Callable[[], int]):
        self._read = read
        self._begin = read(), time.perf_counter()

    def look(self) -> tuple[int, float]:
        """Ticks and seconds since the beginning."""
        ticks, seconds = self._read(), time.perf_counter()
        return ticks - self._begin[0], seconds - self._begin[1]


# ---------------------------------------------------------------- what an operation costs


class Cost(NamedTuple):
    """What one operation takes, in all layers together.

    flops : operations on floats; a multiplication with an addition is two, an exponential one
    weight_bytes : of weights read, each once
    kv_bytes : of cached keys and values read, each once
    """

    flops: int
    weight_bytes: int = 0
    kv_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        """Operations on floats for each byte read; infinite where none is."""
        return self.flops / self.nbytes if self.nbytes else inf


def costs(
    config: ModelConfig,
    nbytes: Weights[int],
    position: int,
    tokens: int = 1,
    cache: str = "f32",
) -> dict[str, Cost]:
    """What each operation takes when so many tokens are evaluated in one call.

    nbytes : of each weight, as an engine holds it: weights.map(lambda tensor: tensor.nbytes)
        as the file stores them, 4 * tensor.size in float32
    position : of the first of the tokens; the cache holds as many positions
    cache : the numbers that keys and values are kept as

    Counted are the weights and what is cached, not activations, which stay in the core's own
    caches; and of attention its products, beside which a softmax is little. Logits are computed
    for the last token alone.
    """
    c, layers = config, nbytes.layers
    shapes = layer_shapes(c)

    def size(layer: Layer[int], field: str) -> int:
        return prod(shapes[field]) if getattr(layer, field) is not None else 0

    def matrices(fields: Iterable[str]) -> Cost:
        flops = weight_bytes = 0
        for layer in layers:
            for field in fields:
                flops += 2 * size(layer, field) + size(layer, f"{field}_bias")
                weight_bytes += getattr(layer, field) + (getattr(layer, f"{field}_bias") or 0)
        return Cost(tokens * flops, weight_bytes)

    seen = sum(range(position + 1, position + tokens + 1))  # a token sees itself, too
    kept = position + tokens
    norm_bytes = sum(layer.attn_norm + layer.ffn_norm for layer in layers) + nbytes.final_norm
    norms = 2 * c.n_layers * tokens + 1
    turned = c.n_layers * tokens * (c.n_heads + c.n_kv_heads) * c.rope.dim // 2  # pairs
    return {
        "embed": Cost(0, nbytes.embed // c.vocab_size * tokens),
        "norms": Cost(4 * c.dim * norms, norm_bytes),  # square, add, times 1 / rms, times weight
        "qkv": matrices(MATRICES["qkv"]),
        "rope": Cost(6 * turned),
        "attention": Cost(
            4 * c.n_layers * c.n_heads * c.head_dim * seen, kv_bytes=cache_bytes(c, kept, cache)
        ),
        "attn_out": matrices(MATRICES["attn_out"]),
        "gate_up": matrices(MATRICES["gate_up"]),
        "swiglu": Cost(5 * c.n_layers * tokens * c.ffn_dim),  # g / (1 + exp(-g)) * u
        "ffn_out": matrices(MATRICES["ffn_out"]),
        "residual": Cost(2 * c.n_layers * tokens * c.dim),
        "head": Cost(2 * c.vocab_size * c.dim, nbytes.head),
    }


def total(parts: Iterable[Cost]) -> Cost:
    return Cost(*(sum(column) for column in zip(*parts, strict=True)))


# ---------------------------------------------------------------- the roof


def roofline(peak: float, bandwidth: float, intensity: float) -> float:
    """The most operations a second, of `peak`, that memory brings bytes for.

    peak in operations a second, bandwidth in bytes a second, intensity in operations for a byte.
    Source: Williams, Waterman and Patterson, Roofline, 2009.
    """
    return min(peak, bandwidth * intensity)


def most_to_gain(share: float, of_roof: float) -> float:
    """How many times as fast the whole can get if one part of it gets to its roof.

    share : of the time that the part takes
    of_roof : how much of its roof the part reaches now
    """
    return 1 / (1 - share + share * of_roof)
