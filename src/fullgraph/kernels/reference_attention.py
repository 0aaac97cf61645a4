"""The attention kernels in readable torch: what tests compare with, and what other devices run.

Letters: D ranges of edges, S source rows, E edges, n target rows, H heads, C channels a head.
Arguments are those of the functions of the same name in `fullgraph.kernels`, which checks them.

A softmax over edges that come in several lists is kept as three numbers a row and head: the largest
logit so far (`top`), the sum of exp(logit - top) (`total`), and the weighted mean of the values
(`out`). Backward passes get `state`: [n, 3 H], which is top, 1 / total and <dout, out> side by
side; for `gat` [n, 4 H], the target's logit being the fourth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.kernels.reference import dropout, edges_of

# ---- Forward ------------------------------------------------------------------------------------


def gat(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, value: Tensor,
    source_logit: Tensor, target_logit: Tensor, edge_logit: Tensor | None, slope: float,
    ids: Tensor | None, p: float, seed: int, step: int, layer: int, out: Tensor, top: Tensor,
    total: Tensor, accumulate: bool,
) -> None:  # fmt: skip
    to, source, e = _ends(begin, end, cols, rows, col_offset)
    logit = _gat_logit(source_logit[source], target_logit[to], edge_logit, e)
    keep = _keep(ids, e, logit, p, seed, step, layer)
    _merge(
        begin, rows, to, _leaky(logit, slope), keep, value[source], out, top, total, accumulate
    )  # fmt: skip


def gatv2(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, source: Tensor,
    target: Tensor, att: Tensor, edge: Tensor | None, slope: float, ids: Tensor | None, p: float,
    seed: int, step: int, layer: int, out: Tensor, top: Tensor, total: Tensor, accumulate: bool,
) -> None:  # fmt: skip
    to, j, e = _ends(begin, end, cols, rows, col_offset)
    logit = (_leaky(_gatv2_sum(source[j], target[to], edge, e, att), slope) * att).sum(2)
    keep = _keep(ids, e, logit, p, seed, step, layer)
    _merge(begin, rows, to, logit, keep, source[j], out, top, total, accumulate)


def dot(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, key: Tensor,
    value: Tensor, query: Tensor, edge: Tensor | None, ids: Tensor | None, p: float, seed: int,
    step: int, layer: int, out: Tensor, top: Tensor, total: Tensor, accumulate: bool,
) -> None:  # fmt: skip
    to, source, e = _ends(begin, end, cols, rows, col_offset)
    heads = top.shape[1]
    keys = _with_edge(key[source], edge, e, out.dtype)
    logit = _dots(query[to], keys, heads) * _scale(query, heads)
    keep = _keep(ids, e, logit, p, seed, step, layer)
    values = _with_edge(value[source], edge, e, out.dtype)
    _merge(begin, rows, to, logit, keep, values, out, top, total, accumulate)


def _merge(
    begin: Tensor, rows: Tensor | None, to: Tensor, logit: Tensor, keep: Tensor, value: Tensor,
    out: Tensor, top: Tensor, total: Tensor, accumulate: bool,
) -> None:  # fmt: skip
    """Merge edges to the rows `to` [E] with these logits and dropout factors [E, H] and values
    [E, H C] into the state of a softmax."""
    if not accumulate:
        listed = slice(0, len(begin)) if rows is None else rows.long()
        out[listed], top[listed], total[listed] = 0, -torch.inf, 0
    index = to.unsqueeze(1).expand_as(logit)
    new_top = top.scatter_reduce(0, index, logit, "amax", include_self=True)
    before = total * _exp_below(top, new_top)
    weight = _exp_below(logit, new_top[to])
    new_total = before.index_add(0, to, weight)
    heads = logit.shape[1]
    sums = _per_head(out, heads) * before.unsqueeze(2)
    weighted = (weight * keep).unsqueeze(2) * _per_head(value.to(out.dtype), heads)
    sums = sums.index_add(0, to, weighted)
    out.copy_((sums * _inverse(new_total).unsqueeze(2)).flatten(1))
    top.copy_(new_top)
    total.copy_(new_total)


def _exp_below(logit: Tensor, top: Tensor) -> Tensor:
    """exp(logit - top), at most 1; 0 where both are -inf."""
    return (logit - top.masked_fill(top == -torch.inf, 0)).clamp(max=0).exp()


def _inverse(total: Tensor) -> Tensor:
    return torch.where(total == 0, 0, 1 / total)


# ---- Backward -----------------------------------------------------------------------------------


def gat_grad(
    begin: Tensor, end: Tensor, cols: Tensor, index: Tensor | None, value: Tensor,
    source_logit: Tensor, edge_logit: Tensor | None, state: Tensor, dout: Tensor, slope: float,
    ids: Tensor | None, p: float, seed: int, step: int, layer: int, dvalue: Tensor,
    dsource_logit: Tensor, dtarget_logit: Tensor, dedge_logit: Tensor | None, accumulate: bool,
) -> None:  # fmt: skip
    source, to, e = _ends_by_source(begin, end, cols, None, index)
    heads = source_logit.shape[1]
    if not accumulate:
        dvalue.zero_(), dsource_logit.zero_()
    dout = _of_all_heads(dout, value)
    target_logit = state[to, 3 * heads :]
    logit = _gat_logit(source_logit[source], target_logit, edge_logit, e)
    keep = _keep(ids, e, logit, p, seed, step, layer)
    weight, dlogit = _softmax_grad(
        _leaky(logit, slope), keep, state[to], _dots(dout[to], value[source], heads)
    )
    dvalue.index_add_(0, source, _scaled(weight, dout[to]))
    draw = dlogit * _leaky_grad(logit, slope)
    dsource_logit.index_add_(0, source, draw)
    dtarget_logit.index_add_(0, to, draw)
    if dedge_logit is not None:
        dedge_logit.index_add_(0, e, draw)


def gatv2_grad_target(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, source: Tensor,
    target: Tensor, att: Tensor, edge: Tensor | None, state: Tensor, dout: Tensor, slope: float,
    ids: Tensor | None, p: float, seed: int, step: int, layer: int, dtarget: Tensor, datt: Tensor,
    dedge: Tensor | None,
) -> None:  # fmt: skip
    to, j, e = _ends(begin, end, cols, rows, col_offset)
    drop = (ids, p, seed, step, layer)
    total = _gatv2_sum(source[j], target[to], edge, e, att)
    _, dlogit = _gatv2_grad(total, att, slope, e, drop, state[to], dout[to], source[j])
    datt.add_((dlogit.unsqueeze(2) * _leaky(total, slope)).sum(0))
    dtotal = _gatv2_grad_sum(total, att, slope, dlogit)
    dtarget.index_add_(0, to, dtotal)
    if dedge is not None:
        dedge.index_add_(0, e, dtotal)


def gatv2_grad_source(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, index: Tensor | None,
    source: Tensor, target: Tensor, att: Tensor, edge: Tensor | None, state: Tensor, dout: Tensor,
    slope: float, ids: Tensor | None, p: float, seed: int, step: int, layer: int, dsource: Tensor,
) -> None:  # fmt: skip
    j, to, e = _ends_by_source(begin, end, cols, rows, index)
    drop = (ids, p, seed, step, layer)
    total = _gatv2_sum(source[j], target[to], edge, e, att)
    weight, dlogit = _gatv2_grad(total, att, slope, e, drop, state[to], dout[to], source[j])
    dsource.index_add_(0, j, _scaled(weight, dout[to]) + _gatv2_grad_sum(total, att, slope, dlogit))


def dot_grad_target(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, key: Tensor,
    value: Tensor, query: Tensor, edge: Tensor | None, state: Tensor, dout: Tensor,
    ids: Tensor | None, p: float, seed: int, step: int, layer: int, dquery: Tensor,
    dedge: Tensor | None,
) -> None:  # fmt: skip
    to, source, e = _ends(begin, end, cols, rows, col_offset)
    drop = (ids, p, seed, step, layer)
    keys = _with_edge(key[source], edge, e, dout.dtype)
    values = _with_edge(value[source], edge, e, dout.dtype)
    weight, dscore = _dot_grad(keys, values, query[to], e, drop, state[to], dout[to])
    dquery.index_add_(0, to, _scaled(dscore, keys))
    if dedge is not None:
        dedge.index_add_(0, e, _scaled(dscore, query[to]) + _scaled(weight, dout[to]))


def dot_grad_source(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, index: Tensor | None,
    key: Tensor, value: Tensor, query: Tensor, edge: Tensor | None, state: Tensor, dout: Tensor,
    ids: Tensor | None, p: float, seed: int, step: int, layer: int, dkey: Tensor, dvalue: Tensor,
) -> None:  # fmt: skip
    source, to, e = _ends_by_source(begin, end, cols, rows, index)
    drop = (ids, p, seed, step, layer)
    keys = _with_edge(key[source], edge, e, dout.dtype)
    values = _with_edge(value[source], edge, e, dout.dtype)
    weight, dscore = _dot_grad(keys, values, query[to], e, drop, state[to], dout[to])
    dkey.index_add_(0, source, _scaled(dscore, query[to]))
    dvalue.index_add_(0, source, _scaled(weight, dout[to]))


def head_dots(x: Tensor, y: Tensor, out: Tensor) -> None:
    out.copy_(_dots(_of_all_heads(x, y), y, out.shape[1]))


def _softmax_grad(
    logit: Tensor, keep: Tensor, state: Tensor, dweight: Tensor
) -> tuple[Tensor, Tensor]:
    """[E, H] each: what the values are multiplied by, and the gradient of the logits.

    keep: dropout factors; state: [E, 3 H or more] of the edges' targets; dweight: <dout, value>.
    """
    heads = logit.shape[1]
    top, inverse, mean = state[:, : 3 * heads].view(-1, 3, heads).unbind(1)
    coefficient = _exp_below(logit, top) * inverse
    return coefficient * keep, coefficient * (keep * dweight - mean)


# ---- Logits -------------------------------------------------------------------------------------


def _gat_logit(
    source_logit: Tensor, target_logit: Tensor, edge_logit: Tensor | None, e: Tensor
) -> Tensor:
    """[E, H], before the leaky ReLU."""
    return _with_edge(source_logit, edge_logit, e, target_logit.dtype) + target_logit


def _gatv2_sum(
    source: Tensor, target: Tensor, edge: Tensor | None, e: Tensor, att: Tensor
) -> Tensor:
    """[E, H, C], before the leaky ReLU."""
    return (_with_edge(source, edge, e, target.dtype) + target).unflatten(1, att.shape)


def _gatv2_grad(
    total: Tensor, att: Tensor, slope: float, e: Tensor,
    drop: tuple[Tensor | None, float, int, int, int], state: Tensor, dout: Tensor, source: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    logit = (_leaky(total, slope) * att).sum(2)
    ids, p, seed, step, layer = drop
    keep = _keep(ids, e, logit, p, seed, step, layer)
    return _softmax_grad(logit, keep, state, _dots(dout, source, att.shape[0]))


def _gatv2_grad_sum(total: Tensor, att: Tensor, slope: float, dlogit: Tensor) -> Tensor:
    return (dlogit.unsqueeze(2) * att * _leaky_grad(total, slope)).flatten(1)


def _dot_grad(
    keys: Tensor, values: Tensor, query: Tensor, e: Tensor,
    drop: tuple[Tensor | None, float, int, int, int], state: Tensor, dout: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    heads = state.shape[1] // 3
    scale = _scale(query, heads)
    logit = _dots(query, keys, heads) * scale
    ids, p, seed, step, layer = drop
    keep = _keep(ids, e, logit, p, seed, step, layer)
    weight, dlogit = _softmax_grad(logit, keep, state, _dots(dout, values, heads))
    return weight, dlogit * scale


# ---- Small steps --------------------------------------------------------------------------------


def _ends(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int
) -> tuple[Tensor, Tensor, Tensor]:
    """int64 [E] each: target row, source row and position of every edge of the ranges."""
    row, e = edges_of(begin, end)
    return row if rows is None else rows[row].long(), cols[e].long() - col_offset, e


def _ends_by_source(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, index: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """int64 [E] each: source row, target row and position by target of every edge."""
    row, e = edges_of(begin, end)
    source = row if rows is None else rows[row].long()
    return source, cols[e].long(), e if index is None else index[e]


def _keep(
    ids: Tensor | None, e: Tensor, like: Tensor, p: float, seed: int, step: int, layer: int
) -> Tensor:
    """[E, H]: 1 / (1 - p) or 0, by the id of the edge and the head; ones without ids.

    layer: 16 bits, and above them the first head.
    """
    if ids is None:
        return torch.ones_like(like)
    first_head = layer >> 16
    ones = like.new_ones(like.shape[0], first_head + like.shape[1])
    dropout(ones, ids[e], ones, p, seed, step, layer & 0xFFFF)
    return ones[:, first_head:]


def _leaky(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, x, x * slope)


def _leaky_grad(x: Tensor, slope: float) -> Tensor:
    return torch.full_like(x, slope).masked_fill_(x > 0, 1)


def _with_edge(x: Tensor, edge: Tensor | None, e: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if edge is None else x.to(dtype) + edge[e]


def _per_head(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(1, (heads, x.shape[1] // heads))


def _of_all_heads(rows: Tensor, like: Tensor) -> Tensor:
    """[*, H C] of rows [*, H C], or of [*, C] that are those of every head."""
    return rows.repeat(1, like.shape[1] // max(rows.shape[1], 1))


def _dots(x: Tensor, y: Tensor, heads: int) -> Tensor:
    """[*, H]: inner products of x and y [*, H C] a head."""
    return (_per_head(x, heads) * _per_head(y.to(x.dtype), heads)).sum(2)


def _scaled(factor: Tensor, x: Tensor) -> Tensor:
    """[E, H C]: x with every head multiplied by its factor [E, H]."""
    return (factor.unsqueeze(2) * _per_head(x, factor.shape[1])).flatten(1)


def _scale(query: Tensor, heads: int) -> float:
    return (query.shape[1] // heads) ** -0.5 if query.shape[1] else 1.0
