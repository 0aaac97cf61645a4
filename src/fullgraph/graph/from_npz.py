"""Graphs from an ``.npz`` of plain arrays.

| array | shape | meaning |
|---|---|---|
| edge_index | [2, E] integer | row 0 source, row 1 destination |
| num_nodes | scalar | number of nodes; the last ones may have no edges |
| x | [N, F] | node features, dense |
| x_indptr, x_indices, x_data, x_shape | CSR | or node features, sparse (made dense on reading) |
| y | [N] integer, or [N, C] | class, -1 where unknown; or one column a label |
| num_classes | scalar | optional; otherwise the largest class + 1 |
| train_mask, val_mask, test_mask | [N] or [N, splits] bool | optional |
| edge_weight, edge_attr | [E]; [E, D] | optional |
| edge_type | [E] integer | optional: the relation of each edge, from 0 |
| num_relations | scalar | optional; otherwise the largest edge_type + 1 |

Letters: N nodes, E edges, F features, C classes, D edge columns.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from fullgraph.graph.splits import choose_split
from fullgraph.graph.whole import SPLITS, WholeGraph, count_classes, count_relations

Arrays = dict[str, NDArray]
SPARSE_X = ("x_indptr", "x_indices", "x_data", "x_shape")
KNOWN = {
    *("edge_index", "num_nodes", "x", "y", "num_classes", "edge_weight", "edge_attr"),
    *("edge_type", "num_relations"),
    *SPARSE_X,
    *(f"{key}_mask" for key in SPLITS),
}


def read_npz(path: Path, split: int = 0) -> WholeGraph:
    """The graph in a file, dtypes as stored; nothing in it is unpickled.

    Raises ValueError naming the file for one that is no npz, lacks arrays or has unknown ones, and
    for one with typed nodes, which come as a PyG HeteroData only.
    """
    try:
        arrays = _load(path)
        return _build(path.stem, arrays, split)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}") from error


def _load(path: Path) -> Arrays:
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ValueError("not an .npz file (write one with numpy.savez)")
        file.seek(0)
        archive = np.load(file, allow_pickle=False)
        names = archive.files
        if "node_type" in names:
            raise ValueError(
                "has node_type: a graph with typed nodes is given as a PyG HeteroData; leave "
                "node_type out to treat all nodes alike"
            )
        unknown = sorted(set(names) - KNOWN)
        if unknown:
            raise ValueError(f"unknown arrays {unknown}; known are {sorted(KNOWN)}")
        return {name: archive[name] for name in names}


def _build(name: str, arrays: Arrays, split: int) -> WholeGraph:
    missing = [key for key in ("edge_index", "num_nodes") if key not in arrays]
    if missing:
        raise ValueError(f"the array {' and '.join(missing)} is missing")
    num_nodes = _whole_number("num_nodes", arrays["num_nodes"])
    y, edge_type = _tensor("y", arrays), _tensor("edge_type", arrays)
    named = "num_classes" in arrays
    classes = _whole_number("num_classes", arrays["num_classes"]) if named else count_classes(y)
    counted = "num_relations" not in arrays
    relations = (
        count_relations(edge_type)
        if counted
        else _whole_number("num_relations", arrays["num_relations"])
    )
    masks = {}
    for key in SPLITS:
        mask = _tensor(f"{key}_mask", arrays)
        if mask is not None:
            masks[key] = choose_split(f"{key}_mask", mask, split)
    return WholeGraph(
        name=name,
        edge_index=torch.from_numpy(arrays["edge_index"]),
        num_nodes=num_nodes,
        x=_features(arrays),
        y=y,
        masks=masks,
        edge_weight=_tensor("edge_weight", arrays),
        edge_attr=_tensor("edge_attr", arrays),
        num_classes=classes,
        edge_type=edge_type,
        num_relations=relations,
    )


def _whole_number(name: str, array: NDArray) -> int:
    if array.shape not in ((), (1,)) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be one integer, got {array.dtype} {list(array.shape)}")
    return int(array.reshape(()))


def _tensor(name: str, arrays: Arrays) -> Tensor | None:
    if name not in arrays:
        return None
    if arrays[name].dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, got {arrays[name].dtype}")
    return torch.from_numpy(arrays[name])


def _features(arrays: Arrays) -> Tensor | None:
    """x [N, F], dense or made dense; None without features."""
    present = [key for key in SPARSE_X if key in arrays]
    if not present:
        return _tensor("x", arrays)
    if "x" in arrays or len(present) < len(SPARSE_X):
        raise ValueError(f"features come as x or as all of {', '.join(SPARSE_X)}; got {present}")
    indptr, indices, data, shape = (arrays[key] for key in SPARSE_X)
    if shape.shape != (2,):
        raise ValueError(f"x_shape must hold two sizes, got {shape.tolist()}")
    matrix = sparse.csr_matrix((data, indices, indptr), shape=tuple(int(size) for size in shape))
    matrix.check_format(full_check=True)
    return torch.from_numpy(matrix.toarray())
