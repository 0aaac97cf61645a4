"""Putting things of the same key together, stably."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def group_by(
    keys: NDArray[np.integer], num_groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """offsets [num_groups + 1] and order [K]: the positions of key g are
    ``order[offsets[g] : offsets[g + 1]]``, ascending. keys: [K], values in 0 .. num_groups - 1."""
    offsets = np.zeros(num_groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=num_groups), out=offsets[1:])
    # NumPy's stable sort of 16-bit integers is a counting sort.
    small = keys.astype(np.uint16) if num_groups <= 1 << 16 else keys
    return offsets, np.argsort(small, kind="stable")
