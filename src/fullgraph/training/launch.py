"""Starting workers on this machine through torch's elastic launcher, over loopback alone.

The launcher's rendezvous here is a store that this process serves on 127.0.0.1; workers find it
through MASTER_ADDR and MASTER_PORT. torch's own rendezvous would listen on every address.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from fullgraph.comm.group import CommError
from fullgraph.comm.rendezvous import LOOPBACK, loopback_store

BACKEND = "fullgraph-loopback"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
INTERRUPTED = 130  # a worker's exit code then, which is what shells report for Ctrl-C

# Signals reach a worker only once its own handlers are in place; until then they end it silently.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from fullgraph.training.worker import main; main()"
)


class WorkerError(RuntimeError):
    """A worker failed: ``rank``, ``reason`` in a line, and ``trace``, its traceback or ""."""

    def __init__(self, rank: int, reason: str, trace: str = "") -> None:
        super().__init__(f"worker {rank} failed: {reason}")
        self.rank, self.reason, self.trace = rank, reason, trace


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
    with (
        _own_signal_handlers(),
        tempfile.TemporaryDirectory(prefix="fullgraph-") as folder,
        _quiet_environment(threads),
    ):
        task = {
            "function": function, "arguments": arguments, "threads": threads, "timeout": timeout,
            "parent": os.getpid(),
        }  # fmt: skip
        file = Path(folder, "task.json")
        file.write_text(json.dumps(task), encoding="utf-8")
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=workers, run_id=uuid.uuid4().hex,
            role="worker", rdzv_backend=BACKEND, rdzv_configs={"timeout": int(timeout) + 60},
            max_restarts=0, local_addr=LOOPBACK, logs_specs=DefaultLogsSpecs(log_dir=folder),
        )  # fmt: skip
        try:
            launch_agent(config, sys.executable, ["-c", START, str(file)])
        except ChildFailedError as error:
            raise _first_cause(error.failures) from None
        except SignalException as error:
            raise KeyboardInterrupt from error


def _first_cause(failures: dict[int, ProcessFailure]) -> WorkerError:
    """The failure that explains the others: those were waiting for a rank that is gone, or were
    told to stop because of it."""

    def is_consequence(rank: int) -> bool:
        failure = failures[rank]
        told_to_stop = failure.exitcode in (INTERRUPTED, -signal.SIGTERM)
        return told_to_stop or _reason(failure)[0].startswith(CommError.__name__ + ":")

    rank = min(failures, key=lambda rank: (is_consequence(rank), rank))
    return WorkerError(rank, *_reason(failures[rank]))


def _reason(failure: ProcessFailure) -> tuple[str, str]:
    message: Any = failure.message
    if isinstance(message, dict):
        trace = message.get("extraInfo", {}).get("py_callstack", "")
        return str(message.get("message", "")), trace
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        hint = ", which the system sends when memory runs out" if name == "SIGKILL" else ""
        return f"it was ended by {name}{hint}", ""
    return f"it ended with exit code {failure.exitcode}", ""


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Put back the handlers of this process, which the launcher replaces and leaves so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _quiet_environment(threads: int) -> Iterator[None]:
    """What workers inherit: their number of threads. Errors are told by us, in one line, so the
    launcher's own reports and torch's stack traces of lost connections are left out."""
    changed = {"OMP_NUM_THREADS": str(threads)}
    if "TORCH_CPP_LOG_LEVEL" not in os.environ:
        changed["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    before = {name: os.environ.get(name) for name in changed}
    disabled = logging.root.manager.disable
    os.environ.update(changed)
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(disabled)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


class _LoopbackRendezvous(RendezvousHandler):
    """One launcher and its workers, which share a store on 127.0.0.1."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self.run_id = parameters.run_id
        seconds = int(parameters.config["timeout"])
        self.store = loopback_store(0, 1, timedelta(seconds=seconds))

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        place = RendezvousStoreInfo(LOOPBACK, self.store.port)
        return RendezvousInfo(PrefixStore("launcher", self.store), 0, 1, place)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.run_id

    def shutdown(self) -> bool:
        return True


rendezvous_handler_registry.register(BACKEND, _LoopbackRendezvous)
