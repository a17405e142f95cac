"""The drawings of lesson 01: a buffer as a ribbon, what reading costs, a wrong stride's face."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from numpy.typing import NDArray

from ..plots import (
    AMBER,
    GREEN,
    INK,
    LIMIT,
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

NUMBER, LINE = 4, 64  # bytes of an F32, and of a cache line
CELL, LEFT, TOP = 2.9, 3.6, 3.4  # of the ribbon, in hundredths of the picture's width
TINTS = [SKY, AMBER, GREEN, PINK]  # by row of the first view


def ribbon(views: Mapping[str, Any], nbytes: int = 128) -> None:
    """One buffer of F32 as a ribbon, and under it two views on it, each [rows, columns].

    views : name -> anything with shape, strides and offset in bytes. Colours tell the rows of the
    first view; triangles point at what the first row of each view reads.
    """
    height = TOP + 14.2 + CELL * max(view.shape[0] for view in views.values())
    fig, ax = canvas(height * 0.08)
    first = next(iter(views.values()))
    tint = {
        at // NUMBER: TINTS[i % len(TINTS)]
        for i in range(first.shape[0])
        for at in places(first, i)
    }
    for k in range(nbytes // NUMBER):
        square(ax, LEFT + CELL * k, TOP, k, tint)
    lines_of_cache(ax, nbytes)
    left = LEFT
    for (name, view), above in zip(views.items(), (True, False), strict=True):
        y, marker = (TOP - 1.3, "v") if above else (TOP + CELL + 1.4, "^")
        for x in (read := [LEFT + CELL * (at / NUMBER + 0.5) for at in places(view, 0)]):
            ax.plot(x, y, marker, color=INK, markersize=6)
        ax.text(max(read) + CELL, y, f"first row of {name}", fontsize=9.5, va="center")
        table(ax, name, view, left, TOP + CELL + 10.4, tint)
        left += CELL * view.shape[1] + 24
    finish(fig)


def places(view: Any, i: int) -> list[int]:
    """The bytes at which the elements of row i begin."""
    step, along = view.strides
    return [view.offset + i * step + j * along for j in range(view.shape[1])]


def square(ax: Axes, x: float, y: float, k: int, tint: Mapping[int, str]) -> None:
    colour = tint.get(k, "white")
    ax.add_patch(Rectangle((x, y), CELL, CELL, facecolor=colour, alpha=0.35, edgecolor="none"))
    ax.add_patch(Rectangle((x, y), CELL, CELL, fill=False, edgecolor=QUIET, linewidth=0.6))
    ax.text(x + CELL / 2, y + CELL / 2, str(k), ha="center", va="center", fontsize=8.5)


def lines_of_cache(ax: Axes, nbytes: int) -> None:
    """Mark where each cache line begins and ends, if the buffer begins on one."""
    wide, top, bottom = CELL * LINE / NUMBER, TOP - 0.8, TOP + CELL + 5.6
    for k in range(nbytes // LINE):
        x = LEFT + wide * k
        ax.plot([x, x, x + wide, x + wide], [top, bottom, bottom, top], color=LIMIT, linewidth=1.4)
        text = f"cache line {k}: bytes {LINE * k} to {LINE * (k + 1) - 1}"
        ax.text(x + wide / 2, bottom - 0.6, text, ha="center", color=LIMIT, fontsize=9.5)


def table(ax: Axes, name: str, view: Any, left: float, top: float, tint: Mapping[int, str]) -> None:
    """A view as its reader sees it; the numbers say where in the ribbon each element lies."""
    rows, columns = view.shape
    for i in range(rows):
        for j, at in enumerate(places(view, i)):
            square(ax, left + CELL * j, top + CELL * i, at // NUMBER, tint)
    outline = Rectangle((left, top), CELL * columns, CELL, fill=False, edgecolor=INK, linewidth=1.8)
    ax.add_patch(outline)
    words = f"{name}:  shape {view.shape},  strides {view.strides},  offset {view.offset}"
    ax.text(left, top - 1.4, words, fontsize=9.5)


def hops(walks: Mapping[str, Sequence[int]], nbytes: int = 128, most: int = 9) -> None:
    """The same buffer of F32 once for each walk, with an arrow for each step of a reader.

    walks : name -> the bytes at which the numbers begin, in the order of reading; at most `most`
    are drawn. A step forward goes above the ribbon, a step back below it. A walk needs one stride,
    so a step that is not the first one again is drawn in the colour of limits.
    """
    pitch = 11.4
    fig, ax = canvas((pitch * len(walks) + 1) * 0.08)
    for row, (name, walk) in enumerate(walks.items()):
        y, read = 5.6 + pitch * row, walk[:most]
        tint = {at // NUMBER: SKY for at in read}
        for k in range(nbytes // NUMBER):
            square(ax, LEFT + CELL * k, y, k, tint)
        ax.text(LEFT + CELL * nbytes / NUMBER, y - 1.4, name, fontsize=9.5, ha="right")
        told: set[int] = set()
        for start, stop in pairwise(read):
            step = stop - start
            colour = OURS if step == read[1] - read[0] else LIMIT
            words = "" if step in told else f"{step:+d} bytes"
            hop(ax, start / NUMBER, stop / NUMBER, y, colour, words)
            told.add(step)
    finish(fig)


def hop(ax: Axes, start: float, stop: float, y: float, colour: str, words: str) -> None:
    """An arrow from one square of the ribbon at y to another, above it or, going back, below."""
    side = -1 if stop > start else 1
    edge = y if side < 0 else y + CELL
    a, b = (LEFT + CELL * (k + 0.5) for k in (start, stop))
    high = 1.0 + 0.1 * min(abs(b - a), 22)
    arrow = FancyArrowPatch(
        (a, edge),
        (b, edge),
        connectionstyle=f"arc3,rad={-2 * high / abs(b - a):.3f}",
        arrowstyle="-|>",
        mutation_scale=8,
        shrinkA=0,
        shrinkB=0,
        color=colour,
        linewidth=1.1,
    )
    ax.add_patch(arrow)
    middle = edge + side * (high + 0.9)
    ax.text((a + b) / 2, middle, words, ha="center", va="center", color=colour, fontsize=9)


def stride_curve(ns: Mapping[int, float]) -> None:
    """Nanoseconds for one number, by the distance to the next one read, under the price by lines.

    ns : stride in bytes -> ns for one element. The dashed line is what one would pay if a number
    cost its share of the cache lines fetched, set to the measured price at one line a number.
    """
    fig, ax = figure(height=3.6)
    strides = list(ns)
    by_line = [ns[LINE] * min(stride, LINE) / LINE for stride in strides]
    ax.plot(strides, by_line, "--", color=LIMIT, label="its share of a 64-byte line")
    ax.plot(strides, list(ns.values()), "o-", color=OURS, label="measured here")
    ax.axvline(LINE, color=QUIET, linewidth=1)
    ax.set(xscale="log", yscale="log")
    ax.text(LINE, 1, " 64 bytes", transform=ax.get_xaxis_transform(), va="top", fontsize=9)
    ax.set_xticks(strides, [f"{stride:,}" for stride in strides])
    ax.tick_params(which="minor", bottom=False, left=False)
    plain_numbers(ax.yaxis)
    ax.set_yticks([y for y in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if in_range(y, [*ns.values()])])
    words = "bytes from one number read to the next (both axes logarithmic)"
    label(ax, "The price of one number of four bytes", words, "ns a number")
    ax.legend(fontsize=9, loc="lower right")
    finish(fig)


def in_range(value: float, values: list[float]) -> bool:
    return min(values) / 2 <= value <= max(values) * 2


def walks(ns: Mapping[str, float]) -> None:
    """Nanoseconds for one number: read in order, read across, and copied, in this order."""
    fig, ax = figure(height=0.9 + 0.55 * len(ns))
    names = list(ns)
    ax.barh(names, list(ns.values()), color=[OURS, LIMIT, QUIET], height=0.6)
    for row, value in enumerate(ns.values()):
        ax.text(value, row, f"  {value:.2f}", va="center", color=INK)
    ax.invert_yaxis()
    ax.set_xlim(0, max(ns.values()) * 1.15)
    ax.grid(axis="y", visible=False)
    label(ax, "One table, 49,152 x 576 numbers of four bytes", "ns a number", "")
    finish(fig)


def letter(rows: int = 48, columns: int = 64) -> NDArray[np.float32]:
    """A lambda in a frame: float32 [rows, columns], 0 for paper and 1 for ink."""
    image = np.zeros((rows, columns), np.float32)
    image[0], image[-1], image[:, 0], image[:, -1] = 1, 1, 1, 1
    strokes = [((0.18, 0.30), (0.84, 0.68)), ((0.48, 0.47), (0.84, 0.28))]
    for i, j in product(range(rows), range(columns)):
        point = np.array([i / (rows - 1), j / (columns - 1)])
        for start, end in np.array(strokes):
            along = np.clip((point - start) @ (end - start) / np.sum((end - start) ** 2), 0, 1)
            distance = np.linalg.norm(point - start - along * (end - start))
            image[i, j] = max(image[i, j], np.clip(1.5 - distance / 0.04, 0, 1))
    return image


def faces(views: Mapping[str, Any]) -> None:
    """Pictures side by side, one a view; each view is a tensor of two axes."""
    fig, axes = figure(height=2.7, columns=len(views))
    for ax, (name, view) in zip(axes, views.items(), strict=True):
        ax.imshow(view.numpy(), cmap="Greys", vmin=0, vmax=1.2, interpolation="nearest")
        ax.grid(visible=False)
        ax.tick_params(labelsize=8)
        label(ax, "", f"column, of {view.shape[1]}", f"row, of {view.shape[0]}")
        ax.set_title(name, fontsize=10.5)
    finish(fig)
