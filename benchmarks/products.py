"""A graph of the size of ogbn-products: partitioned into 8, then GraphSAGE and GAT on one worker.

Every step is a process of its own. Of each: its seconds, and the most memory that it ever held,
resident, files that it maps included. Of training: seconds an epoch, the second of two, and where
they go, of the profile of a third. 3 layers, GAT with 4 heads and one at the end. The last line is
a JSON object. Takes a quarter of an hour, 16 GB of memory to partition, 20 to train and 6 of disk.

    python benchmarks/products.py
    python benchmarks/products.py --folder products  # keeps the graph, or takes what is there
    python benchmarks/products.py --graph planted:nodes=100000,edges=4000000,features=100
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from epoch import step_on

GRAPH = "planted:nodes=2400000,edges=97000000,features=100,classes=47"
WITHIN = {"partition": 22.0, "sage": 20.0, "gat": 20.0}  # GB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default=GRAPH)
    parser.add_argument("--folder", help="of the partitioned graph; a passing one unless given")
    parser.add_argument("--models", default="sage,gat")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        train(args)
        return
    with tempfile.TemporaryDirectory(prefix="fullgraph-bench-") as away:
        folder = args.folder or str(Path(away, "graph"))
        results = {}
        if not Path(folder).exists():
            program = str(Path(sys.executable).with_name("fullgraph"))
            results["partition"] = run(
                [program, "partition", args.graph, "--parts", "8", "--out", folder]
            )
            say("partition", results["partition"])
        for model in args.models.split(","):
            options = ["--one", model, "--folder", folder, "--hidden", str(args.hidden)]
            out = str(Path(away, f"{model}.json"))
            command = [sys.executable, __file__, *options, "--threads", str(args.threads)]
            results[model] = run([*command, "--out", out])
            results[model] |= json.loads(Path(out).read_text())
            say(model, results[model])
    hold = {step: result["gigabytes"] <= WITHIN[step] for step, result in results.items()}
    print(json.dumps({
        "benchmark": "products", "graph": args.graph, "hidden": args.hidden,
        "all_hold": all(hold.values()), **results,
    }))  # fmt: skip


def run(command: list[str]) -> dict[str, Any]:
    """Run a step to its end."""
    start = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    in_kilobytes = 1 if sys.platform == "darwin" else 1024
    return {
        "seconds": time.perf_counter() - start, "gigabytes": usage.ru_maxrss * in_kilobytes / 1e9,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
    }  # fmt: skip


def say(step: str, result: dict[str, Any]) -> None:
    line = f"{step}: {result['seconds']:.0f} s, at most {result['gigabytes']:.2f} GB"
    if "epoch" in result:
        whole = sum(result["families"].values())
        shares = [
            f"{name} {seconds / whole:.0%}"
            for name, seconds in sorted(result["families"].items(), key=lambda pair: -pair[1])
            if seconds > 0.005 * whole
        ]
        line += f"; {result['epoch']:.1f} s an epoch: {', '.join(shares)}"
    print(line, flush=True)


def train(args: argparse.Namespace) -> None:
    """In a process of its own; what was measured goes to the file --out."""
    import torch

    import fullgraph

    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    graph = fullgraph.load(args.folder)
    options = argparse.Namespace(model=args.one, hidden=args.hidden, heads=4, layers=3, dropout=0.0)
    step = step_on(graph, options)
    loading, seconds = time.perf_counter() - start, []
    with (
        tempfile.TemporaryDirectory() as away,
        fullgraph.Profile(graph, away, epochs=1, warm_up=2) as profile,
    ):
        for _ in range(3):
            start = time.perf_counter()
            with profile.step():
                loss = step()
            seconds.append(time.perf_counter() - start)
    assert profile.summary is not None
    profile.say()
    families = profile.summary["ranks"][0]["families"]
    Path(args.out).write_text(json.dumps({
        "loading": loading, "epoch": seconds[1], "families": families, "loss": loss,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
