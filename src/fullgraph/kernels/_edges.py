"""Kernels over edge ranges: sums, extrema and their gradients. Checks, then the op.

Letters and edge ranges as in `fullgraph.kernels`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.kernels import _ops
from fullgraph.kernels._checks import check, check_ranges, check_rows, check_weights


def spmm(
    begin: Tensor, end: Tensor, cols: Tensor, x: Tensor, out: Tensor, *,
    rows: Tensor | None = None, weight: Tensor | None = None, weight_index: Tensor | None = None,
    col_offset: int = 0, accumulate: bool = True,
) -> None:  # fmt: skip
    """out[rows[i]] += Σ over edges e of range i of w[e] · x[cols[e] - col_offset].

    Args:
        x: [S, F]. out: [*, F] in the dtype of sums.
        weight: [E], or [*] with weight_index int64 [E]: w[e] = weight[weight_index[e]]; ones
            without. In the dtype of sums.
        accumulate: add to out; otherwise write to it, zeros where a range is empty. Rows of out
            that are not in `rows` stay as they are.
    """
    dtype = check_rows("x", x)
    check("out", out, dtype, (None, x.shape[1]), x)
    check_ranges(begin, end, cols, rows, x, out.shape[0])
    check_weights(weight, weight_index, cols, dtype, x)
    _ops.spmm(
        begin, end, cols, rows, col_offset, x, weight, weight_index, out,
        accumulate,
    )  # fmt: skip


def sddmm(
    begin: Tensor, end: Tensor, cols: Tensor, x: Tensor, grad: Tensor, out: Tensor, *,
    rows: Tensor | None = None, col_offset: int = 0,
) -> None:  # fmt: skip
    """out[e] += <grad[rows[i]], x[cols[e] - col_offset]> for every edge e of range i.

    Args:
        x: [S, F]. grad: [*, F] and out: [E], in the dtype of sums.
    """
    dtype = check_rows("x", x)
    check("grad", grad, dtype, (None, x.shape[1]), x)
    check_ranges(begin, end, cols, rows, x, grad.shape[0])
    check("out", out, dtype, (cols.shape[0],), x)
    _ops.sddmm(
        begin, end, cols, rows, col_offset, x, grad, out
    )  # fmt: skip


def extremum(
    begin: Tensor, end: Tensor, cols: Tensor, x: Tensor, out: Tensor, count: Tensor, *,
    largest: bool, rows: Tensor | None = None, weight: Tensor | None = None, col_offset: int = 0,
) -> None:  # fmt: skip
    """Merge the messages w[e] · x[cols[e] - col_offset] into a running maximum (or minimum).

    A NaN message makes the result NaN, and it stays so.

    Args:
        x: [S, F]. out: [*, F] in the dtype of sums, filled with -inf (inf) at first.
        count: int32 [*, F], 0 at first: how many messages so far tie for the extremum.
        weight: [E] in the dtype of sums; ones without.
    """
    dtype = check_rows("x", x)
    check("out", out, dtype, (None, x.shape[1]), x)
    check("count", count, torch.int32, tuple(out.shape), x)
    check_ranges(begin, end, cols, rows, x, out.shape[0])
    check_weights(weight, None, cols, dtype, x)
    _ops.extremum(
        begin, end, cols, rows, col_offset, x, weight, out, count, largest
    )  # fmt: skip


def extremum_grad_source(
    begin: Tensor, end: Tensor, cols: Tensor, x: Tensor, extremum: Tensor, share: Tensor,
    dx: Tensor, *, weight: Tensor | None = None, weight_index: Tensor | None = None,
) -> None:  # fmt: skip
    """dx[i] += Σ over edges e of range i of w[e] · share[cols[e]] where w[e] · x[i] attains
    extremum[cols[e]]; the ranges are by source here, and cols are destinations.

    Args:
        x: [D, F]. dx: [D, F], extremum and share: [*, F], in the dtype of sums.
        weight, weight_index: as in `spmm`.
    """
    dtype = check_rows("x", x)
    check("extremum", extremum, dtype, (None, x.shape[1]), x)
    check("share", share, dtype, tuple(extremum.shape), x)
    check("dx", dx, dtype, tuple(x.shape), x)
    check_ranges(begin, end, cols, None, x, x.shape[0])
    check_weights(weight, weight_index, cols, dtype, x)
    _ops.extremum_grad_source(
        begin, end, cols, x, weight, weight_index, extremum, share, dx
    )  # fmt: skip


def extremum_grad_weight(
    begin: Tensor, end: Tensor, cols: Tensor, x: Tensor, extremum: Tensor, share: Tensor,
    out: Tensor, *, weight: Tensor, rows: Tensor | None = None, col_offset: int = 0,
) -> None:  # fmt: skip
    """out[e] += Σ over columns of share[rows[i]] · x[source] where w[e] · x[source] attains
    extremum[rows[i]].

    Args:
        x: [S, F]. extremum and share: [*, F], weight and out: [E], in the dtype of sums.
    """
    dtype = check_rows("x", x)
    check("extremum", extremum, dtype, (None, x.shape[1]), x)
    check("share", share, dtype, tuple(extremum.shape), x)
    check_ranges(begin, end, cols, rows, x, extremum.shape[0])
    check_weights(weight, None, cols, dtype, x)
    check("out", out, dtype, (cols.shape[0],), x)
    _ops.extremum_grad_weight(
        begin, end, cols, rows, col_offset, x, weight, extremum, share, out
    )  # fmt: skip
