"""The whole graph, before it is partitioned: the one form that every source is read into.

Letters: N nodes, E edges, F features, C classes or label columns, D edge columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch_geometric.data import Data

SPLITS = ("train", "val", "test")
KEPT = (torch.float32, torch.float64, torch.bfloat16)  # float dtypes that stay as they came


@dataclass
class WholeGraph:
    """A directed graph with its node and edge data, in the caller's node and edge order.

    ``edge_index``: [2, E], row 0 the source and row 1 the destination of each edge, values in
    0 .. num_nodes - 1; int32 when num_nodes < 2**31, else int64. Multi-edges, self-loops and the
    order of the edges are kept as given. E may be 0.
    ``num_nodes``: N, at least 1; nodes that no edge names are part of the graph.
    ``x``: [N, F] float32, float64 or bfloat16, or None when nodes have no features.
    ``y``: [N] int64 in -1 .. num_classes - 1, where -1 is unknown; or [N, C] floating for
    multi-label graphs; or None.
    ``masks``: bool [N] each, disjoint, under some of "train", "val", "test"; empty means no split.
    ``edge_weight``: [E] floating, or None. ``edge_attr``: [E, D] floating, or None.
    ``edge_type``: [E] int64 in 0 .. num_relations - 1, or None when all edges are alike.
    ``num_classes``: C; 0 when there are no labels. ``num_relations``: 0 when edges have no types.
    `read` counts the classes and the relations where they are 0.
    """

    name: str
    edge_index: Tensor
    num_nodes: int
    x: Tensor | None = None
    y: Tensor | None = None
    masks: dict[str, Tensor] = field(default_factory=dict)
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None
    num_classes: int = 0
    edge_type: Tensor | None = None
    num_relations: int = 0

    @property
    def num_edges(self) -> int:
        return int(self.edge_index.shape[1])

    @property
    def num_features(self) -> int:
        return 0 if self.x is None else int(self.x.shape[1])

    def to_pyg(self) -> Data:
        """The same graph as a PyG ``Data`` (ids widened to int64, which PyG needs)."""
        from torch_geometric.data import Data

        data = Data(edge_index=self.edge_index.long(), num_nodes=self.num_nodes)
        for key in ("x", "y", "edge_weight", "edge_attr", "edge_type"):
            if getattr(self, key) is not None:
                data[key] = getattr(self, key)
        if self.edge_type is not None:
            data.num_relations = self.num_relations
        for key, mask in self.masks.items():
            data[f"{key}_mask"] = mask
        return data


def count_classes(y: Tensor | None) -> int:
    """Largest label + 1 of y [N], the columns of y [N, C], 0 without labels that are classes."""
    if y is not None and y.dim() == 2:
        return int(y.shape[1])
    if y is None or y.numel() == 0 or y.is_floating_point():
        return 0
    return max(int(y.max()) + 1, 0)


def count_relations(edge_type: Tensor | None) -> int:
    """Largest edge type + 1; 0 without types."""
    if edge_type is None or edge_type.numel() == 0 or edge_type.is_floating_point():
        return 0
    return max(int(edge_type.max()) + 1, 0)


def canonical(graph: WholeGraph) -> WholeGraph:
    """A validated graph with the dtypes that `WholeGraph` promises; shares what already fits."""
    ids = torch.int32 if graph.num_nodes < 2**31 else torch.int64
    y, types = graph.y, graph.edge_type
    if y is not None:
        y = y.to(torch.int64) if y.dim() == 1 else floating(y)
    return replace(
        graph,
        edge_index=graph.edge_index.to(ids).contiguous(),
        x=floating(graph.x),
        y=None if y is None else y.contiguous(),
        masks={key: graph.masks[key].contiguous() for key in SPLITS if key in graph.masks},
        edge_weight=floating(graph.edge_weight),
        edge_attr=floating(graph.edge_attr),
        edge_type=None if types is None else types.to(torch.int64).contiguous(),
    )


def floating(values: Tensor | None) -> Tensor | None:
    """Contiguous, and float32 unless it has one of the dtypes that stay as they came."""
    if values is None:
        return None
    return (values if values.dtype in KEPT else values.to(torch.float32)).contiguous()
