"""Curves for TensorBoard, of rank 0, in the run folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fullgraph.training.results import Epoch


class Board:
    """Writes scalars an epoch: loss and seconds and, where it was evaluated, the metric of each
    split, bytes sent by all ranks and the largest peak memory of a rank; drift where it was looked
    at. All of an epoch is on the disk when `add` returns.

    Args:
        folder: of the event files.
        done: epochs before this one, of a run that is resumed. What an earlier process wrote of
            later ones, which are trained again, TensorBoard leaves out.
    """

    def __init__(self, folder: Path, metric: str, done: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.metric = metric
        self._writer = SummaryWriter(str(folder), purge_step=done + 1)

    def add(self, epoch: Epoch) -> None:
        values = {"loss": epoch.loss, "seconds": epoch.seconds}
        values |= {f"{self.metric}/{split}": value for split, value in epoch.metrics.items()}
        values |= {f"drift/{name}": value for name, value in epoch.drift.items()}
        if epoch.metrics:
            values["evaluation_seconds"] = epoch.evaluation_seconds
            values["bytes_sent"] = sum(epoch.bytes_sent)
            values["peak_memory_bytes"] = max(epoch.peak_memory_bytes)
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch.epoch)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def check_installed() -> None:
    """Raises ValueError where the tensorboard package is missing."""
    if find_spec("tensorboard") is None:
        raise ValueError(
            "--tensorboard needs the package tensorboard: pip install 'fullgraph[tensorboard]'"
        )
