"""The ladder for a terminal, and as a picture."""

from html import escape

import numpy as np

from .ladder import GIGA, Ladder, LadderRung

WIDTH, LEFT, RIGHT, TOP, ROW = 820, 110, 90, 92, 40
INK, QUIET, OURS, OTHERS, LIMIT = "#222222", "#555555", "#0072b2", "#8c8c8c", "#a04000"


def table(result: Ladder) -> str:
    """A line a rung."""
    lines = [
        f"{result.model} on {result.machine['model']}; our products read weights at "
        f"{result.bandwidth_gb_s:.1f} GB/s with {result.threads} "
        f"{'thread' if result.threads == 1 else 'threads'}",
        "",
        "rung        threads  prefill tok/s  decode tok/s  MB/token  bandwidth  KL nats   top-1",
    ]
    for rung in result.rungs:
        kl = "-" if rung.kl is None else f"{rung.kl:.1e}"
        top1 = "-" if rung.top1 is None else f"{rung.top1:.1%}"
        lines.append(
            f"{rung.name:<11} {rung.threads:>7} {rung.prefill_tok_s:>14,.1f} "
            f"{rung.decode_tok_s:>13,.1f} {rung.bytes_per_token / 1e6:>9,.1f} "
            f"{rung.bandwidth_share:>10.1%} {kl:>8} {top1:>7}"
        )
    ours = fastest(result)
    if ours.ratios:
        lines += ["", f"How many times as fast {ours.name} is, pair by pair (lowest and highest):"]
    for other, ratios in ours.ratios.items():
        low, middle, high = ratios["decode"]
        lines.append(f"  {other:<11} decode {middle:>8,.2f} ({low:,.2f} to {high:,.2f})")
        low, middle, high = ratios["prefill"]
        lines.append(f"  {'':<11} prefill {middle:>7,.2f} ({low:,.2f} to {high:,.2f})")
    return "\n".join([*lines, *(["", *result.notes] if result.notes else [])])


def fastest(result: Ladder) -> LadderRung:
    """The last rung of our own: the others' names are no engine's."""
    own = [rung for rung in result.rungs if rung.name not in ("pytorch", "llama.cpp")]
    return (own or list(result.rungs))[-1]


def ceiling(result: Ladder, rung: LadderRung) -> float:
    """Tokens a second if a rung did nothing but read its bytes at the measured speed."""
    return result.bandwidth_gb_s * GIGA / rung.bytes_per_token


def draw(result: Ladder) -> str:
    """An SVG: a bar a rung, tokens a second on a logarithmic axis, and each one's own ceiling."""
    ceilings = [ceiling(result, rung) for rung in result.rungs]
    speeds = [rung.decode_tok_s for rung in result.rungs]
    low = 10 ** np.floor(np.log10(min(ceilings + speeds)) - 0.3)
    high = 10 ** np.ceil(np.log10(max(ceilings + speeds)))

    def x(speed: float) -> float:
        share = np.log10(speed / low) / np.log10(high / low)
        return float(LEFT + share * (WIDTH - LEFT - RIGHT))

    bottom = TOP + ROW * len(result.rungs)
    title = f"{result.model}: decoding on {result.machine['model']}, threads: {result.threads}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 64}" '
        f'width="{WIDTH}" height="{bottom + 64}" font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="{bottom + 64}" fill="#ffffff"/>',
        text(20, 32, title, INK, size=18),
        text(20, 56, "| what reading its bytes at "
             f"{result.bandwidth_gb_s:.1f} GB/s would allow", LIMIT),
    ]  # fmt: skip
    decade = low
    while decade <= high * 1.001:
        parts.append(line(x(decade), TOP - 8, bottom, "#dddddd"))
        parts.append(text(x(decade), bottom + 20, f"{decade:,.6g}", QUIET, "middle"))
        decade *= 10
    for i, (rung, roof) in enumerate(zip(result.rungs, ceilings, strict=True)):
        y, end = TOP + i * ROW, x(rung.decode_tok_s)
        colour = OTHERS if rung.name in ("pytorch", "llama.cpp") else OURS
        parts += [
            text(LEFT - 12, y + 18, rung.name, INK, "end"),
            f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="26" fill="{colour}"/>',
            line(x(roof), y - 4, y + 30, LIMIT, width=3),
            text(max(end, x(roof)) + 8, y + 18,
                 f"{rung.decode_tok_s:,.4g} ({rung.bandwidth_share:.0%})", INK),
        ]  # fmt: skip
    middle = (LEFT + WIDTH - RIGHT) / 2
    words = "tokens a second, logarithmic (and share of the bandwidth)"
    parts.append(text(middle, bottom + 46, words, INK, "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, colour: str, anchor: str = "start", size: int = 14) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{colour}" text-anchor="{anchor}" '
        f'font-size="{size}">{escape(words)}</text>'
    )


def line(x: float, top: float, bottom: float, colour: str, width: int = 1) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )
