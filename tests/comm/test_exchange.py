"""Plans and exchanges: every row arrives once, ragged and empty messages too, and bytes add up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.exchange import wire_dtype
from fullgraph.comm.group import Group
from fullgraph.comm.plan import ExchangePlan
from fullgraph.comm.schedule import Schedule, oneshot, sequential
from fullgraph.ops.halo import fetch_and_send_back, for_each_source, send_to_sources
from tests.graphs import GRAPHS, partitioned
from tests.ranks import run_ranks

SMALL = [name for name in GRAPHS if name != "citeseer"]


def _each_source_row_arrives(group: Group, name: str, schedule: str, block_bytes: int) -> None:
    graph = DistributedGraph.build(
        partitioned(GRAPHS[name](), group.size), group, schedule, block_bytes
    )
    x = graph.node_id.double().unsqueeze(1).repeat(1, 3)
    seen = []

    def use(block, chunk, rows):
        assert rows.nbytes <= max(block_bytes, 24) or block.source_rank == group.rank
        for i, (begin, end) in enumerate(zip(chunk.begin.tolist(), chunk.end.tolist())):
            row = i if block.rows is None else int(block.rows[i])
            for e in range(begin, end):
                source = rows[int(block.cols[e]) - chunk.first_row]
                edge = int(graph.edge_id[block.first_edge + e])
                seen.append((edge, int(source[0]), int(graph.node_id[row])))

    for_each_source(graph, x, use, layer="test")
    edge_index = GRAPHS[name]().edge_index
    expected = [
        (e, s, d) for e, (s, d) in enumerate(edge_index.T.tolist()) if d in graph.node_id.tolist()
    ]
    assert sorted(seen) == sorted(expected)
    assert len(seen) == graph.num_local_edges


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_edge_meets_its_source_row_once(size: int) -> None:
    for name, schedule, block_bytes in itertools.product(
        SMALL, ["oneshot", "sequential", "sequential:prefetch=0"], [24, 100, 1 << 20]
    ):
        run_ranks(_each_source_row_arrives, size, name, schedule, block_bytes)


def _bytes_are_as_planned(group: Group, block_bytes: int) -> None:
    graph = DistributedGraph.build(
        partitioned(GRAPHS["multigraph"](), group.size), group, "sequential", block_bytes
    )
    x = torch.zeros(graph.num_owned, 5)
    fetch, back = graph.plan.predicted_bytes(5 * 4)

    def counted() -> tuple[list[int], list[int]]:
        sent = [0] * group.size
        received = [0] * group.size
        for flow, out, into in graph.traffic.rows():
            sent[flow.peer] += out
            received[flow.peer] += into
        graph.traffic.clear()
        return sent, received

    for_each_source(graph, x, lambda *_: None, layer="a")
    assert counted() == (fetch, back)
    send_to_sources(graph, x, lambda *_: None, layer="a")
    assert counted() == (back, fetch)
    fetch_and_send_back(graph, x, x, lambda *_: None, layer="a")
    both = [f + b for f, b in zip(fetch, back)]
    assert counted() == (both, both)
    assert group.size == 1 or sum(both) > 0


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("block_bytes", [1, 60, 1 << 20])
def test_counted_bytes_equal_the_plan(size: int, block_bytes: int) -> None:
    run_ranks(_bytes_are_as_planned, size, block_bytes)


def _traffic_of_a_model(group: Group) -> None:
    graph = DistributedGraph.build(partitioned(GRAPHS["multigraph"](), group.size), group)
    model = fullgraph.convert(pyg.GraphSAGE(6, 8, 2, 3).double())
    x = torch.randn(graph.num_owned, 6, dtype=torch.float64, requires_grad=True)
    fullgraph.cross_entropy(model(x, graph), graph.y, graph.train_mask, group=group).backward()
    width = {"convs.0": 6, "convs.1": 3}  # 8 → 3 is projected before the exchange
    for flow, sent, received in graph.traffic.rows():
        fetch, back = graph.plan.predicted_bytes(width[flow.layer] * 8)
        out, into = (fetch, back) if flow.direction == "forward" else (back, fetch)
        assert (sent, received) == (out[flow.peer], into[flow.peer])
    assert {(f.layer, f.direction) for f, _, _ in graph.traffic.rows()} == {
        (layer, direction) for layer in width for direction in ("forward", "backward")
    }


def _own_features_travel_once(group: Group) -> None:
    graph = DistributedGraph.build(partitioned(GRAPHS["multigraph"](), group.size), group)
    model = fullgraph.convert(pyg.GraphSAGE(6, 8, 2, 3).double())
    layers = []
    for _ in range(3):
        graph.traffic.clear()
        loss = fullgraph.cross_entropy(
            model(graph.x, graph), graph.y, graph.train_mask, group=group
        )
        loss.backward()
        layers.append({flow.layer for flow, _, _ in graph.traffic.rows()})
    assert layers == [{"convs.0", "convs.1"}, {"convs.1"}, {"convs.1"}]


def test_the_first_layer_exchanges_its_input_once_and_not_every_step() -> None:
    run_ranks(_own_features_travel_once, 2)


def test_traffic_names_layer_direction_and_peer() -> None:
    run_ranks(_traffic_of_a_model, 3)


class TypedMessages(pyg.MessagePassing):
    """Its messages read an integer of the source beside its row."""

    def __init__(self) -> None:
        super().__init__(aggr="sum", node_dim=0)
        self.lin = torch.nn.Linear(6, 4)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        kind = torch.arange(x.shape[0]) + 100_000  # which bfloat16 does not have
        return self.propagate(edge_index, x=self.lin(x), kind=kind)

    def message(self, x_j: Tensor, kind_j: Tensor) -> Tensor:
        return x_j * (kind_j % 7).unsqueeze(1)


WIRE_MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "gat": lambda: pyg.GAT(6, 8, 2, 3, heads=2),
    "sage": lambda: pyg.GraphSAGE(6, 8, 2, 3),
    "edge": lambda: pyg.EdgeCNN(6, 8, 2, 3),
    "typed": TypedMessages,
}


def _step_on_wire(group: Group, name: str, schedule: str, wire: str) -> tuple[int, Any, Any]:
    graph = DistributedGraph.build(
        partitioned(GRAPHS["multigraph"](), group.size), group, schedule, 100, wire=wire
    )
    assert graph.exact == (wire == "float32")
    torch.manual_seed(0)
    model = fullgraph.convert(WIRE_MODELS[name]())
    x = graph.x.float().requires_grad_()
    out = model(x, graph)
    fullgraph.global_mean(out.square(), group=group).backward()
    fullgraph.sum_gradients(model, group)
    grads = torch.cat([x.grad.flatten(), *(p.grad.flatten() for p in model.parameters())])
    assert grads.dtype == out.dtype == torch.float32
    return graph.traffic.bytes_sent, out.detach(), grads


@pytest.mark.parametrize("schedule", ["sequential", "oneshot"])
@pytest.mark.parametrize("name", WIRE_MODELS)
def test_bf16_on_the_wire_halves_the_bytes_and_rounds_rows_only(name: str, schedule: str) -> None:
    whole = run_ranks(_step_on_wire, 3, name, schedule, "float32")
    short = run_ranks(_step_on_wire, 3, name, schedule, "bf16")
    for (bytes_, out, grads), (half, short_out, short_grads) in zip(whole, short):
        if name == "typed":  # rows with integers travel as they are
            assert bytes_ / 2 < half < bytes_ or half == bytes_
        else:
            assert half * 2 == bytes_ > 0
            assert not torch.equal(out, short_out)
        for one, other in ((out, short_out), (grads, short_grads)):
            assert (one - other).norm() <= 2**-7 * one.norm()
    assert len({tuple(grads[-8:].tolist()) for _, _, grads in short}) == 1


def test_wires_by_name() -> None:
    assert wire_dtype("float32") is None
    assert wire_dtype("bf16") == torch.bfloat16
    with pytest.raises(ValueError, match=r"'float32'.*'bf16'; got 'fp8'"):
        wire_dtype("fp8")


def _ragged(group: Group, counts: list[list[int]]) -> list[list[int]]:
    needed = [torch.arange(n, dtype=torch.int32) for n in counts[group.rank]]
    plan = ExchangePlan.build(group, needed)
    return [rows.tolist() for rows in plan.send_rows]


def test_plan_of_ragged_and_empty_needs() -> None:
    counts = [[0, 5, 0], [2, 0, 0], [1, 7, 0]]
    for rank, sent in enumerate(run_ranks(_ragged, 3, counts)):
        assert sent == [list(range(counts[peer][rank])) for peer in range(3)]


def test_all_ranks_share_one_grid_of_ticks() -> None:
    counts = ((0, 5, 0, 1), (2, 0, 9, 0), (1, 7, 0, 0), (0, 0, 3, 0))
    plans = [ExchangePlan(r, (torch.empty(0, dtype=torch.int32),) * 4, counts) for r in range(4)]
    grids = [list(plan.fetch_ticks(2)) for plan in plans]
    assert len({len(grid) for grid in grids}) == 1
    for at, ticks in enumerate(zip(*grids)):
        for rank, tick in enumerate(ticks):
            if tick.out is not None:
                theirs = grids[tick.out.peer][at].into
                assert theirs == tick.out._replace(peer=rank)
            else:
                assert all(t.into is None or t.into.peer != rank for t in ticks)


def test_schedule_names() -> None:
    assert Schedule.parse("oneshot") == oneshot()
    assert Schedule.parse("sequential") == sequential()
    assert Schedule.parse("sequential:prefetch=3,remat=off") == sequential(3, remat=False)
    for schedule in (oneshot(), sequential(), sequential(0), sequential(2, remat=False)):
        assert Schedule.parse(str(schedule)) == schedule
    for bad in ("", "sequentail", "sequential:prefetch=-1", "sequential:x=1", "oneshot:remat=on",
                "sequential:remat=maybe"):  # fmt: skip
        with pytest.raises(ValueError, match="schedule must be"):
            Schedule.parse(bad)
    with pytest.raises(ValueError, match="prefetch"):
        sequential(-1)
