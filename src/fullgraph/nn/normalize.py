"""Symmetric normalisation of a distributed graph, by scaling rows rather than edges.

D^-1/2 A D^-1/2 x = s · (A (s · x)) with s = D^-1/2: no weight for each edge has to be stored, and
no degree ever leaves its owner. Kipf and Welling, arXiv 1609.02907, eq. 2.

Letters: n owned rows, E edges on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.nn.rows import drop_edges, outside_rows
from fullgraph.ops.aggregate import aggregate
from fullgraph.ops.edges import sum_to_targets


@dataclass(frozen=True)
class Normalized:
    """diag(scale) A diag(scale), with the edge weights `weight` in A.

    ``weight``: [E] in the edge order of `graph`, or None for ones; ``scale``: [n], or None where
    there is no normalisation. Either may have a gradient.
    """

    graph: DistributedGraph
    weight: Tensor | None
    scale: Tensor | None

    @outside_rows
    def aggregate(self, x: Tensor, reduce: str, layer: str) -> Tensor:
        scale, weight = self.scale, self.weight
        if scale is None:
            return aggregate(self.graph, x, reduce, weight=weight, layer=layer)
        if scale.requires_grad or reduce in ("max", "min"):
            out = aggregate(self.graph, x * scale.unsqueeze(1), reduce, weight=weight, layer=layer)
            return out * scale.unsqueeze(1)
        return aggregate(
            self.graph, x, reduce, weight=weight, source_scale=scale, target_scale=scale,
            layer=layer,
        )  # fmt: skip

    def with_edge_dropout(self, p: float, dtype: torch.dtype) -> Normalized:
        """Dropout on the weights of the edges, keyed on their ids.

        The scaling of rows by degrees stays out of it: it is a positive factor of each weight.
        """
        weight = self.weight
        if weight is None:
            weight = torch.ones(
                self.graph.num_local_edges, dtype=dtype, device=self.graph.node_id.device
            )
        return replace(self, weight=drop_edges(weight, self.graph, p))


@outside_rows
def gcn_normalized(
    graph: DistributedGraph, weight: Tensor | None, fill: float | None, dtype: torch.dtype
) -> Normalized:
    """What PyG's `gcn_norm` computes, for a distributed graph.

    Args:
        weight: [E] or None.
        fill: weight of the self-loops that are added where a node has none; None adds none. In a
            graph without weights every loop counts 1, whatever `fill` says, as in PyG (whose
            `improved=True` therefore needs weights to have an effect).
        dtype: of the result where `weight` is None.
    """
    key = ("gcn_norm", fill, dtype)
    learned = weight is not None and weight.requires_grad  # without gradients enabled, too
    found = None if learned else graph.kept((*key, "scale"), [weight])
    if found is not None:
        looped = graph if fill is None else graph.with_self_loops()
        return Normalized(looped, graph.kept((*key, "weight"), [weight]), found)
    looped, edge_weight = graph, weight
    if fill is not None:
        looped = graph.with_self_loops()
        if weight is not None:
            edge_weight = graph.extend_to_self_loops(weight, fill)
    if edge_weight is None:
        degree = looped.in_degree.to(dtype)
    else:
        degree = sum_to_targets(looped, edge_weight)
    scale = degree.pow(-0.5)
    scale = scale.masked_fill(scale == float("inf"), 0.0)
    if not learned:
        graph.keep((*key, "scale"), [weight], scale)
        if edge_weight is not None:
            graph.keep((*key, "weight"), [weight], edge_weight)
    return Normalized(looped, edge_weight, scale)
