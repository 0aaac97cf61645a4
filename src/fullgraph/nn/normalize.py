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

    ``weight``: [E] in the edge order of `graph`, or None for ones; ``scale``: [m], of the rows that
    edges start from, or None where there is no normalisation. Either may have a gradient.
    """

    graph: DistributedGraph
    weight: Tensor | None
    scale: Tensor | None

    @outside_rows
    def aggregate(self, x: Tensor, reduce: str, layer: str) -> Tensor:
        scale, weight = self.scale, self.weight
        if scale is None:
            return aggregate(self.graph, x, reduce, weight=weight, layer=layer)
        rows = self.graph.target_rows
        at_target = scale if rows is None else scale[rows]
        if scale.requires_grad or reduce in ("max", "min"):
            out = aggregate(self.graph, x * scale.unsqueeze(1), reduce, weight=weight, layer=layer)
            return out * at_target.unsqueeze(1)
        return aggregate(
            self.graph, x, reduce, weight=weight, source_scale=scale, target_scale=at_target,
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
        weight: [E] or None; in a layer of `for_seeds`, of the edges of the graph it is from, as
            normalisation goes by the degrees there.
        fill: weight of the self-loops that are added where a node has none; None adds none. In a
            graph without weights every loop counts 1, whatever `fill` says, as in PyG (whose
            `improved=True` therefore needs weights to have an effect).
        dtype: of the result where `weight` is None.
    """
    graph.require_one_type("GCN normalisation")
    if graph.source_rows is not None and graph.base is not None:
        return _on_layer(graph, _normalized(graph.base, weight, fill, dtype), weight, fill)
    return _normalized(graph, weight, fill, dtype)


def _normalized(
    graph: DistributedGraph, weight: Tensor | None, fill: float | None, dtype: torch.dtype
) -> Normalized:
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


def _on_layer(
    graph: DistributedGraph, whole: Normalized, weight: Tensor | None, fill: float | None
) -> Normalized:
    """A layer of `for_seeds` under the normalisation of the graph that it is from."""
    weight = None if weight is None else graph.from_base_edges(weight)
    if fill is not None:
        weight = None if weight is None else graph.extend_to_self_loops(weight, fill)
        graph = graph.with_self_loops()
    scale = whole.scale
    assert scale is not None
    assert graph.source_rows is not None
    return Normalized(graph, weight, scale[graph.source_rows])
