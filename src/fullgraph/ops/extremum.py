"""Maximum and minimum over in-edges, merged across blocks, with the gradient shared among ties.

Letters: n owned rows, m owned rows that edges start from, E edges on this rank, F columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.graph.blocks import Block, Chunk
from fullgraph.ops.halo import fetch_and_send_back, for_each_source, new_halo


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
        halo = None
        if any(ctx.needs_input_grad[:2]) and not graph.schedule.remat:
            halo = new_halo(graph, x)
        dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
        worst = float("-inf") if largest else float("inf")
        shape = (graph.num_owned, x.shape[1])
        out = torch.full(shape, worst, dtype=dtype, device=x.device)
        count = torch.zeros(shape, dtype=torch.int32, device=x.device)

        def use(block: Block, chunk: Chunk, rows: Tensor) -> None:
            kernels.extremum(
                chunk.begin, chunk.end, block.cols, rows, out, count, largest=largest,
                rows=block.rows, weight=None if weight is None else weight[block.edges],
                col_offset=chunk.first_row,
            )  # fmt: skip

        for_each_source(graph, x, use, layer=layer, halo=halo)
        out[graph.in_degree == 0] = 0
        ctx.graph, ctx.layer = graph, layer
        ctx.save_for_backward(x, halo, weight, out, count)
        return out.to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, halo, weight, out, count = ctx.saved_tensors
        graph: DistributedGraph = ctx.graph
        share = (grad.to(out.dtype) / (count + (out == 0))).contiguous()
        dx = out.new_zeros(x.shape)
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

        fetch_and_send_back(graph, x, dx, use, layer=ctx.layer, halo=halo)
        return dx.to(x.dtype), dw, None, None, None


def extremum(
    graph: DistributedGraph, x: Tensor, weight: Tensor | None, *, largest: bool, layer: str
) -> Tensor:
    """The maximum (largest) or minimum of w[e] x[src(e)] over the in-edges of each owned row."""
    return _Extremum.apply(x, weight, graph, largest, layer)
