"""Converted models on the graphs of `for_seeds`: what the whole graph gives, for the seeds."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.contract import assert_same
from tests.graphs import named, named_parts
from tests.ranks import RanksFailedError, run_ranks

MODELS = {
    "sage": lambda f, c: pyg.GraphSAGE(f, 5, 2, c),
    "sage_max": lambda f, c: pyg.GraphSAGE(f, 5, 3, c, aggr="max", project=True),
    "gcn": lambda f, c: pyg.GCN(f, 5, 2, c),
    "gcn_weighted": lambda f, c: pyg.GCN(f, 5, 2, c),
    "gcn_without_loops": lambda f, c: pyg.GCN(f, 5, 2, c, add_self_loops=False),
    "gat": lambda f, c: pyg.GAT(f, 4, 2, c, heads=2),
    "gatv2": lambda f, c: pyg.GAT(f, 4, 2, c, heads=2, v2=True, add_self_loops=False),
    "gin": lambda f, c: pyg.GIN(f, 5, 2, c, norm="layer_norm", norm_kwargs={"mode": "node"}),
    "general": lambda f, c: pyg.Sequential("x, edge_index", [
        (pyg.ResGatedGraphConv(f, 5), "x, edge_index -> x"), nn.ReLU(),
        (pyg.LEConv(5, c), "x, edge_index -> x"),
    ]),
}  # fmt: skip
LAYERS = {"sage_max": 3}


def seeds_of(graph: DistributedGraph) -> torch.Tensor:
    return (graph.node_id % 7 == 3) & graph.train_mask


def check(group: Group, name: str) -> None:
    for graph_name in ("multigraph", "one_source_part"):
        data = named(graph_name)
        torch.manual_seed(0)
        reference = MODELS[name](data.x.shape[1], int(data.y.max()) + 1).double()
        model = fullgraph.convert(copy.deepcopy(reference))
        graph = DistributedGraph.build(named_parts(graph_name, 4, False), group, "sequential", 300)
        weighted = name == "gcn_weighted"
        x = data.x.clone().requires_grad_()
        ids = torch.arange(data.num_nodes)
        seeds = (ids % 7 == 3) & data.train_mask
        if not seeds.any():
            continue
        given = {"edge_weight": data.edge_weight} if weighted else {}
        out = reference(x, data.edge_index, **given)
        loss = F.cross_entropy(out[seeds], data.y[seeds])
        loss.backward()

        layers = graph.for_seeds(seeds_of(graph), LAYERS.get(name, 2))
        mine = data.x[graph.node_id[layers.rows]].clone().requires_grad_()
        given = {"edge_weight": data.edge_weight[graph.edge_id]} if weighted else {}
        ours = model(mine, layers, **given)
        our_loss = fullgraph.cross_entropy(ours, layers.y, group=group)
        our_loss.backward()
        fullgraph.sum_gradients(model, group)
        assert_same("loss", our_loss.detach(), loss.detach())
        assert_same("out", ours.detach(), out[layers.node_id].detach())
        assert_same("x.grad", mine.grad, x.grad[graph.node_id[layers.rows]])
        for (key, p), q in zip(model.named_parameters(), reference.parameters()):
            assert_same(key, p.grad, q.grad, float(max(r.grad.abs().max() for r in
                                                       reference.parameters())))  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_seeds_get_what_the_whole_graph_gives(name: str, size: int) -> None:
    run_ranks(check, size, name)


def dropped(group: Group, p: float) -> list[tuple[int, torch.Tensor]]:
    """The hidden rows of seeds after dropout, by node."""
    data = named("multigraph")
    graph = DistributedGraph.build(named_parts("multigraph", 4, False), group, "sequential", 300)
    layers = graph.for_seeds(seeds_of(graph), 2)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = pyg.SimpleConv(), pyg.SimpleConv()

        def forward(self, x, edge_index):
            x = F.dropout(self.first(x, edge_index), p, self.training)
            return self.second(x, edge_index)

    out = fullgraph.convert(Model())(data.x[graph.node_id[layers.rows]], layers)
    return list(zip(layers.node_id.tolist(), out))


def test_dropout_of_hidden_rows_goes_by_the_node() -> None:
    expected = dict(run_ranks(dropped, 1, 0.5)[0])
    assert any((row == 0).any() for row in expected.values())
    for size in (2, 3):
        for node, row in (pair for rank in run_ranks(dropped, size, 0.5) for pair in rank):
            torch.testing.assert_close(row, expected[node])


def refused(group: Group, kind: str) -> None:
    data = named("multigraph")
    graph = DistributedGraph.build(named_parts("multigraph", 4, False), group)
    layers = graph.for_seeds(seeds_of(graph), 2)
    model = {
        "too_many": pyg.GraphSAGE(6, 5, 3, 3), "too_few": pyg.GraphSAGE(6, 5, 1, 3),
        "norm": pyg.GraphSAGE(6, 5, 2, 3, norm="batch_norm"),
        "one_x": pyg.Sequential("x, edge_index", [(pyg.TAGConv(6, 3), "x, edge_index -> x")]),
    }[kind].double()  # fmt: skip
    fullgraph.convert(model)(data.x[graph.node_id[layers.rows]], layers)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("too_many", "more layers than the 2"),
        ("too_few", "made graphs for 2 layers, and the model has 1"),
        ("norm", "statistics of all nodes"),
        ("one_x", "takes one x for sources and targets"),
    ],
)
def test_what_would_not_be_exact_is_refused(kind: str, message: str) -> None:
    with pytest.raises(RanksFailedError, match=message):
        run_ranks(refused, 1, kind)
