"""What a person sees while a model trains: a progress bar on a terminal, else an event an epoch."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from fullgraph.training.events import Log
from fullgraph.training.results import Epoch

if TYPE_CHECKING:
    from rich.progress import Progress


class TrainingProgress:
    """Shows epochs; use it in a `with` block, on rank 0.

    Args:
        epochs: how many there will be at most.
        log: where they are told; what it says meanwhile appears above the bar.
    """

    def __init__(self, epochs: int, metric: str, log: Log) -> None:
        self.epochs, self.metric, self.log = epochs, metric, log
        self._last: Epoch | None = None
        self._bar: Progress | None = None

    def __enter__(self) -> TrainingProgress:
        if self.log.on_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(BarColumn(bar_width=10), TextColumn("{task.description}"))
            self._task = self._bar.add_task("training", total=self.epochs)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._bar is not None:
            self._bar.stop()

    def show(self, epoch: Epoch) -> None:
        if epoch.metrics:
            self._last = epoch
        fields = epoch.to_json()
        if drift := fields.pop("drift", None):
            self.log("drift", self.drift_line(epoch), epoch=epoch.epoch, **drift)
        self.log("epoch", self.line(epoch), **fields)
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch.epoch, description=self.short(epoch))

    def line(self, epoch: Epoch) -> str:
        """One epoch in words, with the latest metric and memory that are known."""
        words = f"epoch {epoch.epoch:>{len(str(self.epochs))}}/{self.epochs}  loss {epoch.loss:.4f}"
        last = self._last
        if last is not None and "val" in last.metrics:
            words += f"  validation {self.metric} {last.metrics['val']:.4f}"
        words += f"  {epoch.seconds:.3g} s an epoch"
        if last is not None:
            words += f"  peak memory {megabytes(max(last.peak_memory_bytes))} a worker"
        return words

    def drift_line(self, epoch: Epoch) -> str:
        """How far an approximate epoch was from an exact one."""
        errors = "  ".join(f"{name} {value:.2e}" for name, value in epoch.drift.items())
        return f"epoch {epoch.epoch:>{len(str(self.epochs))}}/{self.epochs}  drift: {errors}"

    def short(self, epoch: Epoch) -> str:
        """The same, to fit beside a bar on a terminal of 80 columns."""
        last = self._last
        words = [f"{epoch.epoch}/{self.epochs}", f"loss {epoch.loss:.4f}"]
        if last is not None and "val" in last.metrics:
            words.append(f"validation {last.metrics['val']:.4f}")
        words.append(f"{epoch.seconds:.3g} s/epoch")
        if last is not None:
            words.append(f"{megabytes(max(last.peak_memory_bytes))}/worker")
        return "  ".join(words)


def megabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
