"""Running a plan: the one loop through which rows travel, whatever the schedule.

All ranks go through the same grid of ticks (ring step, message) in the same order. At a tick a
rank posts what it receives and what it sends, and it completes a tick once `prefetch` later ones
are posted. A wait therefore depends only on posts that come earlier in that order and, where a send
is over when it was read, on the other rank's wait for the same tick, before which it waits for
earlier ticks only. So ranks cannot block each other in a circle, whatever the sizes, and two ranks
always post the messages between them in the same order, so none needs a tag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fullgraph.comm.group import Group
from fullgraph.comm.plan import Message, Tick
from fullgraph.comm.spans import EXCHANGE, span
from fullgraph.comm.traffic import Flow, Traffic

WIRES = {"float32": None, "bf16": torch.bfloat16}


def wire_dtype(wire: str) -> torch.dtype | None:
    """What rows are rounded to on their way; None for their own dtype.

    Raises ValueError for a wire that there is not.
    """
    if wire not in WIRES:
        raise ValueError(
            "wire must be 'float32', where rows travel in their own dtype, or, approximately, "
            f"'bf16'; got {wire!r}"
        )
    return WIRES[wire]


@dataclass
class Exchange:
    """One exchange of a layer: what to send, where to receive, what to do on arrival.

    Args:
        layer, direction: for the account and for errors.
        make: the rows of an outgoing message, contiguous.
        allot: a contiguous buffer for an incoming message.
        take: uses an incoming message; its buffer is free afterwards. In an exchange with replies
            it returns what goes back to the sender.
        meanwhile: work that needs nothing remote, done once the first messages are under way.
        take_reply: uses the reply to an outgoing message; None: there are no replies.
        allot_reply: a buffer for the reply to an outgoing message; by default that of `allot`.
        wire: the dtype of floating-point rows on their way, where theirs is wider; None: theirs.
    """

    group: Group
    traffic: Traffic
    layer: str
    direction: str
    make: Callable[[Message], Tensor]
    allot: Callable[[Message], Tensor]
    take: Callable[[Message, Tensor], Tensor | None]
    meanwhile: Callable[[], None]
    take_reply: Callable[[Message, Tensor], None] | None = None
    allot_reply: Callable[[Message], Tensor] | None = None
    wire: torch.dtype | None = None

    def run(self, ticks: Iterable[Tick], prefetch: int) -> None:
        flying: deque[_Flight] = deque()
        pending = iter(ticks)
        for tick in pending:
            flying.append(self._post(tick.out, tick.into, self.allot))
            if len(flying) > prefetch:
                break
        self.meanwhile()
        replies: deque[_Flight] = deque()
        for tick in pending:
            self._complete(flying.popleft(), replies)
            flying.append(self._post(tick.out, tick.into, self.allot))
        while flying:
            self._complete(flying.popleft(), replies)
        while replies:
            self._complete_reply(replies.popleft())

    def _post(
        self, out: Message | None, into: Message | None, allot: Callable[[Message], Tensor],
        leaving: Tensor | None = None,
    ) -> _Flight:  # fmt: skip
        flight = _Flight(out, into)
        if out is not None:
            leaving = self.make(out) if leaving is None else leaving
            flight.leaving = self._rounded(leaving)
            self.traffic.sent[self._flow(out)] += flight.leaving.nbytes
        if into is not None:
            flight.place = allot(into)
            flight.arriving = flight.place
            dtype = self._on_wire(flight.place.dtype)
            if dtype != flight.place.dtype:
                flight.arriving = torch.empty_like(flight.place, dtype=dtype)
        flight.receive, flight.send = self.group.post(
            _move(flight.arriving, into), _move(flight.leaving, out), self._context()
        )
        return flight

    def _complete(self, flight: _Flight, replies: deque[_Flight]) -> None:
        answer = None
        rows = self._arrived(flight)
        if self.take_reply is not None:  # rows that have left, and then those used, make room
            self._left(flight)
        if flight.into is not None and rows is not None:
            answer = self.take(flight.into, rows)
        self._left(flight)
        flight.place = flight.arriving = rows = None
        if self.take_reply is not None:
            allot = self.allot_reply or self.allot
            replies.append(self._post(flight.into, flight.out, allot, answer))
            answer = None
            if len(replies) > 1:
                self._complete_reply(replies.popleft())

    def _complete_reply(self, flight: _Flight) -> None:
        rows = self._arrived(flight)
        if flight.into is not None and rows is not None and self.take_reply is not None:
            self.take_reply(flight.into, rows)
        self._left(flight)

    def _arrived(self, flight: _Flight) -> Tensor | None:
        if flight.into is not None and flight.arriving is not None:
            if flight.receive is not None:
                self.group.wait(flight.receive, self._operation("receiving", flight.into, "from"))
                flight.receive = None  # it holds the rows, too
            self.traffic.received[self._flow(flight.into)] += flight.arriving.nbytes
            if flight.place is not None and flight.place is not flight.arriving:
                with span(f"{EXCHANGE}from the wire's dtype"):
                    flight.place.copy_(flight.arriving)
                flight.arriving = None
        return flight.place

    def _rounded(self, rows: Tensor) -> Tensor:
        dtype = self._on_wire(rows.dtype)
        if dtype == rows.dtype:
            return rows
        with span(f"{EXCHANGE}to the wire's dtype"):
            return rows.to(dtype)

    def _on_wire(self, dtype: torch.dtype) -> torch.dtype:
        is_wide = dtype.is_floating_point and self.wire and dtype.itemsize > self.wire.itemsize
        return self.wire if self.wire is not None and is_wide else dtype

    def _left(self, flight: _Flight) -> None:
        if flight.out is not None and flight.send is not None:
            self.group.wait(flight.send, self._operation("sending", flight.out, "to"))
        flight.leaving = flight.send = None

    def _flow(self, message: Message) -> Flow:
        return Flow(self.layer, self.direction, message.peer)

    def _operation(self, verb: str, message: Message, preposition: str) -> str:
        return f"{verb} {message.num_rows} rows {preposition} rank {message.peer}{self._context()}"

    def _context(self) -> str:
        return f" in the {self.direction} pass of layer {self.layer!r}"


def _move(tensor: Tensor | None, message: Message | None) -> tuple[Tensor, int] | None:
    """What there is to post; nothing for rows without columns."""
    if tensor is None or message is None or tensor.numel() == 0:
        return None
    return tensor, message.peer


@dataclass
class _Flight:
    """A posted tick. ``place``: where what arrives goes; ``arriving``: what it arrives in."""

    out: Message | None
    into: Message | None
    place: Tensor | None = None
    arriving: Tensor | None = None
    receive: dist.Work | None = None
    leaving: Tensor | None = None
    send: dist.Work | None = None
