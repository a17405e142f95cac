"""What may be written after `llambda`: the commands and their options."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import __version__
from .engines import BEST, RUNGS
from .errors import quoted
from .fetch import KNOWN
from .model import DEFAULT_CONTEXT, DEFAULT_MAX_TOKENS
from .quantize import FILE_TYPES
from .sampling import Sampling

ANSWER_TOKENS = 512  # the most an answer in a conversation has, unless told otherwise
CONTEXT_HELP = f"positions to have room for; default: the model's own, {DEFAULT_CONTEXT} at most"
MODEL_HELP = f"tiny, {', '.join(KNOWN)}, a .gguf file or a model's folder"

Handler = Callable[[argparse.Namespace], None]


def build_parser(handlers: Mapping[str, Handler]) -> argparse.ArgumentParser:
    """The parser of `llambda COMMAND ...`; `run` in what it gives is the command's handler."""
    top = argparse.ArgumentParser(
        prog="llambda",
        description="A CPU inference engine for language models, built step by step in Python.",
    )
    top.add_argument("--version", action="version", version=f"llambda {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback behind an error")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, help: str) -> argparse.ArgumentParser:
        sub = add_command(commands, name, help)
        sub.set_defaults(run=handlers[name])
        return sub

    add_generate(command("generate", "continue a prompt"))
    add_chat(command("chat", "a conversation in the terminal"))
    sub = command("inspect", "show what a model file holds and what would run it")
    sub.add_argument("file", metavar="FILE")
    add_json(sub)
    sub = command("fetch", "obtain a known model into the data cache")
    sub.add_argument("name", metavar="NAME", help=f"one of: {', '.join(KNOWN)}")
    sub = command("quantize", "write a copy of a GGUF file in another storage format")
    sub.add_argument("source", metavar="IN", help=MODEL_HELP)
    sub.add_argument("target", metavar="OUT", type=Path)
    sub.add_argument(
        "--type",
        required=True,
        type=str.upper,
        metavar="T",
        help=f"one of: {', '.join(FILE_TYPES)}",
    )
    sub = command("doctor", "describe this machine and what would be slow or missing")
    add_json(sub)
    sub = command("logits", "write the logits after each token to a .npy file")
    add_model(sub)
    add_ids(sub, required=True)
    sub.add_argument("--out", type=Path, required=True, metavar="FILE.npy")
    sub = command("compare", "compare an engine with PyTorch, layer by layer")
    add_model(sub, default="vectorized")  # those after it round activations to codes
    add_ids(sub, required=True)
    add_ladder(command("ladder", "every rung, PyTorch and llama.cpp on this machine"))
    sub = command("tour", "the course in one go, on the tiny model that comes with it")
    sub.add_argument("--out", type=Path, metavar="FILE.svg", help="where to write the picture")
    add_lesson(command("lesson", "the course's notebooks: list them, copy one, check your answers"))
    return top


def add_command(commands: Any, name: str, help: str) -> argparse.ArgumentParser:
    """One more command in a group of them."""
    description = help[0].upper() + help[1:] + "."
    sub: argparse.ArgumentParser = commands.add_parser(name, help=help, description=description)
    sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS,
                     help="show the traceback behind an error")  # fmt: skip
    return sub


def add_model(sub: argparse.ArgumentParser, default: str = BEST) -> None:
    sub.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    engines = f"one of: {', '.join(RUNGS)}; default: {default}"
    sub.add_argument("--engine", metavar="E", default=default, help=engines)
    sub.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="default: usable physical cores; only threaded and fused use more than one",
    )
    sub.add_argument("--context", type=int, metavar="N", help=CONTEXT_HELP)
    sub.add_argument(
        "--cache",
        metavar="F",
        default="f32",
        help="keys and values as f32 or, in fused alone, as f16; default f32",
    )


def add_json(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help="one JSON object instead of text")


def add_ids(sub: Any, required: bool = False) -> None:
    words = {"required": True} if required else {}  # a group's members cannot say it
    sub.add_argument("--ids", type=token_ids, help='token ids: "504,3575"', **words)


def add_generate(sub: argparse.ArgumentParser) -> None:
    add_model(sub)
    given = sub.add_mutually_exclusive_group(required=True)
    prompt = given.add_argument("prompt", metavar="PROMPT", nargs="?", help="text to continue")
    prompt.nargs = None  # with "?", an option between MODEL and PROMPT means no PROMPT to argparse
    add_ids(given)
    add_sampling(sub, DEFAULT_MAX_TOKENS)
    sub.add_argument("--parse-special", action="store_true",
                     help="let the prompt name special tokens such as <|im_start|>")  # fmt: skip
    add_json(sub)


def add_chat(sub: argparse.ArgumentParser) -> None:
    add_model(sub)
    sub.add_argument("--system", metavar="TEXT", help="what the model is told before you speak")
    add_sampling(sub, ANSWER_TOKENS)


def add_sampling(sub: argparse.ArgumentParser, max_tokens: int) -> None:
    default = Sampling()

    def number(name: str, kind: type, value: float | None, letter: str, text: str) -> None:
        sub.add_argument(name, type=kind, default=value, metavar=letter, help=text)

    number("--max-tokens", int, max_tokens, "N", f"the most to write; default {max_tokens}")
    number("--temperature", float, default.temperature, "T",
           f"0 takes the best token, above 1 is wilder; default {default.temperature}")  # fmt: skip
    number("--top-k", int, default.top_k, "K",
           f"draw among the K best; 0 is off; default {default.top_k}")  # fmt: skip
    number("--top-p", float, default.top_p, "P",
           f"draw among the best that make up P; 1 is off; default {default.top_p}")  # fmt: skip
    number("--min-p", float, default.min_p, "P",
           f"drop what is below P times the best; default {default.min_p}: off")  # fmt: skip
    number("--repeat-penalty", float, default.repeat_penalty, "R",
           f"above 1 weakens earlier tokens; default {default.repeat_penalty}: off")  # fmt: skip
    number("--seed", int, None, "S", "of the random draws; default: a new one each time")
    sub.add_argument("--stop", action="append", default=[], metavar="S",
                     help="end before this text; may be given more than once")  # fmt: skip
    sub.add_argument(
        "--log", type=Path, metavar="FILE.jsonl", help="append what happens, an event a line"
    )


def add_ladder(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL", nargs="?",
                     help=f"{MODEL_HELP}; default: smollm2 if it is here, else tiny")  # fmt: skip
    sub.add_argument("--threads", type=int, metavar="N", help="default: usable physical cores")
    sub.add_argument("--out", type=Path, metavar="FILE.svg", help="where to write the picture")
    add_json(sub)


def add_lesson(sub: argparse.ArgumentParser) -> None:
    actions = sub.add_subparsers(required=True, metavar="ACTION", dest="action")
    for name, help in {
        "list": "show the lessons and which exercises you have solved",
        "start": "copy a lesson into your folder, to work in",
        "check": "run your copy and say which exercises it solves",
    }.items():
        action = add_command(actions, name, help)
        if name != "list":
            action.add_argument("number", metavar="N", help="number of the lesson: 0, 4, 04, ...")
        action.add_argument("--folder", type=Path, metavar="F",
                            help="where your copies are; default: llambda-lessons")  # fmt: skip
        if name == "start":
            action.add_argument("--force", action="store_true",
                                help="start anew; a copy that is there is kept aside")  # fmt: skip


def token_ids(text: str) -> list[int]:
    """'504,3575' -> [504, 3575]"""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a list like 504,3575") from None
