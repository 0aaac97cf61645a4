"""What commands say: stages under way, and errors in one line."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from fullgraph.training.events import Log
    from fullgraph.training.launch import WorkerError

USAGE, FAILED, INTERRUPTED = 2, 1, 130

# What people's input and surroundings lead to; other errors are ours, and come with a traceback.
EXPECTED = ("ValueError", "CommError", "LoadError", "GraphFolderError", "RunFolderError",
            "CheckpointError", "CheckpointWriteError", "WriteError", "UnsupportedLayerError",
            "MemoryError")  # fmt: skip


def fail(message: str, code: int | None = USAGE) -> None:
    """Print an error as one line; then exit with `code`, unless it is None."""
    line = re.sub(r"\s*\n\s*", "; ", message.strip())
    print(f"fullgraph: error: {re.sub(r'  +', '  ', line)}", file=sys.stderr)
    if code is not None:
        raise typer.Exit(code)


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """What a person can do something about becomes one line and exit code 2, or 1 where it is a
    disk that is full or read-only; with FULLGRAPH_TRACEBACK=1 it stays an exception."""
    try:
        yield
    except Exception as error:
        kinds = (ValueError, OSError, ImportError, NotImplementedError)
        expected = isinstance(error, kinds) or type(error).__name__ in EXPECTED
        if not expected or os.environ.get("FULLGRAPH_TRACEBACK"):
            raise
        disk = "WriteError" in (kind.__name__ for kind in type(error).__mro__)
        fail(str(error) or type(error).__name__, FAILED if disk else USAGE)


def fail_for_worker(error: WorkerError) -> None:
    """Name the rank and the reason, and exit; a traceback comes first where the fault is ours."""
    if error.trace and not error.reason.startswith(EXPECTED):
        print(error.trace, file=sys.stderr)
    fail(str(error), FAILED)


def leave_interrupted(message: str = "") -> NoReturn:
    """After Ctrl-C: exit, and do not let an impatient second one disturb the clearing up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if message:
        print(f"\n{message}", file=sys.stderr)
    raise typer.Exit(INTERRUPTED)


class Stages:
    """Says what is under way and how long it took: a spinner on a terminal, and a line.

    quiet: say nothing. log: to say it to, as events; without one, to stdout.
    """

    def __init__(self, quiet: bool = False, log: Log | None = None) -> None:
        self.quiet, self.log = quiet, log

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        log = self.log
        if log.on_terminal if log is not None else not self.quiet and sys.stdout.isatty():
            from rich.console import Console
            from rich.markup import escape

            with Console().status(escape(name)):
                yield
        else:
            yield
        seconds = time.monotonic() - start
        text = f"{name}: {seconds:.1f} s"
        if log is not None:
            log(name.partition(" ")[0], text, seconds=seconds)
        elif not self.quiet:
            print(text, flush=True)
