"""The drawings of lesson 03: a word merging, text as coloured tokens, and what languages cost."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..plots import BLUE, INK, ORANGE, PAPER, QUIET, canvas, figure, finish, label

Lane = tuple[str, str, Sequence[bytes]]  # a heading or "", the lane's name, the text's tokens

TINTS = ("#cfe3f2", "#fadfc3", "#cbeadd", "#f3dcea")  # of blue, orange, green and pink
FIRST, LAST = 20.0, 89.0  # where the text of a lane begins and ends, of 100
SIGNS = {"\n": "↵", "\t": "→"}


def merge_tree(word: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Draw how a word's glyphs merge, the earliest merge lowest; return the pieces left."""
    pieces = [(glyph, float(i), 0.0) for i, glyph in enumerate(word)]  # text, x, step
    step, joints = 0, []
    while True:
        texts = [text for text, _, _ in pieces]
        found = [(ranks[pair], i) for i, pair in enumerate(pairwise(texts)) if pair in ranks]
        if not found:
            break
        rank, i = min(found)
        step += 1
        a, b = pieces[i], pieces[i + 1]
        made = (a[0] + b[0], (a[1] + b[1]) / 2, float(step))
        joints.append((rank, a, b, made))
        pieces[i : i + 2] = [made]

    fig, ax = figure(height=1.3 + 0.34 * step)
    for rank, a, b, made in joints:
        for part in (a, b):
            ax.plot([part[1], part[1], made[1]], [part[2], made[2], made[2]], color=QUIET, lw=1.2)
        tag(ax, made[0], made[1], made[2], TINTS[0])
        ax.text(len(word) - 0.3, made[2], f"{rank:,}", ha="left", va="center", fontsize=10)
    for i, glyph in enumerate(word):
        tag(ax, glyph, i, 0, PAPER)
    ax.text(len(word) - 0.3, step + 0.95, "rank", ha="left", va="center", color=QUIET)
    ax.set(xlim=(-0.6, len(word) + 0.4), ylim=(-0.6, step + 1.3))
    ax.set_xticks([])
    ax.set_yticks(range(step + 1))
    ax.grid(visible=False)
    ax.spines["bottom"].set_visible(False)
    label(ax, "One word, from bytes to tokens", "", "merges done")
    finish(fig)
    return [text for text, _, _ in pieces]


def tag(ax: Axes, text: str, x: float, y: float, colour: str) -> None:
    shape = {"boxstyle": "round,pad=0.25", "facecolor": colour, "edgecolor": "#cfcdc4"}
    ax.text(x, y, text, ha="center", va="center", fontsize=10, bbox=shape, zorder=3)


def lanes(title: str, rows: Sequence[Lane]) -> None:
    """Draw each text as wide as its bytes, a colour for each token, with the count of tokens."""
    heights = [7.6 if heading else 4.4 for heading, _, _ in rows]
    fig, ax = canvas(height=(sum(heights) + 10) * 0.08)
    ax.text(0, 2, title, fontsize=12, va="center")
    longest = max(len(b"".join(pieces)) for _, _, pieces in rows)
    scale = (LAST - FIRST) / longest
    y = 4.0
    for (heading, name, pieces), height in zip(rows, heights, strict=True):
        y += height
        middle = y - 1.9
        if heading:
            ax.text(0, middle, heading, va="center", weight="bold", fontsize=10)
        ax.text(FIRST - 1, middle, name, va="center", ha="right", color=QUIET, fontsize=9)
        lane(ax, pieces, middle, scale)
        end = FIRST + scale * len(b"".join(pieces)) + 1
        ax.text(end, middle, f"{len(pieces)}", va="center", fontsize=10)
    ruler(ax, y + 2.4, scale)
    finish(fig)


def lane(ax: Axes, pieces: Sequence[bytes], middle: float, scale: float) -> None:
    """The tokens as coloured boxes, and over them the letters, each across its own bytes."""
    x = FIRST
    for i, piece in enumerate(pieces):
        width = scale * len(piece)
        box = Rectangle(
            (x, middle - 1.9), width, 3.8, facecolor=TINTS[i % len(TINTS)], edgecolor="white"
        )
        ax.add_patch(box)
        x += width
    x = FIRST
    for letter in b"".join(pieces).decode("utf-8", "replace"):
        width = scale * len(letter.encode())
        sign = SIGNS.get(letter, letter)
        ink = QUIET if letter in SIGNS else INK
        ax.text(x + width / 2, middle, sign, ha="center", va="center", fontsize=9, color=ink)
        x += width


def ruler(ax: Axes, y: float, scale: float) -> None:
    end = FIRST + 10 * scale
    ax.plot([FIRST, FIRST, end, end], [y - 0.7, y, y, y - 0.7], color=QUIET, linewidth=1)
    words = "10 bytes; after each line its number of tokens"
    ax.text(end + 1, y, words, va="center", color=QUIET, fontsize=9)


def languages(counts: Mapping[str, Mapping[str, tuple[int, int]]]) -> None:
    """Left: bytes a token takes. Right: tokens for the same message. A row is a language.

    counts : tokenizer -> language -> (bytes, tokens)
    """
    names = list(next(iter(counts.values())))
    fig, (left, right) = figure(height=1.4 + 0.27 * len(names), columns=2, sharey=True)
    for colour, (tokenizer, of) in zip((BLUE, ORANGE), counts.items(), strict=False):
        per_token = [of[name][0] / of[name][1] for name in names]
        left.plot(per_token, range(len(names)), "o", color=colour, label=tokenizer)
        right.plot([of[name][1] for name in names], range(len(names)), "o", color=colour)
    left.set_yticks(range(len(names)), names)
    for ax in (left, right):
        ax.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, 1.06 * ax.dataLim.x1))
    label(left, "How much text is in a token?", "bytes per token", "")
    label(right, "What does the same message cost?", "tokens", "")
    left.legend(loc="lower right", fontsize=9, frameon=False)
    finish(fig)
