"""`convert`: weights both ways, what is refused and how, and models that still run on PyG."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.graphs import multigraph, partitioned


def alone(data=None) -> DistributedGraph:
    return DistributedGraph.build(partitioned(data or multigraph(), 2), Group())


def test_state_dict_keys_stay_and_load_both_ways() -> None:
    original = pyg.GCN(6, 5, 2, 3, norm="batch_norm")
    converted = fullgraph.convert(copy.deepcopy(original))
    assert list(converted.state_dict()) == list(original.state_dict())
    other = pyg.GCN(6, 5, 2, 3, norm="batch_norm")
    converted.load_state_dict(other.state_dict())
    original.load_state_dict(converted.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(original.parameters(), other.parameters()))


def test_converted_model_still_runs_on_a_plain_edge_index() -> None:
    data = multigraph()
    model = pyg.GraphSAGE(6, 5, 2, 3).double()
    expected = model(data.x, data.edge_index)
    converted = fullgraph.convert(model)
    assert converted is model
    assert isinstance(converted, pyg.GraphSAGE)
    assert torch.equal(converted(data.x, data.edge_index), expected)
    assert torch.equal(copy.deepcopy(converted)(data.x, data.edge_index), expected)


def test_a_copy_of_a_converted_model_is_converted() -> None:
    graph, model = alone(), fullgraph.convert(pyg.GIN(6, 5, 2, 3).double())
    x = torch.randn(50, 6, dtype=torch.float64)
    expected = model(x, graph)
    for _ in range(2):
        model = copy.deepcopy(model)
        assert torch.equal(model(x, graph), expected)


def test_graph_inside_a_data_object_is_found() -> None:
    class OnData(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 3)

        def forward(self, data):
            return self.conv(nn.functional.dropout(data.x, 0.5, self.training), data.edge_index)

    class Bag:
        pass

    data, bag = multigraph(), Bag()
    model = fullgraph.convert(OnData().double())
    graph = alone(data)
    bag.x, bag.edge_index = data.x[graph.node_id], graph
    assert model(bag).shape == (50, 3)
    assert model.dropout_step == 1
    model.eval()
    model(bag)
    assert model.dropout_step == 1


@pytest.mark.parametrize(
    ("model", "path", "reason"),
    [
        (lambda: pyg.GAT(6, 4, 2, 3), "convs.0", "GATConv"),
        (
            lambda: nn.ModuleDict({"a": pyg.GINEConv(nn.Linear(6, 3))}),
            "a",
            "not known to be linear",
        ),
        (lambda: pyg.SAGEConv(6, 3, aggr="lstm"), r"\(the model\)", "aggr='lstm'"),
        (lambda: pyg.SAGEConv(6, 3, aggr=["mean", "max"]), r"\(the model\)", "aggr="),
        (lambda: pyg.GCNConv(6, 3, flow="target_to_source"), r"\(the model\)", "reverse the edges"),
        (lambda: pyg.GraphConv(6, 4, decomposed_layers=2), r"\(the model\)", "decomposed_layers"),
        (lambda: nn.Sequential(pyg.GraphNorm(4)), "0", "GraphNorm"),
        (lambda: nn.Sequential(pyg.LayerNorm(4)), "0", "mode='node' is supported"),
        (lambda: nn.Sequential(nn.InstanceNorm1d(4)), "0", "use BatchNorm"),
        (lambda: nn.Sequential(pyg.BatchNorm(4, allow_single_element=True)), "0", "allow_single"),
        (lambda: nn.Sequential(pyg.Linear(-1, 4)), "0", "in_channels=-1"),
        (lambda: pyg.SAGEConv(-1, 4), "lin_l", "in_channels=-1"),
        (lambda: nn.Sequential(pyg.aggr.SumAggregation()), "0", "SumAggregation"),
    ],
)
def test_unsupported_layers_are_refused_by_path_and_reason(model, path, reason) -> None:
    with pytest.raises(fullgraph.UnsupportedLayerError, match=rf"layer '{path}'.*{reason}"):
        fullgraph.convert(model())


def test_a_subclass_with_its_own_message_is_refused() -> None:
    class Mine(pyg.SAGEConv):
        def message(self, x_j):
            return x_j.exp()

    with pytest.raises(fullgraph.UnsupportedLayerError, match="Mine"):
        fullgraph.convert(Mine(6, 3))


def test_two_sets_of_nodes_are_refused() -> None:
    graph, conv = alone(), fullgraph.convert(pyg.SAGEConv((6, 6), 3).double())
    x = torch.zeros(50, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match="bipartite graphs are not supported"):
        conv((x, x[:4]), graph)
    with pytest.raises(ValueError, match="bipartite graphs are not supported"):
        conv((x, None), graph)


def test_wrong_rows_are_named() -> None:
    conv = fullgraph.convert(pyg.SAGEConv(6, 3))
    with pytest.raises(ValueError, match=r"x must be floating point of shape \[50, F\].*\(7, 3\)"):
        conv(torch.zeros(7, 6), alone())
    gcn = fullgraph.convert(pyg.GCNConv(6, 3, normalize=False))
    with pytest.raises(ValueError, match=r"weight must have one entry.*\(3,\)"):
        gcn(torch.zeros(50, 6), alone(), torch.ones(3))


def test_own_features_are_aggregated_once() -> None:
    data = multigraph()
    graph = alone(data)
    conv = fullgraph.convert(pyg.SAGEConv(6, 3).double())
    expected = pyg.SAGEConv(6, 3).double()
    expected.load_state_dict(conv.state_dict())
    calls = []
    mean = graph.keep

    def counting(key, sources, result):
        calls.append(key)
        return mean(key, sources, result)

    graph.keep = counting
    for _ in range(3):
        out = conv(graph.x, graph)
        reference = expected(data.x[graph.node_id], _renumbered(data, graph))
        torch.testing.assert_close(out, reference, rtol=1e-10, atol=1e-12)
    assert len(calls) == 1
    graph.x.mul_(2)  # written to: computed again
    out = conv(graph.x, graph)
    reference = expected(2 * data.x[graph.node_id], _renumbered(data, graph))
    torch.testing.assert_close(out, reference, rtol=1e-10, atol=1e-12)
    assert len(calls) == 2


def _renumbered(data, graph):
    row = torch.empty(50, dtype=torch.int64)
    row[graph.node_id] = torch.arange(50)
    return row[data.edge_index]
