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

A file may come from anybody. Nothing in it is unpickled, and what it says of itself is compared
with its size before anything of that size is made: arrays, as they are stored, may take INFLATED
times the file's size, and features that are made dense DENSE times, or else SMALL bytes.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
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


INFLATED, DENSE, SMALL = 100, 1000, 1 << 26
DTYPES = {
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
}  # fmt: skip
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path, split: int = 0) -> WholeGraph:
    """The graph in a file, dtypes as stored; nothing in it is unpickled.

    Raises ValueError naming the file for one that is no npz, lacks arrays or has unknown ones, for
    one with typed nodes, which come as a PyG HeteroData only, and for one that would take far more
    memory than it has bytes.
    """
    try:
        size = path.stat().st_size
        return _build(path.stem, _load(path, size), split, size)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}") from error


def _load(path: Path, size: int) -> Arrays:
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ValueError("not an .npz file (write one with numpy.savez)")
        try:
            archive = zipfile.ZipFile(file)
            entries = {entry.filename: entry for entry in archive.infolist()}
        except Exception as error:  # zipfile has dozens of ways to fail
            raise ValueError(f"a damaged .npz file: {_reason(error)}") from error
        _check_names(entries)
        inflated = sum(entry.file_size for entry in entries.values())
        if inflated > max(INFLATED * size, SMALL):
            raise ValueError(
                f"its arrays would take {inflated:,} bytes, more than {INFLATED} times its size; "
                "write it with numpy.savez, which does not compress, or features as x_indptr, "
                "x_indices, x_data and x_shape"
            )
        return {
            name.removesuffix(".npy"): _read_array(archive, entry)
            for name, entry in entries.items()
        }


def _check_names(entries: dict[str, zipfile.ZipInfo]) -> None:
    names = {name.removesuffix(".npy") for name in entries}
    if "node_type" in names:
        raise ValueError(
            "has node_type: a graph with typed nodes is given as a PyG HeteroData; leave "
            "node_type out to treat all nodes alike"
        )
    if unknown := sorted(names - KNOWN):
        raise ValueError(f"unknown arrays {unknown}; known are {sorted(KNOWN)}")


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray:
    name = entry.filename.removesuffix(".npy")
    if entry.compress_type not in PACKED:
        raise ValueError(f"{name} is packed in a way that NumPy does not use")
    try:
        with archive.open(entry) as member:
            shape, _, dtype = HEADERS[np.lib.format.read_magic(member)](member)
            wanted = math.prod(shape) * dtype.itemsize
            if not dtype.hasobject and wanted != entry.file_size - member.tell():
                raise ValueError(f"{dtype} {list(shape)} does not fit its size")
            member.seek(0)
            return np.lib.format.read_array(member, allow_pickle=False)
    except Exception as error:  # of zipfile, zlib and the parser of headers
        raise ValueError(f"{name} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _build(name: str, arrays: Arrays, split: int, file_size: int) -> WholeGraph:
    missing = [key for key in ("edge_index", "num_nodes") if key not in arrays]
    if missing:
        raise ValueError(f"the array {' and '.join(missing)} is missing")
    num_nodes = _whole_number("num_nodes", arrays["num_nodes"])
    _check_dense(f"num_nodes is {num_nodes}: a number for each node", 8 * num_nodes, file_size)
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
        edge_index=_as_tensor("edge_index", arrays["edge_index"]),
        num_nodes=num_nodes,
        x=_features(arrays, file_size),
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
    return _as_tensor(name, arrays[name]) if name in arrays else None


def _as_tensor(name: str, array: NDArray) -> Tensor:
    if array.dtype.name not in DTYPES:
        raise ValueError(f"{name} must hold numbers, got {array.dtype}")
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _check_dense(what: str, num_bytes: int, file_size: int) -> None:
    if num_bytes > max(DENSE * file_size, SMALL):
        raise ValueError(
            f"{what} would take {num_bytes:,} bytes, which is more than {DENSE} times its size"
        )


def _features(arrays: Arrays, file_size: int) -> Tensor | None:
    """x [N, F], dense or made dense; None without features."""
    present = [key for key in SPARSE_X if key in arrays]
    if not present:
        return _tensor("x", arrays)
    from scipy import sparse  # here, as it takes a while

    if "x" in arrays or len(present) < len(SPARSE_X):
        raise ValueError(f"features come as x or as all of {', '.join(SPARSE_X)}; got {present}")
    indptr, indices, data, sizes = (_as_tensor(key, arrays[key]).numpy() for key in SPARSE_X)
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu":
        raise ValueError(f"x_shape must hold two sizes, got {sizes.dtype} {list(sizes.shape)}")
    shape = tuple(int(size) for size in sizes)
    _check_dense(f"x of shape {list(shape)}", abs(math.prod(shape)) * data.itemsize, file_size)
    try:
        matrix = sparse.csr_matrix((data, indices, indptr), shape=shape)
        matrix.check_format(full_check=True)
        return torch.from_numpy(matrix.toarray())
    except (TypeError, IndexError) as error:
        raise ValueError(f"{', '.join(SPARSE_X)} are no CSR matrix: {error}") from error
