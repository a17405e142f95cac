"""What a notebook may store as outputs: nothing volatile, and no trace of one machine."""

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

CHECKOUT = Path(__file__).resolve().parents[1]
VOLATILE_CHUNKS = (b"tIME", b"tEXt", b"zTXt", b"iTXt", b"eXIf")  # of a PNG
MACHINE_PATH = r"(?<![\w.}])/(?:home|mnt|opt|private|root|tmp|usr|var|Users)/\w[^\s'\"]*"


def cell_name(index: int, cell: NotebookNode) -> str:
    """How a complaint names a cell: its place in the notebook, from 1, and its first line."""
    return f"cell {index + 1} ({cell.source.partition(chr(10))[0]})"


def clean(cell: NotebookNode) -> None:
    """Drop what differs between two runs that print the same."""
    cell.metadata.pop("execution", None)
    for output in cell.get("outputs", []):
        if png := output.get("data", {}).get("image/png"):
            plain = base64.b64encode(plain_png(base64.b64decode(png)))
            output.data["image/png"] = plain.decode() + "\n"


def plain_png(png: bytes) -> bytes:
    """The same picture without dates, texts and camera data."""
    kept, at = png[:8], 8
    while at < len(png):  # a chunk: length, kind, data, checksum (PNG specification, section 5.3)
        end = at + 12 + int.from_bytes(png[at : at + 4], "big")
        kept += b"" if png[at + 4 : at + 8] in VOLATILE_CHUNKS else png[at:end]
        at = end
    return kept


def output_complaints(index: int, cell: NotebookNode) -> Iterator[str]:
    """Outputs that no notebook may store: warnings, errors, a path of this machine."""
    for output in cell.get("outputs", []):
        if output.get("name") == "stderr":
            first = output.text.strip().partition("\n")[0]
            yield f"{cell_name(index, cell)} writes to stderr: {first}"
        if output.output_type == "error":
            yield f"{cell_name(index, cell)} ends in an error: {output.ename}"
    for path in filter(None, map(machine_path, output_texts(cell))):
        yield f"{cell_name(index, cell)} shows a path of this machine: {path}"


def output_texts(cell: NotebookNode) -> Iterator[str]:
    """All text that a cell has stored: printed, displayed, or a traceback."""
    for output in cell.get("outputs", []):
        yield output.get("text", "")
        yield from output.get("traceback", [])
        data = output.get("data", {})
        yield from (str(data[kind]) for kind in data if kind not in ("image/png", "image/jpeg"))


def machine_path(text: str) -> str | None:
    """A path in the text that means something on this machine only, or None."""
    own = (CHECKOUT, Path.home(), Path(sys.prefix))
    known = [re.escape(str(path)) + r"\b" for path in own if path != path.parent]
    found = re.search("|".join([MACHINE_PATH, *known]), text)
    return found and found.group()
