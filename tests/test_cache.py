"""The KV cache: what it holds, and that what does not fit changes nothing."""

import re

import numpy as np
import pytest

import llambda
from llambda.cache import MOST_POSITIONS, Floats, KVCache, cache_bytes
from llambda.config import ModelConfig
from llambda.engines import RUNGS
from llambda.errors import ContextError, InputError, ResourceError

CONTEXT = 5


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    with llambda.load("tiny") as model:
        return model.config


def numbers(*shape: int) -> Floats:
    """Different numbers from 1 on."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def test_it_gives_back_all_positions_so_far(config: ModelConfig):
    heads, width = config.n_kv_heads, config.head_dim
    kv = KVCache(config, CONTEXT)
    assert kv.data.nbytes == cache_bytes(config, CONTEXT)
    k, v = numbers(CONTEXT, heads, width), -numbers(CONTEXT, heads, width)
    for start, end in ((0, 2), (2, 2), (2, CONTEXT), (CONTEXT, CONTEXT)):
        keys, values = kv.extend(start, 1, k[start:end], v[start:end])
        assert keys.base is values.base is kv.data
        assert np.array_equal(keys, k[:end].swapaxes(0, 1))
        assert np.array_equal(values, v[:end].swapaxes(0, 1))
    assert not kv.data[0].any(), "another layer"


def test_the_past_may_be_written_again(config: ModelConfig):
    kv = KVCache(config, CONTEXT)
    k = numbers(CONTEXT, config.n_kv_heads, config.head_dim)
    kv.extend(0, 0, k, k)
    keys, _ = kv.extend(1, 0, -k[:1], k[:1])
    assert np.array_equal(keys[:, 0], k[0])
    assert np.array_equal(keys[:, 1], -k[0])


@pytest.mark.parametrize(
    ("start", "count"), [(0, 6), (3, 3), (5, 1), (6, 1), (6, 0), (10**9, 1), (-1, 1), (-2, 3)]
)
def test_more_than_the_context_changes_nothing(config: ModelConfig, start: int, count: int):
    """NumPy alone would clip the slice, and lay one position into none without a word."""
    kv = KVCache(config, CONTEXT)
    k = numbers(count, config.n_kv_heads, config.head_dim)
    words = f"at position {start} .* in a cache of 5. Shorten the prompt or ask for a larger"
    with pytest.raises(ContextError, match=words):
        kv.extend(start, 0, k, k)
    assert not kv.data.any()


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ((2, 1, 32), (2, 1, 32)),  # NumPy would repeat these for every head
        ((2, 2, 1), (2, 2, 1)),
        ((2, 2, 32), (1, 2, 32)),
        ((1, 2, 32), (2, 2, 32)),
        ((1, 2, 32), (1, 2, 1)),
        ((1, 2, 32), (1, 2, 31)),
        ((2, 3, 32), (2, 3, 32)),
        ((2, 64), (2, 64)),
        ((1, 2, 2, 32), (1, 2, 2, 32)),
        ((), ()),
    ],
)
def test_other_shapes_change_nothing(config: ModelConfig, k: tuple[int, ...], v: tuple[int, ...]):
    assert (config.n_kv_heads, config.head_dim) == (2, 32)
    kv = KVCache(config, CONTEXT)
    words = f"keys {list(k)} and values {list(v)}. Both must be [positions, 2, 32]."
    with pytest.raises(InputError, match=re.escape(words)):
        kv.extend(0, 0, numbers(*k), numbers(*v))
    assert not kv.data.any()


@pytest.mark.parametrize("engine", [name for name in RUNGS if name != "naive"])  # which keeps none
def test_a_cache_that_no_memory_holds_is_refused(engine: str):
    with (
        llambda.load("tiny", engine) as model,
        pytest.raises(ResourceError, match=r"positions takes .* MB, more memory than there is"),
    ):
        model.engine.new_state(MOST_POSITIONS)
