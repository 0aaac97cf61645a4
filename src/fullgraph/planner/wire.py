"""A group whose messages have sizes and arrival times and no contents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fullgraph.comm.group import Group
from fullgraph.planner.ledger import Ledger


@dataclass(frozen=True)
class Network:
    """The α–β model: a message of b bytes takes ``latency`` + b / ``bandwidth`` seconds; the two
    directions are independent.

    ``overlap``: whether messages travel while a worker computes. Where workers share a machine,
    moving bytes is work of the same cores.
    """

    bandwidth: float = 1.25e9
    latency: float = 5e-5
    overlap: bool = True


@dataclass(frozen=True)
class _Arrival:
    """When a message is there. (torch's Work, as far as `Group.wait` goes.)"""

    at: float


class DryGroup(Group):
    """A rank among `size`, of which the others exist in so far as they do what this one does."""

    def __init__(self, rank: int, size: int, network: Network, ledger: Ledger) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.network, self.ledger = network, ledger
        self._in_free = self._out_free = 0.0

    def post(
        self, receive: tuple[Tensor, int] | None, send: tuple[Tensor, int] | None,
        context: str = "",
    ) -> tuple[Any, Any]:  # fmt: skip
        now, network = self.ledger.now, self.network
        arriving = leaving = None
        if receive is not None:
            self._in_free = max(self._in_free, now) + receive[0].nbytes / network.bandwidth
            arriving = _Arrival(self._in_free + network.latency)
        if send is not None:
            self._out_free = max(self._out_free, now) + send[0].nbytes / network.bandwidth
            leaving = _Arrival(self._out_free)
        if not network.overlap:
            ends = [w.at for w in (arriving, leaving) if w is not None]
            self.ledger.now = max([now, *ends])
        return arriving, leaving

    def wait(self, work: Any, operation: str) -> None:
        self.ledger.now = max(self.ledger.now, work.at)

    def all_reduce(self, tensor: Tensor, operation: str) -> Tensor:
        steps = math.ceil(math.log2(self.size)) if self.size > 1 else 0
        share = 2 * (self.size - 1) / self.size
        network = self.network
        self.ledger.now += 2 * steps * network.latency + share * tensor.nbytes / network.bandwidth
        return tensor
