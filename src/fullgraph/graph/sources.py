"""Reading a graph from whatever the user has: an object, a file, a well-known name, a recipe."""

from __future__ import annotations

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
from fullgraph.graph.validate import validate
from fullgraph.graph.whole import WholeGraph, canonical, count_classes, count_relations

if TYPE_CHECKING:
    from torch_geometric.data import Data

Source = Union["WholeGraph", "Data", str, "PathLike[str]"]

DEFAULT_ROOT = Path("~/.cache/fullgraph")
ACCEPTED = """\
  a PyG Data, or a fullgraph.graph.whole.WholeGraph
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
) -> WholeGraph:
    """The graph of a source, checked, in the dtypes that `WholeGraph` promises.

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
    validate(graph, allow_nonfinite)
    graph = canonical(graph)
    if not graph.masks and graph.y is not None:
        graph = replace(graph, masks=random_split(_known(graph.y), train, val, seed))
    return graph


def _known(y: Tensor) -> Tensor:
    """bool [N]: nodes with a label."""
    return y != -1 if y.dim() == 1 else torch.ones(y.shape[0], dtype=torch.bool)


def _dispatch(source: Source, split: int, root: Path) -> WholeGraph:
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
    return _read_path(Path(text), split)


def _read_path(path: Path, split: int) -> WholeGraph:
    path = path.expanduser()
    if path.is_dir():
        if (path / "graph.json").exists():
            raise ValueError(
                f"{path} is a partitioned graph, not a whole one: open it with "
                "PartitionedFolder.open"
            )
        raise ValueError(f"{path} is a folder.\n{_forms()}")
    if not path.exists():
        raise ValueError(f"{str(path)!r} is neither a file nor a known name.\n{_forms()}")
    if path.suffix != ".npz":
        raise ValueError(f"{path} does not end in .npz.\n{_forms()}")
    return read_npz(path, split)


def _forms() -> str:
    return f"A graph can be given as\n{ACCEPTED}"
