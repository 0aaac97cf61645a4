"""The picture of a run: loss, metrics and, where it was looked at, drift against epochs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullgraph.graph.replace import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"train": "#7a7a7a", "val": "#1f77b4", "test": "#d95f02"}
DRIFT = {"outputs": "#1b9e77", "gradients": "#7570b3"}
NAMES = {"train": "training", "val": "validation", "test": "test"}


def draw_curves(
    path: Path, lines: list[dict[str, Any]], metric: str, title: str, tested: int | None
) -> None:
    """Write a PNG, whole or not at all.

    Args:
        lines: as in metrics.jsonl.
        metric: its name, for the axis.
        tested: the epoch whose weights were tested, marked; None for none.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    draws = [_draw_loss, lambda axes, lines: _draw_metrics(axes, lines, metric)]
    draws += [_draw_drift] if any("drift" in line for line in lines) else []
    figure = Figure(figsize=(4.5 * len(draws), 3.6), layout="constrained", dpi=150)
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    for axes, draw in zip(figure.subplots(1, len(draws)), draws):
        draw(axes, lines)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if tested is not None:
            axes.axvline(tested, color="black", linewidth=0.8, linestyle=":")
    # Into memory first: the picture's own library does not say why a disk refused it.
    picture = io.BytesIO()
    canvas.print_png(picture)
    with replacing(path, picture.tell()) as file:
        file.write_bytes(picture.getbuffer())


def _draw_loss(axes: Axes, lines: list[dict[str, Any]]) -> None:
    points = [(line["epoch"], line["loss"]) for line in lines if line["loss"] is not None]
    if points:
        axes.plot(*zip(*points), color=COLORS["train"], linewidth=1.2)
    axes.set_ylabel("training loss")


def _draw_metrics(axes: Axes, lines: list[dict[str, Any]], metric: str) -> None:
    for split, color in COLORS.items():
        points = [(line["epoch"], line[split]) for line in lines if line.get(split) is not None]
        if points:
            label = f"{NAMES[split]}: last {points[-1][1]:.3f}"
            axes.plot(*zip(*points), color=color, linewidth=1.2, label=label)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    axes.set_ylabel(metric.replace("_", " "))


def _draw_drift(axes: Axes, lines: list[dict[str, Any]]) -> None:
    drifts = [(line["epoch"], line["drift"]) for line in lines if "drift" in line]
    for name, color in DRIFT.items():
        points = [(epoch, drift[name]) for epoch, drift in drifts if drift.get(name)]
        if points:
            axes.plot(*zip(*points), color=color, linewidth=1.2, marker=".", label=name)
            axes.set_yscale("log")
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    axes.set_ylabel("relative error against exact")
