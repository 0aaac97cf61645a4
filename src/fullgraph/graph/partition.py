"""From a whole graph and the part of each node to parts, built one at a time.

Letters: N nodes and E edges of the graph, n nodes and E_k edges of a part, P parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullgraph import kernels
from fullgraph.graph.assign import METHODS, assign_parts, check_num_parts, typed_union
from fullgraph.graph.grouping import group_by
from fullgraph.graph.order import check_order, clusters, outer
from fullgraph.graph.parts import (
    DESTINATION,
    MASK,
    PLACEMENTS,
    VERTEX_CUT,
    GraphMeta,
    NodeTypeMeta,
    Part,
    RelationMeta,
    cut_fingerprint,
    edge_arrays,
    field_of,
    fields_of,
    fingerprint,
    labelled,
    node_arrays,
    typed_fingerprint,
)
from fullgraph.graph.report import PartitionReport, partition_report
from fullgraph.graph.sources import Source, read
from fullgraph.graph.typed import TypedGraph, canonical_typed
from fullgraph.graph.vertex_cut import cut_vertices
from fullgraph.graph.whole import WholeGraph, canonical

__all__ = [
    "METHODS",
    "PartitionReport",
    "PartitionedInMemory",
    "PartitionedTyped",
    "PartitionedVertexCut",
    "assign_parts",
    "check_method",
    "partition",
    "partition_report",
    "split_parts",
]

Ints = NDArray[np.int64]
MAX_KEY = 2**62
METHODS_OF = {DESTINATION: METHODS, VERTEX_CUT: ("libra",)}  # the first is the default


class PartitionedInMemory:
    """A whole graph and who is in which part; `part(k)` is built at every call.

    ``graph``: the whole graph, valid, which is kept.
    ``assignment``: int32 [N], the part of each node.
    ``cluster``: int32 [N], by which the nodes of a part come, and then by id; of two parts, those
    that the other needs come last. None: by id.
    Raises ValueError unless the assignment has N values in 0 .. num_parts - 1.
    """

    def __init__(
        self, graph: WholeGraph, assignment: Tensor, num_parts: int, cluster: Tensor | None = None
    ) -> None:
        _check_assignment(assignment, graph.num_nodes, num_parts)
        self.graph = graph = canonical(graph)
        self.assignment = assignment.to(torch.int32)
        self.num_parts, self.cluster = num_parts, cluster
        owner = self.assignment.numpy()
        self._node_offsets, self._nodes = group_by(owner, num_parts)
        edge_part = self._place_edges()
        if cluster is not None:
            keys = [cluster.numpy(), owner]  # the last is sorted by first
            if num_parts == 2:
                keys.insert(1, outer(graph, self.assignment, torch.from_numpy(edge_part)).numpy())
            self._nodes = np.lexsort(keys)
        self._edge_offsets, self._edges = group_by(edge_part, num_parts)
        row = np.empty(graph.num_nodes, dtype=np.int32)
        row[self._nodes] = np.arange(graph.num_nodes) - np.repeat(
            self._node_offsets[:-1], np.diff(self._node_offsets)
        )
        self._row = row  # [N], of each node in its part

    def _place_edges(self) -> NDArray[np.int32]:
        """The part [E] that each edge is in: that of its destination."""
        part: NDArray[np.int32] = self.assignment.numpy()[self.graph.edge_index[1].numpy()]
        return part

    @cached_property
    def meta(self) -> GraphMeta:
        return self._describe()

    def _describe(self) -> GraphMeta:
        graph, owner = self.graph, self.assignment.numpy()
        per_part = np.bincount(owner[labelled(graph).numpy()], minlength=self.num_parts)
        order = None if self.cluster is None else torch.from_numpy(self._nodes)
        return GraphMeta(
            name=graph.name,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            num_features=graph.num_features,
            num_classes=graph.num_classes,
            num_parts=self.num_parts,
            part_nodes=tuple(np.diff(self._node_offsets).tolist()),
            part_edges=tuple(np.diff(self._edge_offsets).tolist()),
            part_labelled=tuple(per_part.tolist()),
            fields=fields_of(graph),
            fingerprint=fingerprint(graph, self.assignment, self.num_parts, order),
            num_relations=graph.num_relations,
        )

    @cached_property
    def report(self) -> PartitionReport:
        return self._report()

    def _report(self) -> PartitionReport:
        return partition_report(self.graph, self.assignment, self.num_parts)

    def part(self, k: int) -> Part:
        """Part k, 0 <= k < num_parts; the same values at every call."""
        if not 0 <= k < self.num_parts:
            raise ValueError(f"part {k} does not exist; there are {self.num_parts}, from 0")
        nodes = self._nodes[self._node_offsets[k] : self._node_offsets[k + 1]]
        source_offsets, edge_id = self._sorted_edges(k)
        rows = torch.from_numpy(nodes)
        edges = torch.from_numpy(edge_id)
        of_nodes = {name: values[rows] for name, values in node_arrays(self.graph)}
        of_edges = {name: values[edges] for name, values in edge_arrays(self.graph)}
        src, dst = (ids.numpy() for ids in self.graph.edge_index)
        masks = {
            name.removeprefix(MASK): of_nodes.pop(name)
            for name in [*of_nodes]
            if name.startswith(MASK)
        }
        return Part(
            index=k,
            node_id=rows.clone(),
            x=of_nodes.get("x"),
            y=of_nodes.get("y"),
            masks=masks,
            source_offsets=torch.from_numpy(source_offsets),
            src=torch.from_numpy(self._row[src[edge_id]]),
            dst=torch.from_numpy(self._row[dst[edge_id]]),
            edge_id=edges,
            edge_weight=of_edges.get("edge_weight"),
            edge_attr=of_edges.get("edge_attr"),
            edge_type=of_edges.get("edge_type"),
        )

    def _sorted_edges(self, k: int) -> tuple[Ints, Ints]:
        """source_offsets [P + 1], and edge ids [E_k] by (source part, destination part, dst, src,
        edge id)."""
        edge_id = self._edges[self._edge_offsets[k] : self._edge_offsets[k + 1]]
        src, dst = (ids.numpy() for ids in self.graph.edge_index)
        owner, source, target = self.assignment.numpy(), src[edge_id], dst[edge_id]
        num_nodes, num_rows = self.graph.num_nodes, int(np.diff(self._node_offsets).max(initial=1))
        key = owner[source].astype(np.int64)
        key *= num_nodes
        # Nodes in part order have increasing (part, row): one number for two of the sort keys.
        key += self._node_offsets[owner[target]] + self._row[target]
        if self.num_parts * num_nodes * num_rows < MAX_KEY:
            key *= num_rows
            key += self._row[source]
            order = np.argsort(key, kind="stable")
        else:
            order = np.lexsort((self._row[source], key))
        edge_id = edge_id[order]
        counts = np.bincount(owner[source], minlength=self.num_parts)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), edge_id


class PartitionedVertexCut(PartitionedInMemory):
    """The same with each edge in any part, wherever its two ends are.

    ``edge_part``: int32 [E], the part of each edge.
    Raises ValueError unless it has E values in 0 .. num_parts - 1.
    """

    def __init__(
        self, graph: WholeGraph, assignment: Tensor, edge_part: Tensor, num_parts: int,
        cluster: Tensor | None = None,
    ) -> None:  # fmt: skip
        _check_assignment(edge_part, graph.num_edges, num_parts, "edge_part")
        self.edge_part = edge_part.to(torch.int32)
        super().__init__(graph, assignment, num_parts, cluster)

    def _place_edges(self) -> NDArray[np.int32]:
        return self.edge_part.numpy()

    def _describe(self) -> GraphMeta:
        meta = super()._describe()
        return replace(
            meta,
            placement=VERTEX_CUT,
            part_held=self.report.held,
            fingerprint=cut_fingerprint(meta.fingerprint, self.edge_part),
        )

    def _report(self) -> PartitionReport:
        return partition_report(self.graph, self.assignment, self.num_parts, self.edge_part)

    def part(self, k: int) -> Part:
        """Part k, 0 <= k < num_parts; the same values at every call."""
        part = super().part(k)
        target = self.graph.edge_index[1][part.edge_id]
        return replace(part, dst_part=self.assignment[target.long()])


class PartitionedTyped(PartitionedInMemory):
    """The same for a graph with several types of nodes; see `Part` for what its parts hold.

    ``typed``: the whole graph, valid, which is kept; ``graph``: all its nodes and edges together.
    ``assignment``: int32, the part of each node, in the order of the types.
    """

    def __init__(self, typed: TypedGraph, assignment: Tensor, num_parts: int) -> None:
        self.typed = typed = canonical_typed(typed)
        super().__init__(typed_union(typed), assignment, num_parts)

    def _describe(self) -> GraphMeta:
        meta, typed = super()._describe(), self.typed
        node_first, edge_first = typed.node_offsets, typed.edge_offsets
        owner = self.assignment.numpy()
        into = owner[self.graph.edge_index[1].numpy()]
        fields = [field for field in meta.fields if field.name == "edge_type"]
        node_types, relations = [], []
        for t, nodes in enumerate(typed.nodes):
            per_part = np.bincount(
                owner[node_first[t] : node_first[t + 1]], minlength=self.num_parts
            )
            width = 0 if nodes.x is None else int(nodes.x.shape[1])
            node_types.append(
                NodeTypeMeta(nodes.name, width, nodes.num_classes, tuple(per_part.tolist()))
            )
            fields += [field_of(f"{name}.{t}", values) for name, values in node_arrays(nodes)]
        for r, relation in enumerate(typed.relations):
            per_part = np.bincount(
                into[edge_first[r] : edge_first[r + 1]], minlength=self.num_parts
            )
            relations.append(RelationMeta(*relation.key, tuple(per_part.tolist())))
            fields += [field_of(f"{name}.{r}", values) for name, values in edge_arrays(relation)]
        return replace(
            meta,
            num_classes=max(nodes.num_classes for nodes in typed.nodes),
            fields=tuple(fields),
            fingerprint=typed_fingerprint(typed, meta.fingerprint),
            node_types=tuple(node_types),
            relations=tuple(relations),
        )

    def _report(self) -> PartitionReport:
        nodes = ", ".join(f"{nodes.name} {nodes.num_nodes:,}" for nodes in self.typed.nodes)
        edges = ", ".join(
            f"{' '.join(relation.key)} {relation.num_edges:,}" for relation in self.typed.relations
        )
        return replace(super()._report(), types=(f"nodes: {nodes}", f"edges: {edges}"))

    def part(self, k: int) -> Part:
        """Part k, 0 <= k < num_parts; the same values at every call."""
        part = super().part(k)
        assert part.edge_type is not None
        by_type: dict[str, Tensor] = {}
        first = torch.tensor(self.typed.node_offsets)
        rows = torch.searchsorted(part.node_id, first).tolist()
        for t, nodes in enumerate(self.typed.nodes):
            ids = part.node_id[rows[t] : rows[t + 1]] - first[t]
            by_type |= {f"{name}.{t}": values[ids] for name, values in node_arrays(nodes)}
        offsets, order = kernels.group_by(part.edge_type, len(self.typed.relations))
        for r, relation in enumerate(self.typed.relations):
            ids = part.edge_id[order[offsets[r] : offsets[r + 1]]] - self.typed.edge_offsets[r]
            by_type |= {f"{name}.{r}": values[ids] for name, values in edge_arrays(relation)}
        return replace(part, masks={}, by_type=by_type)


def _check_assignment(
    assignment: Tensor, size: int, num_parts: int, name: str = "the assignment"
) -> None:
    if assignment.shape != (size,) or assignment.is_floating_point():
        raise ValueError(
            f"{name} must be integers of shape [{size}], "
            f"got {assignment.dtype} {list(assignment.shape)}"
        )
    if size == 0:
        return
    low, high = int(assignment.min()), int(assignment.max())
    if low < 0 or high >= num_parts:
        raise ValueError(f"{name} has parts {low} .. {high}, outside of 0 .. {num_parts - 1}")


def split_parts(graph: WholeGraph, part: Tensor, num_parts: int) -> Iterator[Part]:
    """The parts one after the other; only one is held. part: integers [N]."""
    partitioned = PartitionedInMemory(graph, part, num_parts)
    for k in range(num_parts):
        yield partitioned.part(k)


def check_method(
    method: str | None, placement: str = DESTINATION, balance: float | None = None
) -> str:
    """The method, the placement's default where it is None. Raises ValueError unless the placement
    exists and has this method and balance, naming those that it has."""
    if placement not in PLACEMENTS:
        raise ValueError(
            f"placement {placement!r} is unknown; choose one of {', '.join(PLACEMENTS)}"
        )
    methods = METHODS_OF[placement]
    if method is not None and method not in methods:
        others = [other for other in PLACEMENTS if method in METHODS_OF[other]]
        problem = f"is one of placement {others[0]!r}" if others else "is unknown"
        raise ValueError(
            f"method {method!r} {problem}; for {placement!r} choose one of {', '.join(methods)}"
        )
    if balance is not None and placement != VERTEX_CUT:
        raise ValueError(
            f"balance={balance} is for placement {VERTEX_CUT!r}, not for {placement!r}"
        )
    if balance is not None and not balance >= 1:
        raise ValueError(
            f"balance={balance}: some part has at least the mean of the edges; give 1 or more, "
            "such as 1.05"
        )
    return methods[0] if method is None else method


def partition(
    source: Source, num_parts: int, method: str | None = None, seed: int = 0,
    placement: str = DESTINATION, balance: float | None = None, order: str = "given",
    **read_options: Any,
) -> PartitionedInMemory:  # fmt: skip
    """Read a graph and partition it; see `read`.

    Whether features may be infinite or NaN was decided when a `WholeGraph` or `TypedGraph` was
    read. A graph with several types of nodes comes out as a `PartitionedTyped`, a vertex cut as a
    `PartitionedVertexCut`.

    Args:
        placement: "destination": an edge is in the part of the node that it leads into;
            "vertex-cut": edges are shared out, and nodes are wherever their edges are.
        method: of "destination", "metis" (by default), "random" or "contiguous", see
            `assign_parts`; of "vertex-cut", "libra", see `cut_vertices`.
        seed: of the method. The same arguments give the same parts.
        balance: of "vertex-cut": the most edges of a part over the mean; None: no limit.
        order: of the nodes of a part: "given", by id, or "clusters", which trains faster where
            rows do not fit into caches, see `fullgraph.graph.order`. Nodes of several types come
            by type and id.

    Raises:
        ValueError: the graph cannot be read, or an argument does not go with the others.
    """
    method = check_method(method, placement, balance)
    check_num_parts(num_parts)
    check_order(order)
    was_read = isinstance(source, (WholeGraph, TypedGraph))
    graph = read(source, **{"allow_nonfinite": was_read, **read_options})
    if isinstance(graph, TypedGraph):
        if placement == VERTEX_CUT:
            raise ValueError(
                f"graph {graph.name!r} has several types of nodes, of which a vertex cut cannot be "
                "made: layers take one relation at a time, with all edges into a node in its part. "
                f"Use placement {DESTINATION!r}"
            )
        assignment = assign_parts(graph, num_parts, method, seed)
        return PartitionedTyped(graph, assignment, num_parts)
    if placement == VERTEX_CUT:
        owner, edge_part = cut_vertices(graph, num_parts, seed, balance)
        cluster = clusters(graph, order, seed)
        return PartitionedVertexCut(graph, owner, edge_part, num_parts, cluster)
    assignment = assign_parts(graph, num_parts, method, seed)
    return PartitionedInMemory(graph, assignment, num_parts, clusters(graph, order, seed))
