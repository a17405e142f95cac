"""show(): the finished form of what a lesson just built, as it stands in the package."""

import inspect
import textwrap
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ..errors import LlambdaError
from ..paths import PACKAGE

# Where what is no function keeps the one that it was made of: Numba's compiled functions, those of
# llambda.simd and C functions, properties, functools.cached_property and partial.
INSIDE = ("py_func", "write", "function", "fget", "func")


def written(thing: Any) -> Any:
    """What somebody wrote of it: the function inside of all its decorators, a class, a module."""
    if not isinstance(thing, ModuleType | type | FunctionType | MethodType):
        for name in INSIDE:
            if hasattr(thing, name):
                return written(getattr(thing, name))
    within = inspect.unwrap(thing)
    return thing if within is thing else written(within)


def source(thing: Any) -> tuple[str, str]:
    """Where something of llambda is written, and its text.

    `thing` is a module, class, function or method, decorated or compiled as it may be. Where:
    "llambda/cache.py, line 12". Raises LlambdaError for what is not of this package.
    """
    plain = written(thing)
    try:
        lines, first = inspect.getsourcelines(plain)
        file = Path(inspect.getsourcefile(plain) or "").relative_to(PACKAGE)
    except (TypeError, OSError, ValueError) as error:
        raise LlambdaError(
            f"{getattr(plain, '__name__', repr(plain))} is not written in llambda",
            fix="In a notebook, its name and two question marks show any source there is.",
        ) from error
    place = Path(PACKAGE.name, file).as_posix()
    place = place if inspect.ismodule(plain) else f"{place}, line {first}"
    return place, textwrap.dedent("".join(lines)).rstrip()


def show(*things: Any) -> None:
    """Display the source of modules, classes and functions, each under the place it stands at."""
    from IPython.display import Code, Markdown, display

    for thing in things:
        place, text = source(thing)
        display(Markdown(f"`{place}`"), Code(text, language="python"))  # type: ignore[no-untyped-call]
