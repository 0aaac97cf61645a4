"""Starting workers on this machine, over loopback alone, and ending all of them when one fails.

Workers meet at a store that this process serves on 127.0.0.1. Why one failed it tells in a file;
what the others were waiting for meanwhile is in another (see `waits`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from fullgraph.comm.rendezvous import LOOPBACK, loopback_store
from fullgraph.training.waits import Waits

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
INTERRUPTED = 130  # a worker's exit code then, which is what shells report for Ctrl-C
POLL_SECONDS = 0.05
NOTICE_SECONDS = 5.0  # for the others to notice by themselves that one is gone
LEAVE_SECONDS = 30.0  # for rank 0 to leave a valid run folder once it was told to stop
MOST_NAMED = 3

# Signals reach a worker only once its own handlers are in place; until then they end it silently.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from fullgraph.training.worker import main; main()"
)


class WorkerError(RuntimeError):
    """A worker failed: ``rank``, ``reason`` in a line, ``trace``, its traceback or "", and
    ``waiting``, what others were waiting for then, by rank."""

    def __init__(
        self, rank: int, reason: str, trace: str = "", waiting: dict[int, str] | None = None
    ) -> None:
        self.rank, self.reason, self.trace = rank, reason, trace
        self.waiting = waiting or {}
        named = [f"worker {r} ({what})" for r, what in self.waiting.items()]
        more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
        text = f"worker {rank} failed: {reason}"
        if named:
            text += f"; waiting then: {', '.join(named[:MOST_NAMED] + more)}"
        super().__init__(text)


def default_threads(workers: int) -> int:
    """An equal share of the cores that this process may use, at least one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    return max(1, cores // workers)


def run_workers(
    function: str, arguments: dict[str, Any], workers: int, threads: int, timeout: float,
    max_restarts: int = 0, on_restart: Callable[[WorkerError, int], dict[str, Any]] | None = None,
) -> None:  # fmt: skip
    """Run ``function(group, **arguments)`` in `workers` processes, and wait for all of them.

    Args:
        function: "module:name". Its arguments travel as JSON.
        threads: of each worker.
        timeout: the longest any single wait of a worker may take, in seconds.
        max_restarts: how often all workers are started again after one has failed.
        on_restart: told why, and which restart this is, from 1; gives what changes in `arguments`.

    Raises:
        WorkerError: a worker failed, for the last time; the others have been stopped.
        KeyboardInterrupt: this process was asked to stop (SIGINT, SIGTERM); so were the workers.
    """
    restarts = 0
    while True:
        try:
            return _run_once(function, arguments, workers, threads, timeout)
        except WorkerError as error:
            if restarts >= max_restarts:
                raise
            restarts += 1
            changes = {} if on_restart is None else on_restart(error, restarts)
            arguments = {**arguments, **changes}


def _run_once(
    function: str, arguments: dict[str, Any], workers: int, threads: int, timeout: float
) -> None:
    task = {
        "function": function, "arguments": arguments, "threads": threads, "timeout": timeout,
        "parent": os.getpid(),
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="fullgraph-") as folder,
        _stop_signals() as stopped_by,
    ):
        Path(folder, "task.json").write_text(json.dumps(task), encoding="utf-8")
        Waits.create(Path(folder, "waits"), workers)
        store = loopback_store(0, workers, timedelta(seconds=timeout + 60))
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(workers):
                environment = _environment(rank, workers, threads, store.port)
                processes.append(_start(folder, environment))
            _watch(processes, Path(folder), timeout, stopped_by)
        finally:
            _stop(processes, stopped_by[0] if stopped_by else signal.SIGTERM)


def _environment(rank: int, workers: int, threads: int, port: int) -> dict[str, str]:
    """What is told to a worker beside its task: as torchrun does, with a store that is served."""
    told = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers,
        "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True,
        "OMP_NUM_THREADS": threads,
    }  # fmt: skip
    # Errors are told here, in one line, so torch's traces of lost connections are left out.
    return {
        "TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ, **{k: str(v) for k, v in told.items()}
    }  # fmt: skip


def _start(folder: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", START, folder], env=environment)


def _watch(
    processes: list[subprocess.Popen[bytes]], folder: Path, timeout: float, stopped_by: list[int]
) -> None:
    """Wait until all workers have ended well.

    Raises WorkerError for the one that failed first, and KeyboardInterrupt.
    """
    failures: dict[int, Failure] = {}
    deadline = float("inf")
    while not stopped_by and time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code and rank not in failures:
                failures[rank] = Failure.read(folder, rank, code)
                deadline = min(deadline, time.monotonic() + NOTICE_SECONDS)
        if None not in codes:
            break
        time.sleep(POLL_SECONDS)
    if stopped_by:
        raise KeyboardInterrupt
    if not failures:
        return
    silent = [rank for rank, process in enumerate(processes) if process.poll() is None]
    waits = Waits.read(folder / "waits")
    rank = _first_cause(failures, silent, waits, processes)
    failure = failures.get(rank)
    if failure is None:
        stopped = ": it is stopped (SIGSTOP)" if _is_stopped(processes[rank].pid) else ""
        failure = Failure(f"it did not answer the others within {timeout:g} s{stopped}")
        processes[rank].kill()  # and it would not answer SIGTERM
    waiting = {other: what for other, what in enumerate(waits) if what and other != rank}
    raise WorkerError(rank, failure.reason, failure.trace, waiting)


class Failure(NamedTuple):
    """Why a worker ended. ``is_consequence``: it lost its connection to another, or waited in vain
    for it."""

    reason: str
    trace: str = ""
    is_consequence: bool = False

    @staticmethod
    def file(folder: Path, rank: int) -> Path:
        """Where a worker leaves its own account, which is written by `write`."""
        return folder / f"failed-{rank}.json"

    def write(self, folder: Path, rank: int) -> None:
        self.file(folder, rank).write_text(json.dumps(self), encoding="utf-8")

    @staticmethod
    def read(folder: Path, rank: int, code: int) -> Failure:
        """code: with which the worker ended."""
        try:
            return Failure(*json.loads(Failure.file(folder, rank).read_text(encoding="utf-8")))
        except (OSError, ValueError):  # it had no time to
            pass
        if code > 0:
            return Failure(f"it ended with exit code {code}")
        name = signal.Signals(-code).name
        hint = ", which the system sends when memory runs out" if name == "SIGKILL" else ""
        return Failure(f"it was ended by {name}{hint}")


def _first_cause(
    failures: dict[int, Failure], silent: list[int], waits: list[str],
    processes: list[subprocess.Popen[bytes]],
) -> int:  # fmt: skip
    """The rank that explains the others: one that failed by itself, or else has not even noticed
    that others gave up."""
    for rank, failure in failures.items():
        if not failure.is_consequence:
            return rank
    return min(
        silent or failures,
        key=lambda rank: (not _is_stopped(processes[rank].pid), bool(waits[rank]), rank),
    )


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP holds a process, as far as the system tells (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def _stop(processes: Iterable[subprocess.Popen[bytes]], number: int) -> None:
    """Ask processes to end, and after a while make them."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(number)
    deadline = time.monotonic() + LEAVE_SECONDS
    while running and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        running = [process for process in running if process.poll() is None]
        for process in running:
            if _is_stopped(process.pid):
                process.kill()
    for process in running:
        process.kill()
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel, on a dead disk
            process.wait(LEAVE_SECONDS)


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """A list that gets the signals which ask this process to stop, instead of being ended at any
    moment; those that were ignored before still are."""
    arrived: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in STOPS}
        handlers = {n: h for n, h in handlers.items() if h not in (signal.SIG_IGN, None)}
    for number in handlers:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
