"""Aggregation of neighbours: sum, mean, max and min over the in-edges of every owned row.

Letters: n owned rows, m owned rows that edges start from (n, but for relations between two types of
nodes), T targets (n, unless edges live elsewhere than their targets), E edges on this rank, F
columns.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.graph.blocks import Block, Chunk
from fullgraph.ops.extremum import extremum
from fullgraph.ops.halo import (
    fetch_and_send_back,
    for_each_source,
    new_gradients,
    new_halo,
    send_to_sources,
)
from fullgraph.ops.pointwise import scale_rows_
from fullgraph.ops.slices import Slices
from fullgraph.ops.targets import fetch_targets, sum_to_owners

REDUCTIONS = ("sum", "add", "mean", "max", "min")


class _Sum(torch.autograd.Function):
    """Z = A diag(s) X, A having the edge weights w (1 without).

    ========  =======  =====================================================
    x         [m, F]   float32, float64 or bfloat16
    w         [E]      optional, differentiable
    s         [m]      optional, constant
    z         [n, F]   dtype of x; float32 for bfloat16
    ========  =======  =====================================================

    Backward: dX = diag(s) Aᵀ dZ needs no remote row of X: each rank sends Aᵀ dZ home.
    dw[e] = <dZ[dst], (s X)[src]> needs them: kept from the forward pass, or fetched again
    where the schedule says so. Saved: nothing of size [n, F] unless w has a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, source_scale: Tensor | None,
        graph: DistributedGraph, layer: str,
    ) -> Tensor:  # fmt: skip
        x = _scaled(x, source_scale).contiguous()
        slices = Slices.even(graph, x.shape[1])
        pieces = slices.of(x)
        halo = None
        if ctx.needs_input_grad[1] and not graph.schedule.remat:
            halo = new_halo(graph, pieces)
        shape = (graph.num_targets, slices.widths[graph.feature_slice])
        partial = kernels.new_empty(x, *shape, dtype=_wide(x.dtype))
        own = graph.edges.blocks[graph.group.rank]

        def use(block: Block, chunk: Chunk, rows: Tensor) -> None:
            kernels.spmm(
                chunk.begin, chunk.end, block.cols, rows, partial, rows=block.rows,
                weight=_of_block(weight, block), col_offset=chunk.first_row,
                accumulate=block is not own,
            )  # fmt: skip

        ctx.graph = graph
        ctx.call = for_each_source(
            graph, pieces, use, layer=layer, halo=halo, recorded=any(ctx.needs_input_grad)
        )
        out = slices.join(sum_to_owners(graph, partial, slices.widths, layer=ctx.call))
        keep_x = x if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(keep_x, halo, weight, source_scale)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, halo, weight, source_scale = ctx.saved_tensors
        graph: DistributedGraph = ctx.graph
        slices = Slices.even(graph, grad.shape[1])
        grad = fetch_targets(graph, slices.of(grad), layer=ctx.call, direction="backward")
        sums = new_gradients(graph, grad, slices.widths)
        dw = None if x is None else torch.zeros_like(weight)

        def fill(block: Block, chunk: Chunk, rows: Tensor) -> None:
            t = slice(chunk.first_row, chunk.last_row)
            kernels.spmm(
                block.t_offsets[:-1][t], block.t_offsets[1:][t], block.t_cols, grad, rows,
                weight=_of_block(weight, block),
                weight_index=None if weight is None else block.t_index, accumulate=False,
            )  # fmt: skip

        def use(block: Block, chunk: Chunk, source: Tensor, rows: Tensor) -> None:
            fill(block, chunk, rows)
            out = _of_block(dw, block)
            assert out is not None  # only called where the weight has a gradient
            kernels.sddmm(
                chunk.begin, chunk.end, block.cols, source, grad, out, rows=block.rows,
                col_offset=chunk.first_row,
            )  # fmt: skip

        if dw is None:
            send_to_sources(graph, sums, fill, layer=ctx.call, writes=True)
        else:
            fetch_and_send_back(
                graph, slices.of(x), sums, use, layer=ctx.call, halo=halo, writes=True
            )
        dx = slices.join(sums)
        if source_scale is not None:
            dx.mul_(source_scale.to(dx.dtype).unsqueeze(1))
        return dx, dw, None, None, None


def aggregate(
    graph: DistributedGraph, x: Tensor, reduce: str = "sum", *, weight: Tensor | None = None,
    source_scale: Tensor | None = None, target_scale: Tensor | None = None, layer: str = "-",
) -> Tensor:  # fmt: skip
    """Reduce, for every owned row, the rows of its in-neighbours over the whole graph.

    A row without in-edges gives 0. For max and min, tied edges share the gradient equally, as PyG
    does it: a result of exactly 0 counts as one more that ties (PyG's reduction starts from 0).

    Args:
        x: [m, F] floating point: the owned rows.
        reduce: "sum" (or "add"), "mean", "max" or "min". The mean divides by the number of edges,
            whatever their weights.
        weight: [E], multiplies the messages; differentiable.
        source_scale, target_scale: [m] and [n], constants that multiply the rows before a sum, and
            its result.
        layer: the name under which `graph.traffic` counts the exchange.

    Returns:
        [n, F]. Computed once and kept where all of it comes from the graph's own features.
    """
    _check(graph, x, reduce, weight)
    reduce = "sum" if reduce == "add" else reduce
    if weight is not None and weight.dtype != x.dtype:  # promoted, as in a product of the two
        x = x.to(torch.promote_types(x.dtype, weight.dtype))
    sources = (x, weight, source_scale, target_scale)
    static = graph.is_static(x) and not (weight is not None and weight.requires_grad)
    found = graph.kept_by_all(("aggregate", reduce), sources) if static else None
    if found is not None:
        return found
    with graph.stale.fresh() if static else nullcontext():
        out = _reduced(graph, x, reduce, weight, source_scale, target_scale, layer)
    return graph.keep(("aggregate", reduce), sources, out) if static else out


def _reduced(
    graph: DistributedGraph, x: Tensor, reduce: str, weight: Tensor | None,
    source_scale: Tensor | None, target_scale: Tensor | None, layer: str,
) -> Tensor:  # fmt: skip
    if weight is not None:
        weight = weight.to(_wide(x.dtype)).contiguous()
    if reduce in ("max", "min"):
        if source_scale is not None or target_scale is not None:
            raise ValueError(f"scales apply to sums only, got reduce={reduce!r}")
        return extremum(graph, x, weight, largest=reduce == "max", layer=layer)
    if reduce == "mean":
        inverse = graph.in_degree.clamp(min=1).to(_wide(x.dtype)).reciprocal()
        target_scale = inverse if target_scale is None else target_scale * inverse
    out = _Sum.apply(x, weight, source_scale, graph, layer)
    if target_scale is not None:
        # Not in the sum's own backward pass, where two gradients of z would be held beside dX.
        out = scale_rows_(out, target_scale)
    return out.to(x.dtype)


def _check(graph: DistributedGraph, x: Tensor, reduce: str, weight: Tensor | None) -> None:
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {REDUCTIONS}, got {reduce!r}")
    if x.dim() != 2 or x.shape[0] != graph.num_sources or not x.is_floating_point():
        raise ValueError(
            f"x must be floating point of shape [{graph.num_sources}, F], a row for each owned "
            f"node, got {x.dtype} {tuple(x.shape)}"
        )
    if weight is not None and weight.shape != (graph.num_local_edges,):
        raise ValueError(
            f"weight must have one entry for each of the {graph.num_local_edges} edges on this "
            f"rank, in the order of graph.edge_id, got shape {tuple(weight.shape)}"
        )


def _of_block(per_edge: Tensor | None, block: Block) -> Tensor | None:
    return None if per_edge is None else per_edge[block.edges]


def _scaled(rows: Tensor, scale: Tensor | None) -> Tensor:
    if scale is None:
        return rows
    out = kernels.new_empty(rows, *rows.shape)
    return torch.mul(rows, scale.to(rows.dtype).unsqueeze(1), out=out)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are kept in."""
    return torch.float32 if dtype == torch.bfloat16 else dtype
