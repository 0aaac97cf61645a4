"""What workers wait for, in a file that their launcher reads when one of them is gone or silent."""

from __future__ import annotations

import mmap
from pathlib import Path

BYTES = 512  # a worker


class Waits:
    """A worker's line in the file that `create` made, shared memory to the launcher: what was
    written last is there however the worker ends. Called with "" once the wait is over."""

    def __init__(self, path: Path, rank: int) -> None:
        with path.open("r+b") as file:
            self._lines = mmap.mmap(file.fileno(), 0)
        self._start = rank * BYTES

    def __call__(self, operation: str) -> None:
        line = operation.encode()[: BYTES - 1] + b"\0"
        self._lines[self._start : self._start + len(line)] = line

    @staticmethod
    def create(path: Path, workers: int) -> None:
        path.write_bytes(bytes(BYTES * workers))  # all of it, as a hole in a full disk is fatal

    @staticmethod
    def read(path: Path) -> list[str]:
        """By rank; "" for a worker that was not waiting."""
        data = path.read_bytes()
        lines = [data[start : start + BYTES] for start in range(0, len(data), BYTES)]
        return [line.partition(b"\0")[0].decode(errors="replace") for line in lines]
