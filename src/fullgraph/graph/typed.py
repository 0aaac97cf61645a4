"""A whole graph with several types of nodes and of edges, before it is partitioned.

Letters: T node types, R relations, N nodes of a type, E edges of a relation, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullgraph.graph.whole import SPLITS, WholeGraph, floating

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

EdgeType = tuple[str, str, str]


@dataclass
class Nodes:
    """The nodes of one type; their ids are 0 .. num_nodes - 1, of which there may be none.

    ``x``, ``y``, ``masks`` and ``num_classes`` are as in `WholeGraph`, for this type alone.
    """

    name: str
    num_nodes: int
    x: Tensor | None = None
    y: Tensor | None = None
    masks: dict[str, Tensor] = field(default_factory=dict)
    num_classes: int = 0


@dataclass
class Relation:
    """The edges of one type, from nodes of type ``source`` to nodes of type ``target``.

    ``edge_index``: [2, E], ids within the two types; multi-edges, self-loops and the order are kept
    as given, and E may be 0. ``edge_weight`` [E] and ``edge_attr`` [E, D]: floating, or None.
    """

    source: str
    name: str
    target: str
    edge_index: Tensor
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None

    @property
    def key(self) -> EdgeType:
        return self.source, self.name, self.target

    @property
    def num_edges(self) -> int:
        return int(self.edge_index.shape[1])


@dataclass
class TypedGraph:
    """Types of nodes and relations between them, in the caller's order.

    Put one after the other in this order, nodes and edges have ids of the whole graph too: the
    first of its type (`node_offsets`) or relation (`edge_offsets`) plus the position there.
    """

    name: str
    nodes: tuple[Nodes, ...]
    relations: tuple[Relation, ...]

    @property
    def num_nodes(self) -> int:
        return self.node_offsets[-1]

    @property
    def num_edges(self) -> int:
        return self.edge_offsets[-1]

    @property
    def node_offsets(self) -> list[int]:
        """T + 1 numbers: the whole graph's id of each type's first node, then the count of all."""
        return [0, *accumulate(nodes.num_nodes for nodes in self.nodes)]

    @property
    def edge_offsets(self) -> list[int]:
        """R + 1 numbers: the same for edges."""
        return [0, *accumulate(relation.num_edges for relation in self.relations)]

    def type_index(self, name: str) -> int:
        return [nodes.name for nodes in self.nodes].index(name)

    def union(self, labelled: Tensor) -> WholeGraph:
        """All nodes and edges with the ids of the whole graph, and the relation of each edge.

        labelled: bool, over all nodes; it becomes the training mask, which partitioning balances.
        """
        ids = torch.int32 if self.num_nodes < 2**31 else torch.int64
        offset = dict(zip((nodes.name for nodes in self.nodes), self.node_offsets))
        edges = [torch.empty(2, 0, dtype=ids)]
        for relation in self.relations:
            first = torch.tensor([[offset[relation.source]], [offset[relation.target]]], dtype=ids)
            edges.append(relation.edge_index.to(ids) + first)
        counts = torch.tensor([relation.num_edges for relation in self.relations], dtype=torch.long)
        return WholeGraph(
            name=self.name,
            edge_index=torch.cat(edges, dim=1),
            num_nodes=self.num_nodes,
            masks={"train": labelled},
            edge_type=torch.repeat_interleave(torch.arange(len(self.relations)), counts),
            num_relations=len(self.relations),
        )

    def to_pyg(self) -> HeteroData:
        """The same graph as a PyG ``HeteroData`` (ids widened to int64, which PyG needs)."""
        from torch_geometric.data import HeteroData

        data = HeteroData()
        for nodes in self.nodes:
            store = data[nodes.name]
            store.num_nodes = nodes.num_nodes
            for key in ("x", "y"):
                if getattr(nodes, key) is not None:
                    store[key] = getattr(nodes, key)
            for key, mask in nodes.masks.items():
                store[f"{key}_mask"] = mask
        for relation in self.relations:
            store = data[relation.key]
            store.edge_index = relation.edge_index.long()
            for key in ("edge_weight", "edge_attr"):
                if getattr(relation, key) is not None:
                    store[key] = getattr(relation, key)
        return data


def canonical_typed(graph: TypedGraph) -> TypedGraph:
    """A validated graph with the dtypes that `WholeGraph` promises; shares what already fits."""
    ids = torch.int32 if graph.num_nodes < 2**31 else torch.int64
    return replace(
        graph,
        nodes=tuple(_canonical_nodes(nodes) for nodes in graph.nodes),
        relations=tuple(
            replace(
                relation,
                edge_index=relation.edge_index.to(ids).contiguous(),
                edge_weight=floating(relation.edge_weight),
                edge_attr=floating(relation.edge_attr),
            )
            for relation in graph.relations
        ),
    )


def _canonical_nodes(nodes: Nodes) -> Nodes:
    y = nodes.y
    if y is not None:
        y = y.to(torch.int64).contiguous() if y.dim() == 1 else floating(y)
    masks = {key: nodes.masks[key].contiguous() for key in SPLITS if key in nodes.masks}
    return replace(nodes, x=floating(nodes.x), y=y, masks=masks)
