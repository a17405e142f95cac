"""The tolerances hold for right engines and refuse wrong ones; faults are found where they are."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from models import VARIANTS, build, mutant, paired_rows, random_ids

from llambda import check
from llambda.cache import KVCache
from llambda.check import (
    compare,
    compare_engine,
    first_divergence,
    kl_divergence,
    top1_agreement,
    trace_engine,
)
from llambda.config import ModelConfig
from llambda.engines import CachedEngine, NaiveEngine, naive
from llambda.engines.base import activation_names
from llambda.errors import InputError
from llambda.kernels import rope
from llambda.oracle import Oracle
from llambda.quants import decode
from llambda.tensor import Tensor
from llambda.weights import Weights, halves_from_pairs

N = 70
CHUNKS = (4, 3, 2)  # 9 ids in three calls

Loaded = tuple[ModelConfig, Weights[Tensor]]


def loaded(variant: str) -> Loaded:
    return build(variant).config, build(variant).weights


@cache
def expected(variant: str, n: int, dtype: str = "float64") -> dict[str, np.ndarray]:
    return Oracle(*loaded(variant), dtype).forward(random_ids(variant, n))


def cached_trace(variant: str, chunks: tuple[int, ...] = CHUNKS) -> dict[str, np.ndarray]:
    ids = random_ids(variant, sum(chunks))
    return trace_engine(CachedEngine(*loaded(variant)), ids, chunks)


# What is right passes, and not by far


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("engine", "chunks"),
    [
        (NaiveEngine, None),
        (CachedEngine, None),
        (CachedEngine, (40, *[1] * 30)),
        (CachedEngine, (23, 1, 46)),
    ],
)
def test_a_right_engine_does_not_diverge(variant, engine, chunks):
    config, weights = loaded(variant)
    trace = trace_engine(engine(config, weights), random_ids(variant, N), chunks)
    assert first_divergence(trace, expected(variant, N), config) is None
    assert first_divergence(trace, expected(variant, N, "float32"), config) is None
    comparisons = compare(trace, expected(variant, N), config)
    assert [c.name for c in comparisons] == activation_names(config.n_layers)
    assert all(c.ok for c in comparisons)
    worst = max(c.ratio for c in comparisons)
    assert 0.01 < worst < 1 / 3, "the bound should be 3 to 100 times what is observed"


def test_a_right_engine_does_not_diverge_at_far_positions():
    """NumPy's and PyTorch's powers differ by a rounding here: at 1,500 the angles show it."""
    config, weights = loaded("linear")
    ids = random_ids("linear", 1500)
    trace = trace_engine(CachedEngine(config, weights), ids)
    reference = Oracle(config, weights, "float64").forward(ids)
    assert first_divergence(trace, reference, config) is None
    off = np.abs(trace["blk.0.q_rope"] - reference["blk.0.q_rope"]).max(axis=(1, 2))
    assert off[1000:].max() > 10 * off[:10].max()


def test_float64_is_held_to_its_own_roundoff():
    config, exact = build("grouped").config, expected("grouped", 9)
    single = expected("grouped", 9, "float32")
    assert first_divergence(single, exact, config, "float32") is None
    found = first_divergence(single, exact, config, "float64")
    assert found is not None
    assert found.operation == "attn_norm"


# The bound, by hand


def test_additions_are_counted_along_the_chain():
    config = build("grouped").config  # dim 32, 4 heads of 8, ffn 48, 3 layers
    chains = {name: chain.tolist() for name, chain in check.additions(config, 2).items()}
    assert chains["embed"] == [1, 1]
    assert chains["blk.0.attn_norm"] == [33, 33]
    assert chains["blk.0.q"] == chains["blk.0.k"] == chains["blk.0.v"] == [65, 65]
    assert chains["blk.0.q_rope"] == chains["blk.0.k_rope"] == [67, 67]
    assert chains["blk.0.attn_heads"] == [67 + 8 + 1, 67 + 8 + 2]
    assert chains["blk.0.attn_out"] == chains["blk.0.attn_residual"] == [108, 109]
    assert chains["blk.0.gate"] == chains["blk.0.up"] == chains["blk.0.swiglu"] == [172, 173]
    assert chains["blk.0.ffn_out"] == chains["blk.0.ffn_residual"] == [220, 221]
    assert chains["logits"] == [1 + 3 * 219 + 64, 1 + 3 * 220 + 64]


def test_the_tolerance_is_what_the_docstring_says():
    config, exact = build("grouped").config, expected("grouped", 9)
    name, position, head, element = "blk.1.q_rope", 5, 2, 3
    row = exact[name][position]
    chain = check.additions(config, 9)[name][position]
    scale = np.hypot(row[head, element], np.sqrt(np.mean(row**2)))
    by_hand = 2**-24 * (64 * np.sqrt(chain) + 8 * position) * scale
    for share, ok in ((0.999, True), (1.001, False)):
        trace = {n: value.copy() for n, value in exact.items()}
        trace[name][position, head, element] += share * by_hand
        comparison = {c.name: c for c in compare(trace, exact, config)}[name]
        assert comparison.ok == ok
        assert comparison.ratio == pytest.approx(share)
        assert comparison.tolerance == pytest.approx(by_hand)
        assert comparison.scale == pytest.approx(scale)
        assert comparison.max_difference == pytest.approx(share * by_hand)
        assert (comparison.position, comparison.head, comparison.element) == (5, 2, 3)
        assert (first_divergence(trace, exact, config) is None) == ok


# First, not largest


def test_the_first_divergence_is_the_first_and_not_the_largest():
    config, exact = build("grouped").config, expected("grouped", 9)
    trace = {name: value.copy() for name, value in exact.items()}
    trace["logits"] += 100
    trace["blk.2.gate"][0] += 50
    trace["blk.1.k"][7, 0, 0] += 20
    trace["blk.1.k"][3, 1, 5] += 0.25
    trace["blk.1.k"][3, 1, 6] += 10
    found = first_divergence(trace, exact, config)
    assert found is not None
    assert (found.layer, found.operation) == (1, "k")
    assert (found.position, found.head, found.element) == (3, 1, 5)
    assert found.difference == pytest.approx(0.25)
    assert found.actual - found.expected == pytest.approx(0.25)
    assert 0 < found.tolerance < 1e-3
    largest = {c.name: c for c in compare(trace, exact, config)}["blk.1.k"]
    assert (largest.position, largest.head, largest.element) == (7, 0, 0)
    assert largest.max_difference == pytest.approx(20)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_wrong(value):
    config, exact = build("grouped").config, expected("grouped", 9)
    trace = {name: array.copy() for name, array in exact.items()}
    trace["blk.0.up"][2, 4] = value
    found = first_divergence(trace, exact, config)
    assert found is not None
    assert (found.operation, found.position, found.head, found.element) == ("up", 2, None, 4)
    comparison = {c.name: c for c in compare(trace, exact, config)}["blk.0.up"]
    assert not comparison.ok
    assert comparison.ratio == np.inf
    both = {name: array.copy() for name, array in exact.items()}
    both["blk.0.up"][2, 4] = value
    assert first_divergence(trace, both, config) is not None


def test_a_row_of_zeros_may_be_zeros_only():
    config, exact = build("grouped").config, expected("grouped", 9)
    zeros = exact | {"blk.0.v": np.zeros_like(exact["blk.0.v"])}
    assert first_divergence(zeros, zeros, config) is None
    touched = zeros["blk.0.v"].copy()
    touched[4, 1, 2] = 1e-30
    found = first_divergence(zeros | {"blk.0.v": touched}, zeros, config)
    assert found is not None
    assert (found.operation, found.position, found.head, found.element) == ("v", 4, 1, 2)


def test_results_read_as_one_line():
    config, exact = build("grouped").config, expected("grouped", 9)
    trace = {name: value.copy() for name, value in exact.items()}
    trace["blk.1.k"][3, 1, 5] += 0.25
    line = str(first_divergence(trace, exact, config))
    assert line.startswith("layer 1, k, position 3, head 1, element 5: ")
    assert "off by 2.5e-01 where " in line
    assert "\n" not in line
    lines = {c.name: str(c) for c in compare(trace, exact, config)}
    assert "WRONG" in lines["blk.1.k"]
    assert "position 3, head 1, element 5" in lines["blk.1.k"]
    assert " ok " in lines["blk.1.v"]
    trace["logits"][2, 7] += 1
    trace["blk.1.k"] = exact["blk.1.k"]
    assert str(first_divergence(trace, exact, config)).startswith("logits, position 2, element 7: ")


# Planted faults: in the code


@dataclass(frozen=True)
class Fault:
    """A mistake, as an edit of the source, and where it must be found first."""

    where: Any  # the module or class that the function is looked up in
    function: str
    edits: tuple[tuple[str, str], ...]
    layer: int | None
    operation: str
    position: int
    head: int | None = None
    variant: str = "grouped"


def in_block(old: str, new: str, operation: str, position: int = 0, head: int | None = None):
    return Fault(NaiveEngine, "block", ((old, new),), 0, operation, position, head)


def in_attention(old: str, new: str, position: int, head: int | None = 0):
    return Fault(naive, "attention", ((old, new),), 0, "attn_heads", position, head)


STORE_KEYS = "keys[:, start:end] = k.swapaxes(0, 1)"
STORE_VALUES = "values[:, start:end] = v.swapaxes(0, 1)"
FAULTS = {
    # attention
    "key heads tiled, not repeated": in_attention(
        "slice(kv * group, (kv + 1) * group)", "slice(kv, None, n_kv_heads)", position=0, head=1
    ),
    "scores not divided": in_attention(" / np.float32(math.sqrt(head_dim))", "", position=1),
    "mask looks one ahead": in_attention("> start +", "> 1 + start +", position=0),
    "mask hides the own position": in_attention("> start +", ">= start +", position=0),
    "mask without the chunk's start": in_attention(
        "start + np.arange(n)[:, None]", "np.arange(n)[:, None]", position=4
    ),
    "no mask in a cached prefill": in_attention(
        "scores[:, later] =", "scores[:, later & (start == 0)] =", position=4
    ),
    "keys stored unrotated": in_block(
        "store(i, k_rope, v)", "store(i, k, v)", "attn_heads", position=1, head=0
    ),
    "values rotated too": in_block(
        "store(i, k_rope, v)", "store(i, k_rope, rotate(v, *rope))", "attn_heads", 1, head=0
    ),
    # rotation
    "neighbours turn together": Fault(
        naive,
        "rotate",
        (
            ("np.split(x, 2, axis=-1)", "(x[..., ::2], x[..., 1::2])"),
            ("np.concatenate", "np.stack"),
            ("b * cos + a * sin], axis=-1)", "b * cos + a * sin], axis=-1).reshape(x.shape)"),
        ),
        0,
        "q_rope",
        position=1,
        head=0,
    ),
    "rotation begins anew with each chunk": Fault(
        NaiveEngine,
        "evaluate",
        (("table(self.turning, start, start + len(ids))", "table(self.turning, 0, len(ids))"),),
        0,
        "q_rope",
        position=4,
        head=0,
    ),
    "llama3's mix without its other part": Fault(
        rope,
        "llama3_scaled",
        (("(1 - keep) * plain / np.float32(rope.factor)", "plain / np.float32(rope.factor)"),),
        0,
        "q_rope",
        position=1,
        head=0,
        variant="llama3",
    ),
    # the cache
    "length of the last chunk only": Fault(
        CachedEngine,
        "forward",
        (("state.ids += ids", "state.ids = list(ids)"),),
        0,
        "q_rope",
        position=7,
        head=0,
    ),
    "keys stored one position early": Fault(
        KVCache,
        "extend",
        (
            (
                STORE_KEYS,
                "first = max(start - 1, 0); "
                + STORE_KEYS.replace("start:end", "first:end-start+first"),
            ),
        ),
        0,
        "attn_heads",
        position=4,
        head=0,
    ),
    "values kept in half precision": Fault(
        KVCache,
        "extend",
        ((STORE_VALUES, STORE_VALUES + ".astype(np.float16)"),),
        0,
        "attn_heads",
        position=0,
        head=0,
    ),
    "keys kept in half precision": Fault(
        KVCache,
        "extend",
        ((STORE_KEYS, STORE_KEYS + ".astype(np.float16)"),),
        0,
        "attn_heads",
        position=1,
        head=1,
    ),
    # norms
    "norm by the sum, not the mean": Fault(
        naive, "rms_norm", (("np.mean(", "np.sum("),), 0, "attn_norm", position=0
    ),
    "eps outside the root": Fault(
        naive,
        "rms_norm",
        (("sqrt(mean_square + np.float32(eps))", "sqrt(mean_square) + np.float32(eps)"),),
        0,
        "attn_norm",
        position=0,
        variant="narrow",
    ),
    "norm weight missing": in_block("layer.ffn_norm,", "np.float32(1),", "ffn_norm"),
    "final norm skipped": Fault(
        NaiveEngine,
        "evaluate",
        (("x = self.rms_norm(x, self.weights.final_norm, self.config.norm_eps)", "pass"),),
        None,
        "final_norm",
        position=0,
    ),
    # the residual stream and the feed-forward part
    "residual from the normed x": in_block("= x + attn_out", "= h + attn_out", "attn_residual"),
    "second residual missing": in_block("after_attn + ffn_out", "ffn_out", "ffn_residual"),
    "up gated by gate's place": in_block("swiglu(gate, up)", "swiglu(up, gate)", "swiglu"),
    "feed-forward reads the stream": in_block(
        "linear(h2, layer.up, layer.up_bias)", "linear(x, layer.up, layer.up_bias)", "up"
    ),
    "last layer has the weights of the one before": Fault(
        NaiveEngine,
        "block",
        (("self.weights.layers[i]", "self.weights.layers[min(i, 1)]"),),
        2,
        "attn_norm",
        position=0,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_code_is_found_where_it_is(name, monkeypatch):
    fault = FAULTS[name]
    assert first_divergence_of(fault.variant) is None
    changed = mutant(getattr(fault.where, fault.function), *fault.edits)
    monkeypatch.setattr(fault.where, fault.function, changed)
    found = first_divergence_of(fault.variant)
    assert found is not None
    assert (found.layer, found.operation) == (fault.layer, fault.operation)
    assert (found.position, found.head) == (fault.position, fault.head)


def first_divergence_of(variant: str) -> check.Divergence | None:
    config, exact = build(variant).config, expected(variant, sum(CHUNKS))
    return first_divergence(cached_trace(variant), exact, config)


# Planted faults: in what was loaded


def changed_layer(i: int, **changes: Callable[[ModelConfig, np.ndarray], np.ndarray | None]):
    """A model whose layer i has other weights: field -> function of config and float32 values."""

    def change(config: ModelConfig, weights: Weights[Tensor]) -> Loaded:
        layer = weights.layers[i]
        made = {}
        for field, function in changes.items():
            value = function(config, decode(getattr(layer, field)))
            made[field] = None if value is None else Tensor.from_numpy(value)
        layers = list(weights.layers)
        layers[i] = replace(layer, **made)
        return config, replace(weights, layers=tuple(layers))

    return change


def unpermuted_with(heads: str) -> Callable[[ModelConfig, np.ndarray], np.ndarray]:
    """K's rows from GGUF's order to ours, as if there were that many heads."""

    def change(config: ModelConfig, k: np.ndarray) -> np.ndarray:
        stored = np.ascontiguousarray(k[paired_rows(config.n_kv_heads, config.head_dim)])
        return halves_from_pairs(Tensor.from_numpy(stored), getattr(config, heads)).numpy()

    return change


def changed_config(**changes: Any):
    return lambda config, weights: (replace(config, **changes), weights)


def changed_rope(**changes: Any):
    return lambda config, weights: (
        replace(config, rope=replace(config.rope, **changes)),
        weights,
    )


LOADED = {  # name -> (variant, change, layer, operation, position)
    "wrong eps": ("grouped", changed_config(norm_eps=1e-6), 0, "attn_norm", 0),
    "wrong base": ("grouped", changed_rope(base=500000.0), 0, "q_rope", 1),
    "linear scaling lost": ("linear", changed_rope(scaling="none"), 0, "q_rope", 1),
    "llama3's factor of another model": ("llama3", changed_rope(factor=8.0), 0, "q_rope", 1),
    "k unpermuted with the query heads": (
        "grouped",
        changed_layer(1, k=unpermuted_with("n_heads")),
        1,
        "k",
        0,
    ),
    "q left in the file's order": (
        "wide",
        changed_layer(2, q=lambda c, q: q[paired_rows(c.n_heads, c.head_dim)]),
        2,
        "q",
        0,
    ),
    "matrix transposed": ("grouped", changed_layer(1, q=lambda c, q: q.T.copy()), 1, "q", 0),
    "bias lost": ("biased", changed_layer(1, v_bias=lambda c, bias: None), 1, "v", 0),
    "up and gate exchanged": (
        "grouped",
        lambda c, w: (
            c,
            replace(w, layers=tuple(replace(x, up=x.gate, gate=x.up) for x in w.layers)),
        ),
        0,
        "gate",
        0,
    ),
    "weights in half precision": (
        "grouped",
        changed_layer(1, up=lambda c, up: up.astype(np.float16).astype(np.float32)),
        1,
        "up",
        0,
    ),
    "one row damaged": (
        "grouped",
        changed_layer(
            2, down=lambda c, down: down + np.float32(1e-3) * (np.arange(c.dim) == 5)[:, None]
        ),
        2,
        "ffn_out",
        0,
    ),
    "head taken for tied": (
        "grouped",
        lambda c, w: (c, replace(w, head=w.embed)),
        None,
        "logits",
        0,
    ),
}


@pytest.mark.parametrize("name", LOADED)
def test_a_fault_in_what_was_loaded_is_found_where_it_is(name):
    variant, change, layer, operation, position = LOADED[name]
    config, weights = loaded(variant)
    ids = random_ids(variant, sum(CHUNKS))
    right = compare_engine(CachedEngine(config, weights), config, weights, ids, CHUNKS)
    assert right.divergence is None
    wrong = CachedEngine(*change(config, weights))
    report = compare_engine(wrong, config, weights, ids, CHUNKS)
    found = report.divergence
    assert found is not None
    assert (found.layer, found.operation, found.position) == (layer, operation, position)
    bad = [c.name for c in report.comparisons if not c.ok]
    assert bad[0] == (operation if layer is None else f"blk.{layer}.{operation}")
    if name == "one row damaged":
        assert found.element == 5


def test_unpermuting_with_the_right_heads_is_no_fault():
    config, weights = loaded("grouped")
    same = changed_layer(1, k=unpermuted_with("n_kv_heads"))(config, weights)
    ids = random_ids("grouped", 9)
    assert compare_engine(CachedEngine(*same), config, weights, ids).divergence is None


# Traces that do not fit


def test_a_trace_without_an_activation_is_refused():
    config, exact = build("grouped").config, expected("grouped", 9)
    trace = {name: value for name, value in exact.items() if name != "blk.1.gate"}
    for function in (compare, first_divergence):
        with pytest.raises(InputError, match=r"blk\.1\.gate"):
            function(trace, exact, config)


def test_a_trace_of_other_ids_is_refused():
    config, exact = build("grouped").config, expected("grouped", 9)
    trace = {name: value[:8] for name, value in exact.items()}
    for function in (compare, first_divergence):
        with pytest.raises(InputError, match=r"'embed' has shape \[8, 32\]"):
            function(trace, exact, config)


@pytest.mark.parametrize("chunks", [(4, 4), (4, 6), ()])
def test_chunks_must_be_the_ids(chunks):
    engine = CachedEngine(*loaded("grouped"))
    with pytest.raises(InputError, match="9 ids"):
        trace_engine(engine, random_ids("grouped", 9), chunks)


# Distributions


def test_kl_divergence_by_hand():
    p, q = np.log([[0.5, 0.5], [1.0, 3.0]]), np.log([[0.25, 0.75], [1.0, 3.0]])
    by_hand = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert kl_divergence(p, q) == pytest.approx([by_hand, 0], abs=1e-15)
    backwards = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    assert kl_divergence(q, p)[0] == pytest.approx(backwards)


def test_kl_divergence_equals_torch():
    source = np.random.default_rng(0)
    p, q = source.normal(0, 5, (2, 7, 300)).astype(np.float32)
    logs = [torch.log_softmax(torch.from_numpy(x).double(), dim=-1) for x in (q, p)]
    theirs = torch.nn.functional.kl_div(*logs, reduction="none", log_target=True).sum(-1)
    found = kl_divergence(p, q)
    assert found.dtype == np.float64
    assert found == pytest.approx(theirs.numpy(), rel=1e-12)


def test_kl_divergence_is_stable_and_ignores_a_shift():
    p = np.array([[1000.0, 1001.0, -1000.0]], np.float32)
    assert kl_divergence(p, p + np.float32(5000)) == pytest.approx([0], abs=1e-12)
    assert kl_divergence(p, p * 0)[0] == pytest.approx(np.log(3) - 0.5822, abs=1e-4)
    tiny = np.random.default_rng(0).normal(0, 1, (1, 1000)).astype(np.float32)
    assert 0 < kl_divergence(tiny, tiny * np.float32(1 + 1e-5))[0] < 1e-9


def test_kl_divergence_of_the_impossible():
    inf = np.inf
    assert kl_divergence(np.array([[0, 0, -inf]]), np.array([[0, 0, -inf]])) == pytest.approx([0])
    assert kl_divergence(np.array([[0, 0, -inf]]), np.array([[0, 0, 0.0]])) == pytest.approx(
        [np.log(1.5)]
    )
    assert kl_divergence(np.array([[0, 0.0]]), np.array([[0, -inf]]))[0] == inf
    assert np.isnan(kl_divergence(np.array([[0, np.nan]]), np.array([[0, 0.0]])))[0]
    assert np.isnan(kl_divergence(np.array([[0, 0.0]]), np.array([[0, np.nan]])))[0]


def test_top1_agreement():
    a = np.array([[0.0, 1, 2], [5, 1, 5], [0, 0, 1], [9, 0, 0]])
    b = np.array([[0.0, 2, 1], [7, 1, 2], [0, 0, 3], [9, 0, 0]])  # of equals, the first
    assert top1_agreement(a, b) == 0.75
    assert top1_agreement(a, a) == 1


def test_logits_of_two_shapes_do_not_compare():
    for function in (kl_divergence, top1_agreement):
        with pytest.raises(InputError, match=r"\[2, 3\] and \[3\]"):
            function(np.zeros((2, 3)), np.zeros(3))
