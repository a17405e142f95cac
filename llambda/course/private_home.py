"""A data cache of its own for a notebook that is recorded, tested or checked."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..paths import cache_dir, make_dir

SHARED = ("models", "numba")  # what is large or slow to make, and the same for everybody


@contextmanager
def private_home() -> Iterator[dict[str, str]]:
    """The variables that give a kernel a home which lasts as long as the block.

    The fetched models and Numba's compiled code in it are links to the reader's own. The rest
    begins empty, above all the ledger of guesses and measurements and IPython's settings: what a
    notebook prints depends on nobody's history, and the reader's files are not changed.
    """
    with tempfile.TemporaryDirectory(prefix="llambda-", ignore_cleanup_errors=True) as home:
        for name in SHARED:
            real = make_dir(cache_dir() / name).resolve()
            Path(home, name).symlink_to(real, target_is_directory=True)
        yield {"LLAMBDA_HOME": home, "IPYTHONDIR": f"{home}/ipython"}
