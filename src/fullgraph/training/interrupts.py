"""What asks a worker to stop: Ctrl-C, or the SIGTERM of a batch system, torchrun or Kubernetes."""

from __future__ import annotations

import signal
import time
from types import FrameType

HEAD_START = 3.0  # seconds


def stop_on_signals(rank: int) -> None:
    """Have SIGINT and SIGTERM raise KeyboardInterrupt, the first of them only.

    Hosts get a signal at slightly different times, and rank 0, which saves, fails when another rank
    goes before it has its own: so the others stay, without working on, for HEAD_START seconds.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        if rank > 0:
            time.sleep(HEAD_START)
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
