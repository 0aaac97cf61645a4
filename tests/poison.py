"""Memory that is not initialised holds, in tests, what shows wherever it is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.kernels import _pool

clean_new_empty = _pool.new_empty


def poison_new_memory() -> None:
    """From now on `kernels.new_empty`, and what is made with it, begins as NaN, or as the least of
    integers, in this process."""
    for module in (kernels, _pool):
        vars(module)["new_empty"] = _poisoned


def _poisoned(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    new = clean_new_empty(like, *shape, dtype=dtype)
    worst: Any = torch.nan
    if not new.is_floating_point():
        worst = True if new.dtype == torch.bool else torch.iinfo(new.dtype).min
    return new.fill_(worst)
