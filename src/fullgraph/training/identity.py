"""Which graph this is, however it is shared out: what a checkpoint is compared with.

Letters: n owned rows, F columns.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.hetero import DistributedHeteroGraph
from fullgraph.comm.schedule import sequential
from fullgraph.comm.traffic import Traffic
from fullgraph.ops.aggregate import aggregate

Graph = DistributedGraph | DistributedHeteroGraph

ROWS = 1 << 14  # hashed at a time
EDGE_VALUES = ("edge_weight", "edge_attr", "edge_type")
RANGE = 1 << 62  # of sums, which may overflow 64 bits on the way
SMALL = (1 << 20) - 1  # so that float64 sums of such numbers are exact

_known: weakref.WeakKeyDictionary[Graph, dict[str, Any]] = weakref.WeakKeyDictionary()


def identity(graph: Graph) -> dict[str, Any]:
    """Counts, and hashes of nodes (features, labels, masks), of edges and of values on edges. The
    same for any partition, placement, schedule and number of ranks. Sums of hashes of rows, which
    find a mistake, not a forgery.

    A collective at the first call for a graph; later ones give what was found then.
    """
    if graph not in _known:
        nodes, edges = _by_type(graph)
        sums = {
            "features, labels or masks of nodes": [_of_nodes(owned) for owned in nodes],
            "edges": [_of_edges(relation) for relation in edges],
            "values on edges": [_of_edge_values(relation) for relation in edges],
        }
        flat = torch.tensor([number for numbers in sums.values() for number in numbers])
        total = iter(graph.group.all_reduce(flat, "the identity of the graph").tolist())
        meta = graph.meta
        _known[graph] = {
            "nodes in all": meta.num_nodes,
            "edges in all": meta.num_edges,
            **{name: [next(total) % RANGE for _ in numbers] for name, numbers in sums.items()},
        }
    return _known[graph]


def _by_type(graph: Graph) -> tuple[list[Any], list[DistributedGraph]]:
    if isinstance(graph, DistributedHeteroGraph):
        return [*graph.nodes.values()], [*graph.edge_index_dict.values()]
    return [graph], [graph]


def _of_nodes(owned: Any) -> int:
    """owned: anything with node_id [n], x, y and masks."""
    names = sorted(owned.masks)
    fields = [owned.x, owned.y, *(owned.masks[name] for name in names)]
    return (
        sum(
            _hash_rows(owned.node_id, values, salt)
            for salt, values in enumerate([owned.node_id, *fields])
            if values is not None
        )
        % RANGE
    )


def _of_edges(graph: DistributedGraph) -> int:
    """The sum over edges of h(source) · g(target), by an exact aggregation."""
    exact = graph.with_schedule(sequential(), wire="float32")
    exact.traffic = Traffic()  # not of the run
    sources = graph.node_id
    if graph.source_ownership is not None and graph.types is not None:
        alike = (t for t in graph.types.values() if t.ownership is graph.source_ownership)
        sources = next(alike).node_id
    with torch.no_grad():
        of_sources = (_mix(sources) & SMALL).double().unsqueeze(1)
        # a column for each slice, of which the first is as good as all
        summed = aggregate(exact, of_sources.repeat(1, graph.placement.feats))[:, 0]
    return int((_mix(summed.long()) * _mix(graph.node_id)).sum()) % RANGE


def _of_edge_values(graph: DistributedGraph) -> int:
    if graph.feature_slice > 0:  # which has the same edges as slice 0
        return 0
    found = [getattr(graph, name) for name in EDGE_VALUES if _has(graph, name)]
    return sum(_hash_rows(graph.edge_id, values, salt) for salt, values in enumerate(found)) % RANGE


def _has(graph: DistributedGraph, name: str) -> bool:
    return graph.meta.field(name) is not None


def _hash_rows(ids: Tensor, values: Tensor, salt: int) -> int:
    """The sum of a hash of every row and its id; ids: [n], values: [n] or [n, ...]."""
    total = 0
    for begin in range(0, ids.numel(), ROWS):
        rows = values[begin : begin + ROWS].detach().cpu().contiguous()
        rows = rows.view(rows.shape[0], -1)
        words = rows.long() if rows.element_size() == 1 else rows.view(torch.int16).long()
        weight = _mix(torch.arange(1, words.shape[1] + 1) + (salt << 32)) | 1
        of_row = (words * weight).sum(dim=1)
        of_id = _mix(ids[begin : begin + ROWS].cpu() + (salt << 48))
        total += int(_mix(of_row ^ of_id).sum())
    return total % RANGE


def _mix(numbers: Tensor) -> Tensor:
    """A bijection of 64-bit numbers that spreads them: the end of splitmix64 (Steele, Lea and
    Flood, OOPSLA 2014), with shifts that keep the sign."""
    numbers = numbers * -7046029254386353131
    numbers = (numbers ^ (numbers >> 30)) * -4658895280553007687
    numbers = (numbers ^ (numbers >> 27)) * -7723592293110705685
    return numbers ^ (numbers >> 31)
