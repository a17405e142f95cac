"""The rungs of the ladder, in lesson order: each differs from the one before by one idea."""

from ..errors import InputError
from .base import Engine
from .cached import CachedEngine
from .fused import FusedEngine
from .naive import NaiveEngine
from .quantized import QuantizedEngine
from .scalar import ScalarEngine
from .threaded import ThreadedEngine
from .vectorized import VectorizedEngine

RUNGS: dict[str, type[Engine]] = {
    rung.name: rung
    for rung in (
        NaiveEngine,
        CachedEngine,
        ScalarEngine,
        VectorizedEngine,
        QuantizedEngine,
        ThreadedEngine,
        FusedEngine,
    )
}
BEST = FusedEngine.name


def rung(name: str | None) -> type[Engine]:
    """The engine class of that name; the best one there is for None."""
    if name is None:
        return RUNGS[BEST]
    if name not in RUNGS:
        raise InputError(f"unknown engine {name!r}", fix=f"Choose one of {', '.join(RUNGS)}.")
    return RUNGS[name]
