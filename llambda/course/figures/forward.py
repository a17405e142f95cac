"""The drawings of lesson 04: the block to scale, rotations, masks, maps, errors step by step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from ...check import Comparison, trace_engine
from ...config import ModelConfig
from ...kernels.rope import frequencies
from ...kernels.softmax import softmax
from ...model import Model
from ..plots import (
    INK,
    LIMIT,
    OURS,
    PAPER,
    QUIET,
    REFERENCE,
    SERIES,
    figure,
    finish,
    label,
    plain_numbers,
)

Array = npt.NDArray[Any]
MAP: Any = {"cmap": "Blues", "vmin": 0, "vmax": 1}
CENTER: Any = {"ha": "center", "va": "center"}


def pieces_of(model: Model, ids: Sequence[int]) -> list[str]:
    """The text of each token; a special token, which has none, is called (start)."""
    return [model.tokenizer.decode([token]) or "(start)" for token in ids]


def shares_of(model: Model, ids: Sequence[int]) -> Array:
    """Attention's shares: [n_layers, n_heads, n, n], a row for each position that looks."""
    config, trace, n = model.config, trace_engine(model.engine, ids), len(ids)
    found = np.empty((config.n_layers, config.n_heads, n, n), np.float32)
    for i in range(config.n_layers):
        keys = np.repeat(trace[f"blk.{i}.k_rope"], config.n_groups, axis=1)
        scores = np.einsum("qhd,khd->hqk", trace[f"blk.{i}.q_rope"], keys)
        scores[:, np.triu(np.ones((n, n), bool), k=1)] = -np.inf
        found[i] = softmax(scores / np.sqrt(config.head_dim))
    return found


# ---------------------------------------------------------------- the block to scale

MIDDLE, ROW, HEIGHT, STREAM = 66, 9.2, 6.4, 14  # of a canvas 110 wide


def front(model: Model, text: str, layer: int, head: int) -> None:
    """The block with its widths to scale, beside what one head of this model looks at."""
    ids = model.tokenizer.encode(text)
    fig, (left, right) = figure(5.0, columns=2, gridspec_kw={"width_ratios": [1.2, 1]})
    block(left, model.config)
    title, shares = f"layer {layer}, head {head}: a map", shares_of(model, ids)[layer, head]
    attention_map(right, shares, pieces_of(model, ids), title)
    right.set(xlabel="position that is looked at", ylabel="position that looks")
    finish(fig)


def block(ax: Axes, c: ModelConfig) -> None:
    """One block from the top down; every bar is as wide as the row of numbers it stands for."""
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    dim, ffn = (str(c.dim), c.dim), c.ffn_dim
    rows: list[tuple[str, list[tuple[str, int]]]] = [
        ("", [(f"x {c.dim}", c.dim)]),
        ("norm", [dim]),
        ("project", [(f"q {q}", q), (f"k {kv}", kv), (f"v {kv}", kv)]),
        ("rotate", [(f"q {q}", q), (f"k {kv}", kv)]),
        ("attention", [(f"{c.n_heads} x {c.head_dim}", q)]),
        ("project", [dim]),
        ("add", []),
        ("norm", [dim]),
        ("project", [(f"gate {ffn}", ffn), (f"up {ffn}", ffn)]),
        ("gate it", [(f"{ffn}", ffn)]),
        ("project", [dim]),
        ("add", []),
    ]
    ax.set_axis_off()
    ax.set(xlim=(-10, 106), ylim=(ROW * len(rows) + 8, 0), aspect="equal")
    ax.set_title(f"one of {c.n_layers} blocks, widths to scale", fontsize=11, loc="center")
    ax.plot([MIDDLE, MIDDLE], [2, ROW * len(rows) + 3], color=INK, linewidth=1, zorder=0)
    scale, branch = 74 / (2 * ffn), 0.0  # units a number; where the stream went aside
    for top, (name, bars) in zip(np.arange(len(rows)) * ROW + 2.0, rows, strict=True):
        if name == "add":
            add(ax, branch, top + HEIGHT / 2)
            continue
        if name == "norm":
            branch = top - 1.4
        style: Any = {"ha": "right", "va": "center", "fontsize": 8.5, "color": QUIET}
        ax.text(STREAM - 3, top + HEIGHT / 2, name, **style)
        left = MIDDLE - (sum(width for _, width in bars) * scale + 2 * (len(bars) - 1)) / 2
        for words, width in bars:
            bar(ax, words, left, top, width * scale, lit=name == "attention")
            left += width * scale + 2
    end, arrow = ROW * len(rows) + 2, {"arrowstyle": "-|>", "color": INK}
    ax.annotate("", (MIDDLE, end + 5), (MIDDLE, end), arrowprops=arrow)


def bar(ax: Axes, words: str, left: float, top: float, width: float, lit: bool) -> None:
    face, ink = (OURS, "white") if lit else (PAPER, INK)
    ax.add_patch(Rectangle((left, top), width, HEIGHT, facecolor=face, edgecolor="#cfcdc4"))
    size = 8 if width > 12 else 6.5
    ax.text(left + width / 2, top + HEIGHT / 2, words, color=ink, fontsize=size, **CENTER)


def add(ax: Axes, branch: float, y: float) -> None:
    """The stream, which left at height `branch`, comes back in at y."""
    ax.plot([MIDDLE, STREAM, STREAM, MIDDLE], [branch, branch, y, y], color=INK, lw=1, zorder=0)
    ax.add_patch(Circle((MIDDLE, y), 2.6, facecolor="white", edgecolor=INK))
    ax.text(MIDDLE, y, "+", fontsize=10, **CENTER)


# ---------------------------------------------------------------- attention


def attention_map(ax: Axes, shares: Array, pieces: Sequence[str], title: str) -> None:
    """Shares [n, n]: each row is a position that looks, and adds up to 1."""
    names = [piece.strip() or piece for piece in pieces]
    ax.grid(False)
    ax.imshow(shares, **MAP)
    ax.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.set_title(title, fontsize=11)


def maps(panels: Sequence[tuple[str, Array, Sequence[str]]]) -> None:
    """Attention maps side by side: title, shares and pieces of each."""
    fig, axes = figure(3.6, columns=len(panels))
    for ax, (title, shares, pieces) in zip(axes, panels, strict=True):
        attention_map(ax, shares, pieces, title)
        ax.set_xlabel("looked at", fontsize=9)
    axes[0].set_ylabel("looks", fontsize=9)
    finish(fig)


def all_maps(shares: Array) -> None:
    """Every head of every layer, small and without words: [n_layers, n_heads, n, n]."""
    layers, heads, n, _ = shares.shape
    fig, axes = figure(2.05 * layers, columns=heads)
    for head, ax in enumerate(axes):
        gap = np.full((1, n), np.nan)
        column = [part for layer in shares[:, head] for part in (layer, gap)][:-1]
        ax.grid(False)
        ax.imshow(np.concatenate(column), **MAP)
        names = [f"layer {i}" if head == 0 else "" for i in range(layers)]
        ax.set_yticks([(n + 1) * i + n / 2 - 0.5 for i in range(layers)], names)
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.set_title(f"head {head}", fontsize=11)
        ax.spines[:].set_visible(False)
    fig.supylabel("position that looks", fontsize=10)
    fig.supxlabel("position that is looked at", fontsize=10)
    finish(fig)


def mask_steps(scores: Array, hidden: Array, shares: Array, pieces: Sequence[str]) -> None:
    """One head's scores, what the mask leaves of them, and the shares that softmax makes."""
    fig, axes = figure(3.4, columns=3)
    masked, shares = (np.where(hidden, np.nan, table) for table in (scores, shares))
    edge = 2 * np.abs(scores).max()
    titles, tables = ("1  scores", "2  masked", "3  shares"), (scores, masked, shares)
    for ax, title, table in zip(axes, titles, tables, strict=True):
        attention_map(ax, shares, pieces, title)
        if table is not shares:
            ax.imshow(table, cmap="PuOr", vmin=-edge, vmax=edge)
        for (row, column), value in np.ndenumerate(table):
            if not np.isnan(value):
                ink = "white" if table is shares and value > 0.6 else INK
                ax.text(column, row, f"{value:.1f}", fontsize=6.5, color=ink, **CENTER)
    axes[0].set_ylabel("position that looks", fontsize=9)
    axes[1].set_xlabel("position that is looked at", fontsize=9)
    finish(fig)


def clocks(config: ModelConfig, pairs: Sequence[int], positions: int) -> None:
    """Where the hands of some points (pairs) stand at positions 0, 1, 2, ...: fast and slow."""
    turning = frequencies(config.rope)
    fig, axes = figure(2.0, columns=len(pairs))
    for ax, pair in zip(axes, pairs, strict=True):
        ax.set_axis_off()
        ax.set(xlim=(-1.45, 1.45), ylim=(-1.45, 1.45), aspect="equal")
        ax.add_patch(Circle((0, 0), 1, facecolor=PAPER, edgecolor="#cfcdc4"))
        angles = turning[pair] * np.arange(positions)
        spread = float(angles[-1]) > 0.3 * positions  # else the numbers would cover each other
        for position, angle in enumerate(angles):
            x, y = np.cos(angle), np.sin(angle)
            ax.plot([0, x], [0, y], color=OURS, alpha=(position + 2) / (positions + 1), lw=1.8)
            if spread or position in (0, positions - 1):
                drop = 0 if spread else 0.14 * (1 if position else -1)
                ax.text(1.22 * x, 1.22 * y + drop, str(position), fontsize=9, **CENTER)
        ax.set_title(f"point {pair}: {turning[pair]:.2g} rad", fontsize=10, loc="center", pad=4)
    fig.supxlabel("above: the angle from one position to the next; at the hands: positions", size=9)
    finish(fig)


def norms(x: Array, shift: float, rms: Array, layer: Array) -> None:
    """Rows [2, n]: x and x + shift, and what the two norms make of them."""
    fig, axes = figure(2.9, columns=3)
    titles = ("x, and x shifted", "RMSNorm", "LayerNorm")
    for ax, title, rows in zip(axes, titles, (x, rms, layer), strict=True):
        at = np.arange(rows.shape[1])
        ax.bar(at - 0.2, rows[0], 0.38, color=OURS, label="x")
        ax.bar(at + 0.2, rows[1], 0.38, color=SERIES[1], label=f"x + {shift:g}")
        ax.axhline(0, color=INK, linewidth=0.8)
        ax.set_xticks(at)
        label(ax, title, "element", "value" if rows is x else "")
    axes[0].set_ylim(top=7.5)
    axes[0].legend(fontsize=9, loc="upper left")
    finish(fig)


def influence(changed: Mapping[str, Array], pieces: Sequence[str]) -> None:
    """Which numbers changed with one token: a row for each step, a column for each position."""
    names = list(changed)
    fig, ax = figure(0.8 + 0.26 * len(names))
    ax.grid(False)
    table = np.array(list(changed.values()), float)
    ax.imshow(table, cmap="Blues", vmin=0, vmax=1.4, aspect="auto")
    ax.set_xticks(np.arange(len(pieces)), [piece.strip() for piece in pieces])
    ax.set_yticks(range(len(names)), names, fontsize=9)
    ax.hlines(np.arange(len(names)) - 0.5, -0.5, len(pieces) - 0.5, color="white")
    ax.spines[:].set_visible(False)
    label(ax, "Dark: changed when one word did", "position", "step, in the order of computation")
    finish(fig)


# ---------------------------------------------------------------- errors


def rounding(lengths: Array, errors: Array) -> None:
    """Measured error of float32 sums, in units of u times their size, and the two laws."""
    fig, ax = figure(3.0)
    ax.plot(lengths, lengths, color=LIMIT, linestyle="--", label="N: all roundings pull one way")
    ax.plot(lengths, np.sqrt(lengths), color=REFERENCE, label="sqrt(N): they go up and down")
    ax.plot(lengths, errors, "o", color=OURS, markersize=4, label="measured")
    ax.set(xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        plain_numbers(axis)
    ax.legend(fontsize=9)
    label(ax, "Adding up N numbers in float32", "N, numbers added", "error / (u x size of sum)")
    finish(fig)


def chain(config: ModelConfig, runs: Mapping[str, Sequence[Comparison]]) -> None:
    """Largest error over tolerance at every step, one line a run; above 1 is wrong."""
    fig, ax = figure(3.9)
    for (name, run), color in zip(runs.items(), (QUIET, *SERIES), strict=False):
        ratios = np.maximum([c.ratio for c in run], 1e-4)
        ax.plot(ratios, color=color, linewidth=1.6, label=name)
        first = int(np.argmax(ratios > 1))
        if ratios[first] > 1:
            ax.plot(first, ratios[first], "o", color=color, markersize=7)
    steps = 15 * config.n_layers + 3
    ax.axhline(1, color=INK, linewidth=1)
    ax.text(steps - 0.5, 1.3, "tolerance", fontsize=9)
    names = [*(f"layer {i}" for i in range(config.n_layers)), "logits"]
    ax.set_xticks([*range(1, steps - 2, 15), steps - 1], names)
    ax.set(yscale="log", ylim=(5e-5, 3e6), xlim=(-1, steps + 6))
    ax.legend(fontsize=8.5, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    label(ax, "Where each fault begins (dot)", "step, in order", "largest error / tolerance")
    finish(fig)


def speeds(seconds: Mapping[str, float]) -> None:
    """Seconds a token, a bar each, on a logarithmic axis."""
    fig, ax = figure(0.9 + 0.45 * len(seconds))
    ms = [1e3 * value for value in seconds.values()]
    ax.barh(list(seconds), ms, color=[QUIET, OURS, QUIET, OURS][: len(ms)], height=0.6)
    for row, value in enumerate(ms):
        ax.text(value, row, f"  {float(f'{value:.2g}'):,.6g} ms", va="center")
    ax.set(xscale="log", xlim=(min(ms) / 3, max(ms) * 10))
    ax.invert_yaxis()
    plain_numbers(ax.xaxis)
    label(ax, "One token's matrix products", "milliseconds, logarithmic", "")
    finish(fig)
