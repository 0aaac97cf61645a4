"""Memory that is not initialised holds, in tests, what shows wherever it is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.kernels import _pool


def poison_new_memory() -> None:
    """From now on `kernels.new_empty` gives NaN, or the least of integers, in this process."""
    vars(kernels)["new_empty"] = _poisoned


def _poisoned(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    new = _pool.new_empty(like, *shape, dtype=dtype)
    worst: Any = torch.nan if new.is_floating_point() else torch.iinfo(new.dtype).min
    return new.fill_(worst)
