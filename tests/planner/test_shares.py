"""Shares are what brute force counts by the definition of each placement, and, where only figures
are known, near what counting finds on random graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullgraph.comm.placed_edges import planned_rows
from fullgraph.comm.placement import Placement
from fullgraph.graph.partition import PartitionedInMemory, PartitionedVertexCut
from fullgraph.graph.whole import WholeGraph
from fullgraph.planner.figures import GraphFigures, Shares
from fullgraph.planner.shares import count_shares, expect_shares, figures_of

PLACEMENTS = ["destination", "grid:2x2x1", "grid:2x1x2", "grid:1x2x2", "grid:1x1x4", "grid:4x1x1"]


def _graph(num_nodes: int = 40, num_edges: int = 200, seed: int = 0) -> WholeGraph:
    """Directed, with multi-edges and self-loops."""
    rng = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=rng, dtype=torch.int32)
    edges[1, :9] = edges[0, :9]
    y = torch.randint(3, (num_nodes,), generator=rng)
    masks = {"train": torch.rand(num_nodes, generator=rng) < 0.5}
    return WholeGraph("g", edges, num_nodes, torch.zeros(num_nodes, 4), y, masks, num_classes=3)


def _owners(num_nodes: int, num_ranks: int, seed: int = 1) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(num_ranks, (num_nodes,), generator=rng, dtype=torch.int32)


def _lives_on(placement: Placement, source_owner: int, owner: int) -> list[int]:
    """The ranks of an edge, by the definition."""
    if placement.kind == "destination":
        return [owner]
    row, col = placement.coordinates(owner)[0], placement.coordinates(source_owner)[1]
    return [placement.rank_of(row, col, k) for k in range(placement.feats)]


def _brute_force(graph: WholeGraph, owner: list[int], homes: list[list[int]], size: int,
                 placement: Placement) -> tuple[list[list[int]], ...]:  # fmt: skip
    """gather, reduce and edges by source rank, of sets of nodes; homes[e]: the ranks of edge e."""
    sources = [[set() for _ in range(size)] for _ in range(size)]
    targets = [[set() for _ in range(size)] for _ in range(size)]
    edges = [[0] * size for _ in range(size)]
    for (u, v), ranks in zip(graph.edge_index.T.tolist(), homes):
        for p in ranks:
            sources[p][owner[u]].add(u)
            targets[p][owner[v]].add(v)
            edges[p][owner[u]] += 1
    for p in range(size):  # ranks that differ in their slice alone have every loop of each other
        for q in range(size):
            if placement.coordinates(p)[:2] == placement.coordinates(q)[:2] and (
                placement.kind == "grid"
            ):
                own = {u for u, r in enumerate(owner) if r == q}
                sources[p][q] |= own
                targets[p][q] |= own
    counts = [
        [[len(s) if p != q else 0 for q, s in enumerate(row)] for p, row in enumerate(sets)]
        for sets in (sources, targets)
    ]
    return (*counts, edges)


def _as_lists(rows: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    return [list(row) for row in rows]


def _edges(shares: Shares) -> list[list[int]]:
    return [[block.edges for block in row] for row in shares.blocks]


@pytest.mark.parametrize("text", PLACEMENTS)
def test_counts_are_those_of_the_definition(text: str) -> None:
    graph, owner, placement = _graph(), _owners(40, 4), Placement.parse(text)
    shares = count_shares(PartitionedInMemory(graph, owner, 4), 4, placement)
    of_node = owner.tolist()
    homes = [_lives_on(placement, of_node[u], of_node[v]) for u, v in graph.edge_index.T.tolist()]
    gather, reduce, edges = _brute_force(graph, of_node, homes, 4, placement)
    assert _as_lists(shares.gather) == gather
    assert _as_lists(shares.reduce) == (reduce if placement.splits else [[0] * 4] * 4)
    assert _edges(shares) == edges


@pytest.mark.parametrize("text", PLACEMENTS)
def test_counts_are_what_the_exchange_plans_say(text: str) -> None:
    partitioned = PartitionedInMemory(_graph(60, 500), _owners(60, 6), 6)  # 6 parts for 4 ranks
    shares, rows = count_shares(partitioned, 4, text), planned_rows(partitioned, 4, text)
    assert _as_lists(shares.gather) == rows.gather
    assert _as_lists(shares.reduce) == rows.reduce


def test_a_vertex_cut_is_counted_where_its_edges_are() -> None:
    graph, owner, edge_part = _graph(), _owners(40, 3), _owners(200, 3, seed=5)
    partitioned = PartitionedVertexCut(graph, owner, edge_part, 3)
    shares = count_shares(partitioned, 3, "vertex-cut")
    homes = [[p] for p in edge_part.tolist()]
    placement = Placement.parse("vertex-cut")
    gather, reduce, edges = _brute_force(graph, owner.tolist(), homes, 3, placement)
    assert (_as_lists(shares.gather), _as_lists(shares.reduce)) == (gather, reduce)
    assert _edges(shares) == edges


def test_four_nodes_by_hand() -> None:
    """0, 1 on rank 0; 2, 3 on rank 1. Edges 0→2, 0→3, 1→0, 2→2, 3→0."""
    edges = torch.tensor([[0, 0, 1, 2, 3], [2, 3, 0, 2, 0]], dtype=torch.int32)
    graph = WholeGraph("hand", edges, 4, torch.zeros(4, 2), torch.tensor([0, 1, 0, -1]))
    partitioned = PartitionedInMemory(graph, torch.tensor([0, 0, 1, 1], dtype=torch.int32), 2)
    shares = count_shares(partitioned, 2)
    assert shares.gather == ((0, 1), (1, 0))  # row 3 to rank 0; row 0 to rank 1
    assert shares.blocks == (((2, 2, 1), (1, 1, 1)), ((2, 1, 2), (2, 2, 1)))
    assert (shares.owned, shares.labelled) == ((2, 2), (2, 1))
    assert (shares.loops, shares.looped) == ((0, 1), (0, 1))
    # grid 1x2x1: rank j has the edges from its rows; it sends sums for the other's.
    shares = count_shares(partitioned, 2, "grid:1x2x1")
    assert shares.gather == ((0, 0), (0, 0))
    assert shares.reduce == ((0, 2), (1, 0))  # 2 and 3 from rank 0; 0 from rank 1


def test_a_rank_without_nodes_and_one_without_loops_are_counted() -> None:
    graph = _graph()
    owner = torch.where(_owners(40, 2) == 0, 0, 2).to(torch.int32)
    shares = count_shares(PartitionedInMemory(graph, owner, 3), 3)
    assert shares.owned[1] == shares.loops[1] == shares.looped[1] == 0
    src, dst = graph.edge_index
    assert sum(shares.loops) == int((src == dst).sum())
    assert sum(shares.looped) == src[src == dst].unique().numel()


def test_a_grid_of_another_number_of_workers_is_refused() -> None:
    partitioned = PartitionedInMemory(_graph(), _owners(40, 4), 4)
    with pytest.raises(ValueError, match="grid:2x2x2 is a grid of 8 workers, but there are 4"):
        count_shares(partitioned, 4, "grid:2x2x2")
    with pytest.raises(ValueError, match="partitioned into parts of nodes"):
        count_shares(partitioned, 4, "vertex-cut")


@pytest.mark.parametrize("text", PLACEMENTS)
def test_expectations_are_near_counts_on_a_graph_without_locality(text: str) -> None:
    graph = _graph(4000, 16000)
    owner = (torch.randperm(4000, generator=torch.Generator().manual_seed(2)) % 4).int()
    partitioned = PartitionedInMemory(graph, owner, 4)
    counted = count_shares(partitioned, 4, text)
    expected = expect_shares(figures_of(partitioned), 4, text)
    for one, other in ((counted.gather, expected.gather), (counted.reduce, expected.reduce)):
        torch.testing.assert_close(
            torch.tensor(one).double(), torch.tensor(other).double(), rtol=0.1, atol=0
        )
    blocks = torch.tensor(counted.blocks).double(), torch.tensor(expected.blocks).double()
    torch.testing.assert_close(*blocks, rtol=0.1, atol=0)


@pytest.mark.parametrize("halo", [0.0, 0.3, 2.0])
def test_the_halo_that_is_given_is_the_one_that_is_expected(halo: float) -> None:
    figures = GraphFigures(10_000, 200_000, 8, 2, halo=halo)
    shares = expect_shares(figures, 4)
    for p in range(4):
        assert sum(shares.gather[p]) / shares.owned[p] == pytest.approx(halo, abs=1e-3)
        assert shares.edges(p) == pytest.approx(50_000, abs=4)


def test_a_halo_that_these_edges_cannot_need_is_refused() -> None:
    with pytest.raises(ValueError, match=r"halo=9 is more than 4 workers can need .* at most 2.75"):
        expect_shares(GraphFigures(10_000, 100_000, 8, 2, halo=9), 4)


def test_figures_alone_give_no_vertex_cut() -> None:
    with pytest.raises(ValueError, match="it needs more than figures"):
        expect_shares(GraphFigures(100, 100, 8, 2), 4, "vertex-cut")
