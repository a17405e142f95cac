"""Conversations: what is new alone is evaluated, and the answers are those of a fresh start."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import write_small

import llambda
from llambda import chat, repl
from llambda.conversation import Conversation, common_prefix
from llambda.errors import ContextError, InputError

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


def test_a_conversation_longer_than_the_context(model: llambda.Model):
    conversation = Conversation(model, **SETTINGS)
    talk(conversation, ["the"])
    before = list(conversation.messages)
    with pytest.raises(ContextError, match="context"):
        conversation.ask("x" * 500)
    assert conversation.messages == before
    messages = [*before, {"role": "user", "content": "on"}]
    assert conversation.ask("on").ids == model.chat(messages, **SETTINGS).ids


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
