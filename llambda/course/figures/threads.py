"""The drawings of lesson 10: whose rows are whose, one token thread by thread, claims measured."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ..plots import (
    AMBER,
    INK,
    LIMIT,
    OURS,
    PINK,
    QUIET,
    SERIES,
    SKY,
    canvas,
    figure,
    finish,
    label,
    plain_numbers,
)

LINE = 16  # float32 numbers in a cache line
LEFT = 2  # hundredths of the picture's width
THREADS = [SKY, AMBER, PINK]
KINDS = {"computes": OURS, "fork and join": LIMIT, "Python": AMBER, "waits": "#e3e1d9"}

Parts = Sequence[tuple[int, int]]
Join = tuple[float, Sequence[tuple[str, float, float]], float]  # fork, (thread, begin, end), join
Segment = tuple[float, float, str]  # begin, end, kind
Lane = tuple[str, Sequence[Segment]]


# ---------------------------------------------------------------- whose rows are whose


def cuts(rows: int, ways: Mapping[str, Parts]) -> None:
    """The numbers of a result in their cache lines, coloured by the thread that writes them."""
    fig, ax = canvas(height=1.2 + 0.95 * len(ways))
    for row, (title, parts) in enumerate(ways.items()):
        top = 6 + 12 * row
        ax.text(LEFT, top - 1.2, title, va="bottom", weight="bold")
        width = 96 / -(-rows // LINE)
        for i in range(rows):
            thread = next(t for t, (first, last) in enumerate(parts) if first <= i < last)
            left = LEFT + i // LINE * width + 0.3 + i % LINE * (width - 0.6) / LINE
            box(ax, left, top, (width - 0.6) / LINE, 4.5, THREADS[thread], "white", 0.4)
        for begin in range(0, rows, LINE):
            writers = sum(first < begin + LINE and begin < last for first, last in parts)
            colour, thick = (LIMIT, 2.4) if writers > 1 else (QUIET, 0.8)
            left = LEFT + begin // LINE * width + 0.1
            box(ax, left, top - 0.2, width - 0.2, 4.9, "none", colour, thick)
    shapes = [Patch(color=colour, label=f"thread {t}") for t, colour in enumerate(THREADS)]
    shapes.append(Patch(fill=False, edgecolor=LIMIT, linewidth=2.4, label="written by two threads"))
    ax.legend(handles=shapes, ncols=4, loc="lower center", fontsize=9.5)
    ax.set_ylim(6 + 12 * len(ways) + 1, 1)
    finish(fig)


def box(
    ax: Axes, left: float, top: float, width: float, height: float, face: str, edge: str,
    thick: float,
) -> None:  # fmt: skip
    ax.add_patch(
        Rectangle((left, top), width, height, facecolor=face, edgecolor=edge, linewidth=thick)
    )


# ---------------------------------------------------------------- one token


def lanes_of(joins: Sequence[Join], begin: float, end: float) -> list[Lane]:
    """What the caller and each worker did from begin to end, in order."""
    names = sorted({name for _, parts, _ in joins for name, _, _ in parts})
    caller: list[Segment] = []
    workers: dict[str, list[Segment]] = {name: [] for name in names}
    at = begin
    for fork, parts, joined in joins:
        first, last = min(b for _, b, _ in parts), max(e for _, _, e in parts)
        caller += [(at, fork, "Python"), (fork, first, "fork and join")]
        caller += [(first, last, "waits"), (last, joined, "fork and join")]
        for name, lane in workers.items():
            lane.append((at, fork, "waits"))
            own = [(b, e) for who, b, e in parts if who == name]
            begun = fork
            for b, e in own:
                lane += [(begun, b, "fork and join"), (b, e, "computes")]
                begun = e
            lane.append((begun, joined, "waits"))
        at = joined
    caller.append((at, end, "Python"))
    lanes = [(f"worker {i}", lane) for i, lane in enumerate(workers.values(), 1)]
    return [("caller", caller), *lanes]


def fused_lanes(elapsed: float, seconds: Mapping[str, Sequence[float]]) -> list[Lane]:
    """The fused engine's threads. Its clock adds up, so each kind is one bar, and not in order."""
    lanes: list[Lane] = []
    for thread in range(len(seconds["wait"])):
        wait = seconds["wait"][thread]
        work = sum(each[thread] for each in seconds.values()) - wait
        segments = [
            (0.0, work, "computes"),
            (work, work + wait, "waits"),
            (work + wait, elapsed, "fork and join" if thread else "Python"),
        ]
        lanes.append((f"thread {thread + 1}", segments))
    return lanes


def draw_lanes(ax: Axes, lanes: Sequence[Lane], top: float, origin: float, unit: float) -> None:
    """A lane a row, downwards from `top`; times since the origin, in units of so many seconds."""
    for row, (_, segments) in enumerate(lanes):
        for kind, colour in KINDS.items():
            bars = [
                ((b - origin) / unit, max(e - b, 0) / unit) for b, e, k in segments if k == kind
            ]
            ax.broken_barh(bars, (top + row - 0.38, 0.76), facecolors=colour, linewidth=0)


def one_layer(joins: Sequence[Join]) -> None:
    """A closer look at the joins of one layer, with the names of what is shared."""
    names = ("q", "k", "v", "attention", "o", "gate", "up", "down")
    lanes = lanes_of(joins, joins[0][0], joins[-1][2])
    origin, unit = joins[0][0], 1e-6
    fig, ax = figure(height=1.5 + 0.42 * len(lanes))
    draw_lanes(ax, lanes, 0, origin, unit)
    for name, (fork, _, joined) in zip(names, joins, strict=True):
        ax.text((fork + joined) / 2 / unit - origin / unit, -0.55, name, ha="center", fontsize=9)
        ax.axvline((fork - origin) / unit, color=INK, linewidth=0.6, linestyle=":")
    ax.set_yticks(range(len(lanes)), [name for name, _ in lanes])
    ax.set(ylim=(len(lanes) - 0.4, -1.1), xlim=(0, (joins[-1][2] - origin) / unit))
    ax.grid(visible=False)
    label(ax, "One layer: eight times fork and join", "microseconds", "")
    legend(fig)
    finish(fig)


def one_token(
    joins: Sequence[Join],
    begin: float,
    end: float,
    elapsed: float,
    seconds: Mapping[str, Sequence[float]],
) -> None:
    """Above: a whole token with a fork and join for each matrix. Below: the fused engine's."""
    ours, fused = lanes_of(joins, begin, end), fused_lanes(elapsed, seconds)
    fig, ax = figure(height=1.9 + 0.4 * (len(ours) + len(fused)))
    draw_lanes(ax, ours, 0, begin, 1e-3)
    below = len(ours) + 1.1
    draw_lanes(ax, fused, below, 0, 1e-3)
    ticks = [*range(len(ours)), *(below + row for row in range(len(fused)))]
    ax.set_yticks(ticks, [name for name, _ in (*ours, *fused)])
    longest = max(end - begin, elapsed) * 1e3
    notes = [
        (-0.6, f"rung 6, threaded: {(end - begin) * 1e3:.1f} ms"),
        (below - 0.6, f"rung 7, fused: {elapsed * 1e3:.1f} ms (sorted by kind)"),
    ]
    for y, words in notes:
        ax.text(0, y, words, weight="bold", va="bottom", fontsize=10)
    ax.set(ylim=(ticks[-1] + 0.6, -1.3), xlim=(0, longest * 1.01))
    ax.grid(axis="y", visible=False)
    label(ax, "", "milliseconds", "")
    legend(fig)
    finish(fig)


def legend(fig: Figure) -> None:
    shapes = [Patch(color=colour, label=kind) for kind, colour in KINDS.items()]
    fig.legend(handles=shapes, ncols=4, loc="outside lower center", fontsize=9.5)


# ---------------------------------------------------------------- claims


def by_tasks(seconds: Mapping[str, Mapping[int, float]]) -> None:
    """Microseconds by the number of tasks that a matrix is cut into, each over that of one."""
    fig, ax = figure(height=3.3)
    for (name, times), colour in zip(seconds.items(), SERIES, strict=False):
        ax.plot(list(times), [t / times[1] for t in times.values()], "o-", color=colour, label=name)
    ax.axhline(1, color=QUIET, linewidth=1)
    powers_of_two(ax)
    across, up = "tasks (both axes logarithmic)", "time over that of one task"
    label(ax, "One matrix, cut into tasks", across, up)
    ax.legend(fontsize=9.5, loc="upper left")
    finish(fig)


def by_threads(rates: Mapping[str, Mapping[int, float]], physical: int, logical: int) -> None:
    """How much more several threads do than one, by their number; where the cores end."""
    fig, ax = figure(height=3.6)
    counts = sorted({n for curve in rates.values() for n in curve})
    ax.plot(counts, counts, color=QUIET, linewidth=1, linestyle=":", label="each as much as one")
    for (name, curve), colour in zip(rates.items(), SERIES, strict=False):
        ax.plot(list(curve), [r / curve[1] for r in curve.values()], "o-", color=colour, label=name)
    for cores, words in {logical: "usable logical cores", physical: "physical cores"}.items():
        words = "physical = logical cores" if physical == logical else words
        ax.axvline(cores, color=LIMIT, linewidth=1, linestyle="--")
        ax.text(cores, 0.02, f" {words}", transform=ax.get_xaxis_transform(), color=LIMIT,
                fontsize=9, va="bottom")  # fmt: skip
    powers_of_two(ax)
    ax.set_ylim(bottom=ax.get_ylim()[0] / 1.5)  # room for the words
    across, up = "threads (both axes logarithmic)", "work, over that of one thread"
    label(ax, "What more threads do", across, up)
    ax.legend(fontsize=9.5, loc="upper left")
    finish(fig)


def powers_of_two(ax: Axes) -> None:
    for axis, scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
        scale("log", base=2)
        plain_numbers(axis)


def luck(wrong: Mapping[int, float]) -> None:
    """In how many runs additions were lost, by their number."""
    fig, ax = figure(height=2.8)
    names = [f"{n:,}" for n in wrong]
    ax.bar(names, [100 * share for share in wrong.values()], color=OURS, width=0.6)
    ax.set_ylim(0, 100)
    ax.grid(axis="x", visible=False)
    label(ax, "Wrong only sometimes", "additions of each of two threads", "runs gone wrong, %")
    finish(fig)
