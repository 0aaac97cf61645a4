from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fullgraph.graph.folder import PartitionedFolder, save
from fullgraph.graph.partition import PartitionedVertexCut, partition
from fullgraph.graph.vertex_cut import cut_vertices
from fullgraph.graph.whole import WholeGraph
from tests.data import shared_data
from tests.graph.small import graph, random_graph, star, with_types
from tests.typed_graphs import typed

GRAPHS: dict[str, Callable[[], WholeGraph]] = {
    "multigraph": lambda: random_graph(60, 900),
    "sparse": lambda: random_graph(200, 150),
    "star": lambda: star(50),
    "no edges": lambda: graph([], num_nodes=10),
    "one node": lambda: graph([], num_nodes=1),
    "one node with loops": lambda: graph([(0, 0), (0, 0)], num_nodes=1),
    "loops alone": lambda: graph([(i, i) for i in (3, 3, 5, 0)], num_nodes=8),
    "the same edge": lambda: graph([(0, 1)] * 30 + [(1, 0)] * 30, num_nodes=3),
    "all sources in the last nodes": lambda: graph([(19, i) for i in range(20)] * 2, 20),
    "typed edges": lambda: with_types(random_graph(60, 900)),
}


@pytest.mark.parametrize("balance", [None, 1.0, 1.5])
@pytest.mark.parametrize("num_parts", [1, 3, 8, 70])
@pytest.mark.parametrize("name", GRAPHS)
def test_owners_hold_their_nodes_and_no_part_has_more_than_its_share(
    name: str, num_parts: int, balance: float | None
) -> None:
    whole = GRAPHS[name]()
    cut = partition(whole, num_parts, placement="vertex-cut", balance=balance)
    assert isinstance(cut, PartitionedVertexCut)
    owner, edge_part = cut.assignment, cut.edge_part
    src, dst = whole.edge_index.long()
    loops = src == dst
    assert torch.equal(edge_part[loops], owner[src[loops]]), "a loop is with its node"
    holds = torch.zeros(whole.num_nodes, num_parts, dtype=torch.bool)
    for ends in (src, dst):
        holds[ends[~loops], edge_part[~loops].long()] = True
    placed = holds.any(1)
    assert holds[placed, owner[placed].long()].all()
    if balance is not None:
        largest = int(torch.bincount(edge_part[~loops], minlength=num_parts).max())
        assert largest <= max(1, -(-balance * int((~loops).sum()) // num_parts))
    assert cut.meta.replication == (int(holds.sum()) + int((~placed).sum())) / whole.num_nodes


@pytest.mark.parametrize("name", GRAPHS)
def test_a_cut_is_the_same_every_time_and_in_the_folder(name: str, tmp_path: Path) -> None:
    whole = GRAPHS[name]()
    one, other = (partition(whole, 5, placement="vertex-cut", seed=3) for _ in range(2))
    assert one.meta == other.meta
    save(one, tmp_path / "cut")
    opened = PartitionedFolder.open(tmp_path / "cut")
    opened.verify()
    assert opened.meta == other.meta
    for k in range(5):
        found, wanted = opened.part(k), other.part(k)
        for key, value in vars(wanted).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(getattr(found, key), value), key
    assert found.by_type == {}
    num_edges = sum(opened.part(k).num_edges for k in range(5))
    assert num_edges == whole.num_edges


def test_another_seed_is_another_cut() -> None:
    whole = random_graph(60, 900)
    cuts = [cut_vertices(whole, 4, seed) for seed in (0, 1, 0)]
    assert not torch.equal(cuts[0][1], cuts[1][1])
    assert all(torch.equal(*pair) for pair in zip(cuts[0], cuts[2]))


def test_isolated_nodes_go_where_few_are_owned() -> None:
    # Nodes 0 .. 3 on one edge each way; 4 has loops alone; 5 .. 11 nothing.
    edges = [(0, 1), (1, 0), (2, 3), (3, 2), (4, 4)]
    cut = partition(graph(edges, num_nodes=12), 3, placement="vertex-cut")
    assert cut.meta.part_nodes == (4, 4, 4)
    assert cut.report.held == (4, 4, 4)
    assert cut.report.halo == cut.report.partial == (0, 0, 0)
    more_parts = partition(graph([(0, 1)], num_nodes=5), 9, placement="vertex-cut")
    assert sorted(more_parts.meta.part_nodes) == [0, 0, 0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("name", ["cora", "amazon_photo", "tolokers"])
def test_a_real_graph_is_cut_evenly_into_far_fewer_copies_than_chance_makes(name: str) -> None:
    whole = partition(shared_data(name), 1, method="random").graph
    cut = partition(whole, 4, placement="vertex-cut")
    imbalance = cut.report.imbalance
    assert imbalance["edges"] < 1.02
    assert imbalance["nodes"] < 1.01
    assert imbalance["labelled"] < 1.05
    assert imbalance["held"] < 1.15
    generator = torch.Generator().manual_seed(0)
    edge_part = torch.randint(4, (whole.num_edges,), generator=generator)
    chance = PartitionedVertexCut(whole, cut.assignment, edge_part, 4)
    assert cut.report.replication < 0.65 * chance.report.replication


def test_a_graph_in_the_order_of_a_search_does_not_end_in_one_part() -> None:
    path = graph([(i, i + 1) for i in range(999)], num_nodes=1000)
    report = partition(path, 4, placement="vertex-cut").report
    assert report.imbalance["edges"] < 1.1
    assert report.replication < 1.4


def test_a_star_is_in_one_part_unless_there_is_a_balance_and_says_so() -> None:
    report = partition(star(500), 4, placement="vertex-cut").report
    assert sorted(report.edges) == [0, 0, 0, 998]
    assert "edges are uneven: the largest part has 4.00 times the mean; a balance" in "".join(
        report.warnings
    )
    balanced = partition(star(500), 4, placement="vertex-cut", balance=1.05).report
    assert max(balanced.edges) == 262
    assert not any("edges" in warning for warning in balanced.warnings)


def test_the_report_of_a_cut_is_printed() -> None:
    out = io.StringIO()
    table = partition(random_graph(60, 900), 3, placement="vertex-cut").report.table()
    Console(file=out, width=100).print(table)
    for text in ("small: 3 parts, vertex cut", "held", "halo rows", "partial rows", "replication"):
        assert text in out.getvalue()


def test_combinations_that_do_not_go_together_are_refused() -> None:
    whole = star(5)
    for options, message in (
        ({"placement": "grid"}, "placement 'grid' is unknown; choose one of destination, vertex-"),
        ({"placement": "vertex-cut", "method": "metis"}, r"'vertex-cut' choose one of libra"),
        ({"placement": "vertex-cut", "method": "best"}, "'best' is unknown; for 'vertex-cut'"),
        ({"method": "libra"}, "is one of placement 'vertex-cut'; for 'destination' choose one of"),
        ({"balance": 1.1}, "balance=1.1 is for placement 'vertex-cut', not for 'destination'"),
        ({"placement": "vertex-cut", "balance": 0.99}, "balance=0.99: some part has at least"),
        ({"placement": "vertex-cut", "balance": float("nan")}, "balance=nan"),
    ):
        with pytest.raises(ValueError, match=message):
            partition(whole, 2, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_parts is 0: a graph has at least one part"):
        partition(whole, 0, placement="vertex-cut")
    with pytest.raises(ValueError, match=r"several types of nodes.* Use placement 'destination'"):
        partition(typed(), 2, placement="vertex-cut")


def test_the_default_method_is_that_of_the_placement() -> None:
    whole = random_graph(60, 300)
    for placement, method in (("destination", "metis"), ("vertex-cut", "libra")):
        named = partition(whole, 3, method, placement=placement)
        assert partition(whole, 3, placement=placement).meta == named.meta
