"""The facts behind `llambda inspect`, against what was written, and against what load() does."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_bytes as raw
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from scripted import MERGES, SIZES, TOKENS, small_tensors, write_small

import llambda
from llambda.describe import describe_file, report_file
from llambda.errors import LlambdaError, ModelFileError

TYPES = gguf.GGMLQuantizationType
FIELDS = [
    "path",
    "format",
    "file_bytes",
    "files",
    "parameters",
    "tensor_bytes",
    "types",
    "metadata",
    "tensors",
    "runs",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("model") / "small.gguf")


def as_json(facts: dict[str, Any]) -> Any:
    """Through strict JSON and back: no NaN, no tuples, no keys but strings."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(json.dumps(facts), parse_constant=refuse)


def test_the_facts_are_those_that_were_written(small: Path):
    facts = describe_file(small)
    tensors = small_tensors()
    assert list(facts) == FIELDS
    assert as_json(facts) == facts
    assert facts["path"] == str(small)
    assert facts["format"] == "GGUF version 3"
    assert (facts["files"], facts["file_bytes"]) == (1, small.stat().st_size)
    assert facts["parameters"] == sum(array.size for array in tensors.values())
    assert facts["tensor_bytes"] == sum(array.nbytes for array in tensors.values())
    assert facts["types"] == {"F32": {"tensors": len(tensors), "bytes": facts["tensor_bytes"]}}
    assert facts["tensors"] == [
        {"name": name, "type": "F32", "shape": list(array.shape), "bytes": array.nbytes}
        for name, array in tensors.items()
    ]
    assert facts["metadata"]["llama.block_count"] == 2
    assert facts["metadata"]["tokenizer.ggml.tokens"] == {
        "length": len(TOKENS),
        "first": TOKENS[:8],
    }


def test_what_runs_is_what_load_takes(small: Path):
    runs = describe_file(small)["runs"]
    with llambda.load(small) as model:
        assert runs["engine"] == model.engine.name
        assert runs["weight_memory_bytes"] == model.engine.weight_bytes(model.weights)
        assert runs["config"]["n_kv_heads"] == model.config.n_kv_heads == 2
        assert runs["config"]["context_length"] == 64
    assert runs["cache_bytes_per_position"] == 2 * 2 * 2 * 6 * 4  # layers, k and v, heads, size


def test_types_are_counted_the_largest_first(tmp_path: Path):
    names = [f"blk.{i}.ffn_up.weight" for i in range(2)]
    file = write_small(tmp_path / "s.gguf", kinds=dict.fromkeys(names, TYPES.Q8_0))
    types = describe_file(file)["types"]
    assert list(types) == ["F32", "Q8_0"]
    assert types["Q8_0"] == {"tensors": 2, "bytes": 2 * 20 * 34}


def test_the_report_says_it_all(small: Path):
    lines = report_file(describe_file(small)).splitlines()
    assert lines[0] == f"{small}: GGUF version 3, 0.1 MB"
    assert "  llama.block_count = 2" in lines
    assert f"  tokenizer.ggml.tokens = [{', '.join(TOKENS[:8])}, ...] (263 entries)" in lines
    assert "  token_embd.weight              F32    266 x 16       17,024 bytes" in lines
    assert lines[-2:] == [
        "runs on the engine 'fused': 2 layers of width 16, 4 heads (2 for keys and values) of 6",
        "memory: 0 MB for weights and 0.2 kB of cache a position, up to 64",
    ]


# ---------------------------------------------------------------- odd values


def written(path: Path, *keys: bytes, infos: list[bytes] | None = None, data: bytes = b"") -> Path:
    path.write_bytes(raw.file(list(keys), infos or [], data))
    return path


def test_numbers_that_json_lacks_become_text(tmp_path: Path):
    numbers = [math.nan, math.inf, -math.inf, 0.5]
    file = written(
        tmp_path / "x.gguf",
        raw.key("one", "f32", math.nan),
        raw.key("few", "[f32]", numbers),
        raw.key("many", "[f64]", numbers * 3),
    )
    facts = describe_file(file)
    words = ["nan", "inf", "-inf", 0.5]
    assert as_json(facts)["metadata"] == {
        "one": "nan",
        "few": words,
        "many": {"length": 12, "first": words * 2},
    }
    assert "  few = ['nan', 'inf', '-inf', 0.5]" in report_file(facts).splitlines()


def test_names_cannot_forge_lines(tmp_path: Path):
    file = written(
        tmp_path / "x.gguf",
        raw.key("a\nb", "str", "one\ntwo\x1b[2J"),
        raw.key("\u202e", "[str]", ["\r"]),
        raw.key("long", "str", "\n" * 500),
        infos=[raw.info("t\n\x07", [])],
        data=bytes(4),
    )
    report = report_file(describe_file(file))
    assert all(character.isprintable() or character == "\n" for character in report)
    lines = report.splitlines()
    assert "  a\\nb = one\\ntwo\\x1b[2J" in lines
    assert "  long = " + ("\\n" * 49)[:97] + "..." in lines
    assert lines[7] == "1 tensor, 1 parameter"
    assert lines[8].split() == ["t\\n\\x07", "F32", "scalar", "4", "bytes"]


def test_a_file_without_anything_is_described(tmp_path: Path):
    facts = describe_file(written(tmp_path / "x.gguf"))
    assert (facts["parameters"], facts["tensors"], facts["types"]) == (0, [], {})
    assert facts["runs"]["engine"] is None
    assert "general.architecture is missing" in report_file(facts)


def test_a_path_that_is_not_unicode_is_described(small: Path, tmp_path: Path):
    odd = tmp_path / "odd\udcff.gguf"
    odd.write_bytes(small.read_bytes())
    assert as_json(describe_file(odd))["path"] == str(odd)


# ---------------------------------------------------------------- what does not run


def experts(writer: gguf.GGUFWriter) -> None:
    writer.add_uint32("llama.expert_count", 8)


def yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_string("llama.rope.scaling.type", "yarn")


def other_words(path: Path) -> Path:
    """With a SentencePiece vocabulary."""
    data = write_small(path).read_bytes()
    key = b"tokenizer.ggml.model"
    at = data.index(key) + len(key) + 12
    assert data[at : at + 4] == b"gpt2"
    path.write_bytes(data[:at] + b"bert" + data[at + 4 :])
    return path


def unknown_type(path: Path) -> Path:
    return written(
        path,
        raw.key("general.architecture", "str", "llama"),
        infos=[raw.info("strange", [32], 77)],
        data=bytes(64),
    )


def fewer_rows(path: Path) -> Path:
    rows = len(TOKENS) - 1
    tensors = small_tensors()
    tensors |= {n: tensors[n][:rows] for n in ("token_embd.weight", "output.weight")}
    return write_small(path, sizes={"vocab_size": rows}, tensors=tensors)


def without(name: str) -> Callable[[Path], Path]:
    tensors = {n: array for n, array in small_tensors().items() if n != name}
    return lambda path: write_small(path, tensors=tensors)


def with_surplus(path: Path) -> Path:
    norm = np.ones(6, np.float32)
    return write_small(path, tensors=small_tensors() | {"blk.0.attn_q_norm.weight": norm})


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "architecture": (lambda p: write_small(p, architecture="gptx"), "architecture 'gptx' is not"),
    "experts": (lambda p: write_small(p, extra=experts), "llama.expert_count = 8 is not supported"),
    "rope": (lambda p: write_small(p, extra=yarn), "rope.scaling.type = 'yarn' is not"),
    "vocabulary": (other_words, "tokenizer.ggml.model = 'bert' is not supported"),
    "rows": (fewer_rows, "263 tokens for 262 embeddings"),
    "missing": (without("output_norm.weight"), "'output_norm.weight' is missing"),
    "surplus": (with_surplus, "'blk.0.attn_q_norm.weight' has no place"),
    "width": (lambda p: write_small(p, sizes={"feed_forward_length": 21}), "ffn_gate.weight' has"),
    "type": (
        lambda p: write_small(p, kinds={"blk.1.attn_k.weight": TYPES.IQ4_NL}),
        "tensor 'blk.1.attn_k.weight' is stored as IQ4_NL, which no engine here can decode",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_run_is_described_with_the_reason_that_load_gives(tmp_path: Path, name: str):
    make, words = REFUSED[name]
    file = make(tmp_path / "x.gguf")
    facts = describe_file(file)
    runs = facts["runs"]
    assert as_json(facts) == facts
    assert runs["engine"] is None
    assert words in runs["why"]
    assert len(facts["tensors"]) >= 19
    with pytest.raises(LlambdaError) as caught:
        llambda.load(file)
    assert (caught.value.what, caught.value.fix) == (runs["why"], runs["fix"])
    assert f"no engine here runs it: {runs['why']}" in report_file(facts).splitlines()
    assert (runs["fix"] or "") in report_file(facts)


def test_a_type_that_nobody_knows_is_described(tmp_path: Path):
    facts = describe_file(unknown_type(tmp_path / "x.gguf"))
    assert facts["tensors"] == [
        {"name": "strange", "type": "type 77", "shape": [32], "bytes": None}
    ]
    assert facts["types"] == {"type 77": {"tensors": 1, "bytes": 0}}
    assert facts["runs"]["engine"] is None
    assert "unknown size" in report_file(facts)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\3\0\0\0", b"<html>", b"\0" * 99])
def test_what_is_no_model_file_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"x\.gguf: "):
        describe_file(tmp_path / "x.gguf")


# ---------------------------------------------------------------- a Hugging Face folder


HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "vocab_size": SIZES["vocab_size"],
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
}


def hf_name(name: str) -> str:
    *layer, part, _ = name.split(".")
    prefix = f"model.layers.{layer[1]}." if layer else ""
    return f"{prefix}{HF_NAMES[part]}.weight"


def test_a_hugging_face_folder_is_described(tmp_path: Path):
    tensors = {hf_name(name): array for name, array in small_tensors().items()}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIG))
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: i for i, token in enumerate(TOKENS)}, MERGES)
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.save(str(tmp_path / "tokenizer.json"))

    facts = describe_file(tmp_path)
    assert as_json(facts) == facts
    assert facts["format"] == "Hugging Face folder"
    assert facts["file_bytes"] == (tmp_path / "model.safetensors").stat().st_size
    assert facts["parameters"] == sum(array.size for array in tensors.values())
    assert facts["metadata"]["rope_parameters"]["factor"] == 2
    assert facts["runs"]["engine"] == "fused"
    report = report_file(facts)
    assert "  rope_parameters = {'rope_type': 'linear', 'rope_theta': 500.0" in report
    assert report.endswith("0.2 kB of cache a position, up to 64")
