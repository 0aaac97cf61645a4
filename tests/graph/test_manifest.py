from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fullgraph.graph import manifest
from fullgraph.graph.folder import save
from fullgraph.graph.manifest import (
    GraphFolderError,
    PartFile,
    expected_arrays,
    read_manifest,
    write_manifest,
)
from fullgraph.graph.partition import partition
from fullgraph.graph.parts import GraphMeta
from tests.graph.small import random_cut, random_graph
from tests.typed_graphs import typed_parts


@pytest.fixture(scope="module")
def meta() -> GraphMeta:
    return partition(random_graph(20, 60), 2).meta


@pytest.fixture
def path(meta: GraphMeta, tmp_path: Path) -> Path:
    files = [
        PartFile(manifest.part_file_name(k), nodes, edges, labelled, 100 + k, "ab" * 32)
        for k, (nodes, edges, labelled) in enumerate(
            zip(meta.part_nodes, meta.part_edges, meta.part_labelled)
        )
    ]
    write_manifest(tmp_path / "graph.json", meta, files)
    return tmp_path / "graph.json"


def edit(path: Path, change: Callable[[dict[str, Any]], object], seal: bool = True) -> None:
    content = json.loads(path.read_text())
    change(content)
    if seal:
        content["checksum"] = manifest._checksum(content)
    path.write_text(json.dumps(content))


def test_what_is_written_is_read(path: Path, meta: GraphMeta) -> None:
    found, files = read_manifest(path)
    assert found == meta
    assert [file.bytes for file in files] == [100, 101]


def test_every_array_of_a_part_is_expected(meta: GraphMeta) -> None:
    nodes, edges = meta.part_nodes[1], meta.part_edges[1]
    assert list(expected_arrays(meta, 1)) == [
        ("node_id", "int64", (nodes,)),
        ("source_offsets", "int64", (3,)),
        ("src", "int32", (edges,)),
        ("dst", "int32", (edges,)),
        ("edge_id", "int64", (edges,)),
        ("x", "float32", (nodes, 2)),
        ("y", "int64", (nodes,)),
        ("mask.train", "bool", (nodes,)),
        ("mask.val", "bool", (nodes,)),
        ("edge_weight", "float32", (edges,)),
        ("edge_attr", "float32", (edges, 2)),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("format"), "is not the description of a partitioned"),
        (lambda c: c.update(format="other"), "is not the description of a partitioned"),
        (lambda c: c.update(version=4), r"version 4; this fullgraph reads up to 3. Upgrade it"),
        (lambda c: c.update(version="1"), "version is '1', not a version number"),
        (lambda c: c.update(version=True), "version is True"),
        (lambda c: c.update(version=2), "'node_types' is missing"),
        (lambda c: c.pop("num_nodes"), "'num_nodes' is missing"),
        (lambda c: c.update(num_nodes=-1), "num_nodes is -1, not a count"),
        (lambda c: c.update(num_nodes=2.5), "num_nodes is 2.5, not a count"),
        (lambda c: c.update(num_nodes=21), "num_nodes is 21, but the parts add up to 20"),
        (lambda c: c.update(num_edges=61), "num_edges is 61, but the parts add up to 60"),
        (lambda c: c["parts"].pop(), "num_parts is 2, but the parts add up to 1"),
        (lambda c: c.update(parts={}), "but the parts add up to 0"),
        (lambda c: c.update(parts=3), "not valid"),
        (lambda c: c.update(name=3), "name is 3, not a text"),
        (lambda c: c.update(placement="grid"), "placement 'grid' is not one of"),
        (
            lambda c: c.update(placement=["vertex-cut"]),
            r"placement is \['vertex-cut'\], not a text",
        ),
        (
            lambda c: c.update(placement="vertex-cut"),
            "placement 'vertex-cut' does not go with version 1",
        ),
        (
            lambda c: c.update(version=3, node_types=[], relations=[], num_relations=0),
            "placement 'destination' does not go with version 3",
        ),
        (lambda c: c["fields"][0].update(name="z"), "field 'z' of dtype 'float32' is unknown"),
        (lambda c: c["fields"][0].update(dtype="object"), "dtype 'object' is unknown"),
        (lambda c: c["fields"][0].update(shape=[-1]), "shape is -1, not a count"),
        (lambda c: c["parts"][0].update(file="../x.safetensors"), r"is in '../x.safetensors', not"),
        (lambda c: c["parts"][0].update(file="/etc/passwd"), r"is in '/etc/passwd', not in 'part-"),
        (lambda c: c["parts"][1].update(sha256=None), "sha256 is None, not a text"),
        (lambda c: c["parts"][1].update(labelled=99), "nodes, of which more are labelled"),
        (lambda c: c.update(num_features=5), "array 'x' cannot be float32 of shape .2. a row"),
        (lambda c: c["fields"].pop(0), "there are 2 features, but no array 'x'"),
        (lambda c: c["fields"].append(c["fields"][0]), "an array is listed twice"),
        (lambda c: c["fields"][1].update(dtype="bool"), "array 'y' cannot be bool"),
        (lambda c: c["fields"][2].update(dtype="int64"), "array 'mask.train' cannot be int64"),
        (lambda c: c["fields"][4].update(shape=[2]), "array 'edge_weight' cannot be float32"),
        (lambda c: c["fields"][5].update(shape=[]), "array 'edge_attr' cannot be float32"),
        (lambda c: c["fields"][4].update(name="edge_type"), "array 'edge_type' cannot be float32"),
    ],
)
def test_a_description_that_is_not_right_is_refused(
    path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(path, change)
    with pytest.raises(GraphFolderError, match=message) as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(num_relations=9), "num_relations is 9, but 7 are listed"),
        (lambda c: c["fields"].pop(0), "there are node types, but no array 'edge_type'"),
        (lambda c: c["fields"][2].update(name="y"), "array 'y' cannot be int64"),
        (lambda c: c["node_types"][0].update(num_features=9), "array 'x.0' cannot be float64"),
    ],
)
def test_a_description_of_a_typed_graph_that_is_not_right_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    save(typed_parts(2), tmp_path / "typed")
    edit(tmp_path / "typed" / "graph.json", change)
    with pytest.raises(GraphFolderError, match=message):
        read_manifest(tmp_path / "typed" / "graph.json")


@pytest.fixture
def cut_path(tmp_path: Path) -> Path:
    save(random_cut(random_graph(20, 60), 2), tmp_path / "cut")
    return tmp_path / "cut" / "graph.json"


def test_a_vertex_cut_is_of_a_version_that_older_readers_refuse(cut_path: Path) -> None:
    assert json.loads(cut_path.read_text())["version"] == 3
    meta, _ = read_manifest(cut_path)
    assert meta.placement == "vertex-cut"
    assert meta.replication == sum(meta.part_held) / 20
    arrays = [name for name, _, _ in expected_arrays(meta, 0)]
    assert arrays[:6] == ["node_id", "source_offsets", "src", "dst", "edge_id", "dst_part"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(version=2), "placement 'vertex-cut' does not go with version 2"),
        (lambda c: c.pop("part_held"), "'part_held' is missing"),
        (lambda c: c["part_held"].pop(), "part_held does not have a count for each part"),
        (lambda c: c.update(part_held=[20, "20"]), "part_held is '20', not a count"),
        (lambda c: c.update(part_held=[21, 20]), r"part 0 holds 21 nodes, which is not \d+ \(its"),
        (lambda c: c.update(part_held=[20, 1]), r"part 1 holds 1 nodes.* \.\. 20"),
        (
            lambda c: c.update(node_types=[
                {"name": "a", "num_features": 0, "num_classes": 0,
                 "part_nodes": [part["nodes"] for part in c["parts"]]}
            ], relations=[
                {"source": "a", "name": "to", "target": "a",
                 "part_edges": [part["edges"] for part in c["parts"]]}
            ]),
            "a vertex cut has no node types",
        ),
    ],
)  # fmt: skip
def test_a_description_of_a_vertex_cut_that_is_not_right_is_refused(
    cut_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(cut_path, change)
    with pytest.raises(GraphFolderError, match=message):
        read_manifest(cut_path)


def test_a_number_changed_by_hand_is_noticed(path: Path) -> None:
    edit(path, lambda c: c.update(num_classes=5), seal=False)
    with pytest.raises(GraphFolderError, match="changed by hand"):
        read_manifest(path)


def test_a_newer_version_says_so_whatever_else_is_in_it(path: Path) -> None:
    edit(path, lambda c: [c.clear(), c.update(format=manifest.FORMAT, version=9)], seal=False)
    with pytest.raises(GraphFolderError, match="pip install --upgrade fullgraph"):
        read_manifest(path)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null"])
def test_what_is_no_json_object_is_refused(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with pytest.raises(GraphFolderError, match=r"graph.json is (damaged|not the description)"):
        read_manifest(path)


def test_any_flipped_bit_is_refused_or_changes_nothing(path: Path, meta: GraphMeta) -> None:
    good = path.read_bytes()
    for at in range(0, len(good), 3):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        try:
            found, _ = read_manifest(path)
        except GraphFolderError:
            continue
        assert found == meta, f"byte {at}"  # white space
