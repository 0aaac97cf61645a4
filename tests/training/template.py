"""Workers that are forked from one process which has imported everything, as that takes seconds.

For tests of what becomes of workers, not of how they start: `fork_workers(monkeypatch)`.
"""

from __future__ import annotations

import os
import sys

import pytest

from fullgraph.training import launch
from tests.ranks import forked


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    forked(int).join()  # so that the process which they are forked from is there
    monkeypatch.setattr(launch, "_start", Forked)


class Forked:
    """In place of a `subprocess.Popen`."""

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        self._process = forked(_work, folder, environment)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> None:
        self._process.join(seconds)


def _work(folder: str, environment: dict[str, str]) -> None:
    from fullgraph.training import worker

    os.environ.update(environment)
    sys.argv = ["-c", folder]
    worker._end_with_parent = lambda parent, how: None  # the parent is another here
    worker.main()
