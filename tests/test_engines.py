"""Every rung against the reference and transformers; every way to cut a sequence into calls."""

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_models import draw, sized
from models import VARIANTS, build, mutant, random_ids
from threadpoolctl import threadpool_limits

from llambda import modelfile
from llambda.check import (
    compare_engine,
    first_divergence,
    kl_divergence,
    top1_agreement,
    trace_engine,
)
from llambda.config import ModelConfig
from llambda.engines import RUNGS, CachedEngine, NaiveEngine, blas, naive, vectorized
from llambda.engines.base import LAYER_ACTIVATIONS, Engine, State, Trace, activation_names
from llambda.errors import ContextError, InputError
from llambda.kernels import panel_cache
from llambda.kernels.attention import softmax
from llambda.kernels.swiglu import silu
from llambda.oracle import Oracle
from llambda.quants import decode
from llambda.tensor import Tensor
from llambda.weights import Weights
from llambda.workers import Workers

GOLDEN = Path(__file__).parent / "golden"
N = 70  # positions 0 to 69
SHORT = 9
LATER = list(RUNGS)[1:]
IN_NUMPY = {"naive", "cached"}  # a token's sums may depend on how many others are evaluated with it
DIFFERENCES = "largest |difference| from PyTorch's logits"  # conftest.py prints the table
IN_FLOATS = ["naive", "cached", "scalar", "vectorized"]  # also where weights are quantized
THREADS = 2
ROUTES = ("arrays", "gguf", "folder")

Loaded = tuple[ModelConfig, Weights[Tensor]]


@pytest.fixture(scope="module")
def load(tmp_path_factory) -> Callable[[str, str], Loaded]:
    """A variant's config and weights by way of memory, of a GGUF file or of a folder."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def loaded(variant: str, route: str) -> Loaded:
        model = build(variant)
        if route == "arrays":
            return model.config, model.weights
        if route == "gguf":
            path = model.write_gguf(folder / f"{variant}.gguf")
        else:
            path = folder / variant
            model.hf.save_pretrained(path)
        file = modelfile.open(path)
        config = modelfile.read_config(file)
        return config, modelfile.read_weights(file, config)

    return loaded


@cache
def engine_of(name: str, variant: str) -> Engine:
    model = build(variant)
    return RUNGS[name](model.config, model.weights, THREADS)


def logits_of(engine: Engine, ids: list[int]) -> np.ndarray:
    """Every id's logits, from a fresh state and in one call: [n, vocab_size]."""
    return engine.forward(engine.new_state(len(ids)), ids, all_logits=True).copy()


def in_chunks(engine: Engine, state: State, ids: list[int], sizes: list[int]) -> np.ndarray:
    """The last logits after ids in calls of these sizes."""
    logits = np.empty(0)
    at = 0
    for size in sizes:
        logits = engine.forward(state, ids[at : at + size])
        at += size
    assert at == len(ids)
    return logits.copy()


def largest(difference: np.ndarray) -> float:
    return float(np.abs(difference).max())


def row(model: str, name: str, off: float, allowed: str) -> tuple[str, str]:
    """A line of the table of differences."""
    return DIFFERENCES, f"{model:<8} {name:<10} {off:.1e}, {allowed}"


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order of additions: 1e-5 of the largest logit."""
    assert actual.shape == expected.shape
    assert largest(actual - expected) <= 1e-5 * largest(expected)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert np.array_equal(actual, expected)


def compositions(n: int) -> Iterator[list[int]]:
    """Every way to write n as a sum of counts, in order: 2 ** (n - 1) of them."""
    if n == 0:
        yield []
    for first in range(1, n + 1):
        for rest in compositions(n - first):
            yield [first, *rest]


on_every = pytest.mark.parametrize("name", RUNGS)
on_all = pytest.mark.parametrize("variant", VARIANTS)


def test_the_order_of_the_rungs():
    assert [*RUNGS] == "naive cached scalar vectorized quantized threaded fused".split()
    assert all(rung.name == name for name, rung in RUNGS.items())


# The right numbers


@on_every
@on_all
@pytest.mark.parametrize("route", ROUTES)
def test_logits_equal_the_reference_and_transformers(name, variant, route, load):
    config, weights = load(variant, route)
    ids = random_ids(variant, N)
    logits = logits_of(RUNGS[name](config, weights, THREADS), ids)
    assert logits.dtype == np.float32
    assert logits.shape == (N, config.vocab_size)
    assert largest(logits - build(variant).hf_logits(ids)) <= 1e-4
    assert largest(logits - Oracle(config, weights, "float64").logits(ids)) <= 1e-4


@pytest.mark.parametrize("name", LATER)
@on_all
def test_each_rung_equals_naive_at_every_position(name, variant):
    ids = random_ids(variant, N)
    expected = logits_of(engine_of("naive", variant), ids)
    engine = engine_of(name, variant)
    state = engine.new_state(N)
    steps = [engine.forward(state, [token]).copy() for token in ids]
    for step, row in zip(steps, expected, strict=True):
        assert_close(step, row)


@pytest.mark.parametrize("name", ["quantized", "threaded", "fused"])
@on_all
def test_with_float_weights_the_fast_rungs_are_one_to_the_last_bit(name, variant):
    ids = random_ids(variant, N)
    expected = trace_engine(engine_of("vectorized", variant), ids)
    for activation, value in trace_engine(engine_of(name, variant), ids).items():
        assert np.array_equal(value, expected[activation]), activation


@pytest.fixture
def tiny(tiny_path) -> Loaded:
    file = modelfile.open(tiny_path)
    config = modelfile.read_config(file)
    return config, modelfile.read_weights(file, config)


@on_every
def test_the_tiny_model_equals_the_reference(name, tiny, record_property):
    engine, (config, weights) = RUNGS[name](*tiny, THREADS), tiny
    ids = np.random.default_rng(0).integers(0, config.vocab_size, N).tolist()
    off = largest(logits_of(engine, ids) - Oracle(*tiny, "float64").logits(ids))
    record_property("table", row("tiny", name, off, "allowed 1e-04"))
    assert off <= 1e-4
    for chunks in (None, [30, *[1] * 40]):
        assert compare_engine(engine, config, weights, ids, chunks).divergence is None


@on_every
def test_the_tiny_model_says_what_was_recorded(name, tiny, tiny_path):
    """Logits and greedy continuations of the PyTorch model, recorded when it had been trained."""
    engine = RUNGS[name](*tiny, THREADS)
    recorded = np.load(tiny_path.with_name("tiny_golden.npz"))
    logits = logits_of(engine, recorded["long_ids"].tolist())
    assert largest(logits - recorded["long_logits"]) <= 1e-3
    for case in json.loads(tiny_path.with_name("tiny_golden.json").read_text("utf-8"))["cases"]:
        said = case["continuation_ids"]
        assert greedy(engine, case["ids"], len(said)) == said


def greedy(engine: Engine, prompt: list[int], count: int) -> list[int]:
    state = engine.new_state(len(prompt) + count)
    logits = engine.forward(state, prompt)
    found = []
    for _ in range(count):
        found.append(int(np.argmax(logits)))
        logits = engine.forward(state, found[-1:])
    return found


SHAPES = {  # no width is a multiple of a register's, and key/value heads serve 1 to 5 others
    "groups of 1": sized(dim=16, heads=(3, 3), head_dim=10, ffn_dim=7, vocab_size=32),
    "groups of 3": sized(dim=40, heads=(6, 2), head_dim=48, ffn_dim=44, vocab_size=45, biases=True),
    "groups of 4": sized(dim=33, heads=(4, 1), head_dim=6, ffn_dim=31, vocab_size=100, tied=True),
    "groups of 5": sized(dim=72, heads=(10, 2), head_dim=80, ffn_dim=100, vocab_size=33),
}


@on_every
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kinds", [("F32",), ("F16", "BF16", "F32")], ids=["F32", "mixed"])
def test_odd_shapes_in_every_number_format(name, shape, kinds):
    """Every activation, in one call and in steps."""
    config = SHAPES[shape]
    weights = draw(config, kinds)
    engine = RUNGS[name](config, weights, THREADS)
    ids = np.random.default_rng(1).integers(0, config.vocab_size, 40).tolist()
    expected = Oracle(config, weights, "float64").forward(ids)
    for chunks in (None, [25, 1, 14]):
        assert first_divergence(trace_engine(engine, ids, chunks), expected, config) is None
    engine.close()


# Every way to the same state


@on_every
@pytest.mark.parametrize("variant", ["wide", "biased"])
def test_every_chunking_gives_the_same_last_logits(name, variant):
    engine, ids = engine_of(name, variant), random_ids(variant, SHORT)
    expected = logits_of(engine, ids)[-1]
    state = engine.new_state(SHORT)
    chunkings = list(compositions(SHORT))
    assert len(chunkings) == 256
    assert_equal = assert_close if name in IN_NUMPY else assert_same_bits
    for sizes in chunkings:
        state.truncate(0)
        assert_equal(in_chunks(engine, state, ids, sizes), expected)
        assert state.length == SHORT


@on_every
@pytest.mark.parametrize("variant", ["grouped", "llama3"])
def test_a_cut_state_goes_on_like_a_fresh_one(name, variant):
    engine, ids = engine_of(name, variant), random_ids(variant, SHORT)
    other = [(token + 7) % engine.config.vocab_size for token in ids]
    for kept in range(SHORT + 1):
        state = engine.new_state(SHORT + 3)
        engine.forward(state, ids)
        state.truncate(kept)
        assert state.length == kept
        sequence = ids[:kept] + other[: SHORT + 3 - kept]
        last = engine.forward(state, sequence[kept:])
        assert_close(last, logits_of(engine, sequence)[-1])


@on_every
@on_all
def test_a_prefix_is_reused(name, variant):
    """A B C D, then A B C: the last token is evaluated again, and its logits are not stale."""
    engine, ids = engine_of(name, variant), random_ids(variant, 4)
    state = engine.new_state(4)
    after_d = engine.forward(state, ids).copy()
    state.truncate(2)
    after_c = engine.forward(state, ids[2:3])
    assert_close(after_c, logits_of(engine, ids[:3])[-1])
    assert largest(after_c - after_d) > 1e-2
    assert state.length == 3


@on_every
def test_a_state_cannot_be_cut_longer(name):
    engine = engine_of(name, "grouped")
    state = engine.new_state(8)
    engine.forward(state, [1, 2, 3])
    for length in (4, -1):
        with pytest.raises(InputError, match="3 positions"):
            state.truncate(length)
    assert state.length == 3


@on_every
@pytest.mark.parametrize("wrong", [None, "5", 1.5, float("nan"), -1, 2**31, 2**64])
def test_a_length_is_a_number_of_positions(name, wrong):
    engine = engine_of(name, "grouped")
    state = engine.new_state(8)
    engine.forward(state, [1, 2, 3])
    with pytest.raises(InputError, match="It must be a whole number, 0 to the state's 3 positions"):
        state.truncate(wrong)
    with pytest.raises(InputError, match="It must be a whole number, 1 to 2,147,483,647"):
        engine.new_state(wrong)
    assert state.length == 3


def test_several_threads_do_not_fill_a_state_beyond_its_end():
    engine = engine_of("fused", "grouped")
    state = engine.new_state(16)

    def fill() -> None:
        with suppress(ContextError):
            while True:
                engine.forward(state, [1])

    for _ in range(50):
        state.truncate(0)
        threads = [threading.Thread(target=fill) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert state.ids == [1] * 16


@on_every
def test_a_full_state_can_be_filled_to_the_last_position(name):
    engine, ids = engine_of(name, "grouped"), random_ids("grouped", SHORT)
    state = engine.new_state(SHORT)
    assert_close(in_chunks(engine, state, ids, [8, 1]), logits_of(engine, ids)[-1])


# States and engines that do not know each other


@on_every
def test_two_states_do_not_disturb_each_other(name):
    engine = engine_of(name, "grouped")
    a, b = random_ids("grouped", SHORT), random_ids("wide", SHORT)
    alone = [in_chunks(engine, engine.new_state(SHORT), ids, [3, 1, 5]) for ids in (a, b)]
    states = [engine.new_state(SHORT) for _ in range(2)]
    for start, end in ((0, 3), (3, 4), (4, 9)):
        last = [
            engine.forward(state, ids[start:end]).copy()
            for state, ids in zip(states, (a, b), strict=True)
        ]
    assert np.array_equal(last[0], alone[0])
    assert np.array_equal(last[1], alone[1])
    assert largest(last[0] - last[1]) > 1e-2


@on_every
def test_a_state_works_only_with_its_engine(name):
    model = build("grouped")
    one, other = (RUNGS[name](model.config, model.weights, THREADS) for _ in range(2))
    state = one.new_state(4)
    with pytest.raises(InputError, match="engine that made it"):
        other.forward(state, [1])
    assert state.length == 0


@on_every
def test_weights_stay_as_they_were(name):
    model = build("biased")
    layer = model.weights.layers[1]
    held = {f.name: getattr(layer, f.name).blocks().copy() for f in fields(layer)}
    logits_of(RUNGS[name](model.config, model.weights, THREADS), random_ids("biased", SHORT))
    assert all(np.array_equal(getattr(layer, n).blocks(), before) for n, before in held.items())


@on_every
def test_an_engine_needs_no_file_that_was_closed(name, tmp_path):
    model, ids = build("grouped"), random_ids("grouped", SHORT)
    file = modelfile.open(model.write_gguf(tmp_path / "model.gguf"))
    config = modelfile.read_config(file)
    engine = RUNGS[name](config, modelfile.read_weights(file, config), THREADS)
    file.close()
    gc.collect()
    assert_close(logits_of(engine, ids), model.hf_logits(ids))


# Errors leave everything as it was


@on_every
@pytest.mark.parametrize(
    ("ids", "kind", "message"),
    [
        ([3, -1], InputError, "-1"),
        ([3, 44], InputError, "0 to 43"),
        ([], InputError, "no token ids"),
        ([1] * 5, ContextError, "do not fit in a context of 8"),
    ],
)
def test_a_refused_call_leaves_the_state_alone(name, ids, kind, message):
    engine, first = engine_of(name, "grouped"), [5, 6, 7, 8]
    states = [engine.new_state(8) for _ in range(2)]
    for state in states:
        engine.forward(state, first)
    trace: Trace = {}
    with pytest.raises(kind, match=message):
        engine.forward(states[0], ids, trace=trace)
    assert states[0].length == 4
    assert trace == {}
    undisturbed, disturbed = (engine.forward(state, [9, 10]).copy() for state in states)
    assert np.array_equal(undisturbed, disturbed)


def break_off(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a rung fail in the midst of its work, or when the fused one has just ended it."""
    whole = Workers.run_compiled

    def step(workers: Workers, function: Any, argument: int, part: int) -> None:
        whole(workers, function, argument, part)
        raise ZeroDivisionError

    monkeypatch.setattr(Workers, "run_compiled", step)
    if name != "fused":
        monkeypatch.setattr(RUNGS[name], "swiglu", lambda self, gate, up: 1 / 0)


@on_every
def test_a_call_that_breaks_off_leaves_the_state_alone(name, monkeypatch):
    engine, ids = engine_of(name, "grouped"), random_ids("grouped", SHORT)
    expected = in_chunks(engine, engine.new_state(SHORT), ids, [4, 5])
    state = engine.new_state(SHORT)
    engine.forward(state, ids[:4])
    break_off(monkeypatch, name)
    with pytest.raises(ZeroDivisionError):
        engine.forward(state, [1, 2, 3])
    monkeypatch.undo()
    assert state.length == 4
    assert np.array_equal(engine.forward(state, ids[4:]), expected)


# Closing


@pytest.mark.parametrize("name", ["naive", "cached"])
def test_numpys_products_run_on_one_thread(name, monkeypatch):
    def threads_of_blas() -> list[int]:
        pools = blas._controller().select(user_api="blas").info()  # threadpoolctl's
        return [pool["num_threads"] for pool in pools]

    def watched(self, *operands):
        seen.append(threads_of_blas())
        return linear(self, *operands)

    kind, seen = RUNGS[name], []
    linear = kind.linear
    monkeypatch.setattr(kind, "linear", watched)
    engine = engine_of(name, "grouped")
    with threadpool_limits(2, user_api="blas"):  # so that the test shows it on one core too
        before = threads_of_blas()
        logits_of(engine, random_ids("grouped", SHORT))
        assert threads_of_blas() == before
    assert len(seen) == 7 * engine.config.n_layers + 1
    assert all(threads and set(threads) == {1} for threads in seen)


@on_every
def test_an_engine_may_be_closed_twice(name):
    model = build("grouped")
    engine = RUNGS[name](model.config, model.weights, THREADS)
    state = engine.new_state(SHORT)
    before = engine.forward(state, [1, 2, 3]).copy()
    engine.close()
    engine.close()
    assert state.length == 3
    if name in ("threaded", "fused"):
        with pytest.raises(InputError, match=r"used after close\(\)"):
            engine.forward(state, [4])
        assert state.length == 3
    else:
        assert largest(engine.forward(state, [4]) - before) > 1e-2


# Traces and logits


@on_every
def test_a_trace_holds_every_activation(name):
    engine = engine_of(name, "wide")
    c, ids = engine.config, random_ids("wide", SHORT)
    state = engine.new_state(SHORT)
    engine.forward(state, ids[:4])
    trace: Trace = {}
    last = engine.forward(state, ids[4:], trace=trace)
    widths = {
        **dict.fromkeys(LAYER_ACTIVATIONS, (c.dim,)),
        **dict.fromkeys(("q", "q_rope", "attn_heads"), (c.n_heads, c.head_dim)),
        **dict.fromkeys(("k", "k_rope", "v"), (c.n_kv_heads, c.head_dim)),
        **dict.fromkeys(("gate", "up", "swiglu"), (c.ffn_dim,)),
        **dict.fromkeys(("embed", "final_norm"), (c.dim,)),
        "logits": (c.vocab_size,),
    }
    names = activation_names(c.n_layers)
    assert set(trace) == set(names)
    for activation in names:
        width = widths[activation.split(".")[-1]]
        assert trace[activation].shape == (5, *width), activation
        assert trace[activation].dtype == np.float32
    assert np.array_equal(trace["logits"][-1], last)


@on_every
def test_a_trace_is_the_callers_own(name):
    engine, ids = engine_of(name, "grouped"), random_ids("grouped", SHORT)
    state = engine.new_state(SHORT)
    trace: Trace = {}
    engine.forward(state, ids[:4], trace=trace)
    held = {activation: value.copy() for activation, value in trace.items()}
    engine.forward(state, ids[4:])
    state.truncate(0)
    engine.forward(state, ids[::-1])
    assert all(np.array_equal(trace[activation], value) for activation, value in held.items())


@on_every
def test_tracing_changes_no_number(name):
    engine, ids = engine_of(name, "grouped"), random_ids("grouped", SHORT)
    logits = logits_of(engine, ids)
    assert np.array_equal(trace_engine(engine, ids)["logits"], logits)


@on_every
def test_all_logits_has_a_row_for_each_new_id(name):
    engine, ids = engine_of(name, "grouped"), random_ids("grouped", SHORT)
    whole = logits_of(engine, ids)
    assert whole.shape == (SHORT, engine.config.vocab_size)
    state = engine.new_state(SHORT)
    first = engine.forward(state, ids[:4], all_logits=True).copy()
    second = engine.forward(state, ids[4:], all_logits=True).copy()
    assert_close(np.concatenate([first, second]), whole)
    last = engine.forward(engine.new_state(SHORT), ids)
    assert last.shape == (engine.config.vocab_size,)
    assert_close(last, whole[-1])


@on_every
def test_numpy_ids_are_ids(name):
    engine, ids = engine_of(name, "grouped"), random_ids("grouped", SHORT)
    logits = logits_of(engine, ids)
    assert np.array_equal(logits_of(engine, list(np.array(ids, np.uint16))), logits)


@on_every
@pytest.mark.parametrize("part", ["gate", "q"])
def test_extreme_numbers_give_finite_logits(name, part):
    """Scores of thousands overflow a softmax that does not take off the largest."""
    model = build("grouped")
    large = [
        replace(layer, **{part: Tensor.from_numpy(decode(getattr(layer, part)) * np.float32(1e4))})
        for layer in model.weights.layers
    ]
    engine = RUNGS[name](model.config, replace(model.weights, layers=tuple(large)), THREADS)
    assert np.isfinite(logits_of(engine, random_ids("grouped", N))).all()


def test_operations_do_not_overflow_on_the_way():
    """An engine hides NumPy's warnings, for damaged weights' sake; here they count."""
    inf = np.float32(np.inf)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        gates = silu(np.array([-1000, -1, 0, 1, 1000], np.float32))
        shares = softmax(np.array([[-inf, 0, 1, -inf], [1e3, 1e3, -1e3, -inf]], np.float32))
        nothing = softmax(np.full((1, 3), -inf, np.float32))
    assert gates == pytest.approx([0, -0.26894142, 0, 0.73105858, 1000])
    assert shares == pytest.approx(np.array([[0, 0.26894142, 0.73105858, 0], [0.5, 0.5, 0, 0]]))
    assert nothing.tolist() == [[0, 0, 0]]


# Each of these must fail some test above; here it is shown for the chunkings alone.


@pytest.mark.parametrize(
    ("where", "function", "edit"),
    [
        (NaiveEngine, "evaluate", ("table(self.turning, start, start +", "table(self.turning, 0,")),
        (naive, "attention", ("start + np.arange(n)[:, None]", "np.arange(n)[:, None]")),
        (CachedEngine, "forward", ("state.ids += ids", "state.ids = list(ids)")),
        (panel_cache.PanelCache, "extend", ("self.room, start, k, v", "self.room, 0, k, v")),
        (vectorized, "attend", ("room, start, out", "room, 0, out")),
    ],
)
def test_a_mistake_at_a_chunks_start_shows(where, function, edit, monkeypatch):
    monkeypatch.setattr(where, function, mutant(getattr(where, function), edit))
    name = "cached" if where in (NaiveEngine, CachedEngine, naive) else "vectorized"
    engine, ids = engine_of(name, "grouped"), random_ids("grouped", SHORT)
    last = in_chunks(engine, engine.new_state(SHORT), ids, [4, 3, 2])
    assert largest(last - logits_of(engine, ids)[-1]) > 1e-2


# The real model


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> Loaded:
    file = modelfile.open(smollm2_path)
    config = modelfile.read_config(file)
    return config, modelfile.read_weights(file, config)


@pytest.fixture(scope="module")
def smollm2_engine(smollm2, request) -> Iterator[Engine]:
    """One at a time, because each holds weights of its own."""
    engine = RUNGS[request.param](*smollm2, THREADS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def smollm2_cases(smollm2) -> list[dict]:
    """The golden prompts, each with the reference's activations."""
    oracle = Oracle(*smollm2, "float64")
    return [case | {"expected": oracle.forward(case["ids"])} for case in golden_cases()]


def golden_cases() -> list[dict]:
    return json.loads((GOLDEN / "smollm2_q4_1_greedy.json").read_text("utf-8"))["cases"]


def with_engines(*names: str):
    return pytest.mark.parametrize("smollm2_engine", names, indirect=True, scope="module")


@pytest.mark.real
@with_engines(*IN_FLOATS)
def test_smollm2_equals_the_reference(smollm2_engine, smollm2_cases, record_property):
    """In one call and in steps: every activation, and the logits in plain numbers."""
    engine, most = smollm2_engine, 0.0
    for case in smollm2_cases:
        ids, expected = case["ids"], case["expected"]
        for chunks in (None, [2, *[1] * (len(ids) - 2)]):
            trace = trace_engine(engine, ids, chunks)
            off = largest(trace["logits"] - expected["logits"])
            most = max(most, off)
            assert off <= 2e-3
            assert first_divergence(trace, expected, engine.config) is None
    record_property("table", row("smollm2", engine.name, most, "allowed 2e-03"))


@pytest.mark.real
@with_engines("cached")
def test_smollm2_is_near_llama_cpp(smollm2_engine):
    """llama.cpp rounds activations to 8 bits; its distance from exact weights was recorded too."""
    recorded = json.loads((GOLDEN / "llamacpp_vs_pytorch.json").read_text("utf-8"))
    firsts = np.load(GOLDEN / "smollm2_q4_1_first_logits.npz")
    ours = [logits_of(smollm2_engine, case["ids"])[-1] for case in golden_cases()]
    theirs = [firsts[f"case{i}"] for i in range(len(ours))]
    lost = kl_divergence(np.array(ours), np.array(theirs))
    print(f"KL to llama.cpp: {lost}, recorded on average {recorded['mean_kl']:.4f}")
    assert lost.max() <= max(max(case["kl"]) for case in recorded["cases"])
    assert lost.mean() <= 2 * recorded["mean_kl"]
    assert top1_agreement(np.array(ours), np.array(theirs)) == 1


@pytest.mark.real
@with_engines(*(name for name in RUNGS if name not in IN_FLOATS))
def test_smollm2_in_codes_is_near_the_reference(smollm2_engine, smollm2_cases, record_property):
    """Its bound is that of a distribution, and stands in test_coded_engines.py: here are logits."""
    most = max(
        largest(logits_of(smollm2_engine, case["ids"]) - case["expected"]["logits"])
        for case in smollm2_cases
    )
    record_property("table", row("smollm2", smollm2_engine.name, most, "activations in codes"))
    assert most < 5


@pytest.mark.real
@with_engines(*RUNGS)
def test_smollm2_says_what_llama_cpp_says(smollm2_engine):
    """Up to the first choice that llama.cpp made by less than 1.0 in the logits."""
    for case in golden_cases():
        sure = next(i for i, margin in enumerate([*case["margin"], 0]) if margin < 1)
        assert greedy(smollm2_engine, case["ids"], sure) == case["greedy"][:sure]


def test_softmax_hides_no_nan():
    assert np.isnan(softmax(np.array([[1.0, np.nan]], np.float32))).all()
