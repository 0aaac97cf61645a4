"""Graphs with several types of nodes from PyG: a ``HeteroData``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fullgraph.graph.splits import choose_split
from fullgraph.graph.typed import Nodes, Relation, TypedGraph
from fullgraph.graph.whole import SPLITS, count_classes


def from_hetero(data: Any, split: int = 0, name: str = "graph") -> TypedGraph:
    """The graph in a PyG ``HeteroData``, types in its order: of each node type x, y, masks and
    num_nodes, of each relation edge_index, edge_weight and edge_attr.

    Raises ValueError, naming the type, when its number of nodes can only be guessed from the edges,
    and naming the relation when it has no edge_index.
    """
    return TypedGraph(
        name=name,
        nodes=tuple(_nodes(key, store, split) for key, store in data.node_items()),
        relations=tuple(_relation(key, store) for key, store in data.edge_items()),
    )


def _nodes(name: str, store: Any, split: int) -> Nodes:
    y = labels(store.get("y"))
    masks = {}
    for key in SPLITS:
        mask = store.get(f"{key}_mask")
        if mask is not None:
            masks[key] = choose_split(f"node type {name!r}: {key}_mask", mask, split)
    return Nodes(
        name=name,
        num_nodes=_count_nodes(name, store),
        x=store.get("x"),
        y=y,
        masks=masks,
        num_classes=count_classes(y),
    )


def _count_nodes(name: str, store: Any) -> int:
    if "num_nodes" in store:
        return int(store["num_nodes"])
    for key in ("x", "y", *(f"{key}_mask" for key in SPLITS)):
        if store.get(key) is not None:
            return int(store[key].shape[0])
    raise ValueError(
        f"node type {name!r} does not say how many nodes it has; set data[{name!r}].num_nodes, "
        "since nodes without edges cannot be guessed"
    )


def _relation(key: tuple[str, str, str], store: Any) -> Relation:
    if store.get("edge_index") is None:
        hint = "; it has adj_t (drop the ToSparseTensor transform)" if "adj_t" in store else ""
        raise ValueError(f"relation {key} has no edge_index{hint}")
    attr = store.get("edge_attr")
    return Relation(
        *key,
        edge_index=store["edge_index"],
        edge_weight=squeeze(store.get("edge_weight")),
        edge_attr=attr.view(-1, 1) if attr is not None and attr.dim() == 1 else attr,
    )


def labels(y: Tensor | None) -> Tensor | None:
    """Classes [K, 1] to [K]; floating labels as they are."""
    return squeeze(y) if y is not None and not y.is_floating_point() else y


def squeeze(values: Tensor | None) -> Tensor | None:
    """[K, 1] to [K]; everything else as it is."""
    if values is not None and values.dim() == 2 and values.shape[1] == 1:
        return values.view(-1)
    return values
