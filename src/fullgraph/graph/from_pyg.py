"""Graphs from PyG: a ``Data`` in memory, or one of PyG's own datasets by name.

Letters: N nodes, E edges, C classes, D edge columns.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from fullgraph.graph.from_hetero import from_hetero, labels, squeeze
from fullgraph.graph.splits import choose_split
from fullgraph.graph.typed import TypedGraph
from fullgraph.graph.whole import SPLITS, WholeGraph, count_classes, count_relations

# Dataset classes that take a name, and the names by which a graph may be asked for alone.
SHORT_NAMES = {
    "Planetoid": ("Cora", "CiteSeer", "PubMed"),
    "Amazon": ("Computers", "Photo"),
    "Coauthor": ("CS", "Physics"),
    "HeterophilousGraphDataset": (
        *("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"),
    ),
}


def from_data(data: Any, split: int = 0, name: str = "graph") -> WholeGraph | TypedGraph:
    """The graph in a PyG ``Data``: edge_index, x, y, masks, edge_weight, edge_attr, edge_type,
    num_nodes; ``num_relations`` where it is set, otherwise the largest edge type + 1. Or the
    graph in a ``HeteroData``; see `from_hetero`.

    Raises ValueError for a Data with ``node_type``, and when the number of nodes can only be
    guessed from the edges.
    """
    from torch_geometric.data import Data, HeteroData

    if isinstance(data, HeteroData):
        return from_hetero(data, split, name)
    if not isinstance(data, Data):
        raise ValueError(f"expected a PyG Data, got {type(data).__name__}")
    if data.get("node_type") is not None:
        raise ValueError(
            "this Data has node_type: a graph with typed nodes is given as a HeteroData "
            "(Data.to_heterogeneous() makes one); `del data.node_type` treats all nodes alike"
        )
    if data.get("edge_index") is None:
        hint = "; it has adj_t (drop the ToSparseTensor transform)" if "adj_t" in data else ""
        raise ValueError(f"this Data has no edge_index{hint}")
    masks = {
        key: choose_split(f"{key}_mask", data[f"{key}_mask"], split)
        for key in SPLITS
        if data.get(f"{key}_mask") is not None
    }
    weight, attr = data.get("edge_weight"), data.get("edge_attr")
    y, edge_type = labels(data.get("y")), squeeze(data.get("edge_type"))
    relations = data.get("num_relations") or count_relations(edge_type)
    return WholeGraph(
        name=name,
        edge_index=data.edge_index,
        num_nodes=_count_nodes(data),
        x=data.get("x"),
        y=y,
        masks=masks,
        edge_weight=squeeze(weight),
        edge_attr=attr.view(-1, 1) if attr is not None and attr.dim() == 1 else attr,
        num_classes=count_classes(y),
        edge_type=edge_type,
        num_relations=int(relations),
    )


def _count_nodes(data: Any) -> int:
    if "num_nodes" in data:
        return int(data.num_nodes)
    for key in ("x", "y", *(f"{key}_mask" for key in SPLITS)):
        if data.get(key) is not None:
            return int(data[key].shape[0])
    raise ValueError(
        "this Data does not say how many nodes it has (only edges); set data.num_nodes, "
        "since nodes without edges cannot be guessed"
    )


def read_pyg(name: str, root: Path, split: int = 0) -> WholeGraph | TypedGraph:
    """The graph that one of PyG's dataset classes loads into `root`, downloading it if need be.

    `name` is a well-known graph (``Cora``), a class of torch_geometric.datasets (``Reddit``), or
    class and graph (``Coauthor/CS``). Raises ValueError for anything else, and for datasets of
    several graphs.
    """
    from torch_geometric import datasets

    kind, graph = _resolve(name)
    if graph.startswith(".") or set(graph) & {"/", "\\"}:
        raise ValueError(f"pyg:{name}: {graph!r} would be a path, not the name of a graph")
    loader = getattr(datasets, kind, None)
    if not isinstance(loader, type):
        raise ValueError(_unknown(name))
    options = {"root": str(root / "pyg" / kind), "name": graph}
    takes = inspect.signature(loader.__init__).parameters  # type: ignore[misc]
    if ("name" in takes) != bool(graph):
        wanted = "CLASS/NAME" if "name" in takes else "CLASS"
        raise ValueError(
            f"pyg:{name}: torch_geometric.datasets.{kind} is written pyg:{wanted}, "
            f"with CLASS {kind}"
        )
    try:
        dataset: Any = loader(**{key: value for key, value in options.items() if key in takes})
    except (TypeError, AssertionError, KeyError) as error:
        raise ValueError(
            f"pyg:{name}: torch_geometric.datasets.{kind} has no such graph, or needs options "
            f"that cannot be given here ({type(error).__name__}: {error})"
        ) from error
    if len(dataset) != 1:
        raise ValueError(f"pyg:{name} is {len(dataset)} graphs; fullgraph trains on one graph")
    return from_data(dataset[0], split, name=f"pyg:{name}")


def _resolve(name: str) -> tuple[str, str]:
    """Class and graph name; the second is empty for a class that takes only a root."""
    kind, _, graph = name.partition("/")
    if graph:
        return kind, graph
    for known, graphs in SHORT_NAMES.items():
        for candidate in graphs:
            if candidate.lower() == name.lower():
                return known, candidate
    return name, ""


def _unknown(name: str) -> str:
    short = ", ".join(graph for graphs in SHORT_NAMES.values() for graph in graphs)
    return (
        f"pyg:{name}: no such dataset. Write one of {short}; a class of torch_geometric.datasets "
        "such as pyg:Reddit or pyg:Flickr; or class and graph, such as pyg:Coauthor/CS"
    )
