"""Peak training memory a worker against the number of workers: a table, a picture, and what was
aimed at, on a graph with communities and on one without any locality, where nearly every row of
another worker is needed.

Memory is the high-water mark of the resident set during training minus what was resident before
the first epoch, of the worker with the most; see epoch.py, which does the measuring. So it counts
all that the first epoch and later ones make the process hold: tensors, what is kept from epoch to
epoch, messages, freed memory that has not gone back to the system, libraries loaded on the way. It
does not count the worker's share of the graph, features and plans among it, nor the interpreter
with the libraries that were there before. The ideal is one worker's memory divided by the number
of workers; up to 1.25 times that is aimed at.

    python benchmarks/memory.py --out docs/memory.png
    python benchmarks/memory.py --models sage --graphs planted:nodes=100000,edges=1000000
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from epoch import GRAPH, prepare, run_system
from matplotlib.figure import Figure

WITHIN = 1.25  # times the ideal
ONE_WORKER_MB = {"sage": 650, "gat": 1200}  # on GRAPH
Memory = dict[str, dict[int, float]]  # MB by schedule and number of workers


class Panel(NamedTuple):
    graph: str
    model: str
    memory: Memory


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=[GRAPH, GRAPH + ",mix=1.0"])
    parser.add_argument("--models", nargs="+", default=["sage", "gat"], choices=("sage", "gat"))
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--schedules", default="sequential")
    parser.add_argument("--epochs", type=int, default=1, help="after one to warm up")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--out", default="memory.png", help="the picture")
    args = parser.parse_args()
    args.threads = os.cpu_count()
    workers, schedules = [int(w) for w in args.workers.split(",")], args.schedules.split(",")
    args.systems = ",".join(f"full:{w}:{s}" for s in schedules for w in workers)
    panels = [panel for graph in args.graphs for panel in measure(graph, args, workers, schedules)]
    print_table(panels)
    draw(panels, args)
    print(f"picture: {args.out}")
    aims = [aim for panel in panels for aim in aims_of(panel)]
    for aim in aims:
        print(f"{'holds' if aim['holds'] else 'MISSED':<7}{aim['mb']:>7.0f} of {aim['at_most']:.0f}"
              f" MB: {aim['what']}")  # fmt: skip
    print(json.dumps({
        "benchmark": "memory", "results": [panel._asdict() for panel in panels], "aims": aims,
        "all_hold": all(aim["holds"] for aim in aims),
    }))  # fmt: skip


def measure(
    graph: str, args: Namespace, workers: list[int], schedules: list[str]
) -> Iterator[Panel]:
    with tempfile.TemporaryDirectory(prefix="fullgraph-bench-") as folder:
        args.graph, args.folder = graph, folder
        prepare(args)
        for model in args.models:
            print(model)
            args.model = model
            memory = {
                s: {w: run_system(f"full:{w}:{s}", args)["memory_mb"] for w in workers}
                for s in schedules
            }
            yield Panel(graph, model, memory)


def ideal(by_workers: dict[int, float], workers: int) -> float:
    """The memory of the fewest workers, shared out."""
    fewest = min(by_workers)
    return by_workers[fewest] * fewest / workers


def aims_of(panel: Panel) -> Iterator[dict[str, Any]]:
    """What `sequential` is to keep within."""
    by_workers = panel.memory.get("sequential", {})
    for workers, megabytes in by_workers.items():
        most = WITHIN * ideal(by_workers, workers)
        if workers == min(by_workers):
            if workers != 1 or panel.graph != GRAPH:
                continue
            most = ONE_WORKER_MB[panel.model]
        yield {
            "what": f"{panel.model}, {workers} workers, {panel.graph}",
            "mb": megabytes, "at_most": most, "holds": megabytes <= most,
        }  # fmt: skip


def print_table(panels: list[Panel]) -> None:
    for panel in panels:
        print(f"\n{panel.model}, {panel.graph}")
        print(f"{'schedule':<14}{'workers':>8}{'MB a worker':>13}{'× ideal':>9}")
        for schedule, by_workers in panel.memory.items():
            for workers, megabytes in by_workers.items():
                ratio = megabytes / ideal(by_workers, workers)
                print(f"{schedule:<14}{workers:>8}{megabytes:>13.0f}{ratio:>9.2f}")


def draw(panels: list[Panel], args: Namespace) -> None:
    columns, rows = len(args.models), len(args.graphs)
    figure = Figure(figsize=(5 * columns, 3.6 * rows), layout="constrained")
    axes_of = figure.subplots(rows, columns, sharex=True, squeeze=False).flat
    for panel, axes in zip(panels, axes_of):
        for schedule, by_workers in panel.memory.items():
            axes.plot([*by_workers], [*by_workers.values()], marker="o", label=schedule)
        first = next(iter(panel.memory.values()))
        line = [ideal(first, w) for w in first]
        axes.plot([*first], line, "k--", lw=1, label="ideal: 1 / workers")
        axes.plot([*first], [WITHIN * y for y in line], "k:", lw=1, label=f"{WITHIN} × ideal")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks([*first], [str(w) for w in first])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("workers")
        axes.set_ylabel("peak MB a worker")
        axes.set_title(f"{panel.model} {args.layers} × {args.hidden}\n{panel.graph}", fontsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
