"""Tasks for workers, by name: what tests of the launcher run."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from fullgraph.comm.group import Group
from fullgraph.training import tasks
from fullgraph.training.results import Epoch, FitResult
from fullgraph.training.resume import RunCheckpoints


def note(group: Group, folder: str) -> None:
    total = group.all_reduce(torch.tensor([group.rank + 1.0]), "ranks").item()
    text = f"{group.rank} {group.size} {total} {torch.get_num_threads()}"
    Path(folder, str(group.rank)).write_text(text)


def fail_on_1(group: Group) -> None:
    if group.rank == 1:
        raise KeyError("no such label")
    group.all_reduce(torch.zeros(1), "something")
    time.sleep(600)


def vanish_on_1(group: Group) -> None:
    if group.rank == 1:
        os._exit(7)
    group.all_reduce(torch.zeros(1), "something")


def train_and_die(group: Group, victim: int, epoch: int, marker: str, **arguments: Any) -> None:
    """`train`, in which a worker ends itself by SIGKILL after an epoch, the first time."""
    plain = RunCheckpoints.note

    def note(self: RunCheckpoints, done: Epoch) -> None:
        plain(self, done)
        if group.rank == victim and done.epoch == epoch and not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    RunCheckpoints.note = note  # type: ignore[method-assign]
    tasks.train(group, **arguments)


def fail_always(group: Group, folder: str, attempt: int = 0) -> None:
    Path(folder, f"{attempt}-{group.rank}").touch()
    raise KeyError(f"attempt {attempt}")


def train_and_sample(group: Group, samples: str, every: int, **arguments: Any) -> None:
    """`train`; leaves resident bytes and open descriptors, of every so many epochs."""
    process, seen, plain = psutil.Process(), [], tasks.fit

    def fit(*args: Any, on_epoch: Callable[[Epoch], None], **kwargs: Any) -> FitResult:
        def look(epoch: Epoch) -> None:
            on_epoch(epoch)
            if epoch.epoch % every == 0:
                seen.append((process.memory_info().rss, process.num_fds()))

        return plain(*args, on_epoch=look, **kwargs)

    tasks.fit = fit  # type: ignore[assignment]
    tasks.train(group, **arguments)
    Path(samples, f"{group.rank}.json").write_text(json.dumps(seen))
