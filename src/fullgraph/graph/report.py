"""What a partition came out as: sizes, halo, cut, replication, imbalance, and warnings.

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fullgraph.graph.grouping import group_by
from fullgraph.graph.parts import DESTINATION, VERTEX_CUT, labelled
from fullgraph.graph.whole import WholeGraph

MAX_IMBALANCE = 1.2


@dataclass(frozen=True)
class PartitionReport:
    """Counts a part, each a tuple of P, and totals.

    ``nodes`` that the part owns; ``edges`` that are in it; ``labelled``: nodes the loss sees;
    ``halo``: distinct nodes of other parts that its edges come from, the rows it needs from
    elsewhere; ``partial``: distinct nodes of other parts that its edges lead to, the rows of which
    it computes a share; ``held``: its own nodes and all ends of its edges.
    ``edge_cut``: directed edges between nodes of different parts, of ``num_edges``.
    ``placement``: as in `GraphMeta`; only a vertex cut has partial rows.
    ``types``: lines that list the types of nodes and of edges, where there are several.
    """

    name: str
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    labelled: tuple[int, ...]
    halo: tuple[int, ...]
    partial: tuple[int, ...]
    held: tuple[int, ...]
    edge_cut: int
    num_edges: int
    placement: str = DESTINATION
    types: tuple[str, ...] = ()

    @property
    def imbalance(self) -> dict[str, float]:
        """Largest part over the mean, for "nodes", "edges", "labelled" and, in a vertex cut, "held"
        (1.0 when there are none)."""
        counts = {"nodes": self.nodes, "edges": self.edges, "labelled": self.labelled}
        if self.placement == VERTEX_CUT:
            counts["held"] = self.held
        return {key: imbalance_of(values) for key, values in counts.items()}

    @property
    def replication(self) -> float:
        """The replication factor: in how many parts a node is held, in the mean."""
        return sum(self.held) / sum(self.nodes)

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
                what = {"labelled": "labelled nodes", "held": "held nodes"}.get(key, key)
                uneven = f"{what} are uneven: the largest part has {value:.2f} times the mean"
                if self.placement == VERTEX_CUT and key == "edges":
                    uneven += "; a balance, such as 1.05, limits that"
                found.append(uneven)
        return tuple(found)

    def table(self) -> Table:
        """For printing with rich: a row a part, then totals, then imbalances."""
        cut = self.placement == VERTEX_CUT
        columns = {
            "nodes": self.nodes,
            "edges" if cut else "in-edges": self.edges,
            "labelled": self.labelled,
            **({"held": self.held} if cut else {}),
            "halo rows": self.halo,
            **({"partial rows": self.partial} if cut else {}),
        }
        imbalances = [f"{value:.3f}" for value in self.imbalance.values()]
        title = f"{escape(self.name)}: {len(self.nodes)} parts"
        table = Table("part", *columns, title=f"{title}, vertex cut" if cut else title)
        for column in table.columns:
            column.justify = "right"
        for k, row in enumerate(zip(*columns.values())):
            table.add_row(str(k), *(f"{count:,}" for count in row))
        table.add_section()
        table.add_row("all", *(f"{sum(counts):,}" for counts in columns.values()))
        table.add_row("max/mean", *imbalances)
        table.caption = "\n".join([self._caption(), *map(escape, self.types)])
        return table

    def _caption(self) -> str:
        replication = f"replication factor {self.replication:.3f}"
        if self.placement == VERTEX_CUT:
            return f"{replication} (the mean number of parts that hold a node)"
        share = self.edge_cut / self.num_edges if self.num_edges else 0.0
        cut = f"edge cut {self.edge_cut:,} of {self.num_edges:,} edges ({share:.1%})"
        return f"{cut}\n{replication}"


def imbalance_of(counts: tuple[int, ...]) -> float:
    """The largest over the mean; 1.0 when all are 0."""
    return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0


def partition_report(
    graph: WholeGraph, part: Tensor, num_parts: int, edge_part: Tensor | None = None
) -> PartitionReport:
    """Count; part: int [N] of each node, edge_part: int [E] of each edge of a vertex cut, values in
    0 .. num_parts - 1."""
    owner = part.numpy()
    src, dst = graph.edge_index.numpy()
    offsets, order = group_by(owner[dst] if edge_part is None else edge_part.numpy(), num_parts)
    nodes = _counts(owner, num_parts)
    halo, partial, held = [], [], []
    for k in range(num_parts):
        edges = order[offsets[k] : offsets[k + 1]]
        # Of nodes of other parts, as far as they are ends of its edges.
        is_source, is_target = (_marked(ids[edges], owner, k) for ids in (src, dst))
        halo.append(int(is_source.sum()))
        partial.append(int(is_target.sum()))
        held.append(nodes[k] + int((is_source | is_target).sum()))
    return PartitionReport(
        name=graph.name,
        nodes=nodes,
        edges=tuple(np.diff(offsets).tolist()),
        labelled=_counts(owner[labelled(graph).numpy()], num_parts),
        halo=tuple(halo),
        partial=tuple(partial),
        held=tuple(held),
        edge_cut=int((owner[src] != owner[dst]).sum()),
        num_edges=graph.num_edges,
        placement=DESTINATION if edge_part is None else VERTEX_CUT,
    )


def _marked(ids: NDArray[np.integer], owner: NDArray[np.integer], k: int) -> NDArray[np.bool_]:
    """bool [N]: which nodes that part k does not own are among `ids`."""
    marked = np.zeros(owner.size, dtype=bool)
    marked[ids[owner[ids] != k]] = True
    return marked


def _counts(owner: np.ndarray, num_parts: int) -> tuple[int, ...]:
    return tuple(np.bincount(owner, minlength=num_parts).tolist())
