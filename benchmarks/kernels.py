"""Milliseconds of the aggregation kernel against torch's own sparse products.

    out[i] = Σ over edges e into i of w[e] · x[source of e]

on a symmetric graph with a power law of degrees (exponent 2.3, capped at √n), in float32. Every
contender allocates its output; each round runs all of them once, in turn, and the median over
rounds counts. Speed-up: over the fastest of torch's.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --nodes 1048576 --edges 16000000      # or --large
    python benchmarks/kernels.py --features 100 --repeat 20 --dtype float64
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fullgraph import kernels

EXPONENT = 2.3
Contender = Callable[[], torch.Tensor]


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    offsets, cols = power_law_graph(args.nodes, args.edges, args.seed)
    print(
        f"{args.nodes:,} nodes, {len(cols):,} edges, largest degree "
        f"{int(offsets.diff().max()):,}; {kernels.isa()}, {kernels.max_threads()} threads, "
        f"torch {torch.__version__}, {args.dtype}"
    )
    results = [
        measure(offsets, cols, num_features, weighted, args)
        for num_features in args.features
        for weighted in (False, True)
    ]
    show(results)
    print(json.dumps({
        "nodes": args.nodes, "edges": len(cols), "isa": kernels.isa(), "threads": args.threads,
        "dtype": args.dtype, "torch": torch.__version__, "results": results,
        "worst_speedup": min(r["speedup"] for r in results),
    }))  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=131_072)
    parser.add_argument("--edges", type=int, default=5_600_000, help="directed, about")
    parser.add_argument("--large", action="store_true", help="1,048,576 nodes, 16 million edges")
    parser.add_argument("--features", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.large:
        args.nodes, args.edges = 1_048_576, 16_000_000
    return args


def power_law_graph(num_nodes: int, num_edges: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """CSR offsets int64 [n + 1] and columns int32 [E], each node's in ascending order."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.arange(1, num_nodes + 1, dtype=torch.float64).pow(-1 / (EXPONENT - 1))
    expected = weight * num_edges / weight.sum()
    ends = expected.clamp(max=num_nodes**0.5).cumsum(0)
    name = torch.randperm(num_nodes, generator=generator)  # so that id and degree are unrelated

    def endpoints(count: int) -> torch.Tensor:
        at = torch.rand(count, generator=generator, dtype=torch.float64) * ends[-1]
        return name[torch.searchsorted(ends, at, right=True).clamp(max=num_nodes - 1)]

    keys = torch.empty(0, dtype=torch.int64)
    while len(keys) < 0.99 * num_edges:  # duplicates fall away, so a few rounds
        count = (num_edges - len(keys) + 1) // 2
        dst, src = endpoints(count), endpoints(count)
        keys = torch.cat([keys, dst * num_nodes + src, src * num_nodes + dst]).unique()
    counts = torch.bincount(keys // num_nodes, minlength=num_nodes)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return offsets, (keys % num_nodes).to(torch.int32)


def contenders(
    offsets: torch.Tensor, cols: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None
) -> dict[str, Contender]:
    begin, end, num_nodes = offsets[:-1], offsets[1:], len(offsets) - 1
    values = torch.ones(len(cols), dtype=x.dtype) if weight is None else weight
    shape = (num_nodes, num_nodes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # in beta; invariants unchecked
        wide = torch.sparse_csr_tensor(offsets, cols.long(), values, shape)
        narrow = torch.sparse_csr_tensor(offsets.int(), cols, values, shape)

    def ours() -> torch.Tensor:
        out = torch.empty_like(x)
        kernels.spmm(begin, end, cols, x, out, weight=weight, accumulate=False)
        return out

    return {
        "fullgraph": ours,
        "A @ X": lambda: wide @ x,
        "A @ X (int32)": lambda: narrow @ x,
        "sparse.mm": lambda: torch.sparse.mm(wide, x, "sum"),
    }


def measure(
    offsets: torch.Tensor, cols: torch.Tensor, num_features: int, weighted: bool,
    args: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    dtype = getattr(torch, args.dtype)
    generator = torch.Generator().manual_seed(args.seed)
    x = torch.randn(len(offsets) - 1, num_features, dtype=dtype, generator=generator)
    weight = torch.rand(len(cols), dtype=dtype, generator=generator) if weighted else None
    runs = contenders(offsets, cols, x, weight)
    expected = runs["A @ X"]()
    for name, run in runs.items():  # warms up, too
        torch.testing.assert_close(run(), expected, rtol=1e-3, atol=1e-3, msg=f"{name} is wrong")
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.repeat):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    ms = {name: 1000 * statistics.median(taken) for name, taken in seconds.items()}
    speedup = min(taken for name, taken in ms.items() if name != "fullgraph") / ms["fullgraph"]
    return {"features": num_features, "weighted": weighted, "ms": ms, "speedup": speedup}


def show(results: list[dict[str, Any]]) -> None:
    table = Table("features", "weighted", *results[0]["ms"], "speed-up", title="Milliseconds")
    for r in results:
        ms = (f"{value:.1f}" for value in r["ms"].values())
        weighted = "yes" if r["weighted"] else "no"
        table.add_row(str(r["features"]), weighted, *ms, f"{r['speedup']:.2f}x")
    Console().print(table)


if __name__ == "__main__":
    main()
