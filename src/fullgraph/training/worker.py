"""A worker process: joins the group, does its task, and says in one line why it failed."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from fullgraph.comm.group import CommError, Group, init
from fullgraph.training.interrupts import stop_on_signals
from fullgraph.training.launch import INTERRUPTED, Failure
from fullgraph.training.memory import ran_out
from fullgraph.training.waits import Waits

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the task in the folder that the command line names; see `run_workers`."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    _end_with_parent(task["parent"], signal.SIGKILL if rank else signal.SIGTERM)
    if rank == 0:
        stop_on_signals(rank)  # to leave a valid run folder; the other ranks just go
    group: Group | None = None
    waits = Waits(folder / "waits", rank)
    try:
        torch.set_num_threads(task["threads"])
        module, _, name = task["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        waits("joining the other workers")
        group = init(timeout=task["timeout"])
        waits("")
        group.on_wait = waits
        function(group, **task["arguments"])
    except KeyboardInterrupt:
        _leave(INTERRUPTED)
    except BaseException as error:
        if group is not None:
            group.report_failure(error)
        _account(error).write(folder, rank)
        _leave(1)
    if dist.is_initialized():
        dist.destroy_process_group()
    _leave(0)


def _account(error: BaseException) -> Failure:
    lost = isinstance(error, CommError)
    reason = None if lost else ran_out(error)  # the error of another may be quoted in it
    reason = reason or f"{type(error).__name__}: {error}"
    return Failure(reason, traceback.format_exc(), lost)


def _leave(code: int) -> NoReturn:
    """End at once: the threads of the process group would wait for ranks that are gone, and one
    that is still letting go of a tensor while Python shuts down aborts the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent(parent: int, how: int) -> None:
    """Have the kernel send this signal when the launcher dies, however it dies (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:
        _leave(1)
