"""Edges turned round: rows, edge data and exchanges are those of the flipped edge_index."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.ops.aggregate import aggregate
from tests.graphs import named, named_parts
from tests.ranks import run_ranks

GRAPHS = ["multigraph", "tiny", "no_edges", "one_source_part"]


def build(group: Group, name: str) -> DistributedGraph:
    return DistributedGraph.build(named_parts(name, 4, False), group, "sequential", 100)


def sums(x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    source, target = edge_index
    return torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None])


def check(group: Group, name: str) -> None:
    data, graph = named(name), build(group, name)
    turned = graph.flip([0])
    assert turned is graph.reversed()[0] is graph.flip(0)
    move = graph.reversed()[1]
    flipped = data.edge_index.flip([0])
    # Every edge is at the owner of what was its source, with its data, once.
    assert torch.equal(turned.node_id[turned.edge_target.long()], flipped[1, turned.edge_id])
    assert torch.equal(turned.edge_weight, data.edge_weight[turned.edge_id])
    count = torch.zeros(flipped.shape[1] + 1, dtype=torch.int64)
    count[turned.edge_id] += 1
    assert bool((group.all_reduce(count, "edges")[:-1] == 1).all())
    degrees = torch.bincount(data.edge_index[0], minlength=data.num_nodes)
    assert torch.equal(turned.in_degree, degrees[graph.node_id])
    # Values go there and come back, whatever they are.
    for values in (graph.edge_id, graph.edge_weight > 0.5, graph.edge_weight.view(-1, 1, 1)):
        assert torch.equal(move.back(move.there(values)), values)
    assert torch.equal(move.there(graph.edge_id), turned.edge_id)
    out = aggregate(turned, data.x[graph.node_id], "sum", weight=turned.edge_weight)
    expected = sums(data.x, flipped, data.edge_weight)[graph.node_id]
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    twice = turned.reversed()[0]
    out = aggregate(twice, data.x[graph.node_id], "sum", weight=twice.edge_weight)
    expected = sums(data.x, data.edge_index, data.edge_weight)[graph.node_id]
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_is_the_flipped_graph(name: str, size: int) -> None:
    run_ranks(check, size, name)


def test_only_rows_can_be_flipped() -> None:
    with pytest.raises(ValueError, match=r"only flip\(\[0\]\)"):
        build(Group(), "tiny").flip([1])


def test_a_layer_for_seeds_cannot_be_turned_round() -> None:
    graph = build(Group(), "multigraph")
    layer = next(iter(graph.for_seeds(graph.train_mask, 1)))
    with pytest.raises(ValueError, match="for_seeds"):
        layer.reversed()


def with_loops(group: Group) -> None:
    data, graph = named("multigraph"), build(group, "multigraph").with_self_loops()
    turned = graph.reversed()[0]
    assert torch.equal(graph.reversed()[1].there(graph.edge_id), turned.edge_id)
    ours = turned.edge_id >= data.edge_index.shape[1]  # of the loops that were added
    nodes = turned.edge_id[ours] - data.edge_index.shape[1]
    assert torch.equal(turned.node_id[turned.edge_target[ours].long()], nodes)


def test_with_self_loops() -> None:
    for size in (1, 3):
        run_ranks(with_loops, size)
