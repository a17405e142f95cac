"""Machine code kept on disk by Numba, where a disk that fails costs time and is no error."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    NullCache,
    UserProvidedCacheLocator,
)


class InOurFolder(CompileResultCacheImpl):
    """In the folder that `keep_compiled_code` names or nowhere: elsewhere, code gets stale."""

    _locator_classes = [UserProvidedCacheLocator]  # noqa: RUF012


class KeptCode(FunctionCache):
    """The machine code of one function. What the disk does not take is compiled again next time."""

    _impl_class = InOurFolder

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def kept(function: Callable[..., Any]) -> Any:
    """A cache as Numba's compiled functions have one in `_cache`."""
    try:
        return KeptCode(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no folder can be made any more
        return NullCache()
