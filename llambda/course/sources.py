"""show(): the finished form of what a lesson just built, as it stands in the package."""

import inspect
import textwrap
from pathlib import Path
from typing import Any

from ..paths import PACKAGE


def source(thing: Any) -> tuple[str, str]:
    """Where something of llambda is written, and its text.

    `thing` is a module, class, function or method. Where: "llambda/cache.py, line 12". Raises
    TypeError or OSError, as `inspect` does, for what has no source.
    """
    lines, first = inspect.getsourcelines(thing)
    file = Path(inspect.getsourcefile(thing) or "").relative_to(PACKAGE.parent)
    place = file.as_posix() if inspect.ismodule(thing) else f"{file.as_posix()}, line {first}"
    return place, textwrap.dedent("".join(lines)).rstrip()


def show(*things: Any) -> None:
    """Display the source of modules, classes and functions, each under the place it stands at."""
    from IPython.display import Code, Markdown, display

    for thing in things:
        place, text = source(thing)
        display(Markdown(f"`{place}`"), Code(text, language="python"))  # type: ignore[no-untyped-call]
