"""Edges as packed int64 keys (first id * N + second id): sorting, deduplication, adjacency.

One sortable number an edge keeps a graph of 10^8 edges at 8 bytes an edge, without Python objects.
Letters: N nodes, E edges, K keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]
Keys = NDArray[np.int64]


def pack_undirected(one: Ids, other: Ids, num_nodes: int) -> Keys:
    """int64 [K]: min * N + max of each pair of different ends; pairs of equal ends are left out."""
    low = np.minimum(one, other).astype(np.int64)
    high = np.maximum(one, other)
    keep = low != high
    low = low[keep]
    low *= num_nodes
    low += high[keep]
    return low


def sort_unique(keys: Keys) -> Keys:
    """The distinct keys, ascending. Sorts `keys` in place: the caller gives the array up."""
    keys.sort()
    if keys.size == 0:
        return keys
    keep = np.empty(keys.size, dtype=bool)
    keep[0] = True
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    return keys if keep.all() else keys[keep]


def mirror(keys: Keys, num_nodes: int, num_loops: int = 0) -> Keys:
    """Both directions of undirected keys, and a loop on nodes 0 .. num_loops - 1, ascending."""
    num_pairs = keys.size
    both = np.empty(2 * num_pairs + num_loops, dtype=np.int64)
    both[:num_pairs] = keys
    reverse = both[num_pairs : 2 * num_pairs]
    np.remainder(keys, num_nodes, out=reverse)
    reverse *= num_nodes
    reverse += keys // num_nodes
    loops = both[2 * num_pairs :]
    loops[:] = np.arange(num_loops)
    loops *= num_nodes + 1
    both.sort()
    return both


def symmetric_adjacency(src: Ids, dst: Ids, num_nodes: int) -> tuple[Keys, Keys]:
    """Offsets [N + 1] and neighbours (int64) of the undirected simple graph under directed edges.

    Both directions of every edge, no duplicates, no loops, neighbours ascending.
    """
    keys = mirror(sort_unique(pack_undirected(src, dst, num_nodes)), num_nodes)
    offsets = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys // num_nodes, minlength=num_nodes), out=offsets[1:])
    keys %= num_nodes
    return offsets, keys
