"""What a notebook may store as outputs: nothing volatile, and no trace of one machine."""

import base64
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHECKOUT = Path(__file__).resolve().parents[1]
MACHINE_PATH = r"(?<![\w.}])/(?:home|mnt|opt|private|root|tmp|usr|var|Users)/\w[^\s'\"]*"


def cell_name(index: int, cell: NotebookNode) -> str:
    """How a complaint names a cell: its place in the notebook, from 1, and its first line."""
    return f"cell {index + 1} ({cell.source.partition(chr(10))[0]})"


def clean(cell: NotebookNode) -> None:
    """Drop what differs between two runs that print the same. ValueError for what is no picture."""
    cell.metadata.pop("execution", None)
    for output in cell.get("outputs", []):
        if (png := output.get("data", {}).get("image/png")) is not None:
            plain = base64.b64encode(plain_png(png_bytes(png)))
            output.data["image/png"] = plain.decode() + "\n"


def png_bytes(text: object) -> bytes:
    """The PNG file that an output holds as text. ValueError if it does not even begin like one."""
    data = base64.b64decode(text) if isinstance(text, str) and text.isascii() else b""
    if not data.startswith(SIGNATURE):
        raise ValueError("what is shown as a PNG picture is none")
    return data


def plain_png(png: bytes) -> bytes:
    """The same picture in at most 256 colours, a third of the size, without dates and texts."""
    try:
        drawn = Image.open(io.BytesIO(png)).convert("RGB")
    except Exception as error:  # Pillow has a different one for every kind of damage
        raise ValueError("what is shown as a PNG picture is damaged") from error
    plain = io.BytesIO()
    drawn.quantize(256, dither=Image.Dither.NONE).save(plain, "PNG", optimize=True)
    return plain.getvalue()


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
