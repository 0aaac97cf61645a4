"""Every kernel in readable torch: what tests compare with, and what other devices run.

Letters: D rows of a list of edge ranges, S source rows, E edges, F columns. Arguments are those of
the functions of the same name in `fullgraph.kernels`, which checks them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def edges_of(begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """int64 each: for every edge of the ranges, the row i it belongs to and its position e."""
    counts = end - begin
    row = torch.repeat_interleave(torch.arange(len(counts), device=begin.device), counts)
    first = counts.cumsum(0) - counts
    return row, torch.arange(len(row), device=begin.device) - (first - begin)[row]


def spmm(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, x: Tensor,
    weight: Tensor | None, weight_index: Tensor | None, out: Tensor, accumulate: bool,
) -> None:  # fmt: skip
    row, e = edges_of(begin, end)
    messages = _messages(cols, col_offset, x, weight, weight_index, e, out.dtype)
    sums = out.new_zeros(len(begin), x.shape[1]).index_add(0, row, messages)
    to = torch.arange(len(begin), device=out.device) if rows is None else rows.long()
    if accumulate:
        out.index_add_(0, to, sums)
    else:
        out.index_copy_(0, to, sums)


def sddmm(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, x: Tensor,
    grad: Tensor, out: Tensor,
) -> None:  # fmt: skip
    row, e = edges_of(begin, end)
    source = x[cols[e].long() - col_offset].to(out.dtype)
    out.index_add_(0, e, (grad[_targets(rows, row)] * source).sum(1))


def extremum(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, x: Tensor,
    weight: Tensor | None, out: Tensor, count: Tensor, largest: bool,
) -> None:  # fmt: skip
    row, e = edges_of(begin, end)
    to = _targets(rows, row)
    messages = _messages(cols, col_offset, x, weight, None, e, out.dtype)
    before = out.clone()
    index = to.unsqueeze(1).expand_as(messages)
    out.scatter_reduce_(0, index, messages, "amax" if largest else "amin", include_self=True)
    count.mul_((before == out) | out.isnan())  # ties with what was there only if it still stands
    attains = messages == out[to]
    count.index_add_(0, to, attains.to(count.dtype))
    count.masked_fill_(out.isnan(), 1)


def extremum_grad_source(
    begin: Tensor, end: Tensor, cols: Tensor, x: Tensor, weight: Tensor | None,
    weight_index: Tensor | None, extremum: Tensor, share: Tensor, dx: Tensor,
) -> None:  # fmt: skip
    row, e = edges_of(begin, end)
    to = cols[e].long()
    values, grads = x[row].to(dx.dtype), share[to]
    if weight is not None:
        w = (weight[e] if weight_index is None else weight[weight_index[e]]).unsqueeze(1)
        values, grads = w * values, w * grads
    dx.index_add_(0, row, torch.where(values == extremum[to], grads, 0))


def extremum_grad_weight(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, col_offset: int, x: Tensor,
    weight: Tensor, extremum: Tensor, share: Tensor, out: Tensor,
) -> None:  # fmt: skip
    row, e = edges_of(begin, end)
    to = _targets(rows, row)
    source = x[cols[e].long() - col_offset].to(out.dtype)
    attains = weight[e].unsqueeze(1) * source == extremum[to]
    out.index_add_(0, e, torch.where(attains, share[to] * source, 0).sum(1))


def gather_rows(x: Tensor, index: Tensor, out: Tensor) -> None:
    out.copy_(x[index.long()])


def scatter_add_rows(out: Tensor, index: Tensor, x: Tensor) -> None:
    out.index_add_(0, index.long(), x)


def group_by(keys: Tensor, offsets: Tensor, order: Tensor) -> int:
    """Fills both; returns the position of a key out of range, or -1."""
    num_groups = len(offsets) - 1
    bad = ((keys < 0) | (keys >= num_groups)).nonzero()
    if len(bad):
        return int(bad[0, 0])
    offsets[0] = 0
    offsets[1:] = torch.bincount(keys, minlength=num_groups).cumsum(0)
    order.copy_(keys.argsort(stable=True))
    return -1


def dropout(
    x: Tensor, ids: Tensor, out: Tensor, p: float, seed: int, step: int, layer: int
) -> None:
    """See `philox`. Key: the seed; counter: low 32 bits of the id; its next 16 bits with the layer
    above them; column / 4; the step. The draw of column c is word c % 4."""
    columns = torch.arange(x.shape[1], device=x.device)
    row_id = ids.unsqueeze(1).expand(-1, (x.shape[1] + 3) // 4)
    block = torch.arange(row_id.shape[1], device=x.device).expand_as(row_id)
    words = philox(
        [row_id & _MASK, (row_id >> 32 & 0xFFFF) | layer << 16, block,
         torch.full_like(block, step & _MASK)],
        seed,
    )  # fmt: skip
    draws = torch.stack(words, 2).flatten(1)[:, columns] if x.numel() else ids.new_zeros(x.shape)
    wide = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    scaled = x.to(wide) * (1 / (1 - p) if p < 1 else 0.0)
    out.copy_(torch.where(draws >= int(p * 2**32), scaled, 0))


def dense(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, accumulate: bool) -> None:
    if accumulate:
        out.addmm_(x, w)
    else:
        torch.mm(x, w, out=out)
        if bias is not None:
            out.add_(bias)


def dense_weight_grad(grad: Tensor, x: Tensor, out: Tensor, sums: Tensor | None) -> None:
    torch.mm(grad.T, x, out=out)
    if sums is not None:
        torch.sum(grad, 0, out=sums)


_MASK = 0xFFFFFFFF


def philox(counter: list[Tensor], seed: int) -> list[Tensor]:
    """Philox4x32-10 (Salmon et al., SC 2011). Four words of 32 bits each, held in int64."""
    c0, c1, c2, c3 = counter
    key0, key1 = seed & _MASK, seed >> 32 & _MASK
    for _ in range(10):
        high_a, low_a = _multiply(c0, 0xD2511F53)
        high_b, low_b = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high_b ^ c1 ^ key0, low_b, high_a ^ c3 ^ key1, low_a
        key0, key1 = key0 + 0x9E3779B9 & _MASK, key1 + 0xBB67AE85 & _MASK
    return [c0, c1, c2, c3]


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product of 32-bit numbers, by halves, as int64 has a sign."""
    low_part = a * (b & 0xFFFF)  # below 2^48
    high_part = a * (b >> 16)
    low = low_part + ((high_part & 0xFFFF) << 16)  # below 2^49
    return (high_part >> 16) + (low >> 32), low & _MASK


def _targets(rows: Tensor | None, row: Tensor) -> Tensor:
    return row if rows is None else rows[row].long()


def _messages(
    cols: Tensor, col_offset: int, x: Tensor, weight: Tensor | None, weight_index: Tensor | None,
    e: Tensor, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    messages = x[cols[e].long() - col_offset].to(dtype)
    if weight is None:
        return messages
    return (weight[e] if weight_index is None else weight[weight_index[e]]).unsqueeze(1) * messages
