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
from tests.ranks import run_ranks


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


class Explained(pyg.SimpleConv):
    def __init__(self):
        super().__init__()
        self.explain = True


class Hooked(pyg.SimpleConv):
    def __init__(self):
        super().__init__()
        self.register_message_forward_hook(lambda *_: None)


class Pools(pyg.SimpleConv):
    """Has an aggregation besides the one that it is made with."""

    def __init__(self):
        super().__init__()
        self.pool = pyg.aggr.SortAggregation(3)


def without_extras(kind) -> nn.Module:
    """A layer of this class, which needs packages that are not installed, or a GPU."""
    layer = object.__new__(kind)
    pyg.MessagePassing.__init__(layer)
    return nn.ModuleList([layer])


AGGREGATIONS = {
    "LSTMAggregation": (6, 6),
    "GRUAggregation": (6, 6),
    "SortAggregation": (3,),
    "MedianAggregation": (),
    "QuantileAggregation": (0.5,),
    "MLPAggregation": (6, 6, 4),
    "SetTransformerAggregation": (6,),
    "Set2Set": (6, 2),
    "GraphMultisetTransformer": (6, 2),
    "EquilibriumAggregation": (6, 6, [4]),
    "LCMAggregation": (6, 6),
    "PatchTransformerAggregation": (6, 6, 2, 4),
}


@pytest.mark.parametrize(
    ("model", "path", "reason"),
    [
        (lambda: pyg.SAGEConv(6, 3, aggr="lstm"), r"\(the model\)", "LSTMAggregation needs all"),
        (
            lambda: pyg.GraphSAGE(6, 4, 2, aggr=["mean", "median"]),
            r"convs\.0",
            "MedianAggregation needs all messages of a node at once.*sum, mean, mul",
        ),
        (lambda: nn.ModuleList([Explained()]), "0", "explain=True looks at"),
        (lambda: nn.ModuleList([Hooked()]), "0", "hooks on message"),
        (lambda: nn.ModuleList([Pools()]), "0", "SortAggregation needs all"),
        (lambda: without_extras(pyg.DynamicEdgeConv), "0", "graph of its own.*EdgeConv"),
        (lambda: without_extras(pyg.GravNetConv), "0", "graph of its own"),
        (lambda: without_extras(pyg.PANConv), "0", "graph of its own.*TAGConv"),
        (lambda: without_extras(pyg.MeshCNNConv), "0", "order of edges"),
        (lambda: without_extras(pyg.FusedGATConv), "0", "csr.*GATConv is the same layer"),
        (lambda: nn.Sequential(nn.InstanceNorm1d(4)), "0", r"use torch_geometric\.nn"),
        (lambda: nn.Sequential(pyg.Linear(-1, 4)), "0", "in_channels=-1"),
        (lambda: pyg.SAGEConv(-1, 4), "lin_l", "in_channels=-1"),
        (lambda: nn.Sequential(pyg.aggr.SumAggregation()), "0", "SumAggregation"),
    ],
)
def test_unsupported_layers_are_refused_by_path_and_reason(model, path, reason) -> None:
    with pytest.raises(fullgraph.UnsupportedLayerError, match=rf"layer '{path}'.*{reason}"):
        fullgraph.convert(model())


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregations_that_need_all_messages_at_once_are_refused(name: str) -> None:
    """Wherever they are: by themselves, among others, and inside of others."""
    options = {"num_layers": 1} if name == "MLPAggregation" else {}
    last = getattr(pyg.aggr, name)(*AGGREGATIONS[name], **options)
    for aggr in (last, pyg.aggr.MultiAggregation(["mean", last])):
        model = nn.ModuleDict({"conv": pyg.SimpleConv(aggr=aggr)})
        with pytest.raises(
            fullgraph.UnsupportedLayerError, match=f"layer 'conv'.*{name}.*all messages of a node"
        ):
            fullgraph.convert(model)


def test_a_refusal_says_what_is_supported() -> None:
    with pytest.raises(fullgraph.UnsupportedLayerError) as caught:
        fullgraph.convert(pyg.SAGEConv(6, 3, aggr="lstm"))
    said = str(caught.value)
    assert "MessagePassing layers, PyG's and your own" in said
    assert len(said) < 1000


class MyMessage(pyg.SAGEConv):
    def message(self, x_j):
        return x_j.tanh()


# What was refused before any MessagePassing layer could run.
NOW_SUPPORTED = {
    "GAT": lambda: pyg.GAT(6, 4, 2, 3, heads=2),
    "GINEConv": lambda: pyg.GINEConv(nn.Linear(6, 3), edge_dim=1),
    "several aggregations": lambda: pyg.SAGEConv(6, 3, aggr=["mean", "max"]),
    "flow": lambda: pyg.GCNConv(6, 3, flow="target_to_source"),
    "decomposed_layers": lambda: pyg.GCNConv(6, 4, decomposed_layers=2),
    "own message": lambda: MyMessage(6, 3),
    "own aggregation": lambda: pyg.SimpleConv(aggr=pyg.aggr.SoftmaxAggregation(learn=True)),
}


@pytest.mark.parametrize("name", NOW_SUPPORTED)
def test_layers_that_are_not_plain_sums_are_exact(name: str) -> None:
    data, graph = multigraph(), alone()
    torch.manual_seed(0)
    model = NOW_SUPPORTED[name]().double()
    values = [data.edge_weight.view(-1, 1)] if name == "GINEConv" else []
    x, ours = data.x.clone().requires_grad_(), data.x[graph.node_id].clone().requires_grad_()
    expected = copy.deepcopy(model)(x, data.edge_index, *values)
    out = fullgraph.convert(model)(ours, graph, *(v[graph.edge_id] for v in values))
    torch.testing.assert_close(out, expected[graph.node_id], rtol=1e-10, atol=1e-12)
    expected.square().sum().backward()
    out.square().sum().backward()
    torch.testing.assert_close(ours.grad, x.grad[graph.node_id], rtol=1e-10, atol=1e-12)


def test_a_model_that_reads_edge_index_is_told() -> None:
    class Reads(nn.Module):
        def __init__(self, read):
            super().__init__()
            self.read, self.conv = read, pyg.SAGEConv(6, 3)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index) * self.read(edge_index)

    graph = alone()
    x = torch.zeros(50, 6, dtype=torch.float64)
    for read, said in (
        (lambda e: e.shape[1], "the size of edge_index.*graph.meta.num_edges"),
        (lambda e: e.size(1), "the size of edge_index.*graph.num_nodes"),
        (lambda e: e[0], "no edge_index to unpack or index.*edge_target"),
        (lambda e: len([*e]), "no edge_index to unpack or index"),
        (lambda e: e[:, :3], "edges are chosen by a mask"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            fullgraph.convert(Reads(read).double())(x, graph)


def test_targets_rows_must_be_the_owned_rows() -> None:
    graph, x = alone(), torch.zeros(50, 6, dtype=torch.float64)
    for layer in (pyg.SAGEConv((6, 6), 3), pyg.GraphConv((6, 6), 3), pyg.GATConv((6, 6), 3)):
        conv = fullgraph.convert(layer.double())
        with pytest.raises(ValueError, match=r"where this rank owns 50|[\[(]50, "):
            conv((x, x[:4]), graph)
    conv = fullgraph.convert(pyg.SAGEConv((6, 6), 3).double())
    assert conv((x, None), graph).shape == (50, 3)


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
    graph.x.mul_(2)  # other ranks cannot know
    with pytest.raises(RuntimeError, match=r"graph.forget\(\)"):
        conv(graph.x, graph)
    graph.forget()
    out = conv(graph.x, graph)
    reference = expected(2 * data.x[graph.node_id], _renumbered(data, graph))
    torch.testing.assert_close(out, reference, rtol=1e-10, atol=1e-12)
    assert len(calls) == 2


def _renumbered(data, graph):
    row = torch.empty(50, dtype=torch.int64)
    row[graph.node_id] = torch.arange(50)
    return row[data.edge_index]


def test_a_kept_result_that_is_written_to_is_noticed() -> None:
    graph = alone()
    fullgraph.aggregate(graph, graph.x).mul_(2)
    with pytest.raises(RuntimeError, match=r"graph.forget\(\)"):
        fullgraph.aggregate(graph, graph.x)


def test_layers_and_methods_cannot_go_around_the_converted_model() -> None:
    graph, model = alone(), fullgraph.convert(pyg.GraphSAGE(6, 5, 2, 3).double())
    x = torch.zeros(50, 6, dtype=torch.float64)
    for conv in (model.convs[0], fullgraph.convert(pyg.GCN(6, 5, 1).double()).convs[0]):
        with pytest.raises(RuntimeError, match="outside of the converted model's forward pass"):
            conv(x, graph)


def test_activation_checkpointing_is_refused() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 3)

        def forward(self, x, edge_index):
            return checkpoint(self.conv, x, edge_index, use_reentrant=True)

    graph, model = alone(), fullgraph.convert(Checkpointed().double())
    out = model(torch.zeros(50, 6, dtype=torch.float64, requires_grad=True), graph)
    with pytest.raises(RuntimeError, match="checkpointing"):
        out.sum().backward()


def test_graph_in_a_list_and_as_a_keyword_is_found() -> None:
    class OnList(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 3)

        def forward(self, x, graphs):
            return self.conv(x, graphs["one"][0])

    graph = alone()
    x = torch.randn(50, 6, dtype=torch.float64)
    model = fullgraph.convert(OnList().double())
    assert torch.equal(model(x, {"one": [graph]}), model(x, graphs={"one": (graph,)}))


def test_inference_mode_leaves_nothing_behind_that_training_trips_over() -> None:
    graph = alone()
    for model in (pyg.GCN(6, 5, 2, 3), pyg.GraphSAGE(6, 5, 2, 3), pyg.GIN(6, 5, 2, 3)):
        converted = fullgraph.convert(model.double())
        weight = {"edge_weight": graph.edge_weight} if isinstance(model, pyg.GCN) else {}
        with torch.inference_mode():
            expected = converted(graph.x, graph, **weight)
        out = converted(graph.x, graph, **weight)
        out.sum().backward()
        torch.testing.assert_close(out.detach(), expected.clone())


def test_a_linear_layer_with_hooks_or_parametrization_is_called_and_not_taken_apart() -> None:
    graph = alone()
    x = torch.randn(50, 6, dtype=torch.float64)
    conv = fullgraph.convert(pyg.SAGEConv(6, 3).double())
    torch.nn.utils.parametrizations.weight_norm(conv.lin_l)
    conv(x, graph).sum().backward()
    assert all(p.grad is not None for p in conv.parameters())
    calls = []
    sg = fullgraph.convert(pyg.SGConv(6, 3).double())
    sg.lin.register_forward_hook(lambda *_: calls.append(1))
    sg(x, graph)
    assert calls == [1]


def test_cached_layers_keep_to_their_graph() -> None:
    data = multigraph()
    one = DistributedGraph.build(partitioned(data, 2), Group())
    two = DistributedGraph.build(partitioned(data, 3), Group())
    for make in (lambda: pyg.SGConv(6, 3, cached=True), lambda: pyg.GCNConv(6, 3, cached=True)):
        model = make().double()
        expected = copy.deepcopy(model)(data.x, data.edge_index)
        fullgraph.convert(model)
        for graph in (one, two, one):
            out = model(data.x[graph.node_id], graph)
            torch.testing.assert_close(out, expected[graph.node_id])
        torch.testing.assert_close(model(data.x, data.edge_index), expected)
        again = copy.deepcopy(model)
        torch.testing.assert_close(again(data.x[two.node_id], two), expected[two.node_id])


def test_a_converted_layer_inside_a_model_that_is_converted() -> None:
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = fullgraph.convert(pyg.GCNConv(6, 3)), nn.BatchNorm1d(3)

        def forward(self, x, edge_index):
            return nn.functional.dropout(self.norm(self.conv(x, edge_index)), 0.5)

    graph, model = alone(), fullgraph.convert(Outer().double())
    x = torch.randn(50, 6, dtype=torch.float64)
    first, second = model(x, graph), model.eval()(x, graph)
    assert not torch.equal(first, second)
    assert not torch.equal(second, model(x, graph))  # dropout that is on in evaluation, anew


def test_weights_of_another_dtype_or_layout_are_taken_as_pyg_takes_them() -> None:
    data, graph = multigraph(), alone()
    conv = pyg.GraphConv(6, 3).double()
    pairs = torch.stack([data.edge_weight, data.edge_weight], 1)
    expected = conv(data.x, data.edge_index, pairs[:, 0])[graph.node_id]
    fullgraph.convert(conv)
    x = data.x[graph.node_id]
    torch.testing.assert_close(conv(x, graph, pairs[graph.edge_id][:, 0]), expected)
    ones = torch.ones(graph.num_local_edges, dtype=torch.float64)
    assert fullgraph.aggregate(graph, x.float(), weight=ones).dtype == torch.float64
    assert fullgraph.aggregate(graph, x.bfloat16(), weight=ones.bfloat16()).dtype == torch.bfloat16
    assert fullgraph.aggregate(graph, x.bfloat16(), weight=ones.float()).dtype == torch.float32


def test_unpacking_the_graph_says_what_to_do() -> None:
    graph = alone()
    for use in (lambda: graph[0], lambda: [*graph]):
        with pytest.raises(TypeError, match="no edge_index to unpack"):
            use()


def _different_parameters(group: Group) -> str:
    torch.manual_seed(group.rank)
    graph = DistributedGraph.build(partitioned(multigraph(), 2), group)
    model = fullgraph.convert(pyg.SAGEConv(6, 3).double())
    with pytest.raises(ValueError, match=r"ranks \[1\] start with other parameters") as caught:
        model(graph.x, graph)
    fullgraph.broadcast_parameters(model, group)
    model(graph.x, graph)
    return str(caught.value)


def test_ranks_that_start_differently_are_told() -> None:
    assert all("broadcast_parameters" in said for said in run_ranks(_different_parameters, 2))


def _different_settings(group: Group) -> None:
    schedule = "oneshot" if group.rank == 1 else "sequential"
    with pytest.raises(ValueError, match="another graph, schedule or max_block_bytes"):
        DistributedGraph.build(partitioned(multigraph(), 2), group, schedule)


def test_ranks_with_different_settings_are_told() -> None:
    run_ranks(_different_settings, 2)


def _loops_on_one_rank(group: Group) -> None:
    """Only rank 0's nodes have loops of their own; both ranks keep and exchange alike."""
    data = multigraph()
    mine = torch.arange(50) % 2 == 0
    plain = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    data.edge_index = torch.cat([plain, mine.nonzero().view(1, -1).expand(2, -1)], 1)
    data.edge_weight = None
    graph = DistributedGraph.build(partitioned(data, 2), group)
    gcn, conv = pyg.GCNConv(6, 3).double(), pyg.GraphConv(6, 3).double()
    expected = (gcn(data.x, data.edge_index) + conv(data.x, data.edge_index))[graph.node_id]

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.gcn, self.conv = gcn, conv

        def forward(self, x, edge_index):
            return self.gcn(x, edge_index) + self.conv(x, edge_index)

    model = fullgraph.convert(Both())
    fullgraph.broadcast_parameters(model, group)
    for _ in range(3):
        assert model(graph.x, graph).shape == expected.shape


def test_what_is_kept_does_not_depend_on_a_ranks_own_edges() -> None:
    run_ranks(_loops_on_one_rank, 2)


def test_a_layer_that_gives_what_is_kept_of_the_features_leaves_it_alone() -> None:
    data, graph = multigraph(), alone()
    conv = pyg.GCNConv(data.x.shape[1], data.x.shape[1]).double()
    conv.lin, conv.bias = nn.Identity(), nn.Parameter(torch.ones_like(conv.bias))
    expected = conv(data.x, data.edge_index)
    model = fullgraph.convert(pyg.Sequential("x, edge_index", [(conv, "x, edge_index -> x")]))
    for _ in range(2):
        torch.testing.assert_close(model(graph.x, graph), expected[graph.node_id])
