"""Kernels of attention: a softmax over in-edges that weighs their values. Checks, then the op.

Letters and edge ranges as in `fullgraph.kernels`; n target rows, H heads, C channels a head.

A softmax whose edges come in several lists is kept as three arrays in the dtype of sums: `top`
[n, H], the largest logit so far; `total` [n, H], the sum of exp(logit - top); `out` [n, H C], the
weighted mean of the values so far. With accumulate=False the rows of a list start anew.

The gradients need `state` [n, 3 H]: top, 1 / total (0 where total is 0) and <dout, out> of each
head side by side. They come in two kinds: by target, over ranges as in the forward pass, and by
source, where range i belongs to source row i (or rows[i]), cols are target rows, and index[e] is
the position of edge e in arrays that have the order by target (`edge`, `ids`).

Rows of sources may be columns of wider ones: only their elements must lie next to each other.

Edge cases: a row without edges, or whose logits are all -inf, gives 0 and no gradient. Logits may
be huge. One that is +inf or NaN makes its row and head NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.kernels import _ops
from fullgraph.kernels._checks import SUM_DTYPE, check, check_ranges, short
from fullgraph.kernels._rows import MAX_LAYER

MAX_HEADS = 1024


class EdgeDropout(NamedTuple):
    """Dropout of coefficients: as `kernels.dropout` of rows with these ids, a column for each head.

    ``ids``: int64 [E], the id of each edge, in the order by target; ``first_head``: which of all
    heads the first one given is, where others are elsewhere.
    """

    ids: Tensor
    p: float
    seed: int
    step: int
    layer: int
    first_head: int = 0


def gat(
    begin: Tensor, end: Tensor, cols: Tensor, value: Tensor, source_logit: Tensor,
    target_logit: Tensor, out: Tensor, top: Tensor, total: Tensor, *, slope: float,
    rows: Tensor | None = None, edge_logit: Tensor | None = None,
    dropout: EdgeDropout | None = None, col_offset: int = 0, accumulate: bool = True,
) -> None:  # fmt: skip
    """Attention with logit[e] = leaky(source_logit[j] + target_logit[i] + edge_logit[e]) and the
    values value[j], for edges e from j to i.

    Args:
        value: [S, H C]; source_logit: [S, H] in its dtype. target_logit: [n, H].
        edge_logit: [E, H]; 0 without. slope: of the leaky ReLU below 0.
    """
    dtype = _check_sources(value, {"value": (value, out.shape[1])})
    _check_sources(value, {"source_logit": (source_logit, top.shape[1])})
    _check_softmax(out, top, total, dtype, value)
    check("target_logit", target_logit, dtype, tuple(top.shape), value)
    check_ranges(begin, end, cols, rows, value, out.shape[0])
    _check_edges("edge_logit", edge_logit, cols, top.shape[1], dtype, value)
    _ops.gat(
        begin, end, cols, rows, col_offset, value, source_logit, target_logit, edge_logit,
        float(slope), *_dropout(dropout, cols, value), out, top, total, accumulate,
    )  # fmt: skip


def gat_grad(
    begin: Tensor, end: Tensor, cols: Tensor, value: Tensor, source_logit: Tensor, state: Tensor,
    dout: Tensor, dvalue: Tensor, dsource_logit: Tensor, dtarget_logit: Tensor, *, slope: float,
    index: Tensor | None = None, edge_logit: Tensor | None = None,
    dedge_logit: Tensor | None = None, dropout: EdgeDropout | None = None, accumulate: bool = True,
) -> None:  # fmt: skip
    """All gradients of `gat`, by source; each is added to.

    Args:
        state: [n, 4 H], the fourth being the target_logit. dout: [n, H C], or [n, C], which is
            then that of every head.
        dvalue: [S, H C]; dsource_logit: [S, H]; dtarget_logit: [n, H]; dedge_logit: [E, H].
        accumulate: otherwise dvalue and dsource_logit, which have a row for each range, are
            written to.
    """
    heads = source_logit.shape[1]
    dtype = _check_sources(value, {
        "value": (value, _of_all_heads(dout, value, heads)), "source_logit": (source_logit, heads),
    })  # fmt: skip
    _check_gradients(value, dtype, {
        "dvalue": (dvalue, value.shape), "dsource_logit": (dsource_logit, source_logit.shape),
    })  # fmt: skip
    _check_state(state, dout, 4 * heads, 1, dtype)
    _check_heads(value.shape[1], heads)
    check("dtarget_logit", dtarget_logit, dtype, (dout.shape[0], heads), value)
    _check_by_source(begin, end, cols, None, index, edge_logit, dropout, value)
    _check_edges("edge_logit", edge_logit, cols, heads, dtype, value)
    _check_edges("dedge_logit", dedge_logit, cols, heads, dtype, value)
    if dedge_logit is not None and edge_logit is None:
        raise ValueError("dedge_logit is given without edge_logit")
    _ops.gat_grad(
        begin, end, cols, index, value, source_logit, edge_logit, state, dout, float(slope),
        *_dropout(dropout, cols, value), dvalue, dsource_logit, dtarget_logit, dedge_logit,
        accumulate,
    )  # fmt: skip


def gatv2(
    begin: Tensor, end: Tensor, cols: Tensor, source: Tensor, target: Tensor, att: Tensor,
    out: Tensor, top: Tensor, total: Tensor, *, slope: float, rows: Tensor | None = None,
    edge: Tensor | None = None, dropout: EdgeDropout | None = None, col_offset: int = 0,
    accumulate: bool = True,
) -> None:  # fmt: skip
    """Attention with logit[e, h] = <att[h], leaky(source[j, h] + target[i, h] + edge[e, h])> and
    the values source[j], for edges e from j to i.

    Args:
        source: [S, H C]. target: [n, H C]; att: [H, C]; edge: [E, H C] or None.
    """
    dtype = _check_sources(source, {"source": (source, out.shape[1])})
    _check_softmax(out, top, total, dtype, source)
    check("target", target, dtype, tuple(out.shape), source)
    check("att", att, dtype, _att_shape(out, top.shape[1]), source)
    check_ranges(begin, end, cols, rows, source, out.shape[0])
    _check_edges("edge", edge, cols, out.shape[1], dtype, source)
    _ops.gatv2(
        begin, end, cols, rows, col_offset, source, target, att, edge, float(slope),
        *_dropout(dropout, cols, source), out, top, total, accumulate,
    )  # fmt: skip


def gatv2_grad_target(
    begin: Tensor, end: Tensor, cols: Tensor, source: Tensor, target: Tensor, att: Tensor,
    state: Tensor, dout: Tensor, dtarget: Tensor, datt: Tensor, *, slope: float,
    rows: Tensor | None = None, edge: Tensor | None = None, dedge: Tensor | None = None,
    dropout: EdgeDropout | None = None, col_offset: int = 0,
) -> None:  # fmt: skip
    """The gradients of `gatv2` by target; each is added to.

    Args:
        dtarget: [n, H C]; datt: [H, C]; dedge: [E, H C].
    """
    heads = att.shape[0]
    dtype = _check_sources(source, {"source": (source, dout.shape[1])})
    _check_state(state, dout, 3 * heads, heads, dtype)
    check("target", target, dtype, tuple(dout.shape), source)
    check("att", att, dtype, _att_shape(dout, heads), source)
    check("dtarget", dtarget, dtype, tuple(dout.shape), source)
    check("datt", datt, dtype, tuple(att.shape), source)
    check_ranges(begin, end, cols, rows, source, dout.shape[0])
    _check_edges("edge", edge, cols, dout.shape[1], dtype, source)
    _check_edge_gradient(dedge, edge, cols, dtype, source)
    _ops.gatv2_grad_target(
        begin, end, cols, rows, col_offset, source, target, att, edge, state, dout, float(slope),
        *_dropout(dropout, cols, source), dtarget, datt, dedge,
    )  # fmt: skip


def gatv2_grad_source(
    begin: Tensor, end: Tensor, cols: Tensor, source: Tensor, target: Tensor, att: Tensor,
    state: Tensor, dout: Tensor, dsource: Tensor, *, slope: float, rows: Tensor | None = None,
    index: Tensor | None = None, edge: Tensor | None = None, dropout: EdgeDropout | None = None,
) -> None:  # fmt: skip
    """dsource [S, H C] += the gradient of `gatv2` by source."""
    heads = att.shape[0]
    dtype = _check_sources(source, {"source": (source, dout.shape[1])})
    _check_gradients(source, dtype, {"dsource": (dsource, source.shape)})
    _check_state(state, dout, 3 * heads, heads, dtype)
    check("target", target, dtype, tuple(dout.shape), source)
    check("att", att, dtype, _att_shape(dout, heads), source)
    _check_by_source(begin, end, cols, rows, index, edge, dropout, source)
    _check_edges("edge", edge, cols, dout.shape[1], dtype, source)
    _ops.gatv2_grad_source(
        begin, end, cols, rows, index, source, target, att, edge, state, dout, float(slope),
        *_dropout(dropout, cols, source), dsource,
    )  # fmt: skip


def dot(
    begin: Tensor, end: Tensor, cols: Tensor, key: Tensor, value: Tensor, query: Tensor,
    out: Tensor, top: Tensor, total: Tensor, *, rows: Tensor | None = None,
    edge: Tensor | None = None, dropout: EdgeDropout | None = None, col_offset: int = 0,
    accumulate: bool = True,
) -> None:  # fmt: skip
    """Attention with logit[e, h] = <query[i, h], key[j, h] + edge[e, h]> / √C and the values
    value[j] + edge[e], for edges e from j to i.

    Args:
        key, value: [S, H C] of one dtype. query: [n, H C]; edge: [E, H C] or None.
    """
    width = out.shape[1]
    dtype = _check_sources(key, {"key": (key, width), "value": (value, width)})
    _check_softmax(out, top, total, dtype, key)
    check("query", query, dtype, tuple(out.shape), key)
    check_ranges(begin, end, cols, rows, key, out.shape[0])
    _check_edges("edge", edge, cols, width, dtype, key)
    _ops.dot(
        begin, end, cols, rows, col_offset, key, value, query, edge,
        *_dropout(dropout, cols, key), out, top, total, accumulate,
    )  # fmt: skip


def dot_grad_target(
    begin: Tensor, end: Tensor, cols: Tensor, key: Tensor, value: Tensor, query: Tensor,
    state: Tensor, dout: Tensor, dquery: Tensor, *, rows: Tensor | None = None,
    edge: Tensor | None = None, dedge: Tensor | None = None, dropout: EdgeDropout | None = None,
    col_offset: int = 0,
) -> None:  # fmt: skip
    """The gradients of `dot` by target: dquery [n, H C] and dedge [E, H C] are added to."""
    width = dout.shape[1]
    dtype = _check_sources(key, {"key": (key, width), "value": (value, width)})
    _check_state(state, dout, state.shape[1], state.shape[1] // 3, dtype)
    check("query", query, dtype, tuple(dout.shape), key)
    check("dquery", dquery, dtype, tuple(dout.shape), key)
    check_ranges(begin, end, cols, rows, key, dout.shape[0])
    _check_edges("edge", edge, cols, width, dtype, key)
    _check_edge_gradient(dedge, edge, cols, dtype, key)
    _ops.dot_grad_target(
        begin, end, cols, rows, col_offset, key, value, query, edge, state, dout,
        *_dropout(dropout, cols, key), dquery, dedge,
    )  # fmt: skip


def dot_grad_source(
    begin: Tensor, end: Tensor, cols: Tensor, key: Tensor, value: Tensor, query: Tensor,
    state: Tensor, dout: Tensor, dkey: Tensor, dvalue: Tensor, *, rows: Tensor | None = None,
    index: Tensor | None = None, edge: Tensor | None = None, dropout: EdgeDropout | None = None,
) -> None:  # fmt: skip
    """The gradients of `dot` by source: dkey and dvalue [S, H C] are added to."""
    width = dout.shape[1]
    dtype = _check_sources(key, {"key": (key, width), "value": (value, width)})
    _check_gradients(key, dtype, {"dkey": (dkey, key.shape), "dvalue": (dvalue, key.shape)})
    _check_state(state, dout, state.shape[1], state.shape[1] // 3, dtype)
    check("query", query, dtype, tuple(dout.shape), key)
    _check_by_source(begin, end, cols, rows, index, edge, dropout, key)
    _check_edges("edge", edge, cols, width, dtype, key)
    _ops.dot_grad_source(
        begin, end, cols, rows, index, key, value, query, edge, state, dout,
        *_dropout(dropout, cols, key), dkey, dvalue,
    )  # fmt: skip


def head_dots(x: Tensor, y: Tensor, out: Tensor) -> None:
    """out[i, h] = <x[i, h], y[i, h]>, or <x[i], y[i, h]>.

    Args:
        x: [n, H C], or [n, C], and out: [n, H] in the dtype of sums over y [n, H C]. out may be
            columns of wider rows.
    """
    dtype = _check_sources(y, {"y": (y, _of_all_heads(x, y, out.shape[1]))})
    check("x", x, dtype, (y.shape[0], None), y)
    check("y", y, y.dtype, tuple(y.shape), y)
    _check_gradients(y, dtype, {"out": (out, torch.Size((x.shape[0], out.shape[1])))})
    _check_heads(y.shape[1], out.shape[1])
    _ops.head_dots(x, y, out)


# ---- Checks -------------------------------------------------------------------------------------


def _check_sources(like: Tensor, rows: dict[str, tuple[Tensor, int]]) -> torch.dtype:
    """The dtype of sums; ValueError unless all rows fit `like` in number, dtype and device, and are
    as wide as it says here."""
    if like.dtype not in SUM_DTYPE:
        name = next(iter(rows))
        raise ValueError(f"{name} must be float32, float64 or bfloat16, got {short(like.dtype)}")
    for name, (tensor, width) in rows.items():
        _check_strided(name, tensor, like.dtype, (like.shape[0], width), like)
    return SUM_DTYPE[like.dtype]


def _check_gradients(
    like: Tensor, dtype: torch.dtype, rows: dict[str, tuple[Tensor, torch.Size]]
) -> None:
    for name, (tensor, shape) in rows.items():
        _check_strided(name, tensor, dtype, tuple(shape), like)


def _check_strided(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], like: Tensor
) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} must be {short(dtype)} of shape {list(shape)}, "
            f"got {short(tensor.dtype)} {list(tensor.shape)}"
        )
    if tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise ValueError(f"elements of a row of {name} must be adjacent, got {tensor.stride()}")
    if tensor.device != like.device:
        raise ValueError(f"{name} is on {tensor.device}, the other arguments on {like.device}")


def _check_softmax(
    out: Tensor, top: Tensor, total: Tensor, dtype: torch.dtype, like: Tensor
) -> None:
    check("out", out, dtype, (None, None), like)
    check("top", top, dtype, (out.shape[0], None), like)
    check("total", total, dtype, tuple(top.shape), like)
    _check_heads(out.shape[1], top.shape[1])


def _check_state(state: Tensor, dout: Tensor, width: int, heads: int, dtype: torch.dtype) -> None:
    check("dout", dout, dtype, (None, None), dout)
    check("state", state, dtype, (dout.shape[0], width), dout)
    _check_heads(dout.shape[1], heads)


def _of_all_heads(rows: Tensor, of_heads: Tensor, heads: int) -> int:
    """Columns that rows [*, H C] and `of_heads` have in common, or those of one head all heads."""
    shared = rows.shape[1] < of_heads.shape[1]
    return rows.shape[1] * heads if shared else rows.shape[1]


def _check_heads(width: int, heads: int) -> None:
    if not 1 <= heads <= MAX_HEADS or width % heads:
        raise ValueError(
            f"{width} columns cannot be {heads} heads; there must be 1 .. {MAX_HEADS} of equal size"
        )


def _att_shape(rows: Tensor, heads: int) -> tuple[int, int]:
    return heads, rows.shape[1] // heads


def _check_by_source(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, index: Tensor | None,
    per_edge: Tensor | None, dropout: EdgeDropout | None, like: Tensor,
) -> None:  # fmt: skip
    check_ranges(begin, end, cols, rows, like, like.shape[0])
    if index is not None:
        check("index", index, torch.int64, tuple(cols.shape), like)
    elif per_edge is not None or dropout is not None:
        raise ValueError("index is needed where edges have values or ids of their own")


def _check_edges(
    name: str, values: Tensor | None, cols: Tensor, width: int, dtype: torch.dtype, like: Tensor
) -> None:
    if values is not None:
        check(name, values, dtype, (cols.shape[0], width), like)


def _check_edge_gradient(
    dedge: Tensor | None, edge: Tensor | None, cols: Tensor, dtype: torch.dtype, like: Tensor
) -> None:
    if dedge is None:
        return
    if edge is None:
        raise ValueError("dedge is given without edge")
    _check_edges("dedge", dedge, cols, edge.shape[1], dtype, like)


def _dropout(
    dropout: EdgeDropout | None, cols: Tensor, like: Tensor
) -> tuple[Tensor | None, float, int, int, int]:
    """The arguments of an op: ids, p, seed, step, and layer, above whose bits the first head is."""
    if dropout is None:
        return None, 0.0, 0, 0, 0
    check("dropout.ids", dropout.ids, torch.int64, tuple(cols.shape), like)
    if not 0 <= dropout.p <= 1:
        raise ValueError(f"p must be between 0 and 1, got {dropout.p}")
    if not 0 <= dropout.layer < MAX_LAYER:
        raise ValueError(f"layer must be of 0 .. {MAX_LAYER - 1}, got {dropout.layer}")
    if not 0 <= dropout.first_head < MAX_LAYER:
        raise ValueError(f"first_head must be of 0 .. {MAX_LAYER - 1}, got {dropout.first_head}")
    signed = (dropout.seed + 2**63) % 2**64 - 2**63  # which is what ops take
    place = dropout.layer + dropout.first_head * MAX_LAYER
    return dropout.ids, float(dropout.p), signed, dropout.step % 2**32, place
