"""The drawings of lesson 12: tiles, a layer of several texts, who sits where, stages, roofs."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from ..picture import arrow, box
from ..plots import (
    AMBER,
    BLUE,
    INK,
    LIMIT,
    ORANGE,
    OURS,
    PAPER,
    PINK,
    QUIET,
    SERIES,
    canvas,
    figure,
    finish,
    label,
    plain_numbers,
)

CELL = 4.2  # hundredths of the picture's width
LINE = "#cfcdc4"

Calls = Sequence[Sequence[int]]  # the requests that take part in each call
Turn = tuple[int, int, float, float]  # stage, micro-batch, begin, end


# ---------------------------------------------------------------- tiles


def tiles(shapes: Sequence[tuple[int, int]]) -> None:
    """A tile's sums, the weights of one column on their left, the tokens' numbers above."""
    fig, ax = canvas(height=1.1 + CELL * 0.08 * (max(rows for rows, _ in shapes) + 3.2))
    gap = (100 - CELL * sum(tokens + 1.4 for _, tokens in shapes)) / (len(shapes) + 1)
    left = gap
    for rows, tokens in shapes:
        one_tile(ax, rows, tokens, left, 16)
        left += (tokens + 1.4) * CELL + gap
    y = 16 + (max(rows for rows, _ in shapes) + 1) * CELL
    for x, colour, words in (
        (8, AMBER, "weights of one column, loaded"),
        (42, PINK, "numbers of the tokens, loaded"),
        (76, BLUE, "sums, in registers"),
    ):
        ax.add_patch(Rectangle((x - 4, y - 1.5), 3, 3, facecolor=colour))
        ax.text(x, y, words, va="center", fontsize=9.5)
    finish(fig)


def one_tile(ax: Axes, rows: int, tokens: int, left: float, top: float) -> None:
    middle = left + (tokens + 1.4) * CELL / 2
    ax.text(middle, 3, f"{rows} x {tokens}", ha="center", va="center", weight="bold")
    words = f"{rows + tokens} loads for {rows * tokens}"
    ax.text(middle, 7, words, ha="center", va="center", fontsize=9, color=QUIET)

    def cell(column: float, row: float, colour: str) -> None:
        corner = (left + column * CELL, top + row * CELL)
        ax.add_patch(Rectangle(corner, CELL, CELL, facecolor=colour, edgecolor="white"))

    for row in range(rows):
        cell(0, row, AMBER)
        for token in range(tokens):
            cell(1.4 + token, row, BLUE)
    for token in range(tokens):
        cell(1.4 + token, -1.4, PINK)


# ---------------------------------------------------------------- a layer


def layer_of_texts(names: Sequence[str]) -> None:
    """One layer: what all texts share, and where each goes a way of its own."""
    fig, ax = canvas(height=3.3)
    rows = [5 + 7.2 * i for i in range(len(names))]
    bottom = rows[-1] + 5.4
    for first, width, words in (
        (21, 15, "norm\n\nq, k, v"),
        (69, 15, "o\n\nnorm\n\ngate, up\n\ndown"),
    ):
        box(ax, words, first, 4, width, bottom - 4, True)
        middle = first + width / 2
        ax.text(middle, bottom + 2.6, "read once for all", ha="center", fontsize=9, color=QUIET)
    ax.text(52.5, bottom + 2.6, "of each its own", ha="center", fontsize=9, color=QUIET)
    for number, (name, y) in enumerate(zip(names, rows, strict=True)):
        colour, middle = SERIES[1 + number], y + 2.7
        ax.add_patch(Rectangle((14, y), 3, 5.4, facecolor=colour))
        ax.add_patch(Rectangle((88, y), 3, 5.4, facecolor=colour))
        ax.text(12.5, middle, name, ha="right", va="center", fontsize=9.5)
        ax.add_patch(Rectangle((40, y), 25, 5.4, facecolor="white", edgecolor=colour))
        words = "rope, store, attention"
        ax.text(52.5, middle, words, ha="center", va="center", fontsize=9)
        for begin, end in ((17.5, 21), (36, 40), (65, 69), (84, 87.5)):
            arrow(ax, [(begin, middle), (end, middle)])
    finish(fig)


# ---------------------------------------------------------------- who sits where


def seats(plans: Mapping[str, Calls], places: int) -> None:
    """Which request has which place in each call, plan under plan."""
    fig, axes = figure(height=0.9 + 1.35 * len(plans), columns=1)
    fig.clear()
    longest = max(map(len, plans.values()))
    axes = fig.subplots(len(plans), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (title, calls) in zip(axes, plans.items(), strict=True):
        ax.add_patch(Rectangle((0, -0.5), len(calls), places, facecolor=PAPER, hatch="///",
                               edgecolor=LINE, linewidth=0))  # fmt: skip
        for place, request, first, end in seating(calls, places):
            colour = SERIES[request % len(SERIES)]
            ax.add_patch(Rectangle((first, place - 0.42), end - first, 0.84, facecolor=colour))
            ax.text((first + end) / 2, place, str(request), ha="center", va="center",
                    color="white", fontsize=9, weight="bold")  # fmt: skip
        used = sum(map(len, calls)) / (places * len(calls))
        ax.set(xlim=(0, longest), ylim=(places - 0.5, -0.5), yticks=range(places))
        ax.set_title(f"{title}: {len(calls)} calls, {used:.0%} of the places in use", fontsize=11)
        ax.set_ylabel("place")
        ax.grid(visible=False)
    axes[-1].set_xlabel("call")
    finish(fig)


def seating(calls: Calls, places: int) -> list[tuple[int, int, int, int]]:
    """(place, request, first call, end): a request keeps its place, a new one takes a free one."""
    at: dict[int, int] = {}
    found: dict[int, tuple[int, int, int, int]] = {}
    for number, call in enumerate(calls):
        at = {request: place for request, place in at.items() if request in call}
        for request in call:
            free = (place for place in range(places) if place not in at.values())
            place = at[request] if request in at else next(free)
            at[request] = place
            first = found[request][2] if request in found else number
            found[request] = (place, request, first, number + 1)
    return list(found.values())


# ---------------------------------------------------------------- stages


def stages(panels: Mapping[str, Sequence[Turn]], unit: str) -> None:
    """What each stage works on, and when. A panel is a run: its title -> its turns."""
    fig, _ = figure(height=0.7 + 1.15 * len(panels))
    fig.clear()
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    longest = max(end for turns in panels.values() for *_, end in turns)
    for ax, (title, turns) in zip(axes, panels.items(), strict=True):
        n_stages = 1 + max(stage for stage, *_ in turns)
        end = max(end for *_, end in turns)
        ax.add_patch(Rectangle((0, -0.5), end, n_stages, facecolor=PAPER, hatch="///",
                               edgecolor=LINE, linewidth=0))  # fmt: skip
        for stage, number, begin, end in turns:
            colour = SERIES[number % len(SERIES)]
            ax.add_patch(Rectangle((begin, stage - 0.4), end - begin, 0.8, facecolor=colour,
                                   edgecolor="white"))  # fmt: skip
            if end - begin > longest / 40:
                ax.text((begin + end) / 2, stage, str(number), ha="center", va="center",
                        color="white", fontsize=9, weight="bold")  # fmt: skip
        ax.set(xlim=(0, longest), ylim=(n_stages - 0.5, -0.5))
        ax.set_yticks(range(n_stages), [f"stage {stage}" for stage in range(n_stages)])
        ax.set_title(title, fontsize=11)
        ax.grid(visible=False)
    axes[-1].set_xlabel(unit)
    finish(fig)


# ---------------------------------------------------------------- roofs


def under_both_roofs(
    panels: Mapping[str, tuple[Mapping[int, float], Callable[[int], float], Mapping[str, float]]],
) -> None:
    """Throughput against the batch. A panel: its title -> measured by batch (tokens a second),
    what memory allows for a batch, and what arithmetic allows, by a word on it."""
    fig, axes = figure(height=4.2, columns=len(panels))
    for ax, (title, (measured, memory, arithmetic)) in zip(
        np.atleast_1d(axes), panels.items(), strict=True
    ):
        batches = list(measured)
        ax.plot(batches, [memory(b) for b in batches], color=LIMIT, label="memory")
        for words, most, line in zip(arithmetic, arithmetic.values(), ("--", ":"), strict=False):
            ax.axhline(most, color=LIMIT, linestyle=line, label=words)
        ax.plot(batches, list(measured.values()), "o-", color=OURS, label="measured")
        ax.set(xscale="log", yscale="log")
        ax.set_ylim(bottom=min(measured.values()) / 3)  # room for the legend
        ax.set_xticks([b for b in batches if b & (b - 1) == 0], minor=False)
        ax.tick_params(which="minor", bottom=False)
        plain_numbers(ax.xaxis)
        more_ticks(ax)
        label(ax, title, "tokens together (both axes logarithmic)", "tokens a second")
        ax.legend(fontsize=9, loc="lower right")
    finish(fig)


def more_ticks(ax: Axes) -> None:
    """On a logarithmic axis that may hold less than two powers of ten: 1, 2, 5, 10, 20, ..."""
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plain_numbers(ax.yaxis)


def to_the_right(
    places: Mapping[int, tuple[float, float]], peak: float, bandwidth: float, title: str
) -> None:
    """Batches on the roof.

    places : batch -> operations for each byte read, operations a second
    """
    fig, ax = figure(height=4.2)
    at = [intensity for intensity, _ in places.values()]
    knee = peak / bandwidth
    intensities = np.geomspace(min(at) / 2, max(knee, *at) * 3, 200)
    roof = np.minimum(peak, bandwidth * intensities)
    ax.plot(intensities, roof / 1e9, color=LIMIT, label="your roof, all cores")
    ax.plot(at, [flops / 1e9 for _, flops in places.values()], color=QUIET, linewidth=1)
    for batch, (intensity, flops) in places.items():
        ax.plot(intensity, flops / 1e9, "o", color=OURS, markersize=8)
        ax.annotate(f"{batch}", (intensity, flops / 1e9), (0, -15), textcoords="offset points",
                    ha="center", color=INK, fontsize=9.5)  # fmt: skip
    ax.axvline(knee, color=ORANGE, linestyle=":", linewidth=1)
    ax.set(xscale="log", yscale="log")
    ax.set_ylim(bottom=min(flops for _, flops in places.values()) / 2e9)
    plain_numbers(ax.xaxis)
    more_ticks(ax)
    label(ax, title, "operations for each byte read (both axes logarithmic)",
          "billion operations a second")  # fmt: skip
    ax.legend(fontsize=9, loc="lower right")
    finish(fig)
