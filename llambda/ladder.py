"""The ladder: every rung, PyTorch and llama.cpp on one file, in one run. Lesson 11.

How fast each one is, how much of the memory's speed it uses, and how far its answers are from
PyTorch's. `measure` is the small form of it: one engine alone.
"""

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from statistics import fmean, median
from typing import Any

from . import modelfile
from .cache import cache_bytes
from .check import kl_divergence, top1_agreement
from .config import ModelConfig
from .engines import RUNGS
from .engines.base import Engine, Floats
from .errors import InputError, LlambdaError
from .machine import this_machine
from .model import check_memory, chosen_threads, resolve, understand
from .oracle import TorchEngine
from .race import PROMPT, ROUNDS, START, Race, Say, Spread, race
from .rival import KV_NUMBERS, LlamaCpp
from .streaming import Stream
from .tensorfile import TensorFile
from .weights import Sized, Weights

REPEATS = 7  # runs a median is taken over, unless told otherwise
GIGA = 1e9
TEXTS = (  # after each of their tokens the rungs' answers are compared with PyTorch's
    "The river rises in the hills north of the city and reaches the sea after two hundred miles.",
    "def mean(values):\n    return sum(values) / len(values)\n\nprint(mean([1, 2, 3, 4]))\n",
    "Question: why is the sky blue? Answer: air scatters short waves of light more than long ones.",
)
PACKAGES = ("llambda", "numpy", "numba", "llvmlite", "torch", "llama-cpp-python")


@dataclass(frozen=True)
class Rung:
    """How fast one engine is: tokens a second, medians of a few runs."""

    name: str
    threads: int
    prefill_tok_s: float
    decode_tok_s: float


def measure(
    engine: Engine, prompt_ids: Sequence[int], new_tokens: int, repeats: int = REPEATS
) -> Rung:
    """Evaluate the prompt, then decode greedily; the first run warms up and does not count."""
    runs = [timed_run(engine, prompt_ids, new_tokens) for _ in range(repeats + 1)][1:]
    return Rung(
        engine.name,
        engine.threads,
        len(prompt_ids) / median(prefill for prefill, _ in runs),
        new_tokens / median(decode for _, decode in runs),
    )


def timed_run(engine: Engine, prompt_ids: Sequence[int], new_tokens: int) -> tuple[float, float]:
    """Seconds for the prompt, and for the new tokens."""
    state = engine.new_state(len(prompt_ids) + new_tokens)
    begin = time.perf_counter()
    logits = engine.forward(state, prompt_ids)
    middle = time.perf_counter()
    for _ in range(new_tokens):
        logits = engine.forward(state, [int(logits.argmax())])
    return middle - begin, time.perf_counter() - middle


# ---------------------------------------------------------------- all of them


@dataclass(frozen=True)
class LadderRung(Rung):
    """A rung beside the others.

    prompt_tokens, new_tokens, rounds : what was timed, and how often
    bytes_per_token : weights and cached keys and values that decoding one reads
    bandwidth_share : of the bandwidth, while decoding
    kl, top1 : mean divergence from PyTorch (nats) and share of equal most probable tokens; None
        where PyTorch is missing
    ratios : other rung -> "prefill" and "decode" -> how many times as fast this one is
    """

    prompt_tokens: int
    new_tokens: int
    rounds: int
    bytes_per_token: int
    bandwidth_share: float
    kl: float | None
    top1: float | None
    ratios: dict[str, dict[str, Spread]]


@dataclass(frozen=True)
class Ladder:
    """What `llambda ladder` tells.

    bandwidth_gb_s : what our own products read weights with at best, median of the rounds
    notes : what is missing, and why
    """

    machine: dict[str, Any]
    versions: dict[str, str]
    model: str
    threads: int
    bandwidth_gb_s: float
    rungs: tuple[LadderRung, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


Found = tuple[float, float]  # mean KL, top-1 agreement


def ladder(
    source: str | Path,
    threads: int | None = None,
    rounds: int = ROUNDS,
    say: Say = lambda line: None,
) -> Ladder:
    """Measure every rung, PyTorch and llama.cpp on a model.

    source, threads : as `load` takes them
    A rung that cannot run this model here is left out, with a note. Raises what `load` raises.
    """
    threads, path = chosen_threads(threads), resolve(source)
    notes: list[str] = []
    with ExitStack() as stack:
        file = stack.enter_context(modelfile.open(path))
        config, tokenizer, weights = understand(file)
        engines: dict[str, Engine] = {}
        for name, make in makers(file, config, weights, threads).items():
            say(f"loading {name}")
            try:
                engines[name] = stack.enter_context(closing(make()))
            except LlambdaError as error:
                notes.append(f"{name} is left out: {error}")
                say(notes[-1])
        if not engines:
            raise InputError("no rung can run this model here", where=path)
        stream = stack.enter_context(Stream(threads))
        texts = [tokenizer.encode(text)[: config.context_length] for text in TEXTS]
        answers = distances(engines, texts, say)
        ids = ([token for text in texts for token in text] * PROMPT)[:PROMPT]
        run = race(engines, ids[: config.context_length], stream.rate, rounds, say)
        rungs = [
            describe(engine, weights, run, answers.get(name)) for name, engine in engines.items()
        ]
    return Ladder(
        this_machine().as_dict(),
        versions(),
        Path(source).name,
        threads,
        median(run.bandwidth) / GIGA,
        tuple(rungs),
        tuple(notes),
    )


def makers(
    file: TensorFile, config: ModelConfig, weights: Weights[Sized], threads: int
) -> Mapping[str, Callable[[], Engine]]:
    """What makes each engine, or raises why there is none."""

    def rung(kind: type[Engine]) -> Callable[[], Engine]:
        def make() -> Engine:
            check_memory(kind.weight_bytes(weights) + cache_bytes(config, PROMPT), file.path)
            return kind(config, modelfile.read_weights(file, config), threads)

        return make

    def llama_cpp() -> Engine:
        if file.path.is_dir():
            raise InputError("llama.cpp reads GGUF files only")
        return LlamaCpp(config, file.path, threads)

    kinds: list[type[Engine]] = [*RUNGS.values(), TorchEngine]
    return {**{kind.name: rung(kind) for kind in kinds}, LlamaCpp.name: llama_cpp}


def distances(
    engines: Mapping[str, Engine], texts: Sequence[Sequence[int]], say: Say
) -> dict[str, Found]:
    """Of each engine's answers from PyTorch's, at every position of some texts."""
    pytorch = engines.get(TorchEngine.name)
    if not isinstance(pytorch, TorchEngine):
        return {}
    truth = [pytorch.oracle.logits(ids) for ids in texts]
    found = {}
    for name, engine in engines.items():
        kl: list[float] = []
        same: list[float] = []
        for ids, expected in zip(texts, truth, strict=True):
            actual = every_logits(engine, ids)
            kl += kl_divergence(expected, actual).tolist()
            same += [top1_agreement(expected, actual)] * len(ids)
        found[name] = fmean(kl), fmean(same)
        say(f"{name} was compared with PyTorch at {len(kl)} positions")
    return found


def every_logits(engine: Engine, ids: Sequence[int]) -> Floats:
    """What follows each id, given those before it: [n, vocab_size]."""
    return engine.forward(engine.new_state(len(ids)), ids, all_logits=True)


def describe(
    engine: Engine, weights: Weights[Sized], run: Race, answers: Found | None
) -> LadderRung:
    task = run.tasks[engine.name]
    nbytes = bytes_per_token(engine, weights, START + task.new // 2)
    kl, top1 = answers or (None, None)
    return LadderRung(
        engine.name,
        engine.threads,
        run.speed(engine.name, "prefill"),
        run.speed(engine.name, "decode"),
        task.prompt,
        task.new,
        len(run.runs[engine.name]),
        nbytes,
        run.share(engine.name, nbytes).median,
        kl if kl is None or math.isfinite(kl) else None,
        top1,
        {
            other: {what: run.ratio(engine.name, other, what) for what in ("prefill", "decode")}
            for other in run.runs
            if other != engine.name
        },
    )


def bytes_per_token(engine: Engine, weights: Weights[Sized], position: int) -> int:
    """What decoding the token at a position reads: all weights, as the engine holds them, and keys
    and values. An embedding of its own does not count: one row of it is read."""
    read = type(engine).weight_bytes(replace(weights, embed=weights.head))
    numbers = KV_NUMBERS if isinstance(engine, LlamaCpp) else "f32"
    return read + cache_bytes(engine.config, position + 1, numbers)


def versions() -> dict[str, str]:
    """Of Python and of the packages that are here."""
    return {"python": platform.python_version(), **dict(package_versions())}


def package_versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
