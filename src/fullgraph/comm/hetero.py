"""The distributed graph with several types of nodes: a distributed graph for every relation.

Letters: n owned rows of a type, N nodes of a type, E edges of a relation on this rank, F features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn, overload

import torch
from torch import Tensor

from fullgraph.comm.distributed import (
    DEFAULT_BLOCK_BYTES,
    DistributedGraph,
    Edges,
    check_agreement,
    gather_rows,
    join,
)
from fullgraph.comm.exchange import wire_dtype
from fullgraph.comm.group import Group
from fullgraph.comm.plan import ExchangePlan
from fullgraph.comm.schedule import Schedule, sequential
from fullgraph.comm.stale import StaleRows
from fullgraph.comm.traffic import Traffic
from fullgraph.graph.blocks import Ownership, build_blocks
from fullgraph.graph.parts import MASK, GraphMeta, NodeTypeMeta, Partitioned
from fullgraph.graph.relations import RelationParts, TypedParts, UnionParts
from fullgraph.graph.typed import EdgeType
from fullgraph.graph.whole import SPLITS


@dataclass(frozen=True, eq=False)
class OwnedNodes:
    """The nodes of one type that this rank owns.

    ``node_id``: int64 [n], ids within the type, ascending within a part. ``x``: [n, F] or None;
    ``y``: [n] or [n, C] or None; ``masks``: bool [n] by name.
    """

    meta: NodeTypeMeta
    ownership: Ownership
    node_id: Tensor
    x: Tensor | None
    y: Tensor | None
    masks: dict[str, Tensor]

    @property
    def num_nodes(self) -> int:
        """Nodes of this type in the whole graph."""
        return self.meta.num_nodes

    @property
    def num_owned(self) -> int:
        return self.node_id.numel()

    @property
    def num_features(self) -> int:
        return self.meta.num_features

    @property
    def num_classes(self) -> int:
        return self.meta.num_classes

    def _mask(self, name: str) -> Tensor:
        if name not in self.masks:
            raise AttributeError(
                f"node type {self.meta.name!r} has no {name} mask; it has {sorted(self.masks)}"
            )
        return self.masks[name]

    @property
    def train_mask(self) -> Tensor:
        return self._mask("train")

    @property
    def val_mask(self) -> Tensor:
        return self._mask("val")

    @property
    def test_mask(self) -> Tensor:
        return self._mask("test")

    def to(self, device: torch.device | str) -> OwnedNodes:
        """The same rows on another device."""
        return replace(
            self,
            node_id=self.node_id.to(device),
            x=None if self.x is None else self.x.to(device),
            y=None if self.y is None else self.y.to(device),
            masks={name: mask.to(device) for name, mask in self.masks.items()},
        )


@dataclass(eq=False)
class DistributedHeteroGraph:
    """One rank's share of a graph with several types of nodes and of edges.

    A rank owns rows of every type, perhaps none: row i of type "paper" is the paper
    ``node_id_dict["paper"][i]``, and features, labels, masks and outputs of papers have the same
    order. Every relation is a `DistributedGraph` of its own, with

    * sources the owned rows of its source type (``num_sources``), of which its ``x`` are the
      features, and targets those of its target type (``num_owned``, ``node_id``, ``in_degree``);
    * ``edge_id`` the position in the relation's own edge_index.

    Every rank has every type and every relation, in the same order, so that all ranks make the same
    calls. ``hetero["paper"]`` is an `OwnedNodes`, ``hetero["author", "writes", "paper"]`` a
    `DistributedGraph`.

    Attributes:
        group: the ranks that share the graph.
        meta: what is known of the whole graph.
        nodes: the owned nodes of each type.
        edge_index_dict: a `DistributedGraph` for each relation; so called because it goes where
            PyG's `edge_index_dict` went.
        traffic: bytes moved so far, in all relations together, by layer, direction and peer.
    """

    group: Group
    meta: GraphMeta
    schedule: Schedule
    max_block_bytes: int
    ownership: Ownership
    nodes: dict[str, OwnedNodes]
    edge_index_dict: dict[EdgeType, DistributedGraph]
    _parts: TypedParts = field(repr=False)
    traffic: Traffic = field(default_factory=Traffic)
    _union: DistributedGraph | None = field(default=None, repr=False)
    wire: str = "float32"
    stale: StaleRows = field(default_factory=StaleRows, repr=False)

    @staticmethod
    def build(
        partitioned: Partitioned,
        group: Group,
        schedule: str | Schedule | None = None,
        max_block_bytes: int = DEFAULT_BLOCK_BYTES,
        wire: str = "float32",
    ) -> DistributedHeteroGraph:
        """This rank's share of a partitioned graph; every rank of the group calls it.

        Raises ValueError when there are more ranks than parts, and for a graph without node types.
        """
        meta = partitioned.meta
        if max_block_bytes < 1:
            raise ValueError(f"max_block_bytes must be positive, got {max_block_bytes}")
        if not meta.node_types:
            raise ValueError(f"graph {meta.name!r} has no types of nodes: use DistributedGraph")
        chosen = sequential() if schedule is None else Schedule.parse(schedule)
        wire_dtype(wire)
        check_agreement(group, f"{meta.fingerprint} {chosen} {max_block_bytes} {wire}")
        hetero = DistributedHeteroGraph(
            group=group,
            meta=meta,
            schedule=chosen,
            max_block_bytes=max_block_bytes,
            ownership=Ownership.balance(meta, group.size),
            nodes={},
            edge_index_dict={},
            _parts=TypedParts(partitioned),
            wire=wire,
        )
        own = hetero._own_parts()
        held = [hetero._parts.split(k) for k in own]  # read once for all types and relations
        for t, node_type in enumerate(meta.node_types):
            hetero.nodes[node_type.name] = hetero._owned_nodes(t, node_type)
        for r, relation in enumerate(meta.relations):
            hetero.edge_index_dict[relation.key] = hetero._relation(r)
            hetero.edge_index_dict[relation.key].types = hetero.nodes
        del held
        return hetero

    def _own_parts(self) -> range:
        return self.ownership.parts_of(self.group.rank)

    def _owned_nodes(self, t: int, node_type: NodeTypeMeta) -> OwnedNodes:
        own, parts = self._own_parts(), self._parts

        def field_of(name: str) -> Tensor | None:
            return join([parts.split(k).part.by_type.get(f"{name}.{t}") for k in own])

        masks = {key: field_of(MASK + key) for key in SPLITS}
        return OwnedNodes(
            meta=node_type,
            ownership=Ownership.of_parts(self.ownership.first_part, node_type.part_nodes),
            node_id=torch.cat([parts.node_id(k, t) for k in own]),
            x=field_of("x"),
            y=field_of("y"),
            masks={key: mask for key, mask in masks.items() if mask is not None},
        )

    def _relation(self, r: int) -> DistributedGraph:
        relation = self.meta.relations[r]
        sources, targets = self.nodes[relation.source], self.nodes[relation.target]
        view = RelationParts(self._parts, r)
        source_ownership = None if sources is targets else sources.ownership
        graph = self._graph(view, targets.ownership, targets.node_id, source_ownership)
        return _with_nodes(graph, sources, targets)

    def _graph(
        self, view: RelationParts | UnionParts, ownership: Ownership, node_id: Tensor,
        source_ownership: Ownership | None = None,
    ) -> DistributedGraph:  # fmt: skip
        rank = self.group.rank
        parts = [view.part(k) for k in ownership.parts_of(rank)]
        blocks, needed = build_blocks(parts, ownership, rank, source_ownership)
        return DistributedGraph(
            group=self.group,
            meta=view.meta,
            schedule=self.schedule,
            max_block_bytes=self.max_block_bytes,
            ownership=ownership,
            plan=ExchangePlan.build(self.group, needed),
            edges=Edges(blocks),
            node_id=node_id,
            x=None,
            y=None,
            masks={},
            _partitioned=view,
            traffic=self.traffic,
            source_ownership=source_ownership,
            wire=self.wire,
            stale=self.stale,
        )

    # Types -------------------------------------------------------------------------------------

    @property
    def node_types(self) -> list[str]:
        return list(self.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        return list(self.edge_index_dict)

    def metadata(self) -> tuple[list[str], list[EdgeType]]:
        """Node types and edge types, as PyG's `HeteroData.metadata`."""
        return self.node_types, self.edge_types

    @overload
    def __getitem__(self, key: str) -> OwnedNodes: ...
    @overload
    def __getitem__(self, key: EdgeType) -> DistributedGraph: ...

    def __getitem__(self, key: str | EdgeType) -> OwnedNodes | DistributedGraph:
        found = self.nodes.get(key) if isinstance(key, str) else self.edge_index_dict.get(key)
        if found is None:
            raise KeyError(f"{key!r} is neither of {self.node_types} nor of {self.edge_types}")
        return found

    def __iter__(self) -> NoReturn:
        raise TypeError("a DistributedHeteroGraph cannot be unpacked; see nodes, edge_index_dict")

    # Nodes -------------------------------------------------------------------------------------

    @property
    def node_id_dict(self) -> dict[str, Tensor]:
        """int64 [n]: ids within the type of the owned rows."""
        return {name: nodes.node_id for name, nodes in self.nodes.items()}

    @property
    def x_dict(self) -> dict[str, Tensor]:
        """[n, F] of the types that have features."""
        return {name: nodes.x for name, nodes in self.nodes.items() if nodes.x is not None}

    @property
    def y_dict(self) -> dict[str, Tensor]:
        """[n] or [n, C] of the types that have labels."""
        return {name: nodes.y for name, nodes in self.nodes.items() if nodes.y is not None}

    def _mask_dict(self, key: str) -> dict[str, Tensor]:
        return {name: nodes.masks[key] for name, nodes in self.nodes.items() if key in nodes.masks}

    @property
    def train_mask_dict(self) -> dict[str, Tensor]:
        """bool [n] of the types that have a training mask."""
        return self._mask_dict("train")

    @property
    def val_mask_dict(self) -> dict[str, Tensor]:
        """bool [n] of the types that have a validation mask."""
        return self._mask_dict("val")

    @property
    def test_mask_dict(self) -> dict[str, Tensor]:
        """bool [n] of the types that have a test mask."""
        return self._mask_dict("test")

    @property
    def num_nodes_dict(self) -> dict[str, int]:
        """Nodes of each type in the whole graph."""
        return {name: nodes.num_nodes for name, nodes in self.nodes.items()}

    @property
    def num_owned_dict(self) -> dict[str, int]:
        """Rows of each type that this rank owns."""
        return {name: nodes.num_owned for name, nodes in self.nodes.items()}

    @property
    def num_features_dict(self) -> dict[str, int]:
        """Columns of x, of the types that have features."""
        return {name: self.nodes[name].num_features for name in self.x_dict}

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph, of all types."""
        return self.meta.num_nodes

    # Edges -------------------------------------------------------------------------------------

    def _per_relation(
        self, get: Callable[[DistributedGraph], Tensor | None]
    ) -> dict[EdgeType, Tensor]:
        held = [self._parts.split(k) for k in self._own_parts()]  # read once for all relations
        found = {key: get(graph) for key, graph in self.edge_index_dict.items()}
        del held
        return {key: values for key, values in found.items() if values is not None}

    @property
    def edge_id_dict(self) -> dict[EdgeType, Tensor]:
        """int64 [E] of every relation: the position of each edge in its edge_index."""
        return self._per_relation(lambda graph: graph.edge_id)

    @property
    def edge_weight_dict(self) -> dict[EdgeType, Tensor]:
        """[E] of the relations that have weights, in the order of the relation's `edge_id`."""
        return self._per_relation(lambda graph: graph.edge_weight)

    @property
    def edge_attr_dict(self) -> dict[EdgeType, Tensor]:
        """[E, D] of the relations that have attributes, in the order of their `edge_id`."""
        return self._per_relation(lambda graph: graph.edge_attr)

    # All types together ------------------------------------------------------------------------

    @property
    def union(self) -> DistributedGraph:
        """All types and relations as one graph, for layers whose softmax or mean mixes relations.

        Its rows are the owned rows of type 0, then those of type 1, and so on: `union_slices`. Its
        ``edge_type`` is the index of the relation in `edge_types`, ``edge_id`` the edges of the
        relations before plus the position in the relation, ``node_id`` the nodes of the types
        before plus the id within the type. It has no x, y, masks or edge data of its own.

        Built when it is first asked for, which takes an exchange: every rank of the group has to
        ask for it at the same point.
        """
        if self._union is None:
            view = UnionParts(self._parts, self.ownership.first_part)
            held = [self._parts.split(k) for k in self._own_parts()]
            ids = [
                first + nodes.node_id.cpu()
                for first, nodes in zip(self._parts.first_node, self.nodes.values())
            ]
            device = next(iter(self.nodes.values())).node_id.device
            with torch.inference_mode(False), torch.no_grad():
                graph = self._graph(view, view.ownership, torch.cat(ids))
            self._union = graph if device.type == "cpu" else graph.to(device)
            del held
        return self._union

    @property
    def union_slices(self) -> dict[str, slice]:
        """The rows of each type among those of `union`."""
        slices, first = {}, 0
        for name, nodes in self.nodes.items():
            slices[name] = slice(first, first + nodes.num_owned)
            first += nodes.num_owned
        return slices

    # Views -------------------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> DistributedHeteroGraph:
        """The same graph with its edges and rows on another device, where its models then are."""
        view = copy.copy(self)
        view.nodes = {name: nodes.to(device) for name, nodes in self.nodes.items()}
        view.edge_index_dict = {}
        for key, graph in self.edge_index_dict.items():
            bare = copy.copy(graph)
            bare.x, bare.y, bare.masks = None, None, {}  # so that they are moved once
            source, _, target = key
            view.edge_index_dict[key] = _with_nodes(
                bare.to(device), view.nodes[source], view.nodes[target]
            )
            view.edge_index_dict[key].types = view.nodes
        view._union = None if self._union is None else self._union.to(device)
        view.stale = StaleRows()
        view._share_stale()
        return view

    @property
    def exact(self) -> bool:
        """Whether training on it gives what one process gives."""
        return self.schedule.exact and self.wire == "float32"

    def with_schedule(
        self, schedule: str | Schedule, wire: str | None = None
    ) -> DistributedHeteroGraph:
        """The same graph under another schedule, and wire where given; edges, rows and the account
        are shared, and nothing that is stale."""
        view = copy.copy(self)
        view.schedule = chosen = Schedule.parse(schedule)
        view.wire, view.stale = self.wire if wire is None else wire, StaleRows()
        view.edge_index_dict = {
            key: graph.with_schedule(chosen, wire) for key, graph in self.edge_index_dict.items()
        }
        if self._union is not None:
            view._union = self._union.with_schedule(chosen, wire)
        view._share_stale()
        return view

    def _share_stale(self) -> None:
        for graph in (*self.edge_index_dict.values(), self._union):
            if graph is not None:
                graph.stale = self.stale

    def forget(self) -> None:
        """Drop what was kept from step to step. Every rank calls it, after a change to features."""
        for graph in self.edge_index_dict.values():
            graph.forget()
        if self._union is not None:
            self._union.forget()

    # Results -----------------------------------------------------------------------------------

    def gather(self, node_type: str, rows: Tensor) -> Tensor | None:
        """Rows of one type of all ranks by their id, [N, ...], on rank 0; None elsewhere.

        rows: [n, ...] of this rank, in the order of ``node_id_dict[node_type]``. Every rank of the
        group calls it with the same type.
        """
        nodes = self[node_type]
        return gather_rows(
            self.group, rows, nodes.node_id, nodes.ownership.num_owned, nodes.num_nodes
        )


def _with_nodes(
    graph: DistributedGraph, sources: OwnedNodes, targets: OwnedNodes
) -> DistributedGraph:
    """Give a relation the tensors of its types: the same objects, by which layers know them."""
    graph.x, graph.y, graph.masks = sources.x, targets.y, targets.masks
    graph.node_id = targets.node_id
    return graph
