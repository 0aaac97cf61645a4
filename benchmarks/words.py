"""Words that a rank receives in one aggregation, against the number of ranks, for grids of every
dimension; and how even the blocks of a grid are.

Counted on the exchange plans of one random graph without locality, in one process: source rows of
the gather and partial rows of the reduce, times the columns of the rank's slice, of the rank that
receives the most. 1D is Px1x1; 1.5D (P/c)xcx1 with the best c up to the root of P; 2D the squarest
RxCx1; 3D the squarest RxCxK. Dense blocks would need f/K ((n/C - n/P) + (C K - 1) n/P) words, which
goes as n f, 2 n f / P^(1/2) and 2 n f / P^(2/3). With its best c, 1.5D is 2D.

    python benchmarks/words.py --out words.png
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

from fullgraph.comm.placed_edges import planned_rows
from fullgraph.comm.placement import Placement, grids_of
from fullgraph.graph.partition import PartitionedInMemory, partition
from fullgraph.graph.whole import WholeGraph
from fullgraph.planner.figures import Shares
from fullgraph.planner.shares import count_shares

POWER_LAW = "planted:nodes=100000,edges=530000,features=0,mix=1.0"
FAMILIES = ("1D", "1.5D", "2D", "3D")
EXPONENT = {"1D": 0.0, "1.5D": -1 / 2, "2D": -1 / 2, "3D": -2 / 3}
MAX_IMBALANCE = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8192)
    parser.add_argument("--edges", type=int, default=1 << 21)
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--ranks", default="4,8,9,16,27,64")
    parser.add_argument("--check", default="4,8", help="compared with the exchange plans as well")
    parser.add_argument("--out", default="words.png", help="the picture")
    args = parser.parse_args()
    sizes, checked = ([int(p) for p in text.split(",")] for text in (args.ranks, args.check))
    graph = random_graph(args.nodes, args.edges)
    results = []
    print(f"{args.nodes:,} nodes, {args.edges:,} edges, {args.columns} columns")
    print(f"{'P':>4} {'':<5}{'grid':<14}{'words a rank':>14}{'of dense blocks':>17}")
    for size in sizes:
        results += measure(graph, size, args.columns, size in checked)
    even = imbalance(16)
    print(
        f"edges of the fullest of 16 blocks over the mean, after a random permutation: {even:.3f}"
    )
    draw(results, args)
    print(f"picture: {args.out}")
    slopes = {family: slope(results, family) for family in FAMILIES}
    print(json.dumps({
        "benchmark": "words", "nodes": args.nodes, "edges": args.edges, "columns": args.columns,
        "slopes": slopes, "expected_slopes": EXPONENT, "imbalance": even,
        "imbalance_within_1.05": even <= MAX_IMBALANCE, "results": results,
    }))  # fmt: skip


def random_graph(nodes: int, edges: int) -> WholeGraph:
    """Both ends of every edge are uniform."""
    rng = torch.Generator().manual_seed(0)
    edge_index = torch.randint(nodes, (2, edges), generator=rng, dtype=torch.int32)
    return WholeGraph("uniform", edge_index, nodes)


def measure(graph: WholeGraph, size: int, columns: int, check: bool) -> list[dict[str, Any]]:
    partitioned = Held(partition(graph, size, method="random"))
    results = []
    for family in FAMILIES:
        counted = {}
        for grid in grids(family, size):
            shares = count_shares(partitioned, size, grid)
            counted[grid] = words(shares, columns)
            if check:
                rows = planned_rows(partitioned, size, grid)
                same = (rows.gather, rows.reduce) == (
                    [*map(list, shares.gather)], [*map(list, shares.reduce)],
                )  # fmt: skip
                assert same, f"{grid}: the exchange plans say otherwise"
        best = min(counted, key=counted.__getitem__)
        dense = dense_words(best, graph.num_nodes, columns, size)
        results.append({
            "ranks": size, "family": family, "grid": str(best), "words": counted[best],
            "dense": dense,
        })  # fmt: skip
        share = counted[best] / dense
        print(f"{size:>4} {family:<5}{best!s:<14}{counted[best]:>14,.0f}{share:>17.3f}", flush=True)
    return results


class Held:
    """A partitioned graph whose parts are built once."""

    def __init__(self, partitioned: PartitionedInMemory) -> None:
        self.meta = partitioned.meta
        self.parts = [partitioned.part(k) for k in range(partitioned.num_parts)]

    def part(self, k: int) -> Any:
        return self.parts[k]


def grids(family: str, size: int) -> list[Placement]:
    every = grids_of(size)
    if family == "1D":
        return [grid for grid in every if grid.rows == size]
    if family == "1.5D":
        return [g for g in every if g.feats == 1 and g.cols > 1 and g.cols**2 <= size]
    if family == "2D":
        flat = [grid for grid in every if grid.feats == 1]
        return squarest(flat, lambda g: (g.rows, g.cols))
    return squarest(every, lambda g: (g.rows, g.cols, g.feats))


def squarest(found: list[Placement], sides: Any) -> list[Placement]:
    least = min(sum(sides(grid)) for grid in found)
    return [grid for grid in found if sum(sides(grid)) == least]


def words(shares: Shares, columns: int) -> float:
    """That the rank which receives the most receives."""
    width = columns / shares.placement.feats
    return max(
        width * (sum(shares.gather[p]) + sum(row[p] for row in shares.reduce))
        for p in range(shares.size)
    )


def dense_words(grid: Placement, nodes: int, columns: int, size: int) -> float:
    needed = nodes / grid.cols - nodes / size
    partial = (grid.cols * grid.feats - 1) * nodes / size
    return columns / grid.feats * (needed + partial)


def ideal(family: str, ranks: float, nodes: int, columns: int) -> float:
    return (1 if family == "1D" else 2) * nodes * columns * ranks ** EXPONENT[family]


def slope(results: list[dict[str, Any]], family: str) -> float:
    """Of log words over log P, on grids that are as square as their dimension can be. Words are
    first divided by the share of all rows that is not a rank's own, which tends to 1."""
    points = []
    for r in results:
        grid = Placement.parse(r["grid"])
        sides = {"2D": {grid.rows, grid.cols}, "3D": {grid.rows, grid.cols, grid.feats}}
        if r["family"] == family and len(sides.get(family, {1})) == 1:
            all_rows = 1 / grid.cols + (1 / grid.rows if family != "1D" else 0)
            remote = dense_words(grid, 1, 1, r["ranks"]) * grid.feats / all_rows
            points.append((math.log(r["ranks"]), math.log(r["words"] / remote)))
    if len(points) < 2:
        return math.nan
    x, y = (torch.tensor(values) for values in zip(*points))
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def imbalance(size: int) -> float:
    """Of the edges of a power-law graph of about a million, on the squarest flat grid."""
    side = math.isqrt(size)
    partitioned = partition(POWER_LAW, size, method="random")
    print(f"{POWER_LAW}: {partitioned.meta.num_edges:,} edges, grid {side}x{side}x1")
    return count_shares(Held(partitioned), size, f"grid:{side}x{side}x1").edge_imbalance


def draw(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    sizes = sorted({r["ranks"] for r in results})
    for number, family in enumerate(FAMILIES):
        mine = [r for r in results if r["family"] == family]
        marker = "x" if family == "1.5D" else "o"
        axes.plot(
            [r["ranks"] for r in mine], [r["words"] for r in mine], marker, color=f"C{number}",
            label=f"{family}, counted",
        )  # fmt: skip
    for family, text in (("1D", "n f"), ("2D", "2 n f / √P"), ("3D", "2 n f / P^(2/3)")):
        line = [ideal(family, p, args.nodes, args.columns) for p in sizes]
        axes.plot(sizes, line, "--", lw=1, color=f"C{FAMILIES.index(family)}", label=text)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sizes, [str(p) for p in sizes])
    axes.set_xlabel("ranks P")
    axes.set_ylabel("words that a rank receives")
    axes.set_title(
        f"one aggregation, {args.nodes:,} nodes, {args.edges:,} edges, {args.columns} columns",
        fontsize=9,
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncol=2)
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=150)


if __name__ == "__main__":
    main()
