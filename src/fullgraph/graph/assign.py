"""Which node goes to which part: METIS, LDG, Mt-KaHyPar, random, or runs of consecutive ids.

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullgraph import kernels
from fullgraph.graph.edges import symmetric_adjacency
from fullgraph.graph.kahypar import kahypar
from fullgraph.graph.metis import metis
from fullgraph.graph.parts import labelled
from fullgraph.graph.typed import TypedGraph
from fullgraph.graph.whole import WholeGraph

METHODS = ("metis", "ldg", "kahypar", "random", "contiguous")
OF_EDGES = ("metis", "ldg", "kahypar")  # these look at the edges
FEW = 4  # labelled nodes a part below which they are not balanced


def assign_parts(
    graph: WholeGraph | TypedGraph, num_parts: int, method: str = "metis", seed: int = 0
) -> Tensor:
    """The part of every node, int32 [N], values in 0 .. num_parts - 1.

    Args:
        num_parts: P, at least 1. Parts can be empty: certainly some are when P > N.
        method: "metis" (few edges between parts; nodes, in-edges and labelled nodes balanced),
            "ldg" (the same for graphs that METIS has no memory for, see `kernels.ldg`), "kahypar"
            (few rows to send; the mean of a part's shares of nodes and in-edges balanced; needs
            mtkahypar), "random" (equal numbers of nodes) or "contiguous" (equal runs of ids).
        seed: of "metis", "ldg" and "random". The same arguments give the same parts.

    METIS works on an undirected copy without duplicates and loops; the graph keeps its edges. Of a
    graph with several types of nodes, N counts all of them and the first three methods see all
    relations alike; the others deal out each type by itself.

    Raises:
        ValueError: num_parts below 1, an unknown method, or one that is not installed.
    """
    check_num_parts(num_parts)
    if method not in METHODS:
        raise ValueError(f"method {method!r} is unknown; choose one of {', '.join(METHODS)}")
    num_nodes = graph.num_nodes
    part: NDArray[np.integer]
    if num_parts == 1:
        part = np.zeros(num_nodes, dtype=np.int32)
    elif isinstance(graph, TypedGraph):
        if method in OF_EDGES or num_nodes <= num_parts:
            return assign_parts(typed_union(graph), num_parts, method, seed)
        sizes = np.array([nodes.num_nodes for nodes in graph.nodes])
        part = _by_type(sizes, num_parts, method, seed)
    elif method == "contiguous" or num_nodes <= num_parts:
        part = np.arange(num_nodes, dtype=np.int64) * min(num_parts, num_nodes) // num_nodes
    elif method == "random":
        part = np.random.default_rng(seed).permutation(num_nodes) % num_parts
    elif method == "ldg":
        return _ldg(graph, num_parts, seed)
    elif method == "kahypar":
        src, dst = graph.edge_index.numpy()
        part = kahypar(src, dst, num_nodes, num_parts)
    else:
        part = _metis(graph, num_parts, seed)
    return torch.from_numpy(part.astype(np.int32))


def check_num_parts(num_parts: int) -> None:
    """Raises ValueError unless it is 1 or more."""
    if num_parts < 1:
        raise ValueError(f"num_parts is {num_parts}: a graph has at least one part")


def typed_union(graph: TypedGraph) -> WholeGraph:
    """All nodes and edges of a typed graph, with the labelled nodes as its training mask."""
    return graph.union(torch.cat([labelled(nodes) for nodes in graph.nodes]))


def _by_type(
    sizes: NDArray[np.integer], num_parts: int, method: str, seed: int
) -> NDArray[np.integer]:
    """Near-equal numbers of each type a part, and of all types together."""
    if method == "contiguous":
        return np.concatenate([np.arange(size) * num_parts // max(size, 1) for size in sizes])
    rng = np.random.default_rng(seed)
    # Dealt in one go, so that types whose sizes do not divide evenly make up for each other.
    dealt = [first + rng.permutation(size) for first, size in zip(np.cumsum(sizes) - sizes, sizes)]
    return np.concatenate(dealt) % num_parts


def _metis(graph: WholeGraph, num_parts: int, seed: int) -> NDArray[np.integer]:
    src, dst = graph.edge_index.numpy()
    offsets, neighbours = symmetric_adjacency(src, dst, graph.num_nodes)
    if neighbours.size == 0:
        return _deal(labelled(graph).numpy(), num_parts)
    part = np.empty(0, dtype=np.int64)
    weights = _weights(graph, num_parts)
    # Where few nodes hold most of a weight (a star), METIS may give up and leave parts empty.
    for kept in range(weights.shape[1], 0, -1):
        part = metis(offsets, neighbours, weights[:, :kept], num_parts, seed % 2**31)
        if np.bincount(part, minlength=num_parts).all():
            break
    return part


def _ldg(graph: WholeGraph, num_parts: int, seed: int) -> Tensor:
    src, dst = graph.edge_index
    weights = torch.ones(graph.num_nodes, 3, dtype=torch.int64)
    weights[:, 1] = torch.bincount(dst, minlength=graph.num_nodes)
    weights[:, 2] = labelled(graph)
    adjacency = kernels.neighbours(src, dst, graph.num_nodes)
    return kernels.ldg(*adjacency, weights, num_parts, seed)


def _deal(first: NDArray[np.bool_], num_parts: int) -> NDArray[np.integer]:
    """Without edges: the nodes marked `first` in turn to each part, then the others."""
    part = np.empty(first.size, dtype=np.int64)
    part[np.argsort(~first, kind="stable")] = np.arange(first.size) % num_parts
    return part


def _weights(graph: WholeGraph, num_parts: int) -> NDArray[np.int64]:
    """int64 [N, 2 or 3]: one, in-edges (as the part will hold them, duplicates included), and
    whether labelled; the last only where every part can have a few."""
    in_edges = np.bincount(graph.edge_index[1].numpy(), minlength=graph.num_nodes)
    weights = [np.ones_like(in_edges), in_edges]
    marked = labelled(graph).numpy()
    if marked.sum() >= FEW * num_parts:
        weights.append(marked.astype(np.int64))
    return np.stack(weights, axis=1)
