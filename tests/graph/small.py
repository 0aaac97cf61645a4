"""Small whole graphs for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fullgraph.graph.partition import PartitionedVertexCut
from fullgraph.graph.whole import WholeGraph, canonical


def graph(
    edges: list[tuple[int, int]] | Tensor, num_nodes: int, train: list[int] | None = None
) -> WholeGraph:
    """x[i] = [i, -i], y[i] = i mod 3, edge_weight[e] = e, edge_attr[e] = [e, 2e]; validation set
    is everything that is not for training."""
    edge_index = torch.as_tensor(edges)
    if not isinstance(edges, Tensor):
        edge_index = edge_index.reshape(-1, 2).T.to(torch.int64)
    nodes = torch.arange(num_nodes, dtype=torch.float32)
    weight = torch.arange(edge_index.shape[1], dtype=torch.float32)
    chosen = torch.zeros(num_nodes, dtype=torch.bool)
    chosen[train if train is not None else slice(0, None, 2)] = True
    return canonical(
        WholeGraph(
            name="small",
            edge_index=edge_index,
            num_nodes=num_nodes,
            x=torch.stack([nodes, -nodes], dim=1),
            y=torch.arange(num_nodes) % 3,
            masks={"train": chosen, "val": ~chosen},
            edge_weight=weight,
            edge_attr=torch.stack([weight, 2 * weight], dim=1),
            num_classes=3,
        )
    )


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> WholeGraph:
    """Directed, with the multi-edges and self-loops that chance gives."""
    generator = torch.Generator().manual_seed(seed)
    return graph(torch.randint(num_nodes, (2, num_edges), generator=generator), num_nodes)


def with_types(graph: WholeGraph, num_relations: int = 4) -> WholeGraph:
    """The same graph, edge e of type 7 e mod num_relations."""
    types = torch.arange(graph.num_edges) * 7 % num_relations
    return replace(graph, edge_type=types, num_relations=num_relations)


def random_cut(graph: WholeGraph, num_parts: int, seed: int = 0) -> PartitionedVertexCut:
    """Owners of nodes and parts of edges as chance has it: an owner need not have an edge."""
    generator = torch.Generator().manual_seed(seed)
    owner = torch.randint(num_parts, (graph.num_nodes,), generator=generator)
    edge_part = torch.randint(num_parts, (graph.num_edges,), generator=generator)
    return PartitionedVertexCut(graph, owner, edge_part, num_parts)


def star(num_nodes: int) -> WholeGraph:
    """Node 0 and every other node, both ways."""
    edges = [(0, leaf) for leaf in range(1, num_nodes)]
    return graph(edges + [(leaf, 0) for _, leaf in edges], num_nodes)
