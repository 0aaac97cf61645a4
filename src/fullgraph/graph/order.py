"""The order of nodes within a part. Sums over edges read rows at random: in an order where
neighbours are near each other, the rows of one are in the caches when the other's are summed. And
rows that another part needs are sent: where there are two, they come last, and leave from where
they are, as a run of rows. (The rows that one of many parts needs are no run in any order.)

Letters: N nodes, E edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.graph.assign import assign_parts
from fullgraph.graph.whole import WholeGraph

ORDERS = ("given", "clusters")
CLUSTER_NODES = 4096  # rows of 128 numbers that a second-level cache holds


def check_order(order: str) -> None:
    """Raises ValueError unless it is one of `ORDERS`."""
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is unknown; choose one of {', '.join(ORDERS)}")


def clusters(graph: WholeGraph, order: str, seed: int) -> Tensor | None:
    """The cluster of every node, int32 [N], by which the nodes of a part come; None where they
    come as they were given: they are to, or are few.

    Args:
        order: "given" or "clusters", of about `CLUSTER_NODES` nodes with few edges between them
            (see `kernels.ldg`). The same arguments give the same clusters.
    """
    check_order(order)
    count = graph.num_nodes // CLUSTER_NODES
    if order == "given" or count < 2:
        return None
    return assign_parts(graph, count, "ldg", seed)


def outer(graph: WholeGraph, assignment: Tensor, edge_part: Tensor) -> Tensor:
    """bool [N]: whether an edge in another part starts from the node.

    assignment: the part of each node, [N]; edge_part: that of each edge, [E].
    """
    source = graph.edge_index[0].long()
    found = torch.zeros(graph.num_nodes, dtype=torch.bool)
    found[source[assignment[source] != edge_part]] = True
    return found
