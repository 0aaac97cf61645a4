"""The one harness for tests that need ranks: `run_ranks(fn, size, *args)`.

`fn(group, *args)` runs on every rank of a fresh process group, in processes that are kept from
one test to the next, and forked from one that has imported everything, because that takes seconds.
A rank that raises fails the test with its traceback; ranks that do not finish in time are killed,
and named.
"""

from __future__ import annotations

import atexit
import multiprocessing as mp
import os
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

GRACE_SECONDS = 5.0  # for the other ranks, once one has failed
PRELOADED = ["fullgraph.cli", "fullgraph.training.worker", "fullgraph.training.tasks"]


class RanksFailedError(AssertionError):
    """A rank raised, or did not finish in time."""


def run_ranks(
    fn: Callable[..., Any], size: int, *args: Any, timeout: float = 300.0, wait_limit: float = 90.0
) -> list[Any]:
    """What `fn(group, *args)` returned on each of `size` ranks.

    fn and args are pickled: fn is a function of a module. `wait_limit` bounds, in seconds, each
    single wait of the group; `timeout` all of it.
    """
    workers = _pool(size)
    store = os.path.join(tempfile.gettempdir(), f"fullgraph-test-{uuid.uuid4().hex}")
    try:
        for rank, (_, pipe) in enumerate(workers):
            pipe.send((fn, rank, size, store, wait_limit, args))
        return _collect(workers, timeout)
    except BaseException:
        _discard()
        raise
    finally:
        Path(store).unlink(missing_ok=True)


_workers: list[tuple[mp.process.BaseProcess, Connection]] = []


def _pool(size: int) -> list[tuple[mp.process.BaseProcess, Connection]]:
    while len(_workers) < size:
        ours, theirs = mp.Pipe()
        process = forked(_serve, theirs)
        theirs.close()
        _workers.append((process, ours))
    return _workers[:size]


def forked(call: Callable[..., None], *args: Any) -> mp.process.BaseProcess:
    """A process that calls this, forked from one that has imported everything; it ends with us."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=call, args=args, daemon=True)
    with patch.dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"):
        process.start()  # from a process without threads, which can be forked
    return process


@atexit.register
def _discard() -> None:
    for process, pipe in _workers:
        process.kill()
        process.join()
        pipe.close()
    _workers.clear()


def _collect(workers: list[tuple[mp.process.BaseProcess, Connection]], timeout: float) -> list[Any]:
    deadline = time.monotonic() + timeout
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    ranks = {pipe: rank for rank, (_, pipe) in enumerate(workers)}
    while len(results) + len(failures) < len(workers):
        waiting = [p for p, r in ranks.items() if r not in results and r not in failures]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = ranks[pipe]
            try:
                ok, value = pipe.recv()
            except EOFError:
                ok, value = False, "the process ended"
            (results if ok else failures)[rank] = value
            if not ok:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    late = set(range(len(workers))) - set(results) - set(failures)
    if failures or late:
        said = [f"rank {rank}:\n{text}" for rank, text in sorted(failures.items())]
        if late:
            said.append(f"ranks {sorted(late)} did not finish in time")
        raise RanksFailedError("\n".join(said))
    return [results[rank] for rank in range(len(workers))]


def _serve(pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch

    from tests.poison import poison_new_memory

    torch.set_num_threads(1)
    poison_new_memory()
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        except Exception:
            pipe.send((False, traceback.format_exc()))
            continue
        pipe.send(_run(*task))


def _run(
    fn: Callable[..., Any], rank: int, size: int, store_path: str, limit: float, args: Any
) -> tuple[bool, Any]:
    import torch
    import torch.distributed as dist

    from fullgraph.comm.group import Group

    timeout = timedelta(seconds=limit)
    store = dist.FileStore(store_path, size)
    store.set_timeout(timeout)
    group = None
    try:
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=size,
            timeout=timeout,
        )  # fmt: skip
        dist.barrier()  # who leaves while others still connect fails them
        torch.manual_seed(0)  # whatever the tests before drew
        group = Group(dist.group.WORLD, timeout, dist.PrefixStore("fullgraph", store))
        if size % 2 == 0:  # gloo and what goes through memory have the same tests
            group.read_neighbours()
        return True, fn(group, *args)
    except BaseException as error:
        if group is not None:
            group.report_failure(error)
        return False, traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
