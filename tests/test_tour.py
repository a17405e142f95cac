"""`llambda tour`: that its checks check, that its picture shows what was measured.

The model is a small one with random weights and answers of the PyTorch reference, laid out as
data/ is; at the end stands the real one.
"""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedEngine, saying, write_small

import llambda
from llambda import ladder, model, tour
from llambda.engines import RUNGS
from llambda.errors import FileAccessError, LlambdaError
from llambda.ladder import Rung, measure
from llambda.oracle import Oracle
from llambda.tour import TOLERANCE, Check, check_rung, draw

PROMPTS = (tour.PROMPT, "A list is", "on")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of data/ that the tour reads, about a small model."""
    folder = tmp_path_factory.mktemp("data")
    write_small(folder / "tiny.gguf", sizes={"context_length": 128})
    with llambda.load(folder / "tiny.gguf") as small:
        oracle = Oracle(small.config, small.weights)
        cases = []
        for prompt in PROMPTS:
            ids = small.tokenizer.encode(prompt)
            whole = list(ids)
            for _ in range(12):
                whole.append(int(oracle.logits(whole)[-1].argmax()))
            assert not small.tokenizer.stop_ids & set(whole)
            cases.append({"prompt": prompt, "ids": ids, "continuation_ids": whole[len(ids) :]})
        long_ids = np.arange(5, 37)
        long_logits = oracle.logits(long_ids.tolist())
    (folder / "tiny_golden.json").write_text(json.dumps({"model": "tiny", "cases": cases}))
    np.savez(folder / "tiny_golden.npz", long_ids=long_ids, long_logits=long_logits)
    return folder


@pytest.fixture
def data(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in place of data/; the data cache is empty."""
    folder = Path(shutil.copytree(golden, tmp_path / "data"))
    for module in (model, tour):
        monkeypatch.setattr(module, "data_dir", lambda: folder)
    monkeypatch.setattr(tour, "read_bandwidth", lambda threads, nbytes: nbytes * 3000.0)
    monkeypatch.setattr(ladder, "REPEATS", 1)
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path / "home"))
    return folder


# ---------------------------------------------------------------- the whole


def test_the_tour(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tour.tour()
    out = capsys.readouterr().out
    with llambda.load("tiny") as small:
        text = small.generate(tour.PROMPT, max_tokens=64, temperature=0).text
    assert f"continues {tour.PROMPT!r}:\n\n{tour.PROMPT}{text}\n" in out
    for name in RUNGS:
        (line,) = [line for line in out.splitlines() if line.startswith(f"  {name} ")]
        assert line.endswith("36 of 36 equal")
    assert "read all 0.1 MB of weights 3,000 times a second" in out
    picture = tmp_path / "home" / "tour.svg"
    assert f"The picture: {picture}" in out
    assert "llambda fetch smollm2" in out
    bars(picture.read_text())


def test_the_picture_goes_where_it_is_wanted(data: Path, tmp_path: Path):
    tour.tour(tmp_path / "picture.svg")
    bars((tmp_path / "picture.svg").read_text())
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("first", [True, False])
def test_it_says_that_it_compiles_the_first_time(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], first: bool
):
    monkeypatch.setattr(tour, "first_time", lambda: first)
    monkeypatch.setattr(tour, "measure", lambda engine, *_: Rung(engine.name, 1, 1.0, 1.0))
    tour.tour()
    assert ("The first time, kernels are compiled" in capsys.readouterr().out) == first


def test_a_picture_that_cannot_be_written(data: Path, tmp_path: Path):
    with pytest.raises(FileAccessError, match="no such file or folder"):
        tour.tour(tmp_path / "gone" / "picture.svg")


# ---------------------------------------------------------------- planted mistakes


MORE = 2.1e-3  # than is allowed for, by more than our own rounding


def spoil_a_logit(data: Path) -> None:
    recorded = dict(np.load(data / "tiny_golden.npz"))
    recorded["long_logits"][17, 40] += MORE
    np.savez(data / "tiny_golden.npz", **recorded)


def spoil_a_token(data: Path) -> None:
    answers = json.loads((data / "tiny_golden.json").read_text())
    answers["cases"][2]["continuation_ids"][-1] ^= 1
    (data / "tiny_golden.json").write_text(json.dumps(answers))


def ask_for_more(data: Path) -> None:
    answers = json.loads((data / "tiny_golden.json").read_text())
    with llambda.load(data / "tiny.gguf") as small:
        all_there_is = small.generate(answers["cases"][0]["ids"], max_tokens=10**6, temperature=0)
        answers["cases"][0]["continuation_ids"] = [*all_there_is.ids, 7]
    (data / "tiny_golden.json").write_text(json.dumps(answers))


@pytest.mark.parametrize("spoil", [spoil_a_logit, spoil_a_token, ask_for_more])
def test_other_answers_than_pytorchs_fail(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any
):
    spoil(data)
    with pytest.raises(LlambdaError, match=f"{', '.join(RUNGS)} did not give PyTorch's answers"):
        tour.tour(tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").exists()  # what was measured is shown all the same


def test_only_the_rung_that_fails_is_named(data: Path, monkeypatch: pytest.MonkeyPatch):
    turn = RUNGS["naive"].evaluate
    monkeypatch.setattr(
        RUNGS["naive"],
        "evaluate",
        lambda self, ids, start, *rest: turn(self, ids, start + (self.name == "naive"), *rest),
    )
    with pytest.raises(LlambdaError, match=r"^naive did not give"):
        tour.tour()


def test_check_rung(data: Path):
    with llambda.load("tiny") as small:
        check = check_rung(small)
        assert check == Check(check.difference, 36, 36)
        assert 0 < check.difference < 1e-4
        spoil_a_logit(data)
        assert check_rung(small).difference == pytest.approx(MORE, abs=1e-4)
        spoil_a_token(data)
        assert check_rung(small).same_tokens == 35


def test_what_passes():
    assert Check(TOLERANCE, 5, 5).passed
    assert not Check(TOLERANCE * 1.01, 5, 5).passed
    assert not Check(0, 4, 5).passed
    assert not Check(float("nan"), 5, 5).passed


# ---------------------------------------------------------------- the picture


def bars(svg: str) -> dict[str, float]:
    """The length of each bar, by the name beside it."""
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    background, *rectangles = root.findall(f"{SVG}rect")
    names = [text.text for text in root.findall(f"{SVG}text") if text.get("text-anchor") == "end"]
    assert len(names) == len(rectangles) + 1  # and the ceiling's
    width = float(background.get("width"))
    for rectangle in rectangles:
        assert 0 < float(rectangle.get("width")) < width - float(rectangle.get("x")) - 60
    return {
        name: float(rectangle.get("width"))
        for name, rectangle in zip(names, rectangles, strict=False)
    }


@pytest.mark.parametrize("ceiling", [0.5, 10.0, 1000.0, 123456.0])
@pytest.mark.parametrize("speeds", [(10, 1000), (1000, 1000), (0.3, 7), (90_000, 110_000)])
def test_the_picture_shows_the_speeds(speeds: tuple[float, float], ceiling: float):
    rungs = [Rung(f"rung{i}", 1, 5.0, float(speed)) for i, speed in enumerate(speeds)]
    svg = draw(rungs, ceiling)
    lengths = list(bars(svg).values())
    assert list(bars(svg)) == ["rung0", "rung1"]
    assert (lengths[0] < lengths[1]) == (speeds[0] < speeds[1])
    assert (lengths[0] == lengths[1]) == (speeds[0] == speeds[1])
    assert f"{speeds[1]:,.0f}<" in svg
    assert f"ceiling of one core: {ceiling:,.0f}<" in svg
    root = ET.fromstring(svg)
    line = next(line for line in root.findall(f"{SVG}line") if line.get("stroke-dasharray"))
    assert 110 < float(line.get("x1")) < 720


def test_a_hundredfold_is_twice_a_tenfold():
    short, middle, long = bars(
        draw([Rung(str(i), 1, 1.0, speed) for i, speed in enumerate((20.0, 200.0, 20000.0))], 1e5)
    ).values()
    assert long - middle == pytest.approx(2 * (middle - short), abs=0.2)


# ---------------------------------------------------------------- measuring


def test_measure_takes_the_median_without_the_first(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(ladder.time, "perf_counter", lambda: clock[0])
    speak = saying([1], 5, prompt_tokens=3)
    prefills, steps = iter([100.0, 4.0, 2.0, 3.0]), iter([50.0, 1.0, 0.25, 0.5])

    def answer(ids: list[int]) -> np.ndarray:
        if len(ids) == 3:
            clock[0] += next(prefills)
            clock.append(next(steps))
        else:
            clock[0] += clock[-1]
        return speak(ids)

    engine = ScriptedEngine(answer, 5)
    rung = measure(engine, [0, 0, 0], new_tokens=8, repeats=3)
    assert rung == Rung("scripted", 3, prefill_tok_s=3 / 3, decode_tok_s=8 / (8 * 0.5))
    assert len(engine.calls) == 4 * 9
    assert engine.calls[:3] == [(0, [0, 0, 0]), (3, [1]), (4, [1])]


# ---------------------------------------------------------------- the real thing


def test_the_tour_through_the_model_that_ships(
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ladder, "REPEATS", 1)
    tour.tour(tmp_path / "tour.svg")
    assert list(bars((tmp_path / "tour.svg").read_text())) == list(RUNGS)
    out = capsys.readouterr().out
    assert out.count("144 of 144 equal\n") == len(RUNGS)
    with llambda.load(tiny_path) as tiny:
        assert tiny.generate(tour.PROMPT, max_tokens=64, temperature=0).text in out
