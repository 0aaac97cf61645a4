"""The memory of large tensors. Nothing here changes a result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fullgraph.kernels import _ops
from fullgraph.kernels._memory import LARGE_BYTES


def new_empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor with any contents, on the device of `like` and, unless given, of its dtype.

    On a CPU a large one is in memory of earlier ones, and not in pages that the system has to find
    and to clear first. The process holds on to no more of that than it has used at one moment;
    `release_memory` gives it back.
    """
    dtype = dtype or like.dtype
    large = math.prod(shape) * dtype.itemsize >= LARGE_BYTES
    if not large or type(like) not in (Tensor, torch.nn.Parameter):  # fake ones, too
        return like.new_empty(shape, dtype=dtype)
    return _ops.new_empty(like.detach(), shape, dtype)


def new_zeros(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """As `new_empty`, and cleared."""
    return new_empty(like, *shape, dtype=dtype).zero_()


def copy_of(x: Tensor) -> Tensor:
    """The same numbers in a tensor of their own, contiguous."""
    return new_empty(x, *x.shape).copy_(x)


def side_by_side(pieces: Sequence[Tensor]) -> Tensor:
    """[n, F] of pieces [n, F_k]."""
    columns = sum(piece.shape[1] for piece in pieces)
    out = new_empty(pieces[0], pieces[0].shape[0], columns)
    return torch.cat([*pieces], 1, out=out)


def release_memory() -> None:
    """Give the memory of large tensors that were freed back to the system."""
    _ops.native.trim_pool()
