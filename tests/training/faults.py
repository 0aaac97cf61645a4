"""`train` for workers, in which one of them comes to grief: where, when and how a test says.

A fault is (kind, place, rank, epoch); that of an attempt is its number in the list. In a worker
alone: the place "start-up" is where this module is imported.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fullgraph.comm.exchange import Exchange
from fullgraph.comm.group import Group
from fullgraph.training import checkpoint, snapshot, tasks
from fullgraph.training.fit import Run


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _raise() -> None:
    raise ValueError("on purpose")


def _no_more_memory() -> None:
    """A mebibyte, as small things may well fit into what the process holds already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


KINDS = {
    "kill": _signal(signal.SIGKILL),
    "stop": _signal(signal.SIGSTOP),
    "hang": lambda: time.sleep(1000),
    "raise": _raise,
    "memory": _no_more_memory,
}


class Fault:
    """Happens when it is called in its epoch; `marker` says when it did."""

    def __init__(self, kind: str, epoch: int, marker: str) -> None:
        self.kind, self.epoch, self.marker = kind, epoch, Path(marker)
        self.now = 0

    def __call__(self) -> None:
        if self.now == self.epoch:
            self.marker.touch()
            KINDS[self.kind]()


def train(group: Group, faults: list[Any], marker: str, attempt: int = 0, **arguments: Any) -> None:
    """`tasks.train` with the fault of this attempt, if this is the rank of it."""
    if attempt < len(faults):
        kind, place, rank, epoch = faults[attempt]
        if group.rank == rank and place != "start-up":
            _install(Fault(kind, epoch, marker), place)
    tasks.train(group, **arguments)


def _install(fault: Fault, place: str) -> None:
    _before(Run, "_train", lambda run, number: setattr(fault, "now", number))
    if place in ("forward", "backward"):
        _in_the_model(fault, place)
    elif place == "exchange":
        _before(
            Exchange, "_complete",
            lambda self, *rest: fault() if self.direction == "backward" else None,
        )  # fmt: skip
    elif place == "all-reduce":
        _before(Group, "all_reduce", lambda self, _, what: fault() if what == "gradients" else None)
    elif place == "receive":  # of a checkpoint
        _before(checkpoint, "_send", lambda *rest: fault())
    elif place == "checkpoint":
        _in_the_middle_of_a_file(fault)
    else:
        assert place == "weights", place  # of the finished run
        _before(os, "replace", lambda new, old: fault() if "model." in str(old) else None)


def _before(owner: Any, name: str, first: Callable[..., object]) -> None:
    plain = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        return plain(*args, **kwargs)

    setattr(owner, name, patched)


def _in_the_model(fault: Fault, place: str) -> None:
    """Between two layers in the forward pass; before the last layer in the backward pass."""
    plain = tasks.build_model

    def hook(layer: torch.nn.Module, _: Any, out: torch.Tensor) -> None:
        if layer.training and place == "forward":
            fault()
        elif layer.training:
            out.register_hook(lambda gradient: fault())

    def build_model(*args: Any) -> torch.nn.Module:
        model = plain(*args)
        model.convs[0 if place == "forward" else -1].register_forward_hook(hook)
        return model

    tasks.build_model = build_model


def _in_the_middle_of_a_file(fault: Fault) -> None:
    plain = snapshot._write

    def write(path: Path, data: bytes) -> dict[str, Any]:
        if path.name == snapshot.rank_file(0) and fault.now == fault.epoch:
            path.write_bytes(data[: len(data) // 2])
            fault()
        return plain(path, data)

    snapshot._write = write


def _at_start_up() -> None:
    arguments = json.loads(Path(sys.argv[1], "task.json").read_text())["arguments"]
    attempt = arguments.get("attempt", 0)
    if attempt < len(arguments["faults"]):
        kind, place, rank, _ = arguments["faults"][attempt]
        if place == "start-up" and os.environ["RANK"] == str(rank):
            Fault(kind, 0, arguments["marker"])()


_at_start_up()
