"""Spans on a made clock, costs beside PyTorch's own count, the lesson's numbers."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models import VARIANTS, build, mutant, random_ids
from torch.utils.flop_counter import FlopCounterMode

from llambda import modelfile, profiling
from llambda.config import ModelConfig, RopeConfig
from llambda.engines import CachedEngine, NaiveEngine, ScalarEngine
from llambda.engines import step as s
from llambda.engines.fused import FusedEngine
from llambda.engines.fused_clock import KINDS
from llambda.errors import InputError
from llambda.oracle import Oracle
from llambda.profiling import (
    Cost,
    Profiler,
    Ticks,
    costs,
    most_to_gain,
    roofline,
    total,
    watch_operations,
)
from llambda.weights import Layer, Weights, layer_shapes


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(profiling, "time", made)
    return made


# ---------------------------------------------------------------- spans


def nested(profiler: Profiler, clock: Clock) -> None:
    """8 s of decode, of which 5 in attention, of which 2 in softmax; then 4 s of attention."""
    with profiler.span("decode"):
        clock.now += 1
        for _ in range(2):
            with profiler.span("attention"):
                clock.now += 1.5
                with profiler.span("softmax"):
                    clock.now += 1
        clock.now += 2
    with profiler.span("attention"):
        clock.now += 4


def facts(profiler: Profiler) -> dict[str, tuple[int, float, float]]:
    return {path: (span.calls, span.seconds, span.own) for path, span in profiler.spans.items()}


NESTED = {
    "decode": (1, 8.0, 3.0),
    "decode/attention": (2, 5.0, 3.0),
    "decode/attention/softmax": (2, 2.0, 2.0),
    "attention": (1, 4.0, 4.0),
}


def test_spans_add_up_to_the_whole(clock: Clock):
    profiler = Profiler()
    nested(profiler, clock)
    assert facts(profiler) == NESTED
    assert list(profiler.spans) == list(NESTED)
    assert profiler.whole == clock.now - 100 == 12
    assert profiler.own() == {"decode": 3, "attention": 7, "softmax": 2}


@pytest.mark.parametrize(
    "edit",
    [
        ("outer.inside += seconds", "pass"),  # nested spans added
        ("self._path.pop()", "pass"),
        ("span.calls += 1", "span.calls = 1"),
    ],
)
def test_a_profiler_with_a_mistake_is_noticed(edit: tuple[str, str], clock: Clock, monkeypatch):
    monkeypatch.setattr(Profiler, "_span", mutant(inspect.unwrap(Profiler._span), edit))
    profiler = Profiler()
    nested(profiler, clock)
    assert facts(profiler) != NESTED


def test_a_span_that_raises_is_counted(clock: Clock):
    profiler = Profiler()
    with pytest.raises(KeyError), profiler.span("outer"):
        clock.now += 1
        with profiler.span("inner"):
            clock.now += 2
            raise KeyError
    with profiler.span("outer"):
        clock.now += 1
    assert facts(profiler) == {"outer": (2, 4.0, 2.0), "outer/inner": (1, 2.0, 2.0)}


def test_nothing_happens_when_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiling, "time", None)
    profiler = Profiler(on=False)
    assert profiler.span("a") is profiler.span("b")
    with profiler.span("a"), profiler.span("b"):
        pass
    assert profiler.spans == {}


def test_the_report_says_all_of_it(clock: Clock):
    profiler = Profiler()
    nested(profiler, clock)
    assert [line.split() for line in profiler.report().splitlines()[1:]] == [
        ["decode", "1", "8000.00", "3000.00", "25.0%"],
        ["attention", "2", "5000.00", "3000.00", "25.0%"],
        ["softmax", "2", "2000.00", "2000.00", "16.7%"],
        ["attention", "1", "4000.00", "4000.00", "33.3%"],
    ]
    assert Profiler().report().count("\n") == 0


# ---------------------------------------------------------------- watching


class Thing:
    def work(self, hours: float, tool: str = "hand") -> str:
        return f"{hours} by {tool}"


def test_a_watched_method_does_what_it_did():
    thing, other, profiler = Thing(), Thing(), Profiler()
    with profiler.watch(thing, "work", "working"):
        assert thing.work(3) == "3 by hand"
        assert thing.work(3, "saw") == "3 by saw"
        assert other.work(1) == "1 by hand"
    assert thing.work(4) == "4 by hand"
    assert vars(thing) == {}
    assert {path: span.calls for path, span in profiler.spans.items()} == {"working": 2}


def test_a_name_may_depend_on_the_arguments():
    thing, profiler = Thing(), Profiler()
    with profiler.watch(thing, "work", lambda hours, *_: "long" if hours > 8 else "short"):
        for hours in (1, 9, 2):
            thing.work(hours)
    assert {path: span.calls for path, span in profiler.spans.items()} == {"short": 2, "long": 1}


def test_one_method_is_watched_once():
    thing, profiler = Thing(), Profiler()
    with (
        profiler.watch(thing, "work", "a"),
        pytest.raises(InputError, match="watched already"),
        profiler.watch(thing, "work", "b"),
    ):
        pass
    assert vars(thing) == {}


@pytest.mark.parametrize("variant", ["grouped", "biased", "wide"])
@pytest.mark.parametrize("kind", [NaiveEngine, CachedEngine, ScalarEngine])
def test_every_operation_of_an_engine_is_a_span(kind: Any, variant: str):
    model = build(variant)
    engine, layers = kind(model.config, model.weights), model.config.n_layers
    ids = random_ids(variant, 6)
    plain = engine.forward(engine.new_state(9), ids)
    profiler = Profiler()
    with watch_operations(profiler, engine), profiler.span("prefill"):
        watched = engine.forward(engine.new_state(9), ids)
    assert (watched == plain).all()
    calls = {path: span.calls for path, span in profiler.spans.items()}
    assert calls == {
        "prefill": 1,
        "prefill/embed": 1,
        "prefill/norms": 2 * layers + 1,
        "prefill/qkv": 3 * layers,
        "prefill/rope": 2 * layers,
        "prefill/attention": layers,
        "prefill/attn_out": layers,
        "prefill/gate_up": 2 * layers,
        "prefill/swiglu": layers,
        "prefill/ffn_out": layers,
        "prefill/head": 1,
    }
    stored = model.weights.map(lambda tensor: tensor.nbytes)
    operations = {path.rpartition("/")[2] for path in calls} - {"prefill"}
    assert operations | {"residual"} == set(costs(model.config, stored, 0))
    assert all(not callable(value) for value in vars(engine).values())


# ---------------------------------------------------------------- costs


def stored(variant: str) -> Weights[int]:
    return build(variant).weights.map(lambda tensor: tensor.nbytes)


def counted_flops(variant: str, n: int) -> dict[str, int]:
    """PyTorch's own count of n tokens in the reference: of products only, and of all scores."""
    model = build(variant)
    oracle = Oracle(model.config, model.weights)
    with FlopCounterMode(display=False) as counter:
        oracle.forward(random_ids(variant, n))
    found = counter.get_flop_counts()["Global"]
    return {str(name).rpartition(".")[2]: count for name, count in found.items()}


def products(config: ModelConfig, parts: dict[str, Cost], tokens: int) -> int:
    """Flops of all matrices, without the biases."""
    names = ("qkv", "attn_out", "gate_up", "ffn_out", "head")
    biases = sum(
        math.prod(shape)
        for name, shape in layer_shapes(config).items()
        if (name in ("q_bias", "k_bias", "v_bias", "o_bias") and config.attention_bias)
        or (name in ("gate_bias", "up_bias", "down_bias") and config.mlp_bias)
    )  # fmt: skip
    return sum(parts[name].flops for name in names) - tokens * config.n_layers * biases


def count_agrees(variant: str, formula: Callable[..., dict[str, Cost]] = costs) -> bool:
    """Of some tokens at once, and of the same one by one."""
    config, nbytes = build(variant).config, stored(variant)
    agree = []
    for n in (2, 7):
        counted = counted_flops(variant, n)
        steps = [formula(config, nbytes, position) for position in range(n)]
        attention = sum(step["attention"].flops for step in steps)
        whole = formula(config, nbytes, 0, tokens=n)
        agree += [
            sum(products(config, step, 1) for step in steps) == counted["mm"],
            # The reference computes all n * n scores, and masks those of later positions.
            attention * 2 * n == counted["bmm"] * (n + 1),
            whole["attention"].flops == attention,
            products(config, whole, n) == counted["mm"] - (n - 1) * whole["head"].flops,
        ]
    return all(agree)


@pytest.mark.parametrize("variant", VARIANTS)
def test_flops_are_those_that_pytorch_counts(variant: str):
    assert count_agrees(variant)


@pytest.mark.parametrize(
    "edit",
    [
        ("flops += 2 * size", "flops += size"),  # a multiply-add as one
        ("4 * c.n_layers * c.n_heads", "4 * c.n_layers * c.n_kv_heads"),
        ("4 * c.n_layers * c.n_heads", "2 * c.n_layers * c.n_heads"),  # V forgotten
        ("range(position + 1,", "range(position,"),  # the token itself forgotten
        ("Cost(2 * c.vocab_size", "Cost(0 * c.vocab_size"),  # the head forgotten
        ("Cost(tokens * flops", "Cost(flops"),
    ],
)
def test_a_formula_with_a_mistake_is_noticed(edit: tuple[str, str]):
    assert not count_agrees("grouped", mutant(costs, edit))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tokens", [1, 5])
def test_bytes_are_those_of_the_weights_once_and_of_the_cache(variant: str, tokens: int):
    model = build(variant)
    parts = costs(model.config, stored(variant), position=10, tokens=tokens, cache="f16")
    embed, head = model.weights.embed, model.weights.head
    read = sum(t.nbytes for t in model.weights.unique() if t not in (embed, head, None))
    rows = 4 * model.config.dim * tokens  # of the embedding
    assert sum(part.weight_bytes for part in parts.values()) == read + head.nbytes + rows
    state = CachedEngine(model.config, model.weights).new_state(10 + tokens)
    assert parts["attention"].kv_bytes == state.cache.data.nbytes // 2
    assert total(parts.values()).kv_bytes == parts["attention"].kv_bytes


SMOLLM2 = ModelConfig("smollm2", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e-5, RopeConfig(64))


def weightless(config: ModelConfig) -> Weights[int]:
    names = [name for name in layer_shapes(config) if "bias" not in name]
    layers = [Layer(**dict.fromkeys(names, 0)) for _ in range(config.n_layers)]
    return Weights(0, tuple(layers), 0, 0)


def test_the_lessons_numbers():
    first = costs(SMOLLM2, weightless(SMOLLM2), 0)
    matrices = sum(first[name].flops for name in (*profiling.MATRICES, "head")) // 2
    assert matrices == 134_479_872
    assert first["attention"].kv_bytes == 46_080

    def attention(positions: int) -> int:
        return costs(SMOLLM2, weightless(SMOLLM2), positions - 1)["attention"].flops // 2

    assert attention(3891) <= matrices < attention(3892)
    assert most_to_gain(share=0.8, of_roof=0.6) == pytest.approx(1.47, abs=0.005)
    others = sum(first[name].flops for name in ("norms", "rope", "swiglu", "residual"))
    assert others < 0.002 * total(first.values()).flops


@pytest.mark.real
def test_bytes_of_a_token_of_the_real_model(smollm2_path: Path):
    with modelfile.open(smollm2_path) as file:
        config = modelfile.read_config(file)
        nbytes = modelfile.read_weights(file, config).map(lambda tensor: tensor.nbytes)
        one = total(costs(config, nbytes, 0).values())
    assert one.weight_bytes == pytest.approx(96.5e6, rel=2e-3)
    assert one.intensity == pytest.approx(2.8, abs=0.05)


# ---------------------------------------------------------------- the roof


def test_the_roof_has_two_sides():
    peak, bandwidth = 60e9, 24e9
    assert roofline(peak, bandwidth, 0.5) == 12e9
    assert roofline(peak, bandwidth, 2.5) == peak
    assert roofline(peak, bandwidth, 100) == peak
    assert most_to_gain(1, 0.25) == 4
    assert most_to_gain(0, 0.25) == 1
    assert Cost(12, 3, 1).intensity == 3
    assert Cost(12).intensity == np.inf


# ---------------------------------------------------------------- ticks


def test_ticks_are_counted_from_the_beginning(clock: Clock):
    counter = SimpleNamespace(value=5000)
    ticks = Ticks(lambda: counter.value)
    counter.value, clock.now = 8000, 101.5
    assert ticks.look() == (3000, 1.5)


@pytest.fixture(scope="module", params=[1, 3])
def fused(request: pytest.FixtureRequest) -> Iterator[FusedEngine]:
    model = build("grouped")
    engine = FusedEngine(model.config, model.weights, request.param)
    yield engine
    engine.close()


def test_the_fused_engine_says_where_its_time_went(fused: FusedEngine):
    ids = random_ids("grouped", 40)
    plain = fused.forward(fused.new_state(40), ids).copy()
    with fused.profile() as clock:
        timed = fused.forward(fused.new_state(40), ids)
        for _ in range(3):
            fused.forward(fused.new_state(1), ids[:1])
    assert (timed == plain).all()
    assert list(clock.seconds) == list(KINDS)
    assert sorted(KINDS.values()) == list(range(s.CLOCKS))
    spent = np.array(list(clock.seconds.values()))
    assert spent.shape == (len(KINDS), fused.threads)
    assert (spent >= 0).all()
    for kind in ("prepare", "multiply", "attend", "wait"):
        assert any(clock.seconds[kind]), kind
    # A thread does one thing at a time: what it did fits into the time between begin and end.
    assert (spent.sum(0) <= clock.elapsed).all()


def test_the_clock_stands_still_outside(fused: FusedEngine):
    with fused.profile() as clock:
        fused.forward(fused.new_state(2), [1, 2])
    before = clock._ticks.copy()
    assert fused._buffers.step[s.CLOCK] == 0
    fused.forward(fused.new_state(2), [1, 2])
    assert (clock._ticks == before).all()
    assert before.any()


def test_a_clock_that_was_interrupted_is_off(fused: FusedEngine):
    with pytest.raises(KeyError), fused.profile():
        raise KeyError
    assert fused._buffers.step[s.CLOCK] == 0


def test_ticks_become_seconds(fused: FusedEngine, monkeypatch: pytest.MonkeyPatch, clock: Clock):
    """With a counter of 1000 ticks a second, beside a clock that says that 2 seconds went by."""
    counter = itertools.count(0, 2000)
    monkeypatch.setattr("llambda.engines.fused_clock.read_ticks", lambda: next(counter))
    with fused.profile() as seen:
        seen._ticks[:] = np.arange(s.CLOCKS) * 500
        clock.now += 2
    assert seen.elapsed == 2
    assert seen.seconds["wait"] == [s.WAIT * 0.5] * fused.threads
