"""What the planner knows of a graph, and of each worker's share of it under a placement.

Letters: W workers; p, q ranks; a rank's block A[p ← q] has E edges, S source rows and D rows of
results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

from fullgraph.comm.placement import Placement

CLASSES = 64  # unless given


@dataclass(frozen=True)
class GraphFigures:
    """A graph by its numbers, without a node of it.

    ``edges`` are directed. ``classes``: columns of the model's output. ``halo``: rows that a worker
    needs of others under `destination`, as a multiple of the rows that it owns (so 1 + halo is a
    replication factor); None: the graph has no locality, as after a random permutation. ``train``:
    the labelled fraction of the nodes. ``weighted``: edges have a weight. ``loops``: the fraction
    of nodes with a self-loop.
    """

    nodes: int
    edges: int
    features: int
    classes: int = CLASSES
    halo: float | None = None
    train: float = 0.6
    weighted: bool = False
    loops: float = 0.0
    name: str = "figures"

    def validate(self) -> None:
        """Raises ValueError naming the figure."""
        for key, low in (("nodes", 1), ("edges", 0), ("features", 1), ("classes", 1)):
            if getattr(self, key) < low:
                raise ValueError(f"{key}={getattr(self, key)} must be at least {low}")
            if getattr(self, key) > LARGEST:
                raise ValueError(f"{key}={getattr(self, key)} is more than any graph has")
        for key in ("train", "loops"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}={getattr(self, key)} must be between 0 and 1")
        if self.halo is not None and not 0 <= self.halo <= LARGEST:
            raise ValueError(f"halo={self.halo} must be 0 or more: rows needed for each row owned")


LARGEST = 2**48  # of ids of nodes and edges
GIVEN = ("nodes", "edges", "features", "classes", "halo", "train")
FORM = "nodes=111e6,edges=3.2e9,features=128,classes=172,halo=0.3"


def is_figures(text: str) -> bool:
    """Whether a graph is given by figures alone."""
    first = text.partition(",")[0]
    return "=" in first and first.partition("=")[0].strip().isidentifier()


def parse_figures(text: str) -> GraphFigures:
    """From a string such as `FORM`. Raises ValueError naming what is wrong or missing."""
    kinds = {f.name: f.type for f in fields(GraphFigures)}
    values: dict[str, float] = {}
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = (piece.strip() for piece in item.partition("="))
        if key not in GIVEN or key in values:
            what = "is given twice" if key in values else f"is unknown; there are {_list(GIVEN)}"
            raise ValueError(f"{text!r}: {key!r} {what}")
        values[key] = _number(key, value, whole=kinds[key] == "int")
    missing = [key for key in ("nodes", "edges", "features") if key not in values]
    if missing:
        raise ValueError(f"{text!r}: {_list(missing)} must be given, as in {FORM}")
    figures = GraphFigures(**values)  # type: ignore[arg-type]
    figures.validate()
    return figures


def _number(key: str, text: str, whole: bool) -> float:
    try:
        number = float(text)
        if math.isfinite(number) and (not whole or number == int(number)):
            return int(number) if whole else number
    except ValueError:
        pass
    raise ValueError(f"{key}={text!r} is not a {'whole ' if whole else ''}number")


def _list(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)


class BlockFigures(NamedTuple):
    """A block A[p ← q]: its rows of results D, source rows S and edges E. Of the own block, S are
    the owned rows, all of them, and D all rows that p has results for."""

    rows: int
    sources: int
    edges: int


@dataclass(frozen=True)
class Shares:
    """What each rank has of a graph under one placement.

    ``placement``: the one.
    ``owned[p]``, ``labelled[p]``: rows, and those that the loss sees.
    ``blocks[p][q]``: see `BlockFigures`.
    ``gather[p][q]``: rows that p needs of q, one each; ``reduce[p][q]``: rows that p computes a
    part of for q. Both diagonals are 0.
    ``loops[p]``: edges from an owned row to itself; ``looped[p]``: rows that have one.
    """

    placement: Placement
    owned: tuple[int, ...]
    labelled: tuple[int, ...]
    blocks: tuple[tuple[BlockFigures, ...], ...]
    gather: tuple[tuple[int, ...], ...]
    reduce: tuple[tuple[int, ...], ...]
    loops: tuple[int, ...]
    looped: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.owned)

    def edges(self, rank: int) -> int:
        return sum(block.edges for block in self.blocks[rank])

    def sent(self, rank: int) -> int:
        """Rows that a rank sends in one gather and one reduce."""
        return sum(row[rank] for row in self.gather) + sum(self.reduce[rank])

    @property
    def edge_imbalance(self) -> float:
        """The most edges of a rank over the mean; 1 without edges."""
        counts = [self.edges(p) for p in range(self.size)]
        return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0

    def heaviest(self) -> list[int]:
        """Ranks of which one has the most of anything: edges, rows held, rows sent."""
        ranks = range(self.size)
        held = [self.owned[p] + sum(self.gather[p]) + sum(self.reduce[p]) for p in ranks]
        return sorted({max(ranks, key=key) for key in (self.edges, held.__getitem__, self.sent)})
