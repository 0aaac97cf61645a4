"""Some of a graph's edges: their data stays with them, and only what they need is fetched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.ops.aggregate import aggregate
from tests.graphs import named, named_parts
from tests.ranks import run_ranks

# Which edges of the whole graph are taken, by their position.
MASKS = {
    "every third": lambda e: torch.arange(e) % 3 == 0,
    "none": lambda e: torch.zeros(e, dtype=torch.bool),
    "all": lambda e: torch.ones(e, dtype=torch.bool),
    "the first": lambda e: torch.arange(e) < 1,
}


def build(group: Group, name: str) -> DistributedGraph:
    return DistributedGraph.build(named_parts(name, 4, False), group, "sequential", 100)


def expected_sums(x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    source, target = edge_index
    return torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None])


def check(group: Group, name: str) -> None:
    data, graph = named(name), build(group, name)
    for which, make in MASKS.items():
        whole = make(data.edge_index.shape[1])
        mask = whole[graph.edge_id]
        some = graph[:, mask]
        assert torch.equal(some.edge_id, graph.edge_id[mask]), which
        assert torch.equal(some.edge_weight, graph.edge_weight[mask]), which
        assert torch.equal(some.edge_target, graph.edge_target[mask]), which
        assert torch.equal(some.from_base_edges(graph.edge_id), some.edge_id), which
        x = data.x[graph.node_id].requires_grad_()
        out = aggregate(some, x, "sum", weight=some.edge_weight)
        leaf = data.x.clone().requires_grad_()
        edges, weight = data.edge_index[:, whole], data.edge_weight[whole]
        expected = expected_sums(leaf, edges, weight)
        torch.testing.assert_close(out, expected[graph.node_id], rtol=1e-10, atol=1e-12)
        (grad,) = torch.autograd.grad(out.square().sum(), x)
        (reference,) = torch.autograd.grad(expected.square().sum(), leaf)
        torch.testing.assert_close(grad, reference[graph.node_id], rtol=1e-10, atol=1e-12)
        # The rows that are fetched are those of the chosen edges' remote sources, each once.
        mine = torch.isin(edges[1], graph.node_id) & ~torch.isin(edges[0], graph.node_id)
        wanted = edges[0, mine].unique().numel()
        fetched = sum(block.num_sources for block in some.edges.blocks) - graph.num_owned
        assert fetched == wanted, which
        # Chosen again, and turned round.
        fewer = some.select_edges(torch.arange(some.num_local_edges) % 2 == 0)
        assert torch.equal(fewer.edge_id, some.edge_id[::2]), which
        turned = some.flip([0])
        out = aggregate(turned, x.detach(), "sum", weight=turned.edge_weight)
        expected = expected_sums(data.x, edges.flip([0]), weight)[graph.node_id]
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["multigraph", "tiny", "no_edges"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_is_the_graph_of_the_chosen_edges(name: str, size: int) -> None:
    run_ranks(check, size, name)


def test_edges_are_chosen_by_a_mask_of_their_number() -> None:
    graph = build(Group(), "multigraph")
    for wrong in (torch.ones(7, dtype=torch.bool), torch.arange(3)):
        with pytest.raises(ValueError, match="edges are chosen by a mask"):
            graph[:, wrong]
    for key in (0, (0, torch.ones(3)), slice(None)):
        with pytest.raises(TypeError, match="no edge_index to unpack"):
            graph[key]
    layer = next(iter(graph.for_seeds(graph.train_mask, 1)))
    with pytest.raises(ValueError, match="before for_seeds"):
        layer.select_edges(torch.ones(layer.num_local_edges, dtype=torch.bool))
