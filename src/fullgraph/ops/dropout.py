"""Dropout whose mask is a function of what is dropped, not of where or when it is computed.

Letters: n rows, F columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgraph import kernels


class DropoutKey(NamedTuple):
    """What a mask depends on besides the row's id and the column.

    ``layer`` counts the dropouts of a forward pass, ``step`` the forward passes.
    """

    seed: int
    step: int
    layer: int


class _Dropout(torch.autograd.Function):
    """y = m · x / (1 - p), the mask m from Philox4x32-10 (Salmon et al., SC 2011) keyed on
    (seed, step, layer, id of the row, column). Backward: the same with dy. Saved: no mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, p: float, key: DropoutKey) -> Tensor:
        ctx.ids, ctx.p, ctx.key = ids, p, key
        return _masked(x, ids, p, key)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _masked(grad, ctx.ids, ctx.p, ctx.key), None, None, None


def dropout(x: Tensor, ids: Tensor, p: float, key: DropoutKey) -> Tensor:
    """Zero each element with probability p and scale the rest by 1 / (1 - p).

    Args:
        x: [n] or [n, ...] floating point.
        ids: int64 [n], of 0 .. 2**48 - 1: the global id of the node or edge of each row. Rows with
            the same id get the same mask.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability must be between 0 and 1, got {p}")
    if x.shape[0] != ids.shape[0]:
        raise ValueError(f"dropout of {x.shape[0]} rows was given {ids.shape[0]} ids")
    return x if p == 0 else _Dropout.apply(x, ids, float(p), key)


def _masked(x: Tensor, ids: Tensor, p: float, key: DropoutKey) -> Tensor:
    out = kernels.new_empty(x, *x.shape)  # itself, not a view of it, which nobody may write to
    if out.numel():
        rows, masked = (tensor.view(len(x), -1) for tensor in (x.contiguous(), out))
        kernels.dropout(rows, ids, masked, p=p, seed=key.seed, step=key.step, layer=key.layer)
    return out
