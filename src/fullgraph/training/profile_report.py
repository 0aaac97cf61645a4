"""What a profile says: a bar and a table for every rank, and the bars of all as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fullgraph.graph.replace import replacing

SUMMARY, PICTURE = "summary.json", "profile.png"
COLORS = {
    "sparse sums": "#1f77b4", "attention": "#17becf", "dense products": "#2ca02c",
    "elementwise": "#bcbd22", "dropout": "#9467bd", "other": "#8c564b", "allocation": "#e377c2",
    "exchange": "#ff7f0e", "waiting": "#d62728", "rest": "#7f7f7f",
    "profiling": "#d9d9d9",
}  # fmt: skip
BAR = 72  # characters
SMALL = 0.005  # of an epoch: what takes less is put together


def say(summary: dict[str, Any]) -> None:
    """Print it: of each rank a bar, by sort of work, and a table, by kernel."""
    from rich.console import Console

    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, 100))
    for rank in summary["ranks"]:
        console.print(_headline(rank), _bar(rank), _table(rank))


def read(folder: Path) -> dict[str, Any] | None:
    """The summary that is in a folder, if there is one."""
    path = folder / SUMMARY
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _headline(rank: dict[str, Any]) -> str:
    machine, before = rank["machine"], rank["unprofiled_seconds"]
    without = "" if before is None else f", {before:.3g} s just before it was"
    return (
        f"\nrank {rank['rank']}: {rank['seconds']:.3g} s an epoch while profiled{without}; "
        f"{rank['threads']} thread(s)\n"
        f"the machine gives {machine['gather'] / 1e9:.1f} GB/s of random rows, "
        f"{machine['stream'] / 1e9:.1f} GB/s of a copy, {machine['flops'] / 1e9:.0f} GFLOP/s\n"
        f"allocated {rank['allocated_bytes'] / 1e9:.2f} GB an epoch, "
        f"{rank['page_faults']:,.0f} page faults, {rank['cpu_seconds']:.3g} CPU-seconds, "
        f"{rank['system_seconds']:.2g} of them in the system"
    )


def _shares(rank: dict[str, Any]) -> list[tuple[str, float]]:
    """Sorts of work that there are, in the order of COLORS, with their seconds."""
    seconds = rank["families"]
    return [(name, seconds[name]) for name in COLORS if seconds.get(name, 0) > 0]


def _bar(rank: dict[str, Any]) -> Any:
    from rich.text import Text

    bar, legend = Text(), Text()
    for name, seconds in _shares(rank):
        bar.append("█" * round(BAR * seconds / rank["seconds"]), style=COLORS[name])
        legend.append("█ ", style=COLORS[name])
        legend.append(f"{name} {seconds / rank['seconds']:.0%}  ")
    return bar + "\n" + legend


def _table(rank: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("an epoch", no_wrap=True, max_width=40)
    for name in (
        "calls",
        "seconds",
        "%",
        "CPU s",
        "GB",
        "GB/s",
        "GFLOP",
        "GFLOP/s",
        "of machine",
        "faults",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    whole = rank["seconds"]
    small = [row for row in rank["kernels"] if row["seconds"] < SMALL * whole]
    rows = [row for row in rank["kernels"] if row not in small]
    for row in rows:
        table.add_row(*_cells(row, whole))
    if small:
        sums = {
            key: sum(row[key] for row in small)
            for key in (
                "calls",
                "seconds",
                "cpu_seconds",
                "bytes",
                "flops",
                "least_seconds",
                "page_faults",
            )
        }
        table.add_row(*_cells({"name": f"{len(small)} more, small", **sums}, whole))
    for key, name in (("rest", "rest: Python, autograd, freeing"), ("profiling", "profiling")):
        seconds = rank["families"][key]
        table.add_row(name, "", f"{seconds:.4f}", f"{seconds / whole:.1%}")
    return table


def _cells(row: dict[str, Any], whole: float) -> list[str]:
    seconds = row["seconds"] or 1e-9
    moves, works = row["bytes"] > 0, row["flops"] > 0
    return [
        row["name"],
        f"{row['calls']:.0f}",
        f"{row['seconds']:.4f}",
        f"{row['seconds'] / whole:.1%}",
        f"{row['cpu_seconds']:.3f}",
        f"{row['bytes'] / 1e9:.3f}" if moves else "",
        f"{row['bytes'] / seconds / 1e9:.1f}" if moves else "",
        f"{row['flops'] / 1e9:.2f}" if works else "",
        f"{row['flops'] / seconds / 1e9:.1f}" if works else "",
        f"{row['least_seconds'] / seconds:.0%}" if moves or works else "",
        f"{row['page_faults']:.0f}" if row["page_faults"] else "",
    ]


def draw(path: Path, summary: dict[str, Any]) -> None:
    """Write a PNG, whole or not at all: a bar a rank, of seconds by sort of work."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranks = summary["ranks"]
    figure = Figure(figsize=(8, 1.6 + 0.4 * len(ranks)), layout="constrained", dpi=150)
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, color in COLORS.items():
        seconds = [max(0.0, rank["families"].get(name, 0.0)) for rank in ranks]
        if any(seconds):
            left = [sum(s for n, s in _before(rank, name)) for rank in ranks]
            axes.barh(range(len(ranks)), seconds, left=left, color=color, label=name)
    axes.set_yticks(range(len(ranks)), [f"rank {rank['rank']}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("seconds of an epoch")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    with replacing(path) as file:
        canvas.print_png(file)


def _before(rank: dict[str, Any], name: str) -> list[tuple[str, float]]:
    order = list(COLORS)
    return [(n, s) for n, s in _shares(rank) if order.index(n) < order.index(name)]
