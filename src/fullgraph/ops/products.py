"""Products of rows with weights: by our kernel where torch's library is slower, and in fewer
buffers than autograd's own sums of them take.

Letters: n rows, F columns, G and K columns of results.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fullgraph import kernels
from fullgraph.ops.pointwise import casts

LARGEST_WEIGHTS = 1 << 17  # numbers; larger ones leave the cache, and torch's library is for them


class _Product(torch.autograd.Function):
    """y = x Wᵀ + b, or, in the memory of y, y + x Wᵀ.

    ====  =======  ==========================
    x     [n, F]   float32 or float64
    W     [G, F]   of its dtype, as the others
    b     [G]      optional, not with y
    y     [n, G]   optional, becomes the result
    ====  =======  ==========================

    Backward: dx = dy W, dW = dyᵀ x, db = Σ dy; what y was gets dy itself. Saved: x and W.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor | None
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, w)
        if y is None:
            return _product(x, w.T, bias)
        ctx.mark_dirty(y)
        kernels.dense(x, w.T, y, accumulate=True)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), dy = ctx.saved_tensors, dy.contiguous()
        needed = ctx.needs_input_grad
        dw = dbias = None
        if needed[2]:
            dbias = dy.new_empty(dy.shape[1]) if needed[1] else dy.sum(0)
        if needed[1]:
            dw = _weight_grad(dy, x, dbias)
        return _product(dy, w) if needed[0] else None, dw, dbias, dy if needed[3] else None


class _TwoProducts(torch.autograd.Function):
    """y = x Wᵀ and z = x Vᵀ, for x [n, F], W [G, F], V [K, F].

    Backward: dx = dy W + dz V is summed where it is, rather than made twice and then added.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, w, v)
        return _product(x, w.T), _product(x, v.T)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, w, v = ctx.saved_tensors
        dy, dz = dy.contiguous(), dz.contiguous()
        needed, dx = ctx.needs_input_grad, None
        if needed[0]:
            dx = _product(dy, w)
            kernels.dense(dz, v, dx, accumulate=True)
        dw = _weight_grad(dy, x) if needed[1] else None
        return dx, dw, _weight_grad(dz, x) if needed[2] else None


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + bias, as `torch.nn.functional.linear` has it, differentiable once.

    Args:
        x: [n, F]. w: [G, F]. bias: [G] or None.
    """
    if not _suit(x, [w], bias):
        return F.linear(x, w, bias)
    out: Tensor = _Product.apply(x.contiguous(), w, bias, None)
    return out


def two_products(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """x Wᵀ and x Vᵀ, [n, G] and [n, K], of x [n, F], W [G, F] and V [K, F]; differentiable once."""
    if not _suit(x, [w, v]):
        return F.linear(x, w), F.linear(x, v)
    y, z = _TwoProducts.apply(x.contiguous(), w, v)
    return y, z


def add_product(out: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """out + x Wᵀ, differentiable once, for x [n, F] and W [G, F]; in the memory of `out` [n, G],
    which nothing else may need, unless dtypes are mixed."""
    if not _suit(x, [w], out) or not out.is_contiguous():
        return out + F.linear(x, w)
    sum_of_both: Tensor = _Product.apply(x.contiguous(), w, None, out)
    return sum_of_both


def _product(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    out = kernels.new_empty(x, x.shape[0], w.shape[1])
    kernels.dense(x, w, out, bias=bias)
    return out


def _weight_grad(dy: Tensor, x: Tensor, dbias: Tensor | None = None) -> Tensor:
    """dyᵀ x; dbias, if given, becomes Σ dy."""
    out = x.new_empty(dy.shape[1], x.shape[1])
    kernels.dense_weight_grad(dy, x, out, dbias)
    return out


def _suit(x: Tensor, weights: list[Tensor], other: Tensor | None = None) -> bool:
    """Whether the kernel takes them, and they are not better left to torch: rows on a GPU (a dry
    run, on "meta", is of a run on CPUs), large weights, mixed dtypes, as autocast makes them."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.dim() == 2
        and x.device.type in ("cpu", "meta")
        and x.dtype in kernels.DENSE_DTYPES
        and not casts(x)
        and all(y.dtype == x.dtype and y.device == x.device for y in weights)
        and (other is None or other.dtype == x.dtype)
        and max(w.numel() for w in weights) <= LARGEST_WEIGHTS
    )
