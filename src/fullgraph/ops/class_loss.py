"""Cross-entropy of chosen rows, in memory of earlier tensors.

Letters: n rows, k of them chosen, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fullgraph import kernels
from fullgraph.ops.pointwise import casts, suits

_LOG_SOFTMAX = torch.ops.aten._log_softmax.out


class _CrossEntropy(torch.autograd.Function):
    """l = -Σ_i Σ_c t[i, c] log p[i, c] over chosen rows i, with p = softmax(x) and the target
    t[i, c] = w[c] ((1 - s) [c = y[i]] + s / C), s being the smoothing of labels.

    =====  =======  ============================
    x      [n, C]   float32 or float64
    rows   [k]      int64, distinct
    y      [k]      int64, the classes
    w      [C]      optional, constant
    =====  =======  ============================

    Backward: dx[i] = (Σ_c t[i, c]) p[i] - t[i], and 0 for other rows. Saved: log p.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, y: Tensor, weight: Tensor | None, smoothing: float
    ) -> Tensor:
        size = (rows.shape[0], x.shape[1])
        chosen = torch.index_select(x, 0, rows, out=kernels.new_empty(x, *size))
        log_p = _LOG_SOFTMAX(chosen, 1, False, out=kernels.new_empty(x, *size))
        ctx.save_for_backward(log_p, rows, y, weight)
        ctx.num_rows, ctx.smoothing = x.shape[0], smoothing
        loss = (1 - smoothing) * F.nll_loss(log_p, y, weight, reduction="sum")
        if smoothing:
            sums = log_p.sum(0) if weight is None else log_p.sum(0) * weight
            loss = loss - smoothing / x.shape[1] * sums.sum()
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        log_p, rows, y, weight = ctx.saved_tensors
        smooth = ctx.smoothing / log_p.shape[1]
        of_label = grad * (1 - ctx.smoothing) * (log_p.new_ones(1) if weight is None else weight[y])
        of_class = grad * smooth * log_p.new_ones(log_p.shape[1])
        of_class = of_class if weight is None else of_class * weight
        dx = torch.exp(log_p, out=kernels.new_empty(log_p, *log_p.shape))
        dx.mul_((of_label + of_class.sum()).unsqueeze(1))
        dx.scatter_add_(1, y.unsqueeze(1), -of_label.expand(y.shape[0]).unsqueeze(1))
        if smooth:
            dx.sub_(of_class)
        out = kernels.new_zeros(log_p, ctx.num_rows, log_p.shape[1])
        return out.index_copy_(0, rows, dx), None, None, None, None


def cross_entropy_of_rows(
    x: Tensor, rows: Tensor, y: Tensor, weight: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Σ of `torch.nn.functional.cross_entropy` over rows of x; differentiable once.

    Args:
        x: [n, C] logits. rows: int64 [k], distinct. y: [k] classes. weight: [C], of the classes.
        smoothing: of labels, 0 to 1.
    """
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {smoothing}")
    plain = suits(x) and x.dtype in (torch.float32, torch.float64) and not _needs_grad(weight)
    if not plain or casts(x):
        return F.cross_entropy(
            x[rows], y, weight=weight, label_smoothing=smoothing, reduction="sum"
        )
    out: Tensor = _CrossEntropy.apply(x, rows, y.long(), weight, smoothing)
    return out


def _needs_grad(weight: Tensor | None) -> bool:
    return weight is not None and weight.requires_grad
