"""Generated graphs: degree-corrected planted partitions, and their spec strings.

Every node has a community, uniform at random, and a weight from a power law of exponent 2.3,
capped at sqrt(N). An edge's first end is drawn by weight; its second end by weight too, among
all nodes for a fraction `mix` of the edges, else among the first end's community. Edges are then
symmetrised, deduplicated, and every node gets a self-loop.

Letters: N nodes, F features, K drawn edges.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullgraph.graph.edges import mirror, pack_undirected, sort_unique
from fullgraph.graph.splits import random_split
from fullgraph.graph.whole import WholeGraph

EXPONENT = 2.3
COMMUNITY_SIZE = 400  # nodes a community, unless `communities` says otherwise
CHUNK = 1 << 22  # edges drawn at once; part of what a seed means, so it is fixed


@dataclass(frozen=True)
class PlantedSpec:
    """What to generate. Counts are at least 1 (edges and features: 0), fractions within 0 .. 1.

    ``edges``: undirected edges drawn; duplicates and loops among them are dropped.
    ``communities``: 0 means one for every 400 nodes, and at least one a class where N allows.
    ``mix``: fraction of the edges whose second end is drawn from all nodes; with 1.0 the graph
    has no locality at all.
    ``train``, ``val``: fractions of the nodes; the rest is for testing.
    """

    nodes: int
    edges: int
    features: int = 100
    classes: int = 47
    communities: int = 0
    mix: float = 0.2
    seed: int = 0
    train: float = 0.6
    val: float = 0.2

    def __post_init__(self) -> None:
        for key, low in (("nodes", 1), ("edges", 0), ("features", 0), ("classes", 1)):
            if getattr(self, key) < low:
                raise ValueError(f"planted: {key}={getattr(self, key)} is less than {low}")
        if not 0 <= self.communities <= self.nodes:
            raise ValueError(
                f"planted: communities={self.communities} must be between 0 (automatic) and "
                f"nodes={self.nodes}"
            )
        if not 0 <= self.mix <= 1:
            raise ValueError(f"planted: mix={self.mix} must be between 0 and 1")
        if self.seed < 0:
            raise ValueError(f"planted: seed={self.seed} must not be negative")

    @property
    def num_communities(self) -> int:
        automatic = min(self.nodes, max(self.classes, self.nodes // COMMUNITY_SIZE))
        return self.communities or automatic

    def __str__(self) -> str:
        given = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return "planted:" + ",".join(f"{f.name}={getattr(self, f.name)}" for f in given)


def parse_planted(text: str) -> PlantedSpec:
    """The spec in a string such as ``planted:nodes=1e5,edges=2000000,mix=0.3``.

    Whole numbers may be written 1e5 or 100_000. Raises ValueError naming the unknown key, the
    value that is no number, or what is missing.
    """
    scheme, _, body = text.partition(":")
    if scheme != "planted":
        raise ValueError(f"{text!r} does not start with 'planted:'")
    kinds = {f.name: float if f.type == "float" else int for f in fields(PlantedSpec)}
    values: dict[str, float] = {}
    for item in filter(None, (piece.strip() for piece in body.split(","))):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if key not in kinds or not equals:
            raise ValueError(
                f"{text!r}: {item!r} is not understood; write key=value with a key out of "
                f"{', '.join(kinds)}"
            )
        if key in values:
            raise ValueError(f"{text!r}: {key} is given twice")
        values[key] = _number(text, key, value, kinds[key])
    missing = [key for key in ("nodes", "edges") if key not in values]
    if missing:
        raise ValueError(f"{text!r}: {' and '.join(missing)} must be given")
    return PlantedSpec(**values)  # type: ignore[arg-type]


def _number(text: str, key: str, value: str, kind: type) -> float:
    try:
        number = float(value)
        if kind is float and np.isfinite(number):
            return number
        if kind is int and number == int(number):
            return int(value) if value.lstrip("+-").replace("_", "").isdigit() else int(number)
    except (ValueError, OverflowError):
        pass
    wanted = "a whole number" if kind is int else "a number"
    raise ValueError(f"{text!r}: {key}={value!r} is not {wanted}")


def planted(
    nodes: int,
    edges: int,
    *,
    features: int = 100,
    classes: int = 47,
    communities: int = 0,
    mix: float = 0.2,
    seed: int = 0,
    train: float = 0.6,
    val: float = 0.2,
) -> WholeGraph:
    """Generate a graph; arguments as in `PlantedSpec`. Edges come out by source, then destination.

    x = centre of the class * 0.5 + standard normal, float32; y = community mod classes.
    With the defaults, nodes=200_000 and edges=4_000_000 give about 5.88 million directed edges,
    loops included. The same arguments give the same graph.
    """
    return generate(
        PlantedSpec(nodes, edges, features, classes, communities, mix, seed, train, val)
    )


def generate(spec: PlantedSpec) -> WholeGraph:
    """The graph of a spec; see `planted`."""
    seeds = np.random.SeedSequence(spec.seed).spawn(3)
    town = _settle(spec, np.random.default_rng(seeds[0]))
    edge_index = _draw_edges(spec, town, np.random.default_rng(seeds[1]))
    y = torch.from_numpy(town.community % spec.classes)
    x = _draw_features(spec, y, np.random.default_rng(seeds[2])) if spec.features else None
    masks = random_split(torch.ones(spec.nodes, dtype=torch.bool), spec.train, spec.val, spec.seed)
    return WholeGraph(str(spec), edge_index, spec.nodes, x, y, masks, num_classes=spec.classes)


class _Town(NamedTuple):
    """Nodes by community, and the cumulative weights that draws are looked up in.

    ``community`` [N]: of each node. ``order`` [N]: the nodes, by community. ``ends`` [N]: sum of
    the weights up to and with order[i]. ``bounds`` [communities + 1]: where communities begin,
    in that sum.
    """

    community: NDArray[np.int64]
    order: NDArray[np.int64]
    ends: NDArray[np.float64]
    bounds: NDArray[np.float64]


def _settle(spec: PlantedSpec, rng: np.random.Generator) -> _Town:
    community = rng.integers(0, spec.num_communities, spec.nodes)
    weight = (1.0 - rng.random(spec.nodes)) ** (-1.0 / (EXPONENT - 1.0))
    np.minimum(weight, np.sqrt(spec.nodes), out=weight)
    order = np.argsort(community, kind="stable")
    ends = np.cumsum(weight[order])
    first = np.searchsorted(community[order], np.arange(spec.num_communities + 1))
    bounds = np.concatenate([[0.0], ends])[first]
    return _Town(community, order, ends, bounds)


def _draw_edges(spec: PlantedSpec, town: _Town, rng: np.random.Generator) -> Tensor:
    """int32 or int64 [2, E], sorted by source, then destination."""
    keys = np.empty(spec.edges, dtype=np.int64)
    filled = 0
    for start in range(0, spec.edges, CHUNK):
        drawn = _draw_chunk(min(CHUNK, spec.edges - start), spec, town, rng)
        keys[filled : filled + drawn.size] = drawn
        filled += drawn.size
    keys = mirror(sort_unique(keys[:filled]), spec.nodes, num_loops=spec.nodes)
    kind = np.int32 if spec.nodes < 2**31 else np.int64
    edge_index = np.empty((2, keys.size), dtype=kind)
    for start in range(0, keys.size, CHUNK):
        piece = slice(start, start + CHUNK)
        edge_index[0, piece], edge_index[1, piece] = np.divmod(keys[piece], spec.nodes)
    return torch.from_numpy(edge_index)


def _draw_chunk(
    count: int, spec: PlantedSpec, town: _Town, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Distinct packed pairs of one chunk of draws."""
    total = town.ends[-1]
    # Looked up in ascending order, which stays in the cache; the order of edges means nothing.
    one = _look_up(np.sort(rng.random(count)) * total, town)
    home = town.community[one]
    anywhere = rng.random(count) < spec.mix
    low = np.where(anywhere, 0.0, town.bounds[home])
    high = np.where(anywhere, total, town.bounds[home + 1])
    other = _look_up(low + rng.random(count) * (high - low), town)
    return sort_unique(pack_undirected(one, other, spec.nodes))


def _look_up(weight: NDArray[np.float64], town: _Town) -> NDArray[np.int64]:
    """The nodes at these positions of the cumulative weights."""
    at = np.searchsorted(town.ends, weight, side="right")
    return town.order[np.minimum(at, town.order.size - 1)]


def _draw_features(spec: PlantedSpec, y: Tensor, rng: np.random.Generator) -> Tensor:
    """float32 [N, F]."""
    centres = rng.standard_normal((spec.classes, spec.features), dtype=np.float32) * 0.5
    x = np.empty((spec.nodes, spec.features), dtype=np.float32)
    rows = max(1, CHUNK // spec.features)
    labels = y.numpy()
    for start in range(0, spec.nodes, rows):
        piece = x[start : start + rows]
        rng.standard_normal(out=piece, dtype=np.float32)
        piece += centres[labels[start : start + rows]]
    return torch.from_numpy(x)
