"""The drawings of lesson 05: a draw, a temperature, three cuts, the work redone, the speed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..plots import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    LIMIT,
    ORANGE,
    OURS,
    PINK,
    QUIET,
    SKY,
    canvas,
    figure,
    finish,
    label,
    plain_numbers,
)

Floats = npt.NDArray[np.floating[Any]]
FILLS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY)
PALE = (PINK, AMBER, SKY)  # white words would be hard to read on these


def ruler(words: Sequence[str], probabilities: Floats, draws: Sequence[float]) -> None:
    """The numbers from 0 to 1, shared out among tokens by their probability, and some draws.

    words : the first tokens, in order of their ids or of anything else; one probability each
    probabilities : all of them; what has no word is drawn as "all others"
    """
    fig, ax = figure(height=2.2)
    pieces = [*probabilities[: len(words)], 1 - probabilities[: len(words)].sum()]
    left = 0.0
    for i, (word, width) in enumerate(zip([*words, "all others"], pieces, strict=True)):
        fill = QUIET if i == len(words) else FILLS[i % len(FILLS)]
        ax.add_patch(Rectangle((left, 0), width, 1, facecolor=fill, edgecolor="white"))
        upright = width < 0.012 * len(word) + 0.02
        ax.text(left + width / 2, 0.5, word, ha="center", va="center", weight="bold", fontsize=9.5,
                color=INK if fill in PALE else "white", rotation=90 if upright else 0)  # fmt: skip
        left += width
    for u in draws:
        ax.annotate(f"u = {u:.2f}", (u, 1), (u, 1.65), ha="center", va="center", color=INK,
                    fontsize=9.5, arrowprops={"arrowstyle": "-|>", "color": INK})  # fmt: skip
    ax.set(xlim=(0, 1), ylim=(0, 1.95), yticks=[])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    label(ax, "Three draws: where does u fall?", "cumulative probability, from 0 to 1", "")
    finish(fig)


def temperatures(words: Sequence[str], rows: Mapping[float, Floats]) -> None:
    """The probabilities of a few tokens, one panel a temperature."""
    fig, axes = figure(height=3.3, columns=len(rows), sharey=True, sharex=True)
    places = np.arange(len(words))
    for ax, (temperature, row) in zip(axes, rows.items(), strict=True):
        ax.barh(places, 100 * row, color=OURS)
        for place, share in zip(places, 100 * row, strict=True):
            ax.text(share + 1.5, place, f"{share:.0f}", va="center", fontsize=9, color=INK)
        ax.set_yticks(places, words)
        ax.set(xlim=(0, 118 * max(map(max, rows.values()))))
        ax.grid(axis="y", visible=False)
        label(ax, f"temperature {temperature:g}", "probability, %", "")
    axes[0].invert_yaxis()
    finish(fig)


def cuts(
    titles: Sequence[str], rows: Sequence[Floats], k: int, p: float, min_p: float, shown: int = 20
) -> None:
    """Where three rules cut two distributions, each given from the most probable token down."""
    fig, axes = figure(height=3.9, columns=len(rows))
    for ax, title, row in zip(axes, titles, rows, strict=True):
        first = row[:shown]
        ax.bar(np.arange(1, len(first) + 1), 100 * first, color=OURS, width=0.8)
        kept = {
            f"top-k {k}": k,
            f"top-p {p:g}": int(np.searchsorted(np.cumsum(row), p)) + 1,
            f"min-p {min_p:g}": int((row >= min_p * row[0]).sum()),
        }
        top = 100 * row[0] * 1.6  # room for the three rules above the bars
        for i, (name, n) in enumerate(kept.items()):
            y, fill = top * (0.94 - 0.12 * i), (ORANGE, GREEN, PINK)[i]
            end = min(n, shown) + 0.5
            ax.plot([0.5, end], [y, y], color=fill, linewidth=2.5, solid_capstyle="butt")
            ax.plot([end, end], [y - top * 0.03, y + top * 0.03], color=fill, linewidth=2.5)
            words = f"{name} keeps {n}"
            room = end < 0.55 * shown
            ax.text(end + 0.4 if room else end - 0.4, y + (0 if room else top * 0.02), words,
                    color=fill, ha="left" if room else "right",
                    va="center" if room else "bottom", fontsize=10)  # fmt: skip
        ax.set(xlim=(0.3, shown + 0.9), ylim=(0, top))
        ax.grid(axis="x", visible=False)
        ax.set_yticks([tick for tick in ax.get_yticks() if tick <= 102 * row[0]])
        label(ax, title, "tokens, the most probable first", "probability, %")
    finish(fig)


def redone(prompt: int, new: int) -> None:
    """Which positions each step of the loop computes, and which of them it had computed before."""
    fig, ax = canvas(height=0.55 + 0.27 * new)
    size, left, top = 3.25, 17.0, 6.5
    for step in range(new):
        for position in range(prompt + step):
            fresh = position == prompt + step - 1 or step == 0
            ax.add_patch(
                Rectangle(
                    (left + position * size, top + step * size), size * 0.86, size * 0.8,
                    facecolor=OURS if fresh else LIMIT, alpha=1 if fresh else 0.45,
                )
            )  # fmt: skip
        y = top + (step + 0.4) * size
        ax.text(left - 1.2, y, f"new token {step + 1}", ha="right", va="center", fontsize=9.5)
    total = sum(range(prompt, prompt + new))
    needed = prompt + new - 1
    ax.text(left, top - 1.6, "positions computed, from the first token of the prompt on",
            ha="left", va="bottom", fontsize=10)  # fmt: skip
    x = left + (prompt + new) * size + 2
    legend(ax, x, top + 1.2 * size, OURS, 1, f"computed for the first time: {needed}")
    legend(ax, x, top + 2.7 * size, LIMIT, 0.45, f"computed again: {total - needed}")
    finish(fig)


def legend(ax: Axes, x: float, y: float, fill: str, alpha: float, words: str) -> None:
    ax.add_patch(Rectangle((x, y), 2.8, 2.6, facecolor=fill, alpha=alpha))
    ax.text(x + 4.2, y + 1.3, words, va="center", fontsize=10, color=INK)


def falling(models: Mapping[str, Mapping[int, float]]) -> None:
    """Tokens a second against the tokens already there, one panel a model."""
    fig, axes = figure(height=3.4, columns=len(models), squeeze=False)
    for ax, (name, speeds) in zip(axes[0], models.items(), strict=True):
        lengths, rates = list(speeds), list(speeds.values())
        ax.plot(lengths, rates, "o-", color=OURS)
        for at in (0, -1):
            ax.annotate(f"{rates[at]:,.3g}", (lengths[at], rates[at]), (6, 8),
                        textcoords="offset points", color=INK, fontsize=10,
                        ha="left" if at == 0 else "right")  # fmt: skip
        ax.set(xlim=(0, lengths[-1] * 1.06), ylim=(0, max(rates) * 1.15))
        plain_numbers(ax.yaxis)
        ax.set_facecolor("white")
        label(ax, name, "tokens already in the text", "tokens a second")  # fmt: skip
    finish(fig)
