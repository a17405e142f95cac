"""The drawings of lesson 08: chains of additions, a matrix in two orders, speed by size."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from ...machine import Cache
from ..plots import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    LIMIT,
    ORANGE,
    OURS,
    PAPER,
    PINK,
    QUIET,
    SKY,
    canvas,
    figure,
    finish,
    label,
    plain_numbers,
)

LATENCY, A_CYCLE = 4, 2  # cycles that a multiply-add takes, and how many start in one
LINKS = 8  # of each chain that is shown, and lines of a listing
CYCLE = 1.4  # hundredths of the picture's width


def chains(one: Sequence[str], eight: Sequence[str]) -> None:
    """Multiply-adds in time: one sum, where each waits for the last, and eight beside each other.

    one, eight : the multiply-adds of the two loops, as lines of a listing; perhaps none
    """
    fig, ax = canvas(height=4.3)
    for top, sums, lines in ((5, 1, one), (31, LATENCY * A_CYCLE, eight)):
        links = [(link, row) for row in range(sums) for link in range(LINKS)]
        starts = [LATENCY * link + row // A_CYCLE for link, row in links]
        words = "one sum" if sums == 1 else f"{sums} sums"
        title = f"{words}: {len(links)} multiply-adds in {max(starts) + LATENCY} cycles"
        ax.text(2, top - 2.2, title, va="center", weight="bold")
        for (link, row), start in zip(links, starts, strict=True):
            y = top + 2 * (link if sums == 1 else row)
            bar(ax, 2 + start * CYCLE, y, CYCLE * LATENCY, BLUE if row == 0 else SKY)
        axis(ax, top + 2 * LINKS + 1.2)
        listing(ax, lines, 64, top)
    ax.text(64, 2.8, "on your machine", va="center", color=QUIET, fontsize=9)
    finish(fig)


def bar(ax: Axes, left: float, top: float, width: float, colour: str) -> None:
    shape = Rectangle((left, top), width, 1.7, facecolor=colour, edgecolor="white", linewidth=0.8)
    ax.add_patch(shape)


def axis(ax: Axes, y: float) -> None:
    end = LATENCY * (LINKS + 1)
    ax.plot([2, 2 + end * CYCLE], [y, y], color=QUIET, linewidth=1)
    for cycle in range(0, end + 1, LATENCY):
        x = 2 + cycle * CYCLE
        ax.plot([x, x], [y, y + 0.6], color=QUIET, linewidth=1)
        ax.text(x, y + 1.8, str(cycle), ha="center", va="center", fontsize=8, color=QUIET)
    ax.text(4 + end * CYCLE, y + 1.8, "cycles", va="center", fontsize=8, color=QUIET)


def listing(ax: Axes, lines: Sequence[str], left: float, top: float) -> None:
    for row, line in enumerate(lines[:LINKS]):
        text = line.expandtabs(14).replace("%", "")
        ax.text(left, top + 2 * row + 0.9, text, va="center", family="monospace", fontsize=8)
    if not lines:
        words = "(no AVX2 to compile for: no listing)"
        ax.text(left, top + 0.9, words, va="center", color=QUIET, fontsize=9)


def accumulators(shares: Mapping[str, Mapping[int, float]]) -> None:
    """The share of the peak that loops with so many sums reach, beside what latency allows."""
    fig, ax = figure(height=3.4)
    counts = sorted({count for curve in shares.values() for count in curve})
    allowed = [min(1.0, count / (LATENCY * A_CYCLE)) for count in counts]
    ax.plot(counts, allowed, color=LIMIT, linestyle="--", label="latency 4, two a cycle")
    for (name, curve), colour in zip(shares.items(), (OURS, GREEN), strict=False):
        ax.plot(list(curve), list(curve.values()), "o-", color=colour, label=name)
    ax.set_xscale("log", base=2)
    ax.set(xticks=counts, ylim=(0, None))
    plain_numbers(ax.xaxis)
    ax.yaxis.set_major_formatter("{x:.0%}")
    ax.legend(fontsize=9.5, loc="lower right")
    label(ax, "Sums beside each other", "accumulators, logarithmic", "share of the peak")
    finish(fig)


ROWS, COLUMNS = 8, 8  # of the drawn matrix
CELL = 3.9


def layouts() -> None:
    """One matrix in two orders: what the first two loads of eight numbers take."""
    fig, ax = canvas(height=3.7)
    left = grid(ax, 8, "row after row", lambda row, column: (row, COLUMNS * row + column))
    right = grid(ax, 58, "a strip of 8 rows", lambda row, column: (column, ROWS * column + row))
    for x, words in (
        (left, "a register holds 8 columns of a row;\nits lanes are added up at the end"),
        (right, "a register holds a column of 8 rows;\na lane is a row's own sum"),
    ):
        ax.text(x, 41.5, words, ha="center", va="center", fontsize=9, color=QUIET)
    finish(fig)


def grid(ax: Axes, left: float, title: str, order: Callable[[int, int], tuple[int, int]]) -> float:
    """A matrix whose elements show their place in memory; returns the middle of its width.

    order : (row, column) -> the number of the load that takes the element, and its place
    """
    top, middle = 6.5, left + COLUMNS * CELL / 2
    ax.text(middle, 2, title, ha="center", va="center", weight="bold")
    for row in range(ROWS):
        for column in range(COLUMNS):
            load, place = order(row, column)
            face = {0: BLUE, 1: SKY}.get(load, PAPER)
            corner = (left + column * CELL, top + row * CELL)
            ax.add_patch(Rectangle(corner, CELL, CELL, facecolor=face, edgecolor="white"))
            ink = "white" if load == 0 else INK
            x, y = corner[0] + CELL / 2, corner[1] + CELL / 2
            ax.text(x, y, str(place), ha="center", va="center", fontsize=8, color=ink)
    ax.text(left - 1, top + ROWS * CELL / 2, "rows", rotation=90, ha="right", va="center",
            fontsize=9, color=QUIET)  # fmt: skip
    ax.text(left + COLUMNS * CELL + 1, top + 1, "columns →", va="center", fontsize=9, color=QUIET)
    return middle


BYTES = 4  # a weight
COLOURS = (QUIET, AMBER, PINK, GREEN, SKY, BLUE)


def sizes(
    rates: Mapping[str, Mapping[tuple[int, int], float]], caches: Sequence[Cache], reading: float
) -> None:
    """Bytes of weights a second by the size of the matrix, for several kernels.

    rates : kernel -> (rows, columns) -> weights that it multiplies in a second
    reading : bytes of the largest matrix a second, for who only reads them
    """
    fig, ax = figure(height=4.8)
    shapes = sorted({shape for curve in rates.values() for shape in curve})
    for (name, curve), colour in zip(rates.items(), COLOURS, strict=True):
        weights = [rows * columns for rows, columns in curve]
        values = [BYTES * rate / 1e9 for rate in curve.values()]
        ax.plot(weights, values, "o-", color=colour, label=name, markersize=4)
    ax.axhline(reading / 1e9, color=LIMIT, linestyle="--", linewidth=1.2, label="only read")
    ax.set(xscale="log", yscale="log")
    ax.set_xticks([rows * columns for rows, columns in shapes], [f"{r} x {c}" for r, c in shapes],
                  fontsize=9.5)  # fmt: skip
    ax.xaxis.set_minor_locator(NullLocator())
    low, high = ax.get_xlim()
    for cache in caches:
        fitting = cache.nbytes / BYTES
        if cache.kind != "Instruction" and low < fitting < high:
            ax.axvline(fitting, color=ORANGE, linestyle=":", linewidth=1)
            words = f"level {cache.level} cache "
            ax.text(fitting, 0.97, words, fontsize=8.5, color=ORANGE, ha="right",
                    transform=ax.get_xaxis_transform())  # fmt: skip
    plain_numbers(ax.yaxis)
    flops = ax.secondary_yaxis("right", functions=(lambda x: x / 2, lambda x: 2 * x))
    plain_numbers(flops.yaxis)
    flops.set_ylabel("billion operations a second")
    label(ax, "", "rows x columns (both axes logarithmic)", "GB of weights a second")
    ax.legend(fontsize=9, ncols=2, loc="lower right", frameon=True, framealpha=1, edgecolor="none")
    finish(fig)
