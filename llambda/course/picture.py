"""The engine as a picture, the part lit that a lesson builds, under the course's four steps."""

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from .plots import BLUE, INK, PAPER, QUIET, canvas, finish

STEPS = ["make it run", "calibrate", "optimize", "engineer"]

# name -> (words, left, top, width, height), in hundredths of the picture's width
PARTS: dict[str, tuple[str, float, float, float, float]] = {
    "tokens": ("tokens", 9, 14, 10, 8),
    "embed": ("embed", 23, 14, 10, 8),
    "block": ("", 37, 11, 34, 14),
    "attention": ("attention", 39, 14, 13.5, 8),
    "feed forward": ("feed forward", 54.5, 14, 14.5, 8),
    "head": ("head", 75, 14, 8, 8),
    "sampling": ("sampling", 87, 14, 11, 8),
    "weights": ("weight file", 9, 29, 24, 5.5),
    "cache": ("KV cache", 39, 29, 13.5, 5.5),
    "batching": ("batching", 54.5, 29, 14.5, 5.5),
    "checks": ("checks and logs", 75, 29, 23, 5.5),
    "tensors": ("tensors", 9, 36.5, 24, 5.5),
    "kernels": ("kernels", 39, 36.5, 13.5, 5.5),
    "threads": ("threads", 54.5, 36.5, 14.5, 5.5),
    "profile": ("profile", 75, 36.5, 23, 5.5),
    "machine": ("the machine: cores, caches, memory", 9, 44, 89, 5.5),
}
MODEL = ("tokens", "embed", "block", "attention", "feed forward", "head", "sampling")
ARROWS = [("tokens", "embed"), ("embed", "block"), ("block", "head"), ("head", "sampling")]

# lesson -> its step, and the parts it builds
LESSONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "00": ("make it run", ("machine",)),
    "01": ("make it run", ("tensors",)),
    "02": ("make it run", ("weights",)),
    "03": ("make it run", ("tokens",)),
    "04": ("make it run", ("embed", "attention", "feed forward", "head")),
    "05": ("make it run", ("sampling",)),
    "06": ("make it run", ("cache",)),
    "07": ("calibrate", ("profile",)),
    "08": ("optimize", ("kernels",)),
    "09": ("optimize", ("weights", "kernels")),
    "10": ("engineer", ("threads",)),
    "11": ("engineer", ("kernels", "threads", "cache")),
    "12": ("engineer", ("batching",)),
    "13": ("engineer", ("checks",)),
    "14": ("engineer", ("checks",)),
    "15": ("engineer", MODEL),
}


def engine_picture(lesson: str) -> None:
    """Draw the engine, lit where the lesson ("04") builds. KeyError for a lesson there is not."""
    step, lit = LESSONS[lesson]
    fig, ax = canvas(height=4.0)
    for i, name in enumerate(STEPS):
        box(ax, f"{i + 1}  {name}", 9 + 22.6 * i, 1, 21.2, 4.6, name == step, corner=2.2)
    for name, (words, left, top, width, height) in PARTS.items():
        box(ax, words, left, top, width, height, name in lit)
    arrow(ax, [(6.5, 18), (9, 18)])
    for start, end in ARROWS:
        _, left, _, width, _ = PARTS[start]
        arrow(ax, [(left + width, 18), (PARTS[end][1], 18)])
    arrow(ax, [(92.5, 14), (92.5, 9), (14, 9), (14, 14)])
    ax.text(3.5, 18, "text", ha="center", va="center")
    ax.text(54, 8.6, "one more token", ha="center", va="bottom", color=QUIET, fontsize=9)
    ax.text(54, 26.8, "repeated in every layer", ha="center", va="center", color=QUIET, fontsize=9)
    finish(fig)


def box(
    ax: Axes, words: str, left: float, top: float, width: float, height: float, lit: bool,
    corner: float = 1.0,
) -> None:  # fmt: skip
    shape = FancyBboxPatch(
        (left, top),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={corner}",
        facecolor=BLUE if lit else PAPER,
        edgecolor=BLUE if lit else "#cfcdc4",
    )
    ax.add_patch(shape)
    ink, weight = ("white", "bold") if lit else (INK, "normal")
    ax.text(left + width / 2, top + height / 2, words, ha="center", va="center", color=ink,
            weight=weight, fontsize=10)  # fmt: skip


def arrow(ax: Axes, points: list[tuple[float, float]]) -> None:
    """A line through the points, with a head at the last."""
    ax.plot(*zip(*points[:-1], strict=True), color=INK, linewidth=1)
    ax.annotate(
        "",
        points[-1],
        points[-2],
        arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0},
    )
