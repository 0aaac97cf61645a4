"""Lists of edges: all of a graph's, some of them, with loops added; walked in pieces.

Letters: n owned rows, E edges of the list, B edges of its graph on this rank, e edges and d rows of
a piece. Targets are owned rows, unless edges live elsewhere than theirs (see `comm.targets`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.graph.blocks import Block, Chunk


@dataclass(frozen=True)
class Piece:
    """Consecutive edges of a chunk of a block, by destination.

    ``rows``: int64 [d], their distinct targets, ascending, perhaps with some that have no edge
    here; ``offsets``: int64 [d + 1], where each row's edges start; ``source``: int64 [e], the row
    of each edge's source among the rows at hand; ``position``: int64 [e], in the list.
    """

    rows: Tensor
    offsets: Tensor
    source: Tensor
    position: Tensor

    @cached_property
    def index(self) -> Tensor:
        """int64 [e]: which of `rows` each edge ends in."""
        places = torch.arange(self.rows.numel())
        return torch.repeat_interleave(places, self.offsets.diff())

    @cached_property
    def target(self) -> Tensor:
        """int64 [e]: the target of each edge."""
        return self.rows[self.index]


def list_of_size(graph: DistributedGraph, size: int) -> EdgeList | None:
    """A list of this graph's edges that is in use and has so many."""
    lists = graph.__dict__.get("edge_lists", ())
    return next((edges for edges in lists if edges.num_edges == size), None)


class EdgeList:
    """Edges of a distributed graph on this rank, in an order of their own.

    ``origin``: int64 [E], what each is: b < B the graph's edge b in the order of its edge_id, and
    B + v an added self-loop of owned row v. None: the graph's edges in their order. An edge occurs
    at most once.
    """

    def __init__(self, graph: DistributedGraph, origin: Tensor | None = None) -> None:
        self.graph, self.origin = graph, origin
        graph.__dict__.setdefault("edge_lists", weakref.WeakSet()).add(self)

    @property
    def num_edges(self) -> int:
        return self.graph.num_local_edges if self.origin is None else self.origin.numel()

    @cached_property
    def target(self) -> Tensor:
        """int64 [E]: the target of each edge."""
        target = self.graph.edge_target.long()
        if self.origin is None:
            return target
        return torch.cat([target, torch.arange(self.graph.num_owned)])[self.origin]

    @cached_property
    def is_loop(self) -> Tensor:
        """bool [E]: edges from a node to itself."""
        graph, loop = self.graph, self.graph.is_self_loop
        if self.origin is None:
            return loop
        return torch.cat([loop, loop.new_ones(graph.num_owned)])[self.origin]

    @cached_property
    def edge_id(self) -> Tensor:
        """int64 [E]: the graph's edge_id, and for an added loop of a node (edges of the whole
        graph) + its id."""
        graph = self.graph
        if self.origin is None:
            return graph.edge_id
        return torch.cat([graph.edge_id, graph.meta.num_edges + graph.node_id])[self.origin]

    @cached_property
    def total_edges(self) -> int:
        """Edges of the list on all ranks; a collective, the first time."""
        count = torch.tensor([self.num_edges])
        return int(self.graph.group.all_reduce(count, "the number of edges"))

    @cached_property
    def positions(self) -> Tensor:
        """int64 [B + n]: where in the list each edge is, -1 for those that are not."""
        position = torch.full((self.graph.num_local_edges + self.graph.num_owned,), -1)
        assert self.origin is not None
        position[self.origin] = torch.arange(self.num_edges)
        if int((position >= 0).sum()) != self.num_edges:
            raise NotImplementedError(
                "edge_index was made to name an edge twice (it was concatenated with itself, or "
                "self-loops were added twice); on a distributed graph each edge is used once"
            )
        return position

    def select(self, chosen: Tensor | slice) -> EdgeList:
        """The list of these edges: a mask bool [E], positions int64, or a slice."""
        origin = torch.arange(self.num_edges) if self.origin is None else self.origin
        return EdgeList(self.graph, origin[chosen])

    def with_loops(self) -> EdgeList:
        """This list, and after it a self-loop of every owned row."""
        origin = torch.arange(self.num_edges) if self.origin is None else self.origin
        base = self.graph.num_local_edges
        return EdgeList(self.graph, torch.cat([origin, base + torch.arange(self.graph.num_owned)]))

    @property
    def has_added_loops(self) -> bool:
        base = self.graph.num_local_edges
        return self.origin is not None and bool((self.origin >= base).any())

    def spread(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Values [E, ...] of the list's edges as [B, ...] over all of the graph's edges, zeros for
        others, and [n, ...] over added loops (None if there are none). Differentiable."""
        if self.origin is None:
            return values, None
        base, n = self.graph.num_local_edges, self.graph.num_owned
        size = (base + n, *values.shape[1:])
        whole = values.new_zeros(size).index_copy(0, self.origin, values)
        return whole[:base], whole[base:] if self.has_added_loops else None

    def pieces(self, block: Block, chunk: Chunk, max_edges: int) -> Iterator[Piece]:
        """The list's edges in a chunk, at most `max_edges` at a time; nothing empty."""
        counts = chunk.end - chunk.begin
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        total = int(starts[-1])
        for first in range(0, total, max_edges):
            bounds = torch.tensor([first, min(first + max_edges, total)])
            low = int(torch.searchsorted(starts, bounds[:1], right=True)) - 1
            high = int(torch.searchsorted(starts, bounds[1:], right=False))
            edges = starts[low : high + 1].clamp(int(bounds[0]), int(bounds[1]))
            offsets = edges - edges[0]
            # Where in the block each row's first edge of this piece is, less where in the piece.
            shift = chunk.begin[low:high] + (edges[:-1] - starts[low:high]) - offsets[:-1]
            at = torch.arange(int(offsets[-1])) + torch.repeat_interleave(shift, offsets.diff())
            rows = torch.arange(low, high) if block.rows is None else block.rows[low:high].long()
            source = block.cols[at].long() - chunk.first_row
            piece = self._chosen(rows, offsets, source, block.first_edge + at)
            if piece.position.numel():
                yield piece

    def _chosen(self, rows: Tensor, offsets: Tensor, source: Tensor, edge: Tensor) -> Piece:
        if self.origin is None:
            return Piece(rows, offsets, source, edge)
        position = self.positions[edge]
        kept = position >= 0
        index = torch.repeat_interleave(torch.arange(rows.numel()), offsets.diff())[kept]
        counts = torch.bincount(index, minlength=rows.numel())
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Piece(rows, offsets, source[kept], position[kept])

    def added_loops(self, max_edges: int) -> Iterator[Piece]:
        """The added self-loops; their sources are owned rows."""
        if not self.has_added_loops:
            return
        rows = (self.positions[self.graph.num_local_edges :] >= 0).nonzero().view(-1)
        for chosen in rows.split(max_edges):
            offsets = torch.arange(chosen.numel() + 1)
            position = self.positions[self.graph.num_local_edges + chosen]
            yield Piece(chosen, offsets, chosen, position)
