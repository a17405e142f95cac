"""How functions are compiled here: without Python's lock, and what Python calls kept on disk.

@inner      called from compiled code only
@inlined    likewise, and put into its callers whatever its size
@kernel     called from compiled code, and from Python by tests and the curious
@entry      called from Python; its machine code is kept, so that the next process starts at once
@foreign    called by its address, as C functions are; kept likewise
"""

import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from numba import config, njit, types
from numba.core.ccallback import CFunc

from ..errors import LlambdaError
from ..paths import make_dir, numba_cache_dir
from .kept import kept

F = TypeVar("F", bound=Callable[..., Any])
Job = Callable[[int, int, int], None]


def keep_compiled_code() -> bool:
    """Point Numba to this package's own folder; False if nothing can be written there."""
    try:
        folder = make_dir(numba_cache_dir())
        tempfile.TemporaryFile(dir=folder).close()
    except (LlambdaError, OSError):
        return False
    settings: Any = config
    settings.CACHE_DIR = str(folder)
    return True


KEEP = keep_compiled_code()


def first_time() -> bool:
    """Whether no compiled code is kept yet, so that the first call takes half a minute longer."""
    settings: Any = config
    return not KEEP or not any(Path(settings.CACHE_DIR).rglob("*.nbi"))


def compiled(function: F, **options: bool) -> F:
    """error_model: a division by zero gives infinity, as in NumPy, and costs no branch."""
    compiler: Any = njit
    made: F = compiler(nogil=True, error_model="numpy", **options)(function)
    return made


def inner(function: F, **options: bool) -> F:
    """No way in from Python, which takes a fifth of the compiling; a call from there crashes."""
    return kernel(function, no_cpython_wrapper=True, **options)


def inlined(function: F) -> F:
    return inner(function, forceinline=True)


def kernel(function: F, **options: bool) -> F:
    """No way in from C, which takes a tenth of the compiling."""
    return compiled(function, no_cfunc_wrapper=True, **options)


def entry(function: F) -> F:
    made: Any = compiled(function)
    if KEEP:
        made._cache = kept(function)
    entered: F = made
    return entered


class Foreign:
    """A function of three int64 that is called by its address, and compiled when that is asked."""

    def __init__(self, function: Job):
        self.function = function
        self.__doc__ = function.__doc__

    @cached_property
    def compiled(self) -> Any:
        return self.compile(KEEP)

    def compile(self, cache: bool) -> Any:
        """What Numba's `cfunc` makes, with our cache."""
        signature = (types.int64, types.int64, types.int64), types.void
        options = {"nopython": True, "error_model": "numpy"}
        made: Any = CFunc(self.function, signature, locals={}, options=options)
        if cache:
            made._cache = kept(self.function)
        made.compile()
        return made

    @property
    def address(self) -> int:
        return int(self.compiled.address)

    def __call__(self, a: int, b: int, c: int) -> None:
        """From Python, without Python's lock."""
        self.compiled.ctypes(a, b, c)


def foreign(function: Job) -> Foreign:
    return Foreign(function)
