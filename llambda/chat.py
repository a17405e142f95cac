"""Conversations as a model was trained to read them: its own Jinja template. Lesson 05.

A template comes out of a model file, so it is a stranger's program: it runs in a sandbox and on a
budget. What people write is never parsed for special tokens: a message that spells <|im_end|>
stays a message.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial, update_wrapper
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import do_format
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import InputError, UnsupportedError, quoted
from .tokenizer import Tokenizer

Message = Mapping[str, str]  # {"role": "user", "content": "..."}

MAX_TEMPLATE = 100_000  # characters of a template, for compiling takes time too
MAX_OUTPUT = 10_000_000  # characters that it may write
MAX_MADE = 200_000_000  # bytes that it may make on the way
MAX_SECONDS = 10.0
MAX_NUMBER = 1_000_000  # what it may repeat, pad or indent by


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, on a budget, with all that transformers offers to templates.

    Jinja keeps a template away from files, from Python's internals and from changing what it is
    given, but not from computing without end. Here each turn of a loop, each call and whatever is
    made has a price. That stops the obvious bombs; with replace, join or nested lists a template
    can still waste time and memory.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.budget = MAX_MADE
        self.deadline = time.monotonic() + MAX_SECONDS
        del self.globals["lipsum"]  # pages of text, and never the same
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        self.filters["tojson"] = _tojson
        self.filters["format"] = _format
        for name, call in self.filters.items():
            self.filters[name] = update_wrapper(partial(self._bounded, call), call)

    def load(self, source: str) -> jinja2.Template:
        """The compiled template, in which loops and ~ have their price too."""
        if len(source) > MAX_TEMPLATE:
            raise SecurityError(f"it has more than {MAX_TEMPLATE:,} characters")
        tree = self.parse(source)

        def call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
            return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)

        for loop in list(tree.find_all(nodes.For)):
            loop.body.insert(0, nodes.ExprStmt(call("spend", [])))
        for joined in list(tree.find_all(nodes.Concat)):
            joined.nodes = [call("tilde", joined.nodes)]
        tree.set_environment(self)
        return self.from_string(tree)

    def spend(self, amount: int = 100) -> None:
        self.budget -= amount
        if self.budget < 0 or time.monotonic() > self.deadline:
            raise SecurityError("it makes too much or takes too long")

    def _paid(self, made: Any) -> Any:
        self.spend(sys.getsizeof(made))
        return made

    def _bounded(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What a filter, method or function makes of its subject and its arguments."""
        if any(isinstance(a, int) and a > MAX_NUMBER for a in (*args[1:], *named.values())):
            raise SecurityError("a number is too large")
        return self._paid(call(*args, **named))

    def call(self, context: Any, function: Any, /, *args: Any, **named: Any) -> Any:
        return self._bounded(super().call, context, function, *args, **named)

    def concat(self, parts: Iterable[str]) -> str:  # of a macro or a {% set %} block
        return self._paid("".join(parts))

    def tilde(self, *parts: Any) -> str:
        return self.concat(map(str, parts))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int | float) and isinstance(right, int | float):
            if max(abs(left), abs(right)) > (10_000 if operator == "**" else 1e15):
                raise SecurityError("a number is too large")
        elif operator == "*":
            times, repeated = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int) and times * len(repeated) > MAX_OUTPUT:
                raise SecurityError("a repetition is too long")
        elif operator == "%" and isinstance(left, str):
            _check_widths(left)
        return self._paid(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_widths(value.__self__)
        return wrapped

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        changes = obj is dict and attr != "fromkeys"  # dict.update(message, ...) would
        return not changes and super().is_safe_attribute(obj, attr, value)


def _check_widths(form: str) -> None:
    """Refuse a text for % or format that pads by millions, as '%09999999d' does, or by a value."""
    if re.search(r"[0-9]{7}|%[-+ #0]*\*|\{[^{}]*:[^{}]*\{", re.sub(r"%%|\{\{", "", form)):
        raise SecurityError("a width is too large")


def _format(form: Any, *args: Any, **named: Any) -> str:
    _check_widths(str(form))
    return do_format(form, *args, **named)


class GenerationTag(Extension):
    """{% generation %}...{% endgeneration %}: says what to train on, and changes no text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise InputError(
        f"the model's chat template refuses the messages: {message}",
        fix="Alternate user and assistant, with at most one system message in front.",
    )


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without escapes for HTML."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def render(
    template: str,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
) -> str:
    """The conversation as text, with the beginning of the answer if asked for.

    It is what `apply_chat_template` of transformers makes of these messages. Raises InputError
    when the template refuses them, UnsupportedError when it is no sound or no safe template.
    """
    messages = checked_messages(messages)
    text: list[str] = []
    size = 0
    try:
        pieces = (
            Sandbox()
            .load(template)
            .generate(
                messages=[{k: str.__str__(v) for k, v in message.items()} for message in messages],
                tools=None,
                documents=None,
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
    except InputError:  # from raise_exception
        raise
    except (SecurityError, OverflowError) as error:  # the latter for a range that is too long
        raise UnsupportedError(
            f"the model's chat template does what templates may not: {error}",
            fix="Do not trust this model file.",
        ) from error
    except Exception as error:  # a template can raise anything
        raise UnsupportedError(
            f"the model's chat template fails: {type(error).__name__}: {error}",
            fix="Use generate with a prompt of your own.",
        ) from error
    return "".join(text)


def checked_messages(messages: Iterable[Message]) -> list[Message]:
    """As a list: what is iterated once may be empty after that."""
    if not isinstance(messages, Iterable):
        raise InputError(f"messages is {quoted(messages)}", fix="It must be a list of messages.")
    messages = list(messages)
    if not messages:
        raise InputError("there are no messages", fix="Give at least one.")
    for message in messages:
        if not (
            isinstance(message, Mapping)
            and {"role", "content"} <= message.keys()
            and all(isinstance(text, str) for pair in message.items() for text in pair)
        ):
            raise InputError(
                f"a message needs a role and a content, both text, not {quoted(message)}"
            )
    return messages


def encode(
    tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True
) -> list[int]:
    """Token ids of a conversation. Special tokens come from the template, never from a message.

    Where a message spells a special token's name, an unused character stands for it while the
    template runs and special tokens are found, and is plain text again after that. (A template
    that puts such a name together from parts of messages gets the token all the same.)

    No beginning-of-sequence token is added, even if `tokenizer.adds_bos`: the model was trained on
    what the template writes, and it writes the token itself where there should be one.
    """
    template = tokenizer.chat_template
    if template is None:
        raise UnsupportedError(
            "this model has no chat template",
            fix="It was not made for conversations: use generate.",
        )
    messages = checked_messages(messages)
    names = [name for name in tokenizer.special_names() if name]
    written = "\n".join(text for message in messages for text in message.values())
    unused = (c for c in map(chr, range(0x10FFFD, 0xE000, -1)) if c not in template + written)
    marks = {name: next(unused) for name in names if name in written}
    text = render(
        template,
        [{key: _replace(text, marks) for key, text in message.items()} for message in messages],
        add_generation_prompt,
        bos_token=tokenizer.name_of(tokenizer.bos_id),
        eos_token=tokenizer.name_of(tokenizer.eos_id),
    )
    if not marks:
        return tokenizer.encode(text, parse_special=True, add_bos=False)

    shown = {mark: name for name, mark in marks.items()}
    ids: list[int] = []
    for piece in re.split(_any_of(names), text):
        special = piece in names
        plain = piece if special else _replace(piece, shown)
        ids += tokenizer.encode(plain, parse_special=special, add_bos=False)
    return ids


def _replace(text: str, table: Mapping[str, str]) -> str:
    """Every occurrence of a key replaced by its value, in one pass, the longest key first."""
    return re.sub(_any_of(table), lambda match: table[match.group()], text) if table else text


def _any_of(words: Iterable[str]) -> str:
    return f"({'|'.join(re.escape(word) for word in sorted(words, key=len, reverse=True))})"
