"""Aggregation as an operator: gradients by finite differences, dtypes, ties, misuse, memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.schedule import Schedule
from fullgraph.planner.ledger import Ledger
from fullgraph.planner.rates import NOMINAL
from tests.graphs import multigraph, partitioned
from tests.ranks import run_ranks


def graph_of(edges: list[tuple[int, int]], num_nodes: int, group: Group | None = None, parts=1,
             schedule: str = "sequential") -> DistributedGraph:  # fmt: skip
    index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    data = Data(edge_index=index, num_nodes=num_nodes, x=torch.zeros(num_nodes, 1),
                y=torch.zeros(num_nodes, dtype=torch.int64),
                train_mask=torch.ones(num_nodes, dtype=torch.bool))  # fmt: skip
    return DistributedGraph.build(partitioned(data, parts), group or Group(), schedule)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def by_node(graph: DistributedGraph, values: Tensor) -> Tensor:
    out = torch.empty_like(values)
    out[graph.node_id] = values
    return out


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_by_finite_differences(reduce: str, weighted: bool) -> None:
    graph = DistributedGraph.build(partitioned(multigraph(), 3), Group())
    g = torch.Generator().manual_seed(2)
    x = torch.randn(50, 2, generator=g, dtype=torch.float64, requires_grad=True)
    w = torch.rand(graph.num_local_edges, generator=g, dtype=torch.float64) + 0.5
    args = (x, w.requires_grad_()) if weighted else (x,)

    def f(x: Tensor, w: Tensor | None = None) -> Tensor:
        return fullgraph.aggregate(graph, x, reduce, weight=w)

    assert torch.autograd.gradcheck(f, args)


def _direction(group: Group) -> None:
    graph = graph_of([(0, 1), (1, 2)], 3, group, parts=group.size)
    out = fullgraph.aggregate(graph, graph.node_id.double().unsqueeze(1) + 1)
    assert (
        dict(zip(graph.node_id.tolist(), out.view(-1).tolist())).items()
        <= {0: 0, 1: 1, 2: 2}.items()
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_messages_go_from_source_to_destination(size: int) -> None:
    run_ranks(_direction, size)


def test_max_of_negative_messages_is_negative_and_of_none_is_zero() -> None:
    graph = graph_of([(0, 1)], 3)
    x = by_node(graph, column(-2, 7, 7))
    out = fullgraph.aggregate(graph, x, "max")
    assert out[graph.node_id.argsort()].view(-1).tolist() == [0, -2, 0]


def test_ties_share_the_gradient_and_zero_counts_as_pyg_counts_it() -> None:
    graph = graph_of([(0, 3), (1, 3), (2, 3)], 4)
    for values, expected in (
        ((2, 2, 1, 0), [0.5, 0.5, 0, 0]),
        ((0, 0, -1, 0), [1 / 3, 1 / 3, 0, 0]),
    ):
        x = column(*values).requires_grad_()
        fullgraph.aggregate(graph, x, "max").sum().backward()
        assert x.grad.view(-1).tolist() == pytest.approx(expected)


def _star(group: Group) -> None:
    edges = [(leaf, 0) for leaf in range(1, 9)] + [(0, leaf) for leaf in range(1, 9)]
    graph = graph_of(edges, 9, group, parts=group.size)
    expected = {0: 8, **dict.fromkeys(range(1, 9), 1)}
    for node, degree in zip(graph.node_id.tolist(), graph.in_degree.tolist()):
        assert degree == expected[node]


def test_degrees_are_global() -> None:
    run_ranks(_star, 2)


def test_num_nodes_is_honoured() -> None:
    graph = graph_of([(0, 1)], 5)
    assert fullgraph.aggregate(graph, torch.ones(5, 2)).shape == (5, 2)


def _bf16(group: Group) -> None:
    data = multigraph()
    for schedule in ("sequential", "oneshot"):
        graph = DistributedGraph.build(partitioned(data, 2), group, schedule)
        x = data.x[graph.node_id].bfloat16()
        for reduce in ("sum", "mean", "max", "min"):
            low = x.clone().requires_grad_()
            high = x.double().requires_grad_()
            out = fullgraph.aggregate(graph, low, reduce)
            reference = fullgraph.aggregate(graph, high, reduce)
            assert out.dtype == torch.bfloat16
            torch.testing.assert_close(out, reference.bfloat16(), rtol=1e-2, atol=1e-2)
            out.sum().backward()
            reference.sum().backward()
            assert low.grad.dtype == torch.bfloat16
            torch.testing.assert_close(low.grad, high.grad.bfloat16(), rtol=2e-2, atol=2e-2)


def test_bf16_keeps_its_dtype_and_sums_in_float32() -> None:
    run_ranks(_bf16, 2)


def _bf16_sum_of_many(group: Group) -> None:
    graph = graph_of([(i, 0) for i in range(1, 2000)], 2000, group, parts=2)
    out = fullgraph.aggregate(graph, torch.ones(graph.num_owned, 1, dtype=torch.bfloat16))
    row = (graph.node_id == 0).nonzero()
    if row.numel():  # summing in bfloat16 would stop at 256
        assert out[row[0, 0]].item() == torch.tensor(1999.0).bfloat16().item()


def test_bf16_sums_do_not_saturate() -> None:
    run_ranks(_bf16_sum_of_many, 2)


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_backward_twice_and_autograd_grad_are_right_and_double_backward_is_refused(reduce) -> None:
    graph = DistributedGraph.build(partitioned(multigraph(), 2), Group())
    x = torch.randn(50, 3, dtype=torch.float64, requires_grad=True)
    out = fullgraph.aggregate(graph, x, reduce).square().sum()
    out.backward(retain_graph=True)
    once = x.grad.clone()
    out.backward(retain_graph=True)
    torch.testing.assert_close(x.grad, 2 * once)
    torch.testing.assert_close(torch.autograd.grad(out, x, retain_graph=True)[0], once)
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_misuse_is_named() -> None:
    graph = graph_of([(0, 1)], 3)
    with pytest.raises(ValueError, match="reduce must be one of"):
        fullgraph.aggregate(graph, torch.ones(3, 1), "median")
    with pytest.raises(ValueError, match=r"\[3, F\].*int64 \(3, 1\)"):
        fullgraph.aggregate(graph, torch.ones(3, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="scales apply to sums only"):
        fullgraph.aggregate(graph, torch.ones(3, 1), "max", source_scale=torch.ones(3))


def _bits(group: Group, schedule: str) -> list[bytes]:
    graph = DistributedGraph.build(partitioned(multigraph(), 4), group, schedule, 300)
    x = multigraph().x[graph.node_id].float().requires_grad_()
    fullgraph.aggregate(graph, x).square().sum().backward()
    return [x.grad.numpy().tobytes(), x.detach().numpy().tobytes()]


@pytest.mark.parametrize("schedule", ["sequential", "oneshot"])
def test_a_run_repeats_bit_for_bit(schedule: str) -> None:
    assert run_ranks(_bits, 3, schedule) == run_ranks(_bits, 3, schedule)


def test_the_gradient_of_a_mean_is_not_held_twice() -> None:
    graph = DistributedGraph.build(partitioned(multigraph(), 1), Group())
    (own,) = graph.edges.blocks
    x = torch.ones(graph.num_owned, 1 << 12, dtype=torch.float64, requires_grad=True)
    ledger = Ledger(NOMINAL)
    for ends in (own.offsets, own.t_offsets):
        ledger.note_edges(ends[1:], own.num_edges)
    with ledger:
        (fullgraph.aggregate(graph, x, "mean") * 2).sum().backward()
    assert ledger.peak < 3.5 * x.nbytes  # x, and two that are as large


def _schedules_keep_what_they_say(group: Group) -> None:
    """A gradient of the weights needs the remote rows: fetched again, or kept."""
    graph = DistributedGraph.build(partitioned(multigraph(), 2), group)
    w = torch.ones(graph.num_local_edges, dtype=torch.float64, requires_grad=True)
    x = torch.ones(graph.num_owned, 4, dtype=torch.float64, requires_grad=True)
    fetch, back = (sum(n) for n in graph.plan.predicted_bytes(4 * 8))
    for name, refetched in (("sequential", fetch), ("sequential:remat=off", 0), ("oneshot", 0)):
        view = graph.with_schedule(Schedule.parse(name))
        graph.traffic.clear()
        out = fullgraph.aggregate(view, x, weight=w)
        assert graph.traffic.bytes_sent == fetch
        graph.traffic.clear()
        out.sum().backward()
        assert graph.traffic.bytes_sent == back + refetched, name


def test_weights_need_the_rows_again_only_where_the_schedule_frees_them() -> None:
    run_ranks(_schedules_keep_what_they_say, 2)
