"""All rungs so far on this machine's roof: what every lesson from 07 on ends with.

A rung's place is its decoding: operations for each byte that it reads, and operations a second. It
stays under two lines, what memory brings and what arithmetic units make. The roof, as lesson 00
measured it, and the speeds come from the ledger, or are measured on the spot.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .. import modelfile
from ..config import ModelConfig
from ..engines import RUNGS
from ..machine import this_machine
from ..model import resolve, understand
from ..probe import fma_peak
from ..profiling import Cost, costs, roofline, total
from ..weights import Weights
from .ledger import machine_id, rates
from .plots import INK, LIMIT, OURS, QUIET, figure, finish, label, plain_numbers
from .progress import NEW_TOKENS, PROMPT, bandwidth, model_name, speed

AS_STORED = ("quantized", "threaded", "fused")  # rungs that read weights as the file has them
ALL_CORES = ("threaded", "fused")


@dataclass(frozen=True)
class Place:
    """A rung on the roof.

    intensity : operations on floats for each byte read
    flops : operations a second
    roof : the most that it could be, with as many threads
    """

    intensity: float
    flops: float
    roof: float

    @property
    def share(self) -> float:
        return self.flops / self.roof


def roof_so_far(newest: str) -> dict[str, Place]:
    """Draw all rungs up to `newest` on the roof; their places, by name."""
    model = model_name()
    names = list(RUNGS)
    places = {name: place(model, name) for name in names[: names.index(newest) + 1]}
    draw(model, places)
    return places


def place(model: str, rung: str) -> Place:
    cost = cost_of_a_token(model, rung)
    rates = limits(max if rung in ALL_CORES else min)
    flops = speed(model, rung) * cost.flops
    return Place(cost.intensity, flops, roofline(*rates, cost.intensity))


def cost_of_a_token(model: str, rung: str) -> Cost:
    """Of the one in the middle of those that `speed` decodes."""
    config, stored, floats, position = sizes(model)
    nbytes = stored if rung in AS_STORED else floats
    again = rung == "naive"  # everything before the token is evaluated again
    parts = costs(config, nbytes, 0 if again else position, position + 1 if again else 1)
    return total(parts.values())


@lru_cache(maxsize=1)
def sizes(model: str) -> tuple[ModelConfig, Weights[int], Weights[int], int]:
    """Config; bytes of the weights as stored and as float32; where the middle token stands."""
    with modelfile.open(resolve(model)) as file:
        config, tokenizer, weights = understand(file)
        position = len(tokenizer.encode(PROMPT)) + NEW_TOKENS // 2
        stored = weights.map(lambda weight: weight.nbytes or 0)  # a type that runs has a size
        floats = weights.map(lambda weight: 4 * math.prod(weight.shape))
        return config, stored, floats, position


def peak() -> dict[str, float]:
    """Threads -> operations a second, as lesson 00 measured it; measured now if it did not."""
    most = this_machine().default_threads
    return rates("peak", lambda: {threads: fma_peak(threads) for threads in sorted({1, most})})


def limits(which: Callable[[Iterable[float]], float]) -> tuple[float, float]:
    """Operations and bytes a second: of all threads with max, of one with min."""
    return which(peak().values()), which(bandwidth().values())


def apart(heights: dict[str, float], least: float = 1.3) -> dict[str, float]:
    """Heights on a logarithmic axis where words can be read: each `least` times the one below."""
    found: dict[str, float] = {}
    below = 0.0
    for name in sorted(heights, key=lambda name: heights[name]):
        found[name] = below = max(heights[name], below * least)
    return found


def draw(model: str, places: dict[str, Place]) -> None:
    """Both roofs, of one thread and of all, and a dot for each rung, the newest in colour."""
    fig, ax = figure(height=4.6)
    at = [each.intensity for each in places.values()]
    knee = max(peak().values()) / min(bandwidth().values())
    intensities = np.geomspace(min(at) / 4, max(knee, *at) * 4, 100)
    for which, words, line in ((max, "all cores", "-"), (min, "one thread", ":")):
        roof = [roofline(*limits(which), each) / 1e9 for each in intensities]
        ax.plot(intensities, roof, color=LIMIT, linestyle=line, label=words)
    for name, each in places.items():
        color = OURS if name == list(places)[-1] else QUIET
        ax.plot(each.intensity, each.flops / 1e9, "o", color=color, markersize=9)
    for name, height in apart({name: each.flops for name, each in places.items()}).items():
        words = f"{name}  {places[name].share:.1%} of its roof"
        ax.annotate(words, (places[name].intensity, height / 1e9), (9, 0), va="center",
                    textcoords="offset points", color=INK, fontsize=9.5)  # fmt: skip
    ax.set(xscale="log", yscale="log")
    plain_numbers(ax.xaxis)
    plain_numbers(ax.yaxis)
    across = "operations for each byte read (both axes logarithmic)"
    label(ax, f"{model}: the rungs so far on your roof", across, "billion operations a second")
    ax.legend(fontsize=9, loc="lower right")
    fig.supxlabel(machine_id(), fontsize=8, color=QUIET, x=0.99, ha="right")
    finish(fig)
