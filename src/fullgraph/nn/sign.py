"""SIGN's precomputed features: propagated once, after which the model is one of rows alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.nn.normalize import gcn_normalized
from fullgraph.nn.rows import RowFunctions


@torch.no_grad()
def sign(graph: DistributedGraph, num_hops: int) -> list[Tensor]:
    """x, Âx, Â²x, ..., Â^num_hops x for the owned rows, with Â = D^-1/2 A D^-1/2.

    What `torch_geometric.transforms.SIGN(num_hops)` computes (arXiv 2004.11198): no self-loops are
    added, and the graph's edge weights count where it has some. An MLP on
    ``torch.cat(fullgraph.sign(graph, 3), dim=1)`` then needs no graph. Without gradients; every
    rank calls it.

    Args:
        num_hops: how often to propagate, 0 or more.

    Returns:
        num_hops + 1 tensors [n, F]; the first is `graph.x` itself.

    Raises:
        ValueError: the graph has no features, or `num_hops` is negative.
    """
    if num_hops < 0:
        raise ValueError(f"num_hops must be 0 or more, got {num_hops}")
    if graph.x is None:
        raise ValueError(f"graph {graph.meta.name!r} has no features x to propagate")
    hops = [graph.x]
    x = graph.x.detach()  # not graph.x itself, of which aggregations are kept
    with RowFunctions(graph, seed=0, step=0):
        norm = gcn_normalized(graph, graph.edge_weight, None, x.dtype)
        for hop in range(num_hops):
            x = norm.aggregate(x, "sum", f"sign.{hop + 1}")
            hops.append(x)
    return hops
