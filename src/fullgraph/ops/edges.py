"""Sums over the in-edges of a row of values that live on the edges.

Letters: n owned rows, T targets, E edges on this rank.
"""

from __future__ import annotations

from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.ops.targets import to_owners


def sum_to_targets(graph: DistributedGraph, values: Tensor) -> Tensor:
    """[n]: for every owned row, the sum of `values` [E] over its in-edges. Differentiable; an
    exchange, where edges live elsewhere than their targets."""
    if values.shape != (graph.num_local_edges,):
        raise ValueError(
            f"values must have one entry for each of the {graph.num_local_edges} edges on this "
            f"rank, in the order of graph.edge_id, got shape {tuple(values.shape)}"
        )
    partial = values.new_zeros(graph.num_targets).index_add(0, graph.edge_target, values)
    return to_owners(graph, partial)
