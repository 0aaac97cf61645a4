"""A vertex cut: which edge goes to which part, and which part owns a node.

Letters: N nodes, E edges, P parts. A set of parts is ceil(P / 64) words of int64, part k being bit
k mod 64 of word k / 64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.kernels import _ops
from fullgraph.kernels._checks import check, check_ends


def libra(
    src: Tensor, dst: Tensor, num_nodes: int, num_parts: int, seed: int,
    max_edges: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Libra's greedy vertex cut: edges go to parts one after the other, and nodes where their edges
    go. Of DistGNN (Md et al., SC 2021, arXiv 2104.06700), after Xie et al., "Distributed Power-law
    Graph Computing: Theoretical and Empirical Analysis", NIPS 2014.

    With A(x) the parts that hold node x so far, an edge from u to v goes to the part with the
    fewest edges, ties drawn from the seed, among

    * all parts, where neither A(u) nor A(v) has any;
    * the parts of A(u) or A(v), where only one has any;
    * A(u) ∩ A(v), where that has any;
    * else the A of whichever of u and v has the lower degree (in + out), of v when they are equal,
      so that it is the other, with many edges to spread, which gets another copy.

    A part with `max_edges` edges takes no more. Where that leaves no part of those above, the edge
    goes to the one with the fewest edges of all that are not full.

    The rule does not say in which order edges come. DistGNN's code takes them as they are listed;
    in a list that follows a search of the graph, each edge meets a node that the first part holds,
    and that part gets them all. Here destinations come in an order drawn from the seed, each with
    all its edges, which places about as few copies as a list by destination does, and fewer than
    edges in random order.

    Self-loops are not placed, being of use nowhere but with their node's owner; they count in
    degrees. The same arguments give the same result, on any machine.

    Args:
        src, dst: int32 or int64 [E] on the CPU, values in 0 .. num_nodes - 1.
        seed: any integer; the lowest 64 bits count.
        max_edges: at least (edges that are no loops) / P; None: no limit.

    Returns:
        edge_part: int32 [E], -1 for a self-loop. holders: the set of parts, int64
        [N, ceil(P / 64)], that have an edge of the node; empty for a node without any.

    Raises:
        ValueError: naming the argument and, of an id out of range, its position.
    """
    check_ends(src, dst)
    if not 1 <= num_parts < 2**31:
        raise ValueError(f"num_parts must be 1 or more, got {num_parts}")
    if num_nodes < 0:
        raise ValueError(f"num_nodes must be 0 or more, got {num_nodes}")
    offsets = torch.empty(num_nodes + 1, dtype=torch.int64)
    order = torch.empty(src.shape, dtype=torch.int64)
    _check_ids("dst", dst, _ops.native.group_by(dst, offsets, order), num_nodes)
    if max_edges is None:
        max_edges = src.numel()
    elif max_edges * num_parts < (needed := int((src != dst).sum())):
        raise ValueError(
            f"max_edges is {max_edges}: {num_parts} parts cannot take {needed} edges; make it at "
            f"least {-(-needed // num_parts)}"
        )
    edge_part = torch.empty(src.shape, dtype=torch.int32)
    holders = torch.zeros(num_nodes, -(-num_parts // 64), dtype=torch.int64)
    bad = _ops.native.libra(
        src, offsets, order, num_parts, seed % 2**64, max_edges, edge_part, holders
    )
    _check_ids("src", src, bad, num_nodes)
    return edge_part, holders


def _check_ids(name: str, ids: Tensor, bad: int, num_nodes: int) -> None:
    if bad >= 0:
        raise ValueError(f"{name}[{bad}] is {int(ids[bad])}, outside of 0 .. {num_nodes - 1}")


def choose_owners(holders: Tensor, num_parts: int, labelled: Tensor) -> Tensor:
    """The owner of each node, int32 [N]: one of its holders; any part for a node that has none.

    Chosen so that parts own about equally many nodes, and labelled nodes: a node goes to the part
    that has the fewest so far, a labelled one to the part with the fewest labelled ones, the first
    of equals; nodes with one holder come first, nodes without any last.

    Args:
        holders: sets of parts, int64 [N, ceil(P / 64)], as from `libra`.
        labelled: bool [N].
    """
    cpu = torch.empty(0)
    check("holders", holders, torch.int64, (None, -(-num_parts // 64)), cpu)
    check("labelled", labelled, torch.bool, (holders.shape[0],), cpu)
    owner = torch.empty(holders.shape[0], dtype=torch.int32)
    _ops.native.choose_owners(holders, labelled.view(torch.uint8), num_parts, owner)
    return owner
