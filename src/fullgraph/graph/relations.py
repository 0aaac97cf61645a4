"""A partitioned graph with several types of nodes, seen as graphs of one relation, or of all.

The views are `Partitioned` themselves, so blocks and edge data come from them as from any graph.

Letters: P parts, T node types, R relations, E_k edges of part k, e of them in a view.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fullgraph.graph.blocks import Ownership
from fullgraph.graph.parts import Field, GraphMeta, Part, Partitioned
from fullgraph.kernels import group_by


@dataclass(eq=False)
class SplitPart:
    """A part, and where the edges of each relation are among its edges."""

    part: Part
    num_relations: int

    @cached_property
    def _by_relation(self) -> tuple[Tensor, Tensor]:
        assert self.part.edge_type is not None  # a graph with node types has it
        return group_by(self.part.edge_type, self.num_relations)

    def edges_of(self, relation: int) -> Tensor:
        """int64 [e]: positions of the relation's edges, ascending."""
        offsets, order = self._by_relation
        return order[int(offsets[relation]) : int(offsets[relation + 1])]


class TypedParts:
    """The parts of a graph with several types of nodes.

    ``first_row``: int64 [P, T + 1], the first row of each type in each part, then their count.
    ``first_node``, ``first_edge``: the whole graph's id of each type's and each relation's first.
    ``ends``: of each relation, the indices of the types of its sources and its targets.
    """

    def __init__(self, partitioned: Partitioned) -> None:
        self._partitioned = partitioned
        self.meta = meta = partitioned.meta
        counts = torch.tensor([node_type.part_nodes for node_type in meta.node_types])
        self.first_row = torch.zeros(meta.num_parts, len(meta.node_types) + 1, dtype=torch.int64)
        self.first_row[:, 1:] = counts.T.cumsum(1)
        self.first_node = [0, *accumulate(node_type.num_nodes for node_type in meta.node_types)]
        self.first_edge = [0, *accumulate(relation.num_edges for relation in meta.relations)]
        index = {node_type.name: t for t, node_type in enumerate(meta.node_types)}
        self.ends = [(index[rel.source], index[rel.target]) for rel in meta.relations]
        self._split: WeakValueDictionary[int, SplitPart] = WeakValueDictionary()

    def split(self, k: int) -> SplitPart:
        """Part k; the same object while somebody holds it, so hold it over several views."""
        found = self._split.get(k)
        if found is None:
            found = self._split[k] = SplitPart(self._partitioned.part(k), len(self.ends))
        return found

    def rows_of(self, k: int, node_type: int) -> slice:
        """The rows of one type in part k."""
        first, end = self.first_row[k, node_type : node_type + 2].tolist()
        return slice(first, end)

    def node_id(self, k: int, node_type: int) -> Tensor:
        """int64, ascending: ids within the type of the part's nodes of that type."""
        return self.split(k).part.node_id[self.rows_of(k, node_type)] - self.first_node[node_type]


class RelationParts:
    """One relation of a typed graph.

    Part k has the targets that part k has, their ids and rows being those within their type; src is
    a row among the sources that the source's part has, counted within the sources' type.
    """

    def __init__(self, parts: TypedParts, relation: int) -> None:
        self._parts, self._relation = parts, relation

    @cached_property
    def meta(self) -> GraphMeta:
        """``num_features`` is that of the sources, and so is x; the rest is of the targets."""
        whole, r = self._parts.meta, self._relation
        s, t = self._parts.ends[r]
        relation, source, target = whole.relations[r], whole.node_types[s], whole.node_types[t]
        wanted = {False: t, True: r}
        fields = [
            Field(field.base, field.dtype, field.shape)
            for field in whole.fields
            if field.of == (s if field.base == "x" else wanted[field.of_edges])
        ]
        return replace(
            whole,
            name=f"{whole.name}: {' '.join(relation.key)}",
            num_nodes=target.num_nodes,
            num_edges=relation.num_edges,
            num_features=source.num_features,
            num_classes=target.num_classes,
            part_nodes=target.part_nodes,
            part_edges=relation.part_edges,
            part_labelled=(0,) * whole.num_parts,
            fields=tuple(fields),
            fingerprint=f"{whole.fingerprint}/{r}",
            num_relations=0,
            node_types=(),
            relations=(),
        )

    def part(self, k: int) -> Part:
        """Its nodes and edges; x, y and masks are left to whom the types belong."""
        parts, r = self._parts, self._relation
        s, t = parts.ends[r]
        split = parts.split(k)
        part, edges = split.part, split.edges_of(r)
        source_offsets = torch.searchsorted(edges, part.source_offsets)
        source_first = torch.repeat_interleave(parts.first_row[:, s], source_offsets.diff())
        return Part(
            index=k,
            node_id=parts.node_id(k, t),
            x=None,
            y=None,
            masks={},
            source_offsets=source_offsets,
            src=(part.src[edges] - source_first).to(torch.int32),
            dst=(part.dst[edges] - parts.first_row[k, t]).to(torch.int32),
            edge_id=part.edge_id[edges] - parts.first_edge[r],
            edge_weight=part.by_type.get(f"edge_weight.{r}"),
            edge_attr=part.by_type.get(f"edge_attr.{r}"),
        )


class UnionParts:
    """All relations of a typed graph, for ranks that keep the rows of each type together.

    Its parts are the pieces of one type of the parts: T pieces a part, those of a rank one after
    the other, by type and then by part. Ids of nodes and edges are those of the whole graph.
    """

    def __init__(self, parts: TypedParts, first_part: tuple[int, ...]) -> None:
        self._parts = parts
        num_types = len(parts.meta.node_types)
        self._pieces = [
            (k, t)
            for first, end in pairwise(first_part)
            for t in range(num_types)
            for k in range(first, end)
        ]
        self._index = torch.empty(parts.meta.num_parts, num_types, dtype=torch.int64)
        for at, (k, t) in enumerate(self._pieces):
            self._index[k, t] = at
        self.ownership = Ownership.of_parts(
            [first * num_types for first in first_part], self.meta.part_nodes
        )

    @cached_property
    def meta(self) -> GraphMeta:
        whole, pieces = self._parts.meta, self._pieces
        edges = [
            sum(rel.part_edges[k] for rel, ends in zip(whole.relations, self._parts.ends)
                if ends[1] == t)
            for k, t in pieces
        ]  # fmt: skip
        return replace(
            whole,
            num_parts=len(pieces),
            part_nodes=tuple(whole.node_types[t].part_nodes[k] for k, t in pieces),
            part_edges=tuple(edges),
            part_labelled=(0,) * len(pieces),
            fields=tuple(field for field in whole.fields if field.name == "edge_type"),
            fingerprint=f"{whole.fingerprint}/union",
            node_types=(),
            relations=(),
        )

    def part(self, k: int) -> Part:
        parts, (of, t) = self._parts, self._pieces[k]
        split = parts.split(of)
        part = split.part
        assert part.edge_type is not None  # a graph with node types has it
        into = [split.edges_of(r) for r, ends in enumerate(parts.ends) if ends[1] == t]
        edges = torch.cat([torch.empty(0, dtype=torch.int64), *into]).sort().values
        types = part.edge_type[edges]
        source_type = torch.tensor([s for s, _ in parts.ends], dtype=torch.int64)[types]
        source_part = torch.searchsorted(part.source_offsets, edges, right=True) - 1
        piece = self._index[source_part, source_type]
        source_offsets, order = group_by(piece, len(self._pieces))
        src = part.src[edges] - parts.first_row[source_part, source_type]
        edges = edges[order]
        return Part(
            index=k,
            node_id=part.node_id[parts.rows_of(of, t)],
            x=None,
            y=None,
            masks={},
            source_offsets=source_offsets,
            src=src[order].to(torch.int32),
            dst=(part.dst[edges] - parts.first_row[of, t]).to(torch.int32),
            edge_id=part.edge_id[edges],
            edge_type=types[order],
        )
