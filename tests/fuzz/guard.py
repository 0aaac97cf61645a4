"""What no reader may do, watched from inside the process that reads: open anything outside of its
folder, change a file, load a pickle, start or call another process, hang, or take much memory.

Watching cannot be undone, so it is for a process of its own.
"""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SECONDS = 20.0  # for one input, which takes a millisecond; a busy machine is not a hang
MEMORY = 192 << 20  # bytes, for all inputs together; the largest is of some kilobytes
FORBIDDEN = (
    "pickle.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.remove",
    "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate",
    "shutil.", "socket.", "urllib.", "tempfile.",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR


class Violation(BaseException):
    """A reader did what it may not. Not an Exception, so that no reader can mistake it for one."""


class Guard:
    def __init__(self) -> None:
        self.folder = ""
        self.said: list[str] = []
        python = (sys.prefix, sys.base_prefix, Path(__file__).parents[2])
        self._python = tuple(map(os.path.realpath, python))
        sys.addaudithook(self._hear)
        signal.signal(signal.SIGALRM, self._late)
        sys.dont_write_bytecode = True
        for owner, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
            setattr(owner, name, self._no_pickle)

    @contextmanager
    def watching(self, folder: str) -> Iterator[None]:
        """Raises Violation for what the block does; folder: a real path, or "" where nothing may be
        opened."""
        self.folder, self.said = folder or "\0", []
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            yield
        finally:
            self.folder = ""
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self.said:  # and somebody kept quiet about it
            raise Violation(self.said[0])

    def limit_memory(self) -> bool:
        """Let the process have MEMORY more than now. Whether the system keeps it to that."""
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        try:
            mmap.mmap(-1, 2 * MEMORY).close()
        except OSError:
            return True
        return False

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event.startswith(FORBIDDEN):
            self._object(f"{event} {args}")
        elif event == "open":
            path, _, flags = args
            if isinstance(path, (str, bytes)):
                self._check_open(os.path.realpath(os.fsdecode(path)), flags)

    def _check_open(self, path: str, flags: int) -> None:
        of_python = path.startswith(self._python)  # where imports are from
        if flags & WRITING or not (of_python or path.startswith(self.folder + os.sep)):
            self._object(f"open {path!r} with flags {flags}")

    def _no_pickle(self, *args: Any, **kwargs: Any) -> None:
        self._object("a pickle is loaded")

    def _late(self, *args: Any) -> None:
        self._object(f"it takes more than {SECONDS} seconds")

    def _object(self, text: str) -> None:
        self.said.append(text)
        raise Violation(text)


def peak_memory() -> int:
    """Bytes, resident, at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
