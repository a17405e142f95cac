"""One quiet style for all plots: few lines, labelled axes with units, colours that all can tell.

The colours are those of Okabe and Ito (2008), which stay apart for colour-blind readers. They are
given by meaning, and a meaning keeps its colour through all lessons.
"""

from typing import Any

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK, QUIET, PAPER = "#222222", "#8a8a8a", "#f2f1ec"
BLUE, ORANGE, GREEN, SKY, PINK, AMBER = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#56b4e9",
    "#cc79a7",
    "#e69f00",
)
OURS, LIMIT, REFERENCE = BLUE, ORANGE, GREEN  # what we built, what bounds it, what checks it
SERIES = [BLUE, ORANGE, GREEN, PINK, AMBER, SKY]
WIDTH = 8.0  # inches: as wide as a notebook's text

STYLE: Any = {
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.size": 11,
    "text.color": INK,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=SERIES),
    "grid.color": "#e6e6e6",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "image.cmap": "viridis",
}


def figure(height: float = 3.4, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure as wide as the text, with `columns` axes side by side, in the style.

    Returns the figure and its axes: one Axes, or an array of them if there are several.
    """
    plt.rcParams.update(STYLE)  # and not for this call only: legends are drawn later
    return plt.subplots(1, columns, figsize=(WIDTH, height), layout="constrained", **options)


def canvas(height: float, width: float = 100.0) -> tuple[Figure, Axes]:
    """Axes without frame for a drawing: x from 0 to `width`, y from 0 at the top, equal units."""
    fig, ax = figure(height)
    ax.set_axis_off()
    ax.set(xlim=(0, width), ylim=(height / WIDTH * width, 0))
    return fig, ax


def finish(fig: Figure) -> None:
    """Show a finished figure under the cell, once, and forget it."""
    from IPython.display import display

    display(fig)  # type: ignore[no-untyped-call]
    plt.close(fig)


def label(ax: Axes, title: str, x: str, y: str) -> None:
    """Title and axis labels; the labels name quantity and unit."""
    ax.set(xlabel=x, ylabel=y)
    ax.set_title(title, loc="left", fontsize=12, pad=12)


def plain_numbers(axis: Any) -> None:
    """Ticks such as 0.5, 10 and 2,000 instead of powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
