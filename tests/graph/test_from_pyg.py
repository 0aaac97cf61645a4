from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.datasets
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from fullgraph.graph.from_pyg import from_data, read_pyg
from fullgraph.graph.sources import read

EDGES = torch.tensor([[0, 1], [1, 2]])


def test_direction_order_and_data_are_kept() -> None:
    data = Data(
        x=torch.eye(4),
        y=torch.tensor([[0], [1], [1], [-1]]),
        edge_index=EDGES,
        edge_weight=torch.tensor([[1.0], [2.0]]),
        edge_attr=torch.tensor([3.0, 4.0]),
        train_mask=torch.tensor([[True, False]] * 2 + [[False, True], [False, False]]),
        test_mask=torch.tensor([False, False, True, False]),
    )
    whole = read(data)
    assert whole.edge_index.tolist() == EDGES.tolist()
    assert whole.y is not None
    assert whole.edge_weight is not None
    assert whole.edge_attr is not None
    assert whole.y.tolist() == [0, 1, 1, -1]
    assert whole.edge_weight.tolist() == [1, 2]
    assert whole.edge_attr.tolist() == [[3], [4]]
    assert whole.masks["train"].tolist() == [True, True, False, False]


def test_several_labels_a_node_stay_columns() -> None:
    y = torch.tensor([[0, 1, 1], [1, 0, 0]])
    whole = read(Data(edge_index=EDGES[:, :1], y=y, num_nodes=2))
    assert whole.y is not None
    assert whole.y.dtype == torch.float32
    assert (whole.num_classes, whole.y.tolist()) == (3, y.tolist())


def test_the_types_of_edges_are_read_and_counted() -> None:
    types = torch.tensor([[3], [1]], dtype=torch.int32)
    whole = read(Data(edge_index=EDGES, num_nodes=3, edge_type=types))
    assert whole.edge_type is not None
    assert whole.edge_type.tolist() == [3, 1]
    assert (whole.edge_type.dtype, whole.num_relations) == (torch.int64, 4)
    assert torch.equal(whole.to_pyg().edge_type, whole.edge_type)
    data = Data(edge_index=EDGES, num_nodes=3, edge_type=types, num_relations=7)
    assert read(data).num_relations == 7
    assert read(Data(edge_index=EDGES, num_nodes=3)).num_relations == 0


def test_the_count_of_nodes_is_honoured_or_asked_for() -> None:
    assert read(Data(edge_index=EDGES, num_nodes=5)).num_nodes == 5
    assert read(Data(edge_index=EDGES, x=torch.zeros(7, 1))).num_nodes == 7
    with pytest.raises(ValueError, match=r"set data\.num_nodes"):
        read(Data(edge_index=EDGES))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (HeteroData(), "there are no node types: a graph needs at least one"),
        (
            Data(edge_index=EDGES, num_nodes=3, node_type=torch.zeros(3)),
            "node_type: a graph with typed nodes is given as a HeteroData",
        ),
        (Data(x=torch.zeros(3, 1)), "no edge_index"),
        (Data(x=torch.zeros(3, 1), adj_t=torch.eye(3)), "adj_t .*ToSparseTensor"),
    ],
)
def test_what_is_not_a_plain_graph_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(data)


def test_other_objects_of_pyg_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a PyG Data, got int"):
        from_data(3)


class _Local(InMemoryDataset):
    """Stands for a dataset class that would download."""

    num_graphs = 1

    def __init__(self, root: str, name: str) -> None:
        assert name in ("Cora", "CS")
        self.asked = (root, name)
        super().__init__(None)
        graph = Data(x=torch.eye(3), y=torch.tensor([0, 1, 0]), edge_index=EDGES)
        self.data, self.slices = self.collate([graph] * self.num_graphs)


class _OnlyRoot(_Local):
    def __init__(self, root: str) -> None:
        super().__init__(root, "Cora")


@pytest.mark.parametrize(
    ("name", "kind"), [("Cora", "Planetoid"), ("cora", "Planetoid"), ("Coauthor/CS", "Coauthor")]
)
def test_names_reach_the_dataset_class_of_pyg(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Recorded(_Local):
        def __init__(self, root: str, name: str) -> None:
            super().__init__(root, name)
            asked.append(self.asked)

    monkeypatch.setattr(torch_geometric.datasets, kind, Recorded)
    whole = read(f"pyg:{name}", root=tmp_path)
    assert asked == [(str(tmp_path / "pyg" / kind), "CS" if kind == "Coauthor" else "Cora")]
    assert (whole.name, whole.num_nodes, whole.num_classes) == (f"pyg:{name}", 3, 2)
    assert set(whole.masks) == {"train", "val", "test"}


def test_a_class_that_takes_only_a_root_is_named_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_geometric.datasets, "Reddit", _OnlyRoot)
    assert read("pyg:Reddit", root=tmp_path).num_nodes == 3


def test_a_dataset_that_pyg_carries_itself_works(tmp_path: Path) -> None:
    whole = read("pyg:KarateClub", root=tmp_path)
    assert (whole.num_nodes, whole.num_edges, int(whole.masks["train"].sum())) == (34, 156, 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Corra", r"pyg:Corra: no such dataset. Write one of Cora, CiteSeer.*pyg:Coauthor/CS"),
        ("Planetoid", "is written pyg:CLASS/NAME, with CLASS Planetoid"),
        ("Reddit/A", "is written pyg:CLASS, with CLASS Reddit"),
        ("Planetoid/Nope", "has no such graph.*AssertionError"),
    ],
)
def test_a_wrong_name_says_what_names_there_are(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", _Local)
    monkeypatch.setattr(torch_geometric.datasets, "Reddit", _OnlyRoot)
    with pytest.raises(ValueError, match=message):
        read_pyg(name, tmp_path)


def test_a_dataset_of_several_graphs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Several(_Local):
        num_graphs = 4

    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", Several)
    with pytest.raises(ValueError, match="pyg:Cora is 4 graphs"):
        read_pyg("Cora", tmp_path)
