"""The ladder: engines in turn on a made clock, the two that are not ours, the table and picture.

Also the script of the goals, as far as it needs no clock.
"""

import ctypes
import importlib
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import assert_one_clear_line, run
from models import VARIANTS, build, mutant, random_ids
from scripted import ScriptedEngine, saying, write_small

from llambda import cli, ladder, modelfile, race, rival, streaming
from llambda.cache import cache_bytes
from llambda.engines import CachedEngine, NaiveEngine
from llambda.engines.fused import FusedEngine
from llambda.errors import InputError, LlambdaError, MissingPackageError, ResourceError
from llambda.ladder import Ladder, LadderRung, bytes_per_token
from llambda.ladder_report import draw, table
from llambda.oracle import Oracle, TorchEngine
from llambda.race import Race, Run, Spread, Task, run_once, spread, task_for
from llambda.rival import LlamaCpp
from llambda.streaming import Stream
from llambda.tensorfile import TensorFile

SVG = "{http://www.w3.org/2000/svg}"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# ---------------------------------------------------------------- in turn


class Track:
    """A clock, and engines that move it: `calls` tells who ran when.

    slowness : what everything takes longer by, from one round to the next
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        self.calls: list[tuple[str, int]] = []  # (engine, tokens)
        self.slowness = 1.0
        monkeypatch.setattr(race, "time", self)

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def engine(self, name: str, prefill_s: float, decode_s: float, context: int = 600) -> Any:
        """Seconds a token, of several and of one."""

        class Timed(ScriptedEngine):
            def forward(timed, state, ids, *more):  # noqa: N805
                self.calls.append((name, len(ids)))
                each = prefill_s if len(ids) > 1 else decode_s
                self.now += len(ids) * each * self.slowness
                return super().forward(state, ids, *more)

        made = Timed(saying([1], 5), 5)
        made.config.context_length = context
        return made


@pytest.fixture
def track(monkeypatch: pytest.MonkeyPatch) -> Track:
    return Track(monkeypatch)


IDS = [0] * 512


def test_a_run_is_a_prompt_and_then_tokens_after_a_short_one(track: Track):
    engine = track.engine("a", 0.01, 0.5)
    assert run_once(engine, IDS, Task(100, 4, 1)) == pytest.approx((100, 2))
    assert engine.calls == [(0, IDS[:100]), (0, IDS[:8]), (8, [1]), (9, [1]), (10, [1]), (11, [1])]


def test_engines_run_in_turn(track: Track):
    engines = {name: track.engine(name, 1e-3, 1e-2) for name in "abc"}
    measured, said = [], []

    def bandwidth() -> float:
        measured.append(len(track.calls))
        return 1e9

    race.race(engines, IDS, bandwidth, rounds=3, say=said.append)
    prompts = [name for name, tokens in track.calls[measured[0] :] if tokens == 512]
    assert prompts == list("abcabcabc")
    assert len(measured) == 3
    assert {track.calls[at][0] for at in measured} == {"a"}  # before the first of each round
    assert said[-1] == "round 3 of 3"


def test_what_slows_all_down_leaves_the_ratio(track: Track):
    """The machine gets slower with every round; one engine stays four times as fast."""
    engines = {"slow": track.engine("slow", 4e-3, 4e-2), "fast": track.engine("fast", 1e-3, 1e-2)}

    def bandwidth() -> float:
        track.slowness *= 2
        return 1e9 / track.slowness

    result = race.race(engines, IDS, bandwidth, rounds=5)
    speeds = list(result.speeds("fast", "decode").values())
    assert speeds == pytest.approx([50, 25, 12.5, 6.25, 3.125])
    assert result.speed("fast", "decode") == pytest.approx(12.5)
    assert result.ratio("fast", "slow", "decode") == pytest.approx((4, 4, 4))
    assert result.ratio("slow", "fast", "prefill") == pytest.approx((0.25, 0.25, 0.25))
    assert result.share("fast", 2e6) == pytest.approx((0.2, 0.2, 0.2))


def uneven() -> Race:
    """Three rounds, of which the slow one took part in the first two."""
    runs = {
        "fast": {0: Run(10, 100), 1: Run(20, 300), 2: Run(60, 700)},
        "slow": {0: Run(10, 50), 1: Run(5, 100)},
    }
    return Race(runs=runs, bandwidth=[1e9, 2e9, 1e9])


def pairs_agree(result: Race) -> bool:
    return (
        result.ratio("fast", "slow", "decode") == (2, 2.5, 3)
        and result.ratio("slow", "fast", "decode") == (1 / 3, (1 / 3 + 1 / 2) / 2, 1 / 2)
        and result.ratio("fast", "slow", "prefill") == (1, 2.5, 4)
        and result.share("slow", 1e6) == (0.05, 0.05, 0.05)
        and result.share("fast", 1e6) == (0.1, 0.15, 0.7)
    )


def test_pairs_are_of_the_same_round():
    assert pairs_agree(uneven())


@pytest.mark.parametrize(
    ("method", "edit"),
    [
        ("ratio", ("mine[number] / others[number]", "mine[number] / max(others.values())")),
        ("ratio", ("mine[number] / others[number]", "others[number] / mine[number]")),
        ("share", ("self.bandwidth[number]", "max(self.bandwidth)")),
    ],
)
def test_pairs_of_different_rounds_are_noticed(
    method: str, edit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Race, method, mutant(getattr(Race, method), edit))
    assert not pairs_agree(uneven())


@pytest.mark.parametrize(
    ("prefill_s", "decode_s", "context", "task"),
    [
        (1e-3, 1e-2, 600, Task(512, 32, 7)),
        (1e-2, 1e-1, 600, Task(512, 32, 7)),  # 5.1 + 3.2 s
        (0.125, 0.125, 600, Task(16, 16, 3)),  # 64 s: two seconds of each
        (0.125, 1e-3, 600, Task(16, 32, 3)),
        (2.0, 9.0, 600, Task(8, 2, 3)),
        (1e-3, 1e-2, 24, Task(24, 16, 7)),  # a model of few positions
    ],
)
def test_a_slow_engine_gets_fewer_tokens(
    prefill_s: float, decode_s: float, context: int, task: Task, track: Track
):
    engine = track.engine("a", prefill_s, decode_s, context)
    assert task_for(engine, IDS[:context], rounds=7) == task
    assert task_for(engine, IDS[:context], rounds=2).rounds == 2


def test_a_spread_of_an_even_number():
    assert spread([3.0, 1.0, 2.0, 10.0]) == Spread(1, 2.5, 10)


# ---------------------------------------------------------------- how fast memory is


@pytest.mark.parametrize("threads", [1, 3])
def test_a_stream_multiplies_all_rows_in_every_thread(threads: int):
    rows = (1 << 20) // 4 // streaming.COLS
    with Stream(threads, nbytes=1 << 20) as stream:
        for product, size in streaming.FORMS:
            stream._out.fill(-1)
            assert stream._rate(product, size) > 0
            assert (stream._out[: rows * 4 // size] != -1).all()
            if size == 4:
                assert (stream._out == [streaming.COLS] * rows + [-1] * rows).all()


def test_a_streams_rate_is_bytes_over_the_best_of_its_passes(monkeypatch: pytest.MonkeyPatch):
    times = iter([0.0, 4.0, 4.0, 6.0, 6.0, 9.0])
    with Stream(1, nbytes=1 << 20) as stream:
        monkeypatch.setattr(streaming, "time", SimpleNamespace(perf_counter=lambda: next(times)))
        product, size = streaming.FORMS[0]
        assert stream._rate(product, size) == (1 << 20) / 2


def test_a_stream_needs_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "available_memory", lambda: 500 << 20)
    with pytest.raises(ResourceError, match="268 MB are needed"):
        Stream(1)


# ---------------------------------------------------------------- PyTorch in a hurry


def torch_logits(variant: str, sizes: Sequence[int]) -> np.ndarray:
    model = build(variant)
    ids = random_ids(variant, sum(sizes))
    engine = TorchEngine(model.config, model.weights)
    state = engine.new_state(len(ids))
    ends = np.cumsum(sizes)
    chunks = [ids[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    return np.concatenate([engine.forward(state, chunk, all_logits=True) for chunk in chunks])


def torch_is_right(variant: str) -> bool:
    model = build(variant)
    expected = Oracle(model.config, model.weights).logits(random_ids(variant, 21))
    cuts = [[21], [1] * 21, [9, 1, 1, 10]]
    return all(np.abs(torch_logits(variant, cut) - expected).max() <= 1e-5 for cut in cuts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_pytorch_with_a_cache_equals_the_reference(variant: str):
    assert torch_is_right(variant)


@pytest.mark.parametrize(
    ("method", "edit"),
    [
        ("_block", (".tril(start)", ".tril()")),
        ("_block", ("is_causal=n == end", "is_causal=n > 1")),
        ("_block", ("start:end] = v", ":n] = v")),
        ("_evaluate", ("arange(state.length, state.length + len(ids)", "arange(len(ids)")),
    ],
)
def test_a_mistake_with_the_cache_is_noticed(
    method: str, edit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(TorchEngine, method, mutant(getattr(TorchEngine, method), edit))
    try:
        assert not torch_is_right("grouped")
    except RuntimeError as error:  # a mask beside is_causal, which PyTorch refuses
        assert "is_causal" in str(error)


def test_pytorch_gives_the_last_logits_and_can_be_cut():
    model = build("grouped")
    ids = random_ids("grouped", 12)
    engine = TorchEngine(model.config, model.weights)
    state = engine.new_state(12)
    every = engine.forward(state, ids, all_logits=True).copy()
    state.truncate(7)
    last = engine.forward(state, ids[7:])
    assert last.shape == (model.config.vocab_size,)
    assert np.abs(last - every[-1]).max() <= 1e-5
    with pytest.raises(InputError):
        engine.forward(state, [1])  # it is full
    assert engine.weight_bytes(model.weights) == sum(4 * t.size for t in model.weights.unique())


# ---------------------------------------------------------------- llama.cpp


class Library:
    """What of llama.cpp's functions is used, keeping a record; logits are the last token's."""

    def __init__(self, vocab_size: int):
        self.rows = np.zeros(vocab_size, np.float32)
        self.record: list[tuple[Any, ...]] = []
        self.status = 0
        self.settings = SimpleNamespace(n_ctx=0, n_batch=0, n_threads=0, n_threads_batch=0)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.record.append((name.removeprefix("llama_"), *arguments))
            return name

        return call

    def llama_context_default_params(self) -> Any:
        return self.settings

    def llama_batch_get_one(self, tokens: Any, count: int) -> list[int]:
        return list(tokens)[:count]

    def llama_decode(self, context: Any, batch: list[int]) -> int:
        self.record.append(("decode", batch))
        self.rows[:] = 0
        self.rows[batch[-1]] = 1
        return self.status

    def llama_get_logits_ith(self, context: Any, number: int) -> Any:
        assert number == -1
        return self.rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(build("grouped").config.vocab_size)
    monkeypatch.setattr(rival, "library", lambda: made)
    return made


def told(library: Library, *names: str) -> list[tuple[Any, ...]]:
    """Calls of these functions, without the pointers that they all have first."""
    return [(c[0], *c[2:]) if c[0] != "decode" else c for c in library.record if c[0] in names]


def test_llama_cpp_is_told_what_to_evaluate(library: Library, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rival, "BATCH", 4)
    engine = LlamaCpp(build("grouped").config, Path("model.gguf"), threads=3)
    state = engine.new_state(10)
    assert engine.forward(state, [1, 2, 3, 4, 5, 6]).argmax() == 6
    assert engine.forward(state, [7, 8], all_logits=True).argmax(-1).tolist() == [7, 8]
    state.truncate(3)
    assert engine.forward(state, [9]).argmax() == 9
    assert state.ids == [1, 2, 3, 9]
    assert told(library, "memory_seq_rm", "decode") == [
        ("memory_seq_rm", -1, 0, -1),
        ("decode", [1, 2, 3, 4]),
        ("decode", [5, 6]),
        ("memory_seq_rm", -1, 6, -1),
        ("decode", [7]),
        ("decode", [8]),
        ("memory_seq_rm", -1, 3, -1),
        ("decode", [9]),
    ]
    settings = library.settings
    assert (settings.n_ctx, settings.n_batch) == (10, 4)
    assert (settings.n_threads, settings.n_threads_batch) == (3, 3)


def test_a_context_is_made_anew_only_to_grow(library: Library):
    engine = LlamaCpp(build("grouped").config, Path("model.gguf"))
    for context in (10, 5, 20):
        engine.new_state(context)
    engine.close()
    engine.close()
    seen = [
        call[0] for call in library.record if call[0] in ("init_from_model", "free", "model_free")
    ]
    assert seen == ["init_from_model", "free", "init_from_model", "free", "model_free"]
    assert len(told(library, "memory_clear")) == 3


def test_an_older_state_of_llama_cpp_is_refused(library: Library):
    engine = LlamaCpp(build("grouped").config, Path("model.gguf"))
    old = engine.new_state(10)
    engine.new_state(10)
    with pytest.raises(InputError, match="the newest"):
        engine.forward(old, [1])


def test_what_llama_cpp_cannot_do_is_an_error(library: Library, monkeypatch: pytest.MonkeyPatch):
    engine = LlamaCpp(build("grouped").config, Path("model.gguf"))
    state = engine.new_state(10)
    library.status = 1
    with pytest.raises(ResourceError, match="could not evaluate 2 tokens"):
        engine.forward(state, [1, 2])
    assert state.ids == []
    library.llama_init_from_model = lambda *arguments: None
    with pytest.raises(ResourceError, match="no memory for 99 positions"):
        engine.new_state(99)
    library.llama_model_load_from_file = lambda *arguments: None
    with pytest.raises(LlambdaError, match=r"model\.gguf: llama\.cpp cannot load"):
        LlamaCpp(build("grouped").config, Path("model.gguf"))


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_without_llama_cpp_there_is_a_clear_error(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    def refuse(name: str) -> ModuleType:
        raise error(name)

    monkeypatch.setattr(rival, "import_module", refuse)
    with pytest.raises(MissingPackageError, match="make bench"):
        rival.library.__wrapped__()


def test_llama_cpp_itself_is_near_the_reference(tiny_path: Path):
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    with modelfile.open(tiny_path) as file:
        config = modelfile.read_config(file)
        weights = modelfile.read_weights(file, config)
        ids = list(range(40, 60))
        engine = LlamaCpp(config, tiny_path)
        state = engine.new_state(20)
        logits = engine.forward(state, ids, all_logits=True)
        state.truncate(5)
        again = engine.forward(state, ids[5:], all_logits=True)
        engine.close()
        expected = Oracle(config, weights).logits(ids)
    assert (again == logits[5:]).all()
    assert np.abs(logits - expected).max() <= 0.1  # its cache is float16
    assert ladder.kl_divergence(expected, logits).max() <= 1e-3


# ---------------------------------------------------------------- bytes of a token


def test_bytes_are_those_that_each_engine_reads(library: Library):
    wide = build("wide")  # its embedding is its head
    matrices = sum(tensor.nbytes for tensor in wide.weights.unique())
    cached = CachedEngine(wide.config, wide.weights)
    kv = cache_bytes(wide.config, 10)
    assert bytes_per_token(cached, wide.weights, 9) == matrices + kv
    theirs = LlamaCpp(wide.config, Path("model.gguf"))
    assert bytes_per_token(theirs, wide.weights, 9) == matrices + kv // 2


def test_of_an_embedding_one_row_is_read_and_not_counted():
    grouped = build("grouped")
    matrices = sum(tensor.nbytes for tensor in grouped.weights.unique())
    engine = CachedEngine(grouped.config, grouped.weights)
    expected = matrices - grouped.weights.embed.nbytes + cache_bytes(grouped.config, 1)
    assert bytes_per_token(engine, grouped.weights, 0) == expected


@pytest.mark.real
def test_bytes_of_the_real_model(smollm2_path: Path):
    with modelfile.open(smollm2_path) as file:
        config = modelfile.read_config(file)
        weights = modelfile.read_weights(file, config)
        engines = {kind: object.__new__(kind) for kind in (NaiveEngine, FusedEngine)}
        for engine in engines.values():
            engine.config = config
        read = {kind: bytes_per_token(engine, weights, 0) for kind, engine in engines.items()}
    assert read[FusedEngine] == pytest.approx(96.5e6 + 46080, rel=1e-3)
    assert read[NaiveEngine] == pytest.approx(538e6, rel=1e-3)


# ---------------------------------------------------------------- the whole


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rungs, few tokens, a small array, and no llama.cpp."""
    monkeypatch.setattr(ladder, "RUNGS", {"naive": NaiveEngine, "cached": CachedEngine})
    monkeypatch.setattr(ladder, "PROMPT", 40)
    monkeypatch.setattr(ladder, "Stream", lambda threads: Stream(threads, 1 << 20))

    def missing() -> Any:
        raise MissingPackageError("llama-cpp-python is not here")

    monkeypatch.setattr(rival, "library", missing)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_small(tmp_path / "small.gguf", sizes={"context_length": 128})


def test_the_ladder_of_a_small_model(quick: None, small: Path):
    said: list[str] = []
    result = ladder.ladder(small, threads=2, rounds=2, say=said.append)
    assert result.model == "small.gguf"
    assert [rung.name for rung in result.rungs] == ["naive", "cached", "pytorch"]
    assert [rung.threads for rung in result.rungs] == [1, 1, 2]
    assert result.notes == ("llama.cpp is left out: llama-cpp-python is not here",)
    assert result.bandwidth_gb_s > 0
    assert {"llambda", "python", "numpy", "torch"} <= set(result.versions)
    for rung in result.rungs:
        assert (rung.prompt_tokens, rung.new_tokens, rung.rounds) == (40, 32, 2)
        assert rung.prefill_tok_s > 0 and rung.decode_tok_s > 0
        assert rung.bandwidth_share > 0
        assert 0 <= rung.kl <= 1e-10 and rung.top1 == 1
        assert set(rung.ratios) == {"naive", "cached", "pytorch"} - {rung.name}
    there, back = result.rungs[0].ratios["cached"], result.rungs[1].ratios["naive"]
    for what in ("prefill", "decode"):
        assert there[what].low == pytest.approx(1 / back[what].high)
    assert {"loading naive", "naive is warm", "round 2 of 2", *result.notes} <= set(said)
    plain = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert list(plain) == ["machine", "versions", "model", "threads", "bandwidth_gb_s", "rungs",
                           "notes"]  # fmt: skip
    assert plain["rungs"][0]["name"] == "naive"


def test_without_pytorch_nothing_is_compared(
    quick: None, small: Path, monkeypatch: pytest.MonkeyPatch
):
    class Missing(TorchEngine):
        def __init__(self, *arguments: Any):
            raise MissingPackageError("PyTorch is not here")

    monkeypatch.setattr(ladder, "TorchEngine", Missing)
    result = ladder.ladder(small, rounds=1)
    assert [rung.name for rung in result.rungs] == ["naive", "cached"]
    assert {(rung.kl, rung.top1) for rung in result.rungs} == {(None, None)}
    assert result.notes[0] == "pytorch is left out: PyTorch is not here"
    assert " -       -" in table(result)


def test_what_has_no_room_is_left_out(quick: None, small: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(needed: int, path: Path) -> None:
        raise ResourceError("no room")

    monkeypatch.setattr(ladder, "check_memory", refuse)
    with pytest.raises(InputError, match="no rung can run this model"):
        ladder.ladder(small)


class Skewed(CachedEngine):
    """Wrong by a factor in its logits, or no numbers at all."""

    name = "skewed"
    factor = 1.5

    def forward(self, *arguments: Any, **more: Any) -> np.ndarray:
        return super().forward(*arguments, **more) * np.float32(self.factor)


def test_a_wrong_rung_shows(quick: None, small: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ladder, "RUNGS", {"cached": CachedEngine, "skewed": Skewed})
    right, wrong, _ = ladder.ladder(small, rounds=1).rungs
    assert wrong.kl > 1e-3 > right.kl
    assert wrong.top1 == 1  # a factor changes no order
    monkeypatch.setattr(Skewed, "factor", -1)
    _, wrong, _ = ladder.ladder(small, rounds=1).rungs
    assert wrong.top1 == 0
    monkeypatch.setattr(Skewed, "factor", np.nan)
    result = ladder.ladder(small, rounds=1)
    assert result.rungs[1].kl is None
    json.dumps(result.as_dict(), allow_nan=False)


def test_a_folder_is_nothing_for_llama_cpp(library: Library, tmp_path: Path):
    model = build("grouped")
    folder = TensorFile(tmp_path, {}, {}, {})
    make = ladder.makers(folder, model.config, model.weights, 1)["llama.cpp"]
    with pytest.raises(InputError, match="GGUF files only"):
        make()


# ---------------------------------------------------------------- table and picture


def rung(name: str, decode: float, **more: Any) -> LadderRung:
    given = {"threads": 2, "prefill_tok_s": 10 * decode, "decode_tok_s": decode}
    given |= {"prompt_tokens": 512, "new_tokens": 32, "rounds": 7, "bytes_per_token": 100_000_000}
    given |= {"bandwidth_share": decode / 200, "kl": 0.003, "top1": 0.95, "ratios": {}}
    return LadderRung(name, **given | more)


RATIOS = {"pytorch": {"prefill": Spread(2, 3, 4), "decode": Spread(8, 9, 10)}}
MADE = Ladder(
    machine={"model": "A <fast> CPU"},
    versions={},
    model="smollm2",
    threads=2,
    bandwidth_gb_s=20.0,
    rungs=(
        rung("naive", 2.0, bytes_per_token=500_000_000),
        rung("fused", 100.0, ratios=RATIOS),
        rung("pytorch", 10.0, bytes_per_token=500_000_000, kl=None, top1=None),
    ),
    notes=("llama.cpp is left out: not installed",),
)


def test_the_table():
    lines = table(MADE).splitlines()
    assert lines[0] == (
        "smollm2 on A <fast> CPU; our products read weights at 20.0 GB/s with 2 threads"
    )
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:6]}
    assert rows["fused"] == ["2", "1,000.0", "100.0", "100.0", "50.0%", "3.0e-03", "95.0%"]
    assert rows["pytorch"] == ["2", "100.0", "10.0", "500.0", "5.0%", "-", "-"]
    assert "How many times as fast fused is, pair by pair" in lines[7]
    assert lines[8].split() == ["pytorch", "decode", "9.00", "(8.00", "to", "10.00)"]
    assert lines[9].split() == ["prefill", "3.00", "(2.00", "to", "4.00)"]
    assert lines[-1] == MADE.notes[0]
    assert len({len(line) for line in lines[2:6]}) == 1


def shapes(svg: str) -> tuple[list[dict[str, str]], list[dict[str, str]], list[str]]:
    """Bars, ceilings and texts of a picture."""
    root = ET.fromstring(svg)
    bars = [each.attrib for each in root.iter(f"{SVG}rect")][1:]
    ceilings = [each.attrib for each in root.iter(f"{SVG}line") if each.get("stroke-width") == "3"]
    return bars, ceilings, [each.text or "" for each in root.iter(f"{SVG}text")]


def test_the_picture():
    bars, ceilings, texts = shapes(draw(MADE))
    assert len(bars) == len(ceilings) == 3
    ends = [float(bar["x"]) + float(bar["width"]) for bar in bars]
    roofs = [float(line["x1"]) for line in ceilings]
    decade = ends[1] - ends[2]  # 100 beside 10
    assert decade > 50
    assert roofs[1] - ends[1] == pytest.approx(decade * np.log10(2), abs=0.2)  # 200 beside 100
    assert roofs[0] == roofs[2] == pytest.approx(ends[2] + decade * np.log10(4), abs=0.2)
    assert bars[0]["fill"] == bars[1]["fill"] != bars[2]["fill"]
    assert "100 (50%)" in texts
    assert any("A <fast> CPU" in text for text in texts)
    room = float(ET.fromstring(draw(MADE)).get("width"))
    assert all(0 < x < room - 100 for x in ends + roofs)  # and the number beside it


# ---------------------------------------------------------------- the command


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The command over a made ladder: what it was asked for."""
    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path / "home"))
    seen: list[Any] = []

    def made(model: Any, threads: Any, say: Any) -> Ladder:
        seen.append((model, threads))
        say("round 1 of 7")
        return MADE

    monkeypatch.setattr(cli, "ladder", made)
    return seen


def test_the_command_prints_a_table_and_draws(asked: list[Any], tmp_path: Path):
    result = run("ladder")
    picture = tmp_path / "home" / "ladder.svg"
    assert result == (0, table(MADE) + "\n", f"round 1 of 7\nthe picture: {picture}\n")
    assert picture.read_text() == draw(MADE)
    assert asked == [("tiny", None)]  # nothing was fetched into this cache


def test_the_real_model_is_taken_where_it_is(asked: list[Any], tmp_path: Path, monkeypatch):
    here = SimpleNamespace(is_here=True)
    monkeypatch.setattr(cli, "KNOWN", {"smollm2": here})
    run("ladder")
    run("ladder", "model.gguf", "--threads", 3)
    assert asked == [("smollm2", None), ("model.gguf", 3)]


def test_json_is_one_line(asked: list[Any], tmp_path: Path):
    result = run("ladder", "--json", "--out", tmp_path / "picture.svg")
    assert result.status == 0
    assert re.fullmatch(r"[^\n]+\n", result.out)
    plain = json.loads(result.out)
    assert plain["rungs"][1]["ratios"]["pytorch"]["decode"] == [8, 9, 10]
    keys = {"name", "threads", "prefill_tok_s", "decode_tok_s", "bytes_per_token",
            "bandwidth_share", "kl", "top1"}  # fmt: skip
    assert all(keys <= set(each) for each in plain["rungs"])
    assert (tmp_path / "picture.svg").read_text() == draw(MADE)
    assert not (tmp_path / "home").exists()


def test_errors_are_one_clear_line():
    assert_one_clear_line(run("ladder", "no/such.gguf"), "no such file")
    assert_one_clear_line(run("ladder", "tiny", "--threads", 0), "threads is 0")
    assert run("ladder", "tiny", "--threads", "x").status == 2
    assert run("ladder", "--engine", "naive").status == 2


# ---------------------------------------------------------------- the goals


@pytest.fixture
def goals(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """benchmarks/goals.py"""
    if not BENCHMARKS.is_dir():
        pytest.skip("needs the checkout")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("goals")


def test_a_part_that_fails_is_reported_and_the_others_go_on(
    goals: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
):
    def broken(settings: Any) -> list[Any]:
        raise OSError("no disk")

    def broken_later(settings: Any) -> Iterator[Any]:
        yield goals.Goal("later", "a", "x", 1.0, 1.0, 1.0, wanted=2.0)
        raise ValueError("half way")

    def fine(settings: Any) -> list[Any]:
        spread = Spread(1.0, 2.0, 3.0)
        return [
            goals.Goal("fine", "a", "x", 2.0, 1.0, 3.0, wanted=1.5, ceiling=4.0),
            goals.Goal("fine", "b", "s", 2.0, 1.0, 3.0, wanted=1.5, at_most=True),
            goals.Goal("fine", "c", "x", *spread),
        ]

    monkeypatch.setattr(goals, "PARTS", {"broken": broken, "later": broken_later, "fine": fine})
    monkeypatch.setattr("sys.argv", ["goals.py", "--out", str(tmp_path), "--rounds", "3"])
    assert goals.main() == 1
    out = capsys.readouterr().out
    assert "broken failed: OSError: no disk" in out
    (file,) = tmp_path.glob("*.json")
    assert file.with_suffix(".png").exists()
    result = json.loads(file.read_text())
    assert [goal["met"] for goal in result["goals"]] == [False, True, False, None]
    assert result["failed"] == {"broken": "OSError: no disk", "later": "ValueError: half way"}
    assert result["rounds"] == 3
    assert {"date", "commit", "machine", "versions", "seconds"} <= set(result)
    assert list(result["seconds"]) == ["broken", "later", "fine"]


def test_a_goal_that_is_met_lies_right_of_1(goals: ModuleType):
    fast = goals.Goal("decode", "a", "x", 2.0, 1.0, 3.0, wanted=1.5)
    slow = replace(fast, at_most=True)
    for goal in (fast, slow):
        assert (goal.times(goal.value) >= 1) == goal.met
    assert replace(fast, value=1.5).met and replace(slow, value=1.5).met


def test_the_mean_of_cases_is_geometric(goals: ModuleType):
    goal = importlib.import_module("goal")
    cases = [goals.Goal("p", str(v), "x", v, v / 2, v * 2, 1.4) for v in (1.0, 4.0)]
    mean = goal.mean_of(cases, wanted=2)
    assert (mean.value, mean.low, mean.high) == pytest.approx((2, 1, 4))
    assert mean.wanted == 2 and mean.met
    words = goal.table([mean, replace(mean, value=1.9), replace(mean, wanted=None)]).splitlines()
    assert words[1].endswith("x met") and words[2].endswith("NOT MET") and words[3].endswith("x ")


def test_a_product_of_the_benchmark_is_a_matrix_product(goals: ModuleType):
    gemm = importlib.import_module("gemm")
    source = np.random.default_rng(3)
    for rows, cols, tokens in ((64, 40, 1), (70, 300, 29)):
        weight = source.standard_normal((rows, cols), np.float32)
        x = source.standard_normal((tokens, cols), np.float32)
        with gemm.Workers(2) as workers:
            multiply = gemm.product(gemm.pack(gemm.Tensor.from_numpy(weight)), x, workers)
            y = multiply()[:, :rows].astype(np.float64)
        exact = x.astype(np.float64) @ weight.T.astype(np.float64)
        size = np.abs(x).astype(np.float64) @ np.abs(weight).T.astype(np.float64)
        assert (np.abs(y - exact) <= cols * 2.0**-24 * size).all()
