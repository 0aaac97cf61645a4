"""A rank's share of a graph whose tensors have sizes and no contents.

What the real one reads from contents (which edges are self-loops, which rows travel in a turn) is
told by its figures instead.

Letters: n owned rows, T targets, E edges, S source rows and D rows of results of a block.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fullgraph.comm.distributed import PER_EDGE, DistributedGraph, Edges
from fullgraph.comm.plan import ExchangePlan
from fullgraph.comm.schedule import Schedule
from fullgraph.comm.stale import Bin, Bins, StaleRows
from fullgraph.comm.targets import Targets
from fullgraph.graph.blocks import Block, Chunk, Ownership
from fullgraph.graph.parts import Field, GraphMeta
from fullgraph.planner.figures import GraphFigures, Shares
from fullgraph.planner.ledger import Ledger
from fullgraph.planner.shares import mirrors
from fullgraph.planner.wire import DryGroup

MAX_MESSAGES = 64  # of an exchange; more would take long, and change next to nothing
LOOP_BYTES_AN_EDGE = 52  # that giving the own block its self-loops holds for a moment


def dry_graph(
    figures: GraphFigures, shares: Shares, group: DryGroup, schedule: Schedule, wire: str,
    max_block_bytes: int, ledger: Ledger,
) -> DistributedGraph:  # fmt: skip
    rank, owned = group.rank, shares.owned[group.rank]
    blocks: list[Block] = []
    for q, (rows, sources, edges) in enumerate(shares.blocks[rank]):
        first = blocks[-1].edges.stop if blocks else 0
        blocks.append(_block(q, rows, sources, edges, first, q != rank, ledger))
    fields = [Field("x", "float32", (figures.features,)), Field("y", "int64", ())]
    if figures.weighted:
        fields.append(Field("edge_weight", "float32", ()))
    meta = GraphMeta(
        name=figures.name, num_nodes=figures.nodes, num_edges=figures.edges,
        num_features=figures.features, num_classes=figures.classes, num_parts=shares.size,
        part_nodes=shares.owned, part_edges=tuple(map(shares.edges, range(shares.size))),
        part_labelled=shares.labelled, fields=tuple(fields), fingerprint="",
    )  # fmt: skip
    targets = None
    if shares.placement.splits:
        plan = _plan(rank, shares.reduce)
        num_targets = owned + sum(plan.num_needed)
        targets = Targets(plan, None, _ints(num_targets))  # type: ignore[arg-type]
    return _DryGraph(
        group=group, meta=meta, schedule=schedule, max_block_bytes=max_block_bytes,
        ownership=Ownership.of_parts(range(shares.size + 1), shares.owned),
        plan=_plan(rank, shares.gather, owned), edges=Edges(blocks), node_id=_ints(owned),
        x=torch.empty(owned, figures.features), y=_ints(owned),
        masks={name: torch.empty(owned, dtype=torch.bool) for name in ("train", "val", "test")},
        _partitioned=None,  # type: ignore[arg-type]
        placement=shares.placement, targets=targets, ledger=ledger, shares=shares,
        stale=_DryStale(), wire=wire,
    )  # fmt: skip


def _ints(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _plan(rank: int, counts: tuple[tuple[int, ...], ...], owned: int = 0) -> ExchangePlan:
    send_rows = tuple(_ints(row[rank], dtype=torch.int32) for row in counts)
    return _DryPlan(rank, send_rows, counts, owned)


@dataclass(frozen=True)
class _DryPlan(ExchangePlan):
    """``owned``: n, where it is known. That rows are a run can only be told of all of them."""

    owned: int

    @property
    def runs(self) -> tuple[slice | None, ...]:
        counts = [rows.numel() for rows in self.send_rows]
        return tuple(slice(0, n) if 0 < n == self.owned else None for n in counts)


def _block(
    source_rank: int, rows: int, sources: int, edges: int, first_edge: int, compact: bool,
    ledger: Ledger,
) -> _DryBlock:  # fmt: skip
    kind = torch.int32
    block = _DryBlock(
        source_rank, sources, _ints(rows, dtype=kind) if compact else None, _ints(rows + 1),
        _ints(edges, dtype=kind), _ints(sources + 1), _ints(edges, dtype=kind), first_edge,
        ledger=ledger,
    )  # fmt: skip
    ledger.note_edges(block.offsets[1:], edges)
    ledger.note_edges(block.t_offsets[1:], edges)
    return block


@dataclass(eq=False)
class _DryBlock(Block):
    ledger: Ledger | None = field(default=None, repr=False)

    @property
    def t_index(self) -> Tensor:
        if self._t_index is None:
            self._t_index = _ints(self.num_edges)
        return self._t_index

    def edge_rows(self) -> Tensor:
        return _ints(self.num_edges, dtype=torch.int32)

    def _split(self, max_rows: int) -> list[Chunk]:
        assert self.ledger is not None
        _ints(self.num_edges), _ints(self.num_edges)  # what splitting holds for a moment
        num_rows, kind = self.offsets.numel() - 1, torch.int16
        chunks: list[Chunk] = []
        before = _ints(num_rows, dtype=kind)
        for first in range(0, self.num_sources, max_rows):
            last, until = min(first + max_rows, self.num_sources), _ints(num_rows, dtype=kind)
            edges = self.num_edges * (last - first) / self.num_sources
            chunks.append(
                _DryChunk(first, last, self.offsets, before, until, edges, self.ledger)
            )  # fmt: skip
            before = until
        return chunks


@dataclass(frozen=True)
class _DryChunk(Chunk):
    edges: float = 0.0
    ledger: Ledger | None = None

    @property
    def end(self) -> Tensor:
        end = super().end
        assert self.ledger is not None
        self.ledger.note_edges(end, self.edges)
        return end


@dataclass(eq=False)
class _DryGraph(DistributedGraph):
    ledger: Ledger | None = field(default=None, repr=False)
    shares: Shares | None = field(default=None, repr=False)

    def rows_of_message(self, row_bytes: int, recorded: bool = False) -> int:
        assert self.shares is not None
        rank = self.group.rank
        rows = sum(self.shares.gather[rank]) + sum(self.shares.reduce[rank])
        return max(super().rows_of_message(row_bytes, recorded), rows // MAX_MESSAGES)

    @cached_property
    def in_degree(self) -> Tensor:
        return torch.zeros_like(self.node_id)

    @cached_property
    def edge_id(self) -> Tensor:
        self._id_pages = _ints(self.num_local_edges)  # of the parts' files, which stay mapped
        return _ints(self.num_local_edges)

    def _edge_field(self, name: str) -> Tensor | None:
        return None if self.meta.field(name) is None else torch.empty(self.num_local_edges)

    def with_self_loops(self) -> DistributedGraph:
        if self._looped is None:
            view = copy.copy(self)
            view._kept, view._looped, view.base = {}, view, self
            view.edges = self._edges_with_self_loops() or self.edges
            for name in PER_EDGE:
                view.__dict__.pop(name, None)
            self._looped = view
        return self._looped

    def _edges_with_self_loops(self) -> Edges | None:
        assert self.ledger is not None
        assert self.shares is not None
        shares, rank = self.shares, self.group.rank
        changed = [
            q for q in mirrors(shares.placement, rank)
            if not shares.loops[q] == shares.looped[q] == shares.owned[q]
        ]  # fmt: skip
        if not changed:
            return None
        blocks, first = [*self.edges.blocks], 0
        for q, old in enumerate(blocks):
            edges = old.num_edges
            if q in changed:
                edges += shares.owned[q] - shares.loops[q]
                torch.empty(LOOP_BYTES_AN_EDGE * edges, dtype=torch.uint8)
                rows = old.offsets.numel() - 1
                blocks[q] = _block(q, rows, old.num_sources, edges, first, q != rank, self.ledger)
            first += edges
        return Edges(blocks, _ints(first, dtype=torch.int32), adds_loops=True)


class _DryStale(StaleRows):
    """Bins are as even as can be; places are those of every r-th row, and have contents."""

    def _bins_of(self, key: object, graph: DistributedGraph, plan: ExchangePlan) -> Bins:
        if key not in self._bins:
            period = graph.schedule.period
            self._bins[key] = Bins([_bin(plan, b, period) for b in range(period)], 0)
        return self._bins[key]


def _bin(plan: ExchangePlan, first: int, period: int) -> Bin:
    def places(num_rows: int) -> Tensor:
        return torch.arange(first, max(num_rows, first), period, device="cpu")

    counts = tuple(tuple(places(n).numel() for n in row) for row in plan.counts)
    sent = [rows.numel() for rows in plan.send_rows]
    return Bin(
        _plan(plan.rank, counts), tuple(map(places, plan.num_needed)), tuple(map(places, sent))
    )
