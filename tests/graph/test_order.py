"""The order of nodes within a part: clusters one after the other, and nothing but the order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fullgraph.graph import order
from fullgraph.graph.folder import PartitionedFolder, save
from fullgraph.graph.partition import PartitionedInMemory, partition
from fullgraph.graph.planted import planted
from fullgraph.graph.whole import WholeGraph
from tests.cli.commands import run
from tests.graph.small import random_graph
from tests.graph.test_folder import assert_same
from tests.typed_graphs import typed_data

SPEC = "planted:nodes=20000,edges=100000"


def planted_graph() -> WholeGraph:
    return planted(nodes=20_000, edges=100_000)


def distance(partitioned: PartitionedInMemory) -> float:
    """How many rows lie between the two ends of an edge within a part, in the mean."""
    found = []
    for k in range(partitioned.num_parts):
        part = partitioned.part(k)
        own = slice(int(part.source_offsets[k]), int(part.source_offsets[k + 1]))
        found.append((part.src[own] - part.dst[own]).abs().double())
    return float(torch.cat(found).mean())


def in_order_of_nodes(partitioned: PartitionedInMemory) -> tuple[Tensor, Tensor]:
    """The features of all nodes, and the ends of all edges, as they came."""
    parts = [partitioned.part(k) for k in range(partitioned.num_parts)]
    graph = partitioned.graph
    assert graph.x is not None
    x, ends = torch.zeros_like(graph.x), torch.zeros_like(graph.edge_index)
    for part in parts:
        assert part.x is not None
        x[part.node_id] = part.x
        for q, source in enumerate(parts):
            edges = slice(int(part.source_offsets[q]), int(part.source_offsets[q + 1]))
            at = part.edge_id[edges]
            ends[0, at] = source.node_id[part.src[edges].long()].to(ends.dtype)
            ends[1, at] = part.node_id[part.dst[edges].long()].to(ends.dtype)
    return x, ends


@pytest.mark.parametrize("num_parts", [1, 3])
def test_neighbours_come_near_each_other_and_nothing_else_changes(num_parts: int) -> None:
    graph = planted_graph()
    given = partition(graph, num_parts, order="given")
    clustered = partition(graph, num_parts, order="clusters")
    assert torch.equal(clustered.assignment, given.assignment)
    assert distance(clustered) < 0.75 * distance(given)
    x, ends = in_order_of_nodes(clustered)
    assert torch.equal(x, graph.x)
    assert torch.equal(ends, graph.edge_index)
    assert clustered.meta.fingerprint != given.meta.fingerprint
    again = partition(graph, num_parts, order="clusters")
    assert clustered.meta == again.meta
    assert_same(clustered.part(num_parts - 1), again.part(num_parts - 1))


@pytest.mark.parametrize("placement", ["destination", "vertex-cut"])
@pytest.mark.parametrize("num_parts", [2, 3])
def test_nodes_come_by_cluster_and_id_and_of_two_parts_inner_ones_first(
    num_parts: int, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "CLUSTER_NODES", 8)
    graph = random_graph(60, 100)
    clustered = partition(graph, num_parts, placement=placement, order="clusters")
    cluster = clustered.cluster
    assert cluster is not None
    assert cluster.unique().numel() == 60 // 8
    parts = [clustered.part(k) for k in range(num_parts)]
    needed = [graph.edge_index[0][part.edge_id.long()] for part in parts]
    for k, part in enumerate(parts):
        outer = torch.zeros(part.num_nodes, dtype=torch.bool)
        if num_parts == 2:
            outer = torch.isin(part.node_id, needed[1 - k])
            assert outer.any()
            assert not outer.all()
        places = list(zip(outer.tolist(), cluster[part.node_id].tolist(), part.node_id.tolist()))
        assert places == sorted(places)


@pytest.mark.parametrize("placement", ["destination", "vertex-cut"])
def test_an_order_is_saved(placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "CLUSTER_NODES", 8)
    made = partition(random_graph(60, 900), 3, placement=placement, order="clusters")
    assert any((made.part(k).node_id.diff() < 0).any() for k in range(3))
    save(made, tmp_path / "graph")
    opened = PartitionedFolder.open(tmp_path / "graph")
    opened.verify()
    assert opened.meta == made.meta
    for k in range(3):
        assert_same(opened.part(k), made.part(k))


def test_few_nodes_and_nodes_with_types_stay_as_they_came() -> None:
    few = random_graph(2 * order.CLUSTER_NODES - 1, 10)
    assert order.clusters(few, "clusters", 0) is None
    assert order.clusters(random_graph(2 * order.CLUSTER_NODES, 10), "clusters", 0) is not None
    assert order.clusters(planted_graph(), "given", 0) is None
    assert partition(typed_data(), 2, order="clusters").cluster is None


def test_an_unknown_order_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="order 'rcm' is unknown; choose one of given, clusters"):
        partition("no such graph", 2, order="rcm")
    code, _, err = run("partition", SPEC, "--parts", 1, "--out", "x", "--order", "b", cwd=tmp_path)
    assert code == 2
    assert "order 'b' is unknown" in err


@pytest.mark.parametrize(("given", "sorted_ids"), [("clusters", False), ("given", True)])
def test_the_command_orders_by_clusters_unless_told(
    given: str, sorted_ids: bool, tmp_path: Path
) -> None:
    options = [] if given == "clusters" else ["--order", given]
    code, _, err = run("partition", SPEC, "--parts", 1, "--out", "graph", *options, cwd=tmp_path)
    assert code == 0, err
    ids = PartitionedFolder.open(tmp_path / "graph").part(0).node_id
    assert bool((ids.diff() > 0).all()) == sorted_ids
