"""The edges that live on a rank under a placement: its blocks, and the rows that they need.

Where an edge may live elsewhere than with the owner of its destination, a rank computes partial
results for T *targets*: first its own n rows, then the rows of other ranks that its edges end in,
by owner and row.

Letters: W ranks, P parts, n owned rows, T targets, E edges on this rank, S source rows of a block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.comm.placement import Placement
from fullgraph.graph.blocks import Block, Ownership, make_block
from fullgraph.graph.parts import Part, Partitioned
from fullgraph.kernels import group_by


class _Slice(NamedTuple):
    """Edges of a part's file that come from one part, and their targets: int64 [e], numbered over
    all ranks, rank after rank; src: int64 [e], rows of the source's owner."""

    part: Part
    edges: slice
    targets: Tensor
    src: Tensor


class Placed(NamedTuple):
    """``needed_sources[q]``, ``needed_targets[q]``: int32, ascending, the rows of rank q that this
    rank's edges start from and end in; empty for the rank itself."""

    blocks: list[Block]
    needed_sources: list[Tensor]
    needed_targets: list[Tensor]


@dataclass(frozen=True)
class PlacedEdges:
    """The edges of one rank, read from the files of the parts that have them, at every call.

    Their order: blocks by source rank, each by target, then source, then part and position in it.
    """

    partitioned: Partitioned
    ownership: Ownership
    placement: Placement
    rank: int
    _opened: dict[int, Part] = field(default_factory=dict, repr=False)

    @property
    def num_ranks(self) -> int:
        return len(self.ownership.num_owned)

    @property
    def diagonal(self) -> list[int]:
        """The ranks whose nodes' self-loops live here: this one, and those that share its edges and
        work on other slices of the columns."""
        row, col, _ = self.placement.coordinates(self.rank)
        if self.placement.kind != "grid":
            return [self.rank]
        return [self.placement.rank_of(row, col, feat) for feat in range(self.placement.feats)]

    def build(self) -> Placed:
        """Raises ValueError for a vertex cut with a self-loop elsewhere than with its node."""
        targets = self._targets()
        blocks: list[Block] = []
        needed_sources: list[Tensor] = []
        first_edge = 0
        for q in range(self.num_ranks):
            dst, src, _ = self._ordered(q, targets)
            num_sources, rows = self.ownership.num_owned[q], torch.empty(0, dtype=torch.int32)
            if q not in self.diagonal:
                self._check_no_loops(q)
            if q != self.rank:
                position = torch.zeros(num_sources, dtype=torch.int32)
                position[src.long()] = 1
                if q in self.diagonal:
                    position.fill_(1)
                rows = position.nonzero().view(-1).to(torch.int32)
                position[rows.long()] = torch.arange(rows.numel(), dtype=torch.int32)
                src, num_sources = position[src.long()], rows.numel()
            block = make_block(
                q, dst, src, targets.num_rows, num_sources, first_edge, q != self.rank
            )
            blocks.append(block)
            needed_sources.append(rows)
            first_edge += block.num_edges
        return Placed(blocks, needed_sources, targets.needed)

    def edge_field(self, name: str) -> Tensor | None:
        """An edge array of the parts ("edge_id", "edge_weight", ...) in the order of the edges."""
        targets = self._targets()
        pieces = []
        for q in range(self.num_ranks):
            found = [(getattr(s.part, name), s.edges) for s in self._slices(q)]
            if any(array is None for array, _ in found):
                return None
            if found:
                order = self._ordered(q, targets)[2]
                pieces.append(torch.cat([array[edges] for array, edges in found])[order])
        return torch.cat(pieces)

    # Parts -------------------------------------------------------------------------------------

    @cached_property
    def _rank_base(self) -> list[int]:
        """Where each rank's rows start when those of all ranks are numbered; W + 1."""
        return [0, *accumulate(self.ownership.num_owned)]

    @cached_property
    def _part_base(self) -> Tensor:
        """int64 [P]: where each part's rows start in the same numbers."""
        return torch.tensor([
            self._rank_base[self._owner(k)] + base
            for k, base in enumerate(self.ownership.row_base)
        ])  # fmt: skip

    def _owner(self, part: int) -> int:
        return bisect_right(self.ownership.first_part, part) - 1

    def _part(self, k: int) -> Part:
        if k not in self._opened:  # without what nodes have, which is not looked at here
            part = self.partitioned.part(k)
            self._opened[k] = replace(part, x=None, y=None, masks={})
        return self._opened[k]

    def _slices(self, q: int) -> Iterator[_Slice]:
        """The edges from rows of rank q that live here."""
        owners = [self.rank]
        if self.placement.kind == "grid":
            row, col, _ = self.placement.coordinates(self.rank)
            if self.placement.coordinates(q)[1] != col:
                return
            row_ranks = self.placement.cols * self.placement.feats
            owners = [*range(row * row_ranks, (row + 1) * row_ranks)]
        for k in (k for owner in owners for k in self.ownership.parts_of(owner)):
            part = self._part(k)
            for source in self.ownership.parts_of(q):
                edges = slice(*part.source_offsets[source : source + 2].tolist())
                of_part = part.index if part.dst_part is None else part.dst_part[edges].long()
                yield _Slice(
                    part, edges, self._part_base[of_part] + part.dst[edges].long(),
                    part.src[edges].long() + self.ownership.row_base[source],
                )  # fmt: skip

    def _ordered(self, q: int, targets: _TargetRows) -> tuple[Tensor, Tensor, Tensor]:
        """dst [E_q], src [E_q] int32: targets of this rank and rows of rank q, in order; and the
        order, int64 [E_q], of the slices' edges."""
        slices = [*self._slices(q)]
        none = torch.empty(0, dtype=torch.int64)
        dst = targets.position(torch.cat([none, *(s.targets for s in slices)]))
        src = torch.cat([none, *(s.src for s in slices)]).to(torch.int32)
        by_src = group_by(src, self.ownership.num_owned[q])[1]
        order = by_src[group_by(dst[by_src], targets.num_rows)[1]]
        return dst[order], src[order], order

    def _check_no_loops(self, q: int) -> None:
        for of_part in self._slices(q):
            if bool((of_part.targets == of_part.src + self._rank_base[q]).any()):
                raise ValueError(
                    f"part {of_part.part.index} of graph {self.partitioned.meta.name!r} has a "
                    f"self-loop of a node that rank {q} owns; in a vertex cut self-loops are in "
                    "the part of their node"
                )

    # Targets -----------------------------------------------------------------------------------

    def _targets(self) -> _TargetRows:
        met = torch.zeros(self._rank_base[-1], dtype=torch.bool)
        for q in range(self.num_ranks):
            for piece in self._slices(q):
                met[piece.targets] = True
        for q in self.diagonal:
            met[self._rank_base[q] : self._rank_base[q + 1]] = True
        first, end = self._rank_base[self.rank : self.rank + 2]
        met[first:end] = False
        foreign = met.nonzero().view(-1)
        needed = [
            (foreign[(foreign >= low) & (foreign < high)] - low).to(torch.int32)
            for low, high in zip(self._rank_base, self._rank_base[1:])
        ]
        return _TargetRows(first, end, foreign, needed)


class _TargetRows(NamedTuple):
    """The targets of a rank: own rows are numbers first .. end - 1 of all ranks' rows, `foreign`
    (int64, ascending) the others."""

    first: int
    end: int
    foreign: Tensor
    needed: list[Tensor]

    @property
    def num_rows(self) -> int:
        return self.end - self.first + self.foreign.numel()

    def position(self, numbers: Tensor) -> Tensor:
        """int32 [e]: which target each of these numbers of rows is."""
        is_own = (numbers >= self.first) & (numbers < self.end)
        other = torch.searchsorted(self.foreign, numbers) + (self.end - self.first)
        return torch.where(is_own, numbers - self.first, other).to(torch.int32)


class PlannedRows(NamedTuple):
    """``gather[p][q]``: source rows that rank p needs of rank q; ``reduce[p][q]``: rows of rank q
    that rank p has partial results for. Diagonals are 0."""

    gather: list[list[int]]
    reduce: list[list[int]]


def planned_rows(
    partitioned: Partitioned, num_ranks: int, placement: str | Placement = "destination"
) -> PlannedRows:
    """What the exchange plans of a run will say, found in one process, a rank at a time.

    Rows are whole; under a grid of K slices a rank moves its slice of each, see `slice_offsets`.
    Raises ValueError where the placement is not one of so many ranks, or of this graph.
    """
    placement = Placement.parse(placement)
    check_placement(partitioned, placement, num_ranks)
    ownership = Ownership.balance(partitioned.meta, num_ranks)
    gather, reduce = [], []
    for rank in range(num_ranks):
        edges = PlacedEdges(partitioned, ownership, placement, rank)
        placed = edges.build()
        gather.append([rows.numel() for rows in placed.needed_sources])
        reduce.append([rows.numel() for rows in placed.needed_targets])
    return PlannedRows(gather, reduce)


def check_placement(partitioned: Partitioned, placement: Placement, num_ranks: int) -> None:
    """ValueError unless a graph partitioned like this can be placed so on so many ranks."""
    was_cut, meta = partitioned.meta.placement == "vertex-cut", partitioned.meta
    if was_cut != (placement.kind == "vertex-cut"):
        allowed = "placement vertex-cut" if was_cut else "placement destination or a grid"
        made = "--placement vertex-cut" if was_cut else "parts of nodes"
        raise ValueError(
            f"graph {meta.name!r} was partitioned into {made}, which is for {allowed}, but "
            f"{placement} was asked for. Partition it again for that"
        )
    if placement.splits and meta.node_types:
        raise ValueError(
            f"graph {meta.name!r} has types of nodes, which the placement 'destination' is for; "
            f"got {placement}"
        )
    placement.check_ranks(num_ranks)
