"""Some of a graph's edges as a graph of their own.

Letters: n targets (the owned rows, unless edges live elsewhere than their targets), E edges of the
graph on this rank, E' chosen ones.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace

import torch
from torch import Tensor

from fullgraph.comm.distributed import PER_EDGE, DistributedGraph, Edges, ordinary_tensors
from fullgraph.comm.plan import ExchangePlan
from fullgraph.graph.blocks import make_block


def select_edges(graph: DistributedGraph, mask: Tensor) -> DistributedGraph:
    """The graph with the edges of `mask` only, bool [E] in the order of `edge_id`; a collective.

    Nodes stay, so do rows. Of remote rows only those are fetched that the chosen edges need.
    """
    is_mask = isinstance(mask, Tensor) and mask.dtype == torch.bool
    if not is_mask or mask.shape != (graph.num_local_edges,):
        got = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
        raise ValueError(
            f"edges are chosen by a mask bool [{graph.num_local_edges}], one value for each edge "
            f"of this rank in the order of graph.edge_id, got {got}"
        )
    if graph.target_rows is not None:
        raise ValueError("choose edges before for_seeds, not of one of its layers")
    rank, n = graph.group.rank, graph.num_targets
    with_loops = graph.with_loops_of()
    with ordinary_tensors():
        mask = mask.detach().cpu()
        blocks, needed, first_edge = [], [], 0
        for block in (b.to("cpu") for b in graph.edges.blocks):
            chosen = mask[block.edges]
            target, source = block.edge_rows()[chosen], block.cols[chosen]
            places = torch.empty(0, dtype=torch.int32)
            num_sources = block.num_sources
            if block.source_rank in with_loops and block.source_rank != rank:
                places = torch.arange(num_sources, dtype=torch.int32)  # loops go by rows' places
            elif block.source_rank != rank:
                places, source = torch.unique(source, return_inverse=True)
                source, num_sources = source.to(torch.int32), places.numel()
            new = make_block(
                block.source_rank, target, source.contiguous(), n, num_sources, first_edge,
                block.source_rank != rank,
            )  # fmt: skip
            blocks.append(new.to(graph.node_id.device))
            needed.append(places)
            first_edge += new.num_edges
        # What is asked for are places among the rows that a rank sends already.
        plan = ExchangePlan.build(graph.group, needed)
        old = graph.plan.send_rows
        device = graph.node_id.device
        sent = tuple(rows.cpu()[p.long()].to(device) for rows, p in zip(old, plan.send_rows))
        view = copy.copy(graph)
        view.plan = replace(plan, send_rows=sent)
        view.edges = Edges(blocks, mask.nonzero().view(-1).to(device), graph.edges.adds_loops)
        view._kept, view._looped, view._reversed, view.base = {}, None, None, graph
        view.layer_cache = weakref.WeakKeyDictionary()
        for name in (*PER_EDGE, "edge_lists"):
            view.__dict__.pop(name, None)
        view.count_in_degrees()
    return view
