"""What training measured: a record an epoch, and the result of a run."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

PLAIN = ("epoch", "loss", "seconds", "drift")
MEASURED = ("evaluation_seconds", "peak_memory_bytes", "bytes_sent")


@dataclass
class Epoch:
    """One epoch, counted from 1.

    ``loss``: of the training step, before its update. ``seconds``: of the training step.
    ``metrics``: by split ("train", "val", "test"), with the weights after the update; empty where
    the epoch was not evaluated, as are the two lists. ``peak_memory_bytes``: of each rank, since
    training began. ``bytes_sent``: by the layers of each rank in this training step.
    ``drift``: relative errors of "outputs" and "gradients" against the exact step; empty where they
    were not looked at.
    """

    epoch: int
    loss: float
    seconds: float
    own_bytes_sent: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation_seconds: float = 0.0
    peak_memory_bytes: list[int] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    drift: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for what is not a finite number."""
        line: dict[str, Any] = {
            "epoch": self.epoch, "loss": finite(self.loss), "seconds": self.seconds,
        }  # fmt: skip
        if self.metrics:
            line |= {name: finite(value) for name, value in self.metrics.items()}
            line |= {
                "evaluation_seconds": self.evaluation_seconds,
                "peak_memory_bytes": self.peak_memory_bytes,
                "bytes_sent": self.bytes_sent,
            }
        if self.drift:
            line["drift"] = {name: finite(value) for name, value in self.drift.items()}
        return line

    @staticmethod
    def from_json(line: dict[str, Any]) -> Epoch:
        """Of a line that `to_json` gave; nan for None. Raises KeyError, TypeError, ValueError or
        AttributeError for anything else."""
        if type(line["epoch"]) is not int:
            raise TypeError(f"epoch is {line['epoch']!r}")
        rest = {name: line[name] for name in MEASURED if name in line}
        return Epoch(
            line["epoch"], _number(line["loss"]), float(line["seconds"]),
            metrics={n: _number(v) for n, v in line.items() if n not in (*PLAIN, *MEASURED)},
            drift={n: _number(v) for n, v in line.get("drift", {}).items()}, **rest,
        )  # fmt: skip


@dataclass
class FitResult:
    """A run so far.

    ``best``: the evaluated epoch with the best validation metric; None without any. ``tested``:
    the epoch whose weights the model holds in the end; None before the first evaluation.
    ``approximate``: what made training approximate, in words, in any epoch, before a resume, too.
    """

    metric: str
    epochs: list[Epoch] = field(default_factory=list)
    best: Epoch | None = None
    tested: Epoch | None = None
    stopped_early: bool = False
    interrupted: bool = False
    approximate: list[str] = field(default_factory=list)

    @property
    def epoch_seconds(self) -> float:
        """Median of the training steps; nan before the first."""
        seconds = [epoch.seconds for epoch in self.epochs]
        return statistics.median(seconds) if seconds else math.nan

    @property
    def last_evaluated(self) -> Epoch | None:
        return next((epoch for epoch in reversed(self.epochs) if epoch.metrics), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for what is not known."""
        tested, last = self.tested, self.last_evaluated
        metrics = tested.metrics if tested else {}
        return {
            "epochs": len(self.epochs),
            "stopped_early": self.stopped_early,
            "metric": self.metric,
            "tested_epoch": tested.epoch if tested else None,
            "loss": finite(self.epochs[-1].loss) if self.epochs else None,
            "train": finite(metrics.get("train", math.nan)),
            "val": finite(metrics.get("val", math.nan)),
            "test": finite(metrics.get("test", math.nan)),
            "epoch_seconds": finite(self.epoch_seconds),
            "peak_memory_bytes": last.peak_memory_bytes if last else [],
            "bytes_sent": last.bytes_sent if last else [],
            "drift": next((e.to_json()["drift"] for e in reversed(self.epochs) if e.drift), None),
        }


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def finite(value: float) -> float | None:
    """The number, or None for nan and infinities, which JSON does not have."""
    return value if math.isfinite(value) else None
