"""Rows that a rank computes partial results for, where edges live elsewhere than their targets.

Letters: n owned rows, T targets: the n own rows first, then those of other ranks by owner and row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.comm.group import Group
from fullgraph.comm.placed_edges import PlacedEdges
from fullgraph.comm.plan import ExchangePlan


@dataclass(frozen=True, eq=False)
class Targets:
    """``plan``: fetches rows of other ranks' targets to here, and returns partial results to their
    owners. ``placed``: where edges, and the values on them, are read from. ``node_id``: int64 [T],
    original ids."""

    plan: ExchangePlan
    placed: PlacedEdges
    node_id: Tensor

    @staticmethod
    def build(group: Group, placed: PlacedEdges, needed: list[Tensor], node_id: Tensor) -> Targets:
        """needed: int32, of each rank the rows that edges here end in; node_id: int64 [n], of the
        owned rows. Every rank calls it."""
        targets = Targets(ExchangePlan.build(group, needed), placed, node_id)
        return replace(targets, node_id=targets.fetch(group, node_id, "ids of targets"))

    @property
    def num_rows(self) -> int:
        return self.node_id.numel()

    def to(self, device: torch.device | str) -> Targets:
        send_rows = tuple(rows.to(device) for rows in self.plan.send_rows)
        plan = replace(self.plan, send_rows=send_rows)
        return replace(self, plan=plan, node_id=self.node_id.to(device))

    def first_row(self, owner: int) -> int:
        """The first target that this other rank owns."""
        num_own = self.num_rows - self.plan.halo_offsets[-1]
        return num_own + self.plan.halo_offsets[owner]

    def fetch(self, group: Group, rows: Tensor, what: str) -> Tensor:
        """[T, ...] from every owner's [n, ...]. For setting up; steps use `ops.targets`."""
        outgoing = [rows[of_rank.long()] for of_rank in self.plan.send_rows]
        incoming = [rows.new_empty(count, *rows.shape[1:]) for count in self.plan.num_needed]
        group.exchange(outgoing, incoming, what)
        return torch.cat([rows, *incoming])

    def sum_to_owners(self, group: Group, partial: Tensor, what: str) -> Tensor:
        """[n, ...]: the sums of all ranks' [T, ...]. For setting up; steps use `ops.targets`."""
        sizes = [self.num_rows - sum(self.plan.num_needed), *self.plan.num_needed]
        own, *outgoing = partial.split(sizes)
        incoming = [partial.new_empty(r.numel(), *partial.shape[1:]) for r in self.plan.send_rows]
        group.exchange([*outgoing], incoming, what)
        total = own.clone()
        for rows, values in zip(self.plan.send_rows, incoming):
            total.index_add_(0, rows.long(), values)
        return total
