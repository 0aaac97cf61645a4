from __future__ import annotations

import numpy as np
import pytest

from fullgraph.graph import metis as module
from fullgraph.graph.edges import symmetric_adjacency
from fullgraph.graph.metis import metis
from fullgraph.graph.sources import read
from tests.data import shared_data

Problem = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def hubs() -> Problem:
    """Tolokers, whose degrees are very uneven; weights are nodes and in-edges."""
    whole = read(shared_data("tolokers"))
    src, dst = whole.edge_index.numpy()
    in_edges = np.bincount(dst, minlength=whole.num_nodes)
    weights = np.stack([np.ones_like(in_edges), in_edges], axis=1)
    return *symmetric_adjacency(src, dst, whole.num_nodes), weights


def imbalances(part: np.ndarray, weights: np.ndarray, num_parts: int) -> list[float]:
    sums = [np.bincount(part, weights=column, minlength=num_parts) for column in weights.T]
    return [float(total.max() / total.mean()) for total in sums]


@pytest.mark.parametrize("num_parts", [2, 5, 8, 16])
def test_every_weight_is_balanced_where_pymetis_exports_metis(
    hubs: Problem, num_parts: int
) -> None:
    assert module._library() is not None, "the pinned wheel of pymetis exports it"
    part = metis(*hubs, num_parts, seed=0)
    assert max(imbalances(part, hubs[2], num_parts)) < 1.08


@pytest.mark.parametrize("num_parts", [2, 8, 16])
def test_without_the_export_the_sum_of_the_weights_is_balanced(
    hubs: Problem, num_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_library", lambda: None)
    part = metis(*hubs, num_parts, seed=0)
    shares = (hubs[2] / hubs[2].sum(axis=0)).sum(axis=1, keepdims=True)
    assert imbalances(part, shares, num_parts)[0] < 1.1
    assert max(imbalances(part, hubs[2], num_parts)) > 1.2, "so the export is worth its code"


@pytest.mark.parametrize("exported", [True, False])
@pytest.mark.parametrize("num_parts", [4, 12])
def test_a_seed_gives_one_partition(
    hubs: Problem, num_parts: int, exported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exported:
        monkeypatch.setattr(module, "_library", lambda: None)
    one, same, other = (metis(*hubs, num_parts, seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
