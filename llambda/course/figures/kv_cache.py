"""The drawings of lesson 06: the causal triangle, the same in calls, and the time of each token."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..plots import (
    AMBER,
    BLUE,
    INK,
    OURS,
    PAPER,
    QUIET,
    SKY,
    canvas,
    figure,
    finish,
    label,
)

KNOWN = "#d9d7cf"  # computed by an earlier call
CELL = 3.6  # hundredths of the picture's width
WINDOW = 9  # tokens that the median of a plotted time is taken over


def triangle(tokens: Sequence[str]) -> None:
    """What is computed to choose the next token: the whole triangle, or its last row alone."""
    n = len(tokens)
    fig, ax = canvas(height=4.5)
    right = 100 - n * CELL - 1
    panels = [
        (18.0, f"without a cache: {n * (n + 1) // 2} scores"),
        (right, f"with a cache: {n} scores"),
    ]
    for left, title in panels:
        first = 0 if left == panels[0][0] else n - 1
        squares(ax, n, left, 17, [BLUE if row >= first else KNOWN for row in range(n)])
        ax.text(left + n * CELL / 2, 2.5, title, ha="center", va="center", weight="bold")
        for column, token in enumerate(tokens):
            ax.text(left + (column + 0.5) * CELL, 16.2, token, rotation=90, ha="center",
                    va="bottom", fontsize=9)  # fmt: skip
        for row, token in enumerate(tokens):
            ink = INK if row >= first else QUIET
            y = 17 + (row + 0.5) * CELL
            ax.text(left - 1, y, token, ha="right", va="center", fontsize=9, color=ink)
        strip(ax, n, left, 17 + n * CELL + 1.6, first)
    bottom = 17 + n * CELL + 1.6 + CELL / 2
    words = "keys, values\nmade now"
    ax.text(17, bottom, words, ha="right", va="center", fontsize=9, linespacing=1.3)
    ax.text(right - 1, bottom, "kept,\none new", ha="right", va="center", fontsize=9)
    y = 17 + n * CELL / 2
    ax.text(1.5, y, "who looks (a query)", rotation=90, ha="center", va="center", color=QUIET)
    x = 18 + (n + 0.3) * CELL
    ax.text(x, 15.9, "at whom\n(a key)", ha="left", va="bottom", color=QUIET, fontsize=9)
    finish(fig)


def squares(ax: Axes, n: int, left: float, top: float, colours: Sequence[str]) -> None:
    """The lower triangle, a colour a row; what the mask forbids is only hinted at."""
    for row in range(n):
        for column in range(n):
            seen = column <= row
            corner = (left + column * CELL, top + row * CELL)
            face = colours[row] if seen else "white"
            edge = "white" if seen else PAPER
            ax.add_patch(Rectangle(corner, CELL, CELL, facecolor=face, edgecolor=edge))


def strip(ax: Axes, n: int, left: float, top: float, first: int) -> None:
    """The row of keys and values under a triangle; those before `first` were kept."""
    for column in range(n):
        face = BLUE if column >= first else KNOWN
        corner = (left + column * CELL, top)
        ax.add_patch(Rectangle(corner, CELL, CELL, facecolor=face, edgecolor="white"))


def calls(chunkings: Sequence[Sequence[int]]) -> None:
    """The same triangle, cut into calls of these sizes: a band of rows a call."""
    fig, ax = canvas(height=3.2)
    n = sum(chunkings[0])
    gap = (100 - len(chunkings) * n * CELL * 0.75) / (len(chunkings) + 1)
    for number, sizes in enumerate(chunkings):
        left = gap + number * (n * CELL * 0.75 + gap)
        band(ax, sizes, left, 9, CELL * 0.75)
        counts = ", ".join(map(str, sizes))
        title = f"calls of {counts}" if len(sizes) > 1 else f"one call of {counts}"
        ax.text(left, 4.5, title, ha="left", va="center", weight="bold")
    bottom = 9 + n * CELL * 0.75 + 3.5
    words = "a frame is one call: its queries are the rows, all the keys they need the columns"
    ax.text(gap, bottom, words, va="center", fontsize=9, color=QUIET)
    finish(fig)


def band(ax: Axes, sizes: Sequence[int], left: float, top: float, cell: float) -> None:
    """One triangle, the rows of alternate calls in alternate colours, an outline a call."""
    n, start = sum(sizes), 0
    for number, size in enumerate(sizes):
        end = start + size
        for row in range(start, end):
            for column in range(n):
                face = (BLUE, AMBER)[number % 2] if column <= row else "white"
                edge = "white" if column <= row else PAPER
                corner = (left + column * cell, top + row * cell)
                ax.add_patch(Rectangle(corner, cell, cell, facecolor=face, edgecolor=edge))
        ax.add_patch(Rectangle((left, top + start * cell), end * cell, size * cell, fill=False,
                               edgecolor=INK, linewidth=1.2))  # fmt: skip
        start = end


def per_token(
    seconds: Mapping[str, Sequence[float]], operations: Mapping[str, Sequence[float]]
) -> None:
    """Left: milliseconds of each token by its position. Right: what a cache leaves to multiply.

    seconds : "without a cache" and "with a cache" -> one number a position
    operations : the same for the parts that add up to a token with a cache
    """
    fig, (left, right) = figure(height=3.9, columns=2)
    for (name, values), colour in zip(seconds.items(), (QUIET, OURS), strict=True):
        smooth = 1e3 * medians(values)
        left.plot(np.arange(len(smooth)), smooth, color=colour, label=name)
    left.legend(loc="upper left", fontsize=9.5, frameon=False)
    below = np.zeros(len(next(iter(operations.values()))))
    looks = ((SKY, INK), (OURS, "white"))
    for (name, counts), (colour, ink) in zip(operations.items(), looks, strict=True):
        above = below + np.asarray(counts) / 1e6
        right.fill_between(np.arange(len(above)), below, above, color=colour, linewidth=0)
        middle = (below + above)[-1] / 2
        right.text(len(above) - 8, middle, name, ha="right", va="center", fontsize=9.5, color=ink)
        below = above
    left.set_ylim(bottom=0)
    right.set_ylim(0, 1.15 * below[-1])
    label(left, "Measured", "position of the token", "milliseconds a token")
    label(
        right, "Counted, with a cache", "position of the token", "million multiplications a token"
    )
    finish(fig)


def medians(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Each value's median with its neighbours: what else ran on the machine is not the point."""
    half = WINDOW // 2
    around = [values[max(i - half, 0) : i + half + 1] for i in range(len(values))]
    return np.array([np.median(each) for each in around])
