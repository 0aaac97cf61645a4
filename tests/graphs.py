"""Graphs for the contract test: small, ugly, and one real."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch_geometric.data import Data

from fullgraph.graph.partition import PartitionedInMemory, PartitionedVertexCut
from fullgraph.graph.sources import read
from tests.data import shared_data


def _data(
    edge_index: Tensor, num_nodes: int, *, features: int = 6, classes: int = 3, seed: int = 0,
    train: Tensor | None = None,
) -> Data:  # fmt: skip
    g = torch.Generator().manual_seed(seed)
    if train is None:
        train = torch.rand(num_nodes, generator=g, dtype=torch.float64) < 0.5
        train[0] = True
    return Data(
        x=torch.randn(num_nodes, features, generator=g, dtype=torch.float64),
        y=torch.randint(classes, (num_nodes,), generator=g),
        edge_index=edge_index,
        num_nodes=num_nodes,
        train_mask=train,
        val_mask=~train,
        test_mask=torch.zeros(num_nodes, dtype=torch.bool),
        edge_weight=torch.rand(edge_index.shape[1], generator=g, dtype=torch.float64) + 0.1,
    )


def multigraph() -> Data:
    """Directed, weighted, with multi-edges, self-loops (some doubled) and isolated nodes."""
    g = torch.Generator().manual_seed(7)
    edges = torch.randint(45, (2, 300), generator=g)  # nodes 45 .. 49 are isolated
    loops = torch.tensor([[3, 3, 8, 20], [3, 3, 8, 20]])
    return _data(torch.cat([edges, edges[:, :40], loops], dim=1), 50)


def tiny() -> Data:
    """Fewer nodes than ranks, most of the time."""
    return _data(torch.tensor([[0, 1, 1], [1, 2, 2]]), 3, train=torch.tensor([True, False, False]))


def no_edges() -> Data:
    return _data(torch.empty(2, 0, dtype=torch.int64), 7)


def one_source_part() -> Data:
    """All edges start in the last nodes; only the first are labelled."""
    g = torch.Generator().manual_seed(3)
    edges = torch.stack([
        torch.randint(15, 20, (60,), generator=g), torch.randint(20, (60,), generator=g)
    ])  # fmt: skip
    return _data(edges, 20, train=torch.arange(20) < 4)


def citeseer() -> Data:
    """Real, with isolated nodes; its features projected to a few columns to keep tests quick."""
    data = read(shared_data("citeseer")).to_pyg()
    g = torch.Generator().manual_seed(1)
    project = torch.randn(data.x.shape[1], 6, generator=g, dtype=torch.float64)
    # Rounded, as the last bits of a product may differ from process to process.
    data.x = (data.x.double() @ project / 6 * 2**20).round() / 2**20
    data.edge_weight = torch.rand(data.edge_index.shape[1], generator=g, dtype=torch.float64) + 0.1
    return data


GRAPHS = {
    "multigraph": multigraph,
    "tiny": tiny,
    "no_edges": no_edges,
    "one_source_part": one_source_part,
    "citeseer": citeseer,
}


@cache
def _made(name: str) -> Data:
    return GRAPHS[name]()


def named(name: str) -> Data:
    """A copy of one of GRAPHS, so that what one test writes to it no other sees."""
    return _made(name).clone()


@cache
def named_parts(name: str, num_parts: int, empty_part: bool) -> PartitionedInMemory:
    return partitioned(named(name), num_parts, empty_part)


@cache
def named_cut(name: str, num_parts: int, empty_part: bool) -> PartitionedVertexCut:
    return cut(named(name), num_parts, empty_part)


def cut(data: Data, num_parts: int, empty_part: bool = False) -> PartitionedVertexCut:
    """Nodes as in `partitioned`, edges anywhere, but for loops, which are with their node; part 1,
    where it is empty, has edges all the same."""
    by_node = partitioned(data, num_parts, empty_part)
    src, dst = by_node.graph.edge_index
    anywhere = torch.arange(src.numel(), dtype=torch.int32) * 7 % 11 % num_parts
    edge_part = torch.where(src == dst, by_node.assignment[dst], anywhere)
    return PartitionedVertexCut(
        by_node.graph, by_node.assignment, edge_part, num_parts, by_node.cluster
    )


def partitioned(data: Data, num_parts: int, empty_part: bool = False) -> PartitionedInMemory:
    """By node id modulo parts: the worst locality there is; optionally part 1 left empty. With an
    even number of parts, nodes of a part are not in the order of their ids."""
    whole = read(data, allow_nonfinite=True)
    part = torch.arange(whole.num_nodes, dtype=torch.int32) % num_parts
    if empty_part and num_parts > 1:
        part[part == 1] = 0
    return PartitionedInMemory(whole, part, num_parts, shuffled(whole.num_nodes, num_parts))


def shuffled(num_nodes: int, num_parts: int) -> Tensor | None:
    """A cluster for each node, so that no part is sorted; None with an odd number of parts."""
    if num_parts % 2:
        return None
    return torch.arange(num_nodes, dtype=torch.int32) * 11 % 7
