"""Grouping edges by a key: how lists by destination and by source are built."""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.kernels import _ops, reference
from fullgraph.kernels._checks import short


def group_by(keys: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Stable counting sort of small integers.

    Args:
        keys: int32 or int64 [E], each of 0 .. num_groups - 1.

    Returns:
        offsets: int64 [num_groups + 1], where each key's run starts. order: int64 [E], positions
        in `keys` by key, equal keys in their order.

    Raises:
        ValueError: a key out of range, with its position.
    """
    if keys.dtype not in (torch.int32, torch.int64) or keys.dim() != 1:
        raise ValueError(
            f"keys must be int32 or int64 of one dimension, got "
            f"{short(keys.dtype)} {list(keys.shape)}"
        )
    if num_groups < 0:
        raise ValueError(f"num_groups must be 0 or more, got {num_groups}")
    offsets = torch.empty(num_groups + 1, dtype=torch.int64, device=keys.device)
    order = torch.empty(keys.shape[0], dtype=torch.int64, device=keys.device)
    fill = _ops.native.group_by if keys.device.type == "cpu" else reference.group_by
    bad = fill(keys.contiguous(), offsets, order)
    if bad >= 0:
        raise ValueError(f"keys[{bad}] is {int(keys[bad])}, outside of 0 .. {num_groups - 1}")
    return offsets, order
