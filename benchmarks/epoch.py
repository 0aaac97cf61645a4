"""Seconds and memory of an epoch: fullgraph on one or more workers against PyG in one process.

Each system trains the same GraphSAGE or GAT (forward, loss, backward, Adam) on the same graph in
processes of its own, one system after the other, and all of them again in every round: a machine is
slower for some seconds, or a process for as long as it lives. Seconds: median over epochs, and of
these over rounds. Memory: high-water mark of the resident set during training minus what was
resident before the first epoch, of the worker with the most, in the round with the most.

    python benchmarks/epoch.py
    python benchmarks/epoch.py --systems full:1:sequential,pyg-csr --epochs 10
    python benchmarks/epoch.py --model gat --systems full:1:sequential,pyg-edge-index
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

from workers import run_workers

GRAPH = "planted:nodes=200000,edges=4000000,classes=47,features=100"
SYSTEMS = "full:1:sequential,full:2:sequential,full:2:oneshot,pyg-csr,pyg-edge-index"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default=GRAPH)
    parser.add_argument("--systems", default=SYSTEMS, help="full:WORKERS:SCHEDULE or pyg-...")
    parser.add_argument("--epochs", type=int, default=5, help="measured, after one to warm up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--model", choices=("sage", "gat"), default="sage")
    parser.add_argument("--heads", type=int, default=4, help="of gat, which share --hidden")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="shared by workers")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        train_one(args)
        return
    with tempfile.TemporaryDirectory(prefix="fullgraph-bench-") as folder:
        args.folder = folder
        prepare(args)
        systems = args.systems.split(",")
        rounds = [{system: run_system(system, args) for system in systems}
                  for _ in range(args.rounds)]  # fmt: skip
    report({system: median_of([results[system] for results in rounds]) for system in systems})


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "seconds": statistics.median(r["seconds"] for r in rounds),
        "memory_mb": max(r["memory_mb"] for r in rounds),
        "loss": rounds[0]["loss"],
        "seconds_of_rounds": [r["seconds"] for r in rounds],
    }


def prepare(args: argparse.Namespace) -> None:
    """The graph as it came, for PyG, and in parts, whose nodes come in clusters."""
    from fullgraph.graph.folder import save
    from fullgraph.graph.partition import partition
    from fullgraph.graph.sources import read

    whole = read(args.graph)
    print(f"{args.graph}: {whole.num_edges:,} directed edges", flush=True)
    save(partition(whole, 1), Path(args.folder) / "as-it-came")
    workers = {int(s.split(":")[1]) for s in args.systems.split(",") if s.startswith("full:")}
    for parts in workers:
        save(partition(whole, parts, order="clusters"), Path(args.folder) / f"parts-{parts}")


def run_system(system: str, args: argparse.Namespace) -> dict[str, Any]:
    size = int(system.split(":")[1]) if system.startswith("full:") else 1
    arguments = [__file__, "--one", system]
    for name in ("folder", "epochs", "layers", "hidden", "dropout", "model", "heads", "threads"):
        arguments += [f"--{name}", str(getattr(args, name))]
    # Torch's own default for PyG, which fullgraph changes.
    pages = {} if system.startswith("full:") else {"THP_MEM_ALLOC_ENABLE": "0"}
    answers = run_workers(arguments, size, args.threads // size, **pages)
    if answers is None:
        raise SystemExit(f"{system} failed")
    result = {
        "seconds": max(a["seconds"] for a in answers),
        "memory_mb": max(a["memory_mb"] for a in answers),
        "loss": answers[0]["loss"],
    }
    print(f"  {system}: {result['seconds']:.2f} s, {result['memory_mb']:.0f} MB", flush=True)
    return result


def train_one(args: argparse.Namespace) -> None:
    """In a worker: train, and print what was measured as the last line."""
    import torch

    from fullgraph.training.memory import PeakMemory

    size = int(args.one.split(":")[1]) if args.one.startswith("full:") else 1
    torch.set_num_threads(max(1, args.threads // size))
    step = full_step(args) if size and args.one.startswith("full:") else pyg_step(args)
    memory = PeakMemory()  # data, features read from disk among them, is resident by now
    seconds, loss = [], float("nan")
    for _ in range(args.epochs + 1):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({
        "seconds": statistics.median(seconds[1:]), "loss": loss,
        "memory_mb": memory.bytes() / 1e6,
    }))  # fmt: skip


def make_model(args: argparse.Namespace, features: int, classes: int) -> Any:
    import torch
    from torch_geometric.nn import GATConv, GraphSAGE, Sequential

    torch.manual_seed(0)
    if args.model == "gat":  # one head at the end, as in the paper
        widths = [features, *[args.hidden] * (args.layers - 1)]
        steps: list[Any] = []
        for width in widths[:-1]:
            conv = GATConv(width, args.hidden // args.heads, args.heads, dropout=args.dropout)
            steps += [(conv, "x, edge_index -> x"), torch.nn.ReLU()]
        last = GATConv(widths[-1], classes, dropout=args.dropout)
        return Sequential("x, edge_index", [*steps, (last, "x, edge_index -> x")])
    return GraphSAGE(features, args.hidden, args.layers, classes, dropout=args.dropout)


def full_step(args: argparse.Namespace) -> Any:
    import fullgraph

    _, size, schedule = args.one.split(":", 2)
    group = fullgraph.init()
    graph = fullgraph.load(
        f"{args.folder}/parts-{size}", group=group, schedule=schedule
    )  # fmt: skip
    return step_on(graph, args)


def step_on(graph: Any, args: argparse.Namespace) -> Any:
    """A training step on a distributed graph, which returns the loss."""
    import torch

    import fullgraph

    touch(graph)
    model = fullgraph.convert(make_model(args, graph.num_features, graph.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> float:
        optimizer.zero_grad()
        loss = fullgraph.cross_entropy(model(graph.x, graph), graph.y, graph.train_mask)
        loss.backward()
        fullgraph.sum_gradients(model)
        optimizer.step()
        return loss.item()

    return step


def pyg_step(args: argparse.Namespace) -> Any:
    import torch
    import torch.nn.functional as F

    from fullgraph.graph.folder import PartitionedFolder

    folder = PartitionedFolder.open(f"{args.folder}/as-it-came")
    part = folder.part(0)
    edges = torch.stack([part.src, part.dst]).long()
    edges = edges[:, part.edge_id.argsort()]  # in the order in which they came
    if args.one == "pyg-csr":
        from torch_geometric.utils import to_torch_csr_tensor

        edges = to_torch_csr_tensor(edges.flip(0), size=(part.num_nodes, part.num_nodes))
    model = make_model(args, folder.meta.num_features, folder.meta.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train = part.masks["train"]
    touch(part)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(part.x, edges)[train], part.y[train])
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def touch(data: Any) -> None:
    """Read what is mapped from disk, so that it counts as held before the first epoch."""
    for values in (data.x, data.y, *data.masks.values()):
        values.sum()


def report(results: dict[str, dict[str, Any]]) -> None:
    base = next(iter(results))
    print(f"\n{'system':<24}{'s/epoch':>10}{'MB':>10}{'× time of ' + base:>32}{'loss':>12}")
    for system, r in results.items():
        ratio = r["seconds"] / results[base]["seconds"]
        print(
            f"{system:<24}{r['seconds']:>10.2f}{r['memory_mb']:>10.0f}{ratio:>32.2f}{r['loss']:>12.5f}"
        )
    print(json.dumps({"benchmark": "epoch", "results": results}))


if __name__ == "__main__":
    main()
