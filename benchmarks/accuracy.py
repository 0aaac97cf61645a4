"""Accuracy on Cora and CiteSeer in the setting of the GCN paper (arXiv 1609.02907), and the same
loss curve on 1, 2 and 4 workers.

    python benchmarks/accuracy.py ../shared/data/cora.npz ../shared/data/citeseer.npz

2 layers, 16 hidden, dropout 0.5 on the features and before the second layer, weight decay 5e-4 on
the first layer, Adam with lr 0.01, 200 epochs, features normalised by row. The weights tested are
those of the best validation accuracy (the earliest of equals); the last epoch's are shown too.
Prints a table a graph, and as the last line a JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import fullgraph
from fullgraph.training.fit import fit, normalize_features
from fullgraph.training.models import ModelOptions, build_model
from fullgraph.training.options import FitOptions

MODEL = ModelOptions("gcn", layers=2, hidden=16, dropout=0.5, input_dropout=0.5)
TRAINING = FitOptions(epochs=200, lr=0.01, weight_decay=5e-4, weight_decay_on="first")
REQUIRED = {"cora": 0.810, "citeseer": 0.695}
COMMAND = [
    "--model=gcn", "--layers=2", "--hidden=16", "--dropout=0.5", "--input-dropout=0.5",
    "--weight-decay=5e-4", "--weight-decay-on=first", "--lr=0.01", "--epochs=200",
    "--normalize-features", "--seed=0", "--threads=1",
]  # fmt: skip


def run_seeds(source: str, seeds: int) -> dict[str, object]:
    """Train once a seed on one worker; the table of it is printed."""
    graph = fullgraph.load(source)
    assert graph.x is not None
    graph.x = normalize_features(graph.x)
    name = Path(source.partition(":")[2] or source).stem.lower()
    table = Table("seed", "test, best validation", "at epoch", "test, last epoch", title=name)
    best, last = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = build_model(MODEL, graph.num_features, graph.num_classes)
        result = fit(model, graph, TRAINING, seed=seed)
        assert result.tested is not None
        best.append(result.tested.metrics["test"])
        last.append(result.epochs[-1].metrics["test"])
        table.add_row(str(seed), f"{best[-1]:.4f}", str(result.tested.epoch), f"{last[-1]:.4f}")
    table.add_section()
    table.add_row("mean", f"{statistics.mean(best):.4f}", "", f"{statistics.mean(last):.4f}")
    table.add_row("stdev", f"{_spread(best):.4f}", "", f"{_spread(last):.4f}")
    Console().print(table)
    return {
        "graph": name,
        "seeds": seeds,
        "test_best_validation": statistics.mean(best),
        "test_last_epoch": statistics.mean(last),
        "required": REQUIRED.get(name),
    }


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def compare_curves(source: str, workers: tuple[int, ...] = (1, 2, 4)) -> dict[str, object]:
    """The largest difference between loss curves of the same seed on other numbers of workers."""
    curves = []
    with tempfile.TemporaryDirectory() as folder:
        for count in workers:
            out = Path(folder, str(count))
            command = [sys.executable, "-m", "fullgraph.cli", "train", source, *COMMAND]
            command += ["--workers", str(count), "--out", str(out)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            lines = (out / "metrics.jsonl").read_text().splitlines()
            curves.append(torch.tensor([json.loads(line)["loss"] for line in lines]))
    largest = max(float((curve - curves[0]).abs().max()) for curve in curves)
    print(f"{source}: loss curves on {workers} workers differ by at most {largest:.2e}")
    return {"workers": workers, "epochs": curves[0].numel(), "largest_difference": largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", default=["pyg:Cora", "pyg:CiteSeer"])
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)  # for graphs this small, more are slower
    results = [run_seeds(source, options.seeds) for source in options.graphs]
    curves = compare_curves(options.graphs[0])
    print(json.dumps({"accuracy": results, "loss_curves": curves}))


if __name__ == "__main__":
    main()
