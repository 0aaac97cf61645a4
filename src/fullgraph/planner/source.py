"""What a plan is about: a partitioned folder, a graph to be partitioned, or figures alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from fullgraph.comm.load import is_folder, partition_options
from fullgraph.comm.placement import DESTINATION, Placement
from fullgraph.graph.folder import PartitionedFolder
from fullgraph.graph.partition import PartitionedInMemory, partition
from fullgraph.graph.parts import VERTEX_CUT, GraphMeta, Part, Partitioned
from fullgraph.graph.sources import read
from fullgraph.graph.typed import TypedGraph
from fullgraph.graph.whole import WholeGraph
from fullgraph.planner.choose import SharesOf, placements
from fullgraph.planner.figures import GraphFigures, Shares, is_figures, parse_figures
from fullgraph.planner.shares import count_shares, expect_shares, figures_of
from fullgraph.training.config import check_parts
from fullgraph.training.options import check_untyped
from fullgraph.training.prepare import no_stage

Stage = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Source:
    """``figures``; ``shares_of``: as `choose` takes it; ``among``: the placements that are open."""

    figures: GraphFigures
    shares_of: SharesOf
    among: tuple[Placement, ...]


def open_source(
    text: str, workers: int, stage: Stage = no_stage, method: str | None = None
) -> Source:
    """From what the command line is given.

    Args:
        method: of partitioning a graph; placements without it are not open. None: the default of
            each.

    Raises ValueError where it is not understood, has fewer parts than workers, or has types of
    nodes.
    """
    if is_figures(text):
        figures = parse_figures(text)
        among = tuple(placements(workers))
        return Source(figures, lambda placement: expect_shares(figures, workers, placement), among)
    if is_folder(text):
        folder = PartitionedFolder.open(text)
        check_parts(folder.meta.num_parts, workers)
        return of_partitioned(folder, workers)
    with stage(f"reading {text}"):
        graph = read(text)
    return of_whole(graph, workers, stage, method)


def of_partitioned(partitioned: Partitioned, workers: int) -> Source:
    """As it is partitioned, which decides whether edges are with their destinations."""
    _check(partitioned.meta)
    held = _Held(partitioned)
    among = tuple(placements(workers))
    if partitioned.meta.placement == VERTEX_CUT:
        among = (Placement(VERTEX_CUT),)
    return Source(figures_of(held), lambda placement: count_shares(held, workers, placement), among)


def of_whole(
    graph: WholeGraph | TypedGraph, workers: int, stage: Stage = no_stage, method: str | None = None
) -> Source:
    """Partitioned as `fullgraph train` does it for each placement."""
    among = tuple(p for p in placements(workers, cut=True) if _has(p, method))
    made: dict[str, Partitioned] = {}

    def partitioned_for(placement: Placement) -> Partitioned:
        kind = placement.kind
        if kind not in made:
            with stage(f"partitioning for {kind}"):
                made[kind] = _Held(partition_for(graph, workers, placement, method))
        return made[kind]

    first = partitioned_for(among[0] if among else DESTINATION)
    _check(first.meta)

    def shares_of(placement: Placement) -> Shares:
        return count_shares(partitioned_for(placement), workers, placement)

    return Source(figures_of(first), shares_of, among)


def partition_for(
    graph: WholeGraph | TypedGraph, workers: int, placement: Placement, method: str | None = None
) -> PartitionedInMemory:
    """As a placement wants it, unless told how."""
    return partition(graph, workers, **partition_options(placement, method))


def _has(placement: Placement, method: str | None) -> bool:
    try:
        partition_options(placement, method)
    except ValueError:
        return False
    return True


def _check(meta: GraphMeta) -> None:
    check_untyped(meta)
    if not meta.num_features or not meta.num_classes:
        lack = "features" if not meta.num_features else "classes"
        raise ValueError(f"graph {meta.name!r} has no {lack}, which a model to plan for needs")


@dataclass(frozen=True)
class _Held:
    """A partitioned graph whose parts, which one in memory builds at every call, are kept; without
    what only training needs."""

    of: Partitioned
    _parts: dict[int, Part] = field(default_factory=dict)

    @property
    def meta(self) -> GraphMeta:
        return self.of.meta

    def part(self, k: int) -> Part:
        if k not in self._parts:
            self._parts[k] = replace(self.of.part(k), x=None, y=None, masks={})
        return self._parts[k]
