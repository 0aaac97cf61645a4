"""Graphs of the Open Graph Benchmark's node property tasks (optional package ``ogb``).

Letters: N nodes, E edges, F features, C labels, D edge columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullgraph.graph.whole import WholeGraph, count_classes

SPLIT_NAMES = {"train": "train", "valid": "val", "test": "test"}


def read_ogb(name: str, root: Path) -> WholeGraph:
    """The graph ``name`` (such as ogbn-arxiv) with OGB's split, downloading it into `root`.

    Raises ValueError when the package is missing, naming the command that installs it.
    """
    try:
        from ogb.nodeproppred import NodePropPredDataset
    except ImportError as error:
        raise ValueError(f"ogb:{name} needs the package ogb: pip install fullgraph[ogb]") from error
    # OGB keeps NumPy arrays in a torch file, which torch loads only when told that they are safe.
    with torch.serialization.safe_globals(_numpy_types()):
        dataset = NodePropPredDataset(name=name, root=str(root / "ogb"))
        split = dataset.get_idx_split()
    graph, labels = dataset[0]
    if "edge_index" not in graph:
        raise ValueError(f"ogb:{name} has typed nodes; PyG reads some of these graphs: pyg:OGB_MAG")
    num_nodes = int(graph["num_nodes"])
    y = _labels(labels)
    return WholeGraph(
        name=f"ogb:{name}",
        edge_index=torch.from_numpy(graph["edge_index"]),
        num_nodes=num_nodes,
        x=_tensor(graph.get("node_feat")),
        y=y,
        masks=_masks(split, num_nodes),
        edge_attr=_tensor(graph.get("edge_feat")),
        num_classes=count_classes(y),
    )


def _numpy_types() -> list[Any]:
    dtypes = {type(np.dtype(kind)) for kind in ("int64", "int32", "float32", "float64", "bool")}
    # An object's own pickle code names the function that rebuilds it, wherever NumPy keeps that.
    rebuild = [np.empty(0).__reduce__()[0], np.int64(0).__reduce__()[0]]
    return [*rebuild, np.ndarray, np.dtype, *dtypes]


def _tensor(values: NDArray | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(values)


def _labels(labels: NDArray) -> Tensor:
    """int64 [N], NaN becoming -1; or float [N, C] when a node has several labels."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        return torch.from_numpy(labels)
    flat = labels.reshape(-1)
    return torch.from_numpy(np.where(np.isnan(flat), -1, flat).astype(np.int64))


def _masks(index: dict[str, NDArray], num_nodes: int) -> dict[str, Tensor]:
    masks = {}
    for theirs, ours in SPLIT_NAMES.items():
        masks[ours] = torch.zeros(num_nodes, dtype=torch.bool)
        masks[ours][torch.as_tensor(index[theirs])] = True
    return masks
