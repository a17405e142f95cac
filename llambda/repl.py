"""The terminal conversation behind `llambda chat`."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .conversation import Conversation
from .errors import ContextError, InputError

HELP = "Ctrl-C stops an answer, /new begins anew, Ctrl-D ends."


class Interrupts:
    """Ctrl-C in a conversation: stops what can be stopped, and is remembered where nothing can.

    A KeyboardInterrupt at any moment would at some moments end the program, leave an answer half
    kept, or an engine's threads waiting for one another.
    """

    def __init__(self) -> None:
        self.came = False
        self._stop: Callable[[], None] | None = None

    def handle(self, *_: object) -> None:
        self.came = True
        stop, self._stop = self._stop, None  # once: what it stops is to be left in order
        if stop is not None:
            stop()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Takes Python's own handler's place, if that is what stands there."""
        ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if ours:
            signal.signal(signal.SIGINT, self.handle)
        try:
            yield
        finally:
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def calling(self, stop: Callable[[], None]) -> Iterator[None]:
        """Here it calls `stop`, also if it came before."""
        try:
            self._stop = stop
            if self.came:
                self.handle()
            yield
        finally:
            self._stop = None


def interrupt() -> None:
    raise KeyboardInterrupt


def converse(conversation: Conversation) -> None:
    """Read a question a line, stream its answer, until the input ends.

    Ctrl-C ends the answer that is being written, not the program. What cannot be answered, a
    conversation longer than the context for one, is said on stderr and loses nothing.
    """
    if sys.stdin is None:
        return
    if sys.stdin.isatty():
        print(HELP, file=sys.stderr)
    interrupts = Interrupts()
    with interrupts.handled():
        for line in questions(interrupts):
            if line.startswith("/"):
                command(conversation, line)
                continue
            try:
                answer(conversation, line, interrupts)
            except InputError as error:
                begun = conversation.messages != conversation.first
                shorter = isinstance(error, ContextError) and begun
                print(f"llambda: {error}{' Or type /new.' * shorter}", file=sys.stderr)


def command(conversation: Conversation, line: str) -> None:
    """/new, or help for any other word behind a slash."""
    if line == "/new":
        conversation.reset()
    print("A new conversation." if line == "/new" else HELP, file=sys.stderr)


def questions(interrupts: Interrupts) -> Iterator[str]:
    """Lines of the input that are not blank; a prompt is shown on a terminal."""
    while True:
        interrupts.came = False
        try:
            with interrupts.calling(interrupt):
                line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            print(f"\n{HELP}", file=sys.stderr)
            continue
        if line.strip():
            yield line.strip()


def answer(conversation: Conversation, question: str, interrupts: Interrupts) -> None:
    """Stream one answer and keep what there is of it."""
    generation, shown = None, 0
    with suppress(KeyboardInterrupt), interrupts.calling(interrupt):
        generation = conversation.ask(question)
    if generation is not None:
        with suppress(KeyboardInterrupt), interrupts.calling(generation.cancel):
            for piece in generation:
                shown += len(piece)
                print(piece, end="", flush=True)
        conversation.keep(generation)
        print(generation.text[shown:], end="")  # what was held back when it was stopped
    print(flush=True)
