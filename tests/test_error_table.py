"""The error table: what goes wrong most often, each as one line that says what, where and the fix.

Every row is a command as a person would type it. The line must hold the words of the fault and
those of its remedy; the exit status is 1, stdout stays empty and no traceback is shown.
"""

import ast
import contextlib
import io
import json
import struct
import sys
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import gguf
import pytest
import transformers
from scripted import small_tensors, write_small

from llambda import cli, errors, model, paths
from llambda.course import lessons

Arguments = list[object]


class Row(NamedTuple):
    """A fault: the command that meets it, and the line.

    The command is given a folder with `small.gguf` and with a lesson in `shelf`.
    """

    command: Callable[[Path], Arguments]
    fault: str
    remedy: str


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def header(version: int, order: str = "<") -> bytes:
    return b"GGUF" + struct.pack(f"{order}IQQ", version, 0, 0)


def truncated(folder: Path) -> Path:
    whole = (folder / "small.gguf").read_bytes()
    return written(folder / "cut.gguf", whole[: len(whole) // 2])


def without(folder: Path, name: str) -> Path:
    tensors = small_tensors()
    del tensors[name]
    return write_small(folder / "missing.gguf", tensors=tensors)


def with_one_more(folder: Path) -> Path:
    tensors = small_tensors()
    tensors["blk.0.ffn_sub_norm.weight"] = tensors["blk.0.ffn_norm.weight"]
    return write_small(folder / "more.gguf", tensors=tensors)


def with_key(folder: Path, key: str, value: int) -> Path:
    return write_small(folder / "key.gguf", extra=lambda writer: writer.add_uint32(key, value))


def with_kind(folder: Path) -> Path:
    kinds = {"blk.0.attn_q.weight": gguf.GGMLQuantizationType.Q2_K}
    return write_small(folder / "kind.gguf", kinds=kinds)


def sharded(folder: Path) -> Path:
    (folder / "hf").mkdir()
    written(folder / "hf/config.json", json.dumps({"model_type": "llama"}).encode())
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    written(folder / "hf/model.safetensors.index.json", json.dumps(index).encode())
    return folder / "hf"


def without_tokenizer(folder: Path) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "hf")
    return folder / "hf"


def with_lesson(folder: Path, source: str = "# 00 · A\n*5 minutes · difficulty 1 of 5*") -> Path:
    (folder / "shelf").mkdir(exist_ok=True)
    cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": source}
    content = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    return written(folder / "shelf/00_a.ipynb", json.dumps(content).encode())


def with_copy(folder: Path, content: bytes) -> Path:
    written(folder / "00_a.ipynb", content)
    return folder


def lesson(action: str, number: int, folder: Path, *more: object) -> Arguments:
    return ["lesson", action, number, "--folder", folder, *more]


def generate(source: object, *more: object) -> Arguments:
    return ["generate", source, "the", "--temperature", "0", *more]


def chat(folder: Path, *options: object) -> Arguments:
    """Refused before a question is read: the tests' input has none."""
    return ["chat", folder / "small.gguf", *options]


ROWS = {
    "no such file": Row(lambda f: generate(f / "none.gguf"), "no such file", "Give a .gguf file"),
    "folder without config.json": Row(
        lambda f: generate(f), "config.json", "Give a model's folder"
    ),
    "not a model file": Row(
        lambda f: generate(written(f / "x.gguf", b"hello, world")),
        "not a GGUF file",
        "Give a .gguf",
    ),
    "a web page": Row(
        lambda f: generate(written(f / "x.gguf", b"<!DOCTYPE html><p>404")), "web page", "fetch it"
    ),
    "empty": Row(lambda f: generate(written(f / "x.gguf", b"")), "empty", "Fetch it again"),
    "truncated": Row(lambda f: generate(truncated(f)), "truncated", "fetch it again"),
    "wrong version": Row(
        lambda f: generate(written(f / "x.gguf", header(1))), "version 1", "Convert the model again"
    ),
    "big-endian": Row(
        lambda f: generate(written(f / "x.gguf", header(3, ">"))), "big-endian", "little-endian"
    ),
    "unsupported architecture": Row(
        lambda f: generate(write_small(f / "x.gguf", architecture="qwen2")),
        "'qwen2'",
        "Use a model",
    ),
    "unsupported key": Row(
        lambda f: generate(with_key(f, "llama.expert_count", 8)), "llama.expert_count = 8", "plain"
    ),
    "unsupported tensor type": Row(
        lambda f: generate(with_kind(f)), "Q2_K", "Use a file in one of"
    ),
    "missing tensor": Row(
        lambda f: generate(without(f, "blk.1.attn_q.weight")),
        "'blk.1.attn_q.weight' is missing",
        "fetch or convert it again",
    ),
    "unused tensor": Row(
        lambda f: generate(with_one_more(f)), "'blk.0.ffn_sub_norm.weight' has no place", "a part"
    ),
    "missing shard": Row(
        lambda f: generate(sharded(f)), "model-00001-of-00002.safetensors", "Fetch it into"
    ),
    "token id outside the vocabulary": Row(
        lambda f: ["generate", f / "small.gguf", "--ids", "1,999999"], "999999", "go from 0 to"
    ),
    "empty prompt": Row(
        lambda f: ["generate", f / "small.gguf", ""], "the prompt is empty", "at least one"
    ),
    "prompt longer than the context": Row(
        lambda f: ["generate", f / "small.gguf", "x" * 100], "has 100 tokens", "Shorten the prompt"
    ),
    "context larger than the model's": Row(
        lambda f: generate(f / "small.gguf", "--context", "9999"), "9,999", "Ask for less"
    ),
    "temperature below 0": Row(
        lambda f: ["generate", f / "small.gguf", "the", "--temperature", "-1"],
        "temperature is -1.0",
        "0 or more",
    ),
    "prompt longer than the model's context": Row(
        lambda f: ["generate", f / "small.gguf", "x" * 100], "context 64", "no larger context"
    ),
    "chat, temperature below 0": Row(
        lambda f: chat(f, "--temperature", "-1"), "temperature is -1.0", "0 or more"
    ),
    "chat, top-p above 1": Row(
        lambda f: chat(f, "--top-p", "2"), "top_p is 2.0", "between 0 and 1"
    ),
    "chat, empty stop string": Row(
        lambda f: chat(f, "--stop", ""), "'' is no stop string", "at least one character"
    ),
    "chat, tokens below 0": Row(
        lambda f: chat(f, "--max-tokens", "-1"), "max_tokens is -1", "0 or more"
    ),
    "chat, message that is no text": Row(
        lambda f: chat(f, "--system", "\udcff"), "not valid Unicode", "UTF-8 is expected"
    ),
    "comparison longer than the context": Row(
        lambda f: ["compare", f / "small.gguf", "--ids", "1,2,3", "--context", "2"],
        "the prompt has 3 tokens and the context 2",
        "ask for a larger context",
    ),
    "comparison longer than the model's context": Row(
        lambda f: ["compare", f / "small.gguf", "--ids", ",".join("1" * 65)],
        "the prompt has 65 tokens and the context 64",
        "no larger context",
    ),
    "logits longer than the model's context": Row(
        lambda f: ["logits", f / "small.gguf", "--ids", ",".join("1" * 65), "--out", f / "x.npy"],
        "do not fit in a context of 64",
        "no larger context",
    ),
    "folder without tokenizer.json": Row(
        lambda f: generate(without_tokenizer(f)), "without tokenizer.json", "Fetch it from"
    ),
    "unknown engine": Row(
        lambda f: generate(f / "small.gguf", "--engine", "warp"), "'warp'", "one of naive, cached"
    ),
    "unknown name": Row(lambda f: ["fetch", "gpt-9"], "'gpt-9'", "Known are: smollm2"),
    "unknown lesson": Row(lambda f: lesson("start", 99, f), "no lesson '99'", "There are: 00"),
    "lesson not started": Row(
        lambda f: lesson("check", 0, f), "no copy of lesson 00", "llambda lesson start 00"
    ),
    "lesson started already": Row(
        lambda f: lesson("start", 0, with_copy(f, b"my work")), "a copy already", "begin anew: "
    ),
    "damaged copy of a lesson": Row(
        lambda f: lesson("check", 0, with_copy(f, b'{"cells": [')), "not a notebook", "--force"
    ),
    "damaged lesson": Row(
        lambda f: lesson("start", 0, with_lesson(f, "").parent), "without a title", "Install"
    ),
    "folder of lessons that is a file": Row(
        lambda f: lesson("start", 0, f / "small.gguf"), "a file where a folder", "Name a folder"
    ),
    "output in no folder": Row(
        lambda f: ["logits", f / "small.gguf", "--ids", "1", "--out", f / "none" / "x.npy"],
        "no such file or folder",
        "Check the path",
    ),
}


def check(arguments: Arguments, fault: str, remedy: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        unittest.mock.patch("sys.stdin", io.StringIO()),
    ):
        status = cli.main([str(argument) for argument in arguments])
    line = err.getvalue()
    assert status == 1
    assert out.getvalue() == ""
    assert line.startswith("llambda: ") and line.count("\n") == 1
    assert fault in line
    assert remedy in line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_small(tmp_path / "small.gguf")
    monkeypatch.setattr(lessons, "notebooks_dir", with_lesson(tmp_path).parent.absolute)
    return tmp_path


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_one_line_with_its_remedy(folder: Path, row: Row):
    check(row.command(folder), row.fault, row.remedy)


def test_a_context_larger_than_memory(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model, "available_memory", lambda: 1000)
    check(generate(folder / "small.gguf"), "MB are free", "ask for a smaller context")


def test_no_torch_for_compare(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "llambda.oracle", raising=False)
    check(["compare", folder / "small.gguf", "--ids", "1,2"], "torch", "pip install torch")


def test_no_jupyter_for_a_check(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "nbclient", None)
    monkeypatch.delitem(sys.modules, "llambda.course.execution", raising=False)
    with_copy(folder, (folder / "shelf/00_a.ipynb").read_bytes())
    check(lesson("check", 0, folder), "nbclient", "pip install 'llambda[course]'")


def test_not_enough_disk(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths.shutil, "disk_usage", lambda place: SimpleNamespace(free=0))
    command = ["quantize", folder / "small.gguf", folder / "out.gguf", "--type", "F16"]
    check(command, "are needed on this disk", "Free some space")
    assert not (folder / "out.gguf").exists()


def test_no_permission(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Root may read everything, so the system's answer is planted."""

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("llambda.tensorfile.open", denied, raising=False)
    check(generate(folder / "small.gguf"), "permission denied", "Check who may read")


def test_a_disk_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def failing(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("llambda.tensorfile.open", failing, raising=False)
    check(generate(folder / "small.gguf"), "Input/output error", "Check the disk")


# ---------------------------------------------------------------- remedies

SOURCES = Path(errors.__file__).parent
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and "Error" in name}
# Of files and of what they hold: what a person meets without having written a line of code.
OF_FILES = KINDS - {"LlambdaError", "InputError", "ContextError", "MissingPackageError"}
READERS = """
    paths tensorfile gguf gguf_split safetensors config config_hf weights naming entries vocabulary
    modelfile
    """.split()
NO_REMEDY = {
    ("kernels/matrix.py", "UnsupportedError"),  # of a type that load() refuses, with its remedy
    ("rival.py", "ModelFileError"),  # llama.cpp's, which says no more than that it cannot
    ("rival.py", "ResourceError"),
}


def without_remedy(source: str, kinds: set[str]) -> list[str]:
    """The kinds of errors made without `fix`, one for each place."""
    return [
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds
        if not any(keyword.arg == "fix" for keyword in node.keywords)
    ]


def test_what_a_model_file_can_meet_has_a_remedy():
    found = set()
    for path in SOURCES.rglob("*.py"):
        place = path.relative_to(SOURCES).as_posix()
        kinds = KINDS if place.removesuffix(".py") in READERS else OF_FILES
        if not place.startswith("course/"):
            found |= {(place, kind) for kind in without_remedy(path.read_text("utf-8"), kinds)}
    assert found == NO_REMEDY


def test_every_reader_is_there():
    assert [name for name in READERS if not (SOURCES / f"{name}.py").is_file()] == []


def test_a_missing_remedy_would_be_noticed():
    source = "raise ModelFileError('a', where=b)\nraise ModelFileError('a', fix='c')"
    assert without_remedy(source, OF_FILES) == ["ModelFileError"]


def test_the_check_can_fail(folder: Path):
    with pytest.raises(AssertionError):
        check(generate(folder / "small.gguf"), "no such file", "Give")
    with pytest.raises(AssertionError):
        check(generate(folder / "none.gguf"), "no such file", "Pay for support")
