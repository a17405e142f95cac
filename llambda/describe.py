"""What a model file holds, and what would run it: the facts behind `llambda inspect`."""

import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import modelfile
from .cache import cache_bytes
from .engines import BEST, RUNGS
from .errors import LlambdaError, one_line, plural
from .model import resolve, understand
from .tensorfile import TensorFile

LONG = 8  # a list with more entries is described, not printed


def describe_file(source: str | Path) -> dict[str, Any]:
    """Plain facts, ready for JSON. Raises LlambdaError when this is no readable model file.

    A sound file that no engine here can run is described all the same, with the reason.
    """
    path = resolve(source)
    with modelfile.open(path) as file:
        return {
            "path": str(source),
            "format": file.format,
            "file_bytes": sum(part.stat().st_size for part in file.maps),
            "files": len(file.maps),
            "parameters": sum(math.prod(info.shape) for info in file.infos.values()),
            "tensor_bytes": file.nbytes,
            "types": count_types(file),
            "metadata": {key: shortened(value) for key, value in file.metadata.items()},
            "tensors": [
                {
                    "name": info.name,
                    "type": info.kind,
                    "shape": list(info.shape),
                    "bytes": info.nbytes,
                }
                for info in file.infos.values()
            ],
            "runs": what_runs(file),
        }


def count_types(file: TensorFile) -> dict[str, dict[str, int]]:
    """Tensors and bytes by storage type, the largest share first."""
    number: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for info in file.infos.values():
        number[info.kind] += 1
        nbytes[info.kind] += info.nbytes or 0
    return {kind: {"tensors": number[kind], "bytes": size} for kind, size in nbytes.most_common()}


def what_runs(file: TensorFile) -> dict[str, Any]:
    """The engine that would run the file and the memory it would take, or why none can."""
    try:
        config, _, weights = understand(file)
    except LlambdaError as error:
        return {"engine": None, "why": error.what, "fix": error.fix}
    return {
        "engine": BEST,
        "config": asdict(config),
        "weight_memory_bytes": RUNGS[BEST].weight_bytes(weights),
        "cache_bytes_per_position": cache_bytes(config, 1),
    }


def shortened(value: Any) -> Any:
    """A metadata value for reading: long lists by length and beginning, non-numbers as text."""
    if isinstance(value, list):
        first = [shortened(entry) for entry in value[:LONG]]
        return first if len(value) <= LONG else {"length": len(value), "first": first}
    if isinstance(value, dict):
        return {key: shortened(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def report_file(facts: dict[str, Any]) -> str:
    """The facts as text for a terminal."""
    lines = [f"{facts['path']}: {facts['format']}, {facts['file_bytes'] / 1e6:,.1f} MB"]
    lines += ["", "metadata"]
    lines += [
        f"  {one_line(key)} = {value_text(value)}" for key, value in facts["metadata"].items()
    ]
    tensors = plural(len(facts["tensors"]), "tensor")
    lines += ["", f"{tensors}, {plural(facts['parameters'], 'parameter')}"]
    for tensor in facts["tensors"]:
        shape = " x ".join(map(str, tensor["shape"])) or "scalar"
        size = "unknown size" if tensor["bytes"] is None else f"{tensor['bytes']:,} bytes"
        lines.append(f"  {one_line(tensor['name']):<30} {tensor['type']:<6} {shape:<14} {size}")
    lines += ["", "by type"]
    for kind, count in facts["types"].items():
        lines.append(f"  {kind:<6} {count['tensors']:>5} tensors {count['bytes'] / 1e6:>10,.1f} MB")
    return "\n".join([*lines, "", *report_runs(facts["runs"])])


def report_runs(runs: dict[str, Any]) -> list[str]:
    if runs["engine"] is None:
        return [f"no engine here runs it: {runs['why']}", *([runs["fix"]] if runs["fix"] else [])]
    config = runs["config"]
    per_position = runs["cache_bytes_per_position"]
    return [
        f"runs on the engine {runs['engine']!r}: {config['n_layers']} layers of width "
        f"{config['dim']}, {config['n_heads']} heads ({config['n_kv_heads']} for keys and values) "
        f"of {config['head_dim']}",
        f"memory: {runs['weight_memory_bytes'] / 1e6:,.0f} MB for weights and "
        f"{per_position / 1e3:,.1f} kB of cache a position, up to {config['context_length']:,}",
    ]


def value_text(value: Any) -> str:
    """A metadata value on one line, cut where it is long."""
    if isinstance(value, dict) and value.keys() == {"length", "first"}:
        first = ", ".join(one_line(str(entry)) for entry in value["first"])
        return f"[{first}, ...] ({value['length']:,} entries)"
    text = one_line(str(value))
    return text if len(text) <= 100 else f"{text[:97]}..."
