"""Sums over all ranks, differentiable, and the global mean that losses are made of.

Gradients follow one convention throughout: the objective exists once, not once a rank. What
`backward()` leaves on a rank is the gradient of that objective with respect to the rank's own
rows, and its share of the gradient of every parameter, which `sum_gradients` adds up.

Letters: n owned rows, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph.comm.group import Group
from fullgraph.ops.class_loss import cross_entropy_of_rows


class _SumOverRanks(torch.autograd.Function):
    """s = Σ_r a_r, on every rank. Backward: what all ranks do with s acts back on each a_r."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group, operation: str) -> Tensor:
        ctx.group, ctx.operation = group, operation
        return group.all_reduce(value.clone(), operation)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        total = ctx.group.all_reduce(grad.contiguous().clone(), f"gradient of {ctx.operation}")
        return total, None, None


class _GlobalMean(torch.autograd.Function):
    """m = Σ_r a_r / Σ_r c_r, on every rank, where m is (a term of) the objective itself; one
    all-reduce carries both sums.

    Backward: da_r = dm / Σ c, with no exchange: every rank holds the same m and asks for its
    gradient, which is one objective, not W of them.
    """

    @staticmethod
    def forward(
        ctx: Any, total: Tensor, count: Tensor, group: Group, operation: str
    ) -> Tensor:  # fmt: skip
        both = torch.stack([total.double(), count.to(total.device).double()])
        group.all_reduce(both, operation)
        ctx.count = both[1].item()
        if ctx.count <= 0:
            raise ValueError(f"{operation} has no row to count on any rank: all masks are empty")
        return (both[0] / both[1]).to(total.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad / ctx.count, None, None, None


class _Replicated(torch.autograd.Function):
    """The same value, with 1 / W of its gradient on each of the W ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, size: int) -> Tensor:
        ctx.size = size
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad / ctx.size, None


class _ExtremumOverRanks(torch.autograd.Function):
    """m = max (or min) over the elements of all ranks. Backward: elements that tie share alike."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sign: int, group: Group) -> Tensor:
        local = values.detach() * sign
        empty = torch.full((1,), float("-inf"), dtype=torch.float64, device=values.device)
        largest = torch.cat([local.reshape(-1).double(), empty]).max()
        mine = empty.new_full((group.size,), float("-inf"))
        mine[group.rank] = largest
        bits = group.all_reduce(_only(mine, group.rank), "the largest of all ranks")
        top = bits.view(torch.float64).max()
        ties = (local.double() == top).to(torch.int64)
        ctx.num_ties = int(group.all_reduce(ties.sum().view(1), "how many are the largest"))
        ctx.group = group
        ctx.save_for_backward(ties)
        return (top * sign).to(values.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (ties,) = ctx.saved_tensors
        total = ctx.group.all_reduce(grad.contiguous().clone(), "the gradient of the largest")
        return ties.to(grad.dtype) * (total / max(1, ctx.num_ties)), None, None


def _only(values: Tensor, rank: int) -> Tensor:
    """The bits of float64 values [W] as integers, 0 but for this rank's, to be summed."""
    bits = torch.zeros(values.numel(), dtype=torch.int64, device=values.device)
    bits[rank] = values.view(torch.int64)[rank]
    return bits


def extremum_over_ranks(values: Tensor, largest: bool, group: Group) -> Tensor:
    """The largest (or smallest) element of every rank's `values`; a rank may have none."""
    return _ExtremumOverRanks.apply(values, 1 if largest else -1, group)


def sum_over_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """The sum of every rank's `value`, for use inside a model: statistics, pooled features.

    A term of the loss is made by `global_mean` instead.
    """
    return _SumOverRanks.apply(value, Group.of(group), "a sum over ranks")


def replicated(term: Tensor, group: Group | None = None) -> Tensor:
    """A term of the loss that every rank computes alike, such as a penalty on the parameters.

    Unmarked, it would count once a rank, as gradients are summed over ranks.
    """
    return _Replicated.apply(term, Group.of(group).size)


def global_mean(values: Tensor, mask: Tensor | None = None, group: Group | None = None) -> Tensor:
    """The mean of `values` over the rows of all ranks, as a term of the loss.

    Args:
        values: [n] or [n, ...], a value (or several) for each owned row.
        mask: bool [n], the rows that count; all of them without. A rank may have none.
        group: by default the default group of torch.distributed.

    Raises:
        ValueError: no rank has a row that counts.
    """
    chosen = values if mask is None else values[_row_mask(mask, values.shape[0])]
    count = torch.tensor(chosen.numel())
    return _GlobalMean.apply(chosen.sum(), count, Group.of(group), "the mean over rows")


def cross_entropy(
    out: Tensor, y: Tensor, mask: Tensor | None = None, *, weight: Tensor | None = None,
    label_smoothing: float = 0.0, group: Group | None = None,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.cross_entropy` over the labelled rows of all ranks; their global mean.

    Rows with y = -1 (unknown) never count. Every rank gets the same value.

    Args:
        out: [n, C] logits of the owned rows.
        y: [n] classes.
        mask: bool [n], the rows that count; all labelled rows without.
        weight: [C], weights of the classes, with which the mean is weighted too.
        group: by default the default group of torch.distributed.
    """
    if y.dim() != 1 or y.is_floating_point():
        raise ValueError(f"y must be classes of shape [n], got {y.dtype} {tuple(y.shape)}")
    mask = y >= 0 if mask is None else _row_mask(mask, y.shape[0]) & (y >= 0)
    rows = mask.nonzero().squeeze(1)
    y = y[rows]
    total = cross_entropy_of_rows(out, rows, y, weight, label_smoothing)
    count = torch.tensor(y.numel()) if weight is None else weight[y].sum().detach()
    return _GlobalMean.apply(total, count, Group.of(group), "the loss")


def _row_mask(mask: Tensor, num_rows: int) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != (num_rows,):
        raise ValueError(
            f"mask must be bool of shape [{num_rows}], a value for each owned row, "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    return mask
