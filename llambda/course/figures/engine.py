"""The drawings of lesson 11: a chain forked and whole, a layer's barriers, and what is left."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..plots import AMBER, BLUE, INK, LIMIT, OURS, QUIET, SKY, canvas, figure, finish, label

Stamps = npt.NDArray[np.float64]  # [threads, matrices, 2]: begin and end, microseconds

# ---------------------------------------------------------------- two ways through a chain


def gantt(ways: Mapping[str, Sequence[Stamps]], shown: int = 6) -> None:
    """What each thread computes, and when: a panel a way, all on one axis of time.

    ways : several runs of each; the picture takes the quietest stretch of them
    shown : the matrices of the first way that the picture has room for
    """
    window = min(
        float(run[:, i + shown - 1, 1].max() - run[:, i, 0].min())
        for run in next(iter(ways.values()))
        for i in range(run.shape[1] - shown)
    )
    fig, _ = figure(height=1.1 + 1.25 * len(ways))
    fig.clear()
    panels = fig.subplots(len(ways), 1, sharex=True)
    for ax, (name, runs) in zip(panels, ways.items(), strict=True):
        done, stretch = quietest(runs, window)
        rows(ax, stretch, window)
        ax.set_title(f"{name}: {done} matrices", loc="left", fontsize=11, pad=5)
        ax.set(xlim=(0, window))
    panels[-1].set_xlabel("microseconds; blue is multiplying, white is waiting")
    finish(fig)


def quietest(runs: Sequence[Stamps], window: float) -> tuple[int, Stamps]:
    """Where most matrices were done in so much time: how many, and the stamps from there on."""
    best, stretch = 0, runs[0]
    for run in runs:
        begins, ends = run[:, :, 0].min(axis=0), run[:, :, 1].max(axis=0)
        counts = np.searchsorted(ends, begins + window * 1.001) - np.arange(len(ends))
        start = int(counts.argmax())
        if counts[start] > best:
            best, stretch = int(counts[start]), run[:, start:] - begins[start]
    return best, stretch


def rows(ax: Axes, stamps: Stamps, window: float) -> None:
    for row, thread in enumerate(stamps):
        bars = [(begin, end - begin) for begin, end in thread if begin < window]
        faces = [BLUE if i % 2 == 0 else SKY for i in range(len(bars))]
        ax.broken_barh(bars, (row - 0.36, 0.72), facecolors=faces)
    names = [f"thread {row}" for row in range(len(stamps))]
    ax.set_yticks(range(len(stamps)), names)
    ax.set_ylim(len(stamps) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)


# ---------------------------------------------------------------- a layer

TOP, LANE, GAP = 9.0, 8.5, 1.6
# Each phase: what every thread does for itself, and what each does of it, for thread 0 and 1.
PHASES: list[tuple[str, str, str, float]] = [
    ("norm", "q of\nall 4 heads", "k and v of\n2 heads, into\nthe cache", 15.5),
    ("", "scores\nof some\npositions", "scores of\nthe other\npositions", 12),
    ("", "softmax;\nhalf of the\nmixed values", "softmax;\nthe other\nhalf", 13.5),
    ("prepare", "o: half of\nthe rows,\nonto x", "o: the other\nhalf, onto x", 15.5),
    (
        "norm",
        "gate, up and\nSwiGLU: half\nof the rows",
        "gate, up and\nSwiGLU: the\nother half",
        16.5,
    ),
    ("prepare", "down: half\nof the rows,\nonto x", "down: the\nother half,\nonto x", 16.5),
]


def layer() -> None:
    """One layer of `tiny` for one token in two threads: phases, and barriers between them."""
    fig, ax = canvas(height=2.75)
    left = 6.5
    for row in range(2):
        y = TOP + row * (LANE + GAP) + LANE / 2
        ax.text(left - 1, y, f"thread\n{row}", ha="right", va="center", fontsize=9, color=QUIET)
    for alone, *shares, width in PHASES:
        for row, words in enumerate(shares):
            y = TOP + row * (LANE + GAP)
            own = 3.0 if alone else 0.0
            if alone:
                block(ax, left, y, own, alone, AMBER, INK, turned=True)
            block(ax, left + own, y, width - own - 1.2, str(words), OURS, "white")
        x = left + width - 0.6
        bottom = TOP + 2 * LANE + 2 * GAP
        ax.plot([x, x], [TOP - GAP, bottom], color=LIMIT, linewidth=2.5)
        left += width
    words = (
        "amber: every thread does all of it, for itself.  blue: a share.  orange lines: barriers"
    )
    ax.text(6.5, 2.2, "one layer, one token", va="center", weight="bold")
    ax.text(6.5, TOP + 2 * LANE + 2 * GAP + 3, words, va="center", fontsize=9, color=QUIET)
    finish(fig)


def block(
    ax: Axes, left: float, top: float, width: float, words: str, face: str, ink: str,
    turned: bool = False,
) -> None:  # fmt: skip
    ax.add_patch(Rectangle((left, top), width, LANE, facecolor=face, edgecolor="white"))
    ax.text(left + width / 2, top + LANE / 2, words, ha="center", va="center", color=ink,
            fontsize=8.5, rotation=90 if turned else 0, linespacing=1.2)  # fmt: skip


# ---------------------------------------------------------------- what is left


def where_it_goes(parts: Mapping[str, float]) -> None:
    """The time of one token as a bar, cut into parts; milliseconds by name."""
    fig, ax = figure(height=2.7)
    colours = [OURS, SKY, AMBER, LIMIT, QUIET]
    total, at = sum(parts.values()), 0.0
    for (name, value), colour in zip(parts.items(), colours, strict=True):
        words = f"{name}: {value:.2f} ms, {value / total:.0%}"
        ax.barh(0, value, left=at, color=colour, height=0.6, label=words)
        at += value
    ax.set_yticks([])
    ax.set(ylim=(-0.45, 0.45), xlim=(0, total))
    ax.grid(visible=False)
    label(ax, "Where a token's time goes", "milliseconds of one token", "")
    handles, names = ax.get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=2, fontsize=9)
    finish(fig)


def by_position(milliseconds: Mapping[str, Sequence[float]], positions: Sequence[int]) -> None:
    """The time of a token by its position, a line a kind of cache."""
    fig, ax = figure(height=3.0)
    for (name, values), colour in zip(milliseconds.items(), (QUIET, OURS), strict=True):
        ax.plot(positions, values, "o-", color=colour, label=name)
    ax.set_ylim(bottom=0)
    label(ax, "What the cache costs", "position of the token", "milliseconds a token")
    ax.legend(loc="lower right", fontsize=9.5)
    finish(fig)
