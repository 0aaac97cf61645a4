"""The dry run: a training step of the very code that trains, on tensors that have sizes and no
contents (on torch's device "meta"), and with a group that has no other end.

What it allocates, sends and spends is therefore what a rank of a real run does: no formula for any
model, schedule or placement is kept beside the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fullgraph.comm.distributed import DEFAULT_BLOCK_BYTES, DistributedGraph
from fullgraph.comm.schedule import Schedule
from fullgraph.nn.convert import convert
from fullgraph.ops.class_loss import cross_entropy_of_rows
from fullgraph.planner.dry_graph import dry_graph
from fullgraph.planner.figures import GraphFigures, Shares
from fullgraph.planner.ledger import Ledger
from fullgraph.planner.rates import Rates
from fullgraph.planner.wire import DryGroup, Network
from fullgraph.training.models import run_model

BUILD_BYTES_AN_EDGE = 32  # that building a block holds for a moment
FILE_BYTES_AN_EDGE = 8  # sources and targets, read from a part that stays mapped


@dataclass(frozen=True)
class DryRun:
    """What one rank does in an epoch of training; bytes and seconds.

    ``data``: what it holds before the first epoch; ``peak``: the most it ever holds, data
    included. ``sent``: by exchanges of layers, in an epoch that is not the first; ``compute``:
    those of ``seconds`` in which it works.
    """

    data: int
    peak: int
    sent: int
    seconds: float
    compute: float


def dry_run(
    figures: GraphFigures, shares: Shares, rank: int, build_model: Callable[[], torch.nn.Module],
    schedule: str | Schedule, rates: Rates, network: Network, wire: str = "float32",
    max_block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> DryRun:  # fmt: skip
    """Two epochs of training of one rank.

    Args:
        build_model: makes the model, not yet converted.
        max_block_bytes: as for `fullgraph.load`.
    """
    ledger = Ledger(rates)
    with torch.device("meta"), ledger:
        group = DryGroup(rank, shares.size, network, ledger)
        graph = dry_graph(
            figures, shares, group, Schedule.parse(schedule), wire, max_block_bytes, ledger
        )
        data = ledger.live + FILE_BYTES_AN_EDGE * shares.edges(rank)
        largest = max(block.edges for block in shares.blocks[rank])
        built = data + BUILD_BYTES_AN_EDGE * largest
        step = _Step(build_model(), graph, shares.labelled[rank])
        step.run()
        start, work = ledger.now, ledger.compute
        graph.traffic.clear()
        step.run()
    peak = max(built, ledger.peak + FILE_BYTES_AN_EDGE * shares.edges(rank))
    return DryRun(
        data, peak, graph.traffic.bytes_sent, ledger.now - start, ledger.compute - work
    )  # fmt: skip


class _Step:
    """Training as `fullgraph.training.fit` does it, but for what depends on contents."""

    def __init__(self, model: torch.nn.Module, graph: DistributedGraph, labelled: int) -> None:
        self.model, self.graph = convert(model), graph
        vars(self.model)["parameters_checked"] = True
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.rows = torch.empty(labelled, dtype=torch.int64)

    def run(self) -> None:
        group = self.graph.group
        self.model.train()
        self.optimizer.zero_grad()
        out = run_model(self.model, self.graph)
        mask = torch.empty(out.shape[0], dtype=torch.bool)
        y = torch.empty_like(self.rows)
        loss = cross_entropy_of_rows(out, self.rows, y)
        group.all_reduce(loss.detach().double(), "the loss")
        loss.backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if group.size > 1:
            group.all_reduce(torch.cat([g.reshape(-1) for g in gradients]), "gradients")
        self.optimizer.step()
        del mask
