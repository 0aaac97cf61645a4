"""A partitioned graph: its parts, and what describes all of them.

A part is a set of nodes with all edges into them, or, in a vertex cut, with the edges that were
placed there. Letters: N nodes and E edges of the graph, n nodes and E_k edges of part k, P parts,
F features, C classes, D edge columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fullgraph.graph.typed import EdgeType, Nodes, Relation, TypedGraph
from fullgraph.graph.whole import SPLITS, WholeGraph

MASK = "mask."  # masks are listed as mask.train, mask.val, mask.test
NODE_FIELDS = ("x", "y")
EDGE_FIELDS = ("edge_weight", "edge_attr", "edge_type")
DESTINATION, VERTEX_CUT = PLACEMENTS = ("destination", "vertex-cut")


@dataclass(frozen=True)
class Field:
    """One data array that every part has: its name, dtype ("float32") and shape after the first
    dimension. Names are x, y, mask.train, mask.val, mask.test, edge_weight, edge_attr and
    edge_type; "x.2" is that of node type 2, "edge_attr.3" that of relation 3."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def of_edges(self) -> bool:
        return self.base in EDGE_FIELDS

    @property
    def base(self) -> str:
        """The name without the index of a type."""
        return self.name if self.of is None else self.name.rpartition(".")[0]

    @property
    def of(self) -> int | None:
        """The index of the node type or relation whose array this is; None: it is of all."""
        tail = self.name.rpartition(".")[2]
        return int(tail) if tail.isdecimal() else None

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


@dataclass(frozen=True)
class NodeTypeMeta:
    """A type of nodes; ``part_nodes``: how many of them each part has."""

    name: str
    num_features: int
    num_classes: int
    part_nodes: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        return sum(self.part_nodes)


@dataclass(frozen=True)
class RelationMeta:
    """A relation between two types of nodes; ``part_edges``: edges into the nodes of each part."""

    source: str
    name: str
    target: str
    part_edges: tuple[int, ...]

    @property
    def key(self) -> EdgeType:
        return self.source, self.name, self.target

    @property
    def num_edges(self) -> int:
        return sum(self.part_edges)


@dataclass(frozen=True)
class GraphMeta:
    """What a partitioned graph is, without its arrays.

    ``part_nodes``, ``part_edges`` and ``part_labelled`` (nodes in the training mask; all nodes with
    a label when there is no mask) have one entry a part; a part may be empty.
    ``fields``: which arrays exist; see `Field`.
    ``placement``: where edges are: "destination", in the part of the node that they lead into, or
    "vertex-cut", in any part. ``part_held``: of a vertex cut, how many nodes each part holds, which
    are its own and both ends of its edges; otherwise empty.
    ``node_types``, ``relations``: those of a graph with several types of nodes, in their order,
    otherwise empty. Its ``num_classes`` is that of the type with most, its ``num_features`` 0.
    ``fingerprint``: sha256, in hex, of the graph's arrays and of who is in which part, and in which
    order; of a vertex cut, also of which edge is.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    num_parts: int
    part_nodes: tuple[int, ...]
    part_edges: tuple[int, ...]
    part_labelled: tuple[int, ...]
    fields: tuple[Field, ...]
    fingerprint: str
    placement: str = DESTINATION
    part_held: tuple[int, ...] = ()
    num_relations: int = 0
    node_types: tuple[NodeTypeMeta, ...] = ()
    relations: tuple[RelationMeta, ...] = ()

    def field(self, name: str) -> Field | None:
        """The field of this name, or None when the graph does not have it."""
        return next((f for f in self.fields if f.name == name), None)

    @property
    def mask_names(self) -> tuple[str, ...]:
        """Which of "train", "val", "test" exist, in this order."""
        return tuple(key for key in SPLITS if self.field(MASK + key) is not None)

    @property
    def replication(self) -> float | None:
        """The replication factor of a vertex cut: in how many parts a node is, in the mean."""
        return sum(self.part_held) / self.num_nodes if self.part_held else None


@dataclass
class Part:
    """The nodes of part ``index`` and its edges.

    ``node_id``: [n] int64 original ids, distinct, ascending where nodes have types; a node's *row*
    is its position here.
    ``x`` [n, F], ``y`` [n] or [n, C], ``masks`` of bool [n]: as in `WholeGraph`, by row.
    ``source_offsets``: [P + 1] int64; edges whose source is in part q are
    ``source_offsets[q] .. source_offsets[q + 1] - 1``.
    ``src``: [E_k] int32, row within the source's part. ``dst``: [E_k] int32, row within the
    destination's part. ``dst_part``: [E_k] int32, the destination's part; None: always this one.
    ``edge_id``: [E_k] int64, the edge's position in the original graph.
    ``edge_weight`` [E_k], ``edge_attr`` [E_k, D], ``edge_type`` [E_k]: by edge.
    Edges are sorted by (source part, destination part, dst, src, edge_id).

    In a graph with several types of nodes, ids are those of the whole graph (see `TypedGraph`), so
    that rows are in the order of types, ``edge_type`` is the index of the relation, and data are in
    ``by_type`` alone: "x.2" for the rows of node type 2, "edge_attr.3" for the edges of relation 3,
    both in the order that they have here.
    """

    index: int
    node_id: Tensor
    x: Tensor | None
    y: Tensor | None
    masks: dict[str, Tensor]
    source_offsets: Tensor
    src: Tensor
    dst: Tensor
    edge_id: Tensor
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None
    edge_type: Tensor | None = None
    by_type: dict[str, Tensor] = field(default_factory=dict)
    dst_part: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return self.node_id.numel()

    @property
    def num_edges(self) -> int:
        return self.dst.numel()


class Partitioned(Protocol):
    """A partitioned graph, wherever its parts are.

    ``part(k)`` may build or read the part anew at every call, so callers keep what they need.
    """

    @property
    def meta(self) -> GraphMeta: ...

    def part(self, k: int) -> Part: ...


def node_arrays(graph: WholeGraph | Part | Nodes) -> Iterator[tuple[str, Tensor]]:
    """Field name and tensor of every node array that exists, in a fixed order."""
    for name in NODE_FIELDS:
        values = getattr(graph, name)
        if values is not None:
            yield name, values
    for key in SPLITS:
        if key in graph.masks:
            yield MASK + key, graph.masks[key]


def edge_arrays(graph: WholeGraph | Part | Relation) -> Iterator[tuple[str, Tensor]]:
    """Field name and tensor of every edge array that exists, in a fixed order."""
    for name in EDGE_FIELDS:
        values = getattr(graph, name, None)
        if values is not None:
            yield name, values


def fields_of(graph: WholeGraph) -> tuple[Field, ...]:
    return tuple(
        field_of(name, values) for name, values in [*node_arrays(graph), *edge_arrays(graph)]
    )


def field_of(name: str, values: Tensor) -> Field:
    dtype = str(values.dtype).removeprefix("torch.")
    return Field(name, dtype, tuple(map(int, values.shape[1:])))


def labelled(graph: WholeGraph | Nodes) -> Tensor:
    """bool [N]: nodes whose labels the loss sees; without a training mask, nodes with a label."""
    if "train" in graph.masks:
        return graph.masks["train"]
    if graph.y is None:
        return torch.zeros(graph.num_nodes, dtype=torch.bool)
    return graph.y != -1 if graph.y.dim() == 1 else torch.ones(graph.num_nodes, dtype=torch.bool)


def fingerprint(
    graph: WholeGraph, part: Tensor, num_parts: int, order: Tensor | None = None
) -> str:
    """sha256 in hex over every array of the graph, the part [N] of each node, and the nodes [N] in
    the order of parts and rows, where those of a part do not come by id."""
    digest = hashlib.sha256()
    arrays = [("edge_index", graph.edge_index), *node_arrays(graph), *edge_arrays(graph)]
    header: tuple[int, ...] = (graph.num_nodes, graph.num_classes, num_parts)
    if graph.edge_type is not None:
        header = (*header, graph.num_relations)
    digest.update(repr(header).encode())
    _add_arrays(digest, [*arrays, ("part", part)])
    if order is not None:
        _add_arrays(digest, [("order", order)])
    return digest.hexdigest()


def cut_fingerprint(of_graph: str, edge_part: Tensor) -> str:
    """sha256 in hex over the part [E] of each edge, and over that of the graph and its nodes."""
    digest = hashlib.sha256(f"{of_graph} {VERTEX_CUT}".encode())
    _add_arrays(digest, [("edge_part", edge_part)])
    return digest.hexdigest()


def typed_fingerprint(graph: TypedGraph, of_union: str) -> str:
    """sha256 in hex over the names and arrays of a typed graph, and over that of its union."""
    digest = hashlib.sha256(of_union.encode())
    for nodes in graph.nodes:
        digest.update(repr(("nodes", nodes.name, nodes.num_nodes, nodes.num_classes)).encode())
        _add_arrays(digest, node_arrays(nodes))
    for relation in graph.relations:
        digest.update(repr(("relation", relation.key, relation.num_edges)).encode())
        _add_arrays(digest, edge_arrays(relation))
    return digest.hexdigest()


def _add_arrays(digest: hashlib._Hash, arrays: Iterable[tuple[str, Tensor]]) -> None:
    for name, values in arrays:
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(_bytes(values))


def _bytes(values: Tensor) -> memoryview:
    """The tensor's memory, without a copy where it is contiguous."""
    return values.detach().contiguous().view(-1).view(torch.uint8).numpy().data
