from __future__ import annotations

import numpy as np
import pytest

from fullgraph.graph.edges import mirror, pack_undirected, sort_unique, symmetric_adjacency


@pytest.mark.parametrize("seed", range(3))
def test_symmetric_adjacency_is_that_of_the_dense_matrix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 12, (2, 60)).astype(np.int32)
    dense = np.zeros((14, 14), dtype=bool)
    dense[src, dst] = dense[dst, src] = True
    np.fill_diagonal(dense, False)
    offsets, neighbours = symmetric_adjacency(src, dst, 14)
    rows, columns = dense.nonzero()
    assert offsets.tolist() == [0, *np.bincount(rows, minlength=14).cumsum()]
    assert neighbours.tolist() == columns.tolist()


def test_ids_whose_key_passes_32_bits_are_packed_right() -> None:
    one = np.array([1_000_000, 5], dtype=np.int32)
    other = np.array([1_999_999, 5], dtype=np.int32)
    keys = pack_undirected(one, other, 2_000_000)
    assert keys.tolist() == [1_000_000 * 2_000_000 + 1_999_999]
    assert mirror(keys, 2_000_000).tolist() == [*keys, 1_999_999 * 2_000_000 + 1_000_000]


def test_loops_are_added_to_the_first_nodes() -> None:
    assert mirror(np.array([1]), 4, num_loops=2).tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("keys", [[], [3], [3, 3, 3], [9, 1, 9, 1, 4]])
def test_distinct_keys_come_out_ascending(keys: list[int]) -> None:
    assert sort_unique(np.array(keys, dtype=np.int64)).tolist() == sorted(set(keys))
