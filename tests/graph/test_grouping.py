from __future__ import annotations

import numpy as np
import pytest

from fullgraph.graph.grouping import group_by


@pytest.mark.parametrize("num_groups", [1, 7, 40_000, 100_000])
def test_groups_hold_their_positions_ascending(num_groups: int) -> None:
    keys = np.random.default_rng(0).integers(0, num_groups, 500).astype(np.int32)
    offsets, order = group_by(keys, num_groups)
    assert len(offsets) == num_groups + 1
    for group in np.unique(keys):
        found = order[offsets[group] : offsets[group + 1]]
        assert found.tolist() == np.flatnonzero(keys == group).tolist()


def test_no_keys_give_empty_groups() -> None:
    offsets, order = group_by(np.empty(0, dtype=np.int32), 3)
    assert offsets.tolist() == [0, 0, 0, 0]
    assert order.size == 0
