"""The drawings of lesson 09: a block in registers, speeds, the lanes table, what few bits lose."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..plots import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    LIMIT,
    OURS,
    QUIET,
    SKY,
    canvas,
    figure,
    finish,
    label,
)

PALE = "#a9d6f0"  # the high half of a byte
LEFT, REGISTER = 21.0, 64.0  # of a drawn register: where it begins, how wide it is
NAMES = {"F32": "FP32", "F16": "FP16", "BF16": "BF16", "Q8_0": "INT8", "Q4_0": "4 bits"}


def cell(ax: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor="white", lw=0.8))


def words(ax: Axes, x: float, y: float, text: str, **options: Any) -> None:
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "color": INK}
    ax.text(x, y, text, **(style | options))


# ---------------------------------------------------------------- a block in registers

ROWS = 8  # a register holds four columns of so many rows


def block_in_registers() -> None:
    """How 32 bytes of nibbles become eight sums: from 64 codes to 16 lanes and to 8."""
    fig, ax = canvas(height=4.5)
    width = REGISTER / 32
    for row in range(ROWS):
        words(ax, LEFT + (4 * row + 2) * width, 1.6, f"row {row}", fontsize=8, color=QUIET)
    for i in range(32):
        x = LEFT + i * width
        cell(ax, x, 3.4, width, 2.6, SKY)
        cell(ax, x, 6.0, width, 2.6, PALE)
        cell(ax, x, 15, width, 4, SKY)
        cell(ax, x, 22, width, 4, (AMBER, "#f3c969", AMBER, "#f3c969")[i % 4])
        words(ax, x + width / 2, 17.1, str(i % 4), fontsize=7.5)
        words(ax, x + width / 2, 24.1, str(i % 4), fontsize=7.5)
    for i in range(16):
        cell(ax, LEFT + 2 * i * width, 33.5, 2 * width, 4, GREEN)
        words(ax, LEFT + (2 * i + 1) * width, 35.6, ("0+1", "2+3")[i % 2], fontsize=8,
              color="white")  # fmt: skip
    for i in range(ROWS):
        cell(ax, LEFT + 4 * i * width, 50, 4 * width, 4, BLUE)
        words(ax, LEFT + (4 * i + 2) * width, 52.1, f"row {i}", color="white")
    steps = [
        (11.8, "low four bits: & 15       (columns 4 to 7 are in the high ones: >> 4)"),
        (30, "maddubs: 32 products, neighbours added"),
        (41.5, "the same for columns 4 to 7, and for three loads more: 8 sums, lane by lane"),
        (45.9, "madd with ones: neighbours added"),
    ]
    for y, text in steps:
        words(ax, LEFT + REGISTER / 2, y, text, color=QUIET)
    names = [
        (6.0, "one load:\n32 bytes, 64 codes"),
        (17, "columns 0 to 3\nof eight rows"),
        (24, "four codes of x,\neight times"),
        (35.5, "16-bit sums"),
        (52, "32-bit sums:\na block, 32 columns"),
    ]
    for y, text in names:
        words(ax, LEFT - 1.5, y, text, ha="right", fontsize=8.5, linespacing=1.25)
    for y, text in ((17, "32 lanes"), (35.5, "16 lanes"), (52, "8 lanes")):
        words(ax, LEFT + REGISTER + 1.5, y, text, ha="left", weight="bold")
    finish(fig)


# ---------------------------------------------------------------- speeds


def speeds(panels: Mapping[str, Mapping[str, float]]) -> None:
    """Billions of products a second by format; a panel for each place that weights come from."""
    fig, axes = figure(height=3.3, columns=len(panels), squeeze=False)
    for ax, (title, rates) in zip(axes[0], panels.items(), strict=True):
        names = [NAMES[name] for name in rates]
        colors = [QUIET if name == "F32" else OURS for name in rates]
        bars = ax.bar(names, list(rates.values()), color=colors, width=0.6)
        first = rates["F32"]
        notes = [f"x {rate / first:.2g}" if rate != first else "" for rate in rates.values()]
        ax.bar_label(bars, notes, padding=2, fontsize=9.5)
        ax.grid(axis="x", visible=False)
        ax.set_ylim(0, 1.15 * max(rates.values()))
        label(ax, title, "weights", "billion products a second")
    finish(fig)


# ---------------------------------------------------------------- the lanes table

STORAGE = {"F32": 8, "F16": 16, "BF16": 16, "Q8_0": 32, "Q4_0": 64}
ARITHMETIC = {"F32": "8", "F16": "8", "BF16": "8", "Q8_0": "32, 16, 8", "Q4_0": "32, 16, 8"}
COLUMNS = (  # words, and where they end
    ("storage lanes of\na register of 32 bytes", 24.0),
    ("arithmetic\nlanes", 47.5),
    ("bytes a\nweight", 56.5),
    ("GB/s", 63.0),
    ("billion\nproducts/s", 73.0),
    ("tokens/s\nat most", 82.5),
    ("error of\na product", 92.0),
    ("KL", 100.0),
)


def lanes_table(measured: Mapping[str, Sequence[float]]) -> None:
    """The table that everybody knows in orange, and what was measured beside it.

    measured : format -> bytes a weight, GB/s, products/s in billions, tokens/s, error, KL
    """
    fig, ax = canvas(height=3.4)
    for text, x in COLUMNS:
        align = "center" if text.startswith("storage") else "right"
        words(ax, x, 3.6, text, ha=align, fontsize=8.5, color=QUIET, linespacing=1.25)
    ax.plot([0, 100], [7.3, 7.3], color=QUIET, linewidth=0.8)
    for i, (name, numbers) in enumerate(measured.items()):
        y = 11 + 6.6 * i
        words(ax, 0, y, NAMES[name], ha="left", fontsize=10.5, weight="bold")
        lanes = STORAGE[name]
        for lane in range(lanes):
            cell(ax, 9.5 + 22 * lane / lanes, y - 1.7, 22 / lanes, 3.4, PALE if lane % 2 else SKY)
        words(ax, 35.2, y, str(lanes), ha="right", fontsize=11, weight="bold", color=LIMIT)
        kinds = ("{:.5g}", "{:.1f}", "{:.1f}", "{:.0f}", "{:.0e}", "{:.0e}")
        texts = [kind.format(number) for kind, number in zip(kinds, numbers, strict=True)]
        for text, (_, x) in zip([ARITHMETIC[name], *texts], COLUMNS[1:], strict=True):
            words(ax, x, y, text, ha="right", fontsize=9.5)
    finish(fig)


# ---------------------------------------------------------------- what few bits lose

BESIDE = {"Q4_0": (-10, 0), "BF16": (-10, 0), "F16": (-10, 0)}  # where a name stands; else right


def divergences(models: Mapping[str, Mapping[str, float]], bits: Mapping[str, float]) -> None:
    """KL from the full model by bits a weight, and the rule: a bit more, a quarter.

    models : its name -> format -> KL in nats;  bits : format -> bits a weight
    """
    fig, ax = figure(height=3.9)
    measured = {name: found for name, found in models.items() if found}
    looks = zip(measured.items(), ((OURS, "o", 9), (GREEN, "s", 6)), strict=False)
    for (name, found), (color, mark, size) in looks:
        few = {kind: kl for kind, kl in found.items() if bits[kind] < 32}
        at = [bits[kind] for kind in few]
        ax.plot(at, list(few.values()), mark, color=color, markersize=size, label=name)
    first = next(iter(models.values()))
    for kind in (each for each in first if bits[each] < 32):
        x, _ = side = BESIDE.get(kind, (10, 0))
        ax.annotate(kind, (bits[kind], first[kind]), side, textcoords="offset points",
                    va="center", ha="left" if x > 0 else "right", fontsize=9.5)  # fmt: skip
    across = np.array([bits["Q4_0"], bits["Q8_0"]])
    rule = first["Q4_0"] * 4.0 ** (across[0] - across)
    ax.plot(across, rule, color=LIMIT, ls=":", lw=1.6, label="a bit more, a quarter of the KL")
    ax.set(yscale="log", xlim=(2.5, 17.5))
    ax.set_xticks([4, 6, 8, 10, 12, 14, 16])
    label(ax, "What few bits lose", "bits a weight, scales included", "KL, nats, logarithmic")
    ax.legend(fontsize=9, loc="upper right")
    finish(fig)
