"""Tasks for workers, by name: what tests of the launcher run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from fullgraph.comm.group import Group


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
