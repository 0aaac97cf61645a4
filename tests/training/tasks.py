"""Tasks for workers, by name: what tests of the launcher run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from fullgraph.comm.group import Group
from fullgraph.training.results import Epoch
from fullgraph.training.resume import RunCheckpoints
from fullgraph.training.tasks import train


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
    train(group, **arguments)


def fail_always(group: Group, folder: str, attempt: int = 0) -> None:
    Path(folder, f"{attempt}-{group.rank}").touch()
    raise KeyError(f"attempt {attempt}")
