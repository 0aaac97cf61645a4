"""A partitioned graph: its parts, and what describes all of them.

A part is a set of nodes with all edges into them. Letters: N nodes and E edges of the graph,
n nodes and E_k edges of part k, P parts, F features, C classes, D edge columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fullgraph.graph.whole import SPLITS, WholeGraph

MASK = "mask."  # masks are listed as mask.train, mask.val, mask.test
NODE_FIELDS = ("x", "y")
EDGE_FIELDS = ("edge_weight", "edge_attr", "edge_type")


@dataclass(frozen=True)
class Field:
    """One data array that every part has: its name, dtype ("float32") and shape after the first
    dimension. Names are x, y, mask.train, mask.val, mask.test, edge_weight, edge_attr and
    edge_type."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def of_edges(self) -> bool:
        return self.name in EDGE_FIELDS

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


@dataclass(frozen=True)
class GraphMeta:
    """What a partitioned graph is, without its arrays.

    ``part_nodes``, ``part_edges`` (in-edges) and ``part_labelled`` (nodes in the training mask; all
    nodes with a label when there is no mask) have one entry a part; a part may be empty.
    ``fields``: which arrays exist; see `Field`.
    ``fingerprint``: sha256, in hex, of the graph's arrays and of who is in which part.
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
    placement: str = "destination"
    num_relations: int = 0

    def field(self, name: str) -> Field | None:
        """The field of this name, or None when the graph does not have it."""
        return next((f for f in self.fields if f.name == name), None)

    @property
    def mask_names(self) -> tuple[str, ...]:
        """Which of "train", "val", "test" exist, in this order."""
        return tuple(key for key in SPLITS if self.field(MASK + key) is not None)


@dataclass
class Part:
    """The nodes of part ``index`` and the edges into them.

    ``node_id``: [n] int64 original ids, ascending; a node's *row* is its position here.
    ``x`` [n, F], ``y`` [n] or [n, C], ``masks`` of bool [n]: as in `WholeGraph`, by row.
    ``source_offsets``: [P + 1] int64; edges whose source is in part q are
    ``source_offsets[q] .. source_offsets[q + 1] - 1``.
    ``src``: [E_k] int32, row within the source's part. ``dst``: [E_k] int32, row within this part.
    ``edge_id``: [E_k] int64, the edge's position in the original graph.
    ``edge_weight`` [E_k], ``edge_attr`` [E_k, D], ``edge_type`` [E_k]: by edge.
    Edges are sorted by (source part, dst, src, edge_id).
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


def node_arrays(graph: WholeGraph | Part) -> Iterator[tuple[str, Tensor]]:
    """Field name and tensor of every node array that exists, in a fixed order."""
    for name in NODE_FIELDS:
        values = getattr(graph, name)
        if values is not None:
            yield name, values
    for key in SPLITS:
        if key in graph.masks:
            yield MASK + key, graph.masks[key]


def edge_arrays(graph: WholeGraph | Part) -> Iterator[tuple[str, Tensor]]:
    """Field name and tensor of every edge array that exists, in a fixed order."""
    for name in EDGE_FIELDS:
        values = getattr(graph, name)
        if values is not None:
            yield name, values


def fields_of(graph: WholeGraph) -> tuple[Field, ...]:
    arrays = [*node_arrays(graph), *edge_arrays(graph)]
    return tuple(
        Field(name, str(values.dtype).removeprefix("torch."), tuple(map(int, values.shape[1:])))
        for name, values in arrays
    )


def labelled(graph: WholeGraph) -> Tensor:
    """bool [N]: nodes whose labels the loss sees; without a training mask, nodes with a label."""
    if "train" in graph.masks:
        return graph.masks["train"]
    if graph.y is None:
        return torch.zeros(graph.num_nodes, dtype=torch.bool)
    return graph.y != -1 if graph.y.dim() == 1 else torch.ones(graph.num_nodes, dtype=torch.bool)


def fingerprint(graph: WholeGraph, part: Tensor, num_parts: int) -> str:
    """sha256 in hex over every array of the graph and the part [N] of each node."""
    digest = hashlib.sha256()
    arrays = [("edge_index", graph.edge_index), *node_arrays(graph), *edge_arrays(graph)]
    header: tuple[int, ...] = (graph.num_nodes, graph.num_classes, num_parts)
    if graph.edge_type is not None:
        header = (*header, graph.num_relations)
    digest.update(repr(header).encode())
    for name, values in [*arrays, ("part", part)]:
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(_bytes(values))
    return digest.hexdigest()


def _bytes(values: Tensor) -> memoryview:
    """The tensor's memory, without a copy where it is contiguous."""
    return values.detach().contiguous().view(-1).view(torch.uint8).numpy().data
