"""Graphs with several types of nodes: reading, checks, partitions, folders, descriptions."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch_geometric.data import HeteroData

from fullgraph.graph import manifest
from fullgraph.graph.assign import METHODS, OF_EDGES, assign_parts
from fullgraph.graph.folder import GraphFolderError, PartitionedFolder, save
from fullgraph.graph.partition import PartitionedTyped, partition
from fullgraph.graph.parts import Part
from fullgraph.graph.relations import TypedParts
from fullgraph.graph.sources import read
from fullgraph.graph.typed import TypedGraph
from tests.typed_graphs import NO_EDGES, ODD, ONE_PART, typed, typed_parts

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
TYPES = ["paper", "author", "tag", ODD, "nobody"]


def test_a_hetero_data_is_read_in_its_order() -> None:
    data, whole = typed(), read(typed())
    assert isinstance(whole, TypedGraph)
    assert [nodes.name for nodes in whole.nodes] == TYPES == data.node_types
    assert [relation.key for relation in whole.relations] == data.edge_types
    assert whole.node_offsets == [0, 40, 63, 75, 76, 76]
    assert whole.edge_offsets == [0, 120, 214, 334, 364, 364, 399, 406]
    assert [nodes.num_classes for nodes in whole.nodes] == [3, 0, 0, 0, 0]
    assert whole.relations[0].edge_index.dtype == torch.int32
    assert list(whole.nodes[0].masks) == ["train", "val"]
    assert whole.nodes[2].x is None


def test_to_pyg_and_back_is_the_same_graph() -> None:
    data, back = typed(), read(typed()).to_pyg()
    assert back.metadata() == data.metadata()
    for store, other in zip(data.stores, back.stores):
        assert store.to_dict().keys() == other.to_dict().keys()
        for key, value in store.to_dict().items():
            same = torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key]
            assert same, (store._key, key)


def test_labels_weights_and_attributes_of_one_column_are_flattened_as_in_a_data() -> None:
    data = typed()
    data["paper"].y = data["paper"].y.view(-1, 1)
    data[WRITES].edge_weight = data[WRITES].edge_weight.view(-1, 1)
    data[CITES].edge_attr = data[CITES].edge_attr[:, 0]
    whole = read(data)
    assert whole.nodes[0].y.shape == (40,)
    assert whole.relations[0].edge_weight.shape == (120,)
    assert whole.relations[1].edge_attr.shape == (94, 1)


def test_a_split_is_made_where_there_is_none_and_can_be_chosen() -> None:
    data = typed()
    masks = torch.zeros(40, 2, dtype=torch.bool)
    masks[3, 1] = masks[4, 0] = True
    data["paper"].train_mask = masks
    del data["paper"].val_mask
    assert read(data, split=1).nodes[0].masks["train"].nonzero().tolist() == [[3]]
    with pytest.raises(ValueError, match="node type 'paper': train_mask: split 2 does not exist"):
        read(data, split=2)
    del data["paper"].train_mask
    found = read(data).nodes
    assert [int(mask.sum()) for mask in found[0].masks.values()] == [24, 8, 8]
    assert found[1].masks == {}


def put(key: Any, name: str, value: Any) -> Callable[[HeteroData], None]:
    return lambda data: setattr(data[key], name, value)


def write(key: Any, name: str, place: Any, value: float) -> Callable[[HeteroData], None]:
    return lambda data: data[key][name].__setitem__(place, value)


def drop(key: Any, *names: str) -> Callable[[HeteroData], None]:
    return lambda data: [data[key].pop(name) for name in names]  # type: ignore[return-value]


WRITES_TEXT = r"relation \('author', 'writes', 'paper'\): "
FAULTS = [
    (write("paper", "x", (3, 1), torch.nan), r"node type 'paper': x\[3, 1\] is nan: not a finite"),
    (put("author", "x", torch.zeros(22, 3)), r"node type 'author': x must have shape \[23, any\]"),
    (write("paper", "y", 5, -2), r"node type 'paper': y\[5\] is -2: classes start at 0"),
    (put("paper", "y", torch.zeros(40)), r"node type 'paper': y of shape \[N\] must hold integer"),
    (put("paper", "val_mask", torch.ones(40).bool()), r"node type 'paper': train_mask.* both True"),
    (put("paper", "train_mask", torch.zeros(40).bool()), "no True value in any node type"),
    (put("tag", "num_nodes", -1), "node type 'tag': num_nodes is -1: it cannot be negative"),
    (drop("tag", "num_nodes"), r"node type 'tag' does not say .*set data\['tag'\].num_nodes"),
    (write(WRITES, "edge_index", (0, 7), 23),
     WRITES_TEXT + r"edge_index\[0, 7\] is 23: .* below num_nodes = 23 of 'author'"),
    (write(WRITES, "edge_index", (1, 2), 40),
     WRITES_TEXT + r"edge_index\[1, 2\] is 40: .* below num_nodes = 40 of 'paper'"),
    (write(WRITES, "edge_index", (1, 2), -1), WRITES_TEXT + r"edge_index\[1, 2\] is -1"),
    (put(WRITES, "edge_index", torch.zeros(120, 2).long()), WRITES_TEXT + ".*looks transposed"),
    (put(WRITES, "edge_weight", torch.ones(3)), WRITES_TEXT + r"edge_weight must .* got \[3\]"),
    (write(CITES, "edge_attr", (4, 1), torch.inf), r"'cites', 'paper'\): edge_attr\[4, 1\] is inf"),
    (drop(CITES, "edge_index"), r"relation \('paper', 'cites', 'paper'\) has no edge_index"),
    (put(("paper", "to", "no one"), "edge_index", torch.zeros(2, 1).long()),
     r"'no one'\): there is no node type 'no one'; there are \['paper', "),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), FAULTS)
def test_a_fault_is_named_with_its_type_and_position(
    spoil: Callable[[HeteroData], None], message: str
) -> None:
    data = typed()
    spoil(data)
    with pytest.raises(ValueError, match=message):
        read(data)


def test_types_are_there_once_and_have_nodes() -> None:
    whole = read(typed())
    with pytest.raises(ValueError, match="node type 'paper' is there twice"):
        read(replace(whole, nodes=(*whole.nodes, whole.nodes[0])))
    with pytest.raises(ValueError, match=r"relation \('author', 'writes', 'paper'\) is there tw"):
        read(replace(whole, relations=(*whole.relations, whole.relations[0])))
    with pytest.raises(ValueError, match="no node type has any nodes"):
        read(TypedGraph("none", (whole.nodes[4],), ()))
    with pytest.raises(ValueError, match="types are named by texts, got 3"):
        read(replace(whole, nodes=(*whole.nodes, replace(whole.nodes[0], name=3))))  # type: ignore[arg-type]


def test_nonfinite_features_can_be_allowed() -> None:
    data = typed()
    data["paper"].x[0, 0] = torch.nan
    whole = read(data, allow_nonfinite=True)
    assert partition(whole, 2).meta.num_nodes == 76


@pytest.mark.parametrize("num_parts", [1, 2, 5, 80])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_part_to_every_node(method: str, num_parts: int) -> None:
    if method == "kahypar":
        pytest.importorskip("mtkahypar", reason="comes with pip install '.[dev]'")
    whole = read(typed())
    part = assign_parts(whole, num_parts, method)
    assert part.shape == (76,)
    assert 0 <= int(part.min()) <= int(part.max()) < num_parts
    assert torch.equal(part, assign_parts(whole, num_parts, method))
    if method not in OF_EDGES and num_parts == 5:
        for first, end in zip(whole.node_offsets, whole.node_offsets[1:]):
            sizes = torch.bincount(part[first:end], minlength=5)
            assert int(sizes.max() - sizes.min()) <= 1 + 4 * (method == "random")
            assert method == "random" or (part[first:end].diff() >= 0).all()
    if method == "random":
        sizes = torch.bincount(part, minlength=num_parts)
        assert int(sizes.max() - sizes.min()) <= 1


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="'metiss' is unknown"):
        assign_parts(read(typed()), 2, "metiss")
    with pytest.raises(ValueError, match="num_parts is 0"):
        assign_parts(read(typed()), 0)


def test_metis_sees_edges_between_types() -> None:
    """Two communities, joined only by edges between two types."""
    g = torch.Generator().manual_seed(2)
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 100
    ends = torch.randint(50, (2, 2000), generator=g) + 50 * (torch.arange(2000) % 2)
    data["a", "to", "b"].edge_index = ends
    part = assign_parts(read(data), 2)
    assert torch.equal(part[:100], part[100:])
    assert torch.bincount(part).tolist() == [100, 100]


@pytest.mark.parametrize("empty_part", [False, True])
@pytest.mark.parametrize("num_parts", [1, 3, 4])
def test_parts_put_together_are_the_graph(num_parts: int, empty_part: bool) -> None:
    whole, partitioned = read(typed()), typed_parts(num_parts, empty_part)
    meta, parts = partitioned.meta, [partitioned.part(k) for k in range(num_parts)]
    nodes_first, edges_first = whole.node_offsets, whole.edge_offsets
    union = partitioned.graph.edge_index.long()
    node_id = torch.cat([part.node_id for part in parts])
    assert node_id.sort().values.tolist() == list(range(76))
    assert torch.cat([part.edge_id for part in parts]).sort().values.tolist() == list(range(406))
    for k, part in enumerate(parts):
        assert (part.node_id.diff() > 0).all(), "so nodes of a type are together"
        assert part.edge_type is not None
        assert torch.equal(union[1, part.edge_id], part.node_id[part.dst.long()])
        assert (part.x, part.y, part.masks) == (None, None, {})
        for t, nodes in enumerate(whole.nodes):
            first, end = nodes_first[t : t + 2]
            own = part.node_id[(part.node_id >= first) & (part.node_id < end)] - first
            assert meta.node_types[t].part_nodes[k] == own.numel()
            for name, values in (("x", nodes.x), ("y", nodes.y), *masks_of(nodes.masks)):
                found = part.by_type.get(f"{name}.{t}")
                assert (found is None) == (values is None)
                assert values is None or torch.equal(found, values[own])
        for r, relation in enumerate(whole.relations):
            own = part.edge_id[part.edge_type == r] - edges_first[r]
            assert meta.relations[r].part_edges[k] == own.numel()
            for name in ("edge_weight", "edge_attr"):
                values, found = getattr(relation, name), part.by_type.get(f"{name}.{r}")
                assert (found is None) == (values is None)
                assert values is None or torch.equal(found, values[own])
    assert [rel.num_edges for rel in meta.relations] == [120, 94, 120, 30, 0, 35, 7]
    if num_parts > 1:
        assert meta.relations[3].key == ONE_PART
        assert set(meta.relations[3].part_edges[1:]) == {0}


def masks_of(masks: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    return [(f"mask.{key}", mask) for key, mask in masks.items()]


def test_meta_and_report_say_what_there_is() -> None:
    partitioned = typed_parts(3)
    meta = partitioned.meta
    assert [node_type.name for node_type in meta.node_types] == TYPES
    assert [node_type.num_features for node_type in meta.node_types] == [5, 3, 0, 2, 4]
    assert [node_type.num_nodes for node_type in meta.node_types] == [40, 23, 12, 1, 0]
    assert (meta.num_classes, meta.num_relations, meta.num_edges) == (3, 7, 406)
    assert sum(meta.part_labelled) == int(typed()["paper"].train_mask.sum())
    assert [field.name for field in meta.fields] == [
        *("edge_type", "x.0", "y.0", "mask.train.0", "mask.val.0", "x.1", "x.3", "x.4"),
        *("edge_weight.0", "edge_attr.1", "edge_weight.4", "edge_weight.5", "edge_attr.6"),
    ]
    out = io.StringIO()
    Console(file=out, width=300).print(partitioned.report.table())
    text = " ".join(out.getvalue().split())
    assert f"nodes: paper 40, author 23, tag 12, {ODD} 1, nobody 0" in text
    assert "author writes paper 120, paper cites paper 94" in text


def test_the_command_line_prints_types_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fullgraph.cli.info import info

    save(typed_parts(3), tmp_path / "graph")
    info(tmp_path / "graph", verify=True)
    said = [" ".join(line.split("│")).split() for line in capsys.readouterr().out.splitlines()]
    assert ["0", "paper", "40", "5", "3", "13", "to", "14"] in said
    assert ["3", "../venue", '"π"/.2', "1", "2", "0", "0", "to", "1"] in said
    assert ["2", "paper", "rev_writes", "author", "120", "38", "to", "42"] in said
    assert ["node", "types", "5"] in said


CHANGES: list[Callable[[TypedGraph], object]] = [
    lambda g: g.nodes[0].x[3, 1].add_(1),  # type: ignore[index]
    lambda g: g.nodes[3].x[0, 1].add_(1),  # type: ignore[index]
    lambda g: g.nodes[0].y[2].add_(1).remainder_(3),  # type: ignore[index]
    lambda g: g.nodes[0].masks["val"][1].logical_not_(),
    lambda g: setattr(g.nodes[0], "num_classes", 4),
    lambda g: setattr(g.nodes[4], "name", "somebody"),
    lambda g: g.relations[0].edge_index[0, 3].add_(1).remainder_(23),
    lambda g: g.relations[6].edge_index[1, 0].add_(1).remainder_(12),
    lambda g: g.relations[5].edge_weight[2].add_(1),  # type: ignore[index]
    lambda g: g.relations[6].edge_attr[2, 2].add_(1),  # type: ignore[index]
    lambda g: setattr(g.relations[4], "name", "hates"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_sees_every_change(change: Callable[[TypedGraph], object]) -> None:
    def make(changed: bool) -> str:
        whole = read(typed())
        if changed:
            change(whole)
        return PartitionedTyped(whole, torch.arange(76) % 3, 3).meta.fingerprint

    assert make(False) == make(False)
    assert make(False) != make(True)
    one_other = torch.arange(76) % 3
    one_other[75] = 1
    assert PartitionedTyped(read(typed()), one_other, 3).meta.fingerprint != make(False)


def assert_same(found: Part, wanted: Part) -> None:
    for key, value in vars(wanted).items():
        if key == "by_type":
            assert found.by_type.keys() == value.keys()
        values = value if key == "by_type" else {key: value}
        for name, one in values.items():
            other = found.by_type[name] if key == "by_type" else getattr(found, name)
            if torch.is_tensor(one):
                assert one.dtype == other.dtype, name
                assert torch.equal(one, other), name
            else:
                assert one == other, name


@pytest.mark.parametrize("num_parts", [1, 4])
def test_what_is_saved_is_opened(num_parts: int, tmp_path: Path) -> None:
    partitioned = typed_parts(num_parts, True)
    save(partitioned, tmp_path / "graph")
    opened = PartitionedFolder.open(tmp_path / "graph")
    opened.verify()
    assert opened.meta == partitioned.meta
    for k in range(num_parts):
        assert_same(opened.part(k), partitioned.part(k))
    assert len(list(tmp_path.rglob("*"))) == 2 + num_parts, "no name has become a file"
    save(opened, tmp_path / "copy")
    assert PartitionedFolder.open(tmp_path / "copy").meta == opened.meta


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    content["checksum"] = manifest._checksum(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("relations"), "'relations' is missing"),
        (lambda c: c["node_types"][0].update(name=5), "name is 5, not a text"),
        (lambda c: c["node_types"][0]["part_nodes"].pop(), "node types do not have a count for ea"),
        (lambda c: c["node_types"][0].update(part_nodes=[30, 10]), "node types do not add up"),
        (lambda c: c["relations"][0].update(part_edges=[0, -1]), "part_edges is -1, not a count"),
        (lambda c: c["relations"][0].update(part_edges=[120, 0]), "relations do not add up"),
        (lambda c: c["relations"][0].update(source="x"), "between types that are not there"),
        (lambda c: c["fields"][1].update(name="x.00"), "field 'x.00' of dtype"),
        (lambda c: c["fields"][1].update(name="x.5"), "field 'x.5' of dtype"),
        (lambda c: c["fields"][1].update(name="../x.0"), "field '../x.0' of dtype"),
        (lambda c: c["fields"][1].update(name=7), "name is 7, not a text"),
        (lambda c: c["fields"].pop(3), "array 'mask.train.0' is bool .*the graph says absent"),
    ],
)
def test_a_description_that_is_not_right_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    save(typed_parts(2), tmp_path / "graph")
    edit(tmp_path / "graph" / "graph.json", change)
    with pytest.raises(GraphFolderError, match=message):
        PartitionedFolder.open(tmp_path / "graph")


def test_a_part_is_built_once_for_all_views_that_hold_it() -> None:
    parts = TypedParts(typed_parts(2))
    held = parts.split(1)
    assert parts.split(1) is held
    assert held.edges_of(4).numel() == 0
    assert parts.meta.relations[4].key == NO_EDGES
    del held
    assert len(parts._split) == 0, "and not kept"


def test_a_dataset_of_pyg_by_name_may_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch_geometric.datasets

    class Local(list):
        def __init__(self, root: str) -> None:
            super().__init__([typed()])

    monkeypatch.setattr(torch_geometric.datasets, "DBLP", Local)
    whole = read("pyg:DBLP", root=tmp_path)
    assert (type(whole), whole.name) == (TypedGraph, "pyg:DBLP")
