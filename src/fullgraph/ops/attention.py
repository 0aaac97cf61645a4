"""Attention over in-edges, merged across blocks, without an array of all edges.

What is kept from the forward to the backward pass is the inputs, the result, and two numbers a row
and head (the largest logit and the sum of exponentials); the coefficients are computed again. What
is computed from the attributes of edges exists for a bounded number of edges at a time.

A row without in-edges, or whose logits are all -inf, gives 0 and no gradient. Logits may be as
large as the dtype allows; one that is +inf or NaN makes its row and head NaN, as in PyG.

Letters: n owned rows, m owned rows that edges start from, E edges on this rank, H heads, C channels
a head, D attributes of an edge, F columns.
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
from fullgraph.graph.blocks import Block, Chunk
from fullgraph.kernels.reference import edges_of
from fullgraph.ops.dropout import DropoutKey
from fullgraph.ops.halo import fetch_and_send_back, for_each_source, new_halo


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
    key: DropoutKey | None = None, layer: str = "-",
) -> Tensor:  # fmt: skip
    """`gat_attention` where a source's values and logits are one row already, as they travel.

    Args:
        rows: [m, H C + H]: a source's values, head after head, and then its logits.
        target_logit: [n, H]. All else as for `gat_attention`.
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
    return _Gat.apply(rows, target_logit, edge_logit, options)


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

    def dropout_of(self, edges: slice | Tensor) -> kernels.EdgeDropout | None:
        """Of these edges of the rank."""
        if self.dropout is None:
            return None
        return kernels.EdgeDropout(
            self.graph.edge_id[edges], self.dropout.p, *self.dropout.key
        )  # fmt: skip


class _Gat(torch.autograd.Function):
    """z[i] = Σ over edges e from j into i of a[e] v[j], a = dropout(softmax(leaky(s[j] + t[i] +
    l[e]))), the softmax over the in-edges of i.

    ====  ============  ==================================================
    v, s  [m, H C + H]  side by side; float32, float64 or bfloat16
    t     [n, H]
    l     [E, H]        optional
    z     [n, H, C]     dtype of v; found in float32 for bfloat16
    ====  ============  ==================================================

    Backward: one pass over the sources gives every gradient; it needs their rows again, kept or
    fetched as the schedule says. Saved: v, s, t, l, z, and [n, H] twice, see above.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, target_logit: Tensor, edge_logit: Tensor | None, options: _Options
    ) -> Tensor:
        graph, dtype, heads = options.graph, _wide(rows.dtype), target_logit.shape[1]
        widths = [rows.shape[1] - heads, heads]
        sources = _Sources.side_by_side(graph, rows.contiguous(), widths)
        halo = _halo(graph, sources, ctx.needs_input_grad)
        shape = (-1, heads, widths[0] // heads)
        softmax = _Softmax.empty(graph.num_owned, sources.own[0].view(shape), dtype)
        wide_logit = target_logit.to(dtype).contiguous()
        wide_edge_logit = None if edge_logit is None else edge_logit.to(dtype).contiguous()

        def use(block: Block, chunk: Chunk, rows: Tensor) -> None:
            values, logits = sources.parts_of(block, rows)
            kernels.gat(
                chunk.begin, chunk.end, block.cols, values, logits, wide_logit, *softmax,
                rows=block.rows, edge_logit=_of_block(wide_edge_logit, block),
                dropout=options.dropout_of(block.edges), col_offset=chunk.first_row,
                accumulate=block is not sources.own_block, slope=options.extra["slope"],
            )  # fmt: skip

        ctx.call = for_each_source(graph, sources.rows, use, layer=options.layer, halo=halo)
        out = softmax.out.view(shape).to(rows.dtype)
        ctx.options, ctx.widths = options, widths
        ctx.save_for_backward(
            sources.rows, target_logit, edge_logit, halo, out, softmax.top, softmax.total
        )
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        all_rows, target_logit, edge_logit, halo, out, top, total = ctx.saved_tensors
        options: _Options = ctx.options
        graph, dtype = options.graph, top.dtype
        dout = _rows(grad).to(dtype)
        state = _state(dout, out, top, total, target_logit.to(dtype))
        wide_edge_logit = None if edge_logit is None else edge_logit.to(dtype).contiguous()
        sources = _Sources.side_by_side(graph, all_rows, ctx.widths)
        zeros = kernels.in_huge_pages(torch.empty_like(all_rows, dtype=dtype)).zero_()
        grads = _Sources.side_by_side(graph, zeros, ctx.widths)
        dtarget_logit = torch.zeros_like(top)
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
                dropout=options.dropout_of(block.edges), slope=options.extra["slope"],
            )  # fmt: skip

        fetch_and_send_back(graph, sources.rows, grads.rows, use, layer=ctx.call, halo=halo)
        return (
            zeros.to(out.dtype), dtarget_logit.to(target_logit.dtype),
            None if dedge_logit is None else dedge_logit.to(edge_logit.dtype), None,
        )  # fmt: skip


class _Kind(NamedTuple):
    """Kernels that take rows of sources, then rows of targets (and more that has no rows)."""

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
        sources = _Sources.of(graph, [_rows(x) for x in tensors[: kind.num_sources]])
        targets = [_rows(x) for x in tensors[kind.num_sources :]]
        wide_targets = [x.to(dtype) for x in targets]
        halo = _halo(graph, sources, ctx.needs_input_grad)
        softmax = _Softmax.empty(graph.num_owned, tensors[0], dtype)
        if attr is not None:  # a row may lie in several pieces
            softmax.clear()

        def use(block: Block, chunk: Chunk, rows: Tensor) -> None:
            accumulate = block is not sources.own_block or attr is not None
            for piece in _pieces(options, block, chunk, attr, weight, dtype):
                kind.forward(
                    *piece.by_target, *sources.parts_of(block, rows), *wide_targets, *softmax,
                    rows=piece.rows, edge=piece.term, dropout=piece.dropout,
                    col_offset=piece.col_offset, accumulate=accumulate, **options.extra,
                )  # fmt: skip

        ctx.call = for_each_source(graph, sources.rows, use, layer=options.layer, halo=halo)
        out = softmax.out.view(-1, *tensors[0].shape[1:]).to(tensors[0].dtype)
        ctx.kind, ctx.options = kind, options
        ctx.shapes = [x.shape for x in tensors]
        ctx.save_for_backward(
            *sources.own, *targets, attr, weight, halo, out, softmax.top, softmax.total
        )
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, attr, weight, halo, out, top, total = ctx.saved_tensors
        kind, options = ctx.kind, ctx.options
        graph, dtype = options.graph, top.dtype
        own, targets = tensors[: kind.num_sources], tensors[kind.num_sources :]
        dout = _rows(grad).to(dtype)
        state = _state(dout, out, top, total)
        wide_targets = [x.to(dtype) for x in targets]
        dtargets = [torch.zeros_like(x) for x in wide_targets]
        sources = _Sources.of(graph, own)
        grads = _Sources.zeros(graph, own, dtype)
        edges = None
        if attr is not None and any(ctx.needs_input_grad[2:4]):
            edges = _EdgeGradients(attr, weight, ctx.needs_input_grad[2:4])

        def use(block: Block, chunk: Chunk, rows: Tensor, contribution: Tensor) -> None:
            inputs = (*sources.parts_of(block, rows), *wide_targets, state, dout)
            for piece in _pieces(options, block, chunk, attr, weight, dtype):
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
        found = [
            dx.view(shape).to(x.dtype)
            for dx, x, shape in zip([*grads.own, *dtargets], tensors, ctx.shapes)
        ]
        dattr, dweight = (None, None) if edges is None else edges.results()
        return None, None, dattr, dweight, *found


class _Softmax(NamedTuple):
    """A softmax in the making, as `fullgraph.kernels` has it: [n, H C], [n, H], [n, H]."""

    out: Tensor
    top: Tensor
    total: Tensor

    @staticmethod
    def empty(num_rows: int, like: Tensor, dtype: torch.dtype) -> _Softmax:
        """For rows like [*, H, C]; not initialised."""
        _, heads, channels = like.shape
        widths = (heads * channels, heads, heads)
        empty = (like.new_empty(num_rows, w, dtype=dtype) for w in widths)
        return _Softmax(*map(kernels.in_huge_pages, empty))

    def clear(self) -> None:
        """No edges so far."""
        self.out.zero_()
        self.top.fill_(-torch.inf)
        self.total.zero_()


def _state(
    dout: Tensor, out: Tensor, top: Tensor, total: Tensor, target_logit: Tensor | None = None
) -> Tensor:
    """What a gradient needs of a target, side by side: [n, 3 H], or [n, 4 H] with target_logit."""
    n, heads = top.shape
    state = top.new_empty(n, 3 if target_logit is None else 4, heads)
    state[:, 0] = top
    state[:, 1] = total.reciprocal().masked_fill_(total == 0, 0)
    kernels.head_dots(dout, out.view(dout.shape), state[:, 2])
    if target_logit is not None:
        state[:, 3] = target_logit
    return state.flatten(1)


@dataclass(frozen=True)
class _Sources:
    """Rows that edges start from, several tensors [m, F] that travel side by side in `rows`.

    Where nothing travels, there is no such tensor: `rows` stands in for it and is not looked at.
    """

    own: tuple[Tensor, ...]
    rows: Tensor
    own_block: Block

    @staticmethod
    def of(graph: DistributedGraph, parts: Sequence[Tensor]) -> _Sources:
        joined = len(parts) > 1 and graph.group.size > 1
        rows = torch.cat(list(parts), 1) if joined else parts[0]
        return _Sources(tuple(parts), rows, graph.edges.blocks[graph.group.rank])

    @staticmethod
    def side_by_side(graph: DistributedGraph, rows: Tensor, widths: Sequence[int]) -> _Sources:
        """From one tensor, of which the parts are columns."""
        own = tuple(rows.split(list(widths), 1))
        return _Sources(own, rows, graph.edges.blocks[graph.group.rank])

    @staticmethod
    def zeros(graph: DistributedGraph, like: Sequence[Tensor], dtype: torch.dtype) -> _Sources:
        """Of the same shapes; here `own` are columns of `rows`, where that exists."""
        if len(like) == 1 or graph.group.size == 1:
            return _Sources.of(graph, [torch.zeros_like(x, dtype=dtype) for x in like])
        widths = [x.shape[1] for x in like]
        rows = like[0].new_zeros(like[0].shape[0], sum(widths), dtype=dtype)
        return _Sources(rows.split(widths, 1), rows, graph.edges.blocks[graph.group.rank])

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
    options: _Options, block: Block, chunk: Chunk, attr: Tensor | None, weight: Tensor | None,
    dtype: torch.dtype,
) -> Iterator[_Piece]:  # fmt: skip
    """A chunk in pieces small enough to compute something for every edge of one; without
    attributes of edges, whole."""
    if attr is None or weight is None:
        dropout = options.dropout_of(block.edges)

        def lists() -> BySource:
            t = slice(chunk.first_row, chunk.last_row)
            ranges = block.t_offsets[:-1][t], block.t_offsets[1:][t], block.t_cols
            return ranges, None, None if dropout is None else block.t_index

        by_target = chunk.begin, chunk.end, block.cols
        yield _Piece(
            by_target, block.rows, chunk.first_row, block.edges, dropout, None, lists
        )  # fmt: skip
        return
    size = options.graph.max_rows(weight.shape[0] * dtype.itemsize)
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
        yield _piece_of_edges(options, block, chunk, first_row, begin, end, attr, weight, dtype)


def _piece_of_edges(
    options: _Options, block: Block, chunk: Chunk, first_row: int, begin: Tensor, end: Tensor,
    attr: Tensor, weight: Tensor, dtype: torch.dtype,
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
    return _Piece(by_target, rows, 0, edges, options.dropout_of(edges), term, sort)


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
