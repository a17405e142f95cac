"""llambda: a CPU inference engine for language models, built step by step in Python.

import llambda
with llambda.load("tiny") as model:
    for piece in model.generate("The class statement"):
        print(piece, end="")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors, gguf, safetensors
    from .model import Model, load

__version__ = "0.1.0"

__all__ = ["Model", "__version__", "errors", "gguf", "load", "safetensors"]


def __getattr__(name: str) -> Any:
    """Imported when first asked for: NumPy and Numba take a second, `import llambda` none."""
    if name in ("Model", "load"):
        return getattr(import_module(".model", __name__), name)
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
