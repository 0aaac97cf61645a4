"""A step on the whole graph against one on the layers that `graph.for_seeds` makes, few labels.

GraphSAGE by hand (mean; forward, loss, backward, Adam) on 1 % of the nodes, each system in
processes of its own. "kept": the features never change, so what the first layer aggregates is kept
from step to step, as in training. "learned": they have a gradient, so every step does it all.
Seconds: median over steps, on the clock and, which other programs disturb less, of the processor
(of the worker with the most). Memory: high-water mark of the resident set during the steps (and the
making of the layers) minus what was resident before, of the worker with the most. Then both in
float64, and how far apart loss and gradients are. The last line is a JSON object.

    python benchmarks/seeds.py
    python benchmarks/seeds.py --workers 1 --layers 3 --graph planted:nodes=200000,edges=4000000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from workers import run_workers

GRAPH = "planted:nodes=200000,edges=4000000,train=0.01"
TOLERANCE = 1e-10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default=GRAPH)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--steps", type=int, default=5, help="measured, after one to warm up")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="shared by workers")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        work(args)
        return
    workers = [int(w) for w in args.workers.split(",")]
    with tempfile.TemporaryDirectory(prefix="fullgraph-bench-") as folder:
        args.folder = folder
        prepare(args.graph, workers, folder)
        results = {
            f"{what}:{features}:{size}": run(f"{what}:{features}:{size}", size, args)
            for size in workers
            for features in ("kept", "learned")
            for what in ("whole", "seeds")
        }
        compared = {size: run(f"compare:learned:{size}", size, args) for size in workers}
    report(results, compared)


def prepare(source: str, workers: list[int], folder: str) -> None:
    """The graph once, partitioned for each number of workers."""
    from fullgraph.graph.folder import save
    from fullgraph.graph.partition import partition
    from fullgraph.graph.sources import read

    whole = read(source)
    print(f"{source}: {whole.num_nodes:,} nodes, {whole.num_edges:,} directed edges", flush=True)
    for size in workers:
        save(partition(whole, size), Path(folder) / f"parts-{size}")


def run(system: str, size: int, args: argparse.Namespace) -> dict[str, Any]:
    """The workers of one system; for every figure, the largest that any of them gave."""
    arguments = [__file__, "--one", system]
    for name in ("folder", "steps", "layers", "hidden", "threads"):
        arguments += [f"--{name}", str(getattr(args, name))]
    answers = run_workers(arguments, size, args.threads // size)
    if answers is None:
        raise SystemExit(f"{system} failed")
    result = {key: max(answer[key] for answer in answers) for key in answers[0]}
    print(f"  {system}: {result}", flush=True)
    return result


def work(args: argparse.Namespace) -> None:
    """In a worker: run one system, and print what was measured as the last line."""
    import torch

    import fullgraph
    from fullgraph.training.memory import PeakMemory

    what, features, size = args.one.split(":")
    torch.set_num_threads(max(1, args.threads // int(size)))
    graph = fullgraph.load(f"{args.folder}/parts-{size}", group=fullgraph.init())
    if what == "compare":
        print(json.dumps(compare(graph, args)))
        return
    memory = PeakMemory()
    start = time.perf_counter()
    layers = graph.for_seeds(graph.train_mask, args.layers) if what == "seeds" else None
    prepared = time.perf_counter() - start
    parameters = make_parameters(graph, args, torch.float32)
    x = graph.x if layers is None else layers.x
    if features == "learned":
        x = x.clone().requires_grad_()
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    seconds, processor, loss = [], [], 0.0
    for _ in range(args.steps + 1):
        start, start_processor = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        x.grad = None
        loss = step(graph, layers, x, parameters)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    rows = [graph.num_nodes] * (args.layers + 1) if layers is None else layers.total_rows
    print(json.dumps({
        "seconds": statistics.median(seconds[1:]),
        "processor_seconds": statistics.median(processor[1:]), "memory_mb": memory.bytes() / 1e6,
        "making_layers_seconds": prepared, "loss": loss, "rows": rows,
    }))  # fmt: skip


def make_parameters(graph: Any, args: argparse.Namespace, dtype: Any) -> list[Any]:
    """Two matrices a layer: of the row itself, and of its neighbours' mean."""
    import torch

    g = torch.Generator().manual_seed(0)
    widths = [graph.num_features, *[args.hidden] * (args.layers - 1), graph.num_classes]
    return [
        (torch.randn(a, b, generator=g, dtype=torch.float64) / a**0.5).to(dtype).requires_grad_()
        for a, b in pairwise(widths)
        for _ in range(2)
    ]


def step(graph: Any, layers: Any, x: Any, parameters: list[Any]) -> float:
    """Forward, loss and backward of the seeds; gradients are summed over the workers."""
    import fullgraph

    h, count = x, len(parameters) // 2
    for k in range(count):
        g = graph if layers is None else layers[k]
        root, other = parameters[2 * k : 2 * k + 2]
        h = h.relu() if k else h
        narrows = other.shape[1] < other.shape[0]
        mean = fullgraph.aggregate(g, h @ other if narrows else h, "mean")
        target = h if g.target_rows is None else h[g.target_rows]
        h = target @ root + (mean if narrows else mean @ other)
    y, mask = (graph.y, graph.train_mask) if layers is None else (layers.y, None)
    loss = fullgraph.cross_entropy(h, y, mask)
    loss.backward()
    fullgraph.sum_gradients(parameters)
    return loss.item()


def compare(graph: Any, args: argparse.Namespace) -> dict[str, float]:
    """float64: the difference in loss, and of gradients relative to the largest of each tensor."""
    import torch

    layers = graph.for_seeds(graph.train_mask, args.layers)
    found = []
    for taken in (None, layers):
        parameters = make_parameters(graph, args, torch.float64)
        x = graph.x.double().requires_grad_()
        loss = step(graph, taken, x if taken is None else x[layers.rows], parameters)
        found.append((loss, [p.grad for p in (x, *parameters)]))
    (whole, grads), (ours, our_grads) = found

    def apart() -> Iterator[float]:
        for reference, value in zip(grads, our_grads):
            yield float((reference - value).abs().max() / reference.abs().max())

    return {"loss_difference": abs(whole - ours) / whole, "gradient_difference": max(apart())}


def report(results: dict[str, dict[str, Any]], compared: dict[int, dict[str, float]]) -> None:
    heads = f"{'s/step':>9}{'CPU s':>9}{'MB':>8}{'× CPU':>9}{'× memory':>10}"
    print(f"\n{'system':<20}{heads}  rows by layer")
    for system, r in results.items():
        base = results[system.replace("seeds", "whole")]
        ratio, memory = (r[key] / base[key] for key in ("processor_seconds", "memory_mb"))
        rows = " → ".join(f"{n:,}" for n in r["rows"])
        print(
            f"{system:<20}{r['seconds']:>9.3f}{r['processor_seconds']:>9.3f}{r['memory_mb']:>8.0f}"
            f"{ratio:>9.2f}{memory:>10.2f}  {rows}"
        )
    for size, differences in compared.items():
        print(f"float64, {size} worker(s): {differences}")
    print(json.dumps({"benchmark": "seeds", "results": results, "float64": compared}))
    if any(value > TOLERANCE for found in compared.values() for value in found.values()):
        raise SystemExit(f"a difference is above {TOLERANCE}")


if __name__ == "__main__":
    main()
