"""A dry run holds, moves and spends what a real run does."""

from __future__ import annotations

import gc

import pytest
import torch

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.planner.choose import predict_ranks
from fullgraph.planner.dry_run import FILE_BYTES_AN_EDGE, DryRun
from fullgraph.planner.ledger import Ledger
from fullgraph.planner.rates import NOMINAL
from fullgraph.planner.shares import count_shares, figures_of
from fullgraph.training.models import MODELS, ModelOptions, build_model, run_model
from tests.planner.graphs import MACHINE, planted
from tests.ranks import run_ranks

OPTIONS = {"layers": 3, "hidden": 8, "heads": 2}


def _options(name: str, **changes: object) -> ModelOptions:
    return ModelOptions(name, **{**OPTIONS, **changes})  # type: ignore[arg-type]


def _predict(
    size: int, options: ModelOptions, placement: str, schedule: str, nodes: int = 300
) -> list[DryRun]:
    partitioned = planted(size, nodes, 5 * nodes)
    shares = count_shares(partitioned, size, placement)
    return predict_ranks(
        figures_of(partitioned), shares, options, schedule, MACHINE, range(size)
    )  # fmt: skip


def _train(graph: DistributedGraph, options: ModelOptions, epochs: int = 2) -> None:
    torch.manual_seed(0)
    model = fullgraph.convert(build_model(options, graph.num_features, graph.num_classes))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(epochs):
        graph.traffic.clear()
        optimizer.zero_grad()
        out = run_model(model, graph)
        fullgraph.cross_entropy(out, graph.y, graph.train_mask, group=graph.group).backward()
        fullgraph.sum_gradients(model, graph.group)
        optimizer.step()
        del out


@pytest.mark.parametrize("name", ["sage", "gcn", "gin", "gat"])
def test_a_dry_run_allocates_and_spends_what_a_real_one_does(name: str) -> None:
    """Both under the same ledger; what differs is the loss, and checks of parameters."""
    nodes, options = 20_000, _options(name, hidden=32)
    partitioned = planted(1, nodes, 5 * nodes)
    graph = DistributedGraph.build(partitioned, Group())
    assert graph.x is not None
    assert graph.y is not None
    graph.edge_id  # noqa: B018  # read from a file, which the ledger does not see
    (own,) = graph.edges.blocks
    ledger = Ledger(NOMINAL)
    for ends in (own.offsets, own.t_offsets):
        ledger.note_edges(ends[1:], own.num_edges)
    held = [graph.x, graph.y, graph.node_id, own.offsets, own.cols, own.t_offsets, own.t_cols]
    gc.collect()
    with ledger:
        for tensor in [*held, *graph.masks.values()]:
            tensor.view(-1).view_as(tensor)  # seen, and so counted
        _train(graph, options)
        peak, start = ledger.peak, ledger.compute
        _train(graph, options, 1)
    (dry,) = _predict(1, options, "destination", "sequential", nodes)
    file = FILE_BYTES_AN_EDGE * own.num_edges
    assert dry.peak - file == pytest.approx(peak, rel=0.08)
    assert dry.compute == pytest.approx(ledger.compute - start, rel=0.1)
    assert dry.sent == 0


def _sent(group: Group, name: str, placement: str, schedule: str) -> tuple[int, int]:
    """Bytes sent in an epoch, and the rank that sent them."""
    graph = DistributedGraph.build(planted(group.size), group, schedule, placement=placement)
    _train(graph, _options(name))
    return graph.traffic.bytes_sent, group.rank


@pytest.mark.parametrize("name", list(MODELS))
def test_predicted_bytes_are_the_bytes_of_a_run(name: str) -> None:
    sent = run_ranks(_sent, 2, name, "destination", "sequential")
    predicted = _predict(2, _options(name), "destination", "sequential")
    assert [(dry.sent, rank) for rank, dry in enumerate(predicted)] == sent


@pytest.mark.parametrize("placement", ["grid:1x2x1", "grid:1x1x2"])
@pytest.mark.parametrize("schedule", ["sequential", "oneshot"])
def test_predicted_bytes_are_the_bytes_of_a_run_on_a_grid(placement: str, schedule: str) -> None:
    sent = run_ranks(_sent, 2, "sage", placement, schedule)
    predicted = _predict(2, _options("sage"), placement, schedule)
    assert [(dry.sent, rank) for rank, dry in enumerate(predicted)] == sent


def test_bytes_by_hand() -> None:
    """Of sage 3 × 8: the first layer's sums are kept; the others move min(in, out) columns both
    ways. Of gat: every layer fetches its rows twice, and sends gradients back once."""
    shares = count_shares(planted(2), 2)
    out, back = shares.gather[1][0], shares.gather[0][1]
    sage = _predict(2, _options("sage"), "destination", "sequential")[0]
    assert sage.sent == 4 * (8 + 5) * (out + back)
    gat = _predict(2, _options("gat"), "destination", "sequential")[0]
    columns = (8 + 2) + (8 + 2) + (2 * 5 + 2)
    assert gat.sent == 4 * columns * (2 * out + back)
    kept = _predict(2, _options("gat"), "destination", "oneshot")[0]
    assert kept.sent == 4 * columns * (out + back)


def test_more_workers_hold_less_and_oneshot_holds_more() -> None:
    def peak(size: int, schedule: str) -> int:
        runs = _predict(size, _options("gat", hidden=64), "destination", schedule, 20_000)
        return max(run.peak for run in runs)

    assert peak(4, "sequential") < peak(2, "sequential") < peak(1, "sequential")
    assert peak(4, "sequential") < peak(4, "oneshot")


def test_a_slower_network_takes_longer_and_not_more_work() -> None:
    from dataclasses import replace

    from fullgraph.planner.wire import Network

    partitioned = planted(2)
    shares, figures = count_shares(partitioned, 2), figures_of(partitioned)
    fast, slow = (
        predict_ranks(
            figures, shares, _options("sage"), "sequential",
            replace(MACHINE, network=Network(bandwidth=b)), [0],
        )[0]
        for b in (1e9, 1e6)
    )  # fmt: skip
    assert slow.seconds > fast.seconds + 0.9 * fast.sent / 1e6
    assert slow.compute == fast.compute
