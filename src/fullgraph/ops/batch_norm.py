"""Batch normalisation with the statistics of all rows of all ranks.

Letters: n owned rows, N rows of all ranks, F columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph.comm.group import Group


class _BatchNorm(torch.autograd.Function):
    """y = (x - μ) / sqrt(σ² + ε) · γ + β, μ and σ² over the N rows of all ranks, in two passes.

    ========  =======  ===========================================
    x, y      [n, F]   bfloat16 is computed in float32
    γ, β      [F]      optional
    ========  =======  ===========================================

    Backward, with x̂ the normalised input and sums over all ranks:
    dx = γ/σ · (dy - Σdy / N - x̂ · Σ(dy·x̂) / N), this rank's share of dγ = Σ dy·x̂ and dβ = Σ dy.
    Saved: x and the statistics.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float,
        num_rows: int, group: Group, stats: list[Tensor],
    ) -> Tensor:  # fmt: skip
        wide = x.float() if x.dtype == torch.bfloat16 else x
        mean = group.all_reduce(wide.sum(0), "batch norm means") / num_rows
        centred = wide - mean
        var = group.all_reduce(centred.square().sum(0), "batch norm variances") / num_rows
        stats += [mean, var]
        inverse = (var + eps).rsqrt()
        ctx.num_rows, ctx.group = num_rows, group
        ctx.save_for_backward(x, gamma, mean, inverse)
        out = centred.mul_(inverse if gamma is None else inverse * gamma)
        return (out if beta is None else out.add_(beta)).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, mean, inverse = ctx.saved_tensors
        wide = grad.to(mean.dtype)
        normal = (x - mean).mul_(inverse)
        beta_grad = wide.sum(0)
        gamma_grad = (wide * normal).sum(0)
        sums = torch.stack([beta_grad, gamma_grad])
        sums = ctx.group.all_reduce(sums, "batch norm gradients") / ctx.num_rows
        dx = wide - sums[0] - normal.mul_(sums[1])
        dx.mul_(inverse if gamma is None else inverse * gamma)
        needs = ctx.needs_input_grad
        return (
            dx.to(x.dtype), gamma_grad if needs[1] else None, beta_grad if needs[2] else None,
            None, None, None, None,
        )  # fmt: skip


def batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, momentum: float, eps: float, *, num_rows: int, group: Group,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.batch_norm` in training mode over the rows of all ranks.

    The formula is stable for means far from zero, and a rank without rows takes part. Running
    statistics, where given, are updated in place and stay the same on every rank.

    Args:
        x: [n, F], the owned rows.
        num_rows: N, rows of all ranks together.

    Raises:
        ValueError: a single row in all, which has no variance.
    """
    if num_rows <= 1:
        raise ValueError(f"batch norm needs more than 1 row to train, got {num_rows} on all ranks")
    stats: list[Tensor] = []
    out = _BatchNorm.apply(x, weight, bias, eps, num_rows, group, stats)
    mean, var = stats
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = var * (num_rows / (num_rows - 1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return out
