"""What approximate schedules cost and save: test metric, bytes an epoch, and drift, on real graphs.

    python benchmarks/delayed.py ../shared/data/tolokers.npz ../shared/data/coauthor_physics.npz

GraphSAGE with mean aggregation, 3 layers of 64, dropout 0.5, Adam with lr 0.01, on 4 workers; the
weights tested are those of the best validation metric, looked at every 5 epochs. That is ROC-AUC
for graphs of two classes, of which accuracy is shown as well. Features wider than 128 columns are
projected to so many at random, and where there are no splits, 60 % of the nodes are for training
and 20 % for validation. Bytes are the mean over all epochs, the first and exact one included, of
all workers together; what is aggregated once, before training, is not in them. Drift is the
relative error of outputs and gradients against an exact epoch on the same weights, in the last
epoch. Prints a table a graph, and as the last line a JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fullgraph.comm.group import Group
from fullgraph.comm.load import load
from fullgraph.graph.folder import save
from fullgraph.graph.partition import partition
from fullgraph.graph.sources import read
from fullgraph.graph.splits import random_split
from fullgraph.graph.whole import WholeGraph
from fullgraph.nn.convert import convert
from fullgraph.training.fit import evaluate, fit
from fullgraph.training.launch import run_workers
from fullgraph.training.models import ModelOptions, build_model

MODEL = ModelOptions("sage", layers=3, hidden=64, dropout=0.5)
COLUMNS = 128


def prepare(source: str, workers: int, folder: Path) -> None:
    """Partition the graph into a folder."""
    graph = read(source)
    assert isinstance(graph, WholeGraph)
    labels = graph.y
    assert labels is not None
    if graph.x is not None and graph.x.shape[1] > COLUMNS:
        g = torch.Generator().manual_seed(0)
        project = torch.randn(graph.x.shape[1], COLUMNS, generator=g) / COLUMNS**0.5
        graph = dataclasses.replace(graph, x=graph.x @ project)
    if not graph.masks:
        graph = dataclasses.replace(graph, masks=random_split(labels >= 0, 0.6, 0.2, seed=0))
    save(partition(graph, workers), folder)


def work(
    group: Group, folder: str, out: str, schedules: list[str], epochs: int, seeds: int
) -> None:
    """On every worker: train with each schedule and seed; rank 0 writes what came out."""
    whole = load(folder, group=group)
    metric = "roc_auc" if whole.num_classes == 2 else "accuracy"
    build = [MODEL, whole.num_features, whole.num_classes]
    torch.manual_seed(0)
    evaluate(convert(build_model(*build)), whole, metric)  # aggregates the features, once for all
    rows = []
    for schedule in schedules:
        for seed in range(seeds):
            torch.manual_seed(seed)
            model, graph = build_model(*build), whole.with_schedule(schedule)
            result = fit(
                model, graph, epochs=epochs, seed=seed, metric=metric, eval_every=5,
                check_drift=epochs,
            )  # fmt: skip
            sent = torch.tensor([float(sum(epoch.own_bytes_sent for epoch in result.epochs))])
            assert result.tested is not None
            rows.append({
                "graph": whole.meta.name, "schedule": schedule, "seed": seed, "metric": metric,
                "test": result.tested.metrics["test"],
                "accuracy": evaluate(model, whole, "accuracy")["test"],
                "bytes": group.all_reduce(sent, "bytes sent").item() / epochs,
                "seconds": result.epoch_seconds, **result.epochs[-1].drift,
            })  # fmt: skip
    if group.rank == 0:
        Path(out).write_text(json.dumps(rows), encoding="utf-8")


def measure(source: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row a schedule: means over the seeds, and how it compares with the first schedule."""
    with tempfile.TemporaryDirectory(prefix="fullgraph-bench-") as parent:
        graph, out = Path(parent, "graph"), Path(parent, "rows.json")
        prepare(source, args.workers, graph)
        arguments = {"folder": str(graph), "out": str(out), "schedules": args.schedules,
                     "epochs": args.epochs, "seeds": args.seeds}  # fmt: skip
        run_workers("delayed:work", arguments, args.workers, 1, 300.0)
        runs = json.loads(out.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    for schedule in args.schedules:
        of_schedule = [run for run in runs if run["schedule"] == schedule]
        row = dict(of_schedule[0])
        for key in ("test", "accuracy", "bytes", "seconds", "outputs", "gradients"):
            row[key] = statistics.mean(run[key] for run in of_schedule)
        exact = rows[0] if rows else row
        row["points"] = 100 * (row["test"] - exact["test"])
        row["accuracy_points"] = 100 * (row["accuracy"] - exact["accuracy"])
        row["share"] = row["bytes"] / exact["bytes"]
        rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    metric = rows[0]["metric"].replace("roc_auc", "ROC-AUC")
    headings = ["schedule", f"test {metric}", "points"]
    headings += ["accuracy", "points"] if metric == "ROC-AUC" else []
    headings += ["MB an epoch", "of exact", "drift: outputs", "gradients"]
    table = Table(*headings, title=rows[0]["graph"])
    for row in rows:
        values = [row["schedule"], f"{row['test']:.4f}", f"{row['points']:+.2f}"]
        if metric == "ROC-AUC":
            values += [f"{row['accuracy']:.4f}", f"{row['accuracy_points']:+.2f}"]
        values += [f"{row['bytes'] / 1e6:.2f}", f"{row['share']:.3f}"]
        table.add_row(*values, f"{row['outputs']:.1e}", f"{row['gradients']:.1e}")
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--schedules", default="oneshot,delayed:1,delayed:5,local",
                        help="the first is what the others are compared with")  # fmt: skip
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    args.schedules = args.schedules.split(",")
    # Workers find this module by its name.
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    results = []
    for source in args.graphs:
        results.append(measure(source, args))
        print_table(results[-1])
    print(json.dumps({"benchmark": "delayed", "epochs": args.epochs, "seeds": args.seeds,
                      "results": results}))  # fmt: skip


if __name__ == "__main__":
    main()
