"""Is it right? Activations against the reference, with derived tolerances. Lessons 04 and 13.

Two right programs that add the same numbers in another order do not agree to the last bit. How far
apart may they be? The number behind the answer is the unit roundoff u, the most by which one
operation can be off, as a share of its result: 2^-24 in float32. Roundings go up as often as down,
so k additions one after the other take a random walk: it ends about sqrt(k) * u away, not k * u
(Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019). An activation
stands at the end of a chain of sums, each the input of the next. With N, the additions along the
whole chain (`additions`), element x of the row at position p may be off by

    u * (64 * sqrt(N) + 8 * p) * hypot(x, root mean square of its row)

- What u is a share of is the size of the numbers that were added. Their sum may be smaller, where
  they cancel; the row's root mean square tells the size they had. An outlier, which in real models
  can be a thousand times its row, is off by a share of itself.
- 64 leaves room for what enlarges errors on the way: the softmax turns a score's error into a share
  of a weight, a gate multiplies, a norm enlarges what cancelled. Where 64 stands, the measured
  errors of right engines need 0.5 for most activations of smollm2 and 2 for those of tiny models;
  the worst single elements need 26 and 13.
- A rotation's angle is position * frequency. Two power functions differ in the frequency's last
  bit, and the angle is then off by p times that, always to the same side: hence p, and no root.

It is tight enough to refuse a cache in half precision, and every fault that tests/ plants.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .config import ModelConfig
from .engines.base import Engine, activation_names
from .errors import InputError
from .tensor import Tensor
from .weights import Weights

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
Activations = Mapping[str, Array]  # a Trace, or what the oracle gives

AMPLIFICATION = 64.0
ROUNDINGS_OF_ANGLE = 8.0  # a position: 2 u on either side, and a partner twice one's own size


def additions(config: ModelConfig, n: int) -> dict[str, Doubles]:
    """N for each activation and position: the additions in series from the embedding to it, [n]."""
    lengths: dict[str, Any] = {  # of the sum that an operation makes over its inputs
        "attn_norm": config.dim,
        "q": config.dim,  # k and v are made beside it, not after it
        "q_rope": 2,
        "attn_heads": config.head_dim + np.arange(1, n + 1),  # a score, and over the positions
        "attn_out": config.n_heads * config.head_dim,
        "ffn_norm": config.dim,
        "gate": config.dim,
        "ffn_out": config.ffn_dim,
        "final_norm": config.dim,
        "logits": config.dim,
    }
    total = np.ones(n)
    found = {}
    for name in activation_names(config.n_layers):
        total = total + lengths.get(name.split(".")[-1], 0)
        found[name] = total
    return found


def tolerances(config: ModelConfig, n: int, dtype: str = "float32") -> dict[str, Doubles]:
    """How far off each activation may be at each position, as a share of its scale: [n]."""
    u = float(np.finfo(dtype).eps) / 2
    angle = ROUNDINGS_OF_ANGLE * np.arange(n)
    chains = additions(config, n)
    return {name: u * (AMPLIFICATION * np.sqrt(chain) + angle) for name, chain in chains.items()}


class Measured(NamedTuple):
    """One activation's numbers, all [n, dim] or [n, heads, head_dim]. Wrong is a ratio above 1."""

    name: str
    actual: Doubles
    expected: Doubles
    difference: Doubles
    scale: Doubles  # hypot(element, root mean square of its row)
    tolerance: Doubles
    ratio: Doubles  # difference / tolerance


def measure(
    actual: Activations, expected: Activations, config: ModelConfig, dtype: str
) -> Iterator[Measured]:
    """Each activation of the model, in the order of computation."""
    for name, share in tolerances(config, len(expected["embed"]), dtype).items():
        if name not in actual:
            raise InputError(f"the trace has no activation {name!r}")
        a, e = actual[name].astype(np.float64), expected[name].astype(np.float64)
        if a.shape != e.shape:
            raise InputError(
                f"activation {name!r} has shape {list(a.shape)}, where {list(e.shape)} is expected",
                fix="Compare traces of the same ids, from position 0 on.",
            )
        row = tuple(range(1, e.ndim))
        scale = np.hypot(e, np.sqrt(np.mean(e * e, axis=row, keepdims=True)))
        tolerance = scale * np.expand_dims(share, row)
        with np.errstate(invalid="ignore", divide="ignore"):
            difference = np.abs(a - e)
            ratio = np.where(difference == 0, 0, difference / tolerance)
        ratio[np.isnan(ratio)] = np.inf  # no tolerance allows nan
        yield Measured(name, a, e, difference, scale, tolerance, ratio)


def place(position: int, head: int | None, element: int) -> str:
    heads = "" if head is None else f"head {head}, "
    return f"position {position}, {heads}element {element}"


def locate(index: int, shape: tuple[int, ...]) -> tuple[int, int | None, int]:
    """(position, head, element) of the index-th number of a [n, dim] or [n, heads, head_dim]."""
    position, *head, element = (int(i) for i in np.unravel_index(index, shape))
    return position, head[0] if head else None, element


@dataclass(frozen=True)
class Comparison:
    """One activation, actual against expected.

    max_difference : the largest of all, wherever it is
    ratio : the largest difference over its tolerance; ok means that it is at most 1
    position, head, element : where that ratio is; head is None where there are no heads
    scale, tolerance : there
    """

    name: str
    max_difference: float
    ratio: float
    position: int
    head: int | None
    element: int
    scale: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.ratio <= 1

    def __str__(self) -> str:
        return (
            f"{self.name:<22} {'ok' if self.ok else 'WRONG':<5} off by {self.max_difference:.1e}; "
            f"{self.ratio:.2g} of the tolerance at {place(self.position, self.head, self.element)}"
        )


def compare(
    actual: Activations, expected: Activations, config: ModelConfig, dtype: str = "float32"
) -> list[Comparison]:
    """Every activation of the model, in the order of computation.

    actual, expected : all named activations of the same ids, from position 0 on
    dtype : what `actual` was computed in; `expected` counts as exact, so give float64
    """
    found = []
    for name, _, _, difference, scale, tolerance, ratio in measure(actual, expected, config, dtype):
        worst = int(ratio.argmax())
        found.append(
            Comparison(
                name,
                float(difference.max()),
                float(ratio.flat[worst]),
                *locate(worst, ratio.shape),
                float(scale.flat[worst]),
                float(tolerance.flat[worst]),
            )
        )
    return found


@dataclass(frozen=True)
class Divergence:
    """The first element, in the order of computation, that is further off than it may be.

    layer is None for embed, final_norm and logits; head is None where there are no heads.
    """

    layer: int | None
    operation: str
    position: int
    head: int | None
    element: int
    actual: float
    expected: float
    difference: float
    tolerance: float

    def __str__(self) -> str:
        layer = "" if self.layer is None else f"layer {self.layer}, "
        return (
            f"{layer}{self.operation}, {place(self.position, self.head, self.element)}: "
            f"{self.actual:.6g} instead of {self.expected:.6g}, "
            f"off by {self.difference:.1e} where {self.tolerance:.1e} is allowed"
        )


def first_divergence(
    actual: Activations, expected: Activations, config: ModelConfig, dtype: str = "float32"
) -> Divergence | None:
    """Where it first goes wrong: the first operation, in it the lowest position, head, element.

    First, not worst: an error grows on its way through the layers, and where it is largest says
    nothing about where it was made. Parameters are those of `compare`.
    """
    for name, a, e, difference, _, tolerance, ratio in measure(actual, expected, config, dtype):
        if (ratio > 1).any():
            first = int(np.argmax(ratio > 1))
            block, _, operation = name.rpartition(".")
            return Divergence(
                int(block.removeprefix("blk.")) if block else None,
                operation,
                *locate(first, ratio.shape),
                float(a.flat[first]),
                float(e.flat[first]),
                float(difference.flat[first]),
                float(tolerance.flat[first]),
            )
    return None


def trace_engine(
    engine: Engine, ids: Sequence[int], chunks: Sequence[int] | None = None
) -> dict[str, Array]:
    """All activations of ids, evaluated in chunks of these sizes; None means all at once."""
    sizes = [len(ids)] if chunks is None else list(chunks)
    if sum(sizes) != len(ids):
        raise InputError(f"chunks of {sizes} do not add up to {len(ids)} ids")
    state = engine.new_state(len(ids))
    parts: list[dict[str, Array]] = []
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        parts.append({})
        engine.forward(state, ids[end - size : end], trace=parts[-1])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Report(NamedTuple):
    """What `compare_engine` finds."""

    comparisons: list[Comparison]
    divergence: Divergence | None


def compare_engine(
    engine: Engine,
    config: ModelConfig,
    weights: Weights[Tensor],
    ids: Sequence[int],
    chunks: Sequence[int] | None = None,
    dtype: str = "float32",
) -> Report:
    """An engine against the float64 reference on the same weights, activation by activation.

    config and weights are the reference's own: what the engine was built from may be the fault.
    Raises MissingPackageError where PyTorch is not installed.
    """
    from .oracle import Oracle

    ids = list(ids)  # they are read twice
    given = Oracle(config, weights, "float64").forward(ids), config, dtype
    actual = trace_engine(engine, ids, chunks)
    return Report(compare(actual, *given), first_divergence(actual, *given))


def log_softmax(logits: Array) -> Doubles:
    """Logarithms of the probabilities along the last axis, in float64."""
    shifted = logits.astype(np.float64) - np.max(logits, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def kl_divergence(expected: Array, actual: Array) -> Doubles:
    """What is lost by taking the actual probabilities for the expected ones, in nats.

    The sum of p * log(p / q) at each position (Kullback and Leibler, 1951), from logits
    [n, vocab_size]: [n]. 0 means that they are the same; nan logits give nan.
    """
    same_shape(expected, actual)
    with np.errstate(invalid="ignore"):  # -inf - -inf, where both are impossible
        log_p, log_q = log_softmax(expected), log_softmax(actual)
        p = np.exp(log_p)
        return np.sum(np.where(p == 0, 0, p * (log_p - log_q)), axis=-1)


def top1_agreement(expected: Array, actual: Array) -> float:
    """The share of positions with the same most probable id; the lowest of equals counts."""
    same_shape(expected, actual)
    return float(np.mean(np.argmax(expected, axis=-1) == np.argmax(actual, axis=-1)))


def same_shape(expected: Array, actual: Array) -> None:
    if expected.shape != actual.shape:
        raise InputError(
            f"logits of shapes {list(expected.shape)} and {list(actual.shape)} do not compare"
        )
