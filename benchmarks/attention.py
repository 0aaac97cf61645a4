"""Seconds of attention, forward and backward, on one worker against PyG's own layers.

Of PyG's layers it times what the ops replace: `edge_updater` and `propagate`, without the linear
layers before and after. Random edges, float32. Each round runs both contenders once, in turn, and
the median over rounds counts. Speed-up: of forward and backward pass together.

    python benchmarks/attention.py
    python benchmarks/attention.py --nodes 200000 --edges 5900000 --no-pyg   # or --large --no-pyg
    python benchmarks/attention.py --heads 8 --channels 16 --dropout 0.5
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.graph.partition import PartitionedInMemory
from fullgraph.graph.sources import read
from fullgraph.ops.attention import dot_attention, gat_attention, gatv2_attention
from fullgraph.ops.dropout import DropoutKey

Run = Callable[[], Tensor]


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    edge_index = torch.randint(args.nodes, (2, args.edges))
    graph = whole_graph(edge_index, args.nodes)
    print(
        f"{args.nodes:,} nodes, {args.edges:,} edges, {args.heads} heads of {args.channels}, "
        f"dropout {args.dropout}; {kernels.isa()}, {kernels.max_threads()} threads, "
        f"torch {torch.__version__}, float32"
    )
    results = {}
    for name, make in {"gat": gat, "gatv2": gatv2, "dot": dot}.items():
        inputs, ours, theirs = make(graph, edge_index, args)
        runs = {"fullgraph": ours} if args.no_pyg else {"fullgraph": ours, "PyG": theirs}
        if len(runs) == 2 and args.dropout == 0:
            torch.testing.assert_close(ours(), theirs(), rtol=1e-3, atol=1e-3)
        results[name] = measure(runs, inputs, args.repeat)
    show(results)
    print(json.dumps({
        "nodes": args.nodes, "edges": args.edges, "heads": args.heads, "channels": args.channels,
        "dropout": args.dropout, "isa": kernels.isa(), "threads": args.threads,
        "torch": torch.__version__, "seconds": results,
    }))  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=40_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--large", action="store_true", help="200,000 nodes, 5.9 million edges")
    parser.add_argument("--no-pyg", action="store_true", help="PyG takes some 10 kB an edge")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.large:
        args.nodes, args.edges = 200_000, 5_900_000
    return args


def whole_graph(edge_index: Tensor, num_nodes: int) -> DistributedGraph:
    data = Data(
        edge_index=edge_index, num_nodes=num_nodes, x=torch.zeros(num_nodes, 1),
        y=torch.zeros(num_nodes, dtype=torch.int64),
        train_mask=torch.ones(num_nodes, dtype=torch.bool),
    )  # fmt: skip
    one_part = torch.zeros(num_nodes, dtype=torch.int32)
    return DistributedGraph.build(PartitionedInMemory(read(data), one_part, 1), Group())


def dropout_of(args: argparse.Namespace) -> dict[str, Any]:
    return {"p": args.dropout, "key": DropoutKey(0, 0, 0)}


def leaves(args: argparse.Namespace, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(args.nodes, *shape, requires_grad=True) for shape in shapes]


def gat(
    graph: DistributedGraph, edge_index: Tensor, args: argparse.Namespace
) -> tuple[list[Tensor], Run, Run]:
    heads, channels = args.heads, args.channels
    x, source, target = leaves(args, (heads, channels), (heads,), (heads,))
    conv = GATConv(1, channels, heads, dropout=args.dropout, add_self_loops=False)

    def theirs() -> Tensor:
        alpha = conv.edge_updater(edge_index, alpha=(source, target), edge_attr=None, size=None)
        return conv.propagate(edge_index, x=(x, x), alpha=alpha, size=None)

    return [x, source, target], lambda: gat_attention(
        graph, x, source, target, negative_slope=conv.negative_slope, **dropout_of(args)
    ), theirs  # fmt: skip


def gatv2(
    graph: DistributedGraph, edge_index: Tensor, args: argparse.Namespace
) -> tuple[list[Tensor], Run, Run]:
    heads, channels = args.heads, args.channels
    source, target = leaves(args, (heads, channels), (heads, channels))
    conv = GATv2Conv(1, channels, heads, dropout=args.dropout, add_self_loops=False)
    att = conv.att.view(heads, channels)

    def theirs() -> Tensor:
        alpha = conv.edge_updater(edge_index, x=(source, target), edge_attr=None, size=None)
        return conv.propagate(edge_index, x=(source, target), alpha=alpha, size=None)

    return [source, target, conv.att], lambda: gatv2_attention(
        graph, source, target, att, negative_slope=conv.negative_slope, **dropout_of(args)
    ), theirs  # fmt: skip


def dot(
    graph: DistributedGraph, edge_index: Tensor, args: argparse.Namespace
) -> tuple[list[Tensor], Run, Run]:
    heads, channels = args.heads, args.channels
    query, key, value = leaves(args, *[(heads, channels)] * 3)
    conv = TransformerConv(1, channels, heads, dropout=args.dropout)

    def theirs() -> Tensor:
        return conv.propagate(
            edge_index, query=query, key=key, value=value, edge_attr=None, size=None
        )

    return [query, key, value], lambda: dot_attention(
        graph, query, key, value, **dropout_of(args)
    ), theirs  # fmt: skip


def measure(runs: dict[str, Run], inputs: list[Tensor], repeat: int) -> dict[str, Any]:
    """Medians of seconds, after a round that warms up."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeat + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            out = run()
            middle = time.perf_counter()
            torch.autograd.grad(out, inputs, torch.ones_like(out))
            taken[name].append((middle - start, time.perf_counter() - middle))
    found: dict[str, Any] = {
        name: {
            phase: statistics.median(seconds)
            for phase, seconds in zip(("forward", "backward"), zip(*of_run[1:]))
        }
        for name, of_run in taken.items()
    }
    if "PyG" in found:
        found["speedup"] = sum(found["PyG"].values()) / sum(found["fullgraph"].values())
    return found


def show(results: dict[str, Any]) -> None:
    table = Table("attention", "fullgraph: forward", "backward", "PyG: forward", "backward",
                  "speed-up", title="Seconds")  # fmt: skip
    for name, of_name in results.items():
        cells = [
            f"{of_name[who][phase]:.3f}" if who in of_name else "-"
            for who in ("fullgraph", "PyG")
            for phase in ("forward", "backward")
        ]
        faster = f"{of_name['speedup']:.1f}x" if "speedup" in of_name else "-"
        table.add_row(name, *cells, faster)
    Console().print(table)


if __name__ == "__main__":
    main()
