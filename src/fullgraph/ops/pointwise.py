"""Functions of rows one by one, in memory of earlier tensors: torch takes fresh pages each time.

Letters: n rows, F columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels

_RELU_GRAD = torch.ops.aten.threshold_backward.grad_input


class _Relu(torch.autograd.Function):
    """y = max(x, 0). Backward: dx = dy where y > 0. Saved: y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.clamp_min(x, 0, out=kernels.new_empty(x, *x.shape))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return torch.ops.aten.threshold_backward(grad, out, 0)
        dx: Tensor = _RELU_GRAD(grad, out, 0, grad_input=kernels.new_empty(grad, *grad.shape))
        return dx


class _ScaleRows(torch.autograd.Function):
    """y = diag(s) x in the memory of x [n, F]; s [n] is constant. Backward: dx = diag(s) dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(scale)
        return x.mul_(scale.unsqueeze(1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        out = kernels.new_empty(grad, *grad.shape)
        return torch.mul(grad, scale.unsqueeze(1), out=out), None


class _PlusBias(torch.autograd.Function):
    """y = x + b for x [n, F] and b [F]. Backward: dx = dy, db = Σ dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return torch.add(x, bias, out=kernels.new_empty(x, *x.shape))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        return grad, grad.sum(0) if ctx.needs_input_grad[1] else None


class _MeanOfHeads(torch.autograd.Function):
    """y = Σ_h x[:, h] / H for x [n, H, C]. Backward: dx[:, h] = dy / H."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.heads = x.shape[1]
        return torch.mean(x, 1, out=kernels.new_empty(x, x.shape[0], x.shape[2]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        n, channels = grad.shape
        dx = kernels.new_empty(grad, n, ctx.heads, channels)
        return dx.copy_((grad / ctx.heads).unsqueeze(1))


class _Fork(torch.autograd.Function):
    """x twice. Backward: the sum of both gradients, in the memory of the first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.view_as(x), x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first.add_(second)


def suits(x: Any) -> bool:
    """Whether these functions take it: rows of numbers on a CPU (a dry run, on "meta", is of a run
    on CPUs)."""
    plain = type(x) is Tensor and x.dim() == 2 and x.device.type in ("cpu", "meta")
    return plain and x.is_floating_point() and x.is_contiguous()


def casts(x: Tensor) -> bool:
    """Whether torch chooses other dtypes than those of its arguments (`torch.autocast`)."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def relu(x: Tensor) -> Tensor:
    """`torch.relu` of any tensor."""
    if not suits(x):
        return torch.relu(x)
    out: Tensor = _Relu.apply(x)
    return out


def scale_rows_(x: Tensor, scale: Tensor) -> Tensor:
    """x [n, F], whose row i is multiplied by scale[i] where it is; the scale gets no gradient."""
    out: Tensor = _ScaleRows.apply(x, scale.to(x.dtype))
    return out


def plus_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """x [n, F] + bias [F], where there is one; differentiable once."""
    if bias is None or not suits(x) or bias.dtype != x.dtype:
        return x if bias is None else x + bias
    out: Tensor = _PlusBias.apply(x, bias)
    return out


def mean_of_heads(x: Tensor) -> Tensor:
    """[n, C], the mean of x [n, H, C] over H; differentiable once."""
    out: Tensor = _MeanOfHeads.apply(x)
    return out


def added(x: Tensor, other: Tensor) -> Tensor:
    """x + other in the memory of x, which nothing else may need, unless dtypes are mixed."""
    return x.add_(other) if x.dtype == other.dtype else x + other


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, F] for two functions of it, whose gradients are summed; differentiable once. That of
    the first has to be the first's own, which nobody else reads. What needs no gradient stays
    itself."""
    if not (x.requires_grad and suits(x)):
        return x, x
    first, second = _Fork.apply(x)
    return first, second
