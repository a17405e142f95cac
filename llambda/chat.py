"""Conversations as a model was trained to read them: its own Jinja template. Lesson 05.

A template comes out of a model file, so it is a stranger's program: it runs in Jinja's immutable
sandbox, without access to Python's internals, with bounded ranges, repetitions and output. What
people write is never parsed for special tokens: a message that spells <|im_end|> stays a message.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import InputError, UnsupportedError
from .tokenizer import Tokenizer

Message = Mapping[str, str]  # {"role": "user", "content": "..."}

MAX_OUTPUT = 10_000_000  # characters a template may write, and a repetition may make


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, in which a product or power cannot fill the memory."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        for thing, times in ((left, right), (right, left)):
            repeats = isinstance(thing, str | list | tuple) and isinstance(times, int)
            if repeats and len(thing) * times > MAX_OUTPUT:
                raise SecurityError("a repetition is too long")
        if operator == "**" and max(abs(left), abs(right)) > 10_000:
            raise SecurityError("a power is too large")
        return super().call_binop(context, operator, left, right)


def _environment() -> Sandbox:
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _tojson
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    """JSON as it is, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def render(
    template: str,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
) -> str:
    """The conversation as text, with the beginning of the answer if asked for.

    Raises InputError when the template refuses the messages, UnsupportedError when it is no sound
    or no safe template.
    """
    check_messages(messages)
    text: list[str] = []
    size = 0
    try:
        pieces = (
            _environment()
            .from_string(template)
            .generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token=bos_token,
                eos_token=eos_token,
            )
        )
        for piece in pieces:
            size += len(piece)
            if size > MAX_OUTPUT:
                raise SecurityError("it writes too much")
            text.append(piece)
    except (SecurityError, OverflowError) as error:  # the latter for a range that is too long
        raise UnsupportedError(
            f"the model's chat template does what templates may not: {error}",
            fix="Do not trust this model file.",
        ) from error
    except jinja2.TemplateSyntaxError as error:
        raise UnsupportedError(
            f"the model's chat template is no sound Jinja: {error}",
            fix="Use generate with a prompt of your own.",
        ) from error
    except Exception as error:  # a template can raise anything
        raise InputError(
            f"the model's chat template refuses the messages: {error}",
            fix="Alternate user and assistant, with at most one system message in front.",
        ) from error
    return "".join(text)


def check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise InputError("there are no messages", fix="Give at least one.")
    for message in messages:
        content_is_text = isinstance(message.get("content"), str)
        if not (content_is_text and isinstance(message.get("role"), str)):
            raise InputError(
                f"a message needs a role and a content, both text, not {dict(message)!r}"
            )


def encode(
    tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True
) -> list[int]:
    """Token ids of a conversation. Special tokens come from the template, never from a message.

    Whatever in a message spells a special token is hidden behind a mark of private-use characters
    while the template runs and special tokens are found, and is plain text again after that.
    """
    if tokenizer.chat_template is None:
        raise UnsupportedError(
            "this model has no chat template",
            fix="It was not made for conversations: use generate.",
        )
    names = tokenizer.special_names()
    marks = {name: f"\ue000{i}\ue001" for i, name in enumerate(names)}

    def hidden(text: str) -> str:
        return _replace(text.replace("\ue000", "\ue000\ue001"), marks)

    shown = {mark: name for name, mark in marks.items()} | {"\ue000\ue001": "\ue000"}
    text = render(
        tokenizer.chat_template,
        [{key: hidden(value) for key, value in message.items()} for message in messages],
        add_generation_prompt,
        bos_token=tokenizer.name_of(tokenizer.bos_id),
        eos_token=tokenizer.name_of(tokenizer.eos_id),
    )
    ids: list[int] = []
    for piece in re.split(_any_of(names), text) if names else [text]:
        special = piece in marks
        plain = piece if special else _replace(piece, shown)
        ids += tokenizer.encode(plain, parse_special=special, add_bos=False)
    return ids


def _replace(text: str, table: Mapping[str, str]) -> str:
    """Every occurrence of a key replaced by its value, in one pass, the longest key first."""
    return re.sub(_any_of(table), lambda match: table[match.group()], text) if table else text


def _any_of(words: Sequence[str] | Mapping[str, str]) -> str:
    return f"({'|'.join(re.escape(word) for word in sorted(words, key=len, reverse=True))})"
