from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from fullgraph.graph.report import partition_report
from tests.graph.small import graph, random_cut, random_graph


def test_counts_are_those_of_the_definition() -> None:
    whole = graph([(0, 1), (0, 1), (2, 1), (1, 2), (3, 3), (0, 3)], num_nodes=5, train=[0, 1])
    report = partition_report(whole, torch.tensor([0, 0, 1, 1, 1]), 3)
    assert report.nodes == (2, 3, 0)
    assert report.edges == (3, 3, 0)
    assert report.labelled == (2, 0, 0)
    assert report.halo == (1, 2, 0)  # part 0 needs node 2; part 1 needs nodes 1 and 0
    assert (report.edge_cut, report.num_edges) == (3, 6)
    assert report.imbalance == {"nodes": 1.8, "edges": 1.5, "labelled": 3.0}


def test_counts_of_a_random_graph_are_those_of_sets() -> None:
    whole = random_graph(50, 400)
    part = torch.arange(50) // 2 % 4
    report = partition_report(whole, part, 4)
    owner = part.tolist()
    edges = whole.edge_index.T.tolist()
    for k in range(4):
        into = [(u, v) for u, v in edges if owner[v] == k]
        assert report.edges[k] == len(into)
        assert report.halo[k] == len({u for u, _ in into if owner[u] != k})
    assert report.edge_cut == sum(owner[u] != owner[v] for u, v in edges)
    assert report.warnings == ()


def test_counts_of_a_vertex_cut_are_those_of_the_definition() -> None:
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 3), (4, 0)]
    whole = graph(edges, num_nodes=6, train=[0, 1])
    owner, edge_part = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 1, 1, 1, 1, 0])
    report = partition_report(whole, owner, 3, edge_part)
    assert (report.nodes, report.labelled) == ((2, 3, 1), (2, 0, 0))
    assert report.edges == (2, 4, 0)
    assert report.halo == (1, 1, 0)  # part 0 needs node 4; part 1 node 1
    assert report.partial == (0, 1, 0)  # part 1 has an edge into node 0
    assert report.held == (3, 5, 1)  # 0 1 4; 2 3 4 0 1; 5
    assert report.replication == 9 / 6
    assert report.imbalance == {"nodes": 1.5, "edges": 2.0, "labelled": 3.0, "held": 5 / 3}
    assert report.warnings[1] == (
        "edges are uneven: the largest part has 2.00 times the mean; a balance, such as 1.05, "
        "limits that"
    )


@pytest.mark.parametrize("seed", range(4))
def test_counts_of_a_random_vertex_cut_are_those_of_sets(seed: int) -> None:
    cut = random_cut(random_graph(50, 200, seed), 4, seed)
    owner, edge_part, report = cut.assignment.tolist(), cut.edge_part.tolist(), cut.report
    edges = cut.graph.edge_index.T.tolist()
    held_by: dict[int, set[int]] = {v: {k} for v, k in enumerate(owner)}
    for k in range(4):
        here = [edge for edge, where in zip(edges, edge_part) if where == k]
        assert report.edges[k] == len(here)
        assert report.halo[k] == len({u for u, _ in here if owner[u] != k})
        assert report.partial[k] == len({v for _, v in here if owner[v] != k})
        for v in (v for edge in here for v in edge):
            held_by[v].add(k)
    assert report.held == tuple(sum(k in parts for parts in held_by.values()) for k in range(4))
    assert report.replication == sum(map(len, held_by.values())) / 50


def test_empty_parts_and_imbalances_are_warned_about() -> None:
    whole = graph([(0, 1)], num_nodes=12, train=[0])
    warnings = partition_report(whole, torch.zeros(12, dtype=torch.int32), 12).warnings
    assert warnings[0] == "11 of 12 parts have no nodes: 1, 2, 3, 4, 5, 6, 7, 8, ..."
    assert warnings[1:] == tuple(
        f"{what} are uneven: the largest part has 12.00 times the mean"
        for what in ("nodes", "edges", "labelled nodes")
    )


def test_a_graph_without_edges_has_no_edge_imbalance() -> None:
    report = partition_report(graph([], num_nodes=4), torch.tensor([0, 0, 1, 1]), 2)
    assert report.imbalance == {"nodes": 1.0, "edges": 1.0, "labelled": 1.0}


def test_the_table_shows_every_part_and_the_cut() -> None:
    whole = random_graph(5000, 20_000)
    whole.name = "a[b]c"
    report = partition_report(whole, torch.arange(5000) % 3, 3)
    out = io.StringIO()
    Console(file=out, width=100).print(report.table())
    text = out.getvalue()
    for k in range(3):
        assert f"{report.edges[k]:,}" in text
        assert f"{report.halo[k]:,}" in text
    assert f"edge cut {report.edge_cut:,} of 20,000 edges" in text
    assert report.partial == (0, 0, 0)
    assert report.held == tuple(n + halo for n, halo in zip(report.nodes, report.halo))
    assert f"replication factor {sum(report.held) / 5000:.3f}" in text
    assert "a[b]c: 3 parts" in text


def test_the_table_of_a_vertex_cut_shows_copies_and_partial_rows() -> None:
    report = random_cut(random_graph(5000, 20_000), 3).report
    out = io.StringIO()
    Console(file=out, width=100).print(report.table())
    text = out.getvalue()
    for k in range(3):
        assert f"{report.held[k]:,}" in text
        assert f"{report.partial[k]:,}" in text
    assert "small: 3 parts, vertex cut" in text
    assert f"replication factor {report.replication:.3f}" in text
    assert "edge cut" not in text
