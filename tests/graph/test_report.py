from __future__ import annotations

import io

import torch
from rich.console import Console

from fullgraph.graph.report import partition_report
from tests.graph.small import graph, random_graph


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
    assert "a[b]c: 3 parts" in text
