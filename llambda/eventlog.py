"""A log of what the engine did: one JSON object on a line for each event."""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from .paths import file_error


def resident_mb() -> float:
    """Memory this process holds now, in MB."""
    return round(psutil.Process().memory_info().rss / 1e6, 1)


def peak_resident_mb() -> float:
    """The most memory this process has held, in MB."""
    if sys.platform == "win32":
        return round(psutil.Process().memory_info().peak_wset / 1e6, 1)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return round(peak / 1e6, 1)
    # Linux begins ru_maxrss with the peak of the process that started this one; its own text does
    # not, where there is one.
    with suppress(OSError, ValueError):
        _, _, own = Path("/proc/self/status").read_text("utf-8").partition("VmHWM:")
        peak = int(own.partition("kB")[0])
    return round(peak * 1024 / 1e6, 1)


class EventLog:
    """Appends events to a file, or to nowhere when the path is None.

    Every line has the time of day, the event's name, the seconds it took, the tokens it was about
    and the memory held: {"time": ..., "event": "prefill", "seconds": ..., "tokens": ...,
    "resident_mb": ...}.

    What happens while Python shuts down is not told: nothing can be imported or opened any more.
    """

    _too_late = staticmethod(sys.is_finalizing)  # by then names of modules may be gone: not these

    def __init__(self, path: str | Path | None = None):
        self.path = None if path is None else Path(path)
        self._append("")  # an unwritable path is found out before any work is done

    def write(self, event: str, seconds: float, tokens: int = 0, **more: Any) -> None:
        if self.path is None or self._too_late():
            return
        entry = {
            "time": round(time.time(), 3),
            "event": event,
            "seconds": round(seconds, 6),
            "tokens": tokens,
            "resident_mb": resident_mb(),
            **more,
        }
        self._append(json.dumps(entry) + "\n")

    def _append(self, text: str) -> None:
        if self.path is None:
            return
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(text)
        except (OSError, ValueError) as error:
            raise file_error(error, self.path) from error
