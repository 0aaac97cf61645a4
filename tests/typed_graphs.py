"""A small graph with several types of nodes that has everything that could go wrong."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from fullgraph.graph.partition import PartitionedTyped
from fullgraph.graph.sources import read

ODD = '../venue "π"/.2'  # a name that must not become part of a file name
NO_EDGES = ("author", "knows", "author")
ONE_PART = ("tag", "on", "paper")


def typed() -> HeteroData:
    """Types of different widths, without features (tag), of one node (ODD), of none (nobody).

    Relations with weights, attributes, multi-edges, loops, no edges; `ONE_PART`'s edges end in
    nodes of part 0 only, where nodes go to parts by id modulo up to 4 parts.
    """
    g = torch.Generator().manual_seed(11)
    sizes = {"paper": 40, "author": 23, "tag": 12, ODD: 1, "nobody": 0}
    widths = {"paper": 5, "author": 3, ODD: 2, "nobody": 4}
    data = HeteroData()
    for name, size in sizes.items():
        data[name].num_nodes = size
        if name in widths:
            data[name].x = torch.randn(size, widths[name], generator=g, dtype=torch.float64)
    data["paper"].y = torch.randint(3, (40,), generator=g)
    train = torch.rand(40, generator=g) < 0.5
    data["paper"].train_mask, data["paper"].val_mask = train, ~train

    def edges(source: str, target: str, count: int) -> Tensor:
        ends = (torch.randint(sizes[name], (count,), generator=g) for name in (source, target))
        return torch.stack([*ends])

    writes = edges("author", "paper", 100)
    writes = torch.cat([writes, writes[:, :20]], dim=1)
    loops = torch.tensor([[3, 3, 8, 20], [3, 3, 8, 20]])
    on = edges("tag", "paper", 30)
    on[1] = on[1] // 12 * 12
    index = {
        ("author", "writes", "paper"): writes,
        ("paper", "cites", "paper"): torch.cat([edges("paper", "paper", 90), loops], dim=1),
        ("paper", "rev_writes", "author"): writes.flip(0),
        ONE_PART: on,
        NO_EDGES: torch.empty(2, 0, dtype=torch.int64),
        ("paper", "in", ODD): edges("paper", ODD, 35),
        (ODD, "has/..", "tag"): edges(ODD, "tag", 7),
    }
    for key, edge_index in index.items():
        data[key].edge_index = edge_index
    for key in (("author", "writes", "paper"), ("paper", "in", ODD), NO_EDGES):
        count = index[key].shape[1]
        data[key].edge_weight = torch.rand(count, generator=g, dtype=torch.float64) + 0.1
    for key, width in ((("paper", "cites", "paper"), 2), ((ODD, "has/..", "tag"), 3)):
        data[key].edge_attr = torch.randn(
            index[key].shape[1], width, generator=g, dtype=torch.float64
        )
    return data


@cache
def typed_data() -> HeteroData:
    """`typed`, kept; not to be written to."""
    return typed()


@cache
def typed_parts(num_parts: int, empty_part: bool = False) -> PartitionedTyped:
    """By id within the type modulo parts; optionally part 1 left empty."""
    whole = read(typed())
    part = torch.cat([torch.arange(n.num_nodes, dtype=torch.int32) for n in whole.nodes])
    part %= num_parts
    if empty_part and num_parts > 1:
        part[part == 1] = 0
    return PartitionedTyped(whole, part, num_parts)
