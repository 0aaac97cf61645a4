"""The kernels' stable counting sort, for the NumPy arrays of partitioning."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fullgraph import kernels


def group_by(
    keys: NDArray[np.integer], num_groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """offsets [num_groups + 1] and order [K]: the positions of key g are
    ``order[offsets[g] : offsets[g + 1]]``, ascending. keys: [K], values in 0 .. num_groups - 1."""
    wide = keys if keys.dtype in (np.int32, np.int64) else keys.astype(np.int64)
    offsets, order = kernels.group_by(torch.from_numpy(wide), num_groups)
    return offsets.numpy(), order.numpy()
