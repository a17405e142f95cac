"""NumPy's matrix product runs in a BLAS library, which takes all cores unless it is told not to."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

from ..threads import fork_safe_lock

_LOCK = fork_safe_lock()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the block with BLAS on one thread, so that a one-thread rung is one.

    The setting is the whole process's, so one block runs at a time.
    """
    with _LOCK, _controller().limit(limits=1, user_api="blas"):
        yield
