"""`fullgraph.sign` against PyG's transform on the whole graph."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.transforms as transforms

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.contract import assert_same
from tests.graphs import named, named_parts, partitioned
from tests.ranks import run_ranks

HOPS = 3


def _sign(group: Group) -> None:
    for name in ("multigraph", "tiny", "no_edges", "one_source_part"):
        data = named(name)
        expected = transforms.SIGN(HOPS)(copy.copy(data))
        for parts, empty, schedule in ((max(4, group.size), False, "sequential"),
                                       (5, True, "oneshot")):  # fmt: skip
            graph = DistributedGraph.build(
                named_parts(name, parts, empty), group, schedule, max_block_bytes=200
            )
            hops = fullgraph.sign(graph, HOPS)
            assert hops[0] is graph.x
            assert len(hops) == HOPS + 1
            for k in range(1, HOPS + 1):
                assert not hops[k].requires_grad
                assert_same(f"{name}, hop {k}", hops[k], expected[f"x{k}"][graph.node_id])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_equals_pygs_transform(size: int) -> None:
    run_ranks(_sign, size)


def _unweighted(group: Group) -> None:
    data = copy.copy(named("multigraph"))
    data.edge_weight = None
    torch.set_default_dtype(torch.float64)  # PyG makes its weights of 1 in the default dtype
    try:
        expected = transforms.SIGN(HOPS)(copy.copy(data))
    finally:
        torch.set_default_dtype(torch.float32)
    graph = DistributedGraph.build(partitioned(data, 4), group)
    for k, rows in enumerate(fullgraph.sign(graph, HOPS)[1:], start=1):
        assert_same(f"hop {k}", rows, expected[f"x{k}"][graph.node_id])
    layers = {flow.layer for flow, _, _ in graph.traffic.rows()}
    assert layers == {f"sign.{k}" for k in range(1, HOPS + 1)}


def test_without_weights_every_edge_counts_once() -> None:
    run_ranks(_unweighted, 2)


def alone(data=None) -> DistributedGraph:
    return DistributedGraph.build(partitioned(data or named("multigraph"), 2), Group())


def test_hops_may_be_written_to_and_leave_nothing_behind() -> None:
    graph = alone()
    first = fullgraph.sign(graph, 1)[1].clone()
    fullgraph.sign(graph, 1)[1].zero_()
    assert torch.equal(fullgraph.sign(graph, 1)[1], first)
    assert fullgraph.sign(graph, 0) == [graph.x]
    graph.x.requires_grad_()
    assert not fullgraph.sign(graph, 1)[1].requires_grad


def test_what_cannot_be_propagated_is_said() -> None:
    with pytest.raises(ValueError, match="num_hops must be 0 or more, got -1"):
        fullgraph.sign(alone(), -1)
    graph = alone()
    graph.x = None
    with pytest.raises(ValueError, match="no features x"):
        fullgraph.sign(graph, 1)
