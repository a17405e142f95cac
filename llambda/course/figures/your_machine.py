"""The drawing of lesson 00: this machine's roof, and three models under it."""

from collections.abc import Mapping

import numpy as np
from matplotlib.ticker import MaxNLocator

from ..plots import INK, LIMIT, OURS, QUIET, figure, finish, label, plain_numbers

FLOPS_PER_WEIGHT = 2  # a multiplication and an addition
BITS_PER_WEIGHT = 4.5  # of the grey line


def roof(
    bandwidth: Mapping[int, float], peak: Mapping[int, float], weights: Mapping[str, float]
) -> None:
    """Left: bytes a second by threads. Right: the most tokens a second by bytes a token.

    bandwidth, peak : threads -> bytes/s, FLOP/s;  weights : model -> bytes read for one token
    """
    fig, (left, right) = figure(height=3.9, columns=2, width_ratios=[1, 1.7])
    threads = [str(n) for n in bandwidth]
    left.bar(threads, [rate / 1e9 for rate in bandwidth.values()], color=OURS, width=0.6)
    label(left, "Memory", "threads", "bytes read, GB/s")
    left.grid(axis="x", visible=False)
    left.yaxis.set_major_locator(MaxNLocator(5))

    nbytes = np.geomspace(min(weights.values()) / 8, max(weights.values()) * 4, 50)
    most, one = max(bandwidth.values()), bandwidth[1]
    arithmetic = max(peak.values()) / (FLOPS_PER_WEIGHT * nbytes * 8 / BITS_PER_WEIGHT)
    right.plot(nbytes, arithmetic, color=QUIET, linewidth=1.2, label="arithmetic")
    right.plot(nbytes, most / nbytes, color=LIMIT, label="memory")
    if most > 1.05 * one:
        right.plot(nbytes, one / nbytes, color=LIMIT, ls=":", label="memory, one thread")
    for name, size in weights.items():
        right.plot(size, most / size, "o", color=OURS, markersize=9)
        note = f"{name}\n{most / size:,.{0 if most > 10 * size else 1}f} tokens/s"
        right.annotate(note, (size, most / size), (-9, -9), textcoords="offset points",
                       ha="right", va="top", color=INK, fontsize=9.5,
                       bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
    top = max(arithmetic[0], most / nbytes[0]) * 1.5
    right.set(xscale="log", yscale="log", ylim=(min(arithmetic[-1], most / nbytes[-1]) / 2, top))
    sizes = [size for size in (1e7, 1e8, 1e9, 1e10) if nbytes[0] < size < nbytes[-1]]
    right.set_xticks(sizes, [f"{size / 1e9:g} GB" for size in sizes], minor=False)
    right.tick_params(which="minor", bottom=False, left=False)
    plain_numbers(right.yaxis)
    label(right, "Your roof", "weights read for one token (both axes logarithmic)", "tokens/s")
    right.legend(fontsize=9, loc="upper right")
    finish(fig)
