"""The shares of every rank under a placement: counted on a partitioned graph, or expected.

Letters: W workers; p, q ranks; n owned rows; R, C, K the shape of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullgraph.comm.placed_edges import check_placement
from fullgraph.comm.placement import Placement
from fullgraph.graph.blocks import Ownership
from fullgraph.graph.parts import VERTEX_CUT, Part, Partitioned
from fullgraph.planner.figures import BlockFigures, GraphFigures, Shares

Ints = NDArray[np.int64]
Between = Callable[[int, int], float]  # (owner of the destination, owner of the source): edges


def figures_of(partitioned: Partitioned) -> GraphFigures:
    """The figures of a graph that is there; its halo is in its shares."""
    meta = partitioned.meta
    labelled = sum(meta.part_labelled) / meta.num_nodes
    return GraphFigures(
        meta.num_nodes, meta.num_edges, meta.num_features, meta.num_classes, train=labelled,
        weighted=meta.field("edge_weight") is not None, name=meta.name,
    )  # fmt: skip


def count_shares(
    partitioned: Partitioned, num_ranks: int, placement: str | Placement = "destination"
) -> Shares:
    """Look at every edge once, a group of ranks that share their edges at a time.

    Raises ValueError where the placement is not one of so many ranks, or of this graph.
    """
    placement = Placement.parse(placement)
    check_placement(partitioned, placement, num_ranks)
    counting = _Counting(partitioned, num_ranks)
    counts: dict[int, _Counts] = {}
    for ranks in _groups(placement, num_ranks):
        found = counting.count(*_ends(placement, ranks[0], num_ranks), ranks[0])
        counts |= dict.fromkeys(ranks, found)
    shares = [_rank_share(counts[p], placement, p, counting.owned) for p in range(num_ranks)]
    labelled = [
        sum(partitioned.meta.part_labelled[k] for k in counting.ownership.parts_of(r))
        for r in range(num_ranks)
    ]
    blocks, gather, reduce = zip(*shares)
    if not placement.splits:
        reduce = ((0,) * num_ranks,) * num_ranks
    loops, looped = (tuple(counts.tolist()) for counts in (counting.loops, counting.looped))
    return Shares(placement, counting.owned, tuple(labelled), blocks, gather, reduce, loops, looped)


class _Counts(NamedTuple):
    """Of a group's edges, by the owner q of their sources: edges, distinct sources, and distinct
    destinations; and by the owner t of their destinations, distinct destinations. [W] each."""

    edges: list[int]
    sources: list[int]
    rows: list[int]
    targets: list[int]


class _Counting:
    """``loops``, ``looped``: int64 [W], as in `Shares`, of what has been counted so far."""

    def __init__(self, partitioned: Partitioned, num_ranks: int) -> None:
        self.partitioned, self.size = partitioned, num_ranks
        self.ownership = Ownership.balance(partitioned.meta, num_ranks)
        self.owned = self.ownership.num_owned
        self.base = np.concatenate([[0], np.cumsum(self.owned)])
        owner = np.repeat(np.arange(num_ranks), np.diff(self.ownership.first_part))
        self.part_base = self.base[owner] + np.array(self.ownership.row_base)
        self.has_loop = np.zeros(self.base[-1], dtype=bool)
        self.loops = np.zeros(num_ranks, dtype=np.int64)
        self._parts: dict[int, Part] = {}

    @property
    def looped(self) -> NDArray[np.int64]:
        return np.diff(np.concatenate([[0], np.cumsum(self.has_loop)])[self.base])

    def count(self, sources: list[int], targets: list[int], rank: int) -> _Counts:
        """Of the edges from rows of `sources` in the parts of the ranks `targets`; of a vertex cut
        in those of `rank`, wherever they end."""
        cut = self.partitioned.meta.placement == VERTEX_CUT
        first, last = (0, self.size - 1) if cut else (targets[0], targets[-1])
        start, span = self.base[first], self.base[last + 1] - self.base[first]
        counts = _Counts(*([0] * self.size for _ in range(4)))
        met = np.zeros(span, dtype=bool)
        for q in sources:
            is_source, is_target = np.zeros(self.owned[q], dtype=bool), np.zeros(span, dtype=bool)
            for dst, src in self._edges([rank] if cut else targets, q):
                is_source[src] = True
                is_target[dst - start] = True
                counts.edges[q] += src.size
                self._note_loops(q, dst, src)
            counts.sources[q], counts.rows[q] = int(is_source.sum()), int(is_target.sum())
            met |= is_target
        for t in range(first, last + 1):
            inside = slice(self.base[t] - start, self.base[t + 1] - start)
            counts.targets[t] = int(met[inside].sum())
        return counts

    def _edges(self, holders: list[int], q: int) -> Iterator[tuple[Ints, Ints]]:
        """(destinations, numbered over all ranks; sources, rows of rank q), a part at a time."""
        for k in (k for holder in holders for k in self.ownership.parts_of(holder)):
            part = self._part(k)
            for source in self.ownership.parts_of(q):
                edges = slice(*part.source_offsets[source : source + 2].tolist())
                dst_part = k if part.dst_part is None else part.dst_part[edges].numpy()
                yield (
                    self.part_base[dst_part] + part.dst[edges].numpy(),
                    part.src[edges].numpy() + self.ownership.row_base[source],
                )

    def _note_loops(self, q: int, dst: Ints, src: Ints) -> None:
        rows = dst[dst == src + self.base[q]]
        self.has_loop[rows] = True
        self.loops[q] += rows.size

    def _part(self, k: int) -> Part:
        if k not in self._parts:  # of a graph in memory, a part is built at every call
            self._parts[k] = self.partitioned.part(k)
        return self._parts[k]


def _rank_share(
    counts: _Counts, placement: Placement, rank: int, owned: tuple[int, ...]
) -> tuple[tuple[BlockFigures, ...], tuple[int, ...], tuple[int, ...]]:
    """Blocks, and rows to gather and to reduce, of one of the ranks that share these edges."""
    same = mirrors(placement, rank)
    ranks = range(len(owned))
    needed = tuple(_rows(counts.sources, same, rank, q, owned) for q in ranks)
    foreign = tuple(_rows(counts.targets, same, rank, q, owned) for q in ranks)
    targets = owned[rank] + (sum(foreign) if placement.splits else 0)
    blocks = tuple(
        BlockFigures(targets, owned[rank], counts.edges[q]) if q == rank
        else BlockFigures(counts.rows[q], needed[q], counts.edges[q])
        for q in ranks
    )  # fmt: skip
    return blocks, needed, foreign


def _rows(counts: list[int], same: list[int], rank: int, q: int, owned: tuple[int, ...]) -> int:
    """Rows of q that travel to or from a rank: none of its own, all of a mirror's."""
    return 0 if q == rank else owned[q] if q in same else counts[q]


def expect_shares(
    figures: GraphFigures, num_ranks: int, placement: str | Placement = "destination"
) -> Shares:
    """What counting would find, in the mean, on a graph of which only the figures are known.

    A share `mixing` of the edges comes from anywhere, the others from rows of the owner of their
    destination, where it is such that a worker needs `halo` times the rows that it owns; both ends
    are uniform, which overstates the rows of a graph with hubs.

    Raises ValueError for a vertex cut, and for a halo that no so many edges can have.
    """
    placement = Placement.parse(placement)
    placement.check_ranks(num_ranks)
    if placement.kind == "vertex-cut":
        raise ValueError("what a vertex cut gives depends on the graph: it needs more than figures")
    between = _edges_between(figures, num_ranks)
    owned = _shared_out(figures.nodes, num_ranks)
    shares = []
    for p in range(num_ranks):
        sources, targets = _ends(placement, p, num_ranks)
        counts = _expected_counts(between, sources, targets, owned)
        shares.append(_rank_share(counts, placement, p, owned))
    blocks, gather, reduce = zip(*shares)
    if not placement.splits:
        reduce = ((0,) * num_ranks,) * num_ranks
    loops = tuple(round(n * figures.loops) for n in owned)
    labelled = _shared_out(round(figures.nodes * figures.train), num_ranks)
    return Shares(placement, owned, labelled, blocks, gather, reduce, loops, loops)


def _expected_counts(
    between: Between, sources: list[int], targets: list[int], owned: tuple[int, ...]
) -> _Counts:
    counts = _Counts(*([0] * len(owned) for _ in range(4)))
    for q in sources:
        edges = [between(t, q) for t in targets]
        counts.edges[q] = round(sum(edges))
        counts.sources[q] = round(_distinct(sum(edges), owned[q]))
        counts.rows[q] = round(sum(_distinct(e, owned[t]) for e, t in zip(edges, targets)))
    for t in targets:
        counts.targets[t] = round(_distinct(sum(between(t, q) for q in sources), owned[t]))
    return counts


def _shared_out(count: int, num_ranks: int) -> tuple[int, ...]:
    return tuple(count // num_ranks + (r < count % num_ranks) for r in range(num_ranks))


def _distinct(draws: float, rows: float) -> float:
    """How many of so many rows are met by so many uniform draws, in the mean."""
    return rows * -math.expm1(-draws / rows) if rows else 0.0


def _groups(placement: Placement, size: int) -> list[list[int]]:
    """Ranks that have the same edges, together."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(size):
        row, col, _ = placement.coordinates(rank)
        found.setdefault((row, col) if placement.kind == "grid" else (rank,), []).append(rank)
    return [*found.values()]


def _ends(placement: Placement, rank: int, size: int) -> tuple[list[int], list[int]]:
    """The owners of the sources, and of the destinations, of the edges that live on a rank; of a
    vertex cut they may be anyone."""
    ranks = range(size)
    if placement.kind != "grid":
        return [*ranks], [rank]
    row, col, _ = placement.coordinates(rank)
    of_col = [q for q in ranks if placement.coordinates(q)[1] == col]
    return of_col, [q for q in ranks if placement.coordinates(q)[0] == row]


def mirrors(placement: Placement, rank: int) -> list[int]:
    """Ranks with the same edges, which work on other columns, and this one. Each has every row of
    all of them, as self-loops of all of them live there."""
    if placement.kind != "grid":
        return [rank]
    row, col, _ = placement.coordinates(rank)
    return [placement.rank_of(row, col, k) for k in range(placement.feats)]


def _edges_between(figures: GraphFigures, num_ranks: int) -> Between:
    """A function of (owner of the destination, owner of the source): the edges between them."""
    mixing = _mixing(figures, num_ranks)
    per_rank = figures.edges / num_ranks
    anywhere = per_rank * mixing / num_ranks

    def between(target: int, source: int) -> float:
        return anywhere + (per_rank * (1 - mixing) if target == source else 0.0)

    return between


def _mixing(figures: GraphFigures, num_ranks: int) -> float:
    """The share of edges from anywhere under which a worker needs `halo` rows a row it owns."""
    if figures.halo is None or num_ranks == 1 or not figures.edges:
        return 1.0
    owned = figures.nodes / num_ranks
    others = figures.nodes - owned
    remote = figures.edges / num_ranks * (1 - 1 / num_ranks)  # of a rank, were all from anywhere
    largest = _distinct(remote, others) / owned
    if figures.halo > largest * (1 + 1e-9):
        raise ValueError(
            f"halo={figures.halo:g} is more than {num_ranks} workers can need for their "
            f"{figures.edges / num_ranks:.3g} edges each: at most {largest:.3g} rows for each row "
            "owned"
        )
    share = figures.halo * owned / others
    return min(1.0, -math.log1p(-min(share, 1 - 1e-12)) * others / remote)
