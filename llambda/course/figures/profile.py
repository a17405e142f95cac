"""The drawings of lesson 07: spans as a timeline, what is to be gained as an area, the gap."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from ..plots import BLUE, INK, LIMIT, OURS, PAPER, QUIET, SKY, figure, finish, label

DEPTHS = (BLUE, SKY)  # alternating, so that a span stands out from the one around it
WORDS, LEVEL = 2, 9  # share of the width, in percent, that upright and level words need
REST = "in no operation"


def timeline(spans: Sequence[tuple[str, float, float]]) -> None:
    """Spans as bars on a clock, each below the one that it is inside.

    spans : path ("token/attention"), begin and end in seconds, of each span
    """
    deepest = max(path.count("/") for path, _, _ in spans)
    fig, ax = figure(height=1.2 + 0.5 * (deepest + 1))
    for path, begin, end in spans:
        depth, name = path.count("/"), path.rpartition("/")[2]
        face = DEPTHS[depth % len(DEPTHS)]
        ax.add_patch(Rectangle((begin, depth), end - begin, 0.86, facecolor=face, edgecolor="w"))
        ax.text((begin + end) / 2, depth + 0.43, name, ha="center", va="center", fontsize=10,
                color="white" if face == BLUE else INK)  # fmt: skip
    ax.set(xlim=(0, max(end for _, _, end in spans)), ylim=(deepest + 1, -0.1), yticks=[])
    ax.spines["left"].set_visible(False)
    label(ax, "Four spans: below each stands what it is made of", "seconds on our own clock", "")
    finish(fig)


def to_gain(model: str, seconds: Mapping[str, float], least: Mapping[str, float]) -> None:
    """Width: an operation's share of the time. Height: how much of its roof it reaches.

    seconds : operation -> what it takes; under REST, what is in none of them
    least : operation -> what it would take at its roof
    """
    fig, ax = figure(height=4.3)
    whole, left = sum(seconds.values()), 0.0
    for name in sorted(seconds, key=lambda each: (each not in least, -seconds[each])):
        width = 100 * seconds[name] / whole
        reached = 100 * min(1, least[name] / seconds[name]) if name in least else 0
        face, hatch = (PAPER, "") if name in least else ("white", "///")
        ax.bar(left, 100, width, align="edge", color=face, edgecolor=QUIET, hatch=hatch)
        ax.bar(left, reached, width, align="edge", color=OURS, edgecolor=QUIET)
        if width > WORDS:
            level = width > LEVEL and name in least
            words = f"{name}\n{width:.0f}%" if level else f"{name}  {width:.0f}%"
            ax.text(left + width / 2, 97, words, rotation=0 if level else 90, ha="center",
                    va="top", fontsize=9.5, color=INK,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
        left += width
    ax.set(xlim=(0, 100), ylim=(0, 100))
    ax.grid(visible=False)
    title = f"{model}: the pale area could be gained, the hatched one lies between operations"
    label(ax, title, "share of a token's time, %", "share of its own roof, %")
    finish(fig)


def gap(model: str, speed: float, factors: Mapping[str, float]) -> None:
    """The way from a speed up to the ceiling, a step for each factor; speeds in tokens a second."""
    fig, ax = figure(height=1.1 + 0.62 * len(factors))
    ends = [speed]
    for row, factor in enumerate(factors.values()):
        begin, end = ends[-1], ends[-1] * factor
        ax.barh(row, end - begin, left=begin, color=OURS, height=0.55)
        ax.text(max(begin, end), row, f"  x {factor:.2f}", va="center", color=INK)
        ends.append(end)
    end = ends[-1]
    ax.axvline(end, color=LIMIT, linestyle="--")
    ax.set_yticks(range(len(factors)), list(factors))
    ax.set(xscale="log", ylim=(len(factors) - 0.5, -0.5))
    ax.set_xlim(min(ends) / 1.1, max(ends) * (max(ends) / min(ends)) ** 0.35)
    ax.set_xticks([speed, end], [f"{speed:,.0f}", f"{end:,.0f}"])
    ax.set_xticks([], minor=True)
    ax.grid(axis="y", visible=False)
    label(ax, f"{model}: from cached to the ceiling", "tokens a second, logarithmic", "")
    finish(fig)
