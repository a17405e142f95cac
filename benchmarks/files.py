"""Copies of smollm2 in the formats that are compared, kept in the data cache."""

import ctypes
from pathlib import Path

from llambda.errors import LlambdaError
from llambda.model import resolve
from llambda.paths import cache_dir, make_dir
from llambda.quantize import quantize
from llambda.race import Say
from llambda.rival import library

OWN = ("F32", "F16", "Q8_0", "Q4_0")  # written by our own quantizer
FORMATS = (*OWN, "Q4_1", "Q4_K_M")


def copy_in(kind: str, say: Say) -> Path:
    """A file that holds smollm2 in a format; what is fetched is in Q4_1."""
    if kind == "Q4_1":
        return resolve("smollm2")
    path = make_dir(cache_dir() / "bench") / f"smollm2.{kind}.gguf"
    if not path.exists():
        say(f"writing {path.name}")
        if kind in OWN:
            quantize(resolve("smollm2"), path, kind)
        else:
            quantize_with_llama_cpp(copy_in("F32", say), path)
    return path


def quantize_with_llama_cpp(source: Path, target: Path) -> None:
    lib = library()
    settings = lib.llama_model_quantize_default_params()
    settings.ftype = lib.LLAMA_FTYPE_MOSTLY_Q4_K_M
    part = target.with_suffix(".part")
    names = str(source).encode(), str(part).encode()
    if lib.llama_model_quantize(*names, ctypes.byref(settings)) != 0:
        raise LlambdaError("llama.cpp could not quantize", where=source)
    part.rename(target)
