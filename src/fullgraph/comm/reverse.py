"""The graph with every edge turned round, and the way of edge values between the two.

Under the placement `destination` an edge lives with the owner of its destination, so turning it
round moves it to the owner of what was its source. Under others it stays where it is, and what a
rank gathered and what it returned change places.

Letters: E edges on this rank, E' edges of the reversed graph on this rank.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.comm.distributed import PER_EDGE, DistributedGraph, Edges, ordinary_tensors
from fullgraph.comm.group import Group
from fullgraph.comm.plan import ExchangePlan
from fullgraph.comm.targets import Targets
from fullgraph.graph.blocks import make_block
from fullgraph.kernels import group_by


@dataclass(frozen=True)
class EdgeMove:
    """The way of values from edges to the same edges reversed, and back.

    ``leaving[q]`` edges of this rank, one slice after the other, start from rows of rank q;
    ``arriving[r]`` come from rank r. ``order``: int64 [E'], for each reversed edge its place among
    those that arrive.
    """

    group: Group
    leaving: list[int]
    arriving: list[int]
    order: Tensor

    def there(self, values: Tensor) -> Tensor:
        """[E', ...] from [E, ...]; an exchange."""
        return self._exchange(values, self.leaving, self.arriving)[self.order]

    def back(self, values: Tensor) -> Tensor:
        """[E, ...] from [E', ...]; an exchange."""
        arrived = torch.empty_like(values)
        arrived[self.order] = values
        return self._exchange(arrived, self.arriving, self.leaving)

    def _exchange(self, values: Tensor, sizes: list[int], sizes_in: list[int]) -> Tensor:
        kind = torch.uint8 if values.dtype == torch.bool else values.dtype
        outgoing = list(values.detach().to(kind).contiguous().split(sizes))
        incoming = [outgoing[0].new_empty(size, *values.shape[1:]) for size in sizes_in]
        incoming[self.group.rank] = outgoing[self.group.rank]
        self.group.exchange(outgoing, incoming, "values of edges")
        return torch.cat(incoming).to(values.dtype)


def reverse(graph: DistributedGraph) -> tuple[DistributedGraph, EdgeMove]:
    """The graph with every edge turned round, and the way of edge values to it. A collective.

    Raises ValueError for relations between two types of nodes, for layers of `for_seeds`, and for a
    grid with slices of the columns.
    """
    graph.require_one_type("turning edges round")
    if graph.placement.feats > 1:
        raise ValueError(
            f"turning edges round is not supported under the placement {graph.placement}; use a "
            "grid with K = 1"
        )
    if graph.target_rows is not None:
        raise ValueError("the edges of a layer of for_seeds cannot be turned round")
    with ordinary_tensors():
        targets = None
        if graph.targets is None:
            move, new_edges, plan = _turn(graph)
        else:
            move, new_edges, plan, targets = _turn_in_place(graph, graph.targets)
        view = copy.copy(graph)
        view.edges, view.plan, view.targets = new_edges, plan, targets
        view._kept, view._looped, view._reversed, view.base = {}, None, None, None
        view.layer_cache = weakref.WeakKeyDictionary()
        for name in PER_EDGE:
            view.__dict__.pop(name, None)
        view.count_in_degrees()
        view.edge_id = move.there(graph.edge_id)
        if not graph.edges.adds_loops:
            for name in ("edge_weight", "edge_attr", "edge_type"):
                values = getattr(graph, name)
                view.__dict__[name] = None if values is None else move.there(values)
    return view, move


def _turn(graph: DistributedGraph) -> tuple[EdgeMove, Edges, ExchangePlan]:
    group, rank, n = graph.group, graph.group.rank, graph.num_owned
    blocks = [block.to("cpu") for block in graph.edges.blocks]
    sizes = torch.zeros(group.size, group.size, dtype=torch.int64)
    sizes[rank] = torch.tensor([block.num_edges for block in blocks])
    group.all_reduce(sizes, "the sizes of reversed blocks")
    leaving, arriving = sizes[rank].tolist(), sizes[:, rank].tolist()
    # An edge goes to the owner of its source as (place among the rows it sends here, row here).
    outgoing = [torch.stack([block.cols, block.edge_rows()], dim=1) for block in blocks]
    incoming = [torch.empty(size, 2, dtype=torch.int32) for size in arriving]
    incoming[rank] = outgoing[rank]
    group.exchange(outgoing, incoming, "reversed edges")
    new_blocks, needed, orders = [], [], []
    first_edge = 0
    for peer, edges in enumerate(incoming):
        place, source = edges[:, 0], edges[:, 1].contiguous()
        if peer == rank:
            target, num_sources = place.contiguous(), n
            rows = torch.empty(0, dtype=torch.int32)
        else:
            target = graph.plan.send_rows[peer].cpu()[place.long()]
            rows, source = torch.unique(source, return_inverse=True)
            source, num_sources = source.to(torch.int32), rows.numel()
        by_source = group_by(source, num_sources)[1]
        order = by_source[group_by(target[by_source].contiguous(), n)[1]]
        block = make_block(
            peer, target[order], source[order], n, num_sources, first_edge, peer != rank
        )
        new_blocks.append(block.to(graph.node_id.device))
        needed.append(rows)
        orders.append(order + first_edge)
        first_edge += block.num_edges
    order = torch.cat(orders).to(graph.node_id.device)
    plan = ExchangePlan.build(group, needed)
    return EdgeMove(group, leaving, arriving, order), Edges(new_blocks), plan


def _turn_in_place(
    graph: DistributedGraph, targets: Targets
) -> tuple[EdgeMove, Edges, ExchangePlan, Targets]:
    """Targets become sources: own rows, or places among the rows of their owner that their plan
    fetches. Sources become targets: own rows, and after them those that the graph's plan fetches.
    """
    group, rank, n = graph.group, graph.group.rank, graph.num_owned
    blocks = [block.to("cpu") for block in graph.edges.blocks]
    first_target = [n + first for first in graph.plan.halo_offsets]
    first_target[rank] = 0
    new_target = torch.cat([
        block.cols + first_target[block.source_rank] for block in blocks
    ])  # fmt: skip
    new_source = torch.cat([block.edge_rows() for block in blocks])
    num_targets = n + graph.plan.halo_offsets[-1]
    new_blocks, orders, first_edge = [], [], 0
    for owner in range(group.size):
        first, num_sources = 0, n
        if owner != rank:
            first, num_sources = targets.first_row(owner), targets.plan.num_needed[owner]
        chosen = (new_source >= first) & (new_source < first + num_sources)
        edges = chosen.nonzero().view(-1)
        source, target = new_source[edges] - first, new_target[edges]
        by_source = group_by(source, num_sources)[1]
        order = by_source[group_by(target[by_source], num_targets)[1]]
        block = make_block(
            owner, target[order], source[order], num_targets, num_sources, first_edge,
            owner != rank,
        )  # fmt: skip
        new_blocks.append(block.to(graph.node_id.device))
        orders.append(edges[order])
        first_edge += block.num_edges
    here = [graph.num_local_edges if r == rank else 0 for r in range(group.size)]
    move = EdgeMove(group, here, here, torch.cat(orders).to(graph.node_id.device))
    turned = Targets(graph.plan, targets.placed, graph.node_id)
    ids = turned.fetch(group, graph.node_id, "ids of targets")
    return move, Edges(new_blocks), targets.plan, replace(turned, node_id=ids)
