"""PyG's norms on shared rows: the statistics are those of all nodes, and so are the gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.contract import Case, Setting, check_contract
from tests.graphs import multigraph, named, named_parts, partitioned
from tests.ranks import run_ranks


class Normed(nn.Module):
    """A conv, a norm with parameters that are not at their start, a conv."""

    def __init__(self, features: int, classes: int, norm: nn.Module) -> None:
        super().__init__()
        self.conv1, self.norm = pyg.SAGEConv(features, 6), norm
        self.conv2 = pyg.SAGEConv(6, classes)
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 0.5, 1.5)

    def forward(self, x: Tensor, edge_index: object) -> Tensor:
        return self.conv2(F.elu(self.normed(self.conv1(x, edge_index))), edge_index)

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x)


class WithMessages(Normed):
    """x and a message for each row, as MessageNorm takes them."""

    def normed(self, x: Tensor) -> Tensor:
        return x + self.norm(x, torch.tanh(x))


class WithTypes(Normed):
    """Four types by the sign of two of a row's values; the last one never occurs."""

    def normed(self, x: Tensor) -> Tensor:
        types = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        return self.norm(x, types)


class Alone(nn.Module):
    """A norm of what it is given, with further arguments."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, graph: object, *args: object, **kwargs: object) -> Tensor:
        return self.norm(x, *args, **kwargs)


def normed(kind, *args, model=Normed, **kwargs) -> Case:
    return Case(lambda f, c: model(f, c, kind(*args, **kwargs)))


CASES = {
    "graph_norm": normed(pyg.GraphNorm, 6),
    "pair_norm": normed(pyg.PairNorm, scale=1.5),
    "pair_norm_individually": normed(pyg.PairNorm, scale_individually=True),
    "layer_norm_graph": normed(pyg.LayerNorm, 6),
    "layer_norm_graph_plain": normed(pyg.LayerNorm, 6, affine=False),
    "instance_norm": normed(pyg.InstanceNorm, 6),
    "instance_norm_tracked": normed(pyg.InstanceNorm, 6, affine=True, track_running_stats=True),
    "mean_subtraction": normed(pyg.MeanSubtractionNorm),
    "diff_group_norm": normed(pyg.DiffGroupNorm, 6, groups=3, lamda=0.5),
    "message_norm": normed(pyg.MessageNorm, learn_scale=True, model=WithMessages),
    "graph_size_norm": normed(pyg.GraphSizeNorm),
    "batch_norm": normed(pyg.BatchNorm, 6, allow_single_element=True),
    "hetero_batch_norm": normed(pyg.HeteroBatchNorm, 6, 4, model=WithTypes),
    "hetero_batch_norm_average": normed(pyg.HeteroBatchNorm, 6, 4, momentum=None, affine=False,
                                        model=WithTypes),
    "hetero_batch_norm_untracked": normed(pyg.HeteroBatchNorm, 6, 4, track_running_stats=False,
                                          model=WithTypes),
    "hetero_layer_norm": normed(pyg.HeteroLayerNorm, 6, 4, model=WithTypes),
}  # fmt: skip


def _check_all(group: Group) -> None:
    """On `tiny`, most ranks own no row or one; of five parts one is empty. The settings take turns
    from case to case."""
    settings = [Setting("sequential", 500, max(group.size, 4)), Setting("oneshot", 500, 5, True)]
    for k, (name, case) in enumerate(CASES.items(), start=group.size):
        for graph, setting in (("multigraph", settings[k % 2]), ("tiny", settings[0])):
            try:
                check_contract(group, case, graph, [setting])
            except AssertionError as error:
                raise AssertionError(f"{name} on {error}") from None


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_norms_equal_pyg_in_one_process(size: int) -> None:
    run_ranks(_check_all, size)


def _norms(columns: int) -> list[nn.Module]:
    return [
        pyg.GraphNorm(columns), pyg.PairNorm(), pyg.PairNorm(scale_individually=True),
        pyg.LayerNorm(columns), pyg.InstanceNorm(columns), pyg.MeanSubtractionNorm(),
        pyg.BatchNorm(columns), pyg.DiffGroupNorm(columns, 2, lamda=1.0), pyg.GraphSizeNorm(),
    ]  # fmt: skip


def _in_float32(group: Group, mean: float, dtype: torch.dtype, tolerance: float) -> None:
    """Rows far from 0, in a narrow type, against the same rows in float64."""
    data = named("multigraph")
    graph = DistributedGraph.build(named_parts("multigraph", 4, False), group)
    x = (data.x + mean).to(dtype)
    probe = torch.rand(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for norm in _norms(6):
        if isinstance(norm, pyg.DiffGroupNorm) and dtype == torch.bfloat16:
            continue  # its products are in bfloat16 before they come to its batch norm
        wide = x.double().requires_grad_()
        expected = copy.deepcopy(norm).double()(wide)
        (expected * probe).sum().backward()
        rows = x[graph.node_id].requires_grad_()
        out = fullgraph.convert(Alone(norm.to(dtype)))(rows, graph)
        (out * probe[graph.node_id]).sum().backward()
        assert out.dtype == rows.grad.dtype == dtype
        name = type(norm).__name__
        for what, ours, reference in (("out", out, expected), ("x.grad", rows.grad, wide.grad)):
            error = (ours.detach().double() - reference.detach()[graph.node_id]).abs()
            scale = float(reference.abs().max())
            assert not error.numel() or error.max() <= tolerance * scale, (name, what, error.max())


def test_far_from_zero_in_float32() -> None:
    run_ranks(_in_float32, 3, 1000.0, torch.float32, 3e-4)


def test_bfloat16_has_its_statistics_in_float32() -> None:
    run_ranks(_in_float32, 3, 20.0, torch.bfloat16, 1e-2)


def _constant(group: Group) -> None:
    """All rows alike: no spread to divide by, and no slope at the root of 0."""
    graph = DistributedGraph.build(named_parts("multigraph", 4, False), group)
    for norm in _norms(6):
        x = torch.ones(50, 6, dtype=torch.float64, requires_grad=True)
        expected = copy.deepcopy(norm).double()(x)
        (expected * torch.arange(6.0)).sum().backward()
        rows = torch.ones(graph.num_owned, 6, dtype=torch.float64, requires_grad=True)
        out = fullgraph.convert(Alone(norm.double()))(rows, graph)
        (out * torch.arange(6.0)).sum().backward()
        for ours, reference in ((out, expected), (rows.grad, x.grad)):
            torch.testing.assert_close(ours, reference[graph.node_id], rtol=1e-10, atol=1e-10)


def test_rows_that_are_all_alike() -> None:
    run_ranks(_constant, 2)


def _one_node(group: Group) -> None:
    """One node in all: `allow_single_element` asks the graph, not the rank."""
    data = named("tiny")
    graph = DistributedGraph.build(named_parts("tiny", 4, False), group)
    norm = pyg.BatchNorm(6, allow_single_element=True).double()
    expected = copy.deepcopy(norm)(data.x)[graph.node_id]
    model = fullgraph.convert(Alone(norm))
    torch.testing.assert_close(model(graph.x, graph), expected)  # a rank has one row or none


def test_a_single_row_on_a_rank_is_not_a_single_row() -> None:
    run_ranks(_one_node, 4)


def test_a_single_node() -> None:
    data = multigraph().subgraph(torch.tensor([0]))
    graph = DistributedGraph.build(partitioned(data, 1), Group())
    norm = pyg.BatchNorm(6, allow_single_element=True).double()
    nn.init.uniform_(norm.module.running_mean)
    expected = norm(data.x)
    assert torch.equal(fullgraph.convert(Alone(norm))(graph.x, graph), expected)


def alone() -> DistributedGraph:
    return DistributedGraph.build(partitioned(multigraph(), 2), Group())


@pytest.mark.parametrize("norm", _norms(6), ids=lambda norm: type(norm).__name__)
def test_on_plain_tensors_a_converted_norm_is_pygs(norm) -> None:
    x, batch = torch.randn(8, 6), torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    model = Alone(norm)
    keys = list(model.state_dict())
    batches = not isinstance(norm, (pyg.BatchNorm, pyg.DiffGroupNorm))
    plain = copy.deepcopy(model)
    fullgraph.convert(model)
    assert list(model.state_dict()) == keys
    for args in ((), (batch,), (batch, 2)) if batches else ((),):
        assert torch.equal(model(x, None, *args), plain(x, None, *args))
        assert torch.equal(copy.deepcopy(model).norm(x, *args), plain.norm(x, *args))


def test_a_batch_vector_is_refused() -> None:
    graph = alone()
    batch = torch.zeros(50, dtype=torch.int64)
    for norm in _norms(6):
        if isinstance(norm, (pyg.BatchNorm, pyg.DiffGroupNorm)):
            continue
        model = fullgraph.convert(Alone(norm.double()))
        for kwargs in ({"batch": batch}, {"batch": batch, "batch_size": 1}):
            if "batch_size" in kwargs and isinstance(norm, pyg.MeanSubtractionNorm):
                continue  # calls it dim_size
            with pytest.raises(NotImplementedError, match="was given a batch vector"):
                model(graph.x, graph, **kwargs)
    tracked = pyg.InstanceNorm(6, track_running_stats=True).double()
    with pytest.raises(NotImplementedError, match="InstanceNorm was given a batch vector"):
        fullgraph.convert(Alone(tracked)).eval()(graph.x, graph, batch)
    by_row = fullgraph.convert(Alone(pyg.LayerNorm(6, mode="node").double()))
    assert torch.equal(by_row(graph.x, graph, batch), by_row(graph.x, graph))


def test_what_a_norm_cannot_do_is_refused_with_a_reason() -> None:
    class Mine(pyg.GraphNorm):
        pass

    refused = {
        "layer 'norm' .Mine.*inherits from GraphNorm": Alone(Mine(6)),
        r"layer '\(the model\)' .PairNorm.*is given no graph": pyg.PairNorm(),
        "layer 'norm' .InstanceNorm1d.*use torch_geometric.nn.InstanceNorm": Alone(
            nn.InstanceNorm1d(6)
        ),
    }
    for reason, model in refused.items():
        with pytest.raises(fullgraph.UnsupportedLayerError, match=reason):
            fullgraph.convert(model)
    graph = alone()
    norm = fullgraph.convert(Alone(pyg.GraphNorm(6).double()))
    with pytest.raises(ValueError, match="GraphNorm inside a converted model takes one row for"):
        norm(graph.x[:3], graph)
    hetero = fullgraph.convert(Alone(pyg.HeteroLayerNorm(6, 2).double()))
    with pytest.raises(NotImplementedError, match="type_ptr, for rows sorted by type"):
        hetero(graph.x, graph, type_ptr=[0, 20, 50])


@pytest.mark.parametrize(
    "norm", ["GraphNorm", "PairNorm", "LayerNorm", "InstanceNorm", "GraphSizeNorm"]
)
def test_a_norm_over_edges_is_refused(norm) -> None:
    class OnEdges(pyg.MessagePassing):
        def __init__(self):
            super().__init__()
            self.norm = getattr(pyg, norm)(*(() if norm == "GraphSizeNorm" else (6,))).double()

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return self.norm(x_j)

    graph, model = alone(), fullgraph.convert(OnEdges())
    with pytest.raises(NotImplementedError, match=f"{norm} inside its message would normalise"):
        model(graph.x, graph)
    data = multigraph()
    assert model(data.x, data.edge_index).shape == data.x.shape  # PyG's own


def test_a_subclass_that_treats_rows_by_themselves_is_left_alone() -> None:
    class Mine(pyg.BatchNorm):
        pass

    class Rows(pyg.LayerNorm):
        pass

    model = fullgraph.convert(nn.Sequential(Mine(6), Rows(6, mode="node")))
    assert [type(module) for module in model] == [Mine, Rows]
    with pytest.raises(fullgraph.UnsupportedLayerError, match="inherits from LayerNorm"):
        fullgraph.convert(nn.Sequential(Rows(6)))
    with pytest.raises(fullgraph.UnsupportedLayerError, match="inherits from BatchNorm"):
        fullgraph.convert(nn.Sequential(Mine(6, allow_single_element=True)))
