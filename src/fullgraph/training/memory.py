"""Peak memory of this process since a moment: its high-water mark, less what it held then."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMemory:
    """Starts to count when it is made.

    On Linux the high-water mark of resident memory (VmHWM) is first reset to what is resident now,
    by writing 5 to /proc/self/clear_refs. Where that is not allowed, a higher peak before this
    moment is counted too, so the figure is an upper bound. Where there is no such mark (other
    systems, some sandboxes) only the highest of the whole life of the process can be read, and how
    far it rose since is a lower bound.
    """

    def __init__(self) -> None:
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
