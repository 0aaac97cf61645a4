"""The exchange plan: who sends which rows to whom, built once and then frozen.

Letters: W ranks, S rows that one rank needs of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.comm.group import Group


class Message(NamedTuple):
    """Rows first_row .. last_row - 1 of what one rank needs of another; `peer` is the other end."""

    peer: int
    first_row: int
    last_row: int

    @property
    def num_rows(self) -> int:
        return self.last_row - self.first_row


class Tick(NamedTuple):
    """What a rank posts at one moment of an exchange: a message out, one in, both or neither."""

    out: Message | None
    into: Message | None


@dataclass(frozen=True)
class ExchangePlan:
    """Rows that flow from their owners to where edges need them, and results that flow back.

    ``send_rows[r]``: int32 [S], the owned rows that rank r needs, ascending and distinct.
    ``counts[p][q]``: how many rows rank p needs of rank q; known to all ranks, so that all go
    through the same grid of ticks and post in the same order. The diagonal is 0.
    """

    rank: int
    send_rows: tuple[Tensor, ...]
    counts: tuple[tuple[int, ...], ...]

    @staticmethod
    def build(group: Group, needed: list[Tensor]) -> ExchangePlan:
        """Tell every owner which of its rows this rank needs: needed[r] is int32 [S]."""
        sizes = torch.zeros(group.size, group.size, dtype=torch.int64)
        sizes[group.rank] = torch.tensor([rows.numel() for rows in needed])
        group.all_reduce(sizes, "the sizes of the exchange plan")
        send_rows = [torch.empty(n, dtype=torch.int32) for n in sizes[:, group.rank].tolist()]
        group.exchange(needed, send_rows, "the exchange plan")
        counts = tuple(tuple(row) for row in sizes.tolist())
        return ExchangePlan(group.rank, tuple(send_rows), counts)

    @property
    def size(self) -> int:
        return len(self.counts)

    @property
    def num_needed(self) -> tuple[int, ...]:
        """How many rows this rank needs of each rank."""
        return self.counts[self.rank]

    @property
    def halo_offsets(self) -> list[int]:
        """Where each rank's rows start when all that this rank needs are laid end to end; W + 1."""
        return [0, *accumulate(self.num_needed)]

    @cached_property
    def runs(self) -> tuple[slice | None, ...]:
        """The owned rows that each rank needs where they are consecutive, otherwise None."""
        return tuple(_run(rows) for rows in self.send_rows)

    def fetch_ticks(self, max_rows: int) -> Iterator[Tick]:
        """Rows to where they are needed, in a ring; messages of at most `max_rows` rows."""
        for step in range(1, self.size):
            to, source = (self.rank - step) % self.size, (self.rank + step) % self.size
            longest = max(self.counts[r][(r + step) % self.size] for r in range(self.size))
            for first in range(0, longest, max_rows):
                yield Tick(
                    _message(to, first, self.counts[to][self.rank], max_rows),
                    _message(source, first, self.counts[self.rank][source], max_rows),
                )

    def return_ticks(self, max_rows: int) -> Iterator[Tick]:
        """Results back to the owners: the adjoint of `fetch_ticks`, out and in exchanged."""
        for out, into in self.fetch_ticks(max_rows):
            yield Tick(out=into, into=out)

    def predicted_bytes(self, row_bytes: int) -> tuple[list[int], list[int]]:
        """Bytes sent to each rank by one fetch, and by one return, of rows of `row_bytes`."""
        fetch = [self.counts[r][self.rank] * row_bytes for r in range(self.size)]
        return fetch, [n * row_bytes for n in self.num_needed]


def _run(rows: Tensor) -> slice | None:
    first, last = (int(rows[0]), int(rows[-1])) if rows.numel() else (0, -1)
    return slice(first, last + 1) if 0 < rows.numel() == last + 1 - first else None


def _message(peer: int, first: int, num_rows: int, max_rows: int) -> Message | None:
    return Message(peer, first, min(first + max_rows, num_rows)) if first < num_rows else None
