"""What asks a worker to stop: Ctrl-C, or the SIGTERM of a batch system, torchrun or Kubernetes."""

from __future__ import annotations

import signal
import time
from types import FrameType

HEAD_START = 3.0  # seconds
AGAIN = 5.0  # seconds


def stop_on_signals(rank: int) -> None:
    """Have SIGINT and SIGTERM raise KeyboardInterrupt, the first of them only: again and again,
    until `stopping` is told, as Python drops what is raised in a destructor and the like.

    Hosts get a signal at slightly different times, and rank 0, which saves, fails when another rank
    goes before it has its own: so the others stay, without working on, for HEAD_START seconds.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        if rank > 0:
            time.sleep(HEAD_START)
        signal.signal(signal.SIGALRM, _again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)


def stopping() -> None:
    """A KeyboardInterrupt has arrived where it is dealt with."""
    if signal.getsignal(signal.SIGALRM) is _again:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _again(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
