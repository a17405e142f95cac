"""Kernels called from Python, one operation at a time: rows, products and attention of any width.

What the kernels compute is tested in test_row_kernels.py, test_kernels.py and
test_cached_attention.py. Here it is that every row gets its own numbers, and nothing else.
"""

from collections.abc import Callable

import numpy as np
import pytest
from drawn_models import drawn_matrix, sized
from models import mutant

from llambda.cache import KVCache
from llambda.kernels import matrix as matrices
from llambda.kernels import norm, panel_cache, products, rope, rows, swiglu
from llambda.kernels.activations import tiled_codes, tiled_floats, tiles
from llambda.kernels.attention import attention
from llambda.kernels.kv_layout import keys_of, up_to_lanes, values_of
from llambda.kernels.matrix import Matrix, multiply, pack, tiled
from llambda.kernels.panel_cache import PanelCache, units
from llambda.kernels.products import STRIP
from llambda.quants import decode
from llambda.simd.jit import compiled
from llambda.simd.tiles import TILE
from llambda.simd.widest import LANES

U = 2.0**-24
WIDTHS = [1, LANES - 1, LANES, LANES + 1, 3 * LANES, 100]
COUNTS = [1, 2, 4, 5, TILE - 4, TILE, TILE + 1, 2 * TILE - 5, 2 * TILE + 3]  # of tokens


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def alone(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """The function of each row by itself."""
    count = len(arrays[0])
    return np.concatenate([function(*(a[t : t + 1].copy() for a in arrays)) for t in range(count)])


# ---------------------------------------------------------------- rows


def check_norm(dim: int) -> None:
    x, weight = normal(5, dim), normal(dim, seed=1)
    out = rows.rms_norm(x, weight, 1e-2)
    assert (out.shape, out.dtype, out.flags.c_contiguous) == ((5, dim), np.float32, True)
    wanted = norm.rms_norm(x.astype(np.float64), weight, 1e-2)
    assert np.abs(out - wanted).max() <= (dim + 8) * U * np.abs(wanted).max()
    assert np.array_equal(out, alone(lambda row: rows.rms_norm(row, weight, 1e-2), x))


@pytest.mark.parametrize("dim", WIDTHS)
def test_rms_norm(dim: int):
    check_norm(dim)


def test_rows_filled_up_with_something_are_noticed(monkeypatch):
    def filled(x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % LANES)], constant_values=1)

    monkeypatch.setattr(rows, "filled", filled)
    check_norm(LANES)
    with pytest.raises(AssertionError):
        check_norm(LANES + 1)


@pytest.mark.parametrize("half", [1, 3, LANES, LANES + 1])
def test_rotate(half: int):
    x, cos, sin = normal(5, 3, 2 * half), normal(5, half, seed=1), normal(5, half, seed=2)
    before = x.copy()
    out = rows.rotate(x, cos, sin)
    assert np.array_equal(x, before)
    assert np.array_equal(out, rope.rotate(x, cos, sin))


@pytest.mark.parametrize("ffn_dim", WIDTHS)
def test_swiglu(ffn_dim: int):
    gate, up = normal(5, ffn_dim), normal(5, ffn_dim, seed=1)
    out = rows.swiglu(gate, up)
    assert (out.shape, out.dtype, out.flags.c_contiguous) == ((5, ffn_dim), np.float32, True)
    wanted = swiglu.swiglu(gate.astype(np.float64), up)
    assert (np.abs(out - wanted) <= 8 * U * np.abs(wanted)).all()
    assert np.array_equal(out, alone(rows.swiglu, gate, up))


def test_rows_that_are_whole_registers_are_not_copied():
    x = normal(2, 2 * LANES)
    assert rows.filled(x) is x
    assert np.shares_memory(rows.cut(x, 2 * LANES), x)
    odd = normal(2, LANES + 1)
    assert rows.filled(odd).shape == (2, 2 * LANES)
    assert not rows.filled(odd)[:, LANES + 1 :].any()
    assert np.array_equal(rows.cut(rows.filled(odd), LANES + 1), odd)


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("n", COUNTS)
def test_tiles_of_floats_and_codes(n: int):
    """Each tile is what `tiled_floats` and `tiled_codes` make of its tokens."""
    cols = 64
    x = normal(n, cols)
    floats, codes = tiled(x, coded=False), tiled(x, coded=True)
    assert floats.room == codes.room == len(floats.x) // cols == len(codes.x) // cols
    end = 0
    for first, tokens, width in tiles(n):
        some = x[first : first + tokens]
        at, end = first * cols, (first + width) * cols
        assert np.array_equal(floats.x[at:end], tiled_floats(some, width).reshape(-1))
        wanted, scales = tiled_codes(some, width)
        assert np.array_equal(codes.x[at:end], wanted.reshape(-1))
        made = codes.scales[at // 8 : end // 8].view(np.int32)
        assert np.array_equal(made, np.ascontiguousarray(scales).reshape(-1).view(np.int32))
    assert end == len(floats.x)


def product(matrix: Matrix, x: np.ndarray, cuts: list[int]) -> np.ndarray:
    """All rows, by calls for the strips between the cuts."""
    made = tiled(x, matrix.coded)
    out = np.full((made.room, matrix.padded_rows), np.nan, np.float32)
    for first, last in zip([0, *cuts], [*cuts, matrix.strips], strict=True):
        multiply(matrix, made, out, first, last)
    return out[: len(x), : matrix.rows]


def check_product(kind: str, n: int, size: int, cols: int) -> None:
    tensor = drawn_matrix(kind, size, cols, np.random.default_rng(3))
    packed, x = pack(tensor), normal(n, cols, seed=n)
    y = product(packed, x, [])
    weights = decode(tensor).astype(np.float64)
    most = np.abs(x).astype(np.float64) @ np.abs(weights).T  # no sum on the way is larger
    # A float is rounded once for each column; a code by half a 127th of its block's largest.
    bound = cols * U * most if not packed.coded else np.abs(x).max() / 254 * np.abs(weights).sum(1)
    assert np.isfinite(y).all()
    assert (np.abs(y - x.astype(np.float64) @ weights.T) <= bound * 1.01).all()
    assert np.array_equal(y, alone(lambda row: product(packed, row, []), x))
    if packed.strips > 2:
        assert np.array_equal(product(packed, x, [1, 1, packed.strips - 1]), y)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize(("kind", "cols"), [("F32", 37), ("F32", 300), ("Q8_0", 96)])
def test_products(kind: str, cols: int, n: int):
    check_product(kind, n, 3 * STRIP - 5, cols)


@pytest.mark.parametrize("size", [1, STRIP - 1, STRIP, STRIP + 1])
def test_products_of_few_rows(size: int):
    check_product("Q8_0", 3, size, 64)


@pytest.mark.parametrize(
    "edit",
    [
        ("tile_count(n) - whole", "0"),
        ("size * done", "done"),
        ("done // BLOCK * WORDS", "done // BLOCK"),
        ("4 * token * stride", "4 * token"),
    ],
)
def test_a_rest_in_the_wrong_place_is_noticed(edit: tuple[str, str], monkeypatch):
    wrong = mutant(products.multiply_tokens.py_func, ("@kernel\n", ""), edit)
    monkeypatch.setattr(products, "multiply_tokens", compiled(wrong))
    monkeypatch.setattr(matrices, "multiply_tiles", compiled(matrices.multiply_tiles.py_func))
    with pytest.raises(AssertionError):
        for kind in ("F32", "Q8_0"):
            check_product(kind, 3 * TILE - 5, 3 * STRIP - 5, 64)


# ---------------------------------------------------------------- keys, values and attention

HEADS = [(1, 1, 4), (3, 1, LANES), (6, 2, LANES + 2), (10, 2, 80), (4, 4, 48)]  # q, kv, head_dim
CHUNKS = [3, 1, 20, 1, 7]


def check_cache(n_kv_heads: int, head_dim: int) -> None:
    """Whatever is stored chunk by chunk is where kv_layout.py says, as in the plain cache."""
    n = sum(CHUNKS)
    config = sized(
        dim=8, heads=(n_kv_heads, n_kv_heads), head_dim=head_dim, ffn_dim=8, vocab_size=8
    )
    cache, plain = PanelCache(config, n), KVCache(config, n)
    start = 0
    for size in CHUNKS:
        for layer in range(config.n_layers):
            k, v = normal(2, size, n_kv_heads, head_dim, seed=start + 100 * layer)
            keys, values = cache.extend(start, layer, k, v)
            plain.extend(start, layer, k, v)
        start += size
    width = up_to_lanes(head_dim)
    assert keys.shape == (n_kv_heads, cache.room // LANES, head_dim, LANES)
    assert values.shape == (n_kv_heads, width // LANES, cache.room, LANES)
    assert np.shares_memory(keys, cache.data[-1])
    for layer in range(config.n_layers):
        for head in range(n_kv_heads):
            place = cache.data.reshape(-1), layer * n_kv_heads + head, cache.room, head_dim
            assert np.array_equal(keys_of(*place)[:n], plain.data[layer, 0, head])
            assert np.array_equal(values_of(*place)[:n], plain.data[layer, 1, head])
            assert not keys_of(*place)[n:].any()


@pytest.mark.parametrize(("_", "n_kv_heads", "head_dim"), HEADS)
def test_the_cache_holds_what_was_stored(_: int, n_kv_heads: int, head_dim: int):
    check_cache(n_kv_heads, head_dim)


@pytest.mark.parametrize(
    "edit",
    [
        ("self.room, start, k, v", "self.room, 0, k, v"),
        ("self.room, start, k, v", "self.room, start, v, k"),
        ("self.data[layer]", "self.data[0]"),
    ],
)
def test_what_was_stored_elsewhere_is_noticed(edit: tuple[str, str], monkeypatch):
    monkeypatch.setattr(PanelCache, "extend", mutant(PanelCache.extend, edit))
    with pytest.raises(AssertionError):
        check_cache(2, 8)


def check_attention(n_heads: int, n_kv_heads: int, head_dim: int, start: int, n: int) -> None:
    config = sized(dim=8, heads=(n_heads, n_kv_heads), head_dim=head_dim, ffn_dim=8, vocab_size=8)
    cache, m = PanelCache(config, start + n + 3), start + n
    k, v = normal(2, m, n_kv_heads, head_dim, seed=1)
    keys, values = cache.extend(0, 1, k, v)
    cache.extend(m, 1, k[:3] + 9, v[:3] + 9)  # stale: of a longer sequence, cut since
    q = normal(n, n_heads, head_dim, seed=2)
    total = units(q, keys)

    def attended(cuts: list[int]) -> np.ndarray:
        out = np.full_like(q, np.nan)
        for first, last in zip([0, *cuts], [*cuts, total], strict=True):
            panel_cache.attend(q, keys, values, start, out, first, last)
        return out

    out = attended([])
    exact = [np.ascontiguousarray(a.swapaxes(0, 1), np.float64) for a in (k, v)]
    wanted = attention(q.astype(np.float64), *exact, start)
    scores = np.abs(q).max() * np.abs(k).max() * head_dim**0.5  # none is larger
    bound = 2 * (head_dim * scores + m + 20) * U * np.abs(v).max()
    assert np.abs(out - wanted).max() <= bound
    assert np.isfinite(out).all()
    for cut in range(total):
        assert np.array_equal(attended([cut]), out)


@pytest.mark.parametrize(("start", "n"), [(0, 1), (0, TILE + 2), (40, 1), (17, 5)])
@pytest.mark.parametrize(("n_heads", "n_kv_heads", "head_dim"), HEADS)
def test_attention(n_heads: int, n_kv_heads: int, head_dim: int, start: int, n: int):
    check_attention(n_heads, n_kv_heads, head_dim, start, n)


@pytest.mark.parametrize(
    ("function", "edit"),
    [
        ("units", ("len(q) * q.shape[1] // len(keys)", "q.shape[1] // len(keys)")),
        ("attend", ("room, start, out", "room, 0, out")),
        ("attend", ("first, last)", "0, last - first)")),
    ],
)
def test_attention_elsewhere_is_noticed(function: str, edit: tuple[str, str], monkeypatch):
    wrong = mutant(getattr(panel_cache, function), edit)
    monkeypatch.setattr(panel_cache, function, wrong)
    monkeypatch.setitem(globals(), function, wrong)
    with pytest.raises(AssertionError):
        check_attention(6, 2, 10, 17, 15)
