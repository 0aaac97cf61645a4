from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from fullgraph.graph.from_npz import read_npz
from fullgraph.graph.sources import read
from tests.data import shared_data

EDGES = np.array([[0, 1], [1, 2]], dtype=np.int32)


def write(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "graph.npz", **{"edge_index": EDGES, "num_nodes": 4, **arrays})
    return folder / "graph.npz"


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes", "sets"),
    [
        ("cora", 2708, 10_556, 1433, 7, [140, 500, 1000]),
        ("citeseer", 3327, 9104, 3703, 6, [120, 500, 1000]),
        ("amazon_photo", 7650, 238_163, 745, 8, [4590, 1530, 1530]),
        ("tolokers", 11_758, 1_038_000, 10, 2, [5879, 2939, 2940]),
    ],
)
def test_real_graphs_are_read(
    name: str, nodes: int, edges: int, features: int, classes: int, sets: list[int]
) -> None:
    whole = read(shared_data(name))
    counts = (whole.num_nodes, whole.num_edges, whole.num_features, whole.num_classes)
    assert counts == (nodes, edges, features, classes)
    assert whole.name == name
    assert [int(mask.sum()) for mask in whole.masks.values()] == sets
    with np.load(shared_data(name), allow_pickle=False) as raw:
        assert np.array_equal(whole.edge_index.numpy(), raw["edge_index"])
        row = slice(raw["x_indptr"][7], raw["x_indptr"][8])
        assert whole.x is not None
        assert np.array_equal(whole.x[7, raw["x_indices"][row]].numpy(), raw["x_data"][row])
        assert abs(float(whole.x.sum()) / raw["x_data"].sum() - 1) < 1e-4


def test_each_published_split_can_be_chosen() -> None:
    with np.load(shared_data("tolokers"), allow_pickle=False) as raw:
        wanted = raw["train_mask"][:, 3]
    assert np.array_equal(read(shared_data("tolokers"), split=3).masks["train"].numpy(), wanted)
    with pytest.raises(ValueError, match="split 10 does not exist; there are 10"):
        read(shared_data("tolokers"), split=10)


def test_the_types_of_edges_are_read(tmp_path: Path) -> None:
    whole = read(shared_data("aifb"))
    assert whole.edge_type is not None
    with np.load(shared_data("aifb"), allow_pickle=False) as raw:
        assert np.array_equal(whole.edge_type.numpy(), raw["edge_type"])
        assert whole.num_relations == int(raw["num_relations"])
    assert (whole.num_nodes, whole.num_edges, whole.x) == (8285, 58_086, None)
    assert whole.edge_type.dtype == torch.int64
    assert read(write(tmp_path, edge_type=np.array([4, 2]))).num_relations == 5
    assert read(write(tmp_path, edge_type=np.array([4, 2]), num_relations=9)).num_relations == 9


def test_every_optional_array_is_read(tmp_path: Path) -> None:
    arrays = {
        "x": np.arange(8.0).reshape(4, 2),
        "y": np.array([0, 1, -1, 1]),
        "num_classes": 5,
        "train_mask": np.array([True, False, False, False]),
        "edge_weight": np.array([0.5, 2.0], dtype=np.float32),
        "edge_attr": np.ones((2, 3), dtype=np.float32),
    }
    whole = read(write(tmp_path, **arrays))
    assert whole.num_classes == 5
    for key in ("x", "y", "edge_weight", "edge_attr"):
        assert np.array_equal(getattr(whole, key).numpy(), arrays[key]), key
    assert whole.x is not None
    assert whole.x.dtype == torch.float64
    assert list(whole.masks) == ["train"]


def test_only_edges_and_a_count_are_enough(tmp_path: Path) -> None:
    whole = read(write(tmp_path))
    assert (whole.num_nodes, whole.x, whole.y, whole.masks) == (4, None, None, {})


def csr(matrix: np.ndarray) -> dict[str, np.ndarray]:
    made = sparse.csr_matrix(matrix)
    return {
        "x_indptr": made.indptr,
        "x_indices": made.indices,
        "x_data": made.data,
        "x_shape": np.array(made.shape),
    }


def test_sparse_features_become_dense(tmp_path: Path) -> None:
    matrix = np.diag([1.0, 0.0, 3.0, 4.0]).astype(np.float32)
    whole = read(write(tmp_path, **csr(matrix)))
    assert whole.x is not None
    assert np.array_equal(whole.x.numpy(), matrix)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"node_type": np.zeros(4)}, "node_type: a graph with typed nodes is given as a PyG Het"),
        ({"edge_type": np.zeros(2), "num_relations": 1.5}, "num_relations must be one integer"),
        ({"train_msk": np.zeros(4, dtype=bool)}, r"unknown arrays \['train_msk'\]"),
        ({"num_nodes": 4.0}, "num_nodes must be one integer, got float64"),
        ({"num_nodes": np.array([4, 4])}, r"num_nodes must be one integer, got int64 \[2\]"),
        ({"y": np.array(["a"] * 4)}, "y must hold numbers"),
        ({"y": np.array([None] * 4)}, "allow_pickle"),
        ({"x_data": np.zeros(3)}, r"all of x_indptr.*got \['x_data'\]"),
        ({**csr(np.eye(4)), "x": np.eye(4)}, "features come as x or as all of"),
        ({**csr(np.eye(4)), "x_indices": np.array([0, 1, 2, 9])}, "column|ind"),
        ({**csr(np.eye(4)), "x_shape": np.array([4])}, "x_shape must hold two sizes"),
        ({**csr(np.eye(4)), "x_shape": np.array([4, 2**40])}, "more than 1000 times its size"),
        ({**csr(np.eye(4)), "x_indptr": np.eye(4)}, "should be 1-D"),
        ({"num_nodes": 2**40}, "would take .* bytes, which is more than 1000 times its size"),
        ({"y": np.zeros(4, np.uint32)}, "y must hold numbers, got uint32"),
        ({"x": np.zeros((4, 1), np.longdouble)}, "x must hold numbers, got .*128"),
        ({"edge_index": np.array([["a"], ["b"]])}, "edge_index must hold numbers, got <U1"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_reason(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"graph.npz: .*({message})"):
        read_npz(write(tmp_path, **arrays))


def test_numbers_of_the_other_byte_order_are_read(tmp_path: Path) -> None:
    y = np.array([3, 1, 2, 0])
    whole = read(write(tmp_path, y=y.astype(">i8"), edge_index=EDGES.astype(">i4")))
    assert whole.y.tolist() == y.tolist()  # type: ignore[union-attr]
    assert np.array_equal(whole.edge_index.numpy(), EDGES)


def array(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


def described(shape: str, descr: str = "'<f4'") -> bytes:
    return array(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            described("(1000000000000, 1)"),
            r"x cannot be read: float32 \[1000000000000, 1\] does not",
        ),
        (described("(4294967296, 4294967296)"), "x cannot be read: float32"),
        (described("(99999999999999999999,)"), "x cannot be read: float32"),
        (described("(-1,)"), "x cannot be read"),
        (described("(1,)", "'|O'"), "x cannot be read: .*allow_pickle"),
        (array("{'descr': (\n"), "x cannot be read"),
        (array("[" * 300), "x cannot be read"),
        (b"source,destination", "x cannot be read"),
        (b"", "x cannot be read"),
    ],
)
def test_an_array_that_says_what_is_not_so_is_refused(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = write(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", data)
    with pytest.raises(ValueError, match=rf"graph.npz: {message}"):
        read_npz(path)


@pytest.mark.parametrize(("how", "message"), [
    (zipfile.ZIP_DEFLATED, r"would take 80,000,\d+ bytes, more than 100 times its size; write it"),
    (zipfile.ZIP_BZIP2, "more than 100 times its size"),
])  # fmt: skip
def test_a_small_file_that_inflates_to_much_is_refused(
    tmp_path: Path, how: int, message: str
) -> None:
    path = write(tmp_path)
    with zipfile.ZipFile(path, "a", how) as archive:
        archive.writestr("x.npy", described("(4, 5000000)")[:-1] + b" \n" + bytes(80_000_000))
    with pytest.raises(ValueError, match=message):
        read_npz(path)


def test_an_array_packed_as_numpy_does_not_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", described("(4, 1)") + bytes(16))
    with pytest.raises(ValueError, match="x is packed in a way that NumPy does not use"):
        read_npz(path)


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", edge_index=EDGES)
    with pytest.raises(ValueError, match="num_nodes is missing"):
        read_npz(tmp_path / "graph.npz")


@pytest.mark.parametrize("keep", [0, 3, 100, -30])
def test_a_file_that_is_cut_off_or_no_npz_is_refused(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"graph\.npz: "):
        read_npz(path)
    path.write_bytes(b"source,destination\n0,1\n")
    with pytest.raises(ValueError, match=r"not an .npz file"):
        read_npz(path)
