"""llambda: a CPU inference engine for language models, built step by step in Python.

import llambda
with llambda.load("tiny") as model:
    for piece in model.generate("The class statement"):
        print(piece, end="")
"""

from . import errors, gguf, safetensors
from .model import Model, load

__version__ = "0.1.0"

__all__ = ["Model", "__version__", "errors", "gguf", "load", "safetensors"]
