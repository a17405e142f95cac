"""The fused engine against llama.cpp and PyTorch: decoding, prefill, share of the bandwidth."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from typing import NamedTuple

from files import FORMATS, copy_in
from goal import Goal, Settings, mean_of, of_spread
from llambda import modelfile
from llambda.engines.base import Engine
from llambda.engines.fused import FusedEngine
from llambda.errors import MissingPackageError, plural
from llambda.ladder import TEXTS, bytes_per_token
from llambda.model import understand
from llambda.oracle import TorchEngine
from llambda.probe import fma_peak
from llambda.profiling import costs, total
from llambda.race import NEW, PROMPT, START, Race, Spread, race
from llambda.rival import LlamaCpp
from llambda.simd.target import target_has
from llambda.simd.widest import LANES
from llambda.streaming import Stream

FLOATS = ("F32", "F16")
TOKENS_AT_ONCE = 4  # that an instruction of VNNI multiplies, where FMA does one
WITHOUT_VNNI = 4 / 3  # three instructions for four


class Duel(NamedTuple):
    """Two engines on one file.

    token_bytes : what decoding a token reads, half way through
    prompt_flops : of the whole prompt
    peak : operations on floats a second that the threads could do
    """

    race: Race
    token_bytes: dict[str, int]
    prompt_flops: int
    peak: float


@cache
def duel(kind: str, threads: int, rival: str, settings: Settings) -> Duel:
    """Decode and prefill of one file in one format, in turn."""
    path = copy_in(kind, settings.say)
    settings.say(f"{kind}, {plural(threads, 'thread')}, against {rival}")
    with ExitStack() as stack:
        file = stack.enter_context(modelfile.open(path))
        config, tokenizer, weights = understand(file)
        tensors = modelfile.read_weights(file, config)
        makers: dict[str, Callable[[], Engine]] = {
            "fused": lambda: FusedEngine(config, tensors, threads),
            "llama.cpp": lambda: LlamaCpp(config, path, threads),
            "pytorch": lambda: TorchEngine(config, tensors, threads),
        }
        engines = {name: stack.enter_context(closing(makers[name]())) for name in ("fused", rival)}
        stream = stack.enter_context(Stream(threads))
        ids = (tokenizer.encode("".join(TEXTS)) * PROMPT)[:PROMPT]
        run = race(engines, ids, stream.rate, settings.rounds)
        position = START + NEW // 2
        token_bytes = {
            name: bytes_per_token(engine, weights, position) for name, engine in engines.items()
        }
        stored = tensors.map(lambda tensor: tensor.nbytes)
        flops = total(costs(config, stored, 0, PROMPT).values()).flops
    return Duel(run, token_bytes, flops, fma_peak(threads, LANES))


def cases(
    part: str,
    what: str,
    least: float,
    ceiling: Callable[[str, Duel], float],
    settings: Settings,
) -> Iterator[Goal]:
    """Every format at every number of threads against llama.cpp."""
    found = []
    for kind in FORMATS:
        for threads in settings.threads:
            one = duel(kind, threads, "llama.cpp", settings)
            case = f"{kind}, {plural(threads, 'thread')}"
            ratio = one.race.ratio("fused", "llama.cpp", what)
            roof = ceiling(kind, one) / one.race.speed("llama.cpp", what)
            found.append(of_spread(part, case, "x llama.cpp", ratio, least, ceiling=roof))
            yield found[-1]
    yield mean_of(found, wanted=2)


def decode(settings: Settings) -> Iterator[Goal]:
    def ceiling(kind: str, one: Duel) -> float:
        return max(one.race.bandwidth) / one.token_bytes["fused"]

    return cases("decode", "decode", 1.4, ceiling, settings)


def prefill(settings: Settings) -> Iterator[Goal]:
    def ceiling(kind: str, one: Duel) -> float:
        vnni = target_has("vnni512" if LANES == 16 else "vnni")
        gain = 1 if kind in FLOATS else TOKENS_AT_ONCE if vnni else WITHOUT_VNNI
        return PROMPT * one.peak * gain / one.prompt_flops

    return cases("prefill", "prefill", 1.2, ceiling, settings)


def bandwidth(settings: Settings) -> list[Goal]:
    """Of what our best products read alone, with all cores."""
    threads, found = settings.threads[-1], []
    for kind in ("Q4_1", "F16"):
        one = alone_or_with_llama_cpp(kind, threads, settings)
        share = one.race.share("fused", one.token_bytes["fused"])
        case = f"{kind}, {plural(threads, 'thread')}"
        found.append(of_spread("bandwidth", case, "of it", share, 0.85, ceiling=1))
    return found


def alone_or_with_llama_cpp(kind: str, threads: int, settings: Settings) -> Duel:
    try:
        return duel(kind, threads, "llama.cpp", settings)
    except MissingPackageError:
        return duel(kind, threads, "pytorch", settings)


def pytorch(settings: Settings) -> list[Goal]:
    vnni = target_has("vnni512" if LANES == 16 else "vnni")
    wanted = {"decode": 8.0, "prefill": 3.0 if vnni else 2.5}
    found = []
    for threads in settings.threads:
        one = duel("Q4_1", threads, "pytorch", settings)
        for what, least in wanted.items():
            ratio: Spread = one.race.ratio("fused", "pytorch", what)
            case = f"{what}, {plural(threads, 'thread')}"
            found.append(of_spread("pytorch", case, "x PyTorch f32", ratio, least))
    return found
