"""Many answers at once are the answers one gets alone, whoever else is there.

Most tests use engines whose every answer is known, or a small one in NumPy, which evaluate a batch
one id after the other: what is tested is who joins, who leaves, and whose logits are whose.
"""

import json
import random
import threading
import weakref
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import mutant
from scripted import GREEDY, ScriptedEngine, spelling, write_small

from llambda import modelfile
from llambda.batching import Batch, Event, deal
from llambda.engines.base import State
from llambda.engines.cached import CachedEngine
from llambda.engines.fused import FusedEngine
from llambda.errors import ContextError, InputError, LlambdaError, UnsupportedError
from llambda.eventlog import EventLog
from llambda.generate import Answer, Generation
from llambda.model import understand
from llambda.sampling import Sampler, Sampling
from llambda.tokenizer import TextStream

VOCAB = ["a", "b", "ab", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x99\x82", "c", "<end>"]
END = len(VOCAB) - 1
CONTEXT = 30

Outcome = tuple[str, list[int], str | None]
Plant = Callable[..., None]  # (patch, batch)


class OneByOne:
    """Gives an engine a forward_batch, and evaluates one id at a time: the parts of a prompt do
    not matter then.

    counts : for each call, how many ids of every sequence it evaluated
    states : those that are alive
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.counts: list[list[int]] = []
        self.states: weakref.WeakSet[State] = weakref.WeakSet()

    def new_state(self, context: int) -> State:
        state = super().new_state(context)
        self.states.add(state)
        return state

    def forward(self, state: State, ids: Sequence[int]) -> np.ndarray:
        return [super(OneByOne, self).forward(state, [token]) for token in ids][-1]

    def forward_batch(
        self, states: Sequence[State], ids_per_state: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        self.counts.append([len(ids) for ids in ids_per_state])
        return [self.forward(*pair) for pair in zip(states, ids_per_state, strict=True)]


class ScriptedBatches(OneByOne, ScriptedEngine):
    """Its logits are a function of the ids so far."""


class NumPyBatches(OneByOne, CachedEngine):
    """The real thing, slowly."""


def always_a(ids: list[int]) -> np.ndarray:
    return np.eye(len(VOCAB), dtype=np.float32)[0]


def scrambled(ids: list[int]) -> np.ndarray:
    """Logits in which every id so far has its part."""
    source = np.random.default_rng(zlib.crc32(bytes(ids)))
    return source.normal(0, 2, len(VOCAB)).astype(np.float32)


def batch_of(answer: Callable[[list[int]], np.ndarray] = always_a, **settings: Any) -> Batch:
    engine = ScriptedBatches(answer, len(VOCAB))
    return Batch(engine, spelling(VOCAB, stop_ids=[END]), CONTEXT, **settings)


def ask(batch: Batch, tokens: int = 5, prompt: Sequence[int] = (1,)) -> Answer:
    """For so many tokens, the best ones."""
    return batch.submit(prompt, GREEDY, tokens)


def outcome(answer: Answer) -> Outcome:
    return answer.text, answer.ids, answer.finish_reason


# ---------------------------------------------------------------- the same as alone


@dataclass(frozen=True)
class Request:
    """What `submit` takes, and when: before which step, and after how many more it is cancelled."""

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...] = ()
    at: int = 0
    patience: int | None = None


def alone(batch: Batch, request: Request) -> Outcome:
    """What a Generation makes of it."""
    made = Generation(
        batch.engine, batch.tokenizer, request.prompt, request.sampling, request.max_tokens,
        request.stop, batch.context,
    )  # fmt: skip
    return made.text, made.ids, made.finish_reason


def play(batch: Batch, requests: Sequence[Request]) -> list[Answer]:
    """Submit and cancel as is said, and step until all is done. What is told is the answers."""
    answers: dict[int, Answer] = {}
    told: dict[Answer, list[str]] = defaultdict(list)
    step = 0
    while len(answers) < len(requests) or batch.busy:
        assert step < 1000, "it never ends"
        for i, r in enumerate(requests):
            if r.at == step:
                answers[i] = batch.submit(r.prompt, r.sampling, r.max_tokens, r.stop)
            if r.patience is not None and r.at + r.patience == step:
                answers[i].cancel()
        ended = {answer for answer in answers.values() if answer.finish_reason is not None}
        for answer, text in batch.step():
            assert answer not in ended  # its last event came with its end
            assert text or answer.finish_reason is not None
            told[answer].append(text)
        step += 1
    for answer in answers.values():
        assert [text for text in told[answer] if text] == answer.pieces
    return [answers[i] for i in range(len(requests))]


def compare(requests: Sequence[Request], answers: list[Answer], expected: list[Outcome]) -> None:
    """Every answer is what is expected; one that was cancelled is all that its ids say."""
    for request, answer, (text, ids, reason) in zip(requests, answers, expected, strict=True):
        if answer.finish_reason == "cancelled":
            assert request.patience is not None
            assert answer.ids == ids[: len(answer.ids)]
            said = answer._decoder.tokenizer.decode(answer.ids)
            assert answer.text == min((said.partition(s)[0] for s in request.stop), default=said)
        else:
            assert outcome(answer) == (text, ids, reason)


def check_against_alone(batch: Batch, requests: Sequence[Request]) -> None:
    compare(requests, play(batch, requests), [alone(batch, request) for request in requests])


def samplings() -> st.SearchStrategy[Sampling]:
    return st.builds(
        Sampling,
        temperature=st.sampled_from([0, 0.5, 1.5]),
        top_k=st.sampled_from([0, 4]),
        repeat_penalty=st.sampled_from([1, 1.3]),
        seed=st.integers(0, 3),
    )


REQUESTS = st.builds(
    Request,
    prompt=st.lists(st.integers(0, END), min_size=1, max_size=CONTEXT),
    sampling=samplings(),
    max_tokens=st.integers(0, 20),
    stop=st.sampled_from([(), ("ba",), ("é", "abc"), ("\ufffd",)]),
    at=st.integers(0, 15),
    patience=st.none() | st.integers(0, 12),
)


@given(st.lists(REQUESTS, max_size=8), st.integers(1, 4), st.integers(1, 40))
def test_whoever_joins_and_leaves(requests: list[Request], max_running: int, prompt_tokens: int):
    batch = batch_of(scrambled, max_running=max_running, prompt_tokens=prompt_tokens)
    check_against_alone(batch, requests)
    assert max(map(len, batch.engine.counts), default=0) <= max_running


def random_requests(seed: int, n: int, vocab_size: int) -> list[Request]:
    """Of several lengths and settings, joining one after the other; one in five is cancelled."""
    source = random.Random(seed)
    return [
        Request(
            prompt=[source.randrange(vocab_size) for _ in range(source.choice([1, 2, 11, 29]))],
            sampling=Sampling(source.choice([0, 0.7, 1.5]), seed=source.randrange(3)),
            max_tokens=source.randrange(1, 14),
            at=source.randrange(12),
            patience=source.choice([None, None, None, None, source.randrange(8)]),
        )
        for _ in range(n)
    ]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Batch]]:
    """Makes batches of the small model."""
    path = write_small(tmp_path_factory.mktemp("model") / "small.gguf")
    with modelfile.open(path) as file:
        config, tokenizer, _ = understand(file)
        weights = modelfile.read_weights(file, config)
        engine = NumPyBatches(config, weights)
        yield lambda **settings: Batch(engine, tokenizer, 40, **settings)


@pytest.mark.parametrize(("max_running", "prompt_tokens"), [(1, 64), (3, 5), (8, 1)])
def test_a_small_model(small: Callable[..., Batch], max_running: int, prompt_tokens: int):
    batch = small(max_running=max_running, prompt_tokens=prompt_tokens)
    check_against_alone(batch, random_requests(max_running, 8, batch.engine.config.vocab_size))


@pytest.fixture(scope="module")
def fused(tiny_path: Path) -> Iterator[Callable[..., Batch]]:
    """Makes batches of the tiny model, which the last rung evaluates."""
    with modelfile.open(tiny_path) as file:
        config, tokenizer, _ = understand(file)
        weights = modelfile.read_weights(file, config)
        engine = FusedEngine(config, weights)
        yield lambda **settings: Batch(engine, tokenizer, 40, **settings)
        engine.close()


@pytest.mark.parametrize(("max_running", "prompt_tokens"), [(2, 7), (6, 64), (14, 30)])
def test_the_fused_engine(fused: Callable[..., Batch], max_running: int, prompt_tokens: int):
    batch = fused(max_running=max_running, prompt_tokens=prompt_tokens)
    check_against_alone(batch, random_requests(max_running, 16, batch.engine.config.vocab_size))


def test_a_text_is_encoded_as_for_a_generation(fused: Callable[..., Batch]):
    batch = fused()
    answer = batch.submit("Return the number of", GREEDY, 8)
    assert answer.prompt_ids == batch.tokenizer.encode("Return the number of")
    assert list(batch.run())[-1][0] is answer
    assert answer.text == batch.tokenizer.decode(answer.ids) != ""


def test_a_seed_that_was_not_given_is_reported():
    batch = batch_of(scrambled)
    answers = [batch.submit([1], Sampling(1.5), 8) for _ in range(2)]
    list(batch.run())
    assert answers[0].seed != answers[1].seed
    for answer in answers:
        request = Request([1], Sampling(1.5, seed=answer.seed), 8)
        assert alone(batch, request) == outcome(answer)


# ---------------------------------------------------------------- what a step evaluates


def test_every_step_evaluates_a_token_of_each():
    batch = batch_of()
    for tokens in (2, 3, 4):
        ask(batch, tokens)
    list(batch.run())
    assert batch.engine.counts == [[1, 1, 1], [1, 1, 1], [1, 1], [1]]


def test_a_place_is_taken_as_soon_as_it_is_free():
    batch = batch_of(max_running=2)
    answers = [ask(batch, tokens) for tokens in (2, 4, 3, 1)]
    batch.step()
    late = ask(batch, 1)
    ended = [answer for answer, _ in batch.run() if answer.finish_reason is not None]
    assert batch.engine.counts == [[1, 1]] * 5 + [[1]]
    assert ended == [*answers, late]


def test_a_long_prompt_stalls_nobody():
    batch = batch_of(prompt_tokens=4)
    talking = ask(batch, 9)
    batch.step()
    long = ask(batch, 3, [1] * 14)
    batch.step()
    short = ask(batch, 3, [2, 2])
    list(batch.run())
    # The talking one has a token in every step. Then the two prompts share what is allowed.
    assert batch.engine.counts == [
        [1], [1, 4], [1, 2, 2], [1, 4, 1], [1, 4, 1], [1, 1], [1, 1], [1], [1]
    ]  # fmt: skip
    assert {outcome(answer)[2] for answer in (talking, long, short)} == {"length"}


def test_a_prompt_that_gets_nothing_waits_for_the_next_step():
    batch = batch_of(prompt_tokens=2)
    for _ in range(3):
        ask(batch, 1, [1, 1])
    list(batch.run())
    assert batch.engine.counts == [[1, 1], [1, 1], [2]]


@given(st.integers(1, 50), st.lists(st.integers(1, 30), max_size=6))
def test_tokens_are_dealt_fairly(tokens: int, wanted: list[int]):
    dealt = deal(tokens, wanted)
    assert sum(dealt) == min(tokens, sum(wanted))
    assert all(0 <= got <= want for got, want in zip(dealt, wanted, strict=True))
    short = [i for i, want in enumerate(wanted) if dealt[i] < want]
    for i in short:  # nobody has more than one who wanted more, but for the round under way
        assert all(dealt[j] <= dealt[i] + (j < i) for j in range(len(wanted)))


def test_nothing_to_do_is_done_at_once():
    batch = batch_of()
    assert not batch.busy
    assert (batch.step(), list(batch.run()), batch.engine.counts) == ([], [], [])
    nothing = ask(batch, 0)
    assert batch.busy
    assert batch.step() == [(nothing, "")]
    assert outcome(nothing) == ("", [], "length")
    assert (batch.busy, batch.engine.counts) == (False, [])


# ---------------------------------------------------------------- pieces as they come


def test_pieces_come_in_the_order_of_joining():
    batch = batch_of()
    first, second = ask(batch, 2), ask(batch, 1)
    assert batch.step() == [(first, "a"), (second, "a")]
    assert (first.finish_reason, second.finish_reason) == (None, "length")
    assert (first.text, first.ids) == ("a", [0])
    assert batch.step() == [(first, "a")]
    assert first.finish_reason == "length"


def test_more_may_join_while_it_runs():
    batch = batch_of()
    answers = [ask(batch, 1)]
    for answer, _ in batch.run():
        if answer.finish_reason is not None and len(answers) < 4:
            answers.append(ask(batch, 2))
    assert [answer.text for answer in answers] == ["a", "aa", "aa", "aa"]


def test_leaving_the_loop_loses_nothing():
    batch = batch_of()
    answers = [ask(batch, 2) for _ in range(3)]
    events: list[Event] = []
    while batch.busy:
        for event in batch.run():
            events.append(event)
            break
    events += batch.run()
    assert events == [(answer, "a") for answer in answers] * 2


# ---------------------------------------------------------------- cancelling


def test_a_cancelled_answer_gives_its_place_to_the_next():
    batch = batch_of(max_running=1)
    first, second = ask(batch, 9), ask(batch, 1)
    batch.step()
    first.cancel()
    assert batch.step() == [(first, ""), (second, "a")]
    assert outcome(first) == ("a", [0], "cancelled")
    assert batch.engine.counts == [[1], [1]]


def test_who_waits_may_be_cancelled():
    batch = batch_of(max_running=1)
    first, second, third = (ask(batch, 2) for _ in range(3))
    batch.step()
    second.cancel()
    second.cancel()
    assert batch.step() == [(second, ""), (first, "a")]
    assert outcome(second) == ("", [], "cancelled")
    assert [answer for answer, _ in batch.run()] == [third, third]


def test_cancelling_what_has_ended_changes_nothing():
    batch = batch_of()
    answer = ask(batch, 1)
    batch.step()
    answer.cancel()
    assert not batch.busy
    assert batch.step() == []
    assert outcome(answer) == ("a", [0], "length")


def test_cancelled_in_a_step_it_draws_no_more():
    """As from another thread, while the engine works."""
    answers: list[Answer] = []

    def answer(ids: list[int]) -> np.ndarray:
        if ids == [1, 0]:
            answers[0].cancel()
        return always_a(ids)

    batch = batch_of(answer)
    answers += [ask(batch, 5), ask(batch, 2, [1, 1, 1])]
    list(batch.run())
    assert outcome(answers[0]) == ("a", [0], "cancelled")
    assert outcome(answers[1]) == ("aa", [0, 0], "length")


def test_threads_may_submit_and_cancel():
    batch = batch_of(scrambled, max_running=3)
    answers: list[tuple[Request, Answer]] = []

    def work(seed: int) -> None:
        for r in random_requests(seed, 10, len(VOCAB)):
            answers.append((r, batch.submit(r.prompt, r.sampling, r.max_tokens, r.stop)))
            if r.patience is not None:
                answers[-1][1].cancel()

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    while batch.busy or any(thread.is_alive() for thread in threads):
        batch.step()
    assert len(answers) == 40
    for request, answer in answers:
        if answer.finish_reason != "cancelled":
            assert outcome(answer) == alone(batch, request)


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("kind", "words", "changes"),
    [
        (InputError, "the prompt is empty", {"prompt": []}),
        (InputError, "token id 9 is outside", {"prompt": [1, 9]}),
        (InputError, "not a whole number", {"prompt": [1.5]}),
        (InputError, "token ids must be", {"prompt": None}),
        (ContextError, "the prompt has 31 tokens and the context 30", {"prompt": [1] * 31}),
        (InputError, "max_tokens is -1", {"max_tokens": -1}),
        (InputError, "is no stop string", {"stop": [""]}),
    ],
)
def test_what_cannot_be_answered_is_refused_and_disturbs_nobody(
    kind: type[Exception], words: str, changes: dict[str, Any]
):
    batch = batch_of()
    other = ask(batch, 3)
    batch.step()
    with pytest.raises(kind, match=words):
        batch.submit(**{"prompt": [1], "sampling": GREEDY, "max_tokens": 3} | changes)
    assert list(batch.run()) == [(other, "a")] * 2


def test_one_stop_string_need_not_stand_in_a_list():
    batch = batch_of(scrambled)
    answers = [batch.submit([1, 2], GREEDY, 20, stop) for stop in ("ab", ["ab"], ["a", "b"])]
    list(batch.run())
    assert outcome(answers[0]) == outcome(answers[1]) != outcome(answers[2])


def test_one_failure_is_nobody_elses():
    def answer(ids: list[int]) -> np.ndarray:
        return always_a(ids) * (np.nan if ids[0] == 2 and len(ids) == 3 else 1)

    batch = batch_of(answer)
    good, bad, late = ask(batch, 4), ask(batch, 4, [2]), ask(batch, 4, [2])
    batch.step()
    late.cancel()
    assert batch.step() == [(late, ""), (good, "a"), (bad, "a")]
    assert batch.step() == [(good, "a"), (bad, "")]
    assert (bad.finish_reason, bad.pieces, bad.ids) == ("error", ["a", "a"], [0, 0])
    with pytest.raises(LlambdaError, match="not finite") as caught:
        _ = bad.text
    assert caught.value is bad.error
    assert list(batch.run()) == [(good, "a")]
    assert outcome(good) == ("aaaa", [0] * 4, "length")


def test_a_state_without_memory_is_its_own_failure():
    batch = batch_of()
    new_state = batch.engine.new_state

    def no_memory_for_more(context: int) -> State:
        if context > 9:
            raise MemoryError("too much")
        return new_state(context)

    batch.engine.new_state = no_memory_for_more
    big, little = ask(batch, 20), ask(batch, 2)
    assert batch.step() == [(big, ""), (little, "a")]
    assert isinstance(big.error, MemoryError)
    assert list(batch.run()) == [(little, "a")]


def test_when_the_engine_fails_all_in_the_step_fail_and_the_next_go_on():
    def answer(ids: list[int]) -> np.ndarray:
        if ids == [2, 0]:
            raise RuntimeError("the engine broke")
        return always_a(ids)

    batch = batch_of(answer, max_running=2)
    first, second, third = ask(batch), ask(batch, 5, [2]), ask(batch, 2)
    list(batch.run())
    assert first.error is second.error
    assert (first.finish_reason, first.ids, first.pieces) == ("error", [0], ["a"])
    with pytest.raises(RuntimeError, match="the engine broke"):
        _ = first.text
    assert any("in answer" in note for note in first.error.__notes__)  # where it was raised
    assert outcome(third) == ("aa", [0, 0], "length")


def test_an_interrupt_cancels_who_runs():
    interrupts = [KeyboardInterrupt()]

    def answer(ids: list[int]) -> np.ndarray:
        if len(ids) == 3 and interrupts:
            raise interrupts.pop()
        return always_a(ids)

    batch = batch_of(answer, max_running=2)
    first, second, third = (ask(batch, 4) for _ in range(3))
    with pytest.raises(KeyboardInterrupt):
        list(batch.run())
    assert list(batch.run()) == [(first, ""), (second, ""), *[(third, "a")] * 4]
    assert outcome(first) == outcome(second) == ("aa", [0, 0], "cancelled")
    assert outcome(third) == ("aaaa", [0] * 4, "length")


def test_an_engine_for_one_sequence_is_refused():
    engine = ScriptedEngine(always_a, len(VOCAB))
    with pytest.raises(UnsupportedError, match=r"'scripted' evaluates one sequence .* 'fused'"):
        Batch(engine, spelling(VOCAB), CONTEXT)


@pytest.mark.parametrize("name", ["max_running", "prompt_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_impossible_bounds_are_refused(name: str, value: Any):
    with pytest.raises(InputError, match=f"{name} is {value}"):
        batch_of(**{name: value})


# ---------------------------------------------------------------- memory, statistics, the log


def test_only_who_runs_has_a_state():
    def answer(ids: list[int]) -> np.ndarray:
        if ids[0] == 3 and len(ids) == 4:
            raise RuntimeError("the engine broke")
        return always_a(ids) * (np.nan if ids[0] == 2 and len(ids) == 3 else 1)

    batch = batch_of(answer, max_running=3)
    answers = [ask(batch, tokens, [tokens % 4, 1]) for tokens in range(1, 20)]  # all are kept
    answers[9].cancel()
    while batch.busy:
        batch.step()
        running = [each for each in answers if each.state is not None]
        assert len(batch.engine.states) == len(running) <= 3
    assert {each.finish_reason for each in answers} == {"length", "error", "cancelled"}
    assert len(batch.engine.states) == 0


def test_states_are_freed_in_the_fused_engine(
    fused: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
):
    batch = fused(max_running=2)
    states: weakref.WeakSet[State] = weakref.WeakSet()
    new_state = batch.engine.new_state

    def noted(context: int) -> State:
        state = new_state(context)
        states.add(state)
        return state

    monkeypatch.setattr(batch.engine, "new_state", noted)
    answers = [ask(batch, tokens) for tokens in (1, 2, 3, 4)]
    for _ in batch.run():
        assert len(states) <= 2
    assert len(states) == 0
    assert all(answer.ids for answer in answers)


def test_stats():
    batch = batch_of()
    answers = [ask(batch, 3, [1, 1]), ask(batch, 1)]
    list(batch.run())
    for answer, (prompt, new) in zip(answers, [(2, 3), (1, 1)], strict=True):
        stats = answer.stats
        assert (stats["prompt_tokens"], stats["new_tokens"]) == (prompt, new)
        assert (stats["engine"], stats["seed"]) == ("scripted", answer.seed)
        assert 0 < stats["prefill_s"] <= stats["first_token_s"]
        assert (stats["tokens_per_s"] > 0) == (new > 1)


def test_the_log_tells_of_each_request(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    batch = batch_of(max_running=1, log=EventLog(path))
    ask(batch, 2, [1, 1, 1])
    ask(batch, 1).cancel()
    ask(batch, 1)
    list(batch.run())
    events: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        event = json.loads(line)
        assert event["seconds"] >= 0
        events[event["request"]].append((event["event"], event["tokens"]))
    assert events == {
        0: [("join", 3), ("prefill", 3), ("tokens", 2), ("finish", 2)],
        1: [("finish", 0)],
        2: [("join", 1), ("prefill", 1), ("tokens", 1), ("finish", 1)],
    }


def test_a_log_that_fails_is_a_failure(tmp_path: Path):
    log = EventLog(tmp_path / "log")
    batch = batch_of(log=log)
    answers = [ask(batch, 3), ask(batch, 1)]
    batch.step()
    log.path = tmp_path / "gone" / "log"
    answers += [ask(batch, 1)]
    list(batch.run())
    assert [answer.finish_reason for answer in answers] == ["error", "length", "error"]
    with pytest.raises(LlambdaError, match="no such file"):
        _ = answers[0].text


# ---------------------------------------------------------------- planted mistakes


def logits_of_the_neighbour(patch: pytest.MonkeyPatch, batch: Batch) -> None:
    right = batch._forward_batch
    patch.setattr(batch, "_forward_batch", lambda states, ids: right(states, ids)[::-1])


def one_random_generator_for_all(patch: pytest.MonkeyPatch, batch: Batch) -> None:
    shared = np.random.Generator(np.random.PCG64(0))
    begin = Sampler.__init__

    def wrong(sampler: Sampler, sampling: Sampling) -> None:
        begin(sampler, sampling)
        sampler._random = shared

    patch.setattr(Sampler, "__init__", wrong)


def one_decoder_for_all(patch: pytest.MonkeyPatch, batch: Batch) -> None:
    stream = TextStream(batch.tokenizer)
    patch.setattr(batch.tokenizer, "stream", lambda: stream)


def a_place_that_is_not_cleared(patch: pytest.MonkeyPatch, batch: Batch) -> None:
    """States are used again with the ids of who had them before."""
    new_state, old = batch.engine.new_state, []

    def wrong(context: int) -> State:
        state = old.pop() if len(old) == 3 else new_state(context)
        old.insert(0, state)
        return state

    patch.setattr(batch.engine, "new_state", wrong)


def one_cache_for_all(patch: pytest.MonkeyPatch, batch: Batch) -> None:
    new_state, first = batch.engine.new_state, batch.engine.new_state(batch.context)

    def wrong(context: int) -> State:
        state = new_state(context)
        state.cache, state.room = first.cache, first.room
        return state

    patch.setattr(batch.engine, "new_state", wrong)


def one_row_of_logits_for_all(patch: pytest.MonkeyPatch, batch: Batch) -> None:
    new_state, logits = batch.engine.new_state, batch.engine.new_state(1).logits

    def wrong(context: int) -> State:
        state = new_state(context)
        state.logits = logits
        return state

    patch.setattr(batch.engine, "new_state", wrong)


def edited(owner: type, name: str, old: str, new: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch, batch: Batch | None = None) -> None:
        patch.setattr(owner, name, mutant(getattr(owner, name), (old, new)))

    return plant


def check_planted(plant: Plant, patch: pytest.MonkeyPatch, batch: Batch) -> None:
    """Answers that overlap in all ways, with the mistake, against those alone, without it."""
    requests = [
        Request([i % batch.engine.config.vocab_size, 7], Sampling(1.5, seed=i), 12, at=i // 2)
        for i in range(8)
    ]
    expected = [alone(batch, request) for request in requests]
    plant(patch, batch)
    compare(requests, play(batch, requests), expected)


def nothing(patch: pytest.MonkeyPatch, batch: Batch) -> None:
    """No mistake, and nothing is noticed."""


IN_THE_MIDDLE_OF_A_PROMPT = edited(Batch, "_evaluate", "if not answer.next_ids:", "if True:")
IDS_OF_THE_ONE_BEFORE = edited(
    Batch, "_tasks", "ids = answer.next_ids[", "ids = (tasks or [[answer]])[-1][0].next_ids["
)
LEAKS = [
    logits_of_the_neighbour,
    one_random_generator_for_all,
    one_decoder_for_all,
    a_place_that_is_not_cleared,
    IN_THE_MIDDLE_OF_A_PROMPT,
    IDS_OF_THE_ONE_BEFORE,
]


@pytest.mark.parametrize("plant", [nothing, *LEAKS])
def test_a_leak_would_be_noticed(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    batch = batch_of(scrambled, max_running=3, prompt_tokens=1)
    if plant is nothing:
        check_planted(plant, monkeypatch, batch)
    else:
        with pytest.raises(AssertionError):
            check_planted(plant, monkeypatch, batch)


@pytest.mark.parametrize("plant", [one_cache_for_all, one_row_of_logits_for_all])
def test_a_leak_in_the_fused_engine_would_be_noticed(
    plant: Plant, fused: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(AssertionError):
        check_planted(plant, monkeypatch, fused(max_running=3, prompt_tokens=1))


MISTAKES = [
    ("popleft", "pop", Batch, "_let_join", test_a_place_is_taken_as_soon_as_it_is_free),
    ("<", "<=", Batch, "_let_join", test_a_place_is_taken_as_soon_as_it_is_free),
    ("(answer, 1)", "(answer, 1) + 1", Batch, "_tasks", test_a_long_prompt_stalls_nobody),
    ("self._fail(answer, error)", "raise", Batch, "_do", test_one_failure_is_nobody_elses),
    ("without_frames(error)", "error", Batch, "_fail", test_only_who_runs_has_a_state),
    ("None, reason", "self.state, reason", Answer, "_finish", test_only_who_runs_has_a_state),
    ("if self.cancelled", "if 0", Answer, "take", test_cancelled_in_a_step_it_draws_no_more),
]


@pytest.mark.parametrize(("old", "new", "owner", "name", "check"), MISTAKES)
def test_a_mistake_would_be_noticed(
    old: str,
    new: str,
    owner: type,
    name: str,
    check: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
):
    edited(owner, name, old, new)(monkeypatch)
    with pytest.raises((AssertionError, LlambdaError)):
        check()


def test_events_lost_with_their_reader_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    def run(batch: Batch) -> Iterator[Event]:
        while batch.busy:
            yield from batch.step()

    monkeypatch.setattr(Batch, "run", run)
    with pytest.raises(AssertionError):
        test_leaving_the_loop_loses_nothing()


def test_a_greedy_dealer_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    greedy = mutant(deal, ("turn.append(i)", "turn.appendleft(i)"))
    monkeypatch.setattr("llambda.batching.deal", greedy)
    with pytest.raises(AssertionError):
        test_a_long_prompt_stalls_nobody()
