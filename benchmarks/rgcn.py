"""Accuracy of R-GCN on AIFB in the setting of its paper (arXiv 1703.06103), on 1, 2 and 4 workers.

    python benchmarks/rgcn.py ../shared/data/aifb.npz

2 layers of PyG's RGCNConv, 16 hidden, nodes without features (a row of weights for each), no bases,
no weight decay, Adam with lr 0.01, 50 epochs; the weights of the last epoch are tested, as there is
no validation set. With --bases=30 --weight-decay=5e-4, it is the setting of PyG's own example.
Prints each seed's test accuracy and the largest difference of its loss curve from that on the first
number of workers, and as the last line a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fullgraph
from fullgraph.graph.folder import save
from fullgraph.graph.partition import partition
from fullgraph.graph.sources import read
from fullgraph.training.launch import run_workers

EPOCHS, HIDDEN, REQUIRED = 50, 16, 0.94


class RGCN(nn.Module):
    def __init__(self, nodes: int, classes: int, relations: int, bases: int | None) -> None:
        super().__init__()
        self.conv1 = pyg.RGCNConv(nodes, HIDDEN, relations, num_bases=bases)
        self.conv2 = pyg.RGCNConv(HIDDEN, classes, relations, num_bases=bases)

    def forward(self, edge_index: Any, edge_type: Tensor) -> Tensor:
        x = F.relu(self.conv1(None, edge_index, edge_type))
        return self.conv2(x, edge_index, edge_type)


def train(
    group: fullgraph.Group, graph: str, out: str, seeds: int, bases: int | None, decay: float
) -> None:
    """Train once a seed, on every rank; rank 0 writes losses, accuracies and seconds to `out`."""
    data = fullgraph.load(graph, group=group)
    edge_type, results = data.edge_type, []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = RGCN(data.num_nodes, data.num_classes, data.num_relations, bases)
        fullgraph.convert(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=decay)
        losses, start = [], time.perf_counter()
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            logits = model(data, edge_type)
            loss = fullgraph.cross_entropy(logits, data.y, data.train_mask, group=group)
            loss.backward()
            fullgraph.sum_gradients(model, group)
            optimizer.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        with torch.no_grad():
            logits = model.eval()(data, edge_type)
        tested = fullgraph.accuracy(logits, data.y, data.test_mask, group=group)
        results.append({"losses": losses, "test": float(tested), "seconds": seconds})
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Train on each number of workers; the table of it is printed."""
    found: list[list[dict[str, Any]]] = []
    whole = read(options.graph)
    with tempfile.TemporaryDirectory() as folder:
        for count in options.workers:
            parts, out = Path(folder, f"parts{count}"), Path(folder, f"{count}.json")
            save(partition(whole, count), parts)
            arguments = {
                "graph": str(parts), "out": str(out), "seeds": options.seeds,
                "bases": options.bases, "decay": options.weight_decay,
            }  # fmt: skip
            run_workers("rgcn:train", arguments, count, threads=1, timeout=300)
            found.append(json.loads(out.read_text()))
    on = [f"{count} worker{'s' * (count > 1)}" for count in options.workers]
    table = Table("seed", *on, "largest difference of losses", title="test accuracy")
    largest = []
    for seed, results in enumerate(zip(*found)):
        first, *others = (torch.tensor(result["losses"]) for result in results)
        differences = [float((curve - first).abs().max()) for curve in others]
        largest.append(max(differences, default=0.0))
        table.add_row(str(seed), *(f"{r['test']:.4f}" for r in results), f"{largest[-1]:.1e}")
    means = [statistics.mean(result["test"] for result in results) for results in found]
    table.add_section()
    table.add_row("mean", *(f"{mean:.4f}" for mean in means), f"{max(largest):.1e}")
    Console().print(table)
    return {
        "graph": Path(options.graph).stem,
        "bases": options.bases,
        "weight_decay": options.weight_decay,
        "seeds": options.seeds,
        "workers": options.workers,
        "test": dict(zip(map(str, options.workers), means)),
        "same_accuracy": all(len({r["test"] for r in results}) == 1 for results in zip(*found)),
        "largest_difference": max(largest),
        "epoch_seconds": [
            statistics.median(result["seconds"] for result in results) / EPOCHS
            for results in found
        ],
        "required": REQUIRED,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", nargs="?", default="../shared/data/aifb.npz")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--bases", type=int)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    # For workers to find this module.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    print(json.dumps(compare(parser.parse_args())))


if __name__ == "__main__":
    main()
