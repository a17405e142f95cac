"""The ladder so far, under this machine's ceiling: what every lesson from 05 on ends with.

A rung that no lesson has measured on this machine yet is measured on the spot, so that a reader
may start anywhere.
"""

from collections.abc import Mapping

from .. import modelfile
from ..engines import RUNGS
from ..fetch import KNOWN
from ..ladder import Rung, measure
from ..machine import this_machine
from ..model import load, resolve
from ..probe import bandwidth_curve, ceiling_tokens_per_s
from .ledger import machine_id, rate, rates
from .plots import INK, LIMIT, OURS, QUIET, figure, finish, label, plain_numbers

PROMPT = "The class statement"
NEW_TOKENS = 16
SLOW = ("naive", "scalar")  # what disturbs them for a moment is little beside a run of theirs


def ladder_so_far(newest: str) -> dict[str, float]:
    """Draw all rungs up to `newest` under the ceiling; tokens a second while decoding, by name.

    The model is smollm2 where it is here, else tiny; the prompt is the same for every rung. The
    last entry, "ceiling", is what all cores could do if they only read the weights.
    """
    model = model_name()
    names = list(RUNGS)
    speeds = {name: speed(model, name) for name in names[: names.index(newest) + 1]}
    roof = ceiling(model)
    draw(model, speeds, roof)
    return {**speeds, "ceiling": roof}


def model_name() -> str:
    return "smollm2" if KNOWN["smollm2"].is_here else "tiny"


def speed(model: str, rung: str) -> float:
    """Tokens a second while decoding: from the ledger, else measured and kept there."""
    return rate(f"rung.{model}.{rung}", lambda: run(model, rung).decode_tok_s)


def run(model: str, rung: str) -> Rung:
    repeats = 1 if rung in SLOW else 3
    with load(model, engine=rung) as loaded:
        return measure(loaded.engine, loaded.tokenizer.encode(PROMPT), NEW_TOKENS, repeats)


def ceiling(model: str) -> float:
    """Tokens a second if all cores did nothing but read the weights, as they are stored."""
    with modelfile.open(resolve(model)) as file:
        return ceiling_tokens_per_s(max(bandwidth().values()), file.nbytes)


def bandwidth() -> dict[str, float]:
    """Threads -> bytes a second, as lesson 00 measured it; measured now if it did not."""
    return rates("bandwidth", lambda: bandwidth_curve(this_machine().default_threads))


def draw(model: str, speeds: Mapping[str, float], roof: float) -> None:
    """One dot a rung on a logarithmic axis, the ceiling as a line, the share of it in words."""
    fig, ax = figure(height=1.5 + 0.45 * len(speeds))
    for row, value in enumerate(speeds.values()):
        newest = row == len(speeds) - 1
        ax.plot(value, row, "o", color=OURS if newest else QUIET, markersize=10)
        text = f"{value:,.3g}  ({value / roof:.1%} of the ceiling)"
        side = "right" if value > roof / 20 else "left"  # on the dot's left the line is not crossed
        ax.text(value, row, f"   {text}   ", va="center", ha=side, color=INK)
    ax.set_yticks(range(len(speeds)), list(speeds))
    ax.set(xscale="log", ylim=(len(speeds) - 0.4, -0.6))
    ax.set_xlim(min(*speeds.values(), roof / 200) / 2, roof * 1.6)
    ax.axvline(roof, color=LIMIT, linestyle="--")
    above = ax.get_xaxis_transform()
    ax.text(roof, 1.02, f"ceiling {roof:,.3g}", transform=above, color=LIMIT, ha="center")
    plain_numbers(ax.xaxis)
    label(ax, f"{model}: the ladder so far", "tokens a second while decoding, logarithmic", "")
    fig.supxlabel(machine_id(), fontsize=8, color=QUIET, x=0.99, ha="right")
    finish(fig)
