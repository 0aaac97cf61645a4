"""Running compute over the blocks of a distributed graph: remote rows in, remote gradients out.

These functions know nothing of autograd; every operator's forward and backward pass is written
with them. `for_each_source` and `send_to_sources` are each other's adjoint; `fetch_and_send_back`
is both in one, for gradients that need the sources' rows again.

Where remote rows are stale or left out (`fullgraph.comm.stale`), that happens here, and operators
do not notice: what they get is a `Call`, which they give back for the backward pass.

In a grid of K slices of the columns, tensors of owned rows come as K pieces, [n, F_k] each. A rank
works on one slice, that of `graph.feature_slice`: what it is called with has the columns of that.

Letters: n owned rows, S source rows of a chunk, H halo rows, F columns (of the slice).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.exchange import Exchange, wire_dtype
from fullgraph.comm.plan import ExchangePlan, Message
from fullgraph.comm.stale import Call
from fullgraph.graph.blocks import Block, Chunk

UseRows = Callable[[Block, Chunk, Tensor], None]
FillRows = Callable[[Block, Chunk, Tensor], None]
UseAndFillRows = Callable[[Block, Chunk, Tensor, Tensor], None]
Pieces = Tensor | Sequence[Tensor]


def for_each_source(
    graph: DistributedGraph, x: Pieces, use: UseRows, *, layer: str | Call,
    halo: Tensor | None = None, as_is: bool = False, recorded: bool = False,
) -> Call:  # fmt: skip
    """Call `use(block, chunk, rows)` for every chunk of edges, `rows` being its sources' rows of x.

    The rank's own block comes first, while the first remote rows are under way. Blocks come in
    ring order, so the order of sums depends on the number of ranks only.

    Args:
        x: [n, F], contiguous: the owned rows; or their pieces.
        layer: for the account; in a backward pass the `Call` of the forward pass.
        halo: [H, F] to keep the remote rows in; without it a received chunk is freed after use.
        as_is: x has more than numbers in it, so that it travels in no other dtype.
        recorded: a backward pass follows, in which more is held: messages may be larger. Not where
            it computes something of a chunk again that has to be the same to the bit.

    Returns what the gradient of this call is to be given as its layer.
    """
    rows = _Rows(graph, x, recorded=recorded)
    call = graph.stale.call(graph, layer)
    if call.remote == "fresh":
        _fetch(rows, use, call.layer, halo, as_is)
    elif call.remote == "stale":
        _use_stale(rows, use, call, halo, as_is)
    else:
        _on_own_block(rows, use)
    return call


def _fetch(rows: _Rows, use: UseRows, layer: str, halo: Tensor | None, as_is: bool) -> None:
    def allot(message: Message) -> Tensor:
        return rows.empty(message) if halo is None else rows.in_halo(message, halo)

    def take(message: Message, received: Tensor) -> None:
        use(*rows.block_and_chunk(message), received)

    graph = rows.graph
    exchange(
        graph, layer, "forward", as_is, make=rows.to_send, allot=allot, take=take,
        meanwhile=lambda: _on_own_block(rows, use),
    ).run(graph.plan.fetch_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def _use_stale(rows: _Rows, use: UseRows, call: Call, halo: Tensor | None, as_is: bool) -> None:
    """Remote rows as they came last, while those of one bin travel, for the next pass."""
    graph, stale = rows.graph, rows.graph.stale
    bins = stale.bins(graph)
    key, form = f"{call.key}.rows", (bins.signature, *rows.form)
    halo = rows.new_halo() if halo is None else halo
    by_peer = list(halo.split(list(graph.plan.num_needed)))
    kept = stale.find(key, form)
    if kept is None:
        _fetch(rows, use, call.layer, halo, as_is)
        stale.start(key, by_peer, form)
        return
    now = kept.next_turn(bins, returning=False, into=by_peer)
    of_bin = _Rows(graph, rows.pieces, now.plan)

    def allot(message: Message) -> Tensor:
        return kept.arrived[message.peer][message.first_row : message.last_row]

    exchange(
        graph, call.layer, "forward", as_is, make=of_bin.to_send, allot=allot,
        take=lambda message, received: None, meanwhile=lambda: _on_kept(rows, use, halo),
    ).run(now.plan.fetch_ticks(rows.max_rows), sys.maxsize)  # fmt: skip


def send_to_sources(
    graph: DistributedGraph, dx: Pieces, fill: FillRows, *, layer: str | Call,
    as_is: bool = False, writes: bool = False,
) -> Call:  # fmt: skip
    """Add what every block contributes to its sources' rows to dx on the rank that owns them.

    Args:
        dx: [n, F], contiguous, added to in place; or its pieces.
        fill: `fill(block, chunk, rows)` adds the chunk's contribution to `rows` [S, F], zero at
            first; for the rank's own block, which comes first, `rows` is dx itself.
        writes: `fill` writes to all of `rows` instead, which is not initialised; dx is then as
            `new_gradients` gives it.
        layer, as_is: as for `for_each_source`, which is the gradient of this.
    """
    rows = _Rows(graph, dx, writes=writes)
    call = graph.stale.call(graph, layer)
    if call.remote == "fresh":
        _send(rows, fill, call.layer, rows.add_owned, as_is)
    elif call.remote == "stale":
        _send_stale(rows, fill, call, as_is)
    else:
        _on_own_block(rows, fill)
    return call


def _send(
    rows: _Rows, fill: FillRows, layer: str, take: Callable[[Message, Tensor], None], as_is: bool
) -> None:
    def make(message: Message) -> Tensor:
        contribution = rows.empty_or_zero(message)
        fill(*rows.block_and_chunk(message), contribution)
        return contribution

    graph = rows.graph
    exchange(
        graph, layer, "backward", as_is, make=make, allot=rows.empty_for_peer, take=take,
        meanwhile=lambda: _on_own_block(rows, fill),
    ).run(graph.plan.return_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def _send_stale(rows: _Rows, fill: FillRows, call: Call, as_is: bool) -> None:
    """Contributions of other ranks as they came last, of which those of one bin do so now. All are
    computed, as `fill` may have more to say than what is sent."""
    graph, stale = rows.graph, rows.graph.stale
    bins = stale.bins(graph)
    key, form = f"{call.key}.gradients", (bins.signature, *rows.form)
    kept = stale.find(key, form)
    if kept is None:
        received = rows.empty_for_owner()

        def keep(message: Message, contribution: Tensor) -> None:
            received[message.peer][message.first_row : message.last_row] = contribution
            rows.add_owned(message, contribution)

        _send(rows, fill, call.layer, keep, as_is)
        stale.start(key, received, form)
        return
    now = kept.next_turn(bins, returning=True, into=None)
    leaving: list[list[Tensor]] = [[] for _ in graph.edges.blocks]
    for block, chunk in _remote_chunks(rows):
        contribution = rows.empty_or_zero(_message_of(block, chunk))
        fill(block, chunk, contribution)
        places = now.needed[block.source_rank]
        chosen = places[(places >= chunk.first_row) & (places < chunk.last_row)]
        leaving[block.source_rank].append(contribution[chosen - chunk.first_row])

    outgoing = [torch.cat(pieces) if pieces else rows.owned[:0] for pieces in leaving]
    exchange(
        graph, call.layer, "backward", as_is,
        make=lambda message: outgoing[message.peer][message.first_row : message.last_row],
        allot=lambda message: kept.arrived[message.peer][message.first_row : message.last_row],
        take=lambda message, received: None, meanwhile=lambda: _on_own_block(rows, fill),
    ).run(now.plan.return_ticks(rows.max_rows), sys.maxsize)  # fmt: skip
    kept.settle(now.sent)
    for peer, contribution in enumerate(kept.rows):
        rows.add_owned(Message(peer, 0, contribution.shape[0]), contribution)


def fetch_and_send_back(
    graph: DistributedGraph, x: Pieces, dx: Pieces, use: UseAndFillRows, *, layer: str | Call,
    halo: Tensor | None = None, as_is: bool = False, writes: bool = False,
) -> None:  # fmt: skip
    """Add to dx, on the owners, a gradient that depends on the sources' rows of x.

    Args:
        x, dx: [n, F], contiguous, or their pieces; dx is added to in place.
        use: `use(block, chunk, rows, contribution)` reads the sources' `rows` [S, F] and adds to
            `contribution` [S, F], zero at first; for the own block these are x and dx themselves.
        layer: the `Call` that the forward pass gave.
        halo: [H, F], the remote rows if they were kept; without it they are fetched again.
        as_is: as for `for_each_source`. writes: as for `send_to_sources`, of `contribution`.
    """
    rows = _Rows(graph, x)
    own = graph.edges.blocks[graph.group.rank]
    call = graph.stale.call(graph, layer)
    if halo is not None:
        send_to_sources(
            graph, dx,
            lambda block, chunk, contribution: use(
                block, chunk,
                rows.owned if block is own else rows.kept(block, chunk, halo), contribution,
            ),
            layer=call, writes=writes,
        )  # fmt: skip
        return

    gradients = _Rows(graph, dx, writes=writes)

    def take(message: Message, received: Tensor) -> Tensor:
        contribution = gradients.empty_or_zero(message)
        use(*rows.block_and_chunk(message), received, contribution)
        return contribution

    exchange(
        graph, call.layer, "backward", as_is, make=rows.to_send, allot=rows.empty,
        take=take, meanwhile=lambda: use(own, own.whole, rows.owned, gradients.owned),
        take_reply=gradients.add_owned, allot_reply=gradients.empty_for_peer,
    ).run(graph.plan.fetch_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def for_each_kept(
    graph: DistributedGraph, x: Pieces, use: UseRows, *, halo: Tensor, layer: str | Call
) -> Call:
    """`for_each_source` with remote rows that were kept: no exchange."""
    rows = _Rows(graph, x)
    call = graph.stale.call(graph, layer)
    if call.remote == "none":
        _on_own_block(rows, use)
    else:
        _on_kept(rows, use, halo)
    return call


def new_gradients(
    graph: DistributedGraph, like: Tensor, widths: Sequence[int], dtype: torch.dtype | None = None
) -> list[Tensor]:
    """[m, F_k] of each slice, for gradients of sources that are written and then added to: not
    initialised for the slice of this rank, zeros for the others."""

    def make(k: int, width: int) -> Tensor:
        new = kernels.new_empty if k == graph.feature_slice else kernels.new_zeros
        return new(like, graph.num_sources, width, dtype=dtype)

    return [make(k, width) for k, width in enumerate(widths)]


def new_halo(graph: DistributedGraph, x: Pieces) -> Tensor:
    """An empty [H, F] for the rows that this rank needs of the others; H is 0 where they are left
    out."""
    halo = _Rows(graph, x).new_halo()
    return halo[:0] if graph.stale.leaves_out(graph) else halo


# ---- Small steps --------------------------------------------------------------------------------


def exchange(
    graph: DistributedGraph, layer: str, direction: str, as_is: bool = False, **moves: Any
) -> Exchange:
    """An `Exchange` among the ranks of a graph, on its account and its wire.

    layer, direction: for the account. as_is: rows travel in their own dtype, whatever the wire.
    moves: the rest of what an `Exchange` takes.
    """
    wire = None if as_is else wire_dtype(graph.wire)
    return Exchange(graph.group, graph.traffic, layer, direction, wire=wire, **moves)


def _on_own_block(rows: _Rows, use: UseRows | FillRows) -> None:
    own = rows.graph.edges.blocks[rows.graph.group.rank]
    use(own, own.whole, rows.owned)


def _on_kept(rows: _Rows, use: UseRows, halo: Tensor) -> None:
    _on_own_block(rows, use)
    for block, chunk in _remote_chunks(rows):
        use(block, chunk, rows.kept(block, chunk, halo))


def _remote_chunks(rows: _Rows) -> Iterator[tuple[Block, Chunk]]:
    """In the order of the ring, in which the others' rows arrive."""
    group, blocks = rows.graph.group, rows.graph.edges.blocks
    for step in range(1, group.size):
        block = blocks[(group.rank + step) % group.size]
        for chunk in block.chunks(rows.max_rows):
            yield block, chunk


def _message_of(block: Block, chunk: Chunk) -> Message:
    return Message(block.source_rank, chunk.first_row, chunk.last_row)


class _Rows:
    """The rows of one tensor [n, F], or of its pieces, as the messages of a plan see them.

    ``owned``: the columns that this rank works on. ``plan``: by default the graph's. ``writes``:
    whether contributions are written, rather than added to zeros. ``recorded``: as for
    `for_each_source`. Without it the chunks of a block are the same in every pass: a product of
    fewer rows may round otherwise.
    """

    def __init__(
        self, graph: DistributedGraph, rows: Pieces, plan: ExchangePlan | None = None,
        writes: bool = False, recorded: bool = False,
    ) -> None:  # fmt: skip
        self.graph, self.plan, self.writes = graph, plan or graph.plan, writes
        self.pieces = [rows] if isinstance(rows, Tensor) else rows
        self.owned = self.pieces[graph.feature_slice]
        # The same on all ranks, whichever slice each works on.
        widest = max(piece.shape[1] for piece in self.pieces)
        self.max_rows = graph.rows_of_message(self.owned.element_size() * widest, recorded)
        self._halo_offsets = self.plan.halo_offsets

    @property
    def form(self) -> tuple[int, int]:
        """What is the same on all ranks: all columns, and the bytes of an element."""
        return sum(piece.shape[1] for piece in self.pieces), self.owned.element_size()

    def new_halo(self) -> Tensor:
        """[H, F], empty."""
        return kernels.new_empty(self.owned, self._halo_offsets[-1], self.owned.shape[1])

    def empty_for_owner(self) -> list[Tensor]:
        """[S, F] of every peer: what it contributes to the rows that it needs."""
        return [
            kernels.new_empty(self.owned, rows.numel(), self._of_peer(Message(peer, 0, 0)).shape[1])
            for peer, rows in enumerate(self.plan.send_rows)
        ]

    def empty(self, message: Message) -> Tensor:
        return kernels.new_empty(self.owned, message.num_rows, self.owned.shape[1])

    def empty_or_zero(self, message: Message) -> Tensor:
        rows = self.empty(message)
        return rows if self.writes else rows.zero_()

    def empty_for_peer(self, message: Message) -> Tensor:
        num_columns = self._of_peer(message).shape[1]
        return kernels.new_empty(self.owned, message.num_rows, num_columns)

    def to_send(self, message: Message) -> Tensor:
        owned = self._of_peer(message)
        run = self.plan.runs[message.peer]
        if run is not None:  # from where they are
            return owned[run][message.first_row : message.last_row]
        out = self.empty_for_peer(message)
        kernels.gather_rows(owned, self._owned_rows(message), out)
        return out

    def add_owned(self, message: Message, rows: Tensor) -> None:
        kernels.scatter_add_rows(self._of_peer(message), self._owned_rows(message), rows)

    def in_halo(self, message: Message, halo: Tensor) -> Tensor:
        first = self._halo_offsets[message.peer]
        return halo[first + message.first_row : first + message.last_row]

    def kept(self, block: Block, chunk: Chunk, halo: Tensor) -> Tensor:
        return self.in_halo(_message_of(block, chunk), halo)

    def block_and_chunk(self, message: Message) -> tuple[Block, Chunk]:
        block = self.graph.edges.blocks[message.peer]
        return block, block.chunks(self.max_rows)[message.first_row // self.max_rows]

    def _of_peer(self, message: Message) -> Tensor:
        """The columns that the other end works on."""
        return self.pieces[self.graph.placement.slice_of(message.peer)]

    def _owned_rows(self, message: Message) -> Tensor:
        return self.plan.send_rows[message.peer][message.first_row : message.last_row]
