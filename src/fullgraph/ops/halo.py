"""Running compute over the blocks of a distributed graph: remote rows in, remote gradients out.

These functions know nothing of autograd; every operator's forward and backward pass is written
with them. `for_each_source` and `send_to_sources` are each other's adjoint; `fetch_and_send_back`
is both in one, for gradients that need the sources' rows again.

Letters: n owned rows, S source rows of a chunk, H halo rows, F columns.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.exchange import Exchange
from fullgraph.comm.plan import Message
from fullgraph.graph.blocks import Block, Chunk

UseRows = Callable[[Block, Chunk, Tensor], None]
FillRows = Callable[[Block, Chunk, Tensor], None]
UseAndFillRows = Callable[[Block, Chunk, Tensor, Tensor], None]


def for_each_source(
    graph: DistributedGraph, x: Tensor, use: UseRows, *, layer: str, halo: Tensor | None = None
) -> None:
    """Call `use(block, chunk, rows)` for every chunk of edges, `rows` being its sources' rows of x.

    The rank's own block comes first, while the first remote rows are under way. Blocks come in
    ring order, so the order of sums depends on the number of ranks only.

    Args:
        x: [n, F], contiguous: the owned rows.
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
        meanwhile=lambda: use(own, own.whole, x),
    ).run(graph.plan.fetch_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def send_to_sources(graph: DistributedGraph, dx: Tensor, fill: FillRows, *, layer: str) -> None:
    """Add what every block contributes to its sources' rows to dx on the rank that owns them.

    Args:
        dx: [n, F], contiguous, added to in place.
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
        graph.group, graph.traffic, layer, "backward", make=make, allot=rows.empty,
        take=rows.add_owned, meanwhile=lambda: fill(own, own.whole, dx),
    ).run(graph.plan.return_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def fetch_and_send_back(
    graph: DistributedGraph, x: Tensor, dx: Tensor, use: UseAndFillRows, *, layer: str,
    halo: Tensor | None = None,
) -> None:  # fmt: skip
    """Add to dx, on the owners, a gradient that depends on the sources' rows of x.

    Args:
        x, dx: [n, F], contiguous; dx is added to in place.
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
                x if block is own else rows.kept(block, chunk, halo), contribution,
            ),
            layer=layer,
        )  # fmt: skip
        return

    gradients = _Rows(graph, dx)

    def take(message: Message, received: Tensor) -> Tensor:
        contribution = dx.new_zeros(received.shape)
        use(*rows.block_and_chunk(message), received, contribution)
        return contribution

    Exchange(
        graph.group, graph.traffic, layer, "backward", make=rows.to_send, allot=rows.empty,
        take=take, meanwhile=lambda: use(own, own.whole, x, dx),
        take_reply=gradients.add_owned, allot_reply=gradients.empty,
    ).run(graph.plan.fetch_ticks(rows.max_rows), graph.schedule.prefetch)  # fmt: skip


def for_each_kept(graph: DistributedGraph, x: Tensor, use: UseRows, *, halo: Tensor) -> None:
    """`for_each_source` with remote rows that were kept: no exchange."""
    rows = _Rows(graph, x)
    own = graph.edges.blocks[graph.group.rank]
    use(own, own.whole, x)
    for step in range(1, graph.group.size):
        block = graph.edges.blocks[(graph.group.rank + step) % graph.group.size]
        for chunk in block.chunks(rows.max_rows):
            use(block, chunk, rows.kept(block, chunk, halo))


def new_halo(graph: DistributedGraph, x: Tensor) -> Tensor:
    """An empty [H, F] for the rows that this rank needs of the others."""
    return x.new_empty(graph.plan.halo_offsets[-1], x.shape[1])


class _Rows:
    """The rows of one tensor [n, F] as the messages of a plan see them."""

    def __init__(self, graph: DistributedGraph, owned: Tensor) -> None:
        self.graph, self.owned = graph, owned
        self.max_rows = graph.max_rows(owned.element_size() * owned.shape[1])
        self._halo_offsets = graph.plan.halo_offsets

    def empty(self, message: Message) -> Tensor:
        return self.owned.new_empty(message.num_rows, self.owned.shape[1])

    def to_send(self, message: Message) -> Tensor:
        out = self.empty(message)
        kernels.gather_rows(self.owned, self._owned_rows(message), out)
        return out

    def add_owned(self, message: Message, rows: Tensor) -> None:
        kernels.scatter_add_rows(self.owned, self._owned_rows(message), rows)

    def in_halo(self, message: Message, halo: Tensor) -> Tensor:
        first = self._halo_offsets[message.peer]
        return halo[first + message.first_row : first + message.last_row]

    def kept(self, block: Block, chunk: Chunk, halo: Tensor) -> Tensor:
        return self.in_halo(Message(block.source_rank, chunk.first_row, chunk.last_row), halo)

    def block_and_chunk(self, message: Message) -> tuple[Block, Chunk]:
        block = self.graph.edges.blocks[message.peer]
        return block, block.chunks(self.max_rows)[message.first_row // self.max_rows]

    def _owned_rows(self, message: Message) -> Tensor:
        return self.graph.plan.send_rows[message.peer][message.first_row : message.last_row]
