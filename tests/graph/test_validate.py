from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fullgraph.graph import validate as module
from fullgraph.graph.sources import read
from fullgraph.graph.validate import validate
from fullgraph.graph.whole import WholeGraph
from tests.graph.small import graph, with_types

NAN, INF = float("nan"), float("inf")


def good() -> WholeGraph:
    return with_types(graph([(0, 1), (1, 2), (2, 3), (3, 3)], num_nodes=5))


def put(key: str, place: Any, value: float) -> Callable[[WholeGraph], None]:
    def change(whole: WholeGraph) -> None:
        getattr(whole, key)[place] = value

    return change


def swap(key: str, value: Any) -> Callable[[WholeGraph], None]:
    return lambda whole: setattr(whole, key, value)


def mask(key: str, values: torch.Tensor) -> Callable[[WholeGraph], None]:
    return lambda whole: whole.masks.update({key: values})


FAULTS = [
    (put("edge_index", (0, 2), -1), r"edge_index\[0, 2\] is -1: ids start at 0"),
    (put("edge_index", (1, 3), 5), r"edge_index\[1, 3\] is 5: .* below num_nodes = 5"),
    (swap("edge_index", torch.tensor([[0.0], [1.5]])), r"integer node ids, got torch.float32"),
    (swap("edge_index", torch.zeros(4, 2, dtype=torch.int64)), r"\[4, 2\]; it looks transposed"),
    (swap("edge_index", torch.zeros(3, dtype=torch.int64)), r"shape \[2, E\].*got \[3\]"),
    (swap("num_nodes", 0), "num_nodes is 0: a graph needs at least one node"),
    (swap("num_nodes", 5.0), "num_nodes must be a whole number, got 5.0"),
    (put("x", (3, 1), NAN), r"x\[3, 1\] is nan: not a finite number .*allow_nonfinite"),
    (put("x", (4, 0), INF), r"x\[4, 0\] is inf"),
    (swap("x", torch.zeros(4, 2)), r"x must have shape \[5, any\], got \[4, 2\]"),
    (swap("x", torch.zeros(5)), r"x must have shape \[5, any\], got \[5\]"),
    (swap("x", torch.zeros(5, 1, dtype=torch.complex64)), "x must hold real numbers"),
    (put("edge_weight", 2, NAN), r"edge_weight\[2\] is nan"),
    (swap("edge_weight", torch.zeros(3)), r"edge_weight must have shape \[4\], got \[3\]"),
    (put("edge_attr", (1, 1), -INF), r"edge_attr\[1, 1\] is -inf"),
    (put("edge_type", 2, -1), r"edge_type\[2\] is -1: types start at 0"),
    (put("edge_type", 3, 4), r"edge_type\[3\] is 4: not below num_relations = 4"),
    (swap("edge_type", torch.zeros(4)), "edge_type must hold integers, got torch.float32"),
    (swap("edge_type", torch.arange(3)), r"edge_type must have shape \[4\], got \[3\]"),
    (swap("edge_type", None), "num_relations is 4, but there is no edge_type"),
    (put("y", 4, 3), r"y\[4\] is 3: not below num_classes = 3"),
    (put("y", 1, -2), r"y\[1\] is -2: classes start at 0, and -1 means unknown"),
    (swap("y", torch.zeros(5)), r"y of shape \[N\] must hold integer classes, got torch.float32"),
    (swap("y", torch.zeros(6, dtype=torch.int64)), r"y must have shape \[5\], got \[6\]"),
    (swap("y", torch.zeros(5, 2)), r"y must have shape \[5, 3\], got \[5, 2\]"),
    (put("y", 0, -1), r"train_mask\[0\] is True, but y\[0\] is -1"),
    (mask("val", torch.ones(4, dtype=torch.bool)), r"val_mask must have shape \[5\], got \[4\]"),
    (mask("val", torch.ones(5)), "val_mask must be bool, got torch.float32"),
    (mask("val", torch.arange(5) > 3), r"train_mask\[4\] and val_mask\[4\] .* in 1 node"),
    (mask("train", torch.zeros(5, dtype=torch.bool)), "no node to train on"),
    (mask("valid", torch.zeros(5, dtype=torch.bool)), "'valid': the names are train, val, test"),
]


@pytest.mark.parametrize(("spoil", "message"), FAULTS)
def test_a_fault_is_named_with_its_array_value_and_position(
    spoil: Callable[[WholeGraph], None], message: str
) -> None:
    whole = good()
    validate(whole)
    spoil(whole)
    with pytest.raises(ValueError, match=message):
        validate(whole)


def test_a_position_far_into_an_array_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    whole = good()
    assert whole.x is not None
    whole.x = torch.zeros(5, 20)
    whole.x[3, 17] = NAN
    with pytest.raises(ValueError, match=r"x\[3, 17\] is nan"):
        validate(whole)


def test_nonfinite_features_can_be_allowed() -> None:
    whole = good()
    put("x", (0, 0), NAN)(whole)
    put("edge_weight", 0, INF)(whole)
    validate(whole, allow_nonfinite=True)
    assert read(whole, allow_nonfinite=True).num_nodes == 5


def test_a_graph_without_edges_is_legal() -> None:
    validate(replace(graph([], num_nodes=3), y=None, masks={}, num_classes=0))


def test_the_number_of_nodes_is_not_guessed_from_the_edges() -> None:
    whole = graph([(0, 1)], num_nodes=5)
    validate(whole)
    assert read(whole).num_nodes == 5
