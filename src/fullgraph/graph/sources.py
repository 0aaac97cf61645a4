"""Reading a graph from whatever the user has: an object, a file, a well-known name, a recipe."""

from __future__ import annotations

import os
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Union

import torch
from torch import Tensor

from fullgraph.graph.from_npz import read_npz
from fullgraph.graph.from_ogb import read_ogb
from fullgraph.graph.from_pyg import from_data, read_pyg
from fullgraph.graph.planted import generate, parse_planted
from fullgraph.graph.splits import random_split
from fullgraph.graph.typed import Nodes, TypedGraph, canonical_typed
from fullgraph.graph.validate import validate, validate_typed
from fullgraph.graph.whole import WholeGraph, canonical, count_classes, count_relations

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

Source = Union["WholeGraph", "TypedGraph", "Data", "HeteroData", str, "PathLike[str]"]

DEFAULT_ROOT = Path("~/.cache/fullgraph")
ACCEPTED = """\
  a PyG Data or HeteroData, or a fullgraph.graph.whole.WholeGraph
  path/to/graph.npz                      plain arrays (edge_index, num_nodes, x, y, ...)
  pyg:Cora, pyg:Reddit, pyg:Coauthor/CS  a dataset of PyG, downloaded by PyG
  ogb:ogbn-arxiv                         a dataset of OGB (pip install fullgraph[ogb])
  planted:nodes=100000,edges=1000000     a generated graph"""


def read(
    source: Source,
    *,
    split: int = 0,
    seed: int = 0,
    train: float = 0.6,
    val: float = 0.2,
    allow_nonfinite: bool = False,
    root: str | PathLike[str] = DEFAULT_ROOT,
) -> WholeGraph | TypedGraph:
    """The graph of a source, checked, in the dtypes that `WholeGraph` promises.

    A HeteroData, and a dataset that is one, is read into a `TypedGraph`.

    Args:
        source: one of the forms listed in `ACCEPTED`.
        split: the column, where a source has several splits (masks of shape [N, splits]).
        seed, train, val: where a source has labels but no split, a random one is made over the
            labelled nodes: these fractions for training and validation, the rest for testing.
        allow_nonfinite: accept NaN and infinity in features and edge data.
        root: where downloaded datasets are kept.

    Raises:
        ValueError: the source is not understood (lists the accepted forms), cannot be read, or
            fails `validate`.
    """
    graph = _dispatch(source, split, Path(root).expanduser())
    try:
        graph = _checked(graph, allow_nonfinite)
    except ValueError as error:
        if isinstance(source, (str, PathLike)):
            raise ValueError(f"{source}: {error}") from error
        raise
    if isinstance(graph, TypedGraph):
        if not any(nodes.masks for nodes in graph.nodes):
            split_nodes = (_with_split(nodes, train, val, seed) for nodes in graph.nodes)
            graph = replace(graph, nodes=tuple(split_nodes))
        return graph
    if not graph.masks and graph.y is not None:
        graph = replace(graph, masks=random_split(_known(graph.y), train, val, seed))
    return graph


def _checked(graph: WholeGraph | TypedGraph, allow_nonfinite: bool) -> WholeGraph | TypedGraph:
    if isinstance(graph, TypedGraph):
        validate_typed(graph, allow_nonfinite)
        return canonical_typed(graph)
    validate(graph, allow_nonfinite)
    return canonical(graph)


def _with_split(nodes: Nodes, train: float, val: float, seed: int) -> Nodes:
    if nodes.y is None:
        return nodes
    return replace(nodes, masks=random_split(_known(nodes.y), train, val, seed))


def _known(y: Tensor) -> Tensor:
    """bool [N]: nodes with a label."""
    return y != -1 if y.dim() == 1 else torch.ones(y.shape[0], dtype=torch.bool)


def _dispatch(source: Source, split: int, root: Path) -> WholeGraph | TypedGraph:
    if isinstance(source, TypedGraph):
        counted = (
            replace(nodes, num_classes=nodes.num_classes or count_classes(nodes.y))
            for nodes in source.nodes
        )
        return replace(source, nodes=tuple(counted))
    if isinstance(source, WholeGraph):
        classes = source.num_classes or count_classes(source.y)
        relations = source.num_relations or count_relations(source.edge_type)
        return replace(source, num_classes=classes, num_relations=relations)
    if not isinstance(source, (str, PathLike)):
        if type(source).__module__.startswith("torch_geometric."):
            return from_data(source, split)
        raise ValueError(f"cannot read a graph from a {type(source).__name__}.\n{_forms()}")
    text = str(source)
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "pyg":
        return read_pyg(rest, root, split)
    if colon and scheme == "ogb":
        return read_ogb(rest, root)
    if colon and scheme == "planted":
        return generate(parse_planted(text))
    return read_npz(_npz_file(Path(text)), split)


def check_source(text: str) -> None:
    """Raises ValueError for a name that `read` does not know, or a file that is not there; reads
    nothing."""
    scheme = text.partition(":")[0]
    if scheme == "planted":
        parse_planted(text)
    elif scheme not in ("pyg", "ogb"):
        _npz_file(Path(text))


def _npz_file(path: Path) -> Path:
    # Those of os.path say no to what can be no name, where pathlib's raise.
    path = Path(os.path.expanduser(path)) if "\0" not in str(path) else path
    if os.path.isdir(path):
        if (path / "graph.json").exists():
            raise ValueError(
                f"{path} is a partitioned graph, not a whole one: open it with "
                "PartitionedFolder.open"
            )
        raise ValueError(f"{path} is a folder.\n{_forms()}")
    if not os.path.isfile(path):
        raise ValueError(f"{str(path)!r} is neither a file nor a known name.\n{_forms()}")
    if path.suffix != ".npz":
        raise ValueError(f"{path} does not end in .npz.\n{_forms()}")
    return path


def _forms() -> str:
    return f"A graph can be given as\n{ACCEPTED}"
