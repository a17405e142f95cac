"""The drawings of lesson 02: number formats, blocks and a file to scale."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from ...quants import BY_NAME, Bytes, Floats
from ...tensorfile import TensorFile
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
    REFERENCE,
    SKY,
    canvas,
    figure,
    finish,
    label,
)

# ---------------------------------------------------------------- numbers and blocks

SIGN, EXPONENT, FRACTION = ORANGE, AMBER, SKY
SCALE, MINIMUM, PACKED, CODES = ORANGE, PINK, AMBER, SKY


def cell(ax: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor="white", lw=1))


def words(ax: Axes, x: float, y: float, text: str, **options: object) -> None:
    style: dict[str, object] = {"ha": "center", "va": "center", "fontsize": 9, "color": INK}
    ax.text(x, y, text, **(style | options))  # type: ignore[arg-type]


def number_fields(number: float) -> None:
    """The bits of a number as F32, BF16 and F16, by field; above each other to scale."""
    fig, ax = canvas(height=3.1, width=132)
    single = int(np.float32(number).view(np.uint32))
    half = int(np.float16(number).view(np.uint16))
    rows = [  # name, bits, how many, exponent bits
        ("F32", single, 32, 8),
        ("BF16", single >> 16, 16, 8),
        ("F16", half, 16, 5),
    ]
    for row, (name, bits, size, exponent) in enumerate(rows):
        y = 9 + 15 * row
        words(ax, 0, y + 3, name, ha="left", fontsize=11, weight="bold")
        for i in range(size):
            color = SIGN if i == 0 else EXPONENT if i <= exponent else FRACTION
            cell(ax, 14 + 3.6 * i, y, 3.6, 6, color)
            words(ax, 15.8 + 3.6 * i, y + 3, str(bits >> (size - 1 - i) & 1))
        fraction = size - 1 - exponent
        note = f"1 + {exponent} + {fraction} bits"
        words(ax, 14, y + 8.2, note, ha="left", color=QUIET)
        value = (bits << 16 if name == "BF16" else bits) & 0xFFFFFFFF
        shown = np.float16(number) if name == "F16" else np.uint32(value).view(np.float32)
        words(ax, 14 + 3.6 * size, y + 8.2, f"= {float(shown):.8g}", ha="right")
    for x, color, text in (
        (14, SIGN, "sign"),
        (28, EXPONENT, "exponent"),
        (50, FRACTION, "fraction"),
    ):
        cell(ax, x, 1.2, 3, 3, color)
        words(ax, x + 4.2, 2.8, text, ha="left")
    finish(fig)


def blocks_to_scale() -> None:
    """One block of Q8_0, Q4_0 and Q4_1, byte by byte: 32 weights each."""
    fig, ax = canvas(height=3.0, width=112)
    step = 3.0
    for row, (name, header, nibbles) in enumerate(
        (("Q8_0", "dd", False), ("Q4_0", "dd", True), ("Q4_1", "ddmm", True))
    ):
        y = 6 + 12.5 * row
        words(ax, 0, y + 3.5, name, ha="left", fontsize=11, weight="bold")
        for i, letter in enumerate(header):
            cell(ax, 10 + step * i, y, step, 7, SCALE if letter == "d" else MINIMUM)
            words(ax, 10 + step * (i + 0.5), y + 3.5, letter, fontsize=9)
        for i in range(16 if nibbles else 32):
            x = 10 + step * (len(header) + i)
            if nibbles:
                cell(ax, x, y, step, 3.5, "#a9d6f0")
                cell(ax, x, y + 3.5, step, 3.5, CODES)
                words(ax, x + step / 2, y + 1.8, str(i + 16), fontsize=7)
                words(ax, x + step / 2, y + 5.3, str(i), fontsize=7)
            else:
                cell(ax, x, y, step, 7, CODES)
                words(ax, x + step / 2, y + 3.5, str(i), fontsize=7)
        end = 10 + step * (len(header) + (16 if nibbles else 32))
        if nibbles:
            words(
                ax, end + 1.5, y + 1.8, "high four bits: elements 16 to 31", ha="left", fontsize=8
            )
            words(ax, end + 1.5, y + 5.3, "low four bits: elements 0 to 15", ha="left", fontsize=8)
    items = [(SCALE, "d, the scale (F16)"), (MINIMUM, "m, the minimum (F16)"), (CODES, "codes")]
    for x, (color, text) in zip((10, 38, 69), items, strict=True):
        cell(ax, x, 0.5, 2.6, 2.6, color)
        words(ax, x + 3.6, 1.9, text, ha="left")
    words(ax, 112, 1.9, "one box is one byte", ha="right", color=QUIET)
    finish(fig)


def super_block() -> None:
    """A Q4_K super-block: 144 bytes to scale, and the eight sub-blocks they hold."""
    fig, ax = canvas(height=4.1, width=148)
    byte, left = 1.0, 2.0
    fields = [("d", 2, SCALE), ("dmin", 2, MINIMUM), ("scales", 12, PACKED)]
    x = left
    for _, size, color in fields:
        cell(ax, x, 12, size * byte, 8, color)
        x += size * byte
    words(ax, left, 9.5, "2 + 2 + 12 bytes", ha="left", fontsize=8.5)
    words(ax, left, 23, "d, dmin, scales", ha="left", fontsize=8.5)
    words(ax, x + 64, 9.5, "128 bytes of codes, two in a byte: four groups of 32", fontsize=8.5)
    for group in range(4):
        cell(ax, x + 32 * group, 12, 32, 4, "#a9d6f0")
        cell(ax, x + 32 * group, 16, 32, 4, CODES)
        words(ax, x + 32 * group + 16, 14.1, f"high four bits: {2 * group + 1}", fontsize=8)
        words(ax, x + 32 * group + 16, 18.1, f"low four bits: {2 * group}", fontsize=8)
    words(ax, left, 4, "one super-block of Q4_K: 256 weights in 144 bytes", ha="left", fontsize=11)
    for sub in range(8):
        at = left + 18 * sub
        cell(ax, at, 42, 17, 9, "#a9d6f0" if sub % 2 else CODES)
        words(ax, at + 8.5, 44.7, f"sub-block {sub}", fontsize=8.5)
        words(ax, at + 8.5, 48.3, "32 weights", fontsize=8)
        cell(ax, at, 52, 8.3, 5.5, PACKED)
        cell(ax, at + 8.7, 52, 8.3, 5.5, PACKED)
        words(ax, at + 4.1, 54.9, f"sc{sub}", fontsize=8)
        words(ax, at + 12.9, 54.9, f"m{sub}", fontsize=8)
        source = x + 32 * (sub // 2) + (8 if sub % 2 == 0 else 24)
        ax.plot([source, at + 8.5], [20.5, 41.5], color=QUIET, lw=0.9)
    words(ax, 74, 62.5, "the 12 bytes are eight scales sc and eight minima m, of 6 bits each")
    words(ax, 74, 69.5, "weight = (d x sc) x code - (dmin x m)", fontsize=11, weight="bold")
    finish(fig)


def levels(weights: Floats, stored: Mapping[str, Bytes]) -> None:
    """A block's weights, what is stored of them, and the 16 values that its codes can mean.

    weights : [32];  stored : the name of a four-bit type -> the block's bytes in that type
    """
    fig, axes = figure(height=3.5, columns=len(stored), sharey=True)
    for ax, (name, block) in zip(axes, stored.items(), strict=True):
        read = BY_NAME[name].decode
        assert read is not None
        values = read(block)
        every_code = np.arange(16, dtype=np.uint8) | np.uint8(0xF0)
        for level in read(np.concatenate([block[:-16], every_code]))[:16]:
            ax.axhline(float(level), color="#d5d5d5", lw=0.8, zorder=0)
        ax.grid(visible=False)
        places = range(len(weights))
        ax.vlines(places, weights, values, color=LIMIT, lw=2)
        ax.plot(weights, "o", color=REFERENCE, ms=5, label="weight")
        ax.plot(values, "_", color=OURS, ms=9, mew=2.2, label=f"as {name}")
        value = "value of the weight" if ax is axes[0] else ""
        label(ax, f"{name}: what its 16 codes can mean", "element of the block", value)
        ax.legend(fontsize=9, loc="upper left", ncols=2, borderaxespad=0.1, frameon=False)
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(low, high + 0.16 * (high - low))
    finish(fig)


# ---------------------------------------------------------------- a file to scale

KINDS = {
    "settings, vocabulary, contents": PINK,
    "embedding": GREEN,
    "attention": BLUE,
    "feed forward": AMBER,
    "norms": INK,
    "padding": PAPER,
}
COLUMNS, ROWS = 256, 20  # cells of the map


def kind_of(name: str) -> str:
    """Which part of the model a tensor belongs to, by its GGUF name."""
    if "norm" in name:
        return "norms"
    if name.startswith(("token_embd", "output")):
        return "embedding"
    return "attention" if ".attn_" in name else "feed forward"


def parts_of(file: TensorFile) -> list[tuple[str, int, int]]:
    """A one-part GGUF file from its first byte to its last: (kind, begin, end), without gaps."""
    parts: list[tuple[str, int, int]] = []
    at = 0
    for info in file.infos.values():
        if info.offset > at:
            gap = "padding" if parts else "settings, vocabulary, contents"
            parts.append((gap, at, info.offset))
        at = info.offset + (info.nbytes or 0)
        parts.append((kind_of(info.name), info.offset, at))
    size = len(file.maps[file.path])
    return parts if at == size else [*parts, ("padding", at, size)]


def file_map(title: str, file: TensorFile) -> None:
    """A file as a ribbon of small cells, read line by line; a cell has its middle byte's colour."""
    parts = parts_of(file)
    size = parts[-1][2]
    kinds = list(KINDS)
    ends = np.array([end for _, _, end in parts])
    middles = (np.arange(ROWS * COLUMNS) + 0.5) * size / (ROWS * COLUMNS)
    owner = np.searchsorted(ends, middles, side="right")
    cells = np.array([kinds.index(kind) for kind, _, _ in parts])[owner].reshape(ROWS, COLUMNS)
    fig, ax = figure(height=3.9)
    ax.imshow(
        cells, ListedColormap(list(KINDS.values())), vmin=-0.5, vmax=len(kinds) - 0.5,
        aspect="auto", interpolation="nearest", extent=(0, size / ROWS / 1e3, size / 1e6, 0),
    )  # fmt: skip
    ax.grid(visible=False)
    row_kb = f"{size / ROWS / 1e3:,.0f}"
    label(ax, f"{title}: {size:,} bytes, to scale", f"kB along a line (a line is {row_kb} kB)",
          "MB from the file's start")  # fmt: skip
    total = {k: sum(end - begin for kind, begin, end in parts if kind == k) for k in kinds}
    handles = [
        Patch(facecolor=KINDS[k], edgecolor=QUIET, label=f"{k}: {total[k] / size:.1%}")
        for k in kinds
        if total[k] >= 0.0005 * size
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    finish(fig)


def waterfall(pieces: Mapping[str, float]) -> None:
    """What a file's megabytes are spent on, one piece beginning where the last one ended."""
    fig, ax = figure(height=2.9)
    at = 0.0
    total = sum(pieces.values())
    for row, (_, nbytes) in enumerate(pieces.items()):
        ax.barh(row, nbytes / 1e6, left=at / 1e6, color=OURS if row == 0 else LIMIT, height=0.6)
        if row == 0:
            ax.text((at + nbytes) / 1e6 + 1, row, f"{nbytes / 1e6:.1f}", va="center")
        else:
            ax.text(at / 1e6 - 1, row, f"+ {nbytes / 1e6:.1f}", va="center", ha="right")
        at += nbytes
    ax.set_yticks(range(len(pieces)), list(pieces))
    ax.set(ylim=(len(pieces) - 0.4, -0.6), xlim=(0, total / 1e6 * 1.1))
    ax.grid(axis="y", visible=False)
    label(ax, f"Where {total / 1e6:.1f} MB come from", "MB of the file", "")
    finish(fig)
