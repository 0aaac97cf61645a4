"""Lists of edges: every edge is in one piece, with its source, its target and its place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.ops.edge_list import EdgeList, list_of_size
from fullgraph.ops.edge_move import turned
from fullgraph.ops.halo import for_each_source
from fullgraph.ops.sources import gather_from_sources, sum_to_sources
from tests.graphs import named, named_parts
from tests.ranks import run_ranks


def build(group: Group, name: str) -> DistributedGraph:
    return DistributedGraph.build(named_parts(name, 4, False), group, "sequential", 50)


def lists(graph: DistributedGraph) -> dict[str, EdgeList]:
    plain = EdgeList(graph)
    every, looped = torch.arange(plain.num_edges), plain.with_loops()
    return {
        "plain": plain,
        "masked": plain.select(every % 3 != 0),
        "backwards": plain.select(every.flip(0)),
        "looped": looped,
        "loops replaced": plain.select(~plain.is_loop).with_loops(),
        "some loops": looped.select(torch.arange(looped.num_edges) % 2 == 0),
        "empty": plain.select(every < 0),
    }


def ends(name: str, edges: EdgeList) -> tuple[Tensor, Tensor]:
    """Original ids of sources and targets, by the edges' ids."""
    data = named(name)
    loops = torch.arange(data.num_nodes).expand(2, -1)
    source, target = torch.cat([data.edge_index, loops], 1)[:, edges.edge_id]
    return source, target


def check(group: Group, name: str) -> None:
    graph = build(group, name)
    for which, edges in lists(graph).items():
        source, target = ends(name, edges)
        assert torch.equal(graph.node_id[edges.target], target), which
        assert torch.equal(edges.is_loop, source == target), which
        met = torch.zeros(edges.num_edges, dtype=torch.int64)

        def use(block, chunk, rows, edges=edges, met=met, which=which):
            walk = [edges.pieces(block, chunk, 4)]
            if block is graph.edges.blocks[group.rank]:
                walk.append(edges.added_loops(3))
            for piece in (piece for pieces in walk for piece in pieces):
                source, target = ends(name, edges)
                assert 0 < piece.position.numel() <= 4, which
                met[piece.position] += 1
                assert torch.equal(rows[piece.source, 0], source[piece.position]), which
                assert torch.equal(graph.node_id[piece.target], target[piece.position]), which
                assert piece.rows.unique().numel() == piece.rows.numel(), which

        for_each_source(graph, graph.node_id.view(-1, 1), use, layer="-")
        assert bool((met == 1).all()), which
        # Values of sources are looked up, and summed, by the same edges.
        assert torch.equal(gather_from_sources(edges, graph.node_id), source), which
        ones = torch.ones(edges.num_edges, dtype=torch.int64)
        out_degree = torch.bincount(source, minlength=named(name).num_nodes)
        out_degree = group.all_reduce(out_degree, "degrees")
        assert torch.equal(sum_to_sources(edges, ones), out_degree[graph.node_id]), which
        assert edges.total_edges == int(out_degree.sum()), which
        # Turned round, and values there and back.
        other, there, back = turned(edges)
        assert torch.equal(there(edges.edge_id), other.edge_id), which
        assert torch.equal(back(other.edge_id), edges.edge_id), which
        source, target = ends(name, other)
        assert torch.equal(graph.node_id[other.target], source), which
        assert torch.equal(gather_from_sources(other, graph.node_id), target), which


@pytest.mark.parametrize("name", ["multigraph", "tiny", "no_edges"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_edge_is_met_once(name: str, size: int) -> None:
    run_ranks(check, size, name)


def test_an_edge_that_is_named_twice_is_refused() -> None:
    graph = build(Group(), "multigraph")
    twice = EdgeList(graph).select(torch.tensor([0, 1, 0]))
    with pytest.raises(NotImplementedError, match="name an edge twice"):
        _ = twice.positions


def test_lists_are_found_by_their_size_while_they_are_used() -> None:
    graph = build(Group(), "multigraph")
    some = EdgeList(graph).select(torch.arange(5))
    assert list_of_size(graph, 5) is some
    del some
    assert list_of_size(graph, 5) is None


def gradients(group: Group) -> None:
    """Of values looked up and of sums by sources: each is the other's adjoint."""
    graph = build(group, "multigraph")
    for edges in lists(graph).values():
        g = torch.Generator().manual_seed(group.rank)
        rows = torch.randn(graph.num_owned, 2, generator=g, dtype=torch.float64).requires_grad_()
        values = torch.randn(edges.num_edges, 2, generator=g, dtype=torch.float64).requires_grad_()
        one = (gather_from_sources(edges, rows) * values).sum()
        other = (sum_to_sources(edges, values) * rows).sum()
        both = group.all_reduce(torch.stack([one, other]).detach(), "products")
        torch.testing.assert_close(both[0], both[1], rtol=1e-10, atol=1e-10)
        for a, b in zip(*(torch.autograd.grad(v, (rows, values)) for v in (one, other))):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_looking_up_and_summing_are_adjoint() -> None:
    run_ranks(gradients, 2)
