"""What notebooks use: exercises that explain, guesses, the ledger, plots, the ladder so far."""

import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from numba import njit

import llambda
from llambda import cache, paths
from llambda.cache import KVCache, cache_bytes
from llambda.check import first_divergence, trace_engine
from llambda.course import exercises, ledger, picture, predictions, progress, roofs, sources
from llambda.course.exercises.base import (
    Exercise,
    Wrong,
    expect_calls,
    expect_choices,
    expect_number,
    same,
    shown,
    untouched,
)
from llambda.course.mystery import MysteryEngine
from llambda.engines import RUNGS
from llambda.engines.naive import NaiveEngine
from llambda.engines.phases import forward
from llambda.errors import LlambdaError
from llambda.ladder import Rung
from llambda.profiling import costs, total
from llambda.simd.arithmetic import fma
from llambda.weights import float32_bytes, stored_bytes

matplotlib.use("Agg")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path))
    return tmp_path


# ---------------------------------------------------------------- exercises


def stub(a: int) -> int:
    """What it should do."""
    ...  # noqa: PIE790


class Stub:
    """What it should do."""

    def first(self) -> None:
        """Words."""
        ...  # noqa: PIE790

    def second(self, x: int) -> None: ...


class Static:
    @staticmethod
    def make(x: int) -> None: ...


class Begun(Stub):
    def first(self) -> int:
        return 1


@pytest.mark.parametrize("answer", [..., {"a": ..., "b": ...}, stub, Stub, Static, lambda x: None])
def test_an_untouched_answer(answer: Any):
    assert untouched(answer)


@pytest.mark.parametrize(
    "answer", [0, None, "", {"a": ..., "b": 1}, lambda x: x, Begun, len, float, np.zeros(2)]
)
def test_a_touched_answer(answer: Any):
    assert not untouched(answer)


def verdict(judge: Any, answer: Any) -> str:
    return Exercise("99.1", "A title", "code", 1, 1, judge).verdict(answer)


def test_verdicts():
    def judge(answer: Any) -> str:
        if answer == 2:
            return "Well done."
        if answer == 3:
            raise Wrong("one too many.")
        raise ZeroDivisionError("in\nthe answer")

    assert verdict(judge, ...) == "99.1 not attempted yet"
    assert verdict(judge, 2) == "99.1 solved. Well done."
    assert verdict(judge, 3) == "99.1 not yet: one too many."
    assert "ZeroDivisionError: in\\nthe answer" in verdict(judge, 4)
    assert verdict(judge, {"a": 1, "b": ...}) == "99.1 not yet: no answer yet for b."


def test_calling_an_exercise_prints_its_verdict(capsys: pytest.CaptureFixture[str]):
    Exercise("99.1", "A title", "code", 1, 1, lambda answer: "Yes.")(1)
    assert capsys.readouterr().out == "99.1 solved. Yes.\n"


def explanation(expect: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(Wrong) as caught:
        expect(*given, **named)
    return str(caught.value)


def test_a_number():
    mistakes = {80.0: "bits for bytes."}
    expect_number(10, 10.0, mistakes)
    expect_number(np.float32(10.05), 10.0, mistakes)
    assert explanation(expect_number, 80.1, 10.0, mistakes) == "bits for bytes."
    assert "too large" in explanation(expect_number, 11, 10.0, mistakes)
    assert "too small" in explanation(expect_number, -1, 10.0, mistakes)
    assert "a number is wanted" in explanation(expect_number, "ten", 10.0, mistakes)
    assert "too" in explanation(expect_number, float("nan"), 10.0, mistakes)
    assert "too large" in explanation(expect_number, 10**400, 10.0, mistakes)
    assert "too small" in explanation(expect_number, -(10**400), 10.0, mistakes)


def test_an_error_that_cannot_say_what_it_is():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    def judge(answer: Any) -> str:
        raise MuteError

    assert "MuteError: (its text raises another error)" in verdict(judge, 4)


def test_choices():
    right, mistakes = {"a": 1, "b": 2}, {("b", 3): "three is the other one."}
    expect_choices({"a": 1, "b": 2}, right, mistakes)
    assert explanation(expect_choices, {"a": 1, "b": 3}, right, mistakes) == (
        "b: three is the other one."
    )
    assert explanation(expect_choices, {"a": 2, "b": 2}, right, mistakes).startswith("a: look")
    assert explanation(expect_choices, {"a": 1}, right, mistakes) == "b is missing."
    assert "a dict" in explanation(expect_choices, 7, right, mistakes)


@pytest.mark.parametrize(
    "given", [["avx2"], {"avx2"}, {"avx2": 1}, ("avx2",), np.array(["avx2", "avx2"]), None, len]
)
def test_a_choice_that_is_no_choice(given: Any):
    """Some of these have no hash, and a comparison with an array is no answer."""
    right, mistakes = {"laptop": "avx2"}, {("laptop", "portable"): "it has all three flags."}
    said = explanation(expect_choices, {"laptop": given}, right, mistakes)
    assert said == f"laptop: one choice is wanted, by itself, and {shown(given)} is none."


def test_a_choice_may_be_a_number_of_any_kind():
    right, mistakes = {"row": 36, "column": 576}, {("column", 36): "each takes its own line."}
    expect_choices({"row": np.int64(36), "column": 576.0}, right, mistakes)
    for given in (36, np.float32(36), np.array(36)):
        said = explanation(expect_choices, {"row": 36, "column": given}, right, mistakes)
        assert said == "column: each takes its own line."
    assert explanation(expect_choices, {"row": True}, {"row": 1}, {}) == "row: look at it again."


def test_calls_are_compared_with_known_mistakes():
    cases = [(1, 2), (3, 3)]
    mistakes = [(lambda a, b: a - b, "minus for plus."), (lambda a, b: a * b, "times for plus.")]
    expect_calls(lambda a, b: b + a, cases, lambda a, b: a + b, mistakes)

    def wrong(a: int, b: int) -> int:
        return a * b

    said = explanation(expect_calls, wrong, cases, lambda a, b: a + b, mistakes)
    assert said == "times for plus. wrong(1, 2) gives 2; right is 3."

    def other(a: int, b: int) -> int:
        return a

    said = explanation(expect_calls, other, cases, lambda a, b: a + b, mistakes)
    assert said == "other(1, 2) gives 1; right is 3."
    assert "a function is wanted" in explanation(expect_calls, 3, cases, lambda a, b: a + b)


def test_a_mistake_may_be_right_elsewhere():
    """Only the cases that the reader got wrong have to look like the mistake."""
    cases = [(0,), (1,), (-1,)]

    def wrong(x: int) -> int:
        return x

    said = explanation(expect_calls, wrong, cases, abs, [(lambda x: x, "the sign is kept.")])
    assert said.startswith("the sign is kept.")


def test_an_answer_that_raises_is_like_a_mistake_that_raises():
    def wrong(x: int) -> float:
        return 1 / x

    def right(x: int) -> float:
        return 1 / x if x else 0.0

    mistakes = [(lambda x: [][1], "nothing is divided by zero.")]
    said = explanation(expect_calls, wrong, [(1,), (0,)], right, mistakes)
    assert said.startswith("nothing is divided by zero. wrong(0) gives the error ZeroDivision")


def test_an_error_is_named_with_its_module():
    def wrong(data: bytes) -> Any:
        return struct.unpack("<I", data)

    text = explanation(expect_calls, wrong, [(b"a",)], lambda data: 0)
    assert "gives the error struct.error: unpack requires" in text


def test_a_generator_counts_as_the_list_it_yields():
    def given(n: int) -> Iterator[int]:
        yield from range(n)

    expect_calls(given, [(0,), (9,)], lambda n: list(range(n)))
    assert "right is [0, 1]" in explanation(expect_calls, given, [(1,)], lambda n: [0, 1])


def test_an_answer_cannot_change_the_cases():
    cases = [([3, 1, 2],)]

    def greedy(values: list[int]) -> list[int]:
        values.sort()
        return values

    expect_calls(greedy, cases, sorted)
    assert cases == [([3, 1, 2],)]


def test_an_iterator_without_end_is_cut():
    def endless(n: int) -> Iterator[int]:
        while True:
            yield n

    assert "right is [1]" in explanation(expect_calls, endless, [(1,)], lambda n: [n])


def test_an_answer_that_leaves_python(capsys: pytest.CaptureFixture[str]):
    said = explanation(expect_calls, lambda: sys.exit(3), [()], lambda: 1)
    assert "the error SystemExit: 3" in said
    assert "stop with SystemExit" in verdict(lambda answer: answer(), lambda: sys.exit(3))


def test_the_verdict_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]):
    def chatty() -> None:
        print("." * 100_000, end="")

    Exercise("99.1", "A title", "code", 1, 1, lambda answer: answer() or "Yes.")(chatty)
    dots, line = capsys.readouterr().out.splitlines()
    assert dots == "." * 10_000
    assert line == "99.1 solved. Yes."


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        ([1, 2], (1, 2)),
        (np.array([1, 2]), [1, 2]),
        (float("nan"), float("nan")),
        ({"a": [1]}, {"a": (1,)}),
        (None, None),
    ],
)
def test_same(a: Any, b: Any):
    assert same(a, b)
    assert same(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 2),
        (1, True),
        ("1", 1),
        (b"a", "a"),
        ([1], [1, 1]),
        (np.zeros((2, 1)), np.zeros(2)),
        (float("nan"), 0.0),
        ({"a": 1}, {"b": 1}),
        (None, 0),
        ([0.5], [0.5 + 1e-9]),
        (2**64 - 1, 2**64 - 2),
        (np.array(["a"]), ["a"]),
    ],
)
def test_different(a: Any, b: Any):
    assert not same(a, b)
    assert not same(b, a)


def test_shown_is_short_and_one_line():
    assert shown(np.arange(10000.0).reshape(100, 100)).endswith("of shape (100, 100)")
    assert "\n" not in shown("a\nb")
    assert len(shown("x" * 1000)) == 100
    assert shown(list(range(1000))) == "[0, 1, 2, ..., 997, 998, 999] of length 1000"
    assert shown(1 / 3) == "0.333333"


def test_lessons_have_exercises():
    assert [each.number for each in exercises.of("00")] == ["00.1", "00.2", "00.3"]
    with pytest.raises(LlambdaError, match="lesson 99 has no exercises"):
        exercises.of("99")


# ---------------------------------------------------------------- the ledger


def test_the_ledger_keeps_values(home: Path):
    assert ledger.recall("rung.tiny.naive") is None
    ledger.record("rung.tiny.naive", {"decode": 1.5})
    assert ledger.recall("rung.tiny.naive") == {"decode": 1.5}
    ledger.record("rung.tiny.naive", 2)
    assert ledger.recall("rung.tiny.naive") == 2
    assert ledger.names("rung.") == ["rung.tiny.naive"]
    assert ledger.names("guess.") == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "null", '"x"', "\xff", '{"value": 3}', '{"value": 3, "machine": "another"}'],
)
def test_a_damaged_or_foreign_entry_counts_as_missing(home: Path, text: str):
    ledger.record("speed", 1)
    (home / "ledger" / "speed.json").write_bytes(text.encode("latin-1"))
    assert ledger.recall("speed") is None
    ledger.record("speed", 2)
    assert ledger.recall("speed") == 2


def test_a_folder_in_place_of_an_entry_is_survived(home: Path):
    (home / "ledger" / "speed.json").mkdir(parents=True)
    assert ledger.recall("speed") is None


def test_what_cannot_be_kept_stops_nobody(home: Path, capsys: pytest.CaptureFixture[str]):
    (home / "ledger").touch()  # a file in the folder's place
    ledger.record("speed", 1)
    assert ledger.recall("speed") is None
    predictions.predict("00.ceiling", "tokens/s", 5)
    predictions.outcome("00.ceiling", "tokens/s", 4)
    assert capsys.readouterr().out.splitlines() == [
        "your guess for tokens/s is not kept, since the data cache cannot be written: 5",
        "tokens/s: 4",
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_place_of_an_entry_is_not_waited_for(home: Path):
    (home / "ledger").mkdir()
    os.mkfifo(home / "ledger" / "speed.json")
    assert ledger.recall("speed") is None


@pytest.mark.parametrize("value", ["x", None, True, [1], float("inf"), float("nan"), 10**400])
def test_what_is_no_finite_number(value: object):
    assert ledger.as_number(value) is None


@pytest.mark.parametrize("value", [3, 2.5, np.int64(3), np.float32(0.5)])
def test_what_is_a_finite_number(value: float):
    assert ledger.as_number(value) == value
    assert type(ledger.as_number(value)) is float


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b"])
def test_a_bad_name_of_an_entry(home: Path, name: str):
    with pytest.raises(LlambdaError, match="no name"):
        ledger.record(name, 1)


# ---------------------------------------------------------------- the broken engine of lesson 04


def test_the_broken_engine_goes_wrong_where_lesson_04_says():
    with llambda.load("tiny") as model:
        config, ids = model.config, model.tokenizer.encode("The for statement is used to")
        engines = NaiveEngine(config, model.weights), MysteryEngine(config, model.weights)
    right, broken = (trace_engine(engine, ids) for engine in engines)
    found = first_divergence(broken, right, config)
    assert (found.layer, found.operation, found.position) == (0, "attn_heads", 1)
    wrong = np.abs(broken["logits"] - right["logits"]).max(axis=1) > 0.1
    assert wrong.tolist() == [False] + [True] * 6


# ---------------------------------------------------------------- predictions


def test_guesses_and_outcomes(home: Path, capsys: pytest.CaptureFixture[str]):
    predictions.predict("00.ceiling", "tokens/s", ...)
    predictions.predict("00.ceiling", "tokens/s", "many")
    predictions.predict("00.ceiling", "tokens/s", True)
    assert ledger.names("guess.") == []
    predictions.outcome("00.threads", "bandwidth ratio", 1.85)
    predictions.predict("00.ceiling", "tokens/s", 500)
    predictions.outcome("00.ceiling", "tokens/s", 250)
    assert capsys.readouterr().out.splitlines() == [
        "no guess yet: write a number in place of the dots, if you like",
        "a guess is a number, and 'many' is none",
        "a guess is a number, and True is none",
        "bandwidth ratio: 1.85",
        "your guess for tokens/s is noted: 500",
        "tokens/s: 250; your guess was 500, 2 times that",
    ]
    assert predictions.table().splitlines()[2:] == [
        "| 00 | tokens/s | 500 | 250 | 2 |",
        "| 00 | bandwidth ratio | none | 1.85 |  |",
    ]


@pytest.mark.parametrize("guess", [10**400, float("nan"), "many"])
def test_a_guess_that_is_no_number_is_not_kept(home: Path, guess: object):
    predictions.predict("00.ceiling", "tokens/s", guess)
    assert ledger.names("guess.") == []
    predictions.outcome("00.ceiling", "tokens/s", np.float32(2))
    assert "| none | 2 |" in predictions.table()


def test_the_table_survives_a_damaged_entry(home: Path):
    predictions.outcome("00.ceiling", "tokens/s", 250)
    (home / "ledger" / "outcome.00.ceiling.json").write_text("{")
    assert predictions.table().count("\n") == 1


# ---------------------------------------------------------------- sources and pictures


def test_the_source_of_a_finished_form():
    place, text = sources.source(KVCache)
    assert place.startswith("llambda/cache.py, line ")
    assert text.startswith("class KVCache")
    assert sources.source(cache)[0] == "llambda/cache.py"
    place, text = sources.source(KVCache.__init__)
    assert text.startswith("def __init__")
    assert "\n    " in text


class Decorated:
    @property
    def as_property(self) -> None: ...

    @cached_property
    def as_cached_property(self) -> None: ...

    @staticmethod
    def as_static_method() -> None: ...

    @classmethod
    def as_class_method(cls) -> None: ...


@contextmanager
def as_context() -> Iterator[None]:
    yield


@njit(nogil=True)
def as_compiled(x: int) -> int:
    return x


@contextmanager
@lru_cache
def as_both() -> Iterator[None]:
    yield


as_partial = partial(as_context)


@pytest.mark.parametrize(
    "thing",
    [
        *(Decorated.__dict__[name] for name in vars(Decorated) if name.startswith("as_")),
        Decorated.as_class_method,
        as_context,
        as_compiled,
        as_both,
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_decorators_hide_no_source(thing: Any, monkeypatch: pytest.MonkeyPatch):
    """What is shown is this file's, and not that of whoever wrote the decorator."""
    monkeypatch.setattr(sources, "PACKAGE", Path(__file__).parent)
    place, text = sources.source(thing)
    assert re.fullmatch(r"tests/test_course\.py, line \d+", place)
    assert text.startswith("@")
    assert re.search(r"\ndef as_", text)


def test_a_partial_is_shown_as_what_it_calls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "PACKAGE", Path(__file__).parent)
    assert sources.source(as_partial) == sources.source(as_context)


def test_decorated_things_of_the_package():
    assert "@contextmanager\ndef atomic_write" in sources.source(paths.atomic_write)[1]
    place, text = sources.source(fma)
    assert place.startswith("llambda/simd/arithmetic.py, line ")
    assert "def fma(" in text


def test_a_c_function_is_shown_as_it_is_written():
    place, text = sources.source(forward)
    assert place.startswith("llambda/engines/phases.py, line ")
    assert text.startswith("@foreign\ndef forward(")


@pytest.mark.parametrize("thing", [len, np.mean, json, 3, "text", stub])
def test_what_is_not_of_the_package_is_not_shown(thing: Any):
    with pytest.raises(LlambdaError, match=r"is not written in llambda\. In a notebook,"):
        sources.source(thing)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that would have been displayed."""
    figures: list[Any] = []
    for module in (picture, progress, roofs):
        monkeypatch.setattr(module, "finish", figures.append)
    yield figures
    for figure in figures:
        matplotlib.pyplot.close(figure)


@pytest.mark.parametrize("lesson", picture.LESSONS)
def test_the_engine_is_lit_where_a_lesson_builds(lesson: str, drawn: list[Any]):
    picture.engine_picture(lesson)
    (axes,) = drawn[0].axes
    lit = {text.get_text() for text in axes.texts if text.get_weight() == "bold"}
    step, parts = picture.LESSONS[lesson]
    number = picture.STEPS.index(step) + 1
    assert lit - {""} == {f"{number}  {step}"} | {picture.PARTS[part][0] for part in parts} - {""}


# ---------------------------------------------------------------- the ladder so far


@pytest.fixture
def measured(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rungs that had to be measured, of a model whose speeds are made up."""
    rungs: list[str] = []

    def run(model: str, rung: str) -> Rung:
        rungs.append(rung)
        return Rung(rung, 1, 100.0, 10.0 * (1 + list(RUNGS).index(rung)))

    monkeypatch.setattr(progress, "run", run)
    monkeypatch.setattr(progress, "bandwidth_curve", lambda threads: {1: 2e9, 2: 3e9})
    return rungs


def test_missing_rungs_are_measured_once(measured: list[str], drawn: list[Any]):
    first = progress.ladder_so_far("naive")
    both = progress.ladder_so_far("cached")
    assert measured == ["naive", "cached"]
    assert both == {"naive": 10.0, "cached": 20.0, "ceiling": first["ceiling"]}
    with llambda.load("tiny") as model:
        nbytes = sum(tensor.nbytes for tensor in model.weights.unique())
    assert first["ceiling"] == 3e9 / nbytes
    (axes,) = drawn[1].axes
    assert [line.get_xdata()[0] for line in axes.lines] == [10.0, 20.0, first["ceiling"]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["naive", "cached"]


def test_a_damaged_speed_is_measured_again(measured: list[str], drawn: list[Any], home: Path):
    progress.ladder_so_far("naive")
    file = home / "ledger" / "rung.tiny.naive.json"
    entry = json.loads(file.read_text())
    file.write_text(json.dumps(entry | {"value": "fast"}))
    progress.ladder_so_far("naive")
    assert measured == ["naive", "naive"]


@pytest.fixture
def rooms(measured: list[str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads whose peak had to be measured: 50 billion operations a second each."""
    threads: list[int] = []
    monkeypatch.setattr(roofs, "fma_peak", lambda n: threads.append(n) or 50e9 * n)
    monkeypatch.setattr(roofs, "this_machine", lambda: SimpleNamespace(default_threads=2))
    return threads


def test_rungs_on_the_roof(rooms: list[int], drawn: list[Any]):
    places = roofs.roof_so_far("fused")
    assert list(places) == list(RUNGS)
    assert rooms == [1, 2]
    with llambda.load("tiny") as model:
        config, weights = model.config, model.weights
        seen = len(model.tokenizer.encode(progress.PROMPT)) + progress.NEW_TOKENS // 2 + 1
    floats, stored = float32_bytes(weights), stored_bytes(weights)
    scalar, fused, naive = places["scalar"], places["fused"], places["naive"]
    # A row of the embedding, which is the head too, is counted twice; attention's bytes are few.
    kv = cache_bytes(config, seen)
    flops = scalar.flops / 30.0
    assert flops / scalar.intensity == pytest.approx(floats + kv, abs=4 * config.dim)
    assert fused.flops == flops * 70.0
    assert flops / fused.intensity == pytest.approx(stored + kv, abs=4 * config.dim)
    again = total(costs(config, weights.map(lambda t: 4 * t.size), 0, tokens=seen).values())
    assert naive.flops == 10.0 * again.flops  # all positions, for each token
    assert scalar.roof == 2e9 * scalar.intensity  # of one thread
    assert fused.roof == 3e9 * fused.intensity  # of all
    assert fused.share == fused.flops / fused.roof
    assert roofs.roof_so_far("cached").keys() == {"naive", "cached"}
    assert rooms == [1, 2]  # kept


def test_words_on_the_roof_stand_apart():
    assert roofs.apart({"c": 200.0, "a": 10.0, "b": 11.0}, 1.5) == {"a": 10, "b": 15, "c": 200}
    assert list(roofs.apart({"b": 1.0, "a": 1.0, "c": 1.0}, 2.0).values()) == [1, 2, 4]


def test_a_damaged_peak_is_measured_again(rooms: list[int], home: Path):
    for damaged in ("fast", {}, {"1": 0}, {"1": None}):
        ledger.record("peak", damaged)
        assert roofs.peak() == {"1": 50e9, "2": 100e9}
    assert rooms == [1, 2] * 4


def assert_ceiling_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token a second for each byte that is stored for a weight, a tied one counted once."""
    with llambda.load(name) as model:
        nbytes = sum(tensor.nbytes for tensor in model.weights.unique())
    monkeypatch.setattr(progress, "bandwidth", lambda: {"1": 1.0 * nbytes, "2": 3.0 * nbytes})
    monkeypatch.delattr(progress, "load")  # a whole model is more than the sum needs
    assert progress.ceiling(name) == 3.0


def test_the_ceiling_of_the_tiny_model(monkeypatch: pytest.MonkeyPatch):
    assert_ceiling_of("tiny", monkeypatch)


def test_the_ceiling_of_the_real_model(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert_ceiling_of("smollm2", monkeypatch)
