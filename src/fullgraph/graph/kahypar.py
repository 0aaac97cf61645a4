"""Mt-KaHyPar, which minimises the rows that parts send to each other.

A node's row goes to every other part that has one of its out-neighbours. So each node is a net over
itself and its out-neighbours, and the rows sent are the sum over nets of the parts they touch, less
one: Mt-KaHyPar's objective km1 (Gottesbüren, Heuer, Maas, Sanders, Schlag, "Scalable High-Quality
Hypergraph Partitioning", ACM Transactions on Algorithms 2024).

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
IMBALANCE = 0.03
UNIT = 1 << 10  # of weight: a node, or the mean number of in-edges


def kahypar(src: Ints, dst: Ints, num_nodes: int, num_parts: int) -> Ints:
    """The part of every node, int64 [N]; the same arguments give the same parts, on any number of
    threads.

    src, dst [E]: duplicates and loops are left out of the nets. A node weighs the mean of its
    shares of the nodes and of the in-edges; that is balanced within 3 %, each of the two is not.
    Raises ValueError where mtkahypar is not installed.
    """
    library = _library()
    offsets, pins = _nets(src, dst, num_nodes)
    in_edges = np.bincount(dst, minlength=num_nodes)
    weights = UNIT + in_edges * (UNIT * num_nodes) // max(src.size, 1)
    machine = _machine()
    context = machine.context_from_preset(library.PresetType.DETERMINISTIC)
    context.logging = False
    context.set_partitioning_parameters(num_parts, IMBALANCE, library.Objective.KM1)
    library.set_seed(0)  # of which its deterministic mode makes nothing
    nets = [net.tolist() for net in np.split(pins, offsets[1:-1])]
    hypergraph = machine.create_hypergraph(
        context, num_nodes, num_nodes, nets, weights.tolist(), [1] * num_nodes
    )
    return np.array(hypergraph.partition(context).get_partition(), dtype=np.int64)


def _library() -> Any:
    try:
        import mtkahypar
    except ImportError as error:
        raise ValueError(
            f"method 'kahypar' needs mtkahypar, which cannot be imported ({error}); run "
            "'pip install mtkahypar', or choose method 'metis' or 'ldg'"
        ) from error
    return mtkahypar


@cache
def _machine() -> Any:
    """What mtkahypar is reached through; it has threads of its own, and can be made once."""
    return _library().initialize(os.cpu_count() or 1, False)


def _nets(src: Ints, dst: Ints, num_nodes: int) -> tuple[Ints, Ints]:
    """Offsets [N + 1] and pins: of each node itself and its out-neighbours, ascending."""
    nodes = np.arange(num_nodes)
    keys = np.concatenate([src.astype(np.int64) * num_nodes + dst, nodes * (num_nodes + 1)])
    source, pins = np.divmod(np.unique(keys), num_nodes)
    return np.searchsorted(source, np.arange(num_nodes + 1)), pins
