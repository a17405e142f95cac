"""Conversations: what is new alone is evaluated, and the answers are those of a fresh start."""

import builtins
import gc
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import write_small

import llambda
from llambda import chat, generate, repl
from llambda.conversation import Conversation, common_prefix
from llambda.engines.base import State
from llambda.errors import ContextError, InputError, UnsupportedError
from llambda.eventlog import EventLog

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SETTINGS: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
QUESTIONS = ["on the", "the", "  one\nmore "]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llambda.Model:
    path = tmp_path_factory.mktemp("chat") / "small.gguf"
    write_small(
        path,
        sizes={"context_length": 400},
        extra=lambda writer: writer.add_chat_template(TEMPLATE),
    )
    return llambda.load(path)


class Calls:
    """The engine's forward calls, counted by ids."""

    def __init__(self, model: llambda.Model, monkeypatch: pytest.MonkeyPatch):
        self.evaluated: list[int] = []
        forward = model.engine.forward

        def counted(state: Any, ids: Any, *args: Any, **named: Any) -> Any:
            self.evaluated.append(len(ids))
            return forward(state, ids, *args, **named)

        monkeypatch.setattr(model.engine, "forward", counted)


def talk(conversation: Conversation, questions: list[str]) -> list[list[int]]:
    """The ids of every answer."""
    answers = []
    for question in questions:
        answer = conversation.ask(question)
        answers.append(answer.ids)
        conversation.keep(answer)
    return answers


@pytest.mark.parametrize("system", [None, "be one"])
def test_answers_are_those_of_a_fresh_start(model: llambda.Model, system: str | None):
    conversation = Conversation(model, system, **SETTINGS)
    messages = [] if system is None else [{"role": "system", "content": system}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        fresh = model.chat(messages, **SETTINGS)
        answer = conversation.ask(question)
        assert answer.ids == fresh.ids
        assert answer.prompt_ids == chat.encode(model.tokenizer, messages)
        conversation.keep(answer)
        messages.append({"role": "assistant", "content": fresh.text})
        assert conversation.messages == messages


def test_what_was_evaluated_is_not_evaluated_again(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch
):
    conversation = Conversation(model, **SETTINGS)
    calls = Calls(model, monkeypatch)
    talk(conversation, ["a question of some length"])
    first, calls.evaluated = calls.evaluated[0], []
    answer = conversation.ask("x")
    assert answer.ids
    assert calls.evaluated[0] < len(answer.prompt_ids) - first + 2


def test_the_same_question_again_after_a_reset(model: llambda.Model):
    """The state then holds all of the prompt and more; its last token is evaluated all the same."""
    conversation = Conversation(model, **SETTINGS)
    first = talk(conversation, QUESTIONS)
    conversation.reset()
    assert conversation.messages == []
    assert talk(conversation, QUESTIONS) == first


def test_a_prefix_that_is_too_long_would_be_noticed(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch
):
    """The keys and values of another prompt would give another answer."""
    monkeypatch.setattr(
        "llambda.conversation.common_prefix", lambda old, new: min(len(old), len(new) - 1)
    )
    conversation = Conversation(model, **SETTINGS)
    talk(conversation, ["the on"])
    conversation.reset()
    with pytest.raises(InputError, match="holds other ids"):
        conversation.ask("one thing")


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_went(model: llambda.Model):
    conversation = Conversation(model, **SETTINGS)
    answer = conversation.ask("the")
    pieces = iter(answer)
    shown = next(pieces)
    conversation.keep(answer)
    assert answer.finish_reason == "cancelled"
    assert conversation.messages[-1] == {"role": "assistant", "content": shown}
    messages = [*conversation.messages, {"role": "user", "content": "on"}]
    assert conversation.ask("on").ids == model.chat(messages, **SETTINGS).ids


def test_text_that_was_held_back_is_kept_and_shown(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    settings = SETTINGS | {"max_tokens": 4}
    whole = Conversation(model, **settings).ask("the").text
    interrupt_in(monkeypatch, model.engine, "forward", at=4)
    held = Conversation(model, stop=[f"{whole} ZZZ"], **settings)
    type_lines(monkeypatch, "the\n")
    repl.converse(held)
    monkeypatch.undo()
    text = held.messages[-1]["content"]
    assert 0 < len(text) < len(whole) and whole.startswith(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_an_answer_to_an_earlier_question_is_not_kept(model: llambda.Model):
    """Nor can it be read on: the state is the new answer's."""
    conversation = Conversation(model, **SETTINGS)
    first = conversation.ask("the")
    assert next(iter(first))
    second = conversation.ask("on")
    with pytest.raises(InputError, match="the last question"):
        conversation.keep(first)
    assert second.ids == model.chat([{"role": "user", "content": "on"}], **SETTINGS).ids
    with pytest.raises(InputError, match="used for something else"):
        _ = first.text
    conversation.keep(second)
    assert [m["content"] for m in conversation.messages] == ["on", second.text]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1},
        {"top_k": -1},
        {"top_p": 2},
        {"min_p": 2},
        {"repeat_penalty": 0},
        {"seed": -1},
        {"max_tokens": -1},
        {"stop": [""]},
        {"system": "\udcff"},
    ],
)
def test_settings_for_no_answer_are_refused_at_once(model: llambda.Model, settings: dict[str, Any]):
    with pytest.raises(InputError) as caught:
        Conversation(model, **settings)
    assert caught.value.fix


def test_a_question_without_an_answer_is_logged(model: llambda.Model, tmp_path: Path):
    log = tmp_path / "log"
    conversation = Conversation(model, log=EventLog(log), **SETTINGS)
    with pytest.raises(ContextError) as caught:
        conversation.ask("x" * 500)
    model.tokenizer.chat_template, template = None, model.tokenizer.chat_template
    try:
        with pytest.raises(UnsupportedError, match="template"):
            conversation.ask("x")
    finally:
        model.tokenizer.chat_template = template
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert (first["event"], first["error"]) == ("error", str(caught.value))
    assert second["event"] == "error" and "template" in second["error"]


def test_a_conversation_longer_than_the_context(model: llambda.Model):
    conversation = Conversation(model, **SETTINGS)
    talk(conversation, ["the"])
    before = list(conversation.messages)
    with pytest.raises(ContextError, match="context"):
        conversation.ask("x" * 500)
    assert conversation.messages == before
    messages = [*before, {"role": "user", "content": "on"}]
    assert conversation.ask("on").ids == model.chat(messages, **SETTINGS).ids


def interrupt_in(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int | None = None
) -> None:
    """Have Ctrl-C pressed as this function begins and as it ends, in its n-th call or in each."""
    function, calls = getattr(owner, name), []

    def interrupted(*args: Any, **named: Any) -> Any:
        calls.append(name)
        if at in (None, len(calls)):
            signal.raise_signal(signal.SIGINT)
        result = function(*args, **named)
        if at in (None, len(calls)):
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, name, interrupted)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2), min_size=1))
def test_common_prefix(old: list[int], new: list[int]):
    n = common_prefix(old, new)
    assert old[:n] == new[:n]
    assert n < len(new)
    assert n == len(new) - 1 or n == len(old) or old[n] != new[n]


# ---------------------------------------------------------------- the terminal


def type_lines(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_conversation_in_the_terminal(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    conversation = Conversation(model, **SETTINGS)
    type_lines(monkeypatch, "on the\n\n   \nthe\n/new\n/what\non the\n")
    repl.converse(conversation)
    out, err = capsys.readouterr()
    fresh = Conversation(model, **SETTINGS)
    texts = []
    for question in ("on the", "the"):
        answer = fresh.ask(question)
        texts.append(answer.text)
        fresh.keep(answer)
    assert out == "".join(f"{text}\n" for text in [*texts, texts[0]])
    assert err == f"A new conversation.\n{repl.HELP}\n"


def test_an_interrupt_ends_the_answer_not_the_conversation(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    forward, calls = model.engine.forward, []

    def interrupted(*args: Any, **named: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return forward(*args, **named)

    monkeypatch.setattr(model.engine, "forward", interrupted)
    conversation = Conversation(model, **SETTINGS)
    type_lines(monkeypatch, "the\non\n")
    repl.converse(conversation)
    monkeypatch.undo()
    out, _ = capsys.readouterr()
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2
    first, second = (m["content"] for m in conversation.messages[1::2])
    assert out == f"{first}\n{second}\n"
    messages = [*conversation.messages[:2], {"role": "user", "content": "on"}]
    assert second == model.chat(messages, **SETTINGS).text


def typing(lines: list[str], asked: Callable[[int], None]) -> Callable[[str], str]:
    """Stands in for `input`; says how many lines were asked for."""
    count = 0

    def typed(prompt: str) -> str:
        nonlocal count
        count += 1
        asked(count)
        if count > len(lines):
            raise EOFError
        return lines[count - 1]

    return typed


WATCHED = tuple(module.__file__ for module in (repl, generate, llambda.conversation))


class InterruptAt:
    """Ctrl-C at the n-th moment between the first prompt and the second.

    Those are where Python looks for signals: when a function begins, and when one of C has ended.
    """

    def __init__(self, number: int):
        self.left = number

    def asked(self, count: int) -> None:
        sys.setprofile(self.watch if count == 1 else None)

    def watch(self, frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_filename in WATCHED and event in ("call", "c_return"):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)


def check_unharmed(conversation: Conversation, log: Path, last: str) -> None:
    """The last question has its whole answer, and the log an end of all that were kept."""
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    *before, question, answer = conversation.messages
    assert question["content"] == last
    expected = conversation.model.chat([*before, question], **SETTINGS)
    assert answer["content"] == expected.text
    events = [json.loads(line) for line in log.read_text().splitlines()]
    finishes = [event for event in events if event["event"] == "finish"]
    assert len(finishes) == len(roles) // 2
    assert sum(e["tokens"] for e in events if e["event"] == "tokens") == sum(
        e["tokens"] for e in finishes
    )


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What is raised while garbage is collected, at moments of Python's choice, is dropped."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_an_interrupt_at_any_moment_ends_at_most_the_answer(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = Conversation(model, **SETTINGS).ask("the").text
    stop = [f"{whole[3:]} ZZZ"]  # its beginning is held back until the end
    outcomes, number, interrupt = set(), 0, InterruptAt(1)
    while interrupt.left <= 0 or number == 0:
        number += 1
        log, interrupt = tmp_path / f"{number}", InterruptAt(number)
        conversation = Conversation(model, log=EventLog(log), **SETTINGS, stop=stop)
        monkeypatch.setattr(builtins, "input", typing(["the", "on"], interrupt.asked))
        repl.converse(conversation)
        check_unharmed(conversation, log, "on")
        if len(conversation.messages) == 4:
            assert whole.startswith(conversation.messages[1]["content"])
        outcomes.add(tuple(len(message["content"]) > 0 for message in conversation.messages[:-2]))
    assert number > 100
    assert outcomes == {(), (True, False), (True, True)}


PLACES = {
    "ask": (Conversation, "ask"),
    "keep": (Conversation, "keep"),
    "encode": (chat, "encode"),
    "render": (chat, "render"),
    "truncate": (State, "truncate"),
    "generate": (llambda.Model, "generate"),
    "start": (generate.Answer, "start"),
    "take": (generate.Answer, "take"),
    "end": (generate.Answer, "end"),
    "_finish": (generate.Answer, "_finish"),
    "_log_tokens": (generate.Answer, "_log_tokens"),
    "cancel": (generate.Generation, "cancel"),
    "write": (EventLog, "write"),
    "print": (builtins, "print"),
}


@pytest.mark.parametrize("second", PLACES)
@pytest.mark.parametrize("at", [1, 3])
def test_interrupts_one_after_another(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, second: str, at: int
):
    """One in a step of the answer, or before it, and then whenever something else is called."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = tmp_path / "log"
    conversation = Conversation(model, log=EventLog(log), **SETTINGS)
    with monkeypatch.context() as patched:
        interrupt_in(patched, model.engine, "forward", at)
        interrupt_in(patched, *PLACES[second])
        type_lines(patched, "the\non\n")
        repl.converse(conversation)
    type_lines(monkeypatch, "one\n")
    repl.converse(conversation)
    check_unharmed(conversation, log, "one")


def test_an_interrupt_just_after_a_question_withdraws_it(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    conversation = Conversation(model, **SETTINGS)
    with monkeypatch.context() as patched:
        interrupt_in(patched, repl, "answer", at=1)
        type_lines(patched, "the\non\n")
        repl.converse(conversation)
    assert [m["content"] for m in conversation.messages[::2]] == ["on"]
    assert capsys.readouterr().out == f"\n{conversation.messages[1]['content']}\n"


def test_an_interrupt_never_reaches_the_engine(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch
):
    """Its threads may be waiting for one another: the step ends, and the answer with it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    forward, steps = model.engine.forward, []

    def interrupted(*args: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        steps.append(forward(*args, **named))
        return steps[-1]

    with monkeypatch.context() as patched:
        patched.setattr(model.engine, "forward", interrupted)
        type_lines(patched, "the\n")
        repl.converse(Conversation(model, **SETTINGS))
    assert len(steps) == 1


def test_an_interrupt_is_left_to_a_handler_that_is_not_pythons():
    """A shell has its background jobs ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with repl.Interrupts().handled():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    with repl.Interrupts().handled():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_at_the_prompt_goes_on(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lines = iter([KeyboardInterrupt, "the", EOFError])

    def typed(prompt: str) -> str:
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", typed)
    conversation = Conversation(model, **SETTINGS)
    repl.converse(conversation)
    assert len(conversation.messages) == 2
    assert capsys.readouterr().err == f"\n{repl.HELP}\n"


def test_what_cannot_be_answered_is_said_and_loses_nothing(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    conversation = Conversation(model, **SETTINGS)
    type_lines(monkeypatch, f"the\n{'x' * 500}\non\n")
    repl.converse(conversation)
    _, err = capsys.readouterr()
    assert [message["content"] for message in conversation.messages[::2]] == ["the", "on"]
    assert "context" in err and "/new" in err and "Traceback" not in err


def test_a_new_conversation_is_advised_only_to_who_has_one(
    model: llambda.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    type_lines(monkeypatch, f"{'x' * 500}\n")
    repl.converse(Conversation(model, "be one", **SETTINGS))
    err = capsys.readouterr().err
    assert "Shorten the prompt" in err and "/new" not in err


def test_a_model_without_a_template_is_refused(tiny_path: Path):
    with llambda.load(tiny_path) as tiny, pytest.raises((InputError, ValueError), match="template"):
        Conversation(tiny).ask("hello")


@pytest.mark.real
def test_the_real_model_answers(smollm2_path: Path):
    # With exact weights: the best first token is better than the next by less than rounding costs.
    with llambda.load(smollm2_path, "vectorized") as model:
        conversation = Conversation(model, temperature=0, max_tokens=24)
        for question, word in (
            ("What is the capital of France?", "Paris"),
            ("And of Italy?", "Rome"),
        ):
            answer = conversation.ask(question)
            assert word in answer.text
            assert answer.finish_reason == "stop"
            conversation.keep(answer)
