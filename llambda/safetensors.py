"""safetensors, Hugging Face's weight file: a JSON table of contents, then one long array.

Layout (the format section of the safetensors README): u64 length of the header, the header, the
data. The header is a JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end]}, with
offsets from the start of the data, and optionally "__metadata__", an object of strings. Tensors
fill the data without holes or overlaps. A large model is split into shards, and an index.json
names the shard of every tensor. Lesson 02.
"""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from reprlib import repr as brief
from typing import Any, TypeGuard

from .errors import FileAccessError, ModelFileError, plural
from .paths import file_error, read_json
from .tensor import BF16, F16, F32, F64, I8, I16, I32, I64, U8, DType
from .tensorfile import TensorFile, TensorInfo, map_file

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # bytes, the reference's limit
MAX_AXES = 8
MAX_SIZE = 2**60  # elements: times eight bytes, still a signed 64-bit number
DTYPES: dict[str, DType] = {d.name: d for d in (F64, F32, F16, BF16, I64, I32, I16, I8, U8)}
# Types without a decoder here, by bits an element: they can be listed and are never read.
LISTED = {
    "BOOL": 8, "U16": 16, "U32": 32, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "F8_E4M3": 8, "F8_E4M3FNUZ": 8, "F8_E5M2": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
}  # fmt: skip


def open(path: str | Path) -> TensorFile:
    """Open one .safetensors file, an index.json with its shards, or the folder that holds either.

    Raises FileAccessError or ModelFileError.
    """
    path = Path(path)
    try:
        if path.is_dir():
            single = path / WEIGHTS
            if not single.exists() and not (path / INDEX).exists():
                raise FileAccessError(
                    f"a folder without {WEIGHTS} or {INDEX}",
                    where=path,
                    fix="Get the model's safetensors; pickled weights (.bin, .pt) are not read.",
                )
            path = single if single.exists() else path / INDEX
        return open_index(path) if path.suffix == ".json" else open_shard(path)
    except OSError as error:
        raise file_error(error, path) from error


def open_shard(path: Path) -> TensorFile:
    """One file on its own, checked from its first byte to its last."""
    mapped = map_file(path)
    try:
        header, data_start = read_header(mapped, path)
        metadata = header.pop("__metadata__", {})
        if not is_string_dict(metadata):
            raise damaged(path, "__metadata__ is not an object of strings")
        entries = [make_info(name, entry, data_start, path) for name, entry in header.items()]
        check_cover(entries, data_start, len(mapped), path)
    except BaseException:
        mapped.close()
        raise
    infos = {info.name: info for info in entries}
    return TensorFile(path, metadata, infos, {path: mapped}, "safetensors")


def damaged(path: Path, what: str) -> ModelFileError:
    return ModelFileError(what, where=path, fix="The file is damaged: fetch it again.")


def is_string_dict(value: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())


def read_header(data: Any, path: Path) -> tuple[dict[str, Any], int]:
    """The table of contents, and where the data begin."""
    if len(data) < 8:
        raise damaged(path, f"truncated: the file holds only {plural(len(data), 'byte')}")
    nbytes = int.from_bytes(data[:8], "little")
    if nbytes > MAX_HEADER or 8 + nbytes > len(data):
        raise damaged(
            path,
            f"not a safetensors file, or truncated: a header of {nbytes:,} bytes is announced "
            f"and {len(data) - 8:,} bytes follow",
        )
    raw = bytes(data[8 : 8 + nbytes])
    if not raw.startswith(b"{"):
        raise damaged(path, "not a safetensors file: the header does not begin with '{'")
    try:
        header = json.loads(raw.decode(), object_pairs_hook=once_each)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"the header is not sound JSON: {error}") from error
    return header, 8 + nbytes


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names must differ: the last of two would silently win."""
    for text in [text for pair in pairs for text in pair if isinstance(text, str)]:
        text.encode()  # raises ValueError for half a character: JSON can spell what is no text
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name stands twice")
    return result


def make_info(name: str, entry: Any, data_start: int, path: Path) -> TensorInfo:
    """Check one entry of the header against its type."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise damaged(path, f"tensor {name!r} needs a dtype, a shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (are_counts(shape) and are_counts(offsets) and len(offsets) == 2):
        raise damaged(
            path, f"tensor {name!r} has the shape {brief(shape)} and offsets {brief(offsets)}"
        )
    if len(shape) > MAX_AXES or math.prod(n or 1 for n in shape) > MAX_SIZE:
        raise damaged(path, f"tensor {name!r} has the impossible shape {brief(shape)}")
    begin, end = offsets
    dtype = DTYPES.get(kind) if isinstance(kind, str) else None
    bits = 8 * dtype.block_bytes if dtype else LISTED.get(str(kind))
    if bits is None:
        raise damaged(path, f"tensor {name!r} has the unknown type {brief(kind)}")
    if 8 * (end - begin) != math.prod(shape) * bits:
        raise damaged(
            path,
            f"tensor {name!r} ({kind} {shape}) takes {math.prod(shape) * bits / 8:,.0f} bytes and "
            f"data_offsets {offsets} give it {end - begin:,}",
        )
    return TensorInfo(name, kind, dtype, tuple(shape), path, data_start + begin, end - begin)


def are_counts(values: Any) -> bool:
    """Whether this is a list of unsigned 64-bit numbers."""
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**64 for v in values)


def check_cover(infos: Iterable[TensorInfo], data_start: int, size: int, path: Path) -> None:
    """Tensors must follow each other from the start of the data to the end of the file."""
    at = data_start
    for info in sorted(infos, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != at:
            word = "overlaps the one before it" if info.offset < at else "follows a hole"
            raise damaged(path, f"tensor {info.name!r} {word}: byte {info.offset:,}, not {at:,}")
        at += info.nbytes or 0
    if at != size:
        word = "truncated" if at > size else "the file is longer than its tensors"
        raise damaged(path, f"{word}: {at:,} bytes are described and {size:,} are there")


def open_index(path: Path) -> TensorFile:
    """All shards that an index names, as one file. Other files in the folder are not looked at."""
    index = read_json(path)
    places = index.get("weight_map")
    if not is_string_dict(places):
        raise damaged(path, "weight_map is not an object of shard names")
    metadata = index.get("metadata", {})
    whole = TensorFile(path, metadata if isinstance(metadata, dict) else {}, {}, {}, "safetensors")
    for shard_name in sorted(set(places.values())):
        if Path(shard_name).name != shard_name or shard_name in ("", ".", ".."):
            raise damaged(path, f"the shard {shard_name!r} is not a plain file name")
        shard = path.with_name(shard_name)
        if not os.path.isfile(shard):  # False, too, for what can be no file name
            raise ModelFileError(
                f"the shard {shard_name!r} is missing", where=path, fix="Fetch it into this folder."
            )
        add_shard(whole, open_shard(shard), places)
    missing = [name for name in places if name not in whole.infos]
    if missing:
        raise damaged(path, f"tensor {missing[0]!r} is not in {places[missing[0]]!r}, its shard")
    return whole


def add_shard(whole: TensorFile, shard: TensorFile, places: dict[str, str]) -> None:
    """Take a shard in; the index and the shard must name the same tensors."""
    for name in shard.infos:
        if places.get(name) != shard.path.name:
            raise damaged(
                shard.path, f"tensor {name!r} is not listed for this shard in {whole.path.name}"
            )
    whole.infos.update(shard.infos)
    whole.maps.update(shard.maps)
