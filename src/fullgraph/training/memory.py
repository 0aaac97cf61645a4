"""Memory of this process: its peak since a moment, and errors that mean that it ran out."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
from pathlib import Path

from fullgraph.kernels import release_memory

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RAN_OUT = re.compile(r"can't allocate memory|bad_alloc|out of memory|Cannot allocate memory")
TRIED = re.compile(r"tried to allocate ([\d.]+ ?\w+)", re.IGNORECASE)


class PeakMemory:
    """Starts to count when it is made.

    On Linux the high-water mark of resident memory (VmHWM) is first reset to what is resident now,
    by writing 5 to /proc/self/clear_refs. Where that is not allowed, a higher peak before this
    moment is counted too, so the figure is an upper bound. Where there is no such mark (other
    systems, some sandboxes) only the highest of the whole life of the process can be read, and how
    far it rose since is a lower bound.
    """

    def __init__(self) -> None:
        release_memory()  # what is idle is not held
        if _status("VmHWM"):
            with contextlib.suppress(OSError):
                CLEAR_REFS.write_text("5")
        self.before = _status("VmRSS") if _status("VmHWM") else _lifetime_peak()
        self._peak = 0

    def bytes(self) -> int:
        """The peak so far, above what was held at the start."""
        now = _status("VmHWM") or _lifetime_peak()
        # The kernel's figures are sums of approximate counters, so they can go back a little.
        self._peak = max(self._peak, now - self.before)
        return self._peak


def _status(key: str) -> int:
    """A size in /proc/self/status, in bytes; 0 where the kernel does not tell."""
    for line in STATUS.read_text().splitlines() if STATUS.exists() else []:
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _lifetime_peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def ran_out(error: BaseException) -> str | None:
    """A line on what to do, where an error means that there was no memory; otherwise None.

    Python, torch on a CPU, torch on a GPU, kernels and the system each say so in their own way.
    """
    if not (isinstance(error, MemoryError) or RAN_OUT.search(str(error))):
        return None
    tried = TRIED.search(str(error))
    return (
        f"MemoryError: memory ran out{f' (it asked for {tried[1]})' if tried else ''}. More "
        "workers, fewer --hidden columns and the schedule sequential need less; `fullgraph plan` "
        "says how much"
    )
