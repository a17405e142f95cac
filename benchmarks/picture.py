"""All goals in one picture: how many times the goal, with the lowest and highest pair."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from goal import Goal

matplotlib.use("agg")
from matplotlib import pyplot as plt

MET, MISSED, LIMIT = "#0072b2", "#d55e00", "#777777"


def draw(goals: Sequence[Goal], title: str, path: Path) -> None:
    """A row for each goal that has a number; what is right of 1 is met."""
    judged = [goal for goal in goals if goal.wanted is not None]
    if not judged:
        return
    fig, ax = plt.subplots(figsize=(10, 1.5 + 0.28 * len(judged)), layout="constrained")
    for row, goal in enumerate(judged):
        colour = MET if goal.met else MISSED
        ends = sorted((goal.times(goal.low), goal.times(goal.high)))
        ax.plot(ends, [row, row], color=colour, linewidth=2)
        ax.plot(goal.times(goal.value), row, "o", color=colour)
        if goal.ceiling is not None:
            ax.plot(goal.times(goal.ceiling), row, "|", color=LIMIT, markersize=14)
    names = [f"{goal.part}: {goal.case}, {goal.unit}" for goal in judged]
    ax.set_yticks(range(len(judged)), names, fontsize=8)
    ax.set(xscale="log", ylim=(len(judged) - 0.5, -0.5), title=title)
    ax.axvline(1, color="black", linewidth=1)
    ax.grid(axis="x", alpha=0.3)
    ax.set_xlabel("measured, as a multiple of the goal (blue: met); | what the machine allows")
    fig.savefig(path, dpi=120)
    plt.close(fig)
