"""The files in data/ agree with one another and with the reference implementations.

The oracles are torch, transformers, tokenizers and gguf; llambda itself is not used.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, GPT2LMHeadModel, LlamaForCausalLM

DATA = Path(__file__).parent.parent / "data"
BOS = "<|endoftext|>"
MODELS = {"tiny": LlamaForCausalLM, "tiny-gpt2": GPT2LMHeadModel}
FILES = [
    "batches.py",
    "corpus.py",
    "export.py",
    "models.py",
    "train_tiny.py",
    "tiny.gguf",
    "tiny-q8_0.gguf",
    *(f"{name}_golden.{kind}" for name in MODELS for kind in ("json", "npz")),
    *(
        f"{name}/{file}"
        for name in MODELS
        for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ),
]
TEXTS = [
    "The class statement",
    " two  spaces,\n\n    indentation\tand a tab\n",
    "numbers 12345 and 3.14159",
    "caf\u00e9, \u4f60\u597d, \U0001f40d, e\u0301",
    "",
]


def strings(reader: gguf.GGUFReader, key: str) -> list[str]:
    field = reader.fields[key]
    return [bytes(field.parts[i]).decode() for i in field.data]


def value(reader: gguf.GGUFReader, key: str):
    return reader.fields[key].contents()


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face llama tensor, from gguf's own table."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3)
    found = names.get_name(name, try_suffixes=(".weight",))
    assert found is not None
    return found


def halves_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo the row order of llama.cpp: row 2i + s of a head goes back to row i + s * E/2."""
    rows = np.arange(len(weight)).reshape(heads, -1)
    return weight[np.concatenate((rows[:, 0::2], rows[:, 1::2]), axis=1).ravel()]


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return load_file(DATA / "tiny" / "model.safetensors")


@pytest.fixture(scope="module", params=MODELS)
def recorded(request):
    """A model as transformers loads it, and what was recorded for it."""
    name = request.param
    model, info = MODELS[name].from_pretrained(DATA / name, output_loading_info=True)
    golden = json.loads((DATA / f"{name}_golden.json").read_text(encoding="utf-8"))
    with np.load(DATA / f"{name}_golden.npz") as arrays:
        return name, model.eval(), info, golden, dict(arrays)


def test_files_are_present_and_small():
    for file in FILES:
        assert (DATA / file).is_file(), file
    sizes = [p.stat().st_size for p in DATA.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert sum(sizes) < 8_000_000


def test_gguf_metadata():
    config = json.loads((DATA / "tiny" / "config.json").read_text())
    for file, file_type in (("tiny.gguf", 0), ("tiny-q8_0.gguf", 7)):
        reader = gguf.GGUFReader(DATA / file)
        assert value(reader, "general.architecture") == "llama"
        assert value(reader, "general.file_type") == file_type
        assert value(reader, "general.alignment") == reader.alignment == 32
        for key, name in {
            "context_length": "max_position_embeddings",
            "embedding_length": "hidden_size",
            "block_count": "num_hidden_layers",
            "feed_forward_length": "intermediate_size",
            "rope.dimension_count": "head_dim",
            "attention.head_count": "num_attention_heads",
            "attention.head_count_kv": "num_key_value_heads",
            "vocab_size": "vocab_size",
        }.items():
            assert value(reader, f"llama.{key}") == config[name], key
        assert value(reader, "llama.rope.freq_base") == config["rope_parameters"]["rope_theta"]
        eps = value(reader, "llama.attention.layer_norm_rms_epsilon")
        assert eps == pytest.approx(config["rms_norm_eps"])


def test_gguf_tokenizer_equals_tokenizer_json():
    model = json.loads((DATA / "tiny" / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    for file in ("tiny.gguf", "tiny-q8_0.gguf"):
        reader = gguf.GGUFReader(DATA / file)
        assert value(reader, "tokenizer.ggml.model") == "gpt2"
        assert value(reader, "tokenizer.ggml.pre") == "smollm"
        tokens = strings(reader, "tokenizer.ggml.tokens")
        assert {token: i for i, token in enumerate(tokens)} == model["vocab"]
        assert tokens[0] == BOS
        assert value(reader, "tokenizer.ggml.token_type") == [3] + [1] * (len(tokens) - 1)
        merges = [tuple(pair.split(" ")) for pair in strings(reader, "tokenizer.ggml.merges")]
        assert merges == [tuple(pair) for pair in model["merges"]]
        assert value(reader, "tokenizer.ggml.bos_token_id") == 0
        assert value(reader, "tokenizer.ggml.eos_token_id") == 0
        assert value(reader, "tokenizer.ggml.add_bos_token") is True
        assert value(reader, "tokenizer.ggml.add_space_prefix") is False


def test_gguf_f32_tensors_equal_safetensors(weights):
    tensors = {t.name: t for t in gguf.GGUFReader(DATA / "tiny.gguf").tensors}
    assert set(tensors) == {gguf_name(name) for name in weights}  # and so no output.weight
    for name, expected in weights.items():
        tensor = tensors[gguf_name(name)]
        assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
        found = np.array(tensor.data)
        if "q_proj" in name or "k_proj" in name:
            permuted, found = found, halves_order(found, 4 if "q_proj" in name else 2)
            assert not np.array_equal(permuted, expected)
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_gguf_q8_0_tensors_are_the_quantized_f32_tensors():
    exact = {t.name: t for t in gguf.GGUFReader(DATA / "tiny.gguf").tensors}
    quantized = {t.name: t for t in gguf.GGUFReader(DATA / "tiny-q8_0.gguf").tensors}
    assert set(exact) == set(quantized)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in quantized.items():
        original = np.array(exact[name].data)
        if original.ndim == 1:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
            np.testing.assert_array_equal(tensor.data, original)
        else:
            assert tensor.tensor_type == q8_0
            assert list(tensor.shape) == list(exact[name].shape)
            np.testing.assert_array_equal(tensor.data, gguf.quants.quantize(original, q8_0))
            back = gguf.quants.dequantize(tensor.data, q8_0)
            assert np.abs(back - original).max() < 0.01 * np.abs(original).max()


def test_transformers_loads_every_tensor(recorded):
    _, model, info, _, _ = recorded
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.vocab_size == 1024
    assert model.generation_config.eos_token_id == 0


def test_transformers_gives_the_recorded_logits(recorded):
    _, model, _, golden, arrays = recorded
    assert arrays["ids"].tolist() == golden["cases"][0]["ids"]
    assert len(arrays["long_ids"]) == 32
    for ids, logits in (("ids", "logits"), ("long_ids", "long_logits")):
        assert arrays[logits].dtype == np.float32
        assert arrays[logits].shape == (len(arrays[ids]), 1024)
        with torch.no_grad():
            found = model(torch.from_numpy(arrays[ids])[None]).logits[0].numpy()
        np.testing.assert_allclose(found, arrays[logits], rtol=0, atol=1e-4)


def test_transformers_gives_the_recorded_greedy_tokens(recorded):
    name, model, _, golden, _ = recorded
    tokenizer = AutoTokenizer.from_pretrained(DATA / name)
    assert len(golden["cases"]) == 3
    for case in golden["cases"]:
        assert tokenizer(case["prompt"])["input_ids"] == case["ids"]
        assert case["ids"][0] == 0
        ids, more = case["ids"], case["continuation_ids"]
        assert len(more) == len(case["margins"]) == 48
        with torch.no_grad():
            logits = model(torch.tensor([ids + more])).logits[0, len(ids) - 1 : -1]
        assert logits.argmax(dim=-1).tolist() == more
        best = logits.topk(2, dim=-1).values
        margins = (best[:, 0] - best[:, 1]).tolist()
        assert margins == pytest.approx(case["margins"], abs=2e-4)
        assert case["min_margin"] == min(case["margins"])
        assert tokenizer.decode(more) == case["continuation"]


def test_transformers_generates_the_recorded_greedy_tokens(recorded):
    _, model, _, golden, _ = recorded
    case = golden["cases"][0]
    ids = torch.tensor([case["ids"]])
    options = {"max_new_tokens": 48, "do_sample": False, "pad_token_id": 0}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert out[0, len(case["ids"]) :].tolist() == case["continuation_ids"]


@pytest.mark.parametrize("name", MODELS)
def test_tokenizer(name):
    path = DATA / name / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    spec = json.loads(path.read_text(encoding="utf-8"))
    assert [step["type"] for step in spec["pre_tokenizer"]["pretokenizers"]] == [
        "Digits",
        "ByteLevel",
    ]
    assert spec["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] is True
    assert spec["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] is False
    assert spec["pre_tokenizer"]["pretokenizers"][1]["use_regex"] is True
    assert spec["decoder"]["type"] == "ByteLevel"
    assert tokenizer.get_vocab_size() == 1024
    assert len(spec["model"]["merges"]) == 1024 - 256 - 1
    assert sum(len(token) == 1 for token in spec["model"]["vocab"]) == 256
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids[0] == 0
        assert ids.count(0) == 1
        assert tokenizer.decode(ids) == text
        assert AutoTokenizer.from_pretrained(DATA / name)(text)["input_ids"] == ids
    for digit in "0123456789":  # digits stay single
        assert len(tokenizer.encode(digit * 3, add_special_tokens=False).ids) == 3


def test_tokenizers_of_both_models_are_the_same():
    one, two = (DATA / name / "tokenizer.json" for name in MODELS)
    assert one.read_bytes() == two.read_bytes()
