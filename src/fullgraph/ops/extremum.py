"""Maximum and minimum over in-edges, merged across blocks, with the gradient shared among ties.

Letters: n owned rows, m owned rows that edges start from, T targets (n, unless edges live elsewhere
than their targets), E edges on this rank, F columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.stale import Call
from fullgraph.graph.blocks import Block, Chunk
from fullgraph.ops.halo import fetch_and_send_back, for_each_source, new_halo
from fullgraph.ops.slices import Slices
from fullgraph.ops.targets import fetch_targets, return_partials


class _Extremum(torch.autograd.Function):
    """z[i] = max (or min) over edges e into i of w[e] x[src(e)]; 0 for a row without in-edges.

    ========  =======  ==================================================
    x         [m, F]   float32, float64 or bfloat16
    w         [E]      optional, differentiable
    z         [n, F]   dtype of x; found in float32 for bfloat16
    ========  =======  ==================================================

    Backward: every edge that attains z[i, f] gets dz[i, f] / (number of such edges, plus one where
    z[i, f] is 0). The plus one is PyG's: its reduction starts from a zero that counts as tied
    (`scatter_reduce_` of "amax" into zeros); equal results need equal rules. Whether an edge
    attains the extremum is found again from the sources' rows, kept or fetched as the schedule
    says. Saved: z, the number of ties [n, F], x.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, graph: DistributedGraph, largest: bool,
        layer: str,
    ) -> Tensor:  # fmt: skip
        x = x.contiguous()
        slices = Slices.even(graph, x.shape[1])
        pieces = slices.of(x)
        halo = None
        if any(ctx.needs_input_grad[:2]) and not graph.schedule.remat:
            halo = new_halo(graph, pieces)
        dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
        worst = float("-inf") if largest else float("inf")
        shape = (graph.num_targets, slices.widths[graph.feature_slice])
        partial = torch.full(shape, worst, dtype=dtype, device=x.device)
        ties = torch.zeros(shape, dtype=torch.int32, device=x.device)

        def use(block: Block, chunk: Chunk, rows: Tensor) -> None:
            kernels.extremum(
                chunk.begin, chunk.end, block.cols, rows, partial, ties, largest=largest,
                rows=block.rows, weight=None if weight is None else weight[block.edges],
                col_offset=chunk.first_row,
            )  # fmt: skip

        ctx.graph = graph
        ctx.call = for_each_source(
            graph, pieces, use, layer=layer, halo=halo, recorded=any(ctx.needs_input_grad)
        )
        merged = merge_extrema(graph, partial, ties, slices.widths, largest=largest, layer=ctx.call)
        out, count = (slices.join(pieces) for pieces in merged)
        out.masked_fill_(count == 0, 0)  # as any message counts, whatever it is
        ctx.save_for_backward(x, halo, weight, out, count)
        return out.to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, halo, weight, out, count = ctx.saved_tensors
        graph: DistributedGraph = ctx.graph
        slices = Slices.even(graph, x.shape[1])
        share, out = (
            fetch_targets(
                graph, slices.of(rows), layer=ctx.call, direction="backward", as_is=True, name=name
            )
            for name, rows in [("share", grad.to(out.dtype) / (count + (out == 0))), ("best", out)]
        )
        sums = [kernels.new_zeros(out, x.shape[0], width) for width in slices.widths]
        dw = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None

        def use(block: Block, chunk: Chunk, source: Tensor, rows: Tensor) -> None:
            t = slice(chunk.first_row, chunk.last_row)
            block_weight = None if weight is None else weight[block.edges]
            kernels.extremum_grad_source(
                block.t_offsets[:-1][t], block.t_offsets[1:][t], block.t_cols, source, out, share,
                rows, weight=block_weight, weight_index=None if weight is None else block.t_index,
            )  # fmt: skip
            if dw is not None and block_weight is not None:
                kernels.extremum_grad_weight(
                    chunk.begin, chunk.end, block.cols, source, out, share, dw[block.edges],
                    weight=block_weight, rows=block.rows, col_offset=chunk.first_row,
                )  # fmt: skip

        fetch_and_send_back(graph, slices.of(x), sums, use, layer=ctx.call, halo=halo)
        return slices.join(sums).to(x.dtype), dw, None, None, None


def merge_extrema(
    graph: DistributedGraph, partial: Tensor, ties: Tensor, widths: list[int], *, largest: bool,
    layer: str | Call, name: str = "extrema",
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The extrema over all ranks, and how many edges tie for them, at the owners: K pieces each.

    Args:
        partial, ties: [T, F], of the edges of this rank; ties is 0 where a target has none.
        widths: F_k of all K pieces.
    """
    if graph.targets is None:
        return [partial], [ties]
    ties = ties.masked_fill(partial.isnan(), 1)  # as the kernel has it
    n, mine = graph.num_owned, graph.feature_slice
    best = [kernels.new_zeros(partial, n, width) for width in widths]
    count = [kernels.new_zeros(ties, n, width) for width in widths]
    best[mine], count[mine] = partial[:n].clone(), ties[:n].clone()

    def take(rows: Tensor, values: Tensor, k: int) -> None:
        at, (here, tied) = rows.long(), values.split(widths[k], 1)
        before, met, more = best[k][at], count[k][at], tied.to(ties.dtype)
        now = torch.maximum(before, here) if largest else torch.minimum(before, here)
        now = torch.where(met == 0, here, torch.where(more == 0, before, now))
        best[k][at] = now
        total = met * (before == now) + more * (here == now)
        count[k][at] = total.masked_fill_(now.isnan(), 1)

    return_partials(
        graph, torch.cat([partial, ties.to(partial.dtype)], 1), [2 * width for width in widths],
        take, layer=layer, as_is=True, name=name,
    )  # fmt: skip
    return best, count


def extremum(
    graph: DistributedGraph, x: Tensor, weight: Tensor | None, *, largest: bool, layer: str
) -> Tensor:
    """The maximum (largest) or minimum of w[e] x[src(e)] over the in-edges of each owned row."""
    return _Extremum.apply(x, weight, graph, largest, layer)
