"""The identity of a graph: the same however it is shared out, another for another graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fullgraph
from fullgraph.comm.group import Group
from fullgraph.training.identity import identity
from tests.ranks import run_ranks
from tests.training.graphs import small
from tests.typed_graphs import typed_data


def _identity(group: Group, data: Any, options: dict[str, Any]) -> dict[str, Any]:
    return identity(fullgraph.load(data, group=group, **options))


def _weighted(**changes: object) -> Any:
    g = torch.Generator().manual_seed(1)
    return small(edge_weight=torch.rand(160, generator=g), **changes)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (1, {"parts": 3}),
        (2, {"schedule": "delayed:2", "wire": "bf16"}),
        (3, {"placement": "vertex-cut"}),
        (4, {"placement": "grid:2x1x2"}),
        (4, {"placement": "grid:1x2x2", "parts": 5, "schedule": "local"}),
    ],
)
def test_the_identity_does_not_depend_on_how_it_is_shared_out(
    size: int, options: dict[str, Any]
) -> None:
    data = _weighted()
    expected = _identity(Group(), data, {})
    assert run_ranks(_identity, size, data, options) == [expected] * size


def test_typed_graphs_have_one_too() -> None:
    expected = _identity(Group(), typed_data(), {})
    assert run_ranks(_identity, 2, typed_data(), {"parts": 3}) == [expected] * 2
    other = typed_data()
    other["paper"].x[1, 0] += 1
    assert _identity(Group(), other, {}) != expected


def _changed(what: str) -> Any:
    data = _weighted()
    if what == "a feature":
        data.x[3, 1] += 1e-3
    elif what == "two features, exchanged":
        data.x[[3, 4]] = data.x[[4, 3]]
    elif what == "a label":
        data.y[7] = (data.y[7] + 1) % 3
    elif what == "a mask":
        data.val_mask[1] = False
    elif what == "an edge":
        data.edge_index[1, 5] = (data.edge_index[1, 5] + 1) % 40
    elif what == "two edges, crossed":
        first = data.edge_index[:, 0]
        other = int((data.edge_index != first.unsqueeze(1)).all(dim=0).nonzero()[0])
        data.edge_index[1, [0, other]] = data.edge_index[1, [other, 0]]
    elif what == "the direction":
        data.edge_index = data.edge_index.flip([0])
    elif what == "a weight":
        data.edge_weight[5] *= 1.001
    else:
        raise ValueError(what)
    return data


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("a feature", "features, labels or masks of nodes"),
        ("two features, exchanged", "features, labels or masks of nodes"),
        ("a label", "features, labels or masks of nodes"),
        ("a mask", "features, labels or masks of nodes"),
        ("an edge", "edges"),
        ("two edges, crossed", "edges"),
        ("the direction", "edges"),
        ("a weight", "values on edges"),
    ],
)
def test_whatever_is_changed_changes_it(what: str, where: str) -> None:
    before = _identity(Group(), _weighted(), {})
    after = _identity(Group(), _changed(what), {})
    assert [name for name in before if before[name] != after[name]] == [where]
