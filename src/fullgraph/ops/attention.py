"""Attention over in-edges, merged across blocks, without an array of all edges.

What is kept from the forward to the backward pass is the inputs, the result, and two numbers a row
and head (the largest logit and the sum of exponentials); the coefficients are computed again. What
is computed from the attributes of edges exists for a bounded number of edges at a time.

A row without in-edges, or whose logits are all -inf, gives 0 and no gradient. Logits may be as
large as the dtype allows; one that is +inf or NaN makes its row and head NaN, as in PyG.

Where edges live elsewhere than their targets, a rank finds the softmax of its own edges for T
targets, and their owners merge those of all ranks. In a grid with slices of the columns, a slice
has whole heads.

Letters: n owned rows, m owned rows that edges start from, T targets (n, mostly), E edges on this
rank, H heads, C channels a head, D attributes of an edge, F columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.stale import Call
from fullgraph.graph.blocks import Block, Chunk
from fullgraph.kernels.reference import edges_of
from fullgraph.ops.dropout import DropoutKey
from fullgraph.ops.halo import (
    Pieces,
    fetch_and_send_back,
    for_each_source,
    new_gradients,
    new_halo,
)
from fullgraph.ops.pointwise import mean_of_heads
from fullgraph.ops.slices import Slices
from fullgraph.ops.targets import fetch_targets, return_partials, sum_to_owners


def gat_attention(
    graph: DistributedGraph, value: Tensor, source_logit: Tensor, target_logit: Tensor, *,
    edge_logit: Tensor | None = None, negative_slope: float = 0.2, p: float = 0.0,
    key: DropoutKey | None = None, layer: str = "-",
) -> Tensor:  # fmt: skip
    """The attention of GATConv: z[i] = Σ over edges e from j into i of a[e] value[j].

    a is the softmax over the in-edges of i of leaky(source_logit[j] + target_logit[i] +
    edge_logit[e]), each head by itself, and then dropout with probability p.

    Args:
        value: [m, H, C] float32, float64 or bfloat16 (computed in float32).
        source_logit, target_logit: [m, H] and [n, H].
        edge_logit: [E, H] in the order of graph.edge_id; 0 without.
        key: of the dropout, whose mask depends on it, the edge's id and the head; needed for p > 0.
        layer: the name under which `graph.traffic` counts the exchange.

    Returns:
        [n, H, C] in the dtype of value. Differentiable in all tensors.
    """
    heads = _check_heads("value", value)
    _check("value", value, (graph.num_sources, *value.shape[1:]))
    _check("source_logit", source_logit, (graph.num_sources, heads))
    _check("target_logit", target_logit, (graph.num_owned, heads))
    rows = torch.cat([value.flatten(1), source_logit.to(value.dtype)], dim=1)
    return gat_attention_of_rows(
        graph, rows, target_logit, edge_logit=edge_logit, negative_slope=negative_slope, p=p,
        key=key, layer=layer,
    )  # fmt: skip


def gat_attention_of_rows(
    graph: DistributedGraph, rows: Tensor, target_logit: Tensor, *,
    edge_logit: Tensor | None = None, negative_slope: float = 0.2, p: float = 0.0,
    key: DropoutKey | None = None, layer: str = "-", mean: bool = False,
) -> Tensor:  # fmt: skip
    """`gat_attention` where a source's values and logits are one row already, as they travel.

    Args:
        rows: [m, H C + H]: a source's values, head after head, and then its logits.
        target_logit: [n, H]. All else as for `gat_attention`.
        mean: return the mean of the heads, [n, C], whose gradient is then not made for each head.
    """
    heads = target_logit.shape[1]
    _check("rows", rows, (graph.num_sources, rows.shape[1]))
    _check("target_logit", target_logit, (graph.num_owned, heads))
    if heads == 0 or rows.shape[1] % heads:
        raise ValueError(
            f"rows must have H C values and H logits for the {heads} heads of target_logit, "
            f"got {rows.shape[1]} columns"
        )
    if edge_logit is not None:
        _check("edge_logit", edge_logit, (graph.num_local_edges, heads))
    options = _Options(graph, _dropout(p, key), layer, {"slope": negative_slope})
    return _Gat.apply(rows, target_logit, edge_logit, options, mean)


def gatv2_attention(
    graph: DistributedGraph, source: Tensor, target: Tensor, att: Tensor, *,
    edge_attr: Tensor | None = None, edge_weight: Tensor | None = None,
    negative_slope: float = 0.2, p: float = 0.0, key: DropoutKey | None = None, layer: str = "-",
) -> Tensor:  # fmt: skip
    """The attention of GATv2Conv: z[i] = Σ over edges e from j into i of a[e] source[j].

    a is the softmax over the in-edges of i of <att, leaky(source[j] + target[i] + W edge_attr[e])>,
    each head by itself, and then dropout with probability p.

    Args:
        source, target: [m, H, C] and [n, H, C]. att: [H, C].
        edge_attr, edge_weight: [E, D] in the order of graph.edge_id, and W [H C, D]; both or none.
        p, key, layer: as for `gat_attention`.

    Returns:
        [n, H, C] in the dtype of source. Differentiable in all tensors.
    """
    heads = _check_heads("source", source)
    _check("source", source, (graph.num_sources, *source.shape[1:]))
    _check("target", target, (graph.num_owned, *source.shape[1:]))
    _check("att", att, (heads, source.shape[2]))
    _check_edge_attr(graph, edge_attr, edge_weight, source)
    options = _Options(graph, _dropout(p, key), layer, {"slope": negative_slope})
    return _Scored.apply(_GATV2, options, edge_attr, edge_weight, source, target, att)


def dot_attention(
    graph: DistributedGraph, query: Tensor, key_rows: Tensor, value: Tensor, *,
    edge_attr: Tensor | None = None, edge_weight: Tensor | None = None, p: float = 0.0,
    key: DropoutKey | None = None, layer: str = "-",
) -> Tensor:  # fmt: skip
    """The attention of TransformerConv: z[i] = Σ over edges e from j into i of
    a[e] (value[j] + W edge_attr[e]).

    a is the softmax over the in-edges of i of <query[i], key_rows[j] + W edge_attr[e]> / √C, each
    head by itself, and then dropout with probability p.

    Args:
        query: [n, H, C]; key_rows, value: [m, H, C].
        edge_attr, edge_weight, p, key, layer: as for `gatv2_attention`.

    Returns:
        [n, H, C] in the dtype of value. Differentiable in all tensors.
    """
    _check_heads("value", value)
    _check("value", value, (graph.num_sources, *value.shape[1:]))
    _check("key_rows", key_rows, (graph.num_sources, *value.shape[1:]))
    _check("query", query, (graph.num_owned, *value.shape[1:]))
    _check_edge_attr(graph, edge_attr, edge_weight, value)
    options = _Options(graph, _dropout(p, key), layer, {})
    key_rows = key_rows.to(value.dtype)  # they travel in one row
    return _Scored.apply(_DOT, options, edge_attr, edge_weight, key_rows, value, query)


class _Dropout(NamedTuple):
    p: float
    key: DropoutKey


class _Options(NamedTuple):
    """What a call has besides tensors; `extra` is for the kernels."""

    graph: DistributedGraph
    dropout: _Dropout | None
    layer: str
    extra: dict[str, float]

    def dropout_of(self, edges: slice | Tensor, first_head: int) -> kernels.EdgeDropout | None:
        """Of these edges of the rank, and its heads."""
        if self.dropout is None:
            return None
        return kernels.EdgeDropout(
            self.graph.edge_id[edges], self.dropout.p, *self.dropout.key, first_head
        )  # fmt: skip


class _Gat(torch.autograd.Function):
    """z[i] = Σ over edges e from j into i of a[e] v[j], a = dropout(softmax(leaky(s[j] + t[i] +
    l[e]))), the softmax over the in-edges of i.

    ====  ============  ==================================================
    v, s  [m, H C + H]  side by side; float32, float64 or bfloat16
    t     [n, H]
    l     [E, H]        optional
    z     [n, H, C]     dtype of v; found in float32 for bfloat16. Or its mean over H, [n, C]
    ====  ============  ==================================================

    Backward: one pass over the sources gives every gradient; it needs their rows again, kept or
    fetched as the schedule says. Saved: v, s, t, l, z, and [n, H] twice, see above.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, target_logit: Tensor, edge_logit: Tensor | None, options: _Options,
        mean: bool,
    ) -> Tensor:  # fmt: skip
        graph, dtype, heads = options.graph, _wide(rows.dtype), target_logit.shape[1]
        channels, rows = rows.shape[1] // heads - 1, rows.contiguous()
        ctx.call = graph.stale.call(graph, options.layer)
        share = _Heads(graph, heads, channels, ctx.call)
        sources = _Sources.side_by_side(share, rows, [channels, 1])
        halo = _halo(graph, sources, ctx.needs_input_grad)
        softmax = _Softmax.empty(share, rows, dtype)
        wide_logit = share.to_targets(target_logit.to(dtype), 1, "forward", "logits")
        wide_edge_logit = None if edge_logit is None else share.of(edge_logit.to(dtype), 1)

        def use(block: Block, chunk: Chunk, rows: Tensor) -> None:
            values, logits = sources.parts_of(block, rows)
            kernels.gat(
                chunk.begin, chunk.end, block.cols, values, logits, wide_logit, *softmax,
                rows=block.rows, edge_logit=_of_block(wide_edge_logit, block),
                dropout=options.dropout_of(block.edges, share.first),
                col_offset=chunk.first_row, accumulate=block is not sources.own_block,
                slope=options.extra["slope"],
            )  # fmt: skip

        for_each_source(
            graph, sources.rows, use, layer=ctx.call, halo=halo, recorded=any(ctx.needs_input_grad)
        )
        softmax = share.merge(softmax)
        out = softmax.out.view(-1, heads, channels).to(rows.dtype)
        ctx.options, ctx.share, ctx.mean = options, share, mean
        ctx.save_for_backward(rows, target_logit, edge_logit, halo, out, softmax.top, softmax.total)
        return mean_of_heads(out) if mean else out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        all_rows, target_logit, edge_logit, halo, out, top, total = ctx.saved_tensors
        options: _Options = ctx.options
        share: _Heads = ctx.share
        graph, dtype, widths = options.graph, top.dtype, [share.channels, 1]
        if ctx.mean:  # the same for every head
            grad = grad / share.heads
            if graph.targets is not None:  # which slices of the columns may go to
                grad = grad.unsqueeze(1).expand(out.shape)
        dout = _rows(grad).to(dtype)
        state = _state(dout, out, top, total, target_logit.to(dtype))
        dout, state = share.gradient_to_targets(dout, state)
        wide_edge_logit = None if edge_logit is None else share.of(edge_logit.to(dtype), 1)
        sources = _Sources.side_by_side(share, all_rows, widths)
        grads = _Sources.gradients(share, all_rows, widths, dtype)
        dtarget_logit = kernels.new_zeros(top, graph.num_targets, share.count)
        dedge_logit = None
        if wide_edge_logit is not None and ctx.needs_input_grad[2]:
            dedge_logit = torch.zeros_like(wide_edge_logit)
        by_position = edge_logit is not None or options.dropout is not None

        def use(block: Block, chunk: Chunk, rows: Tensor, contribution: Tensor) -> None:
            t = slice(chunk.first_row, chunk.last_row)
            values, logits = sources.parts_of(block, rows)
            dvalues, dlogits = grads.parts_of(block, contribution)
            kernels.gat_grad(
                block.t_offsets[:-1][t], block.t_offsets[1:][t], block.t_cols, values, logits,
                state, dout, dvalues, dlogits, dtarget_logit,
                index=block.t_index if by_position else None,
                edge_logit=_of_block(wide_edge_logit, block),
                dedge_logit=_of_block(dedge_logit, block),
                dropout=options.dropout_of(block.edges, share.first), slope=options.extra["slope"],
                accumulate=False,
            )  # fmt: skip

        fetch_and_send_back(
            graph, sources.rows, grads.rows, use, layer=ctx.call, halo=halo, writes=True
        )
        if dedge_logit is not None:
            dedge_logit = share.among_all(dedge_logit, 1).to(edge_logit.dtype)
        dtarget_logit = share.to_owners(dtarget_logit, 1)
        drows = share.slices(*widths).join(grads.pieces)
        return drows.to(out.dtype), dtarget_logit.to(target_logit.dtype), dedge_logit, None, None


class _Kind(NamedTuple):
    """Kernels that take rows of sources, then rows of targets, and then what is [H, C]."""

    num_sources: int
    forward: Callable[..., None]
    grad_target: Callable[..., None]
    grad_source: Callable[..., None]


_GATV2 = _Kind(1, kernels.gatv2, kernels.gatv2_grad_target, kernels.gatv2_grad_source)
_DOT = _Kind(2, kernels.dot, kernels.dot_grad_target, kernels.dot_grad_source)


class _Scored(torch.autograd.Function):
    """Attention whose logits take whole rows: z[i] = Σ over edges e from j into i of a[e] v[e].

    =====  ==========  =========================================================================
    gatv2  logit[e]    <att, leaky(x[j] + y[i] + W d[e])>, v[e] = x[j]
    dot    logit[e]    <q[i], k[j] + W d[e]> / √C, v[e] = v[j] + W d[e]
    x      [m, H, C]   float32, float64 or bfloat16; likewise k, v; and y, q, which are [n, H, C]
    att    [H, C]
    d, W   [E, D]      optional; W is [H C, D]
    z      [n, H, C]   dtype of x or v; found in float32 for bfloat16
    =====  ==========  =========================================================================

    Backward: a pass by target gives the gradients of y or q, att, d and W; one by source those of x
    or k and v. Saved: the inputs, z, and [n, H] twice, see above. W d exists for a few edges only.
    """

    @staticmethod
    def forward(
        ctx: Any, kind: _Kind, options: _Options, attr: Tensor | None, weight: Tensor | None,
        *tensors: Tensor,
    ) -> Tensor:  # fmt: skip
        graph, dtype = options.graph, _wide(tensors[0].dtype)
        _, heads, channels = tensors[0].shape
        ctx.call = graph.stale.call(graph, options.layer)
        share = _Heads(graph, heads, channels, ctx.call)
        sources = _Sources.of(share, [_rows(x) for x in tensors[: kind.num_sources]])
        targets = [_rows(x) for x in tensors[kind.num_sources :]]
        wide_targets = share.targets_of(targets, dtype, "forward")
        all_weight, weight = weight, share.weight_of(weight)
        halo = _halo(graph, sources, ctx.needs_input_grad)
        softmax = _Softmax.empty(share, tensors[0], dtype)
        if attr is not None:  # a row may lie in several pieces
            softmax.clear()

        def use(block: Block, chunk: Chunk, rows: Tensor) -> None:
            accumulate = block is not sources.own_block or attr is not None
            for piece in _pieces(options, share, block, chunk, attr, weight, dtype):
                kind.forward(
                    *piece.by_target, *sources.parts_of(block, rows), *wide_targets, *softmax,
                    rows=piece.rows, edge=piece.term, dropout=piece.dropout,
                    col_offset=piece.col_offset, accumulate=accumulate, **options.extra,
                )  # fmt: skip

        for_each_source(
            graph, sources.rows, use, layer=ctx.call, halo=halo, recorded=any(ctx.needs_input_grad)
        )
        softmax = share.merge(softmax)
        out = softmax.out.view(-1, *tensors[0].shape[1:]).to(tensors[0].dtype)
        ctx.kind, ctx.options, ctx.share = kind, options, share
        ctx.shapes = [x.shape for x in tensors]
        ctx.save_for_backward(
            *sources.whole, *targets, attr, all_weight, halo, out, softmax.top, softmax.total
        )
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, attr, all_weight, halo, out, top, total = ctx.saved_tensors
        kind, options, share = ctx.kind, ctx.options, ctx.share
        graph, dtype = options.graph, top.dtype
        own, targets = tensors[: kind.num_sources], tensors[kind.num_sources :]
        dout = _rows(grad).to(dtype)
        dout, state = share.gradient_to_targets(dout, _state(dout, out, top, total))
        wide_targets = share.targets_of(targets, dtype, "backward")
        dtargets = [kernels.new_zeros(x, *x.shape) for x in wide_targets]
        weight = share.weight_of(all_weight)
        sources = _Sources.of(share, own)
        grads = _Sources.zeros(share, own, dtype)
        edges = None
        if attr is not None and any(ctx.needs_input_grad[2:4]):
            edges = _EdgeGradients(attr, weight, ctx.needs_input_grad[2:4])

        def use(block: Block, chunk: Chunk, rows: Tensor, contribution: Tensor) -> None:
            inputs = (*sources.parts_of(block, rows), *wide_targets, state, dout)
            for piece in _pieces(options, share, block, chunk, attr, weight, dtype):
                dterm = None
                if edges is not None and piece.term is not None:
                    dterm = torch.zeros_like(piece.term)
                kind.grad_target(
                    *piece.by_target, *inputs, *dtargets, rows=piece.rows, edge=piece.term,
                    dedge=dterm, dropout=piece.dropout, col_offset=piece.col_offset,
                    **options.extra,
                )  # fmt: skip
                if edges is not None and dterm is not None:
                    edges.add(piece.edges, dterm)
                by_source, of_row, index = piece.by_source
                kind.grad_source(
                    *by_source, *inputs, *grads.parts_of(block, contribution), rows=of_row,
                    index=index, edge=piece.term, dropout=piece.dropout, **options.extra,
                )  # fmt: skip

        fetch_and_send_back(graph, sources.rows, grads.rows, use, layer=ctx.call, halo=halo)
        grads_of = [*grads.joined(share), *share.targets_back(dtargets)]
        found = [dx.view(shape).to(x.dtype) for dx, x, shape in zip(grads_of, tensors, ctx.shapes)]
        dattr, dweight = (None, None) if edges is None else edges.results()
        if dweight is not None:
            dweight = share.among_all(dweight.T, share.channels).T
        return None, None, dattr, dweight, *found


class _Softmax(NamedTuple):
    """A softmax in the making, as `fullgraph.kernels` has it: [T, H C], [T, H], [T, H]."""

    out: Tensor
    top: Tensor
    total: Tensor

    @staticmethod
    def empty(share: _Heads, like: Tensor, dtype: torch.dtype) -> _Softmax:
        """For the heads of this rank and all targets; not initialised."""
        widths = (share.count * share.channels, share.count, share.count)
        n = share.graph.num_targets
        return _Softmax(*(kernels.new_empty(like, n, width, dtype=dtype) for width in widths))

    def clear(self) -> None:
        """No edges so far."""
        self.out.zero_()
        self.top.fill_(-torch.inf)
        self.total.zero_()

    def add(self, rows: Tensor, more: Tensor) -> None:
        """Merge what other edges into these rows, distinct, come to: out, top and total side by
        side, [rows, H C + 2 H]."""
        heads = self.top.shape[1]
        out, top, total = more.split([self.out.shape[1], heads, heads], 1)
        new_top = torch.maximum(self.top[rows], top)
        shift = new_top.masked_fill(new_top == -torch.inf, 0)
        before = self.total[rows] * (self.top[rows] - shift).exp()
        total = total * (top - shift).exp()
        both = before + total
        inverse = both.reciprocal().masked_fill(both == 0, 0)
        shape = (len(rows), heads, out.shape[1] // heads)
        merged = self.out[rows].view(shape) * (before * inverse).unsqueeze(2)
        merged += out.reshape(shape) * (total * inverse).unsqueeze(2)
        self.out[rows], self.top[rows], self.total[rows] = merged.flatten(1), new_top, both


def _state(
    dout: Tensor, out: Tensor, top: Tensor, total: Tensor, target_logit: Tensor | None = None
) -> Tensor:
    """What a gradient needs of a target, side by side: [n, 3 H], or [n, 4 H] with target_logit.
    dout: [n, H C], or [n, C] for all heads; out: [n, H, C]."""
    n, heads = top.shape
    state = kernels.new_empty(top, n, 3 if target_logit is None else 4, heads)
    state[:, 0] = top
    state[:, 1] = total.reciprocal().masked_fill_(total == 0, 0)
    kernels.head_dots(dout, out.flatten(1), state[:, 2])
    if target_logit is not None:
        state[:, 3] = target_logit
    return state.flatten(1)


@dataclass(frozen=True)
class _Heads:
    """The heads of a layer that this rank works on, and the way of rows from owners to targets and
    back. Of a tensor with c columns for each head, this rank's heads have a piece."""

    graph: DistributedGraph
    heads: int
    channels: int
    call: Call

    @cached_property
    def first(self) -> int:
        """The first of this rank's heads."""
        return self.slices(1).ranges[self.graph.feature_slice][0][0]

    @cached_property
    def count(self) -> int:
        """How many heads this rank works on."""
        return self.slices(1).widths[self.graph.feature_slice]

    def slices(self, *columns: int) -> Slices:
        """Of tensors with so many columns for each head, side by side."""
        return Slices.by_heads(self.graph, self.heads, columns)

    def of(self, rows: Tensor, *columns: int) -> Tensor:
        """The piece of this rank, contiguous."""
        return self.slices(*columns).of(rows)[self.graph.feature_slice]

    def among_all(self, piece: Tensor, columns: int) -> Tensor:
        """A piece of this rank with zeros for the heads of others."""
        if self.graph.placement.feats == 1:
            return piece
        whole = kernels.new_zeros(piece, piece.shape[0], self.heads * columns)
        first = self.first * columns
        whole[:, first : first + piece.shape[1]] = piece
        return whole

    def weight_of(self, weight: Tensor | None) -> Tensor | None:
        """[H C, D] of this rank's heads."""
        if weight is None or self.graph.placement.feats == 1:
            return weight
        first = self.first * self.channels
        return weight[first : first + self.count * self.channels]

    def to_targets(self, rows: Tensor, columns: int, direction: str, name: str) -> Tensor:
        pieces = self.slices(columns).of(rows)
        return fetch_targets(self.graph, pieces, layer=self.call, direction=direction, name=name)

    def to_owners(self, partial: Tensor, columns: int) -> Tensor:
        """Gradients of targets, summed over ranks."""
        slices = self.slices(columns)
        sums = sum_to_owners(
            self.graph, partial, slices.widths, layer=self.call, direction="backward",
            name="gradients",
        )  # fmt: skip
        return slices.join(sums)

    def gradient_to_targets(self, dout: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """That of the result, and what `_state` gives."""
        if self.graph.targets is None:
            return dout, state
        numbers = self.slices(*[1] * (state.shape[1] // self.heads))
        of_targets = fetch_targets(
            self.graph, numbers.of(state), layer=self.call, direction="backward", as_is=True,
            name="state",
        )  # fmt: skip
        return self.to_targets(dout, self.channels, "backward", "dout"), of_targets

    def targets_of(
        self, tensors: Sequence[Tensor], dtype: torch.dtype, direction: str
    ) -> list[Tensor]:
        """Of rows of targets, and then of what has one row for each head: this rank's."""
        rows, *rest = (x.to(dtype) for x in tensors)
        mine = slice(self.first, self.first + self.count)
        of_targets = self.to_targets(rows, self.channels, direction, f"rows.{direction}")
        return [of_targets, *(x[mine] for x in rest)]

    def targets_back(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of `targets_of`, of all heads; this rank's part of those without rows."""
        rows, *rest = gradients
        found = [self.to_owners(rows, self.channels)]
        for x in rest:
            whole = x.new_zeros(self.heads, self.channels)
            whole[self.first : self.first + self.count] = x
            found.append(whole)
        return found

    def merge(self, mine: _Softmax) -> _Softmax:
        """The softmax over the edges of all ranks, of the owned rows and all heads."""
        graph, n = self.graph, self.graph.num_owned
        if graph.targets is None:
            return mine
        columns = (self.channels, 1, 1)
        slices = self.slices(*columns)
        softmaxes = []
        for k, width in enumerate(self.slices(1).widths):
            if k == graph.feature_slice:
                softmaxes.append(_Softmax(*(kernels.copy_of(x[:n]) for x in mine)))
                continue
            like = (kernels.new_empty(mine.out, n, width * c) for c in columns)
            softmaxes.append(_Softmax(*like))
            softmaxes[-1].clear()

        def take(rows: Tensor, values: Tensor, k: int) -> None:
            softmaxes[k].add(rows.long(), values)

        leaving = kernels.side_by_side(mine)
        return_partials(graph, leaving, slices.widths, take, layer=self.call, as_is=True)
        parts = zip(*softmaxes)
        return _Softmax(*(self.slices(c).join(part) for c, part in zip(columns, parts)))


@dataclass(frozen=True)
class _Sources:
    """Rows that edges start from, several tensors [m, F] that travel side by side in `rows`.

    ``whole``: the tensors; ``own``: their columns that this rank works on. Where nothing travels,
    there is no tensor of all: `rows` stands in for it and is not looked at.
    """

    whole: tuple[Tensor, ...]
    own: tuple[Tensor, ...]
    rows: Pieces
    own_block: Block

    @staticmethod
    def of(share: _Heads, parts: Sequence[Tensor]) -> _Sources:
        if len(parts) == 1 or share.graph.group.size == 1:
            return _Sources._made(share, parts, parts[0], [share.channels])
        rows = torch.cat(list(parts), 1)
        return _Sources._made(share, parts, rows, [share.channels] * len(parts))

    @staticmethod
    def side_by_side(share: _Heads, rows: Tensor, columns: Sequence[int]) -> _Sources:
        """From one tensor, of which the parts are so many columns for each head."""
        return _Sources._made(share, [], rows, columns)

    @staticmethod
    def _made(
        share: _Heads, parts: Sequence[Tensor], rows: Tensor, columns: Sequence[int]
    ) -> _Sources:
        graph = share.graph
        pieces = share.slices(*columns).of(rows)
        own = tuple(parts)
        if graph.placement.feats > 1 or not own:
            widths = [share.count * c for c in columns]
            own = tuple(pieces[graph.feature_slice].split(widths, 1))
        return _Sources(tuple(parts), own, pieces, graph.edges.blocks[graph.group.rank])

    @staticmethod
    def zeros(share: _Heads, like: Sequence[Tensor], dtype: torch.dtype) -> _Sources:
        """Of the same shapes; here `own` are columns of `rows`, where that exists."""
        if share.graph.group.size == 1:
            parts = [kernels.new_zeros(x, *x.shape, dtype=dtype) for x in like]
            return _Sources.of(share, parts)
        zeros = _Sources.gradients(share, like[0], [share.channels] * len(like), dtype)
        zeros.pieces[share.graph.feature_slice].zero_()
        return zeros

    @staticmethod
    def gradients(
        share: _Heads, like: Tensor, columns: Sequence[int], dtype: torch.dtype
    ) -> _Sources:
        """Side by side, to be written; see `new_gradients`."""
        graph = share.graph
        pieces = new_gradients(graph, like, share.slices(*columns).widths, dtype)
        own = pieces[graph.feature_slice].split([share.count * c for c in columns], 1)
        return _Sources((), tuple(own), pieces, graph.edges.blocks[graph.group.rank])

    @property
    def pieces(self) -> Sequence[Tensor]:
        return [self.rows] if isinstance(self.rows, Tensor) else self.rows

    def joined(self, share: _Heads) -> Sequence[Tensor]:
        """Each tensor with all heads, [m, H C]."""
        if share.graph.placement.feats == 1:
            return self.own
        columns = [share.channels] * len(self.own)
        rows = share.slices(*columns).join(self.pieces)
        return rows.split(share.heads * share.channels, 1)

    def parts_of(self, block: Block, rows: Tensor) -> tuple[Tensor, ...]:
        """The tensors of a block's sources, whose rows these are."""
        if block is self.own_block:
            return self.own
        return rows.split([x.shape[1] for x in self.own], 1)


def _halo(graph: DistributedGraph, sources: _Sources, needs_grad: Sequence[bool]) -> Tensor | None:
    """Where received rows stay for the backward pass, unless it fetches them again."""
    if graph.schedule.remat or not any(needs_grad):
        return None
    return new_halo(graph, sources.rows)


BySource = tuple[tuple[Tensor, Tensor, Tensor], Tensor | None, Tensor | None]


@dataclass
class _Piece:
    """Some edges of a chunk: by target as the forward pass takes them, and by source.

    ``edges``: their positions among the rank's. ``term``: [edges, H C], from their attributes.
    """

    by_target: tuple[Tensor, Tensor, Tensor]
    rows: Tensor | None
    col_offset: int
    edges: slice | Tensor
    dropout: kernels.EdgeDropout | None
    term: Tensor | None
    sort: Callable[[], BySource]

    @cached_property
    def by_source(self) -> BySource:
        """Ranges; the source row of each range; the position by target of each edge."""
        return self.sort()


def _pieces(
    options: _Options, share: _Heads, block: Block, chunk: Chunk, attr: Tensor | None,
    weight: Tensor | None, dtype: torch.dtype,
) -> Iterator[_Piece]:  # fmt: skip
    """A chunk in pieces small enough to compute something for every edge of one; without
    attributes of edges, whole."""
    if attr is None or weight is None:
        dropout = options.dropout_of(block.edges, share.first)

        def lists() -> BySource:
            t = slice(chunk.first_row, chunk.last_row)
            ranges = block.t_offsets[:-1][t], block.t_offsets[1:][t], block.t_cols
            return ranges, None, None if dropout is None else block.t_index

        by_target = chunk.begin, chunk.end, block.cols
        yield _Piece(
            by_target, block.rows, chunk.first_row, block.edges, dropout, None, lists
        )  # fmt: skip
        return
    size = options.graph.rows_of_piece(weight.shape[0] * dtype.itemsize)
    stop = (chunk.end - chunk.begin).cumsum(0)
    num_edges = int(stop[-1]) if len(stop) else 0
    for first in range(0, num_edges, size):
        last = min(first + size, num_edges)
        first_row, last_row = torch.searchsorted(stop, stop.new_tensor([first, last - 1]),
                                                 right=True).tolist()  # fmt: skip
        run = slice(first_row, last_row + 1)
        begin, end = chunk.begin[run].clone(), chunk.end[run].clone()
        begin[0] = end[0] - (stop[first_row] - first)
        end[-1] -= stop[last_row] - last
        yield _piece_of_edges(
            options, share, block, chunk, first_row, begin, end, attr, weight, dtype
        )


def _piece_of_edges(
    options: _Options, share: _Heads, block: Block, chunk: Chunk, first_row: int, begin: Tensor,
    end: Tensor, attr: Tensor, weight: Tensor, dtype: torch.dtype,
) -> _Piece:  # fmt: skip
    """The edges of these ranges, which belong to rows first_row and on of the block, by
    themselves."""
    row, position = edges_of(begin, end)
    stop = (end - begin).cumsum(0)
    cols = block.cols[position] - chunk.first_row
    rows = torch.arange(first_row, first_row + len(begin), dtype=torch.int32, device=cols.device)
    if block.rows is not None:
        rows = block.rows[first_row : first_row + len(begin)]
    edges = position + block.first_edge

    def sort() -> BySource:
        sorted_cols, index = cols.sort(stable=True)
        of_row, counts = sorted_cols.unique_consecutive(return_counts=True)
        ends = counts.cumsum(0)
        return (ends - counts, ends, rows[row[index]]), of_row, index

    term = (attr[edges].to(weight.dtype) @ weight.T).to(dtype)
    by_target = stop - (end - begin), stop, cols
    return _Piece(by_target, rows, 0, edges, options.dropout_of(edges, share.first), term, sort)


class _EdgeGradients:
    """The gradients of W d, [E, H C] of which a piece is there at a time, taken back to d and W."""

    def __init__(self, attr: Tensor, weight: Tensor, needed: Sequence[bool]) -> None:
        self.attr, self.weight = attr, weight
        self.dattr = torch.zeros_like(attr) if needed[0] else None
        self.dweight = weight.new_zeros(weight.shape, dtype=_wide(weight.dtype))

    def add(self, edges: slice | Tensor, dterm: Tensor) -> None:
        """dterm: [edges, H C]."""
        if self.dattr is not None:
            self.dattr[edges] = (dterm @ self.weight.to(dterm.dtype)).to(self.dattr.dtype)
        self.dweight += dterm.T @ self.attr[edges].to(dterm.dtype)

    def results(self) -> tuple[Tensor | None, Tensor]:
        return self.dattr, self.dweight.to(self.weight.dtype)


# ---- Small steps --------------------------------------------------------------------------------


def _rows(x: Tensor) -> Tensor:
    """[*, H, C] as contiguous rows [*, H C]; [H, C] as it is, contiguous."""
    return (x.flatten(1) if x.dim() == 3 else x).contiguous()


def _of_block(per_edge: Tensor | None, block: Block) -> Tensor | None:
    return None if per_edge is None else per_edge[block.edges]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are kept in."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _dropout(p: float, key: DropoutKey | None) -> _Dropout | None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability must be between 0 and 1, got {p}")
    if p == 0:
        return None
    if key is None:
        raise ValueError(f"dropout with probability {p} needs a key")
    return _Dropout(float(p), key)


def _check_heads(name: str, x: Tensor) -> int:
    """H; ValueError unless x is [*, H, C] with at least one head."""
    if x.dim() != 3 or x.shape[1] == 0:
        raise ValueError(f"{name} must be of shape [rows, heads, channels], got {tuple(x.shape)}")
    return x.shape[1]


def _check(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(x.shape) != shape or not x.is_floating_point():
        raise ValueError(
            f"{name} must be floating point of shape {shape}, got {x.dtype} {tuple(x.shape)}"
        )


def _check_edge_attr(
    graph: DistributedGraph, attr: Tensor | None, weight: Tensor | None, rows: Tensor
) -> None:
    if attr is None and weight is None:
        return
    if attr is None or weight is None:
        raise ValueError("edge_attr and edge_weight must both be given, or neither")
    _check("edge_attr", attr, (graph.num_local_edges, *attr.shape[1:2]))
    _check("edge_weight", weight, (rows.shape[1] * rows.shape[2], attr.shape[-1]))
