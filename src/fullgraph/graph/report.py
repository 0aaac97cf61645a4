"""What a partition came out as: sizes, halo, cut, imbalance, and warnings.

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fullgraph.graph.grouping import group_by
from fullgraph.graph.parts import labelled
from fullgraph.graph.whole import WholeGraph

MAX_IMBALANCE = 1.2


@dataclass(frozen=True)
class PartitionReport:
    """Counts a part, each a tuple of P, and totals.

    ``nodes``; ``edges``: into the part's nodes; ``labelled``: nodes the loss sees; ``halo``:
    distinct nodes of other parts that its edges come from, the rows it needs from elsewhere.
    ``edge_cut``: directed edges between parts, of ``num_edges``.
    ``types``: lines that list the types of nodes and of edges, where there are several.
    """

    name: str
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    labelled: tuple[int, ...]
    halo: tuple[int, ...]
    edge_cut: int
    num_edges: int
    types: tuple[str, ...] = ()

    @property
    def imbalance(self) -> dict[str, float]:
        """Largest part over the mean, for "nodes", "edges" and "labelled" (1.0 when there are
        none)."""
        counts = {"nodes": self.nodes, "edges": self.edges, "labelled": self.labelled}
        return {key: _imbalance(values) for key, values in counts.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user about empty parts and imbalances above 1.2."""
        empty = [k for k, count in enumerate(self.nodes) if count == 0]
        found = []
        if empty:
            names = ", ".join(map(str, empty[:8])) + (", ..." if len(empty) > 8 else "")
            found.append(f"{len(empty)} of {len(self.nodes)} parts have no nodes: {names}")
        for key, value in self.imbalance.items():
            if value > MAX_IMBALANCE:
                what = "labelled nodes" if key == "labelled" else key
                found.append(f"{what} are uneven: the largest part has {value:.2f} times the mean")
        return tuple(found)

    def table(self) -> Table:
        """For printing with rich: a row a part, then totals, then imbalances."""
        table = Table(title=f"{escape(self.name)}: {len(self.nodes)} parts")
        for heading in ("part", "nodes", "in-edges", "labelled", "halo rows"):
            table.add_column(heading, justify="right")
        columns = (self.nodes, self.edges, self.labelled, self.halo)
        for k, row in enumerate(zip(*columns)):
            table.add_row(str(k), *(f"{count:,}" for count in row))
        table.add_section()
        table.add_row("all", *(f"{sum(column):,}" for column in columns))
        table.add_row("max/mean", *(f"{value:.3f}" for value in self.imbalance.values()), "")
        share = self.edge_cut / self.num_edges if self.num_edges else 0.0
        cut = f"edge cut {self.edge_cut:,} of {self.num_edges:,} edges ({share:.1%})"
        table.caption = "\n".join([cut, *map(escape, self.types)])
        return table


def _imbalance(counts: tuple[int, ...]) -> float:
    return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0


def partition_report(graph: WholeGraph, part: Tensor, num_parts: int) -> PartitionReport:
    """Count; part: int [N], values in 0 .. num_parts - 1."""
    owner = part.numpy()
    src, dst = graph.edge_index.numpy()
    halo, edges, cut = [], [], 0
    offsets, order = group_by(owner[dst], num_parts)
    for k in range(num_parts):
        sources = src[order[offsets[k] : offsets[k + 1]]]
        remote = sources[owner[sources] != k]
        needed = np.zeros(graph.num_nodes, dtype=bool)
        needed[remote] = True
        halo.append(int(needed.sum()))
        edges.append(sources.size)
        cut += remote.size
    marked = labelled(graph).numpy()
    return PartitionReport(
        name=graph.name,
        nodes=_counts(owner, num_parts),
        edges=tuple(edges),
        labelled=_counts(owner[marked], num_parts),
        halo=tuple(halo),
        edge_cut=cut,
        num_edges=graph.num_edges,
    )


def _counts(owner: np.ndarray, num_parts: int) -> tuple[int, ...]:
    return tuple(np.bincount(owner, minlength=num_parts).tolist())
