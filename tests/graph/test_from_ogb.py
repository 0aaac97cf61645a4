from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fullgraph.graph.sources import read


class _Ogb:
    """Stands for ogb's NodePropPredDataset, which keeps NumPy arrays in a torch file."""

    labels: Any = np.array([[0], [2], [1]])
    graph: Any = {  # noqa: RUF012
        "edge_index": np.array([[0, 1], [1, 2]]),
        "node_feat": np.eye(3, dtype=np.float32),
        "edge_feat": None,
        "num_nodes": np.int64(3),
    }

    def __init__(self, name: str, root: str) -> None:
        path = Path(root) / name
        path.parent.mkdir(exist_ok=True)
        torch.save({"graph": self.graph, "labels": self.labels}, path)
        kept = torch.load(path)
        self.kept = (kept["graph"], kept["labels"])

    def get_idx_split(self) -> dict[str, np.ndarray]:
        return {"train": np.array([0]), "valid": np.array([2]), "test": np.array([1])}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.kept


def install(monkeypatch: pytest.MonkeyPatch, dataset: type | None) -> None:
    module = ModuleType("ogb.nodeproppred")
    if dataset is not None:
        module.NodePropPredDataset = dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ogb", ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)


def test_a_graph_of_ogb_comes_with_its_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, _Ogb)
    whole = read("ogb:ogbn-arxiv", root=tmp_path)
    assert (whole.name, whole.num_nodes, whole.num_classes) == ("ogb:ogbn-arxiv", 3, 3)
    assert whole.edge_index.tolist() == [[0, 1], [1, 2]]
    assert {key: mask.nonzero().tolist() for key, mask in whole.masks.items()} == {
        "train": [[0]],
        "val": [[2]],
        "test": [[1]],
    }


def test_unknown_labels_and_several_labels_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Holes(_Ogb):
        labels = np.array([[0.0], [1.0], [np.nan]])

        def get_idx_split(self) -> dict[str, np.ndarray]:
            return {"train": np.array([0]), "valid": np.array([1]), "test": np.array([], int)}

    install(monkeypatch, Holes)
    whole = read("ogb:ogbn-papers100M", root=tmp_path)
    assert whole.y is not None
    assert whole.y.tolist() == [0, 1, -1]

    class Several(_Ogb):
        labels = np.array([[0, 1], [1, 1], [0, 0]])

    install(monkeypatch, Several)
    whole = read("ogb:ogbn-proteins", root=tmp_path)
    assert whole.y is not None
    assert (whole.num_classes, whole.y.tolist()) == (2, [[0, 1], [1, 1], [0, 0]])


def test_typed_graphs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed(_Ogb):
        graph = {"edge_index_dict": {}, "num_nodes_dict": {}}  # noqa: RUF012

    install(monkeypatch, Typed)
    with pytest.raises(ValueError, match="ogbn-mag has typed nodes"):
        read("ogb:ogbn-mag", root=tmp_path)


def test_without_the_package_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, None)
    with pytest.raises(ValueError, match=r"pip install fullgraph\[ogb\]"):
        read("ogb:ogbn-arxiv", root=tmp_path)
