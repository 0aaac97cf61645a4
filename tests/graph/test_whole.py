from __future__ import annotations

import pytest
import torch

from fullgraph.graph.sources import read
from fullgraph.graph.whole import WholeGraph, canonical, count_classes
from tests.graph.small import graph, with_types


def test_to_pyg_and_back_is_the_same_graph() -> None:
    whole = with_types(graph([(0, 1), (0, 1), (2, 2)], num_nodes=5), num_relations=9)
    back = read(whole.to_pyg())
    assert (back.num_nodes, back.num_relations) == (5, 9)
    for key in ("edge_index", "x", "y", "edge_weight", "edge_attr", "edge_type"):
        assert torch.equal(getattr(back, key), getattr(whole, key)), key
        assert getattr(back, key).dtype == getattr(whole, key).dtype, key
    assert {key: mask.tolist() for key, mask in back.masks.items()} == {
        key: mask.tolist() for key, mask in whole.masks.items()
    }


def test_to_pyg_gives_ids_that_index() -> None:
    data = graph([(0, 1)], 2).to_pyg()
    assert data.x[data.edge_index[0]].tolist() == [[0, 0]]
    assert data.edge_index.dtype == torch.int64


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
    ],
)
def test_features_keep_the_float_types_that_training_knows(
    given: torch.dtype, kept: torch.dtype
) -> None:
    x = torch.ones(2, 1).to(given)
    whole = canonical(WholeGraph("g", torch.zeros(2, 0, dtype=torch.int64), 2, x=x))
    assert whole.x is not None
    assert whole.x.dtype == kept


@pytest.mark.parametrize("given", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_ids_and_labels_of_any_integer_type_become_int32_and_int64(given: torch.dtype) -> None:
    edge_index = torch.tensor([[0, 1], [1, 2]], dtype=given)
    whole = read(WholeGraph("g", edge_index, 3, y=torch.tensor([0, 1, 1], dtype=given)))
    assert whole.edge_index.dtype == torch.int32
    assert whole.edge_index.tolist() == [[0, 1], [1, 2]]
    assert whole.y is not None
    assert (whole.y.dtype, whole.num_classes) == (torch.int64, 2)


def test_ids_are_int64_from_two_to_the_31_nodes_on() -> None:
    edge_index = torch.tensor([[0], [2**31]])
    whole = canonical(WholeGraph("g", edge_index, 2**31 + 1))
    assert whole.edge_index.dtype == torch.int64
    assert whole.edge_index[1, 0] == 2**31


def test_classes_are_counted() -> None:
    assert count_classes(None) == 0
    assert count_classes(torch.tensor([-1, -1])) == 0
    assert count_classes(torch.tensor([-1, 4])) == 5
    assert count_classes(torch.zeros(3, 7)) == 7
