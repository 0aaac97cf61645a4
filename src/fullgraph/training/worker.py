"""A worker process: joins the group, does its task, and says in one line why it failed."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from fullgraph.comm.group import Group, init
from fullgraph.training.launch import INTERRUPTED

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the task in the JSON file that the command line names; see `run_workers`."""
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _end_with_parent(task["parent"])
    if os.environ.get("RANK") == "0":
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGTERM, _interrupt)
    group: Group | None = None
    try:
        torch.set_num_threads(task["threads"])
        module, _, name = task["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        group = init(timeout=task["timeout"])
        function(group, **task["arguments"])
    except KeyboardInterrupt:
        _leave(INTERRUPTED)
    except BaseException as error:
        if group is not None:
            group.report_failure(error)
        get_error_handler().record_exception(error)
        _leave(1)
    if dist.is_initialized():
        dist.destroy_process_group()
    _leave(0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Rank 0 leaves a valid run folder before it goes; the other ranks just go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _leave(code: int) -> NoReturn:
    """End at once: the threads of the process group would wait for ranks that are gone, and one
    that is still letting go of a tensor while Python shuts down aborts the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM when the launcher dies, however it dies (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        _leave(1)
