"""Weights from GGUF files: row order, every tensor needed and none left over.

The files are written with the `gguf` package. Rows are permuted here by the definition, pair by
pair, and not by the reshaping that the package uses.
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import gguf as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llambda import gguf, weights
from llambda.config import ModelConfig, RopeConfig
from llambda.errors import LlambdaError, ModelFileError, UnsupportedError
from llambda.quants import decode
from llambda.tensor import Tensor
from llambda.weights import Weights, from_gguf, halves_from_pairs

CONFIG = ModelConfig(
    name="unlike numbers everywhere",
    n_layers=2,
    dim=64,
    n_heads=6,
    n_kv_heads=2,
    head_dim=8,
    ffn_dim=96,
    vocab_size=11,
    context_length=32,
    norm_eps=1e-5,
    rope=RopeConfig(8),
)
Arrays = dict[str, np.ndarray]


def paired_rows(n_heads: int, head_dim: int) -> list[int]:
    """Which of Hugging Face's rows stands where in a GGUF file: pair i is (i, i + head_dim/2)."""
    return [
        head * head_dim + element
        for head in range(n_heads)
        for i in range(head_dim // 2)
        for element in (i, i + head_dim // 2)
    ]


def canonical(config: ModelConfig = CONFIG, biases: bool = False, head: bool = True) -> Arrays:
    """Random arrays by GGUF name, rows in Hugging Face's order."""
    c, rng = config, np.random.default_rng(5)
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    shapes = {"token_embd.weight": (c.vocab_size, c.dim), "output_norm.weight": (c.dim,)}
    if head:
        shapes["output.weight"] = (c.vocab_size, c.dim)
    for i in range(c.n_layers):
        matrices = {
            "attn_q": (q, c.dim),
            "attn_k": (kv, c.dim),
            "attn_v": (kv, c.dim),
            "attn_output": (c.dim, q),
            "ffn_gate": (c.ffn_dim, c.dim),
            "ffn_up": (c.ffn_dim, c.dim),
            "ffn_down": (c.dim, c.ffn_dim),
        }
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in matrices.items()}
        shapes |= {f"blk.{i}.{name}.weight": (c.dim,) for name in ("attn_norm", "ffn_norm")}
        if biases:
            shapes |= {f"blk.{i}.{name}.bias": shape[:1] for name, shape in matrices.items()}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def as_gguf(arrays: Arrays, config: ModelConfig = CONFIG) -> Arrays:
    """The arrays with the rows of q and k as a GGUF file has them."""
    order = {
        "attn_q": paired_rows(config.n_heads, config.head_dim),
        "attn_k": paired_rows(config.n_kv_heads, config.head_dim),
    }

    def rows(name: str) -> list[int] | slice:
        return next((order[part] for part in name.split(".") if part in order), slice(None))

    return {name: array[rows(name)] for name, array in arrays.items()}


def write(path: Path, arrays: Arrays, kinds: dict[str, str] | None = None) -> Path:
    """A file of these arrays, in F32 unless kinds names another type."""
    writer = reference.GGUFWriter(path, "llama")
    for name, array in arrays.items():
        if kind := (kinds or {}).get(name):
            kind = reference.GGMLQuantizationType[kind]
            writer.add_tensor(name, reference.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Weights[Tensor]]:
    """Weights of a file that holds these arrays."""

    def load(arrays: Arrays, config: ModelConfig = CONFIG, **kinds: str) -> Weights[Tensor]:
        named = {name.replace("__", "."): kind for name, kind in kinds.items()}
        with gguf.open(write(tmp_path / "model.gguf", arrays, named)) as file:
            return from_gguf(file, config)

    return load


def by_name(found: Weights[Tensor]) -> Arrays:
    """What was found, decoded, by GGUF name."""
    fields = {
        "attn_norm": "attn_norm.weight",
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "o": "attn_output.weight",
        "ffn_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "q_bias": "attn_q.bias",
        "k_bias": "attn_k.bias",
        "v_bias": "attn_v.bias",
        "o_bias": "attn_output.bias",
        "gate_bias": "ffn_gate.bias",
        "up_bias": "ffn_up.bias",
        "down_bias": "ffn_down.bias",
    }
    tensors = {"token_embd.weight": found.embed, "output_norm.weight": found.final_norm}
    if found.head is not found.embed:
        tensors["output.weight"] = found.head
    if found.rope_factors is not None:
        tensors["rope_freqs.weight"] = found.rope_factors
    for i, layer in enumerate(found.layers):
        tensors |= {
            f"blk.{i}.{name}": getattr(layer, field)
            for field, name in fields.items()
            if getattr(layer, field) is not None
        }
    return {name: decode(tensor) for name, tensor in tensors.items()}


def assert_equal(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


# Row order


def test_one_head_of_four_rows():
    """Hugging Face's rows 0, 1, 2, 3 stand in a GGUF file as 0, 2, 1, 3."""
    stored = np.array([[0, 0.5], [2, 2.5], [1, 1.5], [3, 3.5]], np.float32)
    found = halves_from_pairs(Tensor.from_numpy(stored), 1)
    assert found.numpy().tolist() == [[0, 0.5], [1, 1.5], [2, 2.5], [3, 3.5]]
    assert halves_from_pairs(Tensor.from_numpy(stored[:, 0].copy()), 1).numpy().tolist() == [
        0, 1, 2, 3,
    ]  # fmt: skip


@given(
    st.integers(1, 5),
    st.integers(1, 6).map(lambda n: 2 * n),
    st.sampled_from([(), (1,), (3,), (2, 5)]),
)
def test_rows_come_back_for_any_heads(n_heads: int, head_dim: int, rest: tuple[int, ...]):
    rows = np.arange(n_heads * head_dim * int(np.prod(rest)), dtype=np.int32)
    rows = rows.reshape(n_heads * head_dim, *rest)
    stored = rows[paired_rows(n_heads, head_dim)]
    found = halves_from_pairs(Tensor.from_numpy(stored), n_heads)
    assert np.array_equal(found.numpy(), rows)


def test_the_row_order_is_the_converters():
    """llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute."""
    for n_heads, head_dim in ((1, 4), (3, 2), (2, 6), (5, 8)):
        rows = np.arange(n_heads * head_dim * 3).reshape(-1, 3)
        permuted = (
            rows.reshape(n_heads, 2, rows.shape[0] // n_heads // 2, *rows.shape[1:])
            .swapaxes(1, 2)
            .reshape(rows.shape)
        )
        assert np.array_equal(permuted, rows[paired_rows(n_heads, head_dim)])


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("head", [False, True])
def test_every_weight_is_in_its_place(
    load: Callable[..., Weights[Tensor]], biases: bool, head: bool
):
    arrays = canonical(biases=biases, head=head)
    assert_equal(by_name(load(as_gguf(arrays))), arrays)


@settings(max_examples=25)
@given(
    n_kv_heads=st.integers(1, 3),
    n_groups=st.integers(1, 3),
    head_dim=st.sampled_from([2, 4, 6]),
    dim=st.integers(1, 9),
)
def test_any_sizes(
    tmp_path_factory: pytest.TempPathFactory,
    n_kv_heads: int,
    n_groups: int,
    head_dim: int,
    dim: int,
):
    config = dataclasses.replace(
        CONFIG,
        n_layers=1,
        dim=dim,
        n_heads=n_kv_heads * n_groups,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        ffn_dim=7,
        vocab_size=3,
        rope=RopeConfig(head_dim),
    )
    arrays = canonical(config, biases=True)
    path = write(tmp_path_factory.getbasetemp() / "sizes.gguf", as_gguf(arrays, config))
    with gguf.open(path) as file:
        assert_equal(by_name(from_gguf(file, config)), arrays)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "F16", "BF16"])
def test_quantized_rows_are_moved_whole(load: Callable[..., Weights[Tensor]], kind: str):
    arrays = canonical()
    names = [f"blk.1.attn_{part}.weight" for part in "qkv"]
    found = load(as_gguf(arrays), **{name.replace(".", "__"): kind for name in names}).layers[1]
    for name, tensor in zip(names, (found.q, found.k, found.v), strict=True):
        assert tensor.dtype.name == kind
        rows = reference.quants.quantize(arrays[name], reference.GGMLQuantizationType[kind])
        assert tensor.blocks().tobytes() == rows.tobytes()
        assert tensor.is_contiguous


def test_only_q_and_k_are_copied(load: Callable[..., Weights[Tensor]], tmp_path: Path):
    arrays = as_gguf(canonical(biases=True))
    with gguf.open(write(tmp_path / "model.gguf", arrays)) as file:
        mapped = next(iter(file.maps.values()))
        layer = from_gguf(file, CONFIG).layers[0]
        copied = {
            field.name
            for field in dataclasses.fields(layer)
            if getattr(layer, field.name).buffer is not mapped
        }
    assert copied == {"q", "k", "q_bias", "k_bias"}


def test_the_weights_outlive_the_file(load: Callable[..., Weights[Tensor]]):
    found = load(as_gguf(canonical()))  # closed by now
    assert decode(found.layers[1].down).shape == (64, 96)


def test_names_are_those_of_the_reference():
    """The converter's own table, from Hugging Face's parameter names to GGUF's."""
    table = reference.get_tensor_name_map(reference.MODEL_ARCH.LLAMA, 3)

    def translated(name: str) -> str | None:
        return table.get_name(name, try_suffixes=(".weight", ".bias"))

    hf, ours = weights.HUGGING_FACE, weights.GGUF
    assert hf.suffixes.keys() == ours.suffixes.keys()
    for part, suffix in hf.suffixes.items():
        name = hf.layer.format(2) + suffix
        assert translated(name) == ours.layer.format(2) + ours.suffixes[part]
    for part in ("embed", "final_norm", "head"):
        assert translated(getattr(hf, part)) == getattr(ours, part)


# Every tensor needed, none left over


@pytest.mark.parametrize("name", sorted(canonical(head=False)))
def test_a_missing_tensor_is_named(load: Callable[..., Weights[Tensor]], name: str):
    arrays = canonical(head=False)
    del arrays[name]
    with pytest.raises(ModelFileError, match=f"'{name}' is missing") as caught:
        load(as_gguf(arrays))
    assert caught.value.fix


@pytest.mark.parametrize("name", sorted(canonical(biases=True)))
def test_a_tensor_of_another_shape_is_named(load: Callable[..., Weights[Tensor]], name: str):
    arrays = as_gguf(canonical(biases=True))
    shape = arrays[name].shape
    for wrong in (arrays[name][..., :-1], arrays[name][None], arrays[name].reshape(-1)[None].T):
        if wrong.shape == shape:
            continue
        with pytest.raises(ModelFileError) as caught:
            load(arrays | {name: wrong})
        message = str(caught.value)
        assert f"{name!r} has shape {list(wrong.shape)}" in message
        assert f"need {list(shape)}" in message


def test_a_transposed_matrix_is_refused(load: Callable[..., Weights[Tensor]]):
    arrays = as_gguf(canonical())
    name = "blk.1.ffn_up.weight"
    with pytest.raises(ModelFileError, match=r"has shape \[64, 96\], .* need \[96, 64\]"):
        load(arrays | {name: arrays[name].T})


@pytest.mark.parametrize(
    "name",
    [
        "blk.2.attn_norm.weight",  # a layer more than the settings tell
        "blk.0.attn_q_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.attn_norm.bias",
        "output.bias",
        "position_embd.weight",
        "rope_freqs.bias",
        "model.embed_tokens.weight",
        "blk.00.attn_q.weight",
        "new\nline",
    ],
)
def test_a_tensor_that_nobody_takes_is_named(load: Callable[..., Weights[Tensor]], name: str):
    arrays = as_gguf(canonical()) | {name: np.zeros(4, np.float32)}
    with pytest.raises(ModelFileError) as caught:
        load(arrays)
    assert f"{name!r} has no place" in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.fix


def test_names_of_another_format_load_nothing(load: Callable[..., Weights[Tensor]]):
    arrays = {"model.embed_tokens.weight": np.zeros((11, 64), np.float32)}
    with pytest.raises(ModelFileError, match=r"'token_embd\.weight' is missing"):
        load(arrays)


def test_a_bias_may_be_alone(load: Callable[..., Weights[Tensor]]):
    """Some models have biases on q, k and v only."""
    arrays = canonical()
    arrays["blk.0.attn_k.bias"] = np.arange(16, dtype=np.float32)
    found = load(as_gguf(arrays))
    assert found.layers[0].k_bias.numpy().tolist() == list(range(16))
    assert found.layers[0].q_bias is None
    assert found.layers[1].k_bias is None


@pytest.mark.parametrize(("says", "part"), [("attention_bias", "attn"), ("mlp_bias", "ffn")])
def test_biases_are_what_the_settings_tell(
    load: Callable[..., Weights[Tensor]], says: str, part: str
):
    without = dataclasses.replace(CONFIG, **{says: False})
    with pytest.raises(ModelFileError, match=rf"blk\.0\.{part}_[a-z]+\.bias' has no place"):
        load(as_gguf(canonical(biases=True)), without)
    needed = dataclasses.replace(CONFIG, **{says: True})
    with pytest.raises(ModelFileError, match=rf"blk\.0\.{part}_[a-z]+\.bias' is missing"):
        load(as_gguf(canonical()), needed)
    assert load(as_gguf(canonical(biases=True)), needed).layers[1].down_bias is not None


def test_an_unknown_type_is_refused_when_it_is_needed(tmp_path: Path):
    path = write(tmp_path / "model.gguf", as_gguf(canonical()))
    raw = path.read_bytes()
    name = b"blk.1.ffn_up.weight"
    at = raw.index(name) + len(name) + 4 + 16  # behind the name: the axes, then the type
    path.write_bytes(raw[:at] + (77).to_bytes(4, "little") + raw[at + 4 :])
    with gguf.open(path) as file, pytest.raises(UnsupportedError) as caught:
        from_gguf(file, CONFIG)
    assert "'blk.1.ffn_up.weight' is stored as type 77" in str(caught.value)


@pytest.mark.parametrize("n_layers", [3, 2**32, 2**63])
def test_a_lying_number_of_layers_fails_fast(load: Callable[..., Weights[Tensor]], n_layers: int):
    started = time.process_time()
    with pytest.raises(ModelFileError, match=r"'blk\.2\.[a-z_.]+' is missing"):
        load(as_gguf(canonical()), dataclasses.replace(CONFIG, n_layers=n_layers))
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "lie",
    [
        {"vocab_size": 2**60},
        {"dim": 2**62},
        {"n_heads": 2**61, "n_kv_heads": 2**61},
        {"ffn_dim": 2**64},
        {"head_dim": 2**63},
        {"n_layers": 1},
    ],
)
def test_lying_sizes_are_refused(load: Callable[..., Weights[Tensor]], lie: dict[str, int]):
    with pytest.raises(LlambdaError, match=r"has shape|has no place"):
        load(as_gguf(canonical()), dataclasses.replace(CONFIG, **lie))


# The head


def test_without_a_head_the_embedding_serves_twice(load: Callable[..., Weights[Tensor]]):
    for tied in (None, True):
        found = load(as_gguf(canonical(head=False)), dataclasses.replace(CONFIG, tied=tied))
        assert found.head is found.embed


def test_a_head_that_is_there_is_used(load: Callable[..., Weights[Tensor]]):
    arrays = canonical()
    for tied in (None, True, False):
        found = load(as_gguf(arrays), dataclasses.replace(CONFIG, tied=tied))
        assert np.array_equal(decode(found.head), arrays["output.weight"])
        assert np.array_equal(decode(found.embed), arrays["token_embd.weight"])


def test_an_untied_model_needs_its_head(load: Callable[..., Weights[Tensor]]):
    with pytest.raises(ModelFileError, match=r"'output\.weight' is missing"):
        load(as_gguf(canonical(head=False)), dataclasses.replace(CONFIG, tied=False))


def test_frequency_factors(load: Callable[..., Weights[Tensor]]):
    factors = np.array([1, 1.5, 8, 32], np.float32)
    found = load(as_gguf(canonical()) | {"rope_freqs.weight": factors})
    assert found.rope_factors.numpy().tolist() == factors.tolist()
    assert load(as_gguf(canonical())).rope_factors is None
    with pytest.raises(ModelFileError, match=r"'rope_freqs\.weight' has shape \[8\].*need \[4\]"):
        load(as_gguf(canonical()) | {"rope_freqs.weight": np.ones(8, np.float32)})


# The struct


def test_map_makes_each_weight_once(load: Callable[..., Weights[Tensor]]):
    seen: list[Tensor] = []

    def shape(tensor: Tensor) -> list[int]:
        seen.append(tensor)
        return list(tensor.shape)

    arrays = canonical(head=False, biases=True)
    arrays["rope_freqs.weight"] = np.ones(4, np.float32)
    found = load(as_gguf(arrays))
    mapped = found.map(shape)
    assert mapped.head is mapped.embed == [11, 64]
    assert len(seen) == len(arrays)
    assert len({id(tensor) for tensor in seen}) == len(seen)
    assert [id(tensor) for tensor in found.unique()] == [id(tensor) for tensor in seen]
    assert mapped.rope_factors == [4]
    assert [layer.down for layer in mapped.layers] == [[64, 96]] * 2
    assert mapped.layers[0].k_bias == [16]


def test_map_leaves_absent_weights_absent(load: Callable[..., Weights[Tensor]]):
    mapped = load(as_gguf(canonical())).map(lambda tensor: tensor.size)
    assert mapped.rope_factors is None
    assert mapped.layers[1].gate_bias is None
    assert mapped.layers[1].gate == 96 * 64
    assert (mapped.head, mapped.embed) == (11 * 64, 11 * 64)
