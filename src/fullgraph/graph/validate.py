"""Checks of a whole graph; every message names the array, the offending value and its position.

Letters: N nodes, E edges, F features, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fullgraph.graph.typed import Nodes, TypedGraph
from fullgraph.graph.whole import SPLITS, WholeGraph

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
CHUNK = 1 << 24  # values looked at at once, so that a check needs little memory


def validate(graph: WholeGraph, allow_nonfinite: bool = False) -> None:
    """Raise ValueError, saying what is wrong and where, unless `graph` can be trained on.

    Any integer width is accepted for ids and labels (`canonical` widens or narrows them).
    `allow_nonfinite` permits NaN and infinity in features, edge weights and edge attributes.
    """
    _check_nodes(graph.num_nodes)
    _check_edge_index(graph.edge_index, (graph.num_nodes, graph.num_nodes))
    _check_floats("x", graph.x, (graph.num_nodes, None), allow_nonfinite)
    _check_floats("edge_weight", graph.edge_weight, (graph.num_edges,), allow_nonfinite)
    _check_floats("edge_attr", graph.edge_attr, (graph.num_edges, None), allow_nonfinite)
    _check_types(graph)
    validate_labels(graph)
    if "train" in graph.masks and not bool(graph.masks["train"].any()):
        raise ValueError("train_mask has no True value: there is no node to train on")


def validate_typed(graph: TypedGraph, allow_nonfinite: bool = False) -> None:
    """The same for a graph with several types of nodes; messages start with the type or relation.

    A type may have no nodes, and a relation no edges. Where types have training masks, one of them
    must have a node in it.
    """
    _check_names(graph)
    for nodes in graph.nodes:
        with _of(f"node type {nodes.name!r}"):
            _check_nodes(nodes.num_nodes, at_least=0)
            _check_floats("x", nodes.x, (nodes.num_nodes, None), allow_nonfinite)
            validate_labels(nodes)
    if graph.num_nodes == 0:
        raise ValueError("no node type has any nodes: a graph needs at least one node")
    training = [nodes.masks["train"] for nodes in graph.nodes if "train" in nodes.masks]
    if training and not any(bool(mask.any()) for mask in training):
        raise ValueError("train_mask has no True value in any node type: no node to train on")
    counts = {nodes.name: nodes.num_nodes for nodes in graph.nodes}
    for relation in graph.relations:
        with _of(f"relation {relation.key}"):
            ends = (relation.source, relation.target)
            for name in ends:
                if name not in counts:
                    raise ValueError(f"there is no node type {name!r}; there are {[*counts]}")
            _check_edge_index(
                relation.edge_index, [counts[name] for name in ends], [f" of {n!r}" for n in ends]
            )
            num_edges = relation.num_edges
            _check_floats("edge_weight", relation.edge_weight, (num_edges,), allow_nonfinite)
            _check_floats("edge_attr", relation.edge_attr, (num_edges, None), allow_nonfinite)


def validate_labels(graph: WholeGraph | Nodes) -> None:
    """Of labels and masks alone, which may be those of no node or of none in the training mask."""
    _check_labels(graph)
    _check_masks(graph)


@contextmanager
def _of(what: str) -> Iterator[None]:
    """Say in a ValueError of the block which type it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _check_names(graph: TypedGraph) -> None:
    if not graph.nodes:
        raise ValueError("there are no node types: a graph needs at least one")
    names = [nodes.name for nodes in graph.nodes]
    keys = [relation.key for relation in graph.relations]
    for what, listed in (("node type", names), ("relation", keys)):
        twice = [name for name, count in Counter[object](listed).items() if count > 1]
        if twice:
            raise ValueError(f"{what} {twice[0]!r} is there twice")
    for text in (*names, *(text for key in keys for text in key)):
        if not isinstance(text, str):
            raise ValueError(f"types are named by texts, got {text!r}")


def _check_nodes(num_nodes: int, at_least: int = 1) -> None:
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, int):
        raise ValueError(f"num_nodes must be a whole number, got {num_nodes!r}")
    if num_nodes < at_least:
        why = "a graph needs at least one node" if at_least else "it cannot be negative"
        raise ValueError(f"num_nodes is {num_nodes}: {why}")


def _check_edge_index(edges: Tensor, counts: Sequence[int], of: Sequence[str] = ("", "")) -> None:
    """counts, of: how many nodes the sources and the destinations are ids of, and whose."""
    if not isinstance(edges, Tensor):
        raise ValueError(f"edge_index must be a tensor, got {type(edges).__name__}")
    if edges.dim() != 2 or edges.shape[0] != 2:
        hint = "; it looks transposed" if edges.dim() == 2 and edges.shape[1] == 2 else ""
        raise ValueError(
            f"edge_index must have shape [2, E] (sources, then destinations), "
            f"got {list(edges.shape)}{hint}"
        )
    if edges.dtype not in INTEGERS:
        raise ValueError(f"edge_index must hold integer node ids, got {edges.dtype}{_first(edges)}")
    for row in range(2):
        ids = edges[row]
        if ids.numel() == 0:
            continue
        at, why = -1, ""
        if int(ids.min()) < 0:
            at, why = _find(ids, lambda part: part < 0), "ids start at 0"
        elif int(ids.max()) >= counts[row]:
            count = counts[row]
            at = _find(ids, lambda part: part >= count)  # noqa: B023
            why = f"ids must be below num_nodes = {counts[row]}{of[row]}"
        if why:
            raise ValueError(f"edge_index[{row}, {at}] is {int(ids[at])}: {why}")


def _first(values: Tensor) -> str:
    if values.numel() == 0:
        return ""
    at = ", ".join("0" for _ in values.shape)
    return f" (first value, at [{at}]: {values.flatten()[0].item()})"


def _find(values: Tensor, bad: Callable[[Tensor], Tensor]) -> int:
    """Flat position of the first value that `bad(chunk)` marks, -1 when there is none."""
    flat = values.reshape(-1)
    for start in range(0, flat.numel(), CHUNK):
        marked = bad(flat[start : start + CHUNK])
        if bool(marked.any()):
            return start + int(marked.to(torch.uint8).argmax())
    return -1


def _where(name: str, values: Tensor, at: int) -> str:
    """`name[i, j] is v` for the flat position `at`."""
    place = []
    for size in reversed(values.shape):
        at, index = divmod(at, int(size))
        place.append(index)
    place.reverse()
    return f"{name}[{', '.join(map(str, place))}] is {values[tuple(place)].item()}"


def _check_shape(name: str, values: Tensor, shape: tuple[int | None, ...]) -> None:
    if not isinstance(values, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(values).__name__}")
    fits = values.dim() == len(shape) and all(
        want is None or got == want for got, want in zip(values.shape, shape)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(values.shape)}")


def _check_floats(
    name: str, values: Tensor | None, shape: tuple[int | None, ...], allow_nonfinite: bool
) -> None:
    if values is None:
        return
    _check_shape(name, values, shape)
    if values.dtype not in (*FLOATS, *INTEGERS, torch.bool):
        raise ValueError(f"{name} must hold real numbers, got {values.dtype}")
    if values.is_floating_point() and not allow_nonfinite:
        at = _find(values, lambda part: ~torch.isfinite(part))
        if at >= 0:
            raise ValueError(
                f"{_where(name, values, at)}: not a finite number (allow_nonfinite=True permits it)"
            )


def _check_types(graph: WholeGraph) -> None:
    types, relations = graph.edge_type, graph.num_relations
    if types is None:
        if relations:
            raise ValueError(f"num_relations is {relations}, but there is no edge_type")
        return
    _check_shape("edge_type", types, (graph.num_edges,))
    if types.dtype not in INTEGERS:
        raise ValueError(f"edge_type must hold integers, got {types.dtype}{_first(types)}")
    if types.numel() == 0:
        return
    if int(types.min()) < 0:
        at = _find(types, lambda part: part < 0)
        raise ValueError(f"{_where('edge_type', types, at)}: types start at 0")
    if int(types.max()) >= relations:
        at = _find(types, lambda part: part >= relations)
        raise ValueError(f"{_where('edge_type', types, at)}: not below num_relations = {relations}")


def _check_labels(graph: WholeGraph | Nodes) -> None:
    y = graph.y
    if y is None:
        return
    if isinstance(y, Tensor) and y.dim() == 2:
        _check_floats("y", y, (graph.num_nodes, graph.num_classes), allow_nonfinite=False)
        return
    _check_shape("y", y, (graph.num_nodes,))
    if y.dtype not in INTEGERS:
        raise ValueError(f"y of shape [N] must hold integer classes, got {y.dtype}{_first(y)}")
    if y.numel() == 0:
        return
    if int(y.min()) < -1:
        at = _find(y, lambda part: part < -1)
        raise ValueError(f"{_where('y', y, at)}: classes start at 0, and -1 means unknown")
    if int(y.max()) >= graph.num_classes:
        at = _find(y, lambda part: part >= graph.num_classes)
        raise ValueError(f"{_where('y', y, at)}: not below num_classes = {graph.num_classes}")


def _check_masks(graph: WholeGraph | Nodes) -> None:
    for key, mask in graph.masks.items():
        name = f"{key}_mask"
        if key not in SPLITS:
            raise ValueError(f"masks has {key!r}: the names are {', '.join(SPLITS)}")
        _check_shape(name, mask, (graph.num_nodes,))
        if mask.dtype != torch.bool:
            raise ValueError(f"{name} must be bool, got {mask.dtype}{_first(mask)}")
        if graph.y is not None and graph.y.dim() == 1:
            unknown = mask & (graph.y == -1)
            if bool(unknown.any()):
                at = _find(unknown, lambda part: part)
                raise ValueError(f"{name}[{at}] is True, but y[{at}] is -1 (unknown)")
    _check_disjoint(graph.masks)


def _check_disjoint(masks: dict[str, Tensor]) -> None:
    names = sorted(masks, key=SPLITS.index)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            both = masks[one] & masks[other]
            if bool(both.any()):
                at = _find(both, lambda part: part)
                raise ValueError(
                    f"{one}_mask[{at}] and {other}_mask[{at}] are both True: "
                    f"the sets overlap in {int(both.sum())} node(s)"
                )
