"""Checkpoints of a run of `fit`: when they are made, and how a run goes on from one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullgraph.training.checkpoint import (
    different_options,
    load,
    save_alone,
    save_snapshot,
    say,
    take,
)
from fullgraph.training.config import RunConfig
from fullgraph.training.identity import identity
from fullgraph.training.options import FitOptions
from fullgraph.training.results import Epoch
from fullgraph.training.snapshot import CheckpointError, Snapshot, find

if TYPE_CHECKING:
    from fullgraph.training.fit import Run

MAY_CHANGE = ("epochs", "check_drift", "checkpoint_every", "keep_checkpoints")


def lasting(options: FitOptions) -> dict[str, Any]:
    """The options that have to be the same when a run is resumed."""
    return {name: value for name, value in asdict(options).items() if name not in MAY_CHANGE}


def check_resumed(then: RunConfig, now: RunConfig) -> None:
    """Raises ValueError naming what has to be the same when a run is resumed, and is not."""
    pairs = [
        ({name: getattr(run.graph, name) for name in ("split", "normalize_features")},
         asdict(run.model), lasting(run.training))
        for run in (then, now)
    ]  # fmt: skip
    differences = [words for old, new in zip(*pairs) if (words := different_options(old, new))]
    if differences:
        raise ValueError(
            f"--resume of a run with other options: {', '.join(differences)}. Give them as they "
            "were, or start a run in another --out"
        )


class RunCheckpoints:
    """Resumes a run where asked to, and saves it.

    ``snapshot``: on rank 0, the run and its random numbers at the end of the last epoch, as an
    interrupt may come at any moment, when nothing is to be had of other ranks. ``saved``: the last
    epoch that has a checkpoint, which ``on_saved`` is told.
    """

    def __init__(
        self, run: Run, folder: str | PathLike[str] | None, resume: bool,
        on_saved: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        self.run, self.every, self.on_saved = run, run.options.checkpoint_every, on_saved
        self.rows: list[dict[str, Any]] = []
        self.snapshot: tuple[Snapshot, Tensor] | None = None
        self.saved = 0
        if folder is None and (self.every or resume):
            raise ValueError("checkpoint_every and resume need checkpoints, the folder of them")
        self.folder = Path("." if folder is None else folder)
        if resume:
            self._resume()
        elif self.every and run.graph.group.rank == 0 and (found := find(self.folder)):
            raise CheckpointError(
                f"{self.folder} holds {found[0].name} of another run: resume that one, or choose "
                "another folder"
            )
        if self.every:
            identity(run.graph)  # which takes all ranks

    def note(self, epoch: Epoch) -> None:
        """At the end of an epoch."""
        if not self.every:
            return
        self.rows.append(epoch.to_json())
        if self.run.graph.group.rank > 0:
            return
        run = self.run
        weights, tested = run.kept
        best = run.result.best
        extra = {
            "kept": weights,
            "tested": tested.epoch if tested else None,
            "best": best.epoch if best else None,
            "approximate": run.result.approximate,
        }
        snapshot = take(
            epoch.epoch, run.model, run.optimizer, run.graph, extra, lasting(run.options),
            list(self.rows),
        )  # fmt: skip
        self.snapshot = (snapshot, torch.get_rng_state())

    def save_if(self, due: bool) -> None:
        """Save the last epoch, with every rank, unless that was done."""
        if not (self.every and due and len(self.rows) > self.saved):
            return
        snapshot = self.snapshot[0] if self.snapshot else None
        save_snapshot(self.folder, snapshot, self.run.graph, self.run.options.keep_checkpoints)
        self.saved = len(self.rows)
        self._tell(self.saved)

    def save_alone(self) -> None:
        """After an interrupt: the last epoch that was whole, unless that was done, or other ranks
        have stale rows, without which it would not go on as it would have."""
        graph = self.run.graph
        has_stale = bool(graph.stale.state_dict()) and graph.group.size > 1
        if self.snapshot is None or self.snapshot[0].epoch <= self.saved or has_stale:
            return
        snapshot, random = self.snapshot
        if snapshot.epoch not in (int(path.name[6:]) for path in find(self.folder)[:1]):
            save_alone(self.folder, snapshot, random, self.run.options.keep_checkpoints)
            self._tell(snapshot.epoch)

    def _tell(self, epoch: int) -> None:
        if self.on_saved is not None:
            self.on_saved(epoch)

    def _resume(self) -> None:
        run = self.run
        found = load(
            self.folder, model=run.model, optimizer=run.optimizer, graph=run.graph,
            options=lasting(run.options),
        )  # fmt: skip
        if found is None:
            say(run.graph.group, f"no checkpoint in {self.folder}: starting from the beginning")
            return
        if found.epoch > run.options.epochs:
            raise CheckpointError(
                f"{found.path} is later than the last epoch, {run.options.epochs}; give more epochs"
            )
        result, extra = run.result, found.extra
        self.rows, self.saved = list(found.rows), found.epoch
        result.epochs = [Epoch.from_json(row) for row in found.rows]
        by_number = {epoch.epoch: epoch for epoch in result.epochs}
        try:
            result.best = by_number.get(extra["best"])
            run.kept = (extra["kept"], by_number.get(extra["tested"]))
            result.approximate = [*dict.fromkeys([*extra["approximate"], *result.approximate])]
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{found.path} is not of fullgraph train: {error}") from error
