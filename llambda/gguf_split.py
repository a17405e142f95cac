"""GGUF models that are split over several files.

The parts are named MODEL-00001-of-00003.gguf and so on. Inside, `split.no` counts from 0 and
`split.count` is the number of parts; `split.tensors.count` is the total over all of them. Only
the first part carries the model's metadata.
"""

import re
from collections.abc import Callable
from pathlib import Path

from .errors import ModelFileError
from .tensorfile import TensorFile

SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


def is_split(file: TensorFile) -> bool:
    """Whether the file is one of several parts."""
    count = file.metadata.get("split.count", 0)
    if not isinstance(count, int):
        raise ModelFileError(
            f"split.count is {count!r}, not a number", where=file.path, fix="Split the model again."
        )
    return count > 1


def part_paths(path: Path) -> list[Path]:
    """All parts of a model, by the name of one of them. None if the name is not a part's."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return []
    numbers = range(1, int(match["count"]) + 1)
    return [path.with_name(f"{match['stem']}-{i:05}-of-{match['count']}.gguf") for i in numbers]


def join_parts(first: TensorFile, open_part: Callable[[Path], TensorFile]) -> TensorFile:
    """All parts of a split model as one file, given its first part."""
    path, count = first.path, first.metadata["split.count"]
    parts, match = part_paths(path), SPLIT_NAME.fullmatch(path.name)
    if match is None or len(parts) != count:
        raise ModelFileError(
            f"one of {count} parts, and its name does not say which",
            where=path,
            fix=f"Name the parts MODEL-00001-of-{count:05}.gguf and so on.",
        )

    if first.metadata.get("split.no") != 0 or path != parts[0]:
        raise ModelFileError(
            f"part {match['no']} of a model split in {count}",
            where=path,
            fix=f"Open its first part, {parts[0].name}.",
        )
    for i, part in enumerate(parts[1:], 1):
        if not part.is_file():
            raise ModelFileError(
                f"part {i + 1} of {count} is missing: {part}", where=path, fix="Fetch it too."
            )
        add_part(first, open_part(part), i, count)
    total = first.metadata.get("split.tensors.count")
    if total is None:
        raise foreign_part(first, "it does not say how many tensors its parts hold together")
    if total != len(first):
        raise foreign_part(first, f"its parts hold {len(first)} tensors, not {total}")
    return first


def add_part(whole: TensorFile, part: TensorFile, number: int, count: int) -> None:
    """Take part `number` into the whole, if it belongs there."""
    if [part.metadata.get(key) for key in SPLIT_KEYS[:2]] != [number, count]:
        raise foreign_part(part, f"it does not call itself part {number + 1} of {count}")
    if part.metadata.get(SPLIT_KEYS[2]) != whole.metadata.get(SPLIT_KEYS[2]):
        raise foreign_part(part, "it belongs to a model with another number of tensors")
    for key in sorted(set(part.metadata) & set(whole.metadata) - set(SPLIT_KEYS)):
        if part.metadata[key] != whole.metadata[key]:
            raise foreign_part(part, f"its {key} differs from the first part's")
    twice = sorted(set(part) & set(whole))
    if twice:
        raise foreign_part(part, f"it repeats tensor {twice[0]!r} of an earlier part")
    whole.infos.update(part.infos)
    whole.maps.update(part.maps)


def foreign_part(file: TensorFile, why: str) -> ModelFileError:
    return ModelFileError(
        f"a part of another model, or a wrong one: {why}",
        where=file.path,
        fix="Fetch all parts of one model into one folder.",
    )
