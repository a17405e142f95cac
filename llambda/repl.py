"""The terminal conversation behind `llambda chat`."""

import sys
from collections.abc import Iterator
from contextlib import suppress

from .conversation import Conversation
from .errors import ContextError, InputError

HELP = "Ctrl-C stops an answer, /new begins anew, Ctrl-D ends."


def converse(conversation: Conversation) -> None:
    """Read a question a line, stream its answer, until the input ends.

    Ctrl-C ends the answer that is being written, not the program. What cannot be answered, a
    conversation longer than the context for one, is said on stderr and loses nothing.
    """
    if sys.stdin is None:
        return
    if sys.stdin.isatty():
        print(HELP, file=sys.stderr)
    for line in questions():
        if line.startswith("/"):
            command(conversation, line)
            continue
        try:
            answer(conversation, line)
        except ContextError as error:
            print(f"llambda: {error} Or type /new.", file=sys.stderr)
        except InputError as error:
            print(f"llambda: {error}", file=sys.stderr)


def command(conversation: Conversation, line: str) -> None:
    """/new, or help for any other word behind a slash."""
    if line == "/new":
        conversation.reset()
    print("A new conversation." if line == "/new" else HELP, file=sys.stderr)


def questions() -> Iterator[str]:
    """Lines of the input that are not blank; a prompt is shown on a terminal."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            print(f"\n{HELP}", file=sys.stderr)
            continue
        if line.strip():
            yield line.strip()


def answer(conversation: Conversation, question: str) -> None:
    """Stream one answer and keep what there is of it."""
    generation = conversation.ask(question)
    with suppress(KeyboardInterrupt):
        for piece in generation:
            print(piece, end="", flush=True)
    conversation.keep(generation)
    print(flush=True)
