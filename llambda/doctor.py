"""This machine and this installation: the facts behind `llambda doctor`."""

import platform
from importlib import metadata
from typing import Any

from . import __version__
from .errors import LlambdaError
from .fetch import KNOWN, KnownModel
from .machine import this_machine
from .paths import cache_dir, data_dir
from .probe import ceiling_tokens_per_s, fma_peak, read_bandwidth
from .simd.jit import KEEP

NEEDED_FOR = {
    "numpy": "everything",
    "numba": "compiled kernels",
    "llvmlite": "compiled kernels",
    "tokenizers": "text in and out",
    "torch": "comparing with PyTorch, and the lessons' checks",
    "jupyterlab": "the lessons",
    "matplotlib": "the lessons' pictures",
    "llama-cpp-python": "putting llama.cpp on the ladder",
}
BYTES_PER_TOKEN = {
    "smollm2 (135M, Q4_1)": 96.4e6,
    "smollm2 held as float32, as the first four rungs do": 538e6,
    "a model of 1B in Q4_0": 0.7e9,
    "a model of 7B in Q4_0": 4.0e9,
}
GIGA = 1e9


def examine() -> dict[str, Any]:
    """Plain facts, ready for JSON; measures for about a second."""
    machine = this_machine()
    threads = machine.default_threads
    bandwidth = {n: read_bandwidth(n) for n in sorted({1, threads})}
    best = max(bandwidth.values())
    return {
        "llambda": __version__,
        "python": platform.python_version(),
        "machine": machine.as_dict(),
        "packages": {name: version_of(name) for name in NEEDED_FOR},
        "cache_dir": str(cache_dir()),
        "models": {"tiny": (data_dir() / "tiny.gguf").is_file()}
        | {name: trouble_with(model) is None for name, model in KNOWN.items()},
        "bandwidth_gb_s": {str(n): round(b / GIGA, 2) for n, b in bandwidth.items()},
        "fma_gflop_s": {str(n): round(fma_peak(n) / GIGA, 1) for n in sorted({1, threads})},
        "ceiling_tokens_per_s": {
            name: round(ceiling_tokens_per_s(best, nbytes), 1)
            for name, nbytes in BYTES_PER_TOKEN.items()
        },
        "notes": notes(machine.kernel_path, machine.quota, machine.usable_cores),
    }


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def notes(kernel_path: str, quota: float | None, usable: int) -> list[str]:
    """What will be slow or missing here, and what to do about it."""
    found = []
    if kernel_path == "portable":
        found.append(
            "no AVX2 with FMA and F16C: kernels run in portable form, several times slower"
        )
    if quota is not None:
        found.append(f"a quota of {quota:g} cores: more than {usable} threads would be throttled")
    found += [
        f"{name} is not installed; it is needed for {use}"
        for name, use in NEEDED_FOR.items()
        if not version_of(name)
    ]
    if not KEEP:
        found.append(
            f"nothing can be written to {cache_dir()}: kernels are compiled anew each time, for "
            "half a minute; set LLAMBDA_HOME to another folder"
        )
    found += [trouble for model in KNOWN.values() if (trouble := trouble_with(model)) is not None]
    return found


def trouble_with(model: KnownModel) -> str | None:
    """Why the model cannot be used here; None if it can."""
    try:
        return (
            None
            if model.is_here
            else f"{model.name} is not fetched: run llambda fetch {model.name}"
        )
    except LlambdaError as error:  # its folder is none
        return f"{model.name} cannot be looked for: {error}"


def report(facts: dict[str, Any]) -> str:
    """The facts as text for a terminal."""
    machine = facts["machine"]
    quota = "" if machine["quota"] is None else f", quota {machine['quota']:g}"
    lines = [
        f"llambda {facts['llambda']}, Python {facts['python']}, {machine['system']}",
        f"processor   {machine['model']} ({machine['architecture']})",
        f"features    {' '.join(machine['features']) or 'none of those that matter'}",
        f"SIMD        {machine['kernel_path']}, at best",
        f"cores       {machine['logical_cores']} logical, {machine['physical_cores']} physical"
        f"{quota}; {machine['default_threads']} threads by default",
        f"memory      {machine['memory_bytes'] / GIGA:.1f} GB, "
        f"{machine['available_bytes'] / GIGA:.1f} GB available",
    ]
    for n, value in facts["bandwidth_gb_s"].items():
        lines.append(f"reading     {value:.1f} GB/s with {threads(n)}")
    for n, value in facts["fma_gflop_s"].items():
        lines.append(f"multiplying {value:.0f} GFLOP/s with {threads(n)}")
    for name, value in facts["ceiling_tokens_per_s"].items():
        lines.append(f"ceiling     {value:.0f} tokens/s for {name}")
    for name, version in facts["packages"].items():
        lines.append(f"package     {name} {version or '(not installed)'}")
    lines.append(f"data cache  {facts['cache_dir']}")
    lines += [f"note        {note}" for note in facts["notes"]]
    return "\n".join(lines)


def threads(n: str) -> str:
    return "1 thread" if n == "1" else f"{n} threads"
