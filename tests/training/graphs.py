"""Graphs that the tests of training share."""

from __future__ import annotations

from functools import cache

import torch
from torch_geometric.data import Data

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.graph.partition import partition
from fullgraph.graph.sources import read
from fullgraph.graph.whole import WholeGraph
from tests.data import shared_data


@cache
def cora() -> WholeGraph:
    return read(shared_data("cora"))


def small(num_nodes: int = 40, classes: int = 3, **changes: object) -> Data:
    """Random, with labels that its features tell; every split has nodes."""
    g = torch.Generator().manual_seed(5)
    y = torch.randint(classes, (num_nodes,), generator=g)
    which = torch.arange(num_nodes) % 3
    data = Data(
        x=torch.randn(num_nodes, 4, generator=g) + y.unsqueeze(1),
        y=y,
        edge_index=torch.randint(num_nodes, (2, 4 * num_nodes), generator=g),
        num_nodes=num_nodes,
        train_mask=which == 0,
        val_mask=which == 1,
        test_mask=which == 2,
    )
    for name, value in changes.items():
        data[name] = value
    return data


def share(source: object, group: Group, parts: int | None = None) -> DistributedGraph:
    parts = group.size if parts is None else parts
    whole = partition(source, parts, method="contiguous")  # type: ignore[arg-type]
    return DistributedGraph.build(whole, group)
