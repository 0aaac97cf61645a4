"""A vertex cut of a graph: the part of each edge, and of each node the part that owns it.

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

import math

from torch import Tensor

from fullgraph import kernels
from fullgraph.graph.parts import labelled
from fullgraph.graph.whole import WholeGraph


def cut_vertices(
    graph: WholeGraph, num_parts: int, seed: int = 0, balance: float | None = None
) -> tuple[Tensor, Tensor]:
    """The owner of each node, int32 [N], and the part of each edge, int32 [E].

    Edges go where Libra's greedy rule puts them (`kernels.libra`), so that few nodes are in many
    parts. A node is owned by one of the parts that have an edge of it, such that parts own about
    equally many nodes and labelled nodes; a node without edges to others by one with few
    (`kernels.choose_owners`). A self-loop is with the owner of its node, whose row is all it needs.

    Args:
        balance: no part gets more edges than this times the mean, loops not counted; at least 1.
            None: as the rule has it, which puts the edges of a star, say, all in one part.
    """
    src, dst = graph.edge_index
    loops = (src == dst).nonzero().view(-1)
    max_edges = None
    if balance is not None:
        placed = graph.num_edges - loops.numel()
        max_edges = max(math.ceil(balance * placed / num_parts), -(-placed // num_parts))
    edge_part, holders = kernels.libra(src, dst, graph.num_nodes, num_parts, seed, max_edges)
    owner = kernels.choose_owners(holders, num_parts, labelled(graph))
    edge_part[loops] = owner[src[loops].long()]
    return owner, edge_part
