"""The neighbours of each node, and parts of nodes that are next to each other.

Letters: N nodes, E edges, A entries of the adjacency, P parts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.kernels import _ops
from fullgraph.kernels._checks import check, check_ends

WEIGHTS = 3


def neighbours(src: Tensor, dst: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The adjacency of the undirected graph under directed edges, in 4 bytes an entry.

    Edges that are there more than once stay so; loops are left out. Where as many edges lead from
    u to v as from v to u, for all u and v (told by a hash), the sources of a node's in-edges are
    its neighbours; else the targets of its out-edges are, too.

    Args:
        src, dst: int32 or int64 [E] on the CPU, values in 0 .. num_nodes - 1.
        num_nodes: below 2**31.

    Returns:
        offsets: int64 [N + 1]. neighbours: int32 [A], those of node v at offsets[v] ..
        offsets[v + 1] - 1, in the order of the edges; A is at most 2 E.

    Raises:
        ValueError: naming the argument and, of an id out of range, its position.
    """
    check_ends(src, dst)
    if not 0 <= num_nodes < 2**31:
        raise ValueError(f"num_nodes must be 0 or more and below 2**31, got {num_nodes}")
    both = not _ops.native.is_symmetric(src, dst)
    offsets = torch.empty(num_nodes + 1, dtype=torch.int64)
    bad = _ops.native.count_neighbours(src, dst, both, offsets)
    if bad >= 0:
        name, ids = ("src", src) if bad < len(src) else ("dst", dst)
        at = bad % len(src)
        raise ValueError(f"{name}[{at}] is {int(ids[at])}, outside of 0 .. {num_nodes - 1}")
    found = torch.empty(int(offsets[-1]), dtype=torch.int32)
    _ops.native.fill_neighbours(src, dst, both, offsets, found)
    return offsets, found


def ldg(offsets: Tensor, neighbours: Tensor, weights: Tensor, num_parts: int, seed: int) -> Tensor:
    """Parts with few edges between them: linear deterministic greedy (Stanton, Kliot, "Streaming
    Graph Partitioning for Large Distributed Graphs", KDD 2012), streamed several times (Nishimura,
    Ugander, "Restreaming Graph Partitioning", KDD 2013), over clusters of nodes that get smaller.

    Clusters come of label propagation under a limit of weight (Meyerhenke, Sanders, Schulz,
    "Partitioning Complex Networks via Size-constrained Clustering", SEA 2014): a node, later a
    cluster, joins the neighbour that it shares the most edges with. The limit grows fourfold from
    level to level, up to an eighth of a part. Then the largest clusters are streamed in an order
    drawn from the seed, each to the part where its edges, times the share of the part that is free,
    are the most; then those of each level below, and single nodes last, each to the part with the
    most of its edges. A graph of clusters is not made, so that memory beyond the arguments is
    O(N + P).

    Each weight has a limit a part: 1.05 times the mean, or the mean and one heaviest node where
    that is more. A cluster goes where it adds nothing above a limit, else where it adds the least.
    Several weights can have the parts full, each of another; single nodes then trade places, which
    ends within the limits in all graphs that were tried, but that is not proven to.

    Args:
        offsets, neighbours: int64 [N + 1] and int32 [A], as from `neighbours`; entries are not
            looked at.
        weights: int64 [N, 3], 0 or more, with column sums below 2**40.
        seed: any integer; the lowest 64 bits count. The same arguments give the same parts, on any
            machine.

    Returns:
        part: int32 [N], values in 0 .. num_parts - 1.
    """
    cpu = torch.empty(0)
    check("weights", weights, torch.int64, (None, WEIGHTS), cpu)
    check("offsets", offsets, torch.int64, (len(weights) + 1,), cpu)
    check("neighbours", neighbours, torch.int32, (int(offsets[-1]),), cpu)
    if not 1 <= num_parts < 2**31:
        raise ValueError(f"num_parts must be 1 or more, got {num_parts}")
    part = torch.empty(len(weights), dtype=torch.int32)
    _ops.native.ldg(offsets, neighbours, weights, num_parts, seed % 2**64, part)
    return part
