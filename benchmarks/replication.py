"""Replication factors of vertex cuts: Libra's rule against edges dealt out at random.

The replication factor is the mean number of parts that hold a node (isolated nodes count 1). Beside
it: the largest part over the mean in edges, in nodes held and in nodes owned; and how many edges
the kernel places in a second of the processor, the best of a few runs. DistGNN (arXiv 2104.06700)
publishes factors of two graphs that are not here; they stand below, for comparing the shape.
The last line is a JSON object.

    python benchmarks/replication.py
    python benchmarks/replication.py --graphs mygraph.npz --parts 16 32 --balance 1.05
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fullgraph import kernels
from fullgraph.graph.partition import PartitionedVertexCut
from fullgraph.graph.sources import read
from fullgraph.graph.vertex_cut import cut_vertices
from fullgraph.graph.whole import WholeGraph

DATA = Path(__file__).parents[2] / "shared" / "data"
REAL = ("cora", "citeseer", "coauthor_physics", "amazon_photo", "tolokers")
GRAPHS = [
    *(str(DATA / f"{name}.npz") for name in REAL),
    "planted:nodes=100000,edges=1500000,features=1",  # communities and a power law of degrees
    "planted:nodes=100000,edges=1500000,features=1,mix=1",  # the power law alone
    "planted:nodes=20000,edges=6000000,features=1,mix=1",  # with as many edges a node as Reddit
]
PUBLISHED = {  # edges a node, factors for 2, 4 and 8 parts
    "Reddit": (492.0, (1.75, 2.94, 4.66)),
    "ogbn-products": (50.5, (1.49, 2.16, 2.98)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--balance", type=float, help="most edges of a part over the mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for source in args.graphs:
        graph = read(source)
        assert isinstance(graph, WholeGraph)
        results += [measure(graph, num_parts, args) for num_parts in args.parts]
    show(results, args.parts)
    print(json.dumps({
        "balance": args.balance, "seed": args.seed, "published": PUBLISHED, "results": results,
        "worst_share_of_random": max(r["replication"] / r["random"] for r in results),
        "least_edges_per_second": min(r["edges_per_second"] for r in results),
    }))  # fmt: skip


def measure(graph: WholeGraph, num_parts: int, args: argparse.Namespace) -> dict[str, Any]:
    owner, edge_part = cut_vertices(graph, num_parts, args.seed, args.balance)
    report = PartitionedVertexCut(graph, owner, edge_part, num_parts).report
    generator = torch.Generator().manual_seed(args.seed)
    dealt = torch.randint(num_parts, (graph.num_edges,), generator=generator)
    return {
        "graph": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges,
        "parts": num_parts, "replication": report.replication,
        "random": replication(graph, dealt, num_parts),
        "imbalance": report.imbalance,
        "edges_per_second": graph.num_edges / seconds(graph, num_parts, args),
    }  # fmt: skip


def replication(graph: WholeGraph, edge_part: torch.Tensor, num_parts: int) -> float:
    holds = torch.zeros(graph.num_nodes, num_parts, dtype=torch.bool)
    for ends in graph.edge_index:
        holds[ends.long(), edge_part] = True
    return float(holds.sum(1).clamp(min=1).double().mean())


def seconds(graph: WholeGraph, num_parts: int, args: argparse.Namespace) -> float:
    taken = []
    for _ in range(args.repeat):
        start = time.process_time()
        kernels.libra(*graph.edge_index, graph.num_nodes, num_parts, args.seed)
        taken.append(time.process_time() - start)
    return min(taken)


def show(results: list[dict[str, Any]], num_parts: list[int]) -> None:
    factors = [f"{k} parts" for k in num_parts]
    table = Table("graph", "edges a node", *factors, "max/mean edges", "held", "owned", "M edges/s",
                  title="Replication factor: Libra (random edges)")  # fmt: skip
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify = "right"
    for first in range(0, len(results), len(num_parts)):
        rows = results[first : first + len(num_parts)]
        worst = (max(r["imbalance"][key] for r in rows) for key in ("edges", "held", "nodes"))
        table.add_row(
            rows[0]["graph"], f"{rows[0]['edges'] / rows[0]['nodes']:.1f}",
            *(f"{r['replication']:.2f} ({r['random']:.2f})" for r in rows),
            *(f"{value:.3f}" for value in worst),
            f"{min(r['edges_per_second'] for r in rows) / 1e6:.0f}",
        )  # fmt: skip
    if num_parts == [2, 4, 8]:
        table.add_section()
        for name, (degree, published) in PUBLISHED.items():
            table.add_row(f"{name}, published", f"{degree:.1f}", *(f"{f:.2f}" for f in published))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
