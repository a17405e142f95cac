"""`llambda tour`: the course's main job in one go, on the tiny model that ships with it.

Every rung of the ladder is run on the same prompt, checked against PyTorch's recorded answers
(PyTorch itself is not needed), measured, and drawn under this machine's ceiling.
"""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .engines import RUNGS
from .errors import LlambdaError, plural
from .fetch import KNOWN
from .ladder import Rung, measure
from .machine import this_machine
from .model import Model, load
from .paths import atomic_write, cache_dir, data_dir, make_dir
from .probe import ceiling_tokens_per_s, read_bandwidth
from .simd.jit import first_time
from .weights import stored_bytes

PROMPT = "The class statement"
SHOWN_TOKENS = 64
MEASURED_TOKENS = 64
TOLERANCE = 2e-3  # of logits: float32 sums in another order than PyTorch's


@dataclass(frozen=True)
class Check:
    """One rung against PyTorch: the largest difference of a logit, and greedy tokens in common."""

    difference: float
    same_tokens: int
    tokens: int

    @property
    def passed(self) -> bool:
        return self.difference <= TOLERANCE and self.same_tokens == self.tokens


def tour(out: Path | None = None) -> None:
    """Run it, printing as it goes, and write the picture. Raises LlambdaError if a check fails."""
    machine = this_machine()
    cores = plural(machine.default_threads, "usable core")
    print(f"llambda {__version__} on {machine.model}, {cores}\n")
    if first_time():
        print("The first time, kernels are compiled for this machine: half a minute or so.\n")
    print(f"The tiny model that comes with the course continues {PROMPT!r}:\n")
    with load("tiny") as model:
        print(PROMPT, end="")
        for piece in model.generate(PROMPT, max_tokens=SHOWN_TOKENS, temperature=0):
            print(piece, end="", flush=True)
        nbytes = stored_bytes(model.weights)
        ceiling = ceiling_tokens_per_s(read_bandwidth(1, nbytes), nbytes)
    print("\n\nThe same model on every rung of the ladder, checked against PyTorch:\n")
    print("  rung       prefill tok/s  decode tok/s  largest logit difference  greedy tokens")
    rungs, failed = [], []
    for name in RUNGS:
        print(f"  {name:<10} ", end="", flush=True)
        with load("tiny", engine=name) as model:
            check = check_rung(model)
            rung = measure(model.engine, model.tokenizer.encode(PROMPT), MEASURED_TOKENS)
        rungs.append(rung)
        failed += [] if check.passed else [name]
        print(
            f"{rung.prefill_tok_s:>13,.0f} {rung.decode_tok_s:>13,.0f}"
            f"  {check.difference:>24.1e}  {check.same_tokens} of {check.tokens} equal"
        )
    print(
        f"\nOne core can read all {nbytes / 1e6:.1f} MB of weights {ceiling:,.0f} times a second:"
    )
    print("about as fast as an engine on one thread can get that reads each of them once a token.")
    path = make_dir(cache_dir()) / "tour.svg" if out is None else out
    with atomic_write(path) as file:
        file.write(draw(rungs, ceiling).encode())
    print(f"\nThe picture: {path}")
    if failed:
        raise LlambdaError(
            f"{', '.join(failed)} did not give PyTorch's answers", fix="Please report this."
        )
    if not KNOWN["smollm2"].is_here:
        print("Next, a real model: llambda fetch smollm2, then: llambda generate smollm2 'Once'")


def check_rung(model: Model) -> Check:
    """Compare a rung with what PyTorch answered when the model was made."""
    cases = json.loads((data_dir() / "tiny_golden.json").read_bytes())["cases"]
    recorded: Any = np.load(data_dir() / "tiny_golden.npz")
    logits = model.logits(recorded["long_ids"].tolist())
    difference = float(np.abs(logits - recorded["long_logits"]).max())
    same = total = 0
    for case in cases:
        wanted = case["continuation_ids"]
        ids = model.generate(case["ids"], max_tokens=len(wanted), temperature=0).ids
        same += sum(a == b for a, b in zip(ids, wanted, strict=False))
        total += len(wanted)
    return Check(difference, same, total)


def draw(rungs: list[Rung], ceiling: float) -> str:
    """The ladder as an SVG: a bar a rung, tokens a second on a logarithmic axis, the ceiling."""
    width, left, right, row, top = 760, 110, 80, 46, 70
    height = top + row * len(rungs) + 70
    speeds = [rung.decode_tok_s for rung in rungs]
    low = 10 ** np.floor(np.log10(min([ceiling, *speeds])) - 0.3)
    high = 10 ** np.ceil(np.log10(max([ceiling, *speeds])))

    def x(speed: float) -> float:
        share = np.log10(speed / low) / np.log10(high / low)
        return float(left + share * (width - left - right))

    bottom = top + row * len(rungs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="14">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="32" font-size="18" fill="#222222">The ladder so far: '
        f"{escape(PROMPT)!s} ... on the tiny model</text>",
    ]
    decade = low
    while decade <= high * 1.001:
        parts.append(
            f'<line x1="{x(decade):.1f}" y1="{top - 8}" x2="{x(decade):.1f}" y2="{bottom}" '
            f'stroke="#dddddd"/><text x="{x(decade):.1f}" y="{bottom + 20}" fill="#555555" '
            f'text-anchor="middle">{decade:,.0f}</text>'
        )
        decade *= 10
    for i, rung in enumerate(rungs):
        y = top + i * row
        parts.append(
            f'<text x="{left - 12}" y="{y + 20}" fill="#222222" text-anchor="end">{rung.name}'
            "</text>"
            f'<rect x="{left}" y="{y}" width="{x(rung.decode_tok_s) - left:.1f}" height="30" '
            f'fill="#0072b2"/><text x="{x(rung.decode_tok_s) + 8:.1f}" y="{y + 20}" '
            f'fill="#222222">{rung.decode_tok_s:,.0f}</text>'
        )
    parts.append(
        f'<line x1="{x(ceiling):.1f}" y1="{top - 18}" x2="{x(ceiling):.1f}" y2="{bottom}" '
        f'stroke="#d55e00" stroke-width="2" stroke-dasharray="6 4"/>'
        f'<text x="{x(ceiling) - 8:.1f}" y="{top - 10}" fill="#a04000" text-anchor="end">'
        f"ceiling of one core: {ceiling:,.0f}</text>"
        f'<text x="{(left + width - right) / 2:.0f}" y="{bottom + 46}" fill="#222222" '
        f'text-anchor="middle">tokens a second while decoding, logarithmic</text></svg>'
    )
    return "\n".join(parts) + "\n"
