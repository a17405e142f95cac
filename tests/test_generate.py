"""The loop that makes text, told by engines whose every answer is known."""

import gc
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import GREEDY, ScriptedEngine, saying, scripted, spelling, write_small

import llambda
from llambda.engines.base import State
from llambda.errors import ContextError, FileAccessError, InputError, LlambdaError
from llambda.eventlog import EventLog
from llambda.generate import LOGGED_BATCH, Generation
from llambda.sampling import Sampling
from llambda.tokenizer import Tokenizer

ABC = ["?", "a", "b", "c", "<end>"]
END = 4
STATS = {
    "prompt_tokens": int,
    "new_tokens": int,
    "load_s": float,
    "prefill_s": float,
    "first_token_s": float,
    "decode_s": float,
    "tokens_per_s": float,
    "peak_rss_mb": float,
    "threads": int,
    "engine": str,
    "seed": int,
}


def outcome(generation: Generation) -> tuple[str, list[int], str]:
    return generation.text, generation.ids, generation.finish_reason


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def names(path: Path) -> list[str]:
    return [event["event"] for event in events(path)]


def failing(error: BaseException, at: int, tokens: list[int]) -> ScriptedEngine:
    """Says the tokens, and raises once so many ids are evaluated."""
    speak = saying(tokens, len(ABC))

    def answer(ids: list[int]) -> np.ndarray:
        if len(ids) == at:
            raise error
        return speak(ids)

    return ScriptedEngine(answer, len(ABC))


def generation_of(
    engine: ScriptedEngine,
    *,
    max_tokens: int = 9,
    context: int = 50,
    stop: Sequence[str] = (),
    **more: Any,
) -> Generation:
    tokenizer = spelling(ABC, stop_ids=[END])
    return Generation(engine, tokenizer, [0], GREEDY, max_tokens, stop, context, **more)


# ---------------------------------------------------------------- what comes out


def test_pieces_text_and_ids():
    generation = scripted(ABC, [1, 2, 3, 1])
    assert list(generation) == ["a", "b", "c", "a"]
    assert outcome(generation) == ("abca", [1, 2, 3, 1], "length")
    assert generation.prompt_ids == [0]


def test_the_prompt_is_evaluated_once_and_then_each_token():
    generation = scripted(ABC, [1, 2, 3], prompt=[0, 2, 2])
    assert generation.engine.calls == []  # nothing is done before it is read
    assert generation.text == "abc"
    assert generation.engine.calls == [(0, [0, 2, 2]), (3, [1]), (4, [2])]  # the last one is not


def test_a_state_that_knows_the_beginning_is_used(tmp_path: Path):
    engine = ScriptedEngine(saying([1, 2, 3], len(ABC), prompt_tokens=3), len(ABC))
    state = engine.new_state(50)
    engine.forward(state, [0, 2])
    generation = Generation(
        engine, spelling(ABC), [0, 2, 2], GREEDY, 3, [], 50, log=EventLog(tmp_path / "log"),
        state=state,
    )  # fmt: skip
    assert state.ids == [0, 2]
    assert generation.text == "abc"
    assert engine.calls == [(0, [0, 2]), (2, [2]), (3, [1]), (4, [2])]
    assert state.ids == [0, 2, 2, 1, 2]  # not the last one
    assert generation.stats["prompt_tokens"] == 3
    assert events(tmp_path / "log")[0]["tokens"] == 1


@pytest.mark.parametrize("prompt", [[2, 0, 2], [0], [0, 2]])
def test_a_state_that_does_not_fit_the_prompt_is_refused(prompt: list[int]):
    engine = ScriptedEngine(saying([1, 2, 3], len(ABC)), len(ABC))
    state = engine.new_state(50)
    engine.forward(state, [0, 2])
    with pytest.raises(InputError, match=r"holds other ids|no token ids"):
        Generation(engine, spelling(ABC), prompt, GREEDY, 3, [], 50, state=state).text  # noqa: B018


# ---------------------------------------------------------------- a state in two hands

USED = "the state was used for something else meanwhile"


def from_one_state(*prompts: list[int]) -> tuple[State, list[Generation]]:
    """Answers to several prompts, all to be made in the same state."""
    engine = ScriptedEngine(lambda ids: np.eye(5, dtype=np.float32)[(ids[-1] + 1) % 4], 5)
    state = engine.new_state(50)
    tokenizer = spelling(ABC)
    answers = [Generation(engine, tokenizer, p, GREEDY, 3, [], 50, state=state) for p in prompts]
    return state, answers


@pytest.mark.parametrize("other", [[1], [1, 2, 1], [2], [1, 1, 1, 1]])
def test_an_answer_beside_another_in_one_state_is_refused(other: list[int]):
    """Unless the state happens to hold the beginning of its prompt; then the other one is."""
    _, (first, second) = from_one_state([1], other)
    assert next(iter(first)) == "b"
    begins = other[:2] == [1, 2]
    refused, right = (first, second) if begins else (second, first)
    alone = from_one_state(right.prompt_ids)[1][0]
    assert right.ids == alone.ids
    with pytest.raises(InputError, match=USED):
        _ = refused.text
    with pytest.raises(InputError, match=USED):
        _ = refused.finish_reason


@pytest.mark.parametrize(
    "use",
    [
        lambda state: state.engine.forward(state, [3]),
        lambda state: state.truncate(0),
        lambda state: state.truncate(state.length - 1),
        lambda state: (state.truncate(1), state.engine.forward(state, [3, 3])),
    ],
    ids=["forward", "emptied", "cut", "rewritten"],
)
def test_a_state_that_is_used_during_an_answer(use: Callable[[State], Any], tmp_path: Path):
    state, (answer,) = from_one_state([1])
    answer._answer.write = EventLog(tmp_path / "log").write
    reader = iter(answer)
    assert (next(reader), next(reader)) == ("b", "c")
    use(state)
    ids = list(state.ids)
    with pytest.raises(InputError, match=USED):
        next(reader)
    assert state.ids == ids  # what the other one wrote stays
    assert names(tmp_path / "log") == ["prefill", "error"]


def test_a_state_that_another_thread_uses_during_a_step():
    _, (answer,) = from_one_state([1])
    forward = answer.engine.forward

    def after_another(state: State, ids: Sequence[int]) -> Any:
        forward(state, [3])
        return forward(state, ids)

    answer.engine.forward = after_another  # type: ignore[method-assign]
    with pytest.raises(InputError, match=USED):
        _ = answer.text


def test_answers_may_follow_one_another_in_a_state():
    state, (first, second) = from_one_state([1], [1, 2, 3, 3])
    assert first.ids == [2, 3, 0]
    assert state.ids == [1, 2, 3]
    assert second.ids == [0, 1, 2]


def test_the_text_is_the_decoded_ids():
    vocab = ["?", b"\xf0", b"\x9f\x99", b"\x82\xc3", b"\xa9", b"\xff", "plain"]
    generation = scripted(vocab, [1, 2, 3, 4, 5, 6, 1, 2])
    pieces = list(generation)
    assert pieces == ["\U0001f642", "\u00e9", "\ufffd", "plain", "\ufffd"]
    assert generation.text == "".join(pieces)
    assert generation.text == spelling(vocab).decode(generation.ids)


@given(
    st.lists(st.binary(max_size=3) | st.text(max_size=2).map(str.encode), min_size=2, max_size=8),
    st.data(),
)
def test_pieces_are_whole_characters_whatever_the_tokens(vocab: list[bytes], data: st.DataObject):
    tokens = data.draw(st.lists(st.integers(0, len(vocab) - 1), min_size=1, max_size=12))
    generation = scripted(vocab, tokens)
    pieces = list(generation)
    assert "" not in pieces
    whole = b"".join(vocab[token] for token in tokens)
    assert generation.ids == tokens
    assert "".join(pieces) == generation.text == whole.decode(errors="replace")


def test_special_tokens_have_no_text():
    generation = scripted(["?", "a", "<s>"], [1, 2, 1], special_ids=[2])
    assert outcome(generation) == ("aa", [1, 2, 1], "length")


def test_ids_without_a_token_have_no_text():
    engine = ScriptedEngine(saying([5, 1], vocab_size=6), vocab_size=6)
    generation = Generation(engine, spelling(["?", "a"]), [0], GREEDY, 2, [], 50)
    assert outcome(generation) == ("a", [5, 1], "length")


# ---------------------------------------------------------------- how it ends


def test_it_stops_at_a_stop_id():
    generation = scripted(ABC, [1, 2, END, 3], stop_ids=[END])
    assert outcome(generation) == ("ab", [1, 2, END], "stop")
    assert len(generation.engine.calls) == 3


def test_it_stops_at_a_stop_string():
    generation = scripted(["?", "The quick br", "own", " fox", "!"], [1, 2, 3, 4], stop=["own fox"])
    assert list(generation) == ["The quick br"]
    assert outcome(generation) == ("The quick br", [1, 2, 3], "stop")


def test_a_stop_string_may_end_inside_a_character():
    vocab = ["?", b"a\xc3", b"\xa9\xe2\x80", b"\xa6\xe2", b"\x80\xa6"]
    generation = scripted(vocab, [1, 2, 3, 4, 1], stop=["\u00e9\u2026"])
    assert outcome(generation) == ("a", [1, 2, 3], "stop")


def test_held_text_appears_at_the_end():
    assert outcome(scripted(ABC, [1, 2], stop=["bc"])) == ("ab", [1, 2], "length")
    assert outcome(scripted(ABC, [1, 2, END], stop=["bc"], stop_ids=[END]))[0] == "ab"
    assert outcome(scripted(ABC, [1, 2], max_tokens=9, context=2, stop=["bc"]))[0] == "ab"


def test_an_unfinished_character_at_the_end_is_shown_as_one():
    assert outcome(scripted(["?", b"a\xe2\x80"], [1])) == ("a\ufffd", [1], "length")
    stopped = scripted(["?", b"a\xe2\x80"], [1], stop=["\ufffd"])
    assert outcome(stopped) == ("a", [1], "stop")


@pytest.mark.parametrize("n", [1, 2, 5])
def test_it_ends_at_the_limit(n: int):
    assert outcome(scripted(ABC, [1], max_tokens=n)) == ("a" * n, [1] * n, "length")


def test_nothing_is_asked_for_with_a_limit_of_0():
    generation = scripted(ABC, [1], max_tokens=0)
    assert outcome(generation) == ("", [], "length")
    assert generation.engine.calls == []
    assert list(generation) == []


@pytest.mark.parametrize(("prompt", "context"), [(1, 1), (3, 3), (3, 5)])
def test_it_ends_when_the_context_is_full(prompt: int, context: int):
    generation = scripted(ABC, [1], prompt=[0] * prompt, max_tokens=20, context=context)
    n = context - prompt + 1  # the last token is drawn, and has no room to be evaluated
    assert outcome(generation) == ("a" * n, [1] * n, "context")
    assert generation.engine.calls[-1][0] + len(generation.engine.calls[-1][1]) == context


def test_the_limit_counts_before_the_context():
    assert scripted(ABC, [1], max_tokens=3, context=3).finish_reason == "length"
    assert scripted(ABC, [1], max_tokens=4, context=3).finish_reason == "context"


def test_a_state_has_room_for_no_more_than_is_asked():
    engine = ScriptedEngine(saying([1], len(ABC)), len(ABC))
    rooms: list[int] = []
    engine.new_state = lambda n: rooms.append(n) or ScriptedEngine.new_state(engine, n)
    for max_tokens, context in ((5, 1000), (10**30, 7)):
        generation_of(engine, max_tokens=max_tokens, context=context)
    assert rooms == [6, 7]


# ---------------------------------------------------------------- reading it


def test_a_second_pass_repeats_the_first():
    generation = scripted(ABC, [1, 2, 3])
    assert list(generation) == list(generation) == ["a", "b", "c"]
    assert len(generation.engine.calls) == 3


def test_two_passes_at_once_share_the_work():
    generation = scripted(ABC, [1, 2, 3])
    assert list(zip(generation, generation, strict=True)) == [(c, c) for c in "abc"]
    assert len(generation.engine.calls) == 3


def test_leaving_the_loop_is_no_end():
    generation = scripted(ABC, [1, 2, 3])
    for piece in generation:
        assert piece == "a"
        break
    reader = iter(generation)
    assert next(reader) == "a"
    reader.close()
    assert len(generation.engine.calls) == 1
    assert outcome(generation) == ("abc", [1, 2, 3], "length")


def test_cancel_keeps_what_there_is(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    generation = scripted(ABC, [1, 2, 3], log=EventLog(log))
    reader = iter(generation)
    assert [next(reader), next(reader)] == ["a", "b"]
    generation.cancel()
    assert list(reader) == []
    assert outcome(generation) == ("ab", [1, 2], "cancelled")
    assert list(generation) == ["a", "b"]
    assert events(log)[-1]["finish_reason"] == "cancelled"
    generation.cancel()
    assert names(log) == ["prefill", "tokens", "finish"]


@pytest.mark.parametrize(("token", "rest"), [("xab", "ab"), (b"x\xe2\x80", "\ufffd")])
def test_cancel_shows_what_was_held(token: str | bytes, rest: str):
    """The beginning of a stop string, or of a character."""
    generation = scripted(["?", token, "y"], [1, 2], stop=["abc"])
    reader = iter(generation)
    assert next(reader) == "x"
    generation.cancel()
    assert list(reader) == [rest]
    assert outcome(generation) == (f"x{rest}", [1], "cancelled")


@pytest.mark.parametrize("tokens", [1, 2])
def test_cancel_in_a_step_shows_what_was_held(tokens: int):
    """A stop string is on its way, so that no piece was shown yet."""
    speak = saying([1, 2, 3], len(ABC))

    def answer(ids: list[int]) -> np.ndarray:
        if len(ids) == tokens + 1:
            generation.cancel()
        return speak(ids)

    generation = generation_of(ScriptedEngine(answer, len(ABC)), stop=["abcabc"])
    assert outcome(generation) == ("abc"[:tokens], [1, 2, 3][:tokens], "cancelled")
    assert list(generation) == ["abc"[:tokens]]


def test_cancel_before_the_first_piece(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    generation = scripted(ABC, [1, 2, 3], log=EventLog(log))
    generation.cancel()
    assert outcome(generation) == ("", [], "cancelled")
    assert generation.engine.calls == []
    assert generation.stats["new_tokens"] == 0
    generation.cancel()
    assert names(log) == ["finish"]


def test_cancel_after_the_end_changes_nothing():
    generation = scripted(ABC, [1, 2])
    assert generation.text == "ab"
    generation.cancel()
    assert outcome(generation) == ("ab", [1, 2], "length")


@pytest.mark.parametrize(("stop", "shown"), [((), "ab"), (("bc",), "ab")])
def test_cancel_from_another_thread_ends_after_the_step(
    tmp_path: Path, stop: tuple[str, ...], shown: str
):
    speak, stepping, go_on = saying([1, 2, 3], len(ABC)), threading.Event(), threading.Event()

    def answer(ids: list[int]) -> np.ndarray:
        if len(ids) == 3:
            stepping.set()
            assert go_on.wait(30)
        return speak(ids)

    log = tmp_path / "log.jsonl"
    engine = ScriptedEngine(answer, len(ABC))
    generation = generation_of(engine, stop=stop, log=EventLog(log))
    reader = threading.Thread(target=lambda: generation.text)
    reader.start()
    assert stepping.wait(30)
    generation.cancel()
    go_on.set()
    reader.join(30)
    assert outcome(generation) == (shown, [1, 2], "cancelled")
    assert names(log)[-1] == "finish"


def test_a_generation_nobody_keeps_is_logged_as_cancelled(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    reader = iter(scripted(ABC, [1, 2, 3], log=EventLog(log)))
    assert next(reader) == "a"
    del reader
    gc.collect()
    assert events(log)[-1]["event"] == "finish"
    assert events(log)[-1]["finish_reason"] == "cancelled"


def test_an_interrupt_passes_through_and_cancels(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    generation = generation_of(failing(KeyboardInterrupt(), 3, [1, 2, 3]), log=EventLog(log))
    with pytest.raises(KeyboardInterrupt):
        list(generation)
    assert outcome(generation) == ("ab", [1, 2], "cancelled")
    assert names(log) == ["prefill", "tokens", "finish"]
    assert events(log)[-1]["finish_reason"] == "cancelled"


@pytest.mark.parametrize("event", ["tokens", "finish"])
def test_an_interrupt_while_the_end_is_logged(tmp_path: Path, event: str):
    """The log is told of it all the same, once."""
    log = EventLog(tmp_path / "log")
    generation = scripted(ABC, [1, 2], stop=["bc"])
    left = [event]

    def write(name: str, *args: Any, **named: Any) -> None:
        if name in left:
            left.remove(name)
            raise KeyboardInterrupt
        log.write(name, *args, **named)

    generation._answer.write = write
    with pytest.raises(KeyboardInterrupt):
        list(generation)
    assert outcome(generation) == ("ab", [1, 2], "length")
    assert names(tmp_path / "log") == ["prefill", "tokens", "finish"]


def test_a_failure_is_raised_logged_and_never_taken_for_an_answer(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    error = RuntimeError("the engine broke")
    generation = generation_of(failing(error, 3, [1, 2, 3]), log=EventLog(log))
    pieces = []
    with pytest.raises(RuntimeError, match="the engine broke"):
        for piece in generation:
            pieces.append(piece)
    assert pieces == ["a", "b"]
    for read in (lambda g: g.text, lambda g: g.finish_reason, lambda g: g.stats, list):
        with pytest.raises(RuntimeError, match="the engine broke"):
            read(generation)
    assert names(log) == ["prefill", "error"]
    assert events(log)[-1]["error"] == "the engine broke"
    assert events(log)[-1]["tokens"] == 2


def test_logits_that_are_no_numbers_are_a_failure(tmp_path: Path):
    engine = ScriptedEngine(lambda ids: np.full(len(ABC), np.nan, np.float32), len(ABC))
    generation = generation_of(engine, log=EventLog(tmp_path / "log"))
    with pytest.raises(llambda.errors.LlambdaError, match="not finite"):
        _ = generation.text
    assert names(tmp_path / "log") == ["prefill", "error"]


def test_a_log_that_fails_is_a_failure(tmp_path: Path):
    log = EventLog(tmp_path / "log")
    generation = scripted(ABC, [1, 2], log=log)
    log.path = tmp_path / "gone" / "log"
    with pytest.raises(FileAccessError, match="no such file"):
        list(generation)


# ---------------------------------------------------------------- prompts


def test_an_empty_prompt_is_refused():
    with pytest.raises(InputError, match="the prompt is empty"):
        scripted(ABC, [1], prompt=[])


def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(ContextError, match="the prompt has 4 tokens and the context 3"):
        scripted(ABC, [1], prompt=[0] * 4, context=3)
    with pytest.raises(ContextError, match="the prompt has 2 tokens and the context 1"):
        scripted(ABC, [1], prompt=[0, 0], context=1, max_tokens=0)


@pytest.mark.parametrize(
    ("context", "remedy"),
    [(3, "or ask for a larger context"), (4, "this model has no larger context")],
)
def test_a_larger_context_is_advised_where_there_is_one(context: int, remedy: str):
    engine = ScriptedEngine(saying([1], len(ABC)), len(ABC))
    engine.config.context_length = 4
    with pytest.raises(ContextError, match=remedy):
        Generation(engine, spelling(ABC), [0] * 5, GREEDY, 1, [], context)
    with pytest.raises(ContextError, match=remedy):
        engine.forward(engine.new_state(context), [0] * 5)


@pytest.mark.parametrize("token", [5, -1, 2**31, 10**30])
def test_ids_outside_the_vocabulary_are_refused_at_once(token: int):
    with pytest.raises(InputError, match=f"token id {token} is outside .* from 0 to 4"):
        scripted(ABC, [1], prompt=[0, token])


@pytest.mark.parametrize("token", [1.0, "1", None, float("nan"), [1]])
def test_ids_that_are_not_whole_numbers_are_refused(token: Any):
    with pytest.raises(InputError, match="is not a whole number"):
        scripted(ABC, [1], prompt=[0, token])


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_numpy_ids_become_plain_ones(kind: Any):
    for prompt in (np.array([0, 2], kind), [kind(0), kind(2)], iter([0, kind(2)])):
        generation = Generation(
            ScriptedEngine(saying([1], 5, 2), 5), spelling(ABC), prompt, GREEDY, 2, [], 9
        )
        assert json.dumps([generation.prompt_ids, generation.ids]) == "[[0, 2], [1, 1]]"


# ---------------------------------------------------------------- statistics, seeds, isolation


def check_stats(stats: dict[str, Any]) -> None:
    assert {name: type(value) for name, value in stats.items()} == STATS
    assert all(stats[name] >= 0 for name in STATS if name != "engine")
    assert stats["prefill_s"] <= stats["first_token_s"]


def test_stats():
    generation = scripted(ABC, [1, 2, 3], prompt=[0, 0], load_s=1.23456789)
    stats = generation.stats
    check_stats(stats)
    assert list(stats) == list(STATS)
    assert (stats["prompt_tokens"], stats["new_tokens"]) == (2, 3)
    assert (stats["threads"], stats["engine"], stats["load_s"]) == (3, "scripted", 1.234568)
    assert stats["seed"] == generation.seed
    assert stats["tokens_per_s"] > 0
    assert stats["peak_rss_mb"] > 1
    assert json.loads(json.dumps(stats)) == stats


def test_the_stats_measure(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr("llambda.generate.time.perf_counter", lambda: clock[0])
    speak = saying([1, 2, 3], len(ABC))

    def answer(ids: list[int]) -> np.ndarray:
        clock[0] += 4 if len(ids) == 1 else 0.5
        return speak(ids)

    stats = generation_of(ScriptedEngine(answer, len(ABC)), max_tokens=3).stats
    assert (stats["prefill_s"], stats["first_token_s"]) == (4, 4)
    assert (stats["decode_s"], stats["tokens_per_s"]) == (1, 2)  # two tokens after the first


@pytest.mark.parametrize("n", [0, 1])
def test_the_stats_of_almost_nothing(n: int):
    stats = scripted(ABC, [1], max_tokens=n).stats
    check_stats(stats)
    assert (stats["new_tokens"], stats["tokens_per_s"]) == (n, 0)


def drawn(seed: int | None, n: int = 30) -> tuple[int, list[int]]:
    """Tokens drawn from logits that favour none."""
    engine = ScriptedEngine(lambda ids: np.zeros(1000, np.float32), 1000)
    sampling = Sampling(temperature=1, top_k=0, top_p=1, seed=seed)
    generation = Generation(engine, spelling(["?"]), [0], sampling, n, [], 99)
    return generation.seed, generation.ids


def test_the_seed_is_reported_and_repeats():
    seed, ids = drawn(None)
    assert drawn(seed) == (seed, ids)
    assert drawn(0) == drawn(0)
    assert drawn(0)[0] == 0
    assert drawn(0)[1] != drawn(1)[1]


def test_the_history_of_the_penalty_is_prompt_and_answer():
    def answer(ids: list[int]) -> np.ndarray:
        return np.array([4, 3, 2, 1, 0], np.float32)

    sampling = Sampling(temperature=0, repeat_penalty=10)
    generation = Generation(ScriptedEngine(answer, 5), spelling(ABC), [0], sampling, 4, [], 50)
    assert generation.ids == [1, 2, 3, 0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> llambda.Model:
    return llambda.load(write_small(tmp_path_factory.mktemp("model") / "small.gguf"))


def made(model: llambda.Model, seed: int) -> Generation:
    prompt = ["the cat", "on", "hello there"][seed % 3]
    return model.generate(prompt, seed=seed, max_tokens=25, temperature=1.5)


def test_generations_may_take_turns(small: llambda.Model):
    alone = [outcome(made(small, seed)) for seed in range(3)]
    generations = [made(small, seed) for seed in range(3)]
    readers = [iter(generation) for generation in generations]
    order = random.Random(1)
    while readers:
        reader = order.choice(readers)
        if next(reader, None) is None:
            readers.remove(reader)
    assert [outcome(generation) for generation in generations] == alone
    assert len({text for text, _, _ in alone}) == 3


@pytest.mark.parametrize("engine", ["naive", "cached", "threaded", "fused"])
def test_threads_may_share_a_model(tmp_path: Path, engine: str):
    with llambda.load(write_small(tmp_path / "small.gguf"), engine) as model:
        alone = [outcome(made(model, seed)) for seed in range(6)]
        together: dict[int, Any] = {}

        def work(seed: int) -> None:
            together[seed] = outcome(made(model, seed))

        threads = [threading.Thread(target=work, args=[seed]) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [together[seed] for seed in range(6)] == alone


# ---------------------------------------------------------------- the log


@pytest.mark.parametrize("n", [1, LOGGED_BATCH, LOGGED_BATCH + 1, 2 * LOGGED_BATCH + 5])
def test_the_log_accounts_for_every_token(tmp_path: Path, n: int):
    log = tmp_path / "log.jsonl"
    generation = scripted(ABC, [1], prompt=[0, 0], max_tokens=n, log=EventLog(log))
    assert len(generation.text) == n
    first, *batches, last = events(log)
    assert (first["event"], first["tokens"]) == ("prefill", 2)
    assert {batch["event"] for batch in batches} == {"tokens"}
    counts = [batch["tokens"] for batch in batches]
    assert sum(counts) == n
    assert set(counts[:-1]) <= {LOGGED_BATCH}
    assert 0 < counts[-1] <= LOGGED_BATCH
    assert (last["event"], last["tokens"], last["finish_reason"]) == ("finish", n, "length")
    assert last["seed"] == generation.seed
    for event in (first, *batches, last):
        assert event["seconds"] >= 0
        assert event["resident_mb"] > 1
    assert last["seconds"] >= sum(event["seconds"] for event in (first, *batches)) - 1e-5


# ---------------------------------------------------------------- planted mistakes

Decode = Callable[[Tokenizer, int], str]


def test_a_decoder_that_cuts_characters_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    def each_token_alone(stream: Any, token: int) -> str:
        return stream.tokenizer.decode([token])

    monkeypatch.setattr("llambda.tokenizer.TextStream.push", each_token_alone)
    with pytest.raises(AssertionError):
        test_the_text_is_the_decoded_ids()


def test_a_shared_state_would_be_noticed(small: llambda.Model, monkeypatch: pytest.MonkeyPatch):
    state = small.engine.new_state(64)
    monkeypatch.setattr(small.engine, "new_state", lambda context: state, raising=False)
    with pytest.raises((AssertionError, InputError)):
        test_generations_may_take_turns(small)


def test_several_threads_may_read_one_answer(small: llambda.Model):
    expected = small.generate([5, 6, 7], max_tokens=30, temperature=0).text
    answer = small.generate([5, 6, 7], max_tokens=30, temperature=0)
    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(lambda _: answer.text, range(6)))
    assert texts == [expected] * 6


@pytest.mark.parametrize("prompt", [b"hi", {1: 2}, None, 5])
def test_a_prompt_that_is_no_list_of_ids_is_refused(small: llambda.Model, prompt: Any):
    with pytest.raises(InputError, match="token ids must be"):
        small.generate(prompt)


def test_small_numpy_numbers_do_not_overflow(small: llambda.Model):
    plain = small.generate([5] * 10, max_tokens=50, temperature=0)
    typed = small.generate([5] * 10, max_tokens=np.uint8(50), temperature=0)
    assert typed.ids == plain.ids
    assert small.generate([5] * 10, max_tokens=np.int8(120), temperature=0).prompt_ids == [5] * 10


def test_a_failure_reaches_every_thread_that_reads(monkeypatch: pytest.MonkeyPatch):
    """Also those that wait for their turn while the engine fails."""
    arrived = threading.Barrier(2)
    failed = LlambdaError("the engine failed")

    def fail(ids: list[int]) -> np.ndarray:
        arrived.wait(timeout=30)
        time.sleep(0.1)  # the other thread has come to wait by then; if not, it fails all the same
        raise failed

    answer = Generation(ScriptedEngine(fail, len(ABC)), spelling(ABC), [0], GREEDY, 3, [], 50)

    def second() -> str:
        arrived.wait(timeout=30)
        return answer.text

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(lambda: answer.text), pool.submit(second)]
    assert [reader.exception() for reader in readers] == [failed, failed]
