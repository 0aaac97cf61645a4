"""Values of the nodes that edges start from: looked up for every edge, and summed from every edge.

The two are each other's adjoint. Letters: m owned rows that edges start from, E edges of the list,
F columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.stale import Call
from fullgraph.graph.blocks import Block, Chunk
from fullgraph.ops.edge_list import EdgeList
from fullgraph.ops.halo import for_each_source, send_to_sources

MIN_EDGES = 64


def _gather(edges: EdgeList, rows: Tensor, layer: str | Call) -> tuple[Tensor, Call]:
    """[E, F] from [m, F]."""
    graph = edges.graph
    out = rows.new_zeros(edges.num_edges, rows.shape[1])  # as some may be left out
    limit = max(MIN_EDGES, graph.rows_of_piece(rows.element_size() * rows.shape[1]))

    def use(block: Block, chunk: Chunk, sources: Tensor) -> None:
        for piece in edges.pieces(block, chunk, limit):
            out[piece.position] = sources[piece.source]

    call = for_each_source(graph, rows, use, layer=layer)
    for piece in edges.added_loops(limit):
        out[piece.position] = rows[piece.source]
    return out, call


def _scatter(
    edges: EdgeList, values: Tensor, layer: str | Call, as_is: bool = False
) -> tuple[Tensor, Call]:
    """[m, F], summed from [E, F]."""
    graph = edges.graph
    out = kernels.new_zeros(values, graph.num_sources, values.shape[1])
    limit = max(MIN_EDGES, graph.rows_of_piece(values.element_size() * values.shape[1]))

    def fill(block: Block, chunk: Chunk, sources: Tensor) -> None:
        for piece in edges.pieces(block, chunk, limit):
            sources.index_add_(0, piece.source, values[piece.position])

    call = send_to_sources(graph, out, fill, layer=layer, as_is=as_is)
    for piece in edges.added_loops(limit):
        out.index_add_(0, piece.source, values[piece.position])
    return out, call


class _Gather(torch.autograd.Function):
    """y[e] = x[src(e)]. Backward: dx[j] = Σ over edges from j of dy[e]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, edges: EdgeList, layer: str) -> Tensor:
        out, ctx.call = _gather(edges, rows, layer)
        ctx.edges = edges
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _scatter(ctx.edges, grad.contiguous(), ctx.call)[0], None, None


class _Scatter(torch.autograd.Function):
    """y[j] = Σ over edges e from j of x[e]. Backward: dx[e] = dy[src(e)]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, edges: EdgeList, layer: str) -> Tensor:
        out, ctx.call = _scatter(edges, values, layer)
        ctx.edges = edges
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gather(ctx.edges, grad.contiguous(), ctx.call)[0], None, None


def gather_from_sources(edges: EdgeList, rows: Tensor, layer: str = "-") -> Tensor:
    """[E, ...]: for every edge of the list the row of its source. Differentiable; an exchange.

    rows: [m, ...] of any dtype.
    """
    if rows.shape[0] != edges.graph.num_sources:
        raise ValueError(
            f"values to look up by edges' sources must have a row for each of the "
            f"{edges.graph.num_sources} owned nodes, got shape {tuple(rows.shape)}"
        )
    flat = rows.reshape(rows.shape[0], rows.shape[1:].numel()).contiguous()
    return _Gather.apply(flat, edges, layer).view(-1, *rows.shape[1:])


def sum_to_sources(edges: EdgeList, values: Tensor, layer: str = "-") -> Tensor:
    """[m, ...]: for every owned row the sum over the edges that leave it. Differentiable; an
    exchange.

    values: [E, ...]; integers are summed as float64, exact to 2**53.
    """
    if values.shape[0] != edges.num_edges:
        raise ValueError(
            f"values must have a row for each of the {edges.num_edges} edges on this rank, "
            f"got shape {tuple(values.shape)}"
        )
    flat = values.reshape(values.shape[0], values.shape[1:].numel()).contiguous()
    if values.requires_grad:
        out = _Scatter.apply(flat, edges, layer)
    else:  # degrees and the like, which stay those of the whole graph
        is_whole = not values.is_floating_point()
        with edges.graph.stale.fresh():
            out = _scatter(edges, flat.double() if is_whole else flat, layer, as_is=is_whole)[0]
    return out.to(values.dtype).view(-1, *values.shape[1:])
