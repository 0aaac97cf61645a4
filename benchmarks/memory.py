"""Peak training memory a worker against the number of workers: a table and a picture.

Memory is the high-water mark of the resident set during training minus what was resident before
the first epoch, of the worker with the most; see epoch.py, which does the measuring. The ideal is
one worker's memory divided by the number of workers.

    python benchmarks/memory.py --out memory.png
    python benchmarks/memory.py --graph planted:nodes=200000,edges=4000000,mix=1.0
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from epoch import GRAPH, prepare, run_system
from matplotlib.figure import Figure

Memory = dict[str, dict[int, float]]  # MB by schedule and number of workers


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default=GRAPH)
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--schedules", default="sequential,oneshot")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--model", choices=("sage", "gat"), default="sage")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--out", default="memory.png", help="the picture")
    args = parser.parse_args()
    args.threads = os.cpu_count()
    workers, schedules = [int(w) for w in args.workers.split(",")], args.schedules.split(",")
    args.systems = ",".join(f"full:{w}:{s}" for s in schedules for w in workers)
    with tempfile.TemporaryDirectory(prefix="fullgraph-bench-") as folder:
        args.folder = folder
        prepare(args)
        results = {system: run_system(system, args) for system in args.systems.split(",")}
    memory = {s: {w: results[f"full:{w}:{s}"]["memory_mb"] for w in workers} for s in schedules}
    print_table(memory)
    draw(memory, args)
    print(f"picture: {args.out}")
    print(json.dumps({"benchmark": "memory", "graph": args.graph, "results": results}))


def print_table(memory: Memory) -> None:
    print(f"\n{'schedule':<14}{'workers':>8}{'MB a worker':>13}{'× ideal':>9}")
    for schedule, by_workers in memory.items():
        for workers, megabytes in by_workers.items():
            ratio = megabytes / ideal(by_workers, workers)
            print(f"{schedule:<14}{workers:>8}{megabytes:>13.0f}{ratio:>9.2f}")


def ideal(by_workers: dict[int, float], workers: int) -> float:
    """The memory of the fewest workers, shared out."""
    fewest = min(by_workers)
    return by_workers[fewest] * fewest / workers


def draw(memory: Memory, args: Namespace) -> None:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for schedule, by_workers in memory.items():
        axes.plot([*by_workers], [*by_workers.values()], marker="o", label=schedule)
    first = next(iter(memory.values()))
    axes.plot([*first], [ideal(first, w) for w in first], "k--", lw=1, label="ideal: 1 / workers")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks([*first], [str(w) for w in first])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("workers")
    axes.set_ylabel("peak training memory a worker (MB)")
    axes.set_title(f"{args.model} {args.layers} × {args.hidden}\n{args.graph}", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=150)


if __name__ == "__main__":
    main()
