"""The ladder of lesson 11, drawn while it is measured: every rung, PyTorch and llama.cpp."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.axes import Axes

from ... import modelfile
from ...config import ModelConfig
from ...engines import RUNGS
from ...engines.base import Engine
from ...errors import MissingPackageError
from ...ladder import measure, timed_run
from ...machine import this_machine
from ...model import resolve, understand
from ...oracle import TorchEngine
from ...rival import LlamaCpp
from ...tensorfile import TensorFile
from ..ledger import machine_id, rate
from ..plots import INK, LIMIT, OURS, QUIET, REFERENCE, figure, label, plain_numbers
from ..progress import NEW_TOKENS, PROMPT, ceiling, model_name

ENOUGH = 1.0  # seconds that one run of an engine may take
FEW = 4  # tokens: where it takes longer for these, a shorter run must do
OTHERS = (TorchEngine.name, LlamaCpp.name)


@dataclass(frozen=True)
class Recorded:
    """What was measured elsewhere: tokens a second while decoding, in two threads.

    speeds : by name, the lowest and the highest of several runs; PyTorch 2.13 in float32, and
        llama-cpp-python 0.3.36 as pip builds it there
    ceiling : that machine's, from the best speed at which it read weights
    """

    machine: str
    speeds: Mapping[str, tuple[float, float]]
    ceiling: float


ELSEWHERE = Recorded(
    "smollm2 on two cores of an AMD Zen 4 server",
    {TorchEngine.name: (18, 18), LlamaCpp.name: (98, 110)},
    40.7e9 / 96.4e6,
)

# ---------------------------------------------------------------- measuring


Make = Callable[[], Engine]


def decoding_speed(make: Make, ids: Sequence[int]) -> float:
    """Tokens a second while decoding, of fewer tokens where an engine is slow."""
    with closing(make()) as engine:
        timed_run(engine, ids, 1)  # compiles, and touches the weights
        one = timed_run(engine, ids, 2)[1] / 2
        count = min(NEW_TOKENS, int(ENOUGH / one))
        if count < FEW:
            return 1 / one
        return measure(engine, ids, count, 3 if count == NEW_TOKENS else 1).decode_tok_s


def engines(file: TensorFile, config: ModelConfig, threads: int) -> Iterator[tuple[str, Make]]:
    """What makes each engine, slow ones first."""

    def rung(kind: type[Engine]) -> Engine:
        return kind(config, modelfile.read_weights(file, config), threads)

    kinds: list[type[Engine]] = [*RUNGS.values(), TorchEngine]
    for kind in kinds:
        yield kind.name, partial(rung, kind)
    yield LlamaCpp.name, lambda: LlamaCpp(config, file.path, threads)


def speeds(model: str) -> Iterator[tuple[str, float]]:
    """Each engine and its speed: from the ledger, else measured and kept there.

    What is not installed is left out.
    """
    path, threads = resolve(model), this_machine().default_threads
    with modelfile.open(path) as file:
        config, tokenizer, _ = understand(file)
        ids = tokenizer.encode(PROMPT)
        for name, make in engines(file, config, threads):
            with suppress(MissingPackageError):
                yield name, rate(f"rung.{model}.{name}", partial(decoding_speed, make, ids))


# ---------------------------------------------------------------- drawing


def climb() -> dict[str, float]:
    """Measure every engine, and draw each as it comes; tokens a second by name.

    The last entry, "ceiling", is what all cores could do if they only read the weights.
    """
    model = model_name()
    roof = ceiling(model)
    found: dict[str, float] = {}
    shown: Any = None
    for name, speed in speeds(model):
        found[name] = speed
        fig = draw(model, found, roof)
        if shown is None:
            shown = display(fig, display_id=True)  # type: ignore[no-untyped-call]
        else:
            shown.update(fig)
        plt.close(fig)
    return {**found, "ceiling": roof}


def draw(model: str, found: Mapping[str, float], roof: float) -> Any:
    recorded = {} if LlamaCpp.name in found else ELSEWHERE.speeds
    names = [*RUNGS, *(name for name in OTHERS if name in found or not recorded)]
    fig, _ = figure(height=4.6)
    fig.clear()
    heights = [len(names), len(recorded)] if recorded else [1]
    upper, *lower = fig.subplots(
        len(heights), 1, sharex=True, squeeze=False, height_ratios=heights
    )[:, 0]  # fmt: skip
    lines(upper, names, {name: (speed, speed) for name, speed in found.items()}, roof)
    upper.set_xlim(min(0.5, *found.values()) / 2, max(roof, ELSEWHERE.ceiling) * 2)
    label(upper, f"{model}: the ladder under your ceiling", "", "")
    upper.text(1.01, 1.02, "tokens/s (share)", transform=upper.transAxes, fontsize=9, color=QUIET)
    for ax in lower:
        lines(ax, list(recorded), recorded, ELSEWHERE.ceiling)
        ax.set_title(f"recorded elsewhere: {ELSEWHERE.machine}", loc="left", fontsize=9.5, pad=4)
    (lower or [upper])[-1].set_xlabel("tokens a second while decoding, logarithmic")
    fig.supxlabel(machine_id(), fontsize=8, color=QUIET, x=0.99, ha="right")
    return fig


def lines(
    ax: Axes, names: Sequence[str], found: Mapping[str, tuple[float, float]], roof: float
) -> None:
    """A line a name, its numbers at the right, and the ceiling."""
    newest = list(found)[-1]
    for row, name in enumerate(names):
        if name not in found:
            continue
        low, high = found[name]
        colour = REFERENCE if name in OTHERS else OURS if name in (newest, "fused") else QUIET
        ax.plot([low, high], [row, row], "o-", color=colour, markersize=9)
        speed = f"{high:,.3g}" if low == high else f"{low:,.3g} to {high:,.3g}"
        words = f"{speed}  ({high / roof:.1%})"
        ax.text(1.01, row, words, transform=ax.get_yaxis_transform(), va="center", color=INK,
                fontsize=9.5)  # fmt: skip
    ax.set_yticks(range(len(names)), names)
    ax.set(xscale="log", ylim=(len(names) - 0.5, -0.5))
    ax.axvline(roof, color=LIMIT, linestyle="--")
    words = f"ceiling {roof:,.3g} "
    ax.text(roof, len(names) - 0.55, words, color=LIMIT, fontsize=9, ha="right", va="bottom")
    plain_numbers(ax.xaxis)
