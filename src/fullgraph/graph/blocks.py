"""Blocks: the edges between two ranks, in compact numbering, by destination and by source.

Letters: D destination rows that occur, S source rows that occur, E edges, W ranks, P parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from fullgraph.graph.parts import GraphMeta, Part
from fullgraph.kernels import group_by, new_empty


@dataclass(frozen=True)
class Ownership:
    """Which rank owns which parts, and where a part's rows start among its rank's rows.

    ``first_part`` has W + 1 entries: rank r owns parts ``first_part[r] .. first_part[r + 1] - 1``.
    ``row_base[k]`` is the first row of part k on its rank; ``num_owned[r]`` the rows of rank r.
    """

    first_part: tuple[int, ...]
    row_base: tuple[int, ...]
    num_owned: tuple[int, ...]

    @staticmethod
    def of_parts(first_part: Sequence[int], part_nodes: Sequence[int]) -> Ownership:
        """That of parts with so many nodes each, shared as `first_part` says."""
        row_base, num_owned = [], []
        for first, end in pairwise(first_part):
            rows = 0
            for k in range(first, end):
                row_base.append(rows)
                rows += part_nodes[k]
            num_owned.append(rows)
        return Ownership(tuple(first_part), tuple(row_base), tuple(num_owned))

    def parts_of(self, rank: int) -> range:
        return range(self.first_part[rank], self.first_part[rank + 1])

    @staticmethod
    def balance(meta: GraphMeta, num_ranks: int) -> Ownership:
        """Consecutive parts a rank, near-equal in nodes + edges; every rank gets at least one.

        Raises ValueError when there are fewer parts than ranks.
        """
        if num_ranks > meta.num_parts:
            raise ValueError(
                f"{num_ranks} workers cannot share {meta.num_parts} part(s): a part is owned by "
                f"one worker. Use at most {meta.num_parts} workers, or partition the graph into "
                f"{num_ranks} or more parts"
            )
        weights = [n + e for n, e in zip(meta.part_nodes, meta.part_edges)]
        return Ownership.of_parts(_split_evenly(weights, num_ranks), meta.part_nodes)


def _split_evenly(weights: Sequence[int], num_groups: int) -> list[int]:
    """Boundaries of `num_groups` non-empty runs of `weights` whose sums are near the mean."""
    bounds, done, total = [0], 0, sum(weights)
    for group in range(1, num_groups):
        target = total * group / num_groups
        k = bounds[-1]
        last = len(weights) - (num_groups - group)
        while k < last and (k == bounds[-1] or done + weights[k] / 2 <= target):
            done += weights[k]
            k += 1
        bounds.append(k)
    return [*bounds, len(weights)]


@dataclass(frozen=True)
class Chunk:
    """The edges of a block whose sources are its compact rows ``first_row .. last_row - 1``.

    ``begin``, ``end``: int64 [D], each destination's range within the block's ``cols``. What is
    kept are the block's ``offsets`` and how many of a destination's edges come before the range
    and before its end, in integers as narrow as may be, for a block has many chunks; None where
    the range is all of them.
    """

    first_row: int
    last_row: int
    offsets: Tensor
    _before: Tensor | None = None
    _until: Tensor | None = None

    @property
    def begin(self) -> Tensor:
        first = self.offsets[:-1]
        return first if self._before is None else _sum(first, self._before)

    @property
    def end(self) -> Tensor:
        return self.offsets[1:] if self._until is None else _sum(self.offsets[:-1], self._until)


def _sum(first: Tensor, more: Tensor) -> Tensor:
    """In the dtype of `first`; torch's own sum would make a converted `more` on the way."""
    return new_empty(first, *first.shape).copy_(more).add_(first)


@dataclass(eq=False)
class Block:
    """A[p ← q]: the edges from rows owned by rank q to rows owned by this rank.

    ``rows``: int32 [D], destination rows in ascending order; None means every owned row.
    ``offsets``: int64 [D + 1], ``cols``: int32 [E]: the edges by destination, sources ascending;
    a source is its position among the S source rows of this block.
    ``t_offsets``: int64 [S + 1], ``t_cols``: int32 [E]: the same edges by source; the value is the
    destination's owned row, whatever ``rows`` says.
    ``first_edge``: where this block's edges start in the rank's edge order.
    """

    source_rank: int
    num_sources: int
    rows: Tensor | None
    offsets: Tensor
    cols: Tensor
    t_offsets: Tensor
    t_cols: Tensor
    first_edge: int
    _t_index: Tensor | None = field(default=None, repr=False)
    _chunks: dict[int, list[Chunk]] = field(default_factory=dict, repr=False)

    @property
    def num_edges(self) -> int:
        return self.cols.numel()

    @property
    def edges(self) -> slice:
        """This block's slice of the rank's edge order."""
        return slice(self.first_edge, self.first_edge + self.num_edges)

    @property
    def t_index(self) -> Tensor:
        """int64 [E]: for each edge by source, its position by destination. Built when asked for."""
        if self._t_index is None:
            order = group_by(self.cols.cpu(), self.num_sources)[1]
            self._t_index = order.to(self.cols.device)
        return self._t_index

    def edge_rows(self) -> Tensor:
        """int32 [E]: the destination's owned row of each edge, by destination."""
        rows = self.rows
        if rows is None:
            num_rows = self.offsets.numel() - 1
            rows = torch.arange(num_rows, dtype=torch.int32, device=self.offsets.device)
        return torch.repeat_interleave(rows, self.offsets.diff())

    def to(self, device: torch.device | str) -> Block:
        """The same block on another device."""
        return replace(
            self, rows=None if self.rows is None else self.rows.to(device),
            offsets=self.offsets.to(device), cols=self.cols.to(device),
            t_offsets=self.t_offsets.to(device), t_cols=self.t_cols.to(device),
            _t_index=None, _chunks={},
        )  # fmt: skip

    @property
    def whole(self) -> Chunk:
        return Chunk(0, self.num_sources, self.offsets)

    def chunks(self, max_rows: int) -> list[Chunk]:
        """The block in runs of at most `max_rows` source rows; kept for the next call."""
        if self.num_sources <= max_rows:
            return [self.whole]
        if max_rows not in self._chunks:
            self._chunks[max_rows] = self._split(max_rows)
        return self._chunks[max_rows]

    def _split(self, max_rows: int) -> list[Chunk]:
        degree = self.offsets.diff()
        num_rows = degree.numel()
        rows = torch.arange(num_rows, device=degree.device)
        position = torch.repeat_interleave(rows, degree)
        kind = _narrowest(int(degree.max()) if num_rows else 0)
        chunks, before = [], degree.new_zeros(num_rows, dtype=kind)
        for first in range(0, self.num_sources, max_rows):
            last = min(first + max_rows, self.num_sources)
            until = torch.bincount(position[self.cols < last], minlength=num_rows).to(kind)
            chunks.append(Chunk(first, last, self.offsets, before, until))
            before = until
        return chunks


def _narrowest(largest: int) -> torch.dtype:
    """The integers that hold 0 .. largest in the fewest bytes."""
    kinds = (torch.uint8, torch.int16, torch.int32)
    return next((kind for kind in kinds if largest <= torch.iinfo(kind).max), torch.int64)


def make_block(
    source_rank: int, dst: Tensor, src: Tensor, num_owned: int, num_sources: int, first_edge: int,
    compact_rows: bool,
) -> Block:  # fmt: skip
    """A block from its edges in destination order.

    dst: int32 [E] ascending owned rows; src: int32 [E] source positions, ascending within a row.
    """
    counts = torch.bincount(dst, minlength=num_owned)
    rows = None
    if compact_rows:
        rows = counts.nonzero().view(-1).to(torch.int32)
        counts = counts[rows.long()]
    t_offsets, order = group_by(src, num_sources)
    return Block(
        source_rank, num_sources, rows, _offsets(counts), src, t_offsets, dst[order], first_edge
    )


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def edges_into(block: Block, new_rows: Tensor) -> tuple[Tensor, Tensor]:
    """The edges of a block into some of the owned rows, without a look at the others.

    new_rows: int32 [n], what each owned row is to be called, -1 for those to leave out; ascending
    where it is not -1.

    Returns int64, ascending positions of the edges in the block, and int32, their destinations.
    """
    called = new_rows if block.rows is None else new_rows[block.rows.long()]
    kept = (called >= 0).nonzero().view(-1)
    first = block.offsets[kept]
    lengths = block.offsets[kept + 1] - first
    shift = first - (lengths.cumsum(0) - lengths)
    edges = torch.repeat_interleave(shift, lengths)
    edges += torch.arange(edges.numel(), device=edges.device)
    return edges, torch.repeat_interleave(called[kept], lengths)


def renumbering(rows: Tensor, num_rows: int) -> Tensor:
    """int32 [num_rows]: the position of each row in `rows` (distinct), -1 for those not there."""
    position = torch.full((num_rows,), -1, dtype=torch.int32, device=rows.device)
    position[rows.long()] = torch.arange(rows.numel(), dtype=torch.int32, device=rows.device)
    return position


def block_edges(
    parts: Sequence[Part], ownership: Ownership, source_rank: int, sources: Ownership | None = None
) -> tuple[Tensor, Tensor, Tensor, list[tuple[Part, slice]]]:
    """The edges from one rank to these parts, which one rank owns, in the order of a block.

    sources: of the rows that edges start from, where they are others than those they end in.

    Returns dst [E] and src [E], int32 rows of this rank and of `source_rank`; order [E] int64,
    which takes edges from the order of the parts into that of the block; and the slices of the
    parts' edge arrays that, one after the other, are in the order of the parts.
    """
    sources = ownership if sources is None else sources
    dst, src, slices = [], [], []
    for part in parts:
        for k in sources.parts_of(source_rank):
            edges = slice(int(part.source_offsets[k]), int(part.source_offsets[k + 1]))
            dst.append(part.dst[edges] + ownership.row_base[part.index])
            src.append(part.src[edges] + sources.row_base[k])
            slices.append((part, edges))
    all_dst = torch.cat(dst).to(torch.int32)
    all_src = torch.cat(src).to(torch.int32)
    num_rows = sum(part.node_id.numel() for part in parts)
    order = group_by(all_dst, num_rows)[1]
    return all_dst[order], all_src[order], order, slices


def build_blocks(
    parts: Sequence[Part], ownership: Ownership, rank: int, sources: Ownership | None = None
) -> tuple[list[Block], list[Tensor]]:
    """The W blocks of a rank, and the rows it needs: int32 [S] of each source rank, ascending.

    The rank's own block takes its sources straight from the owned rows, all of them; what it needs
    from itself is therefore empty. `sources` is as in `block_edges`.
    """
    sources = ownership if sources is None else sources
    blocks: list[Block] = []
    needed: list[Tensor] = []
    first_edge = 0
    num_owned = sources.num_owned
    for q in range(len(num_owned)):
        dst, src, _, _ = block_edges(parts, ownership, q, sources)
        if q == rank:
            rows, num_sources = torch.empty(0, dtype=torch.int32), num_owned[q]
        else:
            position = torch.zeros(num_owned[q], dtype=torch.int32)
            position[src.long()] = 1
            rows = position.nonzero().view(-1).to(torch.int32)
            position[rows.long()] = torch.arange(rows.numel(), dtype=torch.int32)
            src, num_sources = position[src.long()], rows.numel()
        num_rows = ownership.num_owned[rank]
        block = make_block(q, dst, src, num_rows, num_sources, first_edge, q != rank)
        blocks.append(block)
        needed.append(rows)
        first_edge += block.num_edges
    return blocks, needed


def edge_field(parts: Sequence[Part], ownership: Ownership, name: str) -> Tensor | None:
    """An edge array of the parts ("edge_id", "edge_weight", "edge_attr") in the rank's edge order:
    blocks by source rank, each by destination, then source, then original position. That order
    does not depend on the rows that sources have within a part."""
    pieces = list(_field_pieces(parts, ownership, name))
    return torch.cat(pieces) if pieces else None


def _field_pieces(parts: Sequence[Part], ownership: Ownership, name: str) -> Iterator[Tensor]:
    if any(getattr(part, name) is None for part in parts):
        return
    for q in range(len(ownership.num_owned)):
        _, _, order, slices = block_edges(parts, ownership, q)
        yield torch.cat([getattr(part, name)[edges] for part, edges in slices])[order]
