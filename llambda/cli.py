"""The command line: `llambda COMMAND ...`.

Exit status: 0 done, 1 a clear error (one line on stderr), 2 wrong usage. --debug shows the
traceback behind an error.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .describe import describe_file, report_file
from .doctor import examine, report
from .engines import RUNGS
from .errors import LlambdaError, one_line
from .eventlog import EventLog
from .fetch import KNOWN, fetch, known
from .generate import Generation
from .model import DEFAULT_MAX_TOKENS, Model, load
from .paths import atomic_write
from .sampling import Sampling
from .tour import tour


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    arguments = parser().parse_args(argv)
    try:
        arguments.run(arguments)
        print(end="", flush=True)
        return 0
    except LlambdaError as error:
        return fail(arguments, str(error), error)
    except KeyboardInterrupt:
        return fail(arguments, "interrupted", None, status=130)
    except BrokenPipeError:  # the reader of our output has seen enough
        discard_output()
        return 0
    except MemoryError as error:
        return fail(arguments, "out of memory. Take a smaller model or context.", error)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:  # no file's error: stdout's
            discard_output()
            return fail(arguments, f"cannot write the output: {error.strerror}.", error)
        message = f"internal error: {type(error).__name__}: {error}. Please report it."
        return fail(arguments, one_line(message), error)


def discard_output() -> None:
    """Send what is still to be written to stdout nowhere, or Python would try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(
    arguments: argparse.Namespace, message: str, error: BaseException | None, status: int = 1
) -> int:
    """One line on stderr, and with --debug the traceback before it."""
    if arguments.debug and error is not None:
        import traceback

        traceback.print_exception(error)
    with suppress(BrokenPipeError):
        print(f"llambda: {message}", file=sys.stderr)
    return status


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="llambda",
        description="A CPU inference engine for language models, built step by step in Python.",
    )
    top.add_argument("--version", action="version", version=f"llambda {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback behind an error")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        sub.set_defaults(run=run)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS,
                         help="show the traceback behind an error")  # fmt: skip
        return sub

    add_generate(command("generate", run_generate, "continue a prompt"))
    sub = command("inspect", run_inspect, "show what a model file holds and what would run it")
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("--json", action="store_true", help="one JSON object")
    sub = command("fetch", run_fetch, "obtain a known model into the data cache")
    sub.add_argument("name", metavar="NAME", help=f"one of: {', '.join(KNOWN)}")
    sub = command("logits", run_logits, "write the logits after each token to a .npy file")
    add_model(sub)
    sub.add_argument("--ids", type=token_ids, required=True, help='token ids: "504,3575"')
    sub.add_argument("--out", type=Path, required=True, metavar="FILE.npy")
    sub = command("doctor", run_doctor, "describe this machine and what would be slow or missing")
    sub.add_argument("--json", action="store_true", help="one JSON object")
    sub = command("tour", run_tour, "the course in one go, on the tiny model that comes with it")
    sub.add_argument("--out", type=Path, metavar="FILE.svg", help="where to write the picture")
    return top


def add_model(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL", help=f"tiny, {', '.join(KNOWN)}, or a .gguf file")
    sub.add_argument("--engine", metavar="E", help=f"one of: {', '.join(RUNGS)}")
    sub.add_argument("--threads", type=int, metavar="N", help="default: usable physical cores")
    sub.add_argument("--context", type=int, metavar="N", help="positions to have room for")


def add_generate(sub: argparse.ArgumentParser) -> None:
    add_model(sub)
    given = sub.add_mutually_exclusive_group(required=True)
    prompt = given.add_argument("prompt", metavar="PROMPT", nargs="?", help="text to continue")
    prompt.nargs = None  # with "?", an option between MODEL and PROMPT means no PROMPT to argparse
    given.add_argument("--ids", type=token_ids, help='token ids instead of text: "504,3575"')
    default = Sampling()
    sub.add_argument("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, metavar="N")
    sub.add_argument("--temperature", type=float, default=default.temperature, metavar="T")
    sub.add_argument("--top-k", type=int, default=default.top_k, metavar="K")
    sub.add_argument("--top-p", type=float, default=default.top_p, metavar="P")
    sub.add_argument("--min-p", type=float, default=default.min_p, metavar="P")
    sub.add_argument("--repeat-penalty", type=float, default=default.repeat_penalty, metavar="R")
    sub.add_argument("--seed", type=int, metavar="S", help="default: a new one, reported by --json")
    sub.add_argument("--stop", action="append", default=[], metavar="S",
                     help="end before this text; may be given more than once")  # fmt: skip
    sub.add_argument("--parse-special", action="store_true",
                     help="let the prompt name special tokens such as <|im_start|>")  # fmt: skip
    sub.add_argument("--json", action="store_true", help="one JSON object instead of text")
    sub.add_argument("--log", metavar="FILE.jsonl", help="append what happens, an event a line")


def token_ids(text: str) -> list[int]:
    """'504,3575' -> [504, 3575]"""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like 504,3575") from None


def open_model(arguments: argparse.Namespace) -> Model:
    return load(arguments.model, arguments.engine, arguments.threads, arguments.context)


def run_generate(arguments: argparse.Namespace) -> None:
    """Print the text as it comes, or everything as one JSON line at the end."""
    log = EventLog(arguments.log)
    begin = time.perf_counter()
    try:
        model = open_model(arguments)
        log.write("load", model.load_s, model=model.config.name, engine=model.engine.name)
        generation = start(arguments, model, log)
    except LlambdaError as error:  # from here on, the generation itself tells the log
        log.write("error", time.perf_counter() - begin, error=str(error))
        raise
    if not arguments.json:
        for piece in generation:
            print(piece, end="", flush=True)
        print()
        return
    result = {
        "prompt_ids": generation.prompt_ids,
        "ids": generation.ids,
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "stats": generation.stats,
    }
    print(json.dumps(result))


def start(arguments: argparse.Namespace, model: Model, log: EventLog) -> Generation:
    return model.generate(
        arguments.prompt if arguments.ids is None else arguments.ids,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repeat_penalty=arguments.repeat_penalty,
        seed=arguments.seed,
        stop=arguments.stop,
        parse_special=arguments.parse_special,
        log=log,
    )


def run_inspect(arguments: argparse.Namespace) -> None:
    facts = describe_file(arguments.file)
    print(json.dumps(facts) if arguments.json else report_file(facts))


def run_fetch(arguments: argparse.Namespace) -> None:
    model = known(arguments.name)
    print(f"{model.title} ({model.license}), {model.nbytes / 1e6:.0f} MB", file=sys.stderr)
    print(fetch(arguments.name, show_progress))


def show_progress(done: int, total: int) -> None:
    """A line that is drawn over on a terminal, and once at the end elsewhere."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        text = f"\rdownloaded {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        print(text, end=end, file=sys.stderr, flush=True)
    elif done == total:
        print(f"downloaded {total / 1e6:.0f} MB", file=sys.stderr)


def run_logits(arguments: argparse.Namespace) -> None:
    with open_model(arguments) as model:
        logits = model.logits(arguments.ids)
    with atomic_write(arguments.out) as file:
        np.save(file, logits)
    print(f"{arguments.out}: float32 {list(logits.shape)}")


def run_doctor(arguments: argparse.Namespace) -> None:
    facts = examine()
    print(json.dumps(facts) if arguments.json else report(facts))


def run_tour(arguments: argparse.Namespace) -> None:
    tour(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
