"""The planner's predictions against runs: bytes an epoch, peak memory and seconds of a worker.

Each run trains in processes of its own, one run after the other. Bytes are compared for every
worker and must be equal. Memory is the high-water mark of the resident set from before the graph is
loaded, less what was resident then, of the worker with the most; predicted is what the dry run
holds. Seconds: the median epoch of the slowest worker, of one thread; predicted with rates, and
links, measured just before, and with workers that take turns where they are more than the cores.
On a machine that others use meanwhile, `--clock cpu` compares the seconds of a core that a worker
uses instead.

    python benchmarks/planner.py --out planner.png
    python benchmarks/planner.py --clock cpu
    python benchmarks/planner.py --runs sage:destination:sequential:2,gcn:grid:2x2x1:oneshot:4
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from epoch import touch
from workers import run_workers

GRAPH = "planted:nodes=100000,edges=1300000,features=100,classes=40"
WARM_UP = "planted:nodes=400,edges=2000,features=100,classes=40"
RUNS = (
    "sage:destination:sequential:1,gat:destination:sequential:1,gcn:destination:sequential:2,"
    "gat:destination:oneshot:2,sage:vertex-cut:oneshot:2,sage:destination:oneshot:4,"
    "gcn:grid:2x2x1:oneshot:4,gat:grid:2x2x1:sequential:4,sage:grid:2x1x2:sequential:4,"
    "gcn:vertex-cut:sequential:4,gat:vertex-cut:oneshot:4,sage:destination:sequential:8,"
    "gcn:grid:2x2x2:oneshot:8,gat:destination:sequential:8"
)
ATTEMPTS = 3
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
MEMORY_WITHIN, SECONDS_WITHIN = 1.15, 1.5


class Run(NamedTuple):
    model: str
    placement: str
    schedule: str
    workers: int

    @staticmethod
    def parse(text: str) -> Run:
        """From "sage:grid:2x2x1:oneshot:4"."""
        model, *placement, schedule, workers = text.split(":")
        return Run(model, ":".join(placement), schedule, int(workers))

    def __str__(self) -> str:
        return f"{self.model}:{self.placement}:{self.schedule}:{self.workers}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default=GRAPH)
    parser.add_argument("--runs", default=RUNS, help="MODEL:PLACEMENT:SCHEDULE:WORKERS, ...")
    parser.add_argument("--epochs", type=int, default=5, help="measured, after one to warm up")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=160)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="shared by the workers")
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall")
    parser.add_argument("--out", default="planner.png", help="the picture")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        work(json.loads(args.one))
        return
    with tempfile.TemporaryDirectory(prefix="fullgraph-bench-") as folder:
        results = measure_all([Run.parse(text) for text in args.runs.split(",")], args, folder)
    report(results)
    draw(results, args)
    print(f"picture: {args.out}")
    print(json.dumps({"benchmark": "planner", "graph": args.graph, **summary(results)}))


# ---- Measuring ----------------------------------------------------------------------------------


def measure_all(runs: list[Run], args: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    from fullgraph.comm.placement import Placement
    from fullgraph.graph.folder import save
    from fullgraph.graph.sources import read
    from fullgraph.planner.source import partition_for

    graphs = {"graph": read(args.graph), "warm-up": read(WARM_UP)}
    print(f"{args.graph}: {graphs['graph'].num_edges:,} directed edges", flush=True)
    results = []
    for run in runs:
        paths = {}
        for name, graph in graphs.items():
            placement = Placement.parse(run.placement)
            paths[name] = Path(folder, f"{name}-{placement.kind}-{run.workers}")
            if not paths[name].exists():
                save(partition_for(graph, run.workers, placement), paths[name])
        results.append(compare(run, args, paths))
        print(line(results[-1]), flush=True)
    return results


def compare(run: Run, args: argparse.Namespace, paths: dict[str, Path]) -> dict[str, Any]:
    from fullgraph.comm.placement import Placement
    from fullgraph.graph.folder import PartitionedFolder
    from fullgraph.planner.choose import predict_ranks
    from fullgraph.planner.machine import Machine
    from fullgraph.planner.source import of_partitioned
    from fullgraph.training.models import ModelOptions

    turns = max(1.0, run.workers / args.cores) if args.clock == "wall" else 1.0
    task = {
        "model": run.model, "placement": run.placement, "schedule": run.schedule,
        "clock": args.clock, "epochs": args.epochs, "layers": args.layers, "hidden": args.hidden,
        "dropout": args.dropout, "paths": {name: str(path) for name, path in paths.items()},
    }  # fmt: skip
    rates, network = measure_machine(args.clock, run.workers, args.cores)
    answers = in_workers(task, run.workers)
    source = of_partitioned(PartitionedFolder.open(paths["graph"]), run.workers)
    options = ModelOptions(run.model, args.layers, args.hidden, args.dropout)
    shares = source.shares_of(Placement.parse(run.placement))
    machine = Machine(rates, network, turns=turns)
    predicted = predict_ranks(
        source.figures, shares, options, run.schedule, machine, range(run.workers)
    )
    return {
        "run": str(run),
        "bytes": [answer["bytes"] for answer in answers],
        "predicted_bytes": [dry.sent for dry in predicted],
        "memory": max(answer["memory"] for answer in answers),
        "predicted_memory": max(dry.peak for dry in predicted),
        "seconds": max(answer["seconds"] for answer in answers),
        "predicted_seconds": max(dry.seconds for dry in predicted),
    }


def measure_machine(clock: str, workers: int, cores: int) -> tuple[Any, Any]:
    """Rates of a worker that has a core, and of the links between as many workers."""
    from fullgraph.planner.rates import Stopwatch, measure
    from fullgraph.planner.wire import Network

    of_thread = {"wall": time.perf_counter, "cpu": time.thread_time}[clock]
    rates = measure(Stopwatch(threads=1, others=min(workers, cores) - 1, clock=of_thread))
    links = in_workers({"links": True, "clock": clock}, max(workers, 2))
    slowest = max(links, key=lambda link: link["latency"] + (1 << 20) / link["bandwidth"])
    return rates, Network(**slowest, overlap=False)


def in_workers(task: dict[str, Any], size: int) -> list[dict[str, Any]]:
    for _ in range(ATTEMPTS):
        answers = run_workers([__file__, "--one", json.dumps(task)], size, threads=1)
        if answers is not None:
            return answers
    raise SystemExit(f"{task} failed")


# ---- In a worker --------------------------------------------------------------------------------


def work(task: dict[str, Any]) -> None:
    import torch

    import fullgraph

    torch.set_num_threads(1)
    group = fullgraph.init()
    run = links if task.get("links") else train
    print(json.dumps(run(group, task)))


def train(group: Any, task: dict[str, Any]) -> dict[str, Any]:
    from fullgraph.training.memory import PeakMemory

    epochs(group, task, task["paths"]["warm-up"], 2)
    memory = PeakMemory()
    seconds, sent = epochs(group, task, task["paths"]["graph"], task["epochs"] + 1)
    return {
        "seconds": statistics.median(seconds[1:]), "bytes": sent, "memory": memory.bytes()
    }  # fmt: skip


def epochs(group: Any, task: dict[str, Any], path: str, count: int) -> tuple[list[float], int]:
    """Seconds of each epoch, and the bytes that this rank sent in the last."""
    import torch

    import fullgraph
    from fullgraph.comm.distributed import DistributedGraph
    from fullgraph.graph.folder import PartitionedFolder
    from fullgraph.training.models import ModelOptions, build_model, run_model

    graph = DistributedGraph.build(
        PartitionedFolder.open(path), group, task["schedule"], placement=task["placement"]
    )
    touch(graph)
    torch.manual_seed(0)
    options = ModelOptions(task["model"], task["layers"], task["hidden"], task["dropout"])
    model = fullgraph.convert(build_model(options, graph.num_features, graph.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    clock, seconds = CLOCKS[task["clock"]], []
    for _ in range(count):
        graph.traffic.clear()
        start = clock()
        optimizer.zero_grad()
        out = run_model(model, graph)
        fullgraph.cross_entropy(out, graph.y, graph.train_mask).backward()
        fullgraph.sum_gradients(model)
        optimizer.step()
        del out
        seconds.append(clock() - start)
    return seconds, graph.traffic.bytes_sent


def links(group: Any, task: dict[str, Any]) -> dict[str, float]:
    """What each of a ring of workers gets, all at once: bytes a second of messages whose rows are
    in no cache, and the seconds of a small one, with what an exchange does for each."""
    import torch

    import fullgraph

    clock, messages = CLOCKS[task["clock"]], torch.ones(2, 64, 1 << 20, dtype=torch.uint8)
    graph = fullgraph.load(WARM_UP, group=group)
    rows = torch.randn(graph.num_owned, 8, requires_grad=True)

    def small() -> float:
        """Of a message of a sum or its gradient: each sends one to every other worker."""
        group.all_reduce(torch.zeros(1), "the start")
        start = clock()
        for _ in range(20):
            fullgraph.aggregate(graph, rows).sum().backward()
        return (clock() - start) / 20 / 2 / (group.size - 1)

    def seconds(size: int) -> float:
        """Of a message, one after the other."""
        group.all_reduce(torch.zeros(1), "the start")
        start = clock()
        for there, back in messages.unbind(1):
            into = (back[:size], (group.rank + 1) % group.size)
            out = (there[:size], (group.rank - 1) % group.size)
            for work in group.post(into, out):
                group.wait(work, "a message")
        return (clock() - start) / messages.shape[1]

    least = statistics.median(seconds(8) for _ in range(3))
    large = statistics.median(seconds(1 << 20) for _ in range(3))
    latency = statistics.median(small() for _ in range(3))
    return {"latency": latency, "bandwidth": (1 << 20) / max(large - least, 1e-6)}


# ---- Showing ------------------------------------------------------------------------------------


def ratio(result: dict[str, Any], key: str) -> float:
    return result[f"predicted_{key}"] / result[key]


def line(result: dict[str, Any]) -> str:
    same = result["bytes"] == result["predicted_bytes"]
    return (
        f"  {result['run']:<34}{'equal' if same else 'DIFFER':>8}{max(result['bytes']) / 1e6:>9.2f}"
        f"{result['memory'] / 1e6:>9.0f}{ratio(result, 'memory'):>7.2f}"
        f"{result['seconds']:>9.2f}{ratio(result, 'seconds'):>7.2f}"
    )


def report(results: list[dict[str, Any]]) -> None:
    print(f"\n  {'run':<34}{'bytes':>8}{'MB sent':>9}{'MB':>9}{'pred/':>7}{'s':>9}{'pred/':>7}")
    for result in results:
        print(line(result))


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    def within(key: str, factor: float) -> int:
        return sum(1 / factor <= ratio(result, key) <= factor for result in results)

    return {
        "runs": len(results),
        "bytes_equal": sum(r["bytes"] == r["predicted_bytes"] for r in results),
        "memory_within_15_percent": within("memory", MEMORY_WITHIN),
        "seconds_within_1.5": within("seconds", SECONDS_WITHIN),
        "results": results,
    }


def draw(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, 3)
    what = (
        ("bytes", "sent an epoch (MB)", 1e6, 1.0),
        ("memory", "peak memory (MB)", 1e6, MEMORY_WITHIN),
        ("seconds", "an epoch (s)", 1.0, SECONDS_WITHIN),
    )  # fmt: skip
    colours = {"sage": "C0", "gcn": "C1", "gat": "C2"}
    marks = {"destination": "o", "grid": "s", "vertex-cut": "^"}
    for axes, (key, title, unit, factor) in zip(panels, what):
        for result in results:
            run = Run.parse(result["run"])
            measured, predicted = result[key], result[f"predicted_{key}"]
            if key == "bytes":
                measured, predicted = max(measured), max(predicted)
            if measured:
                axes.loglog(
                    measured / unit, predicted / unit, marks[run.placement.partition(":")[0]],
                    color=colours.get(run.model, "C3"), alpha=0.8,
                )  # fmt: skip
        ends = [
            min(axes.get_xlim()[0], axes.get_ylim()[0]),
            max(axes.get_xlim()[1], axes.get_ylim()[1]),
        ]
        axes.plot(ends, ends, "k-", lw=1)
        for f in (factor, 1 / factor):
            axes.plot(ends, [e * f for e in ends], "k:", lw=1)
        axes.set_xlabel(f"measured: {title}")
        axes.set_ylabel("predicted")
        axes.grid(alpha=0.3)
    handles = [panels[0].plot([], [], "o", color=c, label=m)[0] for m, c in colours.items()]
    handles += [panels[0].plot([], [], m, color="grey", label=p)[0] for p, m in marks.items()]
    panels[0].legend(handles=handles, fontsize=8)
    figure.suptitle(f"{args.graph}, {args.layers} × {args.hidden}", fontsize=9)
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=150)


if __name__ == "__main__":
    main()
