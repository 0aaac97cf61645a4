"""Traffic: the bytes that each exchange moved, by layer, direction and peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Flow(NamedTuple):
    """One line of the account. ``direction``: "forward" or "backward"; ``peer``: the other rank,
    -1 for a collective of all ranks, whose bytes are those of this rank's tensor."""

    layer: str
    direction: str
    peer: int


ALL_RANKS = -1


@dataclass
class Traffic:
    """Bytes sent and received by this rank since `clear`, by layer, direction and peer."""

    sent: Counter[Flow] = field(default_factory=Counter)
    received: Counter[Flow] = field(default_factory=Counter)

    def clear(self) -> None:
        self.sent.clear()
        self.received.clear()

    @property
    def bytes_sent(self) -> int:
        return self.sent.total()

    @property
    def bytes_received(self) -> int:
        return self.received.total()

    def rows(self) -> Iterator[tuple[Flow, int, int]]:
        """(flow, bytes sent, bytes received), sorted."""
        for flow in sorted(set(self.sent) | set(self.received)):
            yield flow, self.sent[flow], self.received[flow]
