"""Running compute over the blocks of a distributed graph: remote rows in, remote gradients out.

These functions know nothing of autograd; every operator's forward and backward pass is written
with them. `for_each_source` and `send_to_sources` are each other's adjoint; `fetch_and_send_back`
is both in one, for gradients that need the sources' rows again.

In a grid of K slices of the columns, tensors of owned rows come as K pieces, [n, F_k] each. A rank
works on one slice, that of `graph.feature_slice`: what it is called with has the columns of that.

Letters: n owned rows, S source rows of a chunk, H halo rows, F columns (of the slice).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.exchange import Exchange
from fullgraph.comm.plan import Message
from fullgraph.graph.blocks import Block, Chunk

UseRows = Callable[[Block, Chunk, Tensor], None]
FillRows = Callable[[Block, Chunk, Tensor], None]
UseAndFillRows = Callable[[Block, Chunk, Tensor, Tensor], None]
Pieces = Tensor | Sequence[Tensor]


def for_each_source(
    graph: DistributedGraph, x: Pieces, use: UseRows, *, layer: str, halo: Tensor | None = None
) -> None:
    """Call `use(block, chunk, rows)` for every chunk of edges, `rows` being its sources' rows of x.

    The rank's own block comes first, while the first remote rows are under way. Blocks come in
    ring order, so the order of sums depends on the number of ranks only.

    Args:
        x: [n, F], contiguous: the owned rows; or their pieces.
        halo: [H, F] to keep what is received in; without it a received chunk is freed after use.
    """
    rows = _Rows(graph, x)
    own = graph.edges.blocks[graph.group.rank]

    def allot(message: Message) -> Tensor:
        return rows.empty(message) if halo is None else rows.in_halo(message, halo)

    def take(message: Message, received: Tensor) -> None:
        use(*rows.block_and_chunk(message), received)

    Exchange(
        graph.group, graph.traffic, layer, "forward", make=rows.to_send, allot=allot, take=take,
        meanwhile=lambda: use(own, own.whole, rows.owned),
    ).run(graph.plan.fetch_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def send_to_sources(graph: DistributedGraph, dx: Pieces, fill: FillRows, *, layer: str) -> None:
    """Add what every block contributes to its sources' rows to dx on the rank that owns them.

    Args:
        dx: [n, F], contiguous, added to in place; or its pieces.
        fill: `fill(block, chunk, rows)` adds the chunk's contribution to `rows` [S, F], zero at
            first; for the rank's own block `rows` is dx itself.
    """
    rows = _Rows(graph, dx)
    own = graph.edges.blocks[graph.group.rank]

    def make(message: Message) -> Tensor:
        contribution = rows.empty(message).zero_()
        fill(*rows.block_and_chunk(message), contribution)
        return contribution

    Exchange(
        graph.group, graph.traffic, layer, "backward", make=make, allot=rows.empty_for_peer,
        take=rows.add_owned, meanwhile=lambda: fill(own, own.whole, rows.owned),
    ).run(graph.plan.return_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def fetch_and_send_back(
    graph: DistributedGraph, x: Pieces, dx: Pieces, use: UseAndFillRows, *, layer: str,
    halo: Tensor | None = None,
) -> None:  # fmt: skip
    """Add to dx, on the owners, a gradient that depends on the sources' rows of x.

    Args:
        x, dx: [n, F], contiguous, or their pieces; dx is added to in place.
        use: `use(block, chunk, rows, contribution)` reads the sources' `rows` [S, F] and adds to
            `contribution` [S, F], zero at first; for the own block these are x and dx themselves.
        halo: [H, F], the remote rows if they were kept; without it they are fetched again.
    """
    rows = _Rows(graph, x)
    own = graph.edges.blocks[graph.group.rank]
    if halo is not None:
        send_to_sources(
            graph, dx,
            lambda block, chunk, contribution: use(
                block, chunk,
                rows.owned if block is own else rows.kept(block, chunk, halo), contribution,
            ),
            layer=layer,
        )  # fmt: skip
        return

    gradients = _Rows(graph, dx)

    def take(message: Message, received: Tensor) -> Tensor:
        contribution = gradients.owned.new_zeros(received.shape)
        use(*rows.block_and_chunk(message), received, contribution)
        return contribution

    Exchange(
        graph.group, graph.traffic, layer, "backward", make=rows.to_send, allot=rows.empty,
        take=take, meanwhile=lambda: use(own, own.whole, rows.owned, gradients.owned),
        take_reply=gradients.add_owned, allot_reply=gradients.empty_for_peer,
    ).run(graph.plan.fetch_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def for_each_kept(graph: DistributedGraph, x: Pieces, use: UseRows, *, halo: Tensor) -> None:
    """`for_each_source` with remote rows that were kept: no exchange."""
    rows = _Rows(graph, x)
    own = graph.edges.blocks[graph.group.rank]
    use(own, own.whole, rows.owned)
    for step in range(1, graph.group.size):
        block = graph.edges.blocks[(graph.group.rank + step) % graph.group.size]
        for chunk in block.chunks(rows.max_rows):
            use(block, chunk, rows.kept(block, chunk, halo))


def new_halo(graph: DistributedGraph, x: Pieces) -> Tensor:
    """An empty [H, F] for the rows that this rank needs of the others."""
    mine = _Rows(graph, x).owned
    return mine.new_empty(graph.plan.halo_offsets[-1], mine.shape[1])


class _Rows:
    """The rows of one tensor [n, F], or of its pieces, as the messages of a plan see them.

    ``owned``: the columns that this rank works on.
    """

    def __init__(self, graph: DistributedGraph, rows: Pieces) -> None:
        self.graph = graph
        self.pieces = [rows] if isinstance(rows, Tensor) else rows
        self.owned = self.pieces[graph.feature_slice]
        # The same on all ranks, whichever slice each works on.
        widest = max(piece.shape[1] for piece in self.pieces)
        self.max_rows = graph.max_rows(self.owned.element_size() * widest)
        self._halo_offsets = graph.plan.halo_offsets

    def empty(self, message: Message) -> Tensor:
        return self.owned.new_empty(message.num_rows, self.owned.shape[1])

    def empty_for_peer(self, message: Message) -> Tensor:
        return self.owned.new_empty(message.num_rows, self._of_peer(message).shape[1])

    def to_send(self, message: Message) -> Tensor:
        owned = self._of_peer(message)
        if self.graph.plan.send_rows[message.peer].numel() == owned.shape[0]:  # all rows, in order
            return owned[message.first_row : message.last_row]
        out = self.empty_for_peer(message)
        kernels.gather_rows(owned, self._owned_rows(message), out)
        return out

    def add_owned(self, message: Message, rows: Tensor) -> None:
        kernels.scatter_add_rows(self._of_peer(message), self._owned_rows(message), rows)

    def in_halo(self, message: Message, halo: Tensor) -> Tensor:
        first = self._halo_offsets[message.peer]
        return halo[first + message.first_row : first + message.last_row]

    def kept(self, block: Block, chunk: Chunk, halo: Tensor) -> Tensor:
        return self.in_halo(Message(block.source_rank, chunk.first_row, chunk.last_row), halo)

    def block_and_chunk(self, message: Message) -> tuple[Block, Chunk]:
        block = self.graph.edges.blocks[message.peer]
        return block, block.chunks(self.max_rows)[message.first_row // self.max_rows]

    def _of_peer(self, message: Message) -> Tensor:
        """The columns that the other end works on."""
        return self.pieces[self.graph.placement.coordinates(message.peer)[2]]

    def _owned_rows(self, message: Message) -> Tensor:
        return self.graph.plan.send_rows[message.peer][message.first_row : message.last_row]
