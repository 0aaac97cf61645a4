from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fullgraph.graph.sources import ACCEPTED, read
from fullgraph.graph.whole import WholeGraph
from tests.graph.small import graph


@pytest.mark.parametrize(
    "source",
    [
        "plantd:nodes=3,edges=1",
        "Cora",
        "missing.npz",
        "",
        ".",
        3,
        None,
        [1],
        "~nobody/x.npz",
        "a\0b",
        "a" * 5000,
    ],
)
def test_what_cannot_be_read_gets_a_list_of_what_can(source: Any) -> None:
    with pytest.raises(ValueError, match=r"graph") as caught:
        read(source)
    assert ACCEPTED in str(caught.value)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.csv"
    path.write_text("0,1\n")
    with pytest.raises(ValueError, match=r"graph.csv does not end in .npz"):
        read(path)


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "graph.npz")
    with pytest.raises(ValueError, match="neither a file nor a known name"):
        read(tmp_path / "graph.npz")


def test_the_file_of_an_invalid_graph_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", edge_index=np.array([[0], [7]]), num_nodes=3)
    with pytest.raises(ValueError, match=r"graph\.npz: edge_index\[1, 0\] is 7"):
        read(tmp_path / "graph.npz")


def test_a_partitioned_folder_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text("{}")
    with pytest.raises(ValueError, match="is a partitioned graph"):
        read(tmp_path)


def test_a_graph_without_masks_gets_a_seeded_split_over_its_labelled_nodes() -> None:
    bare = replace(graph([], num_nodes=200), masks={})
    assert bare.y is not None
    bare.y[:100] = -1
    whole, same, other = (read(bare, seed=seed) for seed in (0, 0, 1))
    assert [int(mask.sum()) for mask in whole.masks.values()] == [60, 20, 20]
    assert not any(bool(mask[:100].any()) for mask in whole.masks.values())
    assert torch.equal(whole.masks["train"], same.masks["train"])
    assert not torch.equal(whole.masks["train"], other.masks["train"])
    few = read(bare, train=0.1, val=0.1)
    assert [int(mask.sum()) for mask in few.masks.values()] == [10, 10, 80]


def test_masks_that_exist_are_left_alone() -> None:
    whole = graph([(0, 1)], num_nodes=4, train=[3])
    assert read(whole).masks["train"].tolist() == [False, False, False, True]


def test_classes_are_counted_where_the_graph_does_not_say() -> None:
    whole = WholeGraph("g", torch.zeros(2, 0, dtype=torch.int64), 3, y=torch.tensor([0, 4, 1]))
    assert read(whole).num_classes == 5


def test_a_read_graph_is_checked() -> None:
    with pytest.raises(ValueError, match=r"edge_index\[1, 0\] is 7"):
        read(WholeGraph("g", torch.tensor([[0], [7]]), 3))
