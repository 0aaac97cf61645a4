"""The generic path: users' own layers are exact, whatever their messages are made of."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops, degree, scatter, softmax

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.contract import InputsCase, Reference, check_inputs, reference_steps
from tests.graphs import _data, named, named_parts, partitioned
from tests.ranks import run_ranks

WIDTH, CLASSES = 4, 3


# Layers that users write --------------------------------------------------------------------------


class TutorialGCN(MessagePassing):
    """As in PyG's tutorial."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(i, o, bias=False)
        self.bias = nn.Parameter(torch.ones(o))

    def forward(self, x, edge_index):
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        x = self.lin(x)
        row, col = edge_index
        deg = degree(col, x.size(0), dtype=x.dtype)
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        return self.propagate(edge_index, x=x, norm=norm) + self.bias

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class EdgeSoftmax(MessagePassing):
    """Attention by `edge_updater`, whose values are used again in the messages."""

    def __init__(self, i: int, o: int, **options) -> None:
        super().__init__(aggr="add", node_dim=0, **options)
        self.lin, self.att = nn.Linear(i, o), nn.Linear(2 * o + 1, 2)

    def forward(self, x, edge_index, edge_weight):
        x = self.lin(x)
        alpha = self.edge_updater(edge_index, x=x, edge_weight=edge_weight)
        return self.propagate(edge_index, x=x, alpha=alpha)

    def edge_update(self, x_i, x_j, edge_weight, index, ptr, size_i):
        score = self.att(torch.cat([x_i, x_j, edge_weight.view(-1, 1)], -1))
        return softmax(F.leaky_relu(score), index, ptr, size_i)

    def message(self, x_j, alpha):
        return x_j * alpha.repeat_interleave(x_j.size(1) // 2, 1)


class Stored(MessagePassing):
    """Messages use what `forward` has left on the layer."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="mean")
        self.lin, self.gate = nn.Linear(i, o), nn.Parameter(torch.linspace(-1, 1, o))

    def forward(self, x, edge_index):
        h = self.lin(x)
        self._scale, self._rows = torch.sigmoid(self.gate), h.tanh()
        return self.propagate(edge_index, x=h)

    def message(self, x_j, index):
        rows = self._rows[index] + (self._rows * 2)[index]
        return x_j * self._scale + rows * self.gate


class Calls(MessagePassing):
    """Messages are what a function makes of them."""

    def __init__(self, function: Callable[[Tensor], Tensor], aggr: Any = "add", **options) -> None:
        super().__init__(aggr=aggr, **options)
        self.function = function

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return self.function(x_j)


class Closure(nn.Module):
    """The function uses a parameter that the layer knows nothing of."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(i, o) / i)
        weight = self.weight
        self.conv = Calls(lambda x: (x @ weight).sin())

    def forward(self, x, edge_index):
        # A copy of the model has a parameter of its own.
        self.conv.function = lambda x: (x @ self.weight).sin()
        return self.conv(x, edge_index)


class EdgeMLP(MessagePassing):
    def __init__(self, i: int, o: int, aggr: Any = "add", momentum: float | None = 0.1) -> None:
        super().__init__(aggr=aggr)
        self.nn = nn.Sequential(
            nn.Linear(2 * i + 1, 5, bias=False), nn.BatchNorm1d(5, momentum=momentum), nn.ELU(),
            nn.Linear(5, o),
        )  # fmt: skip

    def forward(self, x, edge_index, edge_weight):
        return self.propagate(edge_index, x=x, weight=edge_weight)

    def message(self, x_i, x_j, weight):
        return self.nn(torch.cat([x_i, x_j, weight.view(-1, 1)], 1))


class SoftmaxOfSoftmax(MessagePassing):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="add")
        self.lin, self.att = nn.Linear(i, o), nn.Linear(2 * o, o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_i, x_j, index, size_i):
        a = softmax(self.att(torch.cat([x_i, x_j], 1)), index, num_nodes=size_i)
        b = softmax(3 * a * x_j, index, num_nodes=size_i)
        return b * x_j


class Standardised(MessagePassing):
    """Messages less their mean over a node's edges, divided by their deviation there."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="add")
        self.lin, self.out = nn.Linear(i, o), nn.Linear(o, o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j, index, size_i):
        mean = scatter(x_j, index, 0, size_i, reduce="mean")
        centred = x_j - mean[index]
        deviation = (scatter(centred.square(), index, 0, size_i, reduce="mean") + 0.1).sqrt()
        return self.out(centred / deviation.index_select(0, index)).tanh()


class OwnAggregate(MessagePassing):
    """Its own `aggregate` and `update`, by scatter_add_ and index_add_ as torch has them."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.lin, self.mix = nn.Linear(i, o), nn.Linear(2 * o, o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x), scale=2.0)

    def message(self, x_i, x_j):
        return torch.stack([x_j, x_i * x_j], 1)

    def aggregate(self, inputs, index, dim_size):
        one = inputs.new_zeros(dim_size, inputs.size(2)).index_add_(0, index, inputs[:, 0])
        two = torch.zeros(dim_size, inputs.size(2), dtype=inputs.dtype)
        two = two.scatter_add(0, index.view(-1, 1).expand_as(inputs[:, 1]), inputs[:, 1])
        return self.mix(torch.cat([one, two], 1))

    def update(self, inputs, x, scale):
        return scale * inputs + x


class UpdateNorm(MessagePassing):
    """`update` works on rows of nodes: batch norm there is over the nodes of all ranks."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="add")
        self.lin, self.norm = nn.Linear(i, o), nn.BatchNorm1d(o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j):
        return x_j

    def update(self, inputs):
        return self.norm(inputs)


class Heads(MessagePassing):
    """Rows of three dimensions, the nodes in the second, as many heads as a piece may have rows."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="max", node_dim=-2)
        self.lin = nn.Linear(i, 2 * o)

    def forward(self, x, edge_index):
        h = self.lin(x).view(x.size(0), 2, self.lin.out_features // 2).transpose(0, 1)
        return self.propagate(edge_index, x=h).sum(0)

    def message(self, x_i, x_j):
        return x_j * x_i.tanh() + x_j.mean(0, keepdim=True)


class Backwards(MessagePassing):
    """Messages go from targets to sources; self-loops are put in, edges have values."""

    def __init__(self, i: int, o: int, pair: bool = False) -> None:
        super().__init__(aggr="mean", flow="target_to_source")
        self.lin, self.other, self.pair = nn.Linear(i, o), nn.Linear(i, o), pair

    def forward(self, x, edge_index, edge_weight):
        edge_index, edge_weight = add_self_loops(edge_index, edge_weight, 0.5, x.size(0))
        x = (self.lin(x), self.other(x)) if self.pair else self.lin(x)
        return self.propagate(edge_index, x=x, weight=edge_weight)

    def message(self, x_i, x_j, weight):
        return (weight.view(-1, 1) * x_j - x_i).sin()


class BackwardsPlain(MessagePassing):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="max", flow="target_to_source")
        self.lin = nn.Linear(i, o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_i, x_j):
        return F.elu(x_j - x_i)


class Integers(MessagePassing):
    """Integers of nodes and edges: categories that messages look parameters up by."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.lin, self.kinds = nn.Linear(i, o), nn.Embedding(5, o)
        self.relations = nn.Parameter(torch.randn(3, o, o))

    def forward(self, x, edge_index, category, edge_type):
        return self.propagate(edge_index, x=self.lin(x), category=category, edge_type=edge_type)

    def message(self, x_j, category_i, category_j, edge_type):
        h = torch.bmm(x_j.unsqueeze(1), self.relations[edge_type]).squeeze(1)
        return h * self.kinds(category_j) + self.kinds(category_i)


class PNALike(MessagePassing):
    def __init__(self, i: int, o: int, aggr: Any) -> None:
        super().__init__(aggr=aggr)
        many = len(aggr) if isinstance(aggr, list) else 1
        self.pre, self.post = nn.Linear(2 * i, o), nn.Linear(many * o, o)

    def forward(self, x, edge_index):
        return self.post(self.propagate(edge_index, x=x))

    def message(self, x_i, x_j):
        # By relu, ties in maxima and minima, zeros in products; but nothing at the least that a
        # power mean takes, where the gradient hangs on a rounding.
        h = self.pre(torch.cat([x_i, x_j], 1))
        return h.relu() if isinstance(self.aggr, list) else h.exp()


class Double(torch.autograd.Function):
    """x w, the way of users who write their gradients themselves."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.T, x.T @ grad


class OwnFunction(MessagePassing):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="add")
        self.weight = nn.Parameter(torch.randn(i, o) / i)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return Double.apply(x_j, self.weight).tanh()


class TwiceInPlace(MessagePassing):
    """Functions that write in place, views, and messages of only some of the edges."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(i, o)

    def forward(self, x, edge_index, edge_weight):
        return self.propagate(edge_index, x=self.lin(x), weight=edge_weight)

    def message(self, x_j, weight, index, size_i):
        h = x_j * 1
        h[:, 0] *= weight
        h[:, 1:] += x_j[:, :-1]
        h.mul_(2).relu_()
        some = weight > 0.6
        top = scatter(h[some], index[some], 0, size_i, reduce="max")
        return h - top[index]


# The contract -------------------------------------------------------------------------------------


class Model(nn.Module):
    """Two layers, with the inputs that they take."""

    def __init__(self, make: Callable[[int, int], nn.Module], takes: tuple[str, ...]) -> None:
        super().__init__()
        self.convs = nn.ModuleList([make(6, WIDTH), make(WIDTH, CLASSES + 1)])
        self.takes = takes

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        x = inputs["x"]
        for conv in self.convs:
            x = F.elu(conv(x, edge_index, **{name: inputs[name] for name in self.takes}))
        return x


CASES: dict[str, tuple[Callable[[int, int], nn.Module], tuple[str, ...]]] = {
    "tutorial": (TutorialGCN, ()),
    "edge_softmax": (EdgeSoftmax, ("edge_weight",)),
    "edge_softmax backwards": (
        lambda i, o: EdgeSoftmax(i, o, flow="target_to_source"), ("edge_weight",)
    ),
    "stored": (Stored, ()),
    "closure": (Closure, ()),
    "batch norm": (EdgeMLP, ("edge_weight",)),
    "batch norm, momentum=None": (lambda i, o: EdgeMLP(i, o, "max", None), ("edge_weight",)),
    "softmax of softmax": (SoftmaxOfSoftmax, ()),
    "standardised": (Standardised, ()),
    "own aggregate": (OwnAggregate, ()),
    "update": (UpdateNorm, ()),
    "heads": (Heads, ()),
    "backwards": (Backwards, ("edge_weight",)),
    "backwards, pair": (lambda i, o: Backwards(i, o, pair=True), ("edge_weight",)),
    "backwards, no values": (BackwardsPlain, ()),
    "integers": (Integers, ("category", "edge_type")),
    "many aggregations": (
        lambda i, o: PNALike(i, o, ["mul", "max", "min", "std", "mean", "softmax"]), ()
    ),
    "power mean": (lambda i, o: PNALike(i, o, pyg.aggr.PowerMeanAggregation(learn=True)), ()),
    "own function": (OwnFunction, ()),
    "in place": (TwiceInPlace, ("edge_weight",)),
}  # fmt: skip


def input_rows(graph: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    data = named(graph)
    g = torch.Generator().manual_seed(5)
    nodes = {"x": data.x, "category": torch.randint(5, (data.num_nodes,), generator=g)}
    edge_type = torch.randint(3, (data.edge_index.shape[1],), generator=g)
    return nodes, {"edge_weight": data.edge_weight, "edge_type": edge_type}


def contract_case(name: str, graph: str) -> InputsCase:
    make, takes = CASES[name]
    nodes, edges = input_rows(graph)
    taken = {"x", *takes}
    return InputsCase(
        lambda: Model(make, takes), named(graph),
        {key: rows for key, rows in nodes.items() if key in taken},
        {key: rows for key, rows in edges.items() if key in taken},
    )  # fmt: skip


@cache
def reference(name: str, graph: str) -> Reference:
    return reference_steps(contract_case(name, graph))


def build(
    group: Group, graph: str = "multigraph", schedule: str = "sequential", bytes_: int = 300,
    num_parts: int | None = None,
) -> DistributedGraph:  # fmt: skip
    parts = named_parts(graph, num_parts or max(2, group.size), False)
    return DistributedGraph.build(parts, group, schedule, bytes_)


def check_cases(group: Group, names: list[str]) -> dict[str, str]:
    """What differs, by case."""
    failures: dict[str, str] = {}
    settings = {
        1: [("multigraph", "sequential"), ("no_edges", "sequential")],
        2: [("multigraph", "sequential"), ("multigraph", "sequential:remat=off")],
        3: [("multigraph", "oneshot"), ("one_source_part", "sequential")],
        4: [("tiny", "sequential")],  # a rank has no rows
    }[group.size]
    for graph, schedule in settings:
        on = build(group, graph, schedule)
        for name in names:
            if "batch norm" in name and graph == "no_edges":
                continue  # PyG's own statistics are not defined
            try:
                steps = 2 if group.size < 3 else 1
                check_inputs(contract_case(name, graph), reference(name, graph), on, steps)
            except AssertionError as error:
                failures.setdefault(name, f"{name} on {graph}, {schedule}: {error}")
            except Exception as error:
                raise RuntimeError(f"{name} on {graph}, {schedule}") from error
    return failures


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_users_layers_equal_pyg_in_one_process(name: str, size: int) -> None:
    found = run_ranks(check_cases, size, [name])
    assert not any(found), "\n".join(text for failures in found for text in failures.values())


# One layer at a time ------------------------------------------------------------------------------


def alone(graph: str = "multigraph", bytes_: int = 300) -> DistributedGraph:
    return build(Group(), graph, "sequential", bytes_)


def rows_of(graph: DistributedGraph, seed: int = 0, width: int = 6) -> Tensor:
    """[n, width], the same for a node wherever it is."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(graph.num_nodes, width, generator=g, dtype=torch.float64)
    return x[graph.node_id].requires_grad_()


def grads(loss: Tensor, *leaves: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, leaves, **options)


def test_a_leaf_that_is_no_parameter_gets_its_gradient() -> None:
    leaf = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    graph = alone()
    plain = Calls(lambda x: (x @ leaf).sin())
    layer = fullgraph.convert(Calls(lambda x: (x @ leaf).sin()))
    x, data = rows_of(graph), named("multigraph")
    place = torch.argsort(graph.node_id)
    expected = plain(x[place], data.edge_index).square().sum()
    for one, other in zip(grads(layer(x, graph).square().sum(), x, leaf), grads(expected, x, leaf)):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_batch_norm_of_messages_in_evaluation_uses_and_keeps_running_statistics() -> None:
    graph = alone()
    layer = fullgraph.convert(EdgeMLP(6, 3).double())
    x, weight = rows_of(graph), graph.edge_weight
    layer(x, graph, weight)
    kept = {name: b.clone() for name, b in layer.named_buffers()}
    assert int(kept["nn.1.num_batches_tracked"]) == 1
    layer.eval()(x, graph, weight).sum().backward()
    assert all(torch.equal(b, kept[name]) for name, b in layer.named_buffers())


def test_the_mode_in_the_forward_pass_is_that_of_the_backward_pass() -> None:
    graph = alone()
    layer = fullgraph.convert(EdgeMLP(6, 3).double())
    x, weight = rows_of(graph), graph.edge_weight
    leaves = (x, *layer.parameters())
    expected = grads(layer(x, graph, weight).square().sum(), *leaves)
    loss = layer(x, graph, weight).square().sum()
    layer.eval()
    for one, other in zip(grads(loss, *leaves), expected):
        torch.testing.assert_close(one, other)
    assert not any(module.training for module in layer.modules())


def test_two_forward_passes_before_a_backward_pass() -> None:
    """What a layer has left on itself is that of each pass."""
    graph = alone()
    layer = fullgraph.convert(Stored(6, 3).double())
    x, other = rows_of(graph), rows_of(graph, 1)
    leaves = (x, layer.gate, layer.lin.weight)
    expected = grads(layer(x, graph).square().sum(), *leaves)
    loss = layer(x, graph).square().sum()
    layer(other, graph).square().sum().backward()
    for one, reference in zip(grads(loss, *leaves), expected):
        torch.testing.assert_close(one, reference)


class Factor(MessagePassing):
    """A plain tensor, and a number, that change from pass to pass."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.power = 1

    def forward(self, x, edge_index, mask):
        self.mask, self.power = mask, self.power + 1
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return (x_j * self.mask) ** self.power


def test_constants_on_the_layer_are_those_of_their_forward_pass() -> None:
    graph, layer = alone(), fullgraph.convert(Factor())
    x = rows_of(graph)
    one, two = torch.rand(2, 6, dtype=torch.float64)
    loss = layer(x, graph, one).sum()  # squares
    layer(x, graph, two)
    out_degree = torch.autograd.grad(fullgraph.convert(Calls(lambda x: x))(x, graph).sum(), x)[0]
    torch.testing.assert_close(grads(loss, x)[0], out_degree * 2 * x * one.square())
    assert layer.power == 3
    assert layer.mask is two
    loss = layer(x, graph, two).sum()
    two.mul_(2)
    with pytest.raises(RuntimeError, match="written to between"):
        loss.backward()


def test_a_new_tensor_in_the_backward_pass_is_noticed() -> None:
    held = [torch.ones(6, dtype=torch.float64, requires_grad=True)]
    layer, graph = fullgraph.convert(Calls(lambda x: x * held[0])), alone()
    loss = layer(rows_of(graph), graph).sum()
    held[0] = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="gradient would be lost"):
        loss.backward()


def test_backward_twice_and_without_gradients() -> None:
    graph = alone()
    layer = fullgraph.convert(SoftmaxOfSoftmax(6, 3).double())
    x = rows_of(graph)
    out = layer(x, graph)
    first = grads(out.square().sum(), x, layer.att.weight, retain_graph=True)
    again = grads(out.square().sum(), x, layer.att.weight)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            silent = layer(x, graph)
        assert not silent.requires_grad
        torch.testing.assert_close(silent.clone(), out.detach())
    torch.testing.assert_close(grads(layer(x, graph).square().sum(), x)[0], first[0])


def test_a_copy_has_parameters_of_its_own() -> None:
    graph = alone()
    layer = fullgraph.convert(EdgeSoftmax(6, 4).double())
    x, weight = rows_of(graph), graph.edge_weight
    layer(x, graph, weight).sum().backward()
    layer.zero_grad()
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.att.weight.mul_(2)
    other(x, graph, weight).sum().backward()
    assert layer.att.weight.grad is None
    assert other.att.weight.grad is not None
    assert not torch.equal(other(x, graph, weight), layer(x, graph, weight))


def test_one_layer_on_several_graphs_and_with_values_of_several_shapes() -> None:
    class Weighs(MessagePassing):
        def forward(self, x, edge_index, factor):
            return self.propagate(edge_index, x=x, factor=factor)

        def message(self, x_j, factor):
            return x_j * factor

    layer = fullgraph.convert(Weighs())
    for name in ("multigraph", "tiny", "one_source_part"):
        graph, data = alone(name), named(name)
        x = rows_of(graph)
        place = torch.argsort(graph.node_id)
        weight = data.edge_weight.view(-1, 1)
        for given in (weight, weight.expand(-1, 6), torch.ones(6, dtype=torch.float64)):
            of_edges = given.dim() == 2
            expected = Weighs()(x[place], data.edge_index, given)[graph.node_id]
            out = layer(x, graph, given[graph.edge_id] if of_edges else given)
            torch.testing.assert_close(out, expected)
    graph = alone()
    layer(rows_of(graph), graph, torch.ones(1, 1, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match="must have had so at first"):
        layer(rows_of(graph), graph, graph.edge_weight.view(-1, 1))


def test_lower_precision() -> None:
    data = named("multigraph")
    for name in ("softmax of softmax", "heads", "many aggregations", "batch norm"):
        make, takes = CASES[name]
        torch.manual_seed(0)
        exact = make(6, 4).double()
        for dtype, close in ((torch.float32, 1e-4), (torch.bfloat16, 0.15)):
            if name == "many aggregations" and dtype == torch.bfloat16:
                continue  # a deviation that is nothing but rounding
            layer = fullgraph.convert(copy.deepcopy(exact).to(dtype))
            graph = alone()
            x = data.x.to(dtype)[graph.node_id].requires_grad_()
            weights = [data.edge_weight.to(dtype)[graph.edge_id]] if takes else []
            out = layer(x, graph, *weights)
            assert out.dtype == dtype
            out.float().square().mean().backward()
            reference = copy.deepcopy(exact)
            whole = data.x.clone().requires_grad_()
            expected = reference(whole, data.edge_index, *([data.edge_weight] if takes else []))
            expected.square().mean().backward()
            pairs = [(out, expected[graph.node_id]), (x.grad, whole.grad[graph.node_id])]
            pairs += [(p.grad, q.grad) for p, q in zip(layer.parameters(), reference.parameters())]
            scale = max(float(q.grad.abs().max()) for q in reference.parameters())
            for ours, theirs in pairs:
                torch.testing.assert_close(ours.double(), theirs, rtol=close, atol=close * scale)


def test_many_pieces_add_up_in_bf16() -> None:
    """Thousands of ones, which bf16 itself can only count to 256."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    data = _data(torch.randint(20, (2, 40_000)), 20)
    layer = fullgraph.convert(Calls(lambda x: x * weight))
    graph = DistributedGraph.build(partitioned(data, 2), Group(), max_block_bytes=4)
    layer(torch.ones(20, 1, dtype=torch.bfloat16), graph).float().sum().backward()
    assert float(weight.grad) == pytest.approx(40_000, rel=0.01)


def test_autocast_is_as_in_the_forward_pass() -> None:
    graph = alone()
    layer = fullgraph.convert(pyg.EdgeConv(nn.Linear(12, 4)))  # maxima of products
    x = rows_of(graph).detach().float().requires_grad_()

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x, graph).float().square().sum()

    with torch.autocast("cpu", torch.bfloat16):
        expected = grads(layer(x, graph).float().square().sum(), x)[0]
    found = grads(loss(), x)[0]
    assert found.any()
    torch.testing.assert_close(found, expected)


# Random numbers -----------------------------------------------------------------------------------


class Noisy(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.drawn: list[Tensor] = []

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        noise = torch.rand_like(x_j)
        self.drawn.append(noise)
        return noise * x_j.sin()


def test_messages_draw_the_same_numbers_when_they_are_rebuilt() -> None:
    graph, layer = alone(), fullgraph.convert(Noisy())
    x = rows_of(graph)
    state = torch.get_rng_state()
    out = layer(x, graph)
    assert torch.equal(torch.get_rng_state(), state)
    # Linear in sin(x): the noise of every edge is the same in both passes, or it is not so.
    direction = torch.randn_like(x)
    grad = grads((out * direction).sum(), x)[0]
    torch.testing.assert_close(
        (grad * x.sin() / x.cos()).sum(), (out * direction).sum(), rtol=1e-10, atol=1e-10
    )
    assert not torch.equal(layer(x, graph), out)  # other numbers in the next pass


class Drops(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return F.dropout(F.dropout(x_j, 0.3, self.training), 0.5, self.training)


class DropsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Drops(), Drops()

    def forward(self, x, edge_index):
        return self.two(self.one(x, edge_index).tanh(), edge_index)


def dropped(group: Group, schedule: str, bytes_: int) -> list[Tensor]:
    graph = build(group, "multigraph", schedule, bytes_)
    model = fullgraph.convert(DropsTwice(), seed=7)
    x = rows_of(graph)
    found = []
    for _ in range(2):
        out = model(x, graph)
        found += [graph.gather(out), graph.gather(grads(out.square().sum(), x)[0])]
    return found


def test_dropout_in_messages_does_not_depend_on_ranks_or_schedule() -> None:
    expected = run_ranks(dropped, 1, "sequential", 1 << 20)[0]
    assert not torch.equal(expected[0], expected[2])
    for size, schedule, bytes_ in ((2, "sequential", 200), (3, "oneshot", 4000)):
        for one, other in zip(run_ranks(dropped, size, schedule, bytes_)[0], expected):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


# What is refused ----------------------------------------------------------------------------------


class Does(MessagePassing):
    """Calls a function of the layer and of what a message may ask for."""

    def __init__(self, function: Callable[..., Any], where: str = "message", **options) -> None:
        super().__init__(**{"aggr": "add", **options})
        self.function, self.where = function, where
        self.table = nn.Parameter(torch.ones(50, 6, dtype=torch.float64))

    def forward(self, x, edge_index):
        if self.where == "forward":
            return self.function(self, x, edge_index)
        return self.propagate(edge_index, x=x, rows=x)

    def message(self, x_j, rows, index, size_i):
        return self.function(self, x_j, rows, index) if self.where == "message" else x_j

    def aggregate(self, inputs, index, dim_size):
        out = scatter(inputs, index, 0, dim_size)
        return self.function(self, out) if self.where == "aggregate" else out


REFUSED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "mean": (lambda s, x, r, i: x - x.mean(0), "message", "calls mean over the edges"),
    "product": (lambda s, x, r, i: x @ (x.t() @ x), "message", "combines different edges"),
    "transposed": (lambda s, x, r, i: x.t().softmax(1).t(), "message", "combines different edges"),
    "order": (lambda s, x, r, i: x + x.flip(0), "message", "over the edges"),
    "neighbours": (
        lambda s, x, r, i: x + torch.cat([x[1:], x[:1]]), "message", "combines different edges"
    ),
    "some of the edges": (
        lambda s, x, r, i: x - x[x[:, 0] > 0].mean(0), "message", "combines different edges"
    ),
    "sorting": (lambda s, x, r, i: x[i.argsort()], "message", "argsort on the index"),
    "counting": (lambda s, x, r, i: x / i.bincount().max(), "message", "bincount on the index"),
    "embedding": (lambda s, x, r, i: x * s.table[i], "message", "rows of a parameter"),
    "other rows": (lambda s, x, r, i: x * r[:7][i], "message", "looks up, by the index"),
    "rows of nodes": (lambda s, x, r, i: x - r.mean(0), "message", "over the rows of nodes"),
    "not a tensor": (lambda s, x, r, i: (x, x), "message", "returns a tuple"),
    "rows": (lambda s, out: out - out.mean(0), "aggregate", "over the rows of nodes"),
    "rows by a product": (lambda s, out: out @ (out.t() @ out), "aggregate", "mixes the rows"),
    "values": (lambda s, x, e: x * (e[0] > 3).double().mean(), "forward", "reads the values"),
    "sorted": (lambda s, x, e: x[e[0].sort()[0]], "forward", "reads the values"),
    "numbers": (lambda s, x, e: x * float(e[0, 0]), "forward", "differs from rank to rank"),
    "listed": (lambda s, x, e: x * len(e.tolist()), "forward", "reads the values"),
    "parameter": (
        lambda s, x, e: s.propagate(e, x=s.table[e[1]], rows=x), "forward", "graph.node_id"
    ),
    "new edges": (
        lambda s, x, e: s.propagate(torch.cat([e, e[:, :3]], 1), x=x, rows=x), "forward",
        "edges",
    ),
}  # fmt: skip


def refusals(group: Group, names: list[str]) -> dict[str, str]:
    graph, said = build(group), {}
    for name in names:
        function, where, _ = REFUSED[name]
        layer = fullgraph.convert(Does(function, where))
        try:
            layer(rows_of(graph), graph)
        except (NotImplementedError, ValueError) as error:
            said[name] = str(error)
        except Exception as error:
            said[name] = f"OTHER {error!r}"
    return said


@pytest.mark.parametrize("size", [1, 2])
def test_messages_that_cannot_come_in_pieces_are_refused(size: int) -> None:
    # Of two ranks, one may notice at its first edges, and the other not be there yet.
    early = ["mean", "embedding", "rows", "rows by a product", "rows of nodes", "values"]
    names = early if size > 1 else [n for n in REFUSED if REFUSED[n][1] != "aggregate"]
    for said in run_ranks(refusals, size, names):
        wrong = {n: said.get(n) for n in names if REFUSED[n][2] not in (said.get(n) or "")}
        assert not wrong
        assert size > 1 or said.keys() == set(names)


def test_a_value_of_each_edge_that_a_message_leaves_on_its_layer_is_not_handed_out() -> None:
    class Leaves(MessagePassing):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            self.alpha, self.count = x_j.softmax(1), 3
            return self.alpha

    graph, layer = alone(), fullgraph.convert(Leaves())
    layer(rows_of(graph), graph).sum().backward()
    assert layer.count == 3
    for same in (layer, copy.deepcopy(layer)):
        with pytest.raises(NotImplementedError, match="edge_update"):
            same.alpha.sum()


def test_hooks_and_update_that_would_see_edges_are_refused_when_it_runs() -> None:
    class Update(Calls):
        def update(self, inputs, x_i):
            return inputs + x_i

    graph = alone()
    with pytest.raises(NotImplementedError, match="update asks for x_i"):
        fullgraph.convert(Update(torch.sin))(rows_of(graph), graph)
    layer = fullgraph.convert(Calls(torch.sin))
    layer.register_message_forward_hook(lambda *_: None)
    with pytest.raises(NotImplementedError, match="hooks on message"):
        layer(rows_of(graph), graph)


# Memory -------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The largest number of rows of any floating point tensor of several columns."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dim() > 1:
                wide = tensor.numel() // max(1, tensor.shape[0]) > 2
                self.rows = max(self.rows, tensor.shape[0] if wide else 0)
        return out


def test_no_tensor_has_a_row_for_each_edge() -> None:
    """200 nodes and 20 000 edges: nothing has more rows than there are nodes, but for pieces."""
    g = torch.Generator().manual_seed(0)
    edge_index = torch.randint(200, (2, 20_000), generator=g)
    data = _data(edge_index, 200)
    parts = partitioned(data, 2)
    layers = {
        "EdgeConv": pyg.EdgeConv(nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))),
        "softmax": SoftmaxOfSoftmax(6, 4),
        "batch norm": EdgeMLP(6, 4),
        "backwards": BackwardsPlain(6, 4),
    }
    for name, layer in layers.items():
        graph = DistributedGraph.build(parts, Group(), "sequential", 40_000)
        layer = fullgraph.convert(layer.double())
        x = data.x[graph.node_id].requires_grad_()
        weights = [graph.edge_weight] if name == "batch norm" else []
        with Largest() as seen:
            layer(x, graph, *weights).square().sum().backward()
        assert 200 <= seen.rows <= 1250, name


def test_what_a_pass_was_given_is_let_go() -> None:
    """Without waiting for a garbage collector; and after the backward pass, if the result stays."""
    graph = alone()
    layers = [Calls(torch.sin), SoftmaxOfSoftmax(6, 4), Stored(6, 4), EdgeMLP(6, 4)]
    gc.collect()
    gc.disable()
    try:
        for layer in map(fullgraph.convert, layers):
            values = [graph.edge_weight] if isinstance(layer, EdgeMLP) else []
            layer.double()
            x = rows_of(graph).detach().requires_grad_()
            h = x * 2
            refs = weakref.ref(h), weakref.ref(x)
            out = layer(h, graph, *values)
            out.sum().backward()
            del h
            assert refs[0]() is None, type(layer).__name__
            del x, out
            for name in ("_scale", "_rows"):
                layer.__dict__.pop(name, None)
            assert refs[1]() is None, type(layer).__name__
    finally:
        gc.enable()
