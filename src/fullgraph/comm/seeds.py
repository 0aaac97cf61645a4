"""Only what the labels need: for each layer of a model, the graph that can influence some rows.

The last layer computes the seeds and reads their in-neighbours, the layer before computes those
and reads theirs, and so on outwards. All in-edges of a computed row are there, so the result is
that of the whole graph, and not a sample of it.

Letters: n owned rows of the graph, t targets and s sources of a layer on this rank, E edges of a
layer on this rank, L layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph, Edges
from fullgraph.comm.group import Group
from fullgraph.comm.plan import ExchangePlan
from fullgraph.graph.blocks import edges_into, make_block, renumbering


@dataclass(frozen=True, eq=False)
class SeedGraphs(Sequence[DistributedGraph]):
    """One bipartite graph a layer, the outermost first: ``for conv, g in zip(convs, layers)``.

    Layer l takes rows [s_l, F] to rows [t_l, F], and the targets of a layer are the sources of the
    next, in the same order, which is that of the owned rows; the last one's are the seeds.

    Attributes:
        base: the graph that they were taken from.
        layers: L graphs, of which ``layers[l].source_rows`` and ``target_rows`` say what its rows
            are. The first holds `x`, so what is aggregated from it is computed once.
        total_rows: over all ranks, the rows that go into each layer, and the seeds; L + 1 numbers.
    """

    base: DistributedGraph
    layers: tuple[DistributedGraph, ...]
    total_rows: tuple[int, ...]

    @overload
    def __getitem__(self, index: int) -> DistributedGraph: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DistributedGraph, ...]: ...
    def __getitem__(self, index: int | slice) -> DistributedGraph | tuple[DistributedGraph, ...]:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def group(self) -> Group:
        return self.base.group

    # What goes in ------------------------------------------------------------------------------

    @property
    def rows(self) -> Tensor:
        """int64 [s]: the owned rows of `base` that go into the first layer, ascending."""
        rows = self.layers[0].source_rows
        assert rows is not None  # every layer has them
        return rows

    @property
    def x(self) -> Tensor | None:
        """[s, F]: those rows of `base.x`, as it was when the layers were made."""
        return self.layers[0].x

    # What comes out ----------------------------------------------------------------------------

    @property
    def seed_rows(self) -> Tensor:
        """int64 [t]: the owned rows of `base` that are seeds, ascending."""
        last = self.layers[-1]
        assert last.source_rows is not None
        assert last.target_rows is not None
        return last.source_rows[last.target_rows]

    @property
    def node_id(self) -> Tensor:
        """int64 [t]: original ids of the seeds."""
        return self.layers[-1].node_id

    @property
    def y(self) -> Tensor | None:
        """[t] or [t, C]: of the seeds."""
        return self.layers[-1].y

    @property
    def masks(self) -> dict[str, Tensor]:
        """bool [t] by name: of the seeds."""
        return self.layers[-1].masks

    # Both --------------------------------------------------------------------------------------

    @property
    def num_rows(self) -> tuple[int, ...]:
        """Of this rank, the rows that go into each layer, and its seeds; L + 1 numbers."""
        return (*(layer.num_sources for layer in self.layers), self.layers[-1].num_owned)

    def to(self, device: torch.device | str) -> SeedGraphs:
        """The same on another device."""
        return replace(self, layers=tuple(layer.to(device) for layer in self.layers))


def seed_graphs(graph: DistributedGraph, mask: Tensor, num_layers: int) -> SeedGraphs:
    """See `DistributedGraph.for_seeds`."""
    _check(graph, mask, num_layers)
    layers: list[DistributedGraph] = []
    targets = mask.to(graph.node_id.device).nonzero().view(-1)
    for _ in range(num_layers):
        layers.append(_restricted(graph, targets))
        sources = layers[-1].source_rows
        assert sources is not None
        targets = sources
    layers.reverse()
    if graph.x is not None:
        layers[0].x = graph.x[targets]
    found = SeedGraphs(graph, tuple(layers), ())
    total = torch.tensor(found.num_rows)
    graph.group.all_reduce(total, "the rows of each layer")
    return replace(found, total_rows=tuple(total.tolist()))


def _check(graph: DistributedGraph, mask: Tensor, num_layers: int) -> None:
    """The same error on every rank, whichever rank it is that was given something wrong."""
    graph.require_one_type("for_seeds")
    if graph.target_rows is not None:
        raise ValueError("this graph is a layer already; call for_seeds on the graph it came from")
    group, n = graph.group, graph.num_owned
    fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == (n,)
    told = torch.zeros(group.size, 3, dtype=torch.int64)
    told[group.rank] = torch.tensor([int(mask.sum()) if fits else 0, not fits, num_layers])
    group.all_reduce(told, "what the ranks ask of for_seeds")
    seeds, wrong, layers = told.unbind(1)
    if wrong.any():
        ranks = wrong.nonzero().view(-1).tolist()
        mine = f"; this rank, {group.rank}, owns {n}" if group.size > 1 else f" [{n}]"
        raise ValueError(
            f"mask must be bool with a value for each owned row{mine}; it is not on rank(s) {ranks}"
        )
    if (layers < 1).any() or (layers != layers[0]).any():
        raise ValueError(
            f"num_layers must be 1 or more and the same on every rank, got {layers.tolist()}"
        )
    if not seeds.any():
        raise ValueError("mask has no seed on any rank")


def _restricted(graph: DistributedGraph, targets: Tensor) -> DistributedGraph:
    """The part of the graph that computes `targets`, int64 [t], owned rows in ascending order."""
    group, rank, n = graph.group, graph.group.rank, graph.num_owned
    blocks = graph.edges.blocks
    row_of_target = renumbering(targets, n)
    found = [edges_into(block, row_of_target) for block in blocks]
    src = [block.cols[edges] for block, (edges, _) in zip(blocks, found)]

    # Of the rows that each rank sends here, those still needed, by their positions among them.
    used = [
        src[q].new_empty(0) if q == rank else _distinct(src[q], block.num_sources)
        for q, block in enumerate(blocks)
    ]
    plan = ExchangePlan.build(group, [positions.cpu() for positions in used])
    device = targets.device
    sent = [
        rows[positions.to(device).long()]
        for rows, positions in zip(graph.plan.send_rows, plan.send_rows)
    ]

    is_source = torch.zeros(n, dtype=torch.bool, device=device)
    for rows in (targets, src[rank], *sent):
        is_source[rows.long()] = True
    sources = is_source.nonzero().view(-1)
    row_of_source = renumbering(sources, n)

    new_blocks, origin, first_edge = [], [], 0
    for q, (block, (edges, dst)) in enumerate(zip(blocks, found)):
        if q == rank:
            cols, num_sources = row_of_source[src[q].long()], sources.numel()
        else:
            cols = renumbering(used[q], block.num_sources)[src[q].long()]
            num_sources = used[q].numel()
        new = make_block(q, dst, cols, targets.numel(), num_sources, first_edge, q != rank)
        new_blocks.append(new)
        origin.append(edges.add_(block.first_edge))
        first_edge += new.num_edges
    return replace(
        graph,
        plan=replace(plan, send_rows=tuple(row_of_source[rows.long()] for rows in sent)),
        edges=Edges(new_blocks, torch.cat(origin)),
        node_id=graph.node_id[targets],
        x=None,
        y=None if graph.y is None else graph.y[targets],
        masks={name: mask[targets] for name, mask in graph.masks.items()},
        base=graph,
        source_rows=sources,
        target_rows=row_of_source[targets].long(),
        _kept={},
        layer_cache=weakref.WeakKeyDictionary(),
        _looped=None,
        _reversed=None,
    )


def _distinct(values: Tensor, limit: int) -> Tensor:
    """int32, ascending: the different ones of some numbers of 0 .. limit - 1."""
    occurs = torch.zeros(limit, dtype=torch.bool, device=values.device)
    occurs[values.long()] = True
    return occurs.nonzero().view(-1).to(torch.int32)
