"""Rungs that multiply quantized weights with quantized activations.

Rounding activations costs accuracy, and how much is measured against PyTorch. Beyond that there is
nothing to be close to: all of these rungs make the same sums in the same order, so that one's bits
are another's, with any number of threads and however a sequence is cut into calls.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from drawn_models import draw, sized
from models import mutant

from llambda import modelfile
from llambda.check import kl_divergence, top1_agreement, trace_engine
from llambda.config import ModelConfig
from llambda.engines import RUNGS, CachedEngine, QuantizedEngine, ThreadedEngine
from llambda.engines.base import Engine
from llambda.engines.fused import CHUNK
from llambda.kernels.activations import BLOCK, quantize
from llambda.oracle import Oracle
from llambda.quants import decode, decode_rows
from llambda.simd.tiles import TILE
from llambda.tensor import Tensor
from llambda.weights import Weights

GOLDEN = Path(__file__).parent / "golden"
CODED = ["quantized", "threaded", "fused"]
SHARED = CODED[1:]  # by threads
THREADS = [1, 2, 3, (os.cpu_count() or 1) + 3]
N = 40
MODELS = {  # a layer's matrices are of several formats, also those that share their input
    "groups of 3": (
        sized(dim=256, heads=(6, 2), head_dim=48, ffn_dim=100, vocab_size=70),
        ("Q8_0", "F16", "Q4_0", "Q6_K", "F32"),
    ),
    "groups of 5": (
        sized(dim=64, heads=(5, 1), head_dim=80, ffn_dim=96, vocab_size=33, biases=True, tied=True),
        ("Q4_0", "Q8_0", "BF16"),
    ),
}

Loaded = tuple[ModelConfig, Weights[Tensor]]

on_models = pytest.mark.parametrize("model", MODELS)


@cache
def drawn(model: str) -> Loaded:
    config, kinds = MODELS[model]
    return config, draw(config, kinds)


@pytest.fixture
def make() -> Iterator[Callable[..., Engine]]:
    """make(name, model, threads): an engine that is closed at the end."""
    made = []

    def engine(name: str, model: str, threads: int = 2) -> Engine:
        made.append(RUNGS[name](*drawn(model), threads))
        return made[-1]

    yield engine
    for each in made:
        each.close()


def ids_for(model: str, n: int, seed: int = 0) -> list[int]:
    vocab_size = drawn(model)[0].vocab_size
    return np.random.default_rng(seed).integers(0, vocab_size, n).tolist()


def logits_of(engine: Engine, ids: Sequence[int], sizes: Sequence[int] | None = None) -> np.ndarray:
    """Every id's logits, from a fresh state, in calls of these sizes."""
    state = engine.new_state(len(ids))
    parts, at = [], 0
    for size in sizes or [len(ids)]:
        new = ids[at : at + size]
        parts.append(engine.forward(state, new, all_logits=True).copy())
        at += size
    assert state.ids == list(ids)
    return np.concatenate(parts)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.int32), b.view(np.int32))


# ---------------------------------------------------------------- the same bits


@on_models
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", SHARED)
def test_any_number_of_threads_gives_the_same_bits(name, threads, model, make):
    ids = ids_for(model, N)
    expected = logits_of(make("quantized", model), ids)
    assert np.ptp(expected) > 1
    engine = make(name, model, threads)
    assert engine.threads == threads
    assert same_bits(logits_of(engine, ids), expected)
    steps = logits_of(engine, ids, [1] * N)
    assert same_bits(steps, expected)


@on_models
@pytest.mark.parametrize("name", CODED)
def test_however_a_sequence_is_cut(name, model, make):
    engine, ids = make(name, model, 3), ids_for(model, N)
    expected = logits_of(make("quantized", model), ids)
    for sizes in ([TILE, N - TILE], [TILE + 1, N - TILE - 1], [4, 3, 2, 1, 5, 25], [1, N - 1]):
        assert same_bits(logits_of(engine, ids, sizes), expected)
        state = engine.new_state(N)
        ends = np.cumsum(sizes)
        for end, size in zip(ends, sizes, strict=True):
            last = engine.forward(state, ids[end - size : end])
        assert same_bits(last, expected[-1])


@on_models
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("n", [1, 3, TILE + 2, CHUNK + 7])
def test_activations_are_the_same_bits(name, n, model, make):
    """Not only at the end; with more ids than the fused rung evaluates at once, too."""
    ids = ids_for(model, n)
    expected = trace_engine(make("quantized", model), ids)
    for activation, value in trace_engine(make(name, model, 2), ids).items():
        assert same_bits(value, expected[activation]), activation


@on_models
@pytest.mark.parametrize("name", CODED)
def test_a_cut_state_goes_on_like_a_fresh_one(name, model, make):
    engine = make(name, model)
    first, second = ids_for(model, N, 1), ids_for(model, N, 2)
    state = engine.new_state(N)
    engine.forward(state, first)
    for kept in (0, 1, TILE, N - 1):
        state.truncate(kept)
        engine.forward(state, second[kept:])
        state.truncate(kept)
        last = engine.forward(state, first[kept:])
        assert same_bits(last, logits_of(engine, first)[-1])


@pytest.mark.parametrize("name", ["vectorized", *CODED])
def test_python_threads_may_share_an_engine(name, make):
    engine = make(name, "groups of 3")
    sequences = [ids_for("groups of 3", 9 + i, i) for i in range(4)]
    alone = [logits_of(engine, ids, [8, *[1] * (len(ids) - 8)]) for ids in sequences]
    with ThreadPoolExecutor(len(sequences)) as threads:
        together = list(
            threads.map(lambda ids: logits_of(engine, ids, [8, *[1] * (len(ids) - 8)]), sequences)
        )
    assert all(map(same_bits, together, alone))


@pytest.mark.parametrize(
    "edit",
    [
        ("range(parts)", "range(parts - 1)"),
        ("share(total, part, parts)", "share(total - 1, part, parts)"),
        ("share(total, part, parts)", "share(total, 0, parts)"),
        ("share(total, part, parts)", "share(total, part, parts + 1)"),
    ],
)
def test_work_that_nobody_does_is_noticed(edit, make, monkeypatch):
    """What was in the memory before is no result; other ids have been there."""
    engine, ids = make("threaded", "groups of 3", 3), ids_for("groups of 3", N)
    expected = logits_of(engine, ids)
    logits_of(engine, ids[::-1])
    monkeypatch.setattr(ThreadedEngine, "share_out", mutant(ThreadedEngine.share_out, edit))
    assert not same_bits(logits_of(engine, ids), expected)


# ---------------------------------------------------------------- what a token reads


def test_packed_weights_take_no_more_than_the_file(tiny_path):
    config, weights = opened(tiny_path.with_name("tiny-q8_0.gguf"))
    engine = QuantizedEngine(config, weights)
    packed = {id(m): m.data.nbytes for m in matrices(engine.weights)}
    stored = {id(t): t.nbytes for t in matrices(weights)}
    assert sum(packed.values()) == sum(stored.values())  # all rows fill whole strips
    assert QuantizedEngine.weight_bytes(weights) < CachedEngine.weight_bytes(weights) / 3.5


def matrices(weights: Weights[Any]) -> list[Any]:
    names = ("q", "k", "v", "o", "gate", "up", "down")
    return [getattr(layer, name) for layer in weights.layers for name in names] + [weights.head]


def opened(path: Path) -> Loaded:
    file = modelfile.open(path)
    config = modelfile.read_config(file)
    return config, modelfile.read_weights(file, config)


# ---------------------------------------------------------------- what rounding costs


class Rounded(NamedTuple):
    """A matrix, and whether what it is multiplied with is rounded to codes."""

    values: np.ndarray
    coded: bool


class RoundingEngine(CachedEngine):
    """What these rungs mean, in NumPy: activations that meet quantized weights are rounded."""

    name = "rounding"

    def prepare(self, weights: Weights[Tensor]) -> Weights[Any]:
        def one(weight: Tensor) -> Any:
            values = decode(weight)
            return values if weight.ndim == 1 else Rounded(values, weight.dtype.block > 1)

        return replace(weights.map(one), embed=weights.embed)

    def embed(self, ids: Sequence[int]) -> np.ndarray:
        return decode_rows(self.weights.embed, ids)

    def linear(self, x: np.ndarray, weight: Rounded, bias: np.ndarray | None = None) -> np.ndarray:
        if weight.coded:
            codes, d = quantize(x.reshape(len(x), -1, BLOCK))
            x = (codes * d[..., None]).reshape(x.shape)
        return super().linear(x, weight.values, bias)


def losses(expected: list[np.ndarray], engine: Engine, texts: list[list[int]]) -> np.ndarray:
    """What each position of some texts loses against PyTorch, in nats."""
    return np.concatenate(
        [kl_divergence(e, logits_of(engine, ids)) for e, ids in zip(expected, texts, strict=True)]
    )


def with_shifted_scales(weights: Weights[Tensor], layer: int, part: str, nbytes: int) -> Any:
    """The planted fault: a matrix of which every block has its neighbour's scale."""
    tensor = getattr(weights.layers[layer], part)
    blocks = tensor.blocks().copy()
    blocks[..., :nbytes] = np.roll(blocks[..., :nbytes], 1, axis=1)
    layers = list(weights.layers)
    layers[layer] = replace(
        layers[layer], **{part: Tensor(blocks.tobytes(), tensor.dtype, tensor.shape)}
    )
    return replace(weights, layers=tuple(layers))


@pytest.fixture(scope="module")
def tiny_coded(tiny_path) -> tuple[Loaded, list[list[int]], list[np.ndarray]]:
    """The tiny model in Q8_0, what it continues, and PyTorch's logits."""
    loaded = opened(tiny_path.with_name("tiny-q8_0.gguf"))
    recorded = json.loads(tiny_path.with_name("tiny_golden.json").read_text("utf-8"))["cases"]
    texts = [case["ids"] + case["continuation_ids"] for case in recorded]
    oracle = Oracle(*loaded)
    return loaded, texts, [oracle.logits(ids) for ids in texts]


def test_the_tiny_model_loses_what_rounding_costs(tiny_coded):
    """A code that falls the other way at a tie moves a loss a little, up as often as down."""
    (config, weights), texts, expected = tiny_coded
    rounding = losses(expected, RoundingEngine(config, weights), texts)
    for name in CODED:
        engine = RUNGS[name](config, weights, 2)
        lost = losses(expected, engine, texts)
        engine.close()
        print(f"{name}: mean KL {lost.mean():.5f}; rounding costs {rounding.mean():.5f}")
        assert lost.mean() <= 1.15 * rounding.mean()
    spoilt = QuantizedEngine(config, with_shifted_scales(weights, 1, "down", 2))
    assert losses(expected, spoilt, texts).mean() > 2 * rounding.mean()


# ---------------------------------------------------------------- the real model


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> Loaded:
    return opened(smollm2_path)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """What llama.cpp lost on some texts, whose activations it rounds to 8 bits as well."""
    return json.loads((GOLDEN / "llamacpp_vs_pytorch.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def smollm2_logits(smollm2, recorded) -> list[np.ndarray]:
    oracle = Oracle(*smollm2)
    return [oracle.logits(case["ids"]) for case in recorded["cases"]]


@pytest.mark.real
def test_smollm2_loses_no_more_than_llama_cpp(smollm2, smollm2_logits, recorded):
    """By at most 1.15 times its mean; and all rungs lose the same, to the last bit."""
    texts = [case["ids"] for case in recorded["cases"]]
    allowed = 1.15 * recorded["mean_kl"]
    found = []
    for name in CODED:
        engine = RUNGS[name](*smollm2, 2)
        logits = [logits_of(engine, ids) for ids in texts]
        engine.close()
        found.append(np.concatenate(logits))
    lost = np.concatenate([*map(kl_divergence, smollm2_logits, logits)])
    same = top1_agreement(np.concatenate(smollm2_logits), found[0])
    print(
        f"mean KL {lost.mean():.5f} of {allowed:.5f} allowed; {same:.3f} have the same best token"
    )
    assert len(lost) == recorded["positions"]
    assert lost.mean() <= allowed
    assert same >= 0.94  # llama.cpp's are 0.95
    assert all(same_bits(each, found[0]) for each in found)


@pytest.mark.real
def test_scales_of_neighbours_would_be_noticed(smollm2, smollm2_logits, recorded):
    config, weights = smollm2
    engine = QuantizedEngine(config, with_shifted_scales(weights, 15, "down", 4))
    texts = [case["ids"] for case in recorded["cases"]]
    lost = losses(smollm2_logits, engine, texts)
    print(f"mean KL {lost.mean():.5f}")
    assert lost.mean() > 1.5 * recorded["mean_kl"]
