"""Every layer of PyG that passes messages, with options that reach its branches.

A case is an ordinary PyG model, called as `model(inputs, edge_index)`; `inputs` maps names to
tensors with a row for each node or for each edge (see `make_inputs`). It is either exact on a
distributed graph or refused with a reason; `tests/test_layers.py` holds every case to that.

`python -m tests.layer_cases > docs/layers.md` writes the table.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import torch_geometric
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MLP
from torch_geometric.nn.conv import spline_conv

from tests.graphs import multigraph, no_edges, tiny

CLASSES, RELATIONS, EDGE_DIM = 3, 3, 5


# Graphs and inputs --------------------------------------------------------------------------------


def _without(data: Data, drop: Tensor) -> Data:
    data.edge_index = data.edge_index[:, ~drop]
    data.edge_weight = data.edge_weight[~drop]
    return data


def single_loops() -> Data:
    """The multigraph with at most one self-loop a node.

    Where a node has several, `gcn_norm` keeps the last; the gradient that PyG then hands the
    others (`index_put_` does, for positions that occur twice) is not that of the result.
    """
    data = multigraph()
    source, target = data.edge_index
    first = {}
    for edge, node in enumerate(source.tolist()):
        first.setdefault((node, int(target[edge])), edge)
    repeated = [edge not in first.values() for edge in range(len(source))]
    return _without(data, (source == target) & torch.tensor(repeated))


def last_met() -> Data:
    """The multigraph with an edge into its last node."""
    data = multigraph()
    data.edge_index = data.edge_index.clone()
    data.edge_index[1, 0] = data.num_nodes - 1
    return data


def no_loops() -> Data:
    """The multigraph without self-loops."""
    data = multigraph()
    return _without(data, data.edge_index[0] == data.edge_index[1])


GRAPHS: dict[str, Callable[[], Data]] = {
    "multigraph": multigraph,
    "tiny": tiny,
    "no_edges": no_edges,
    "single_loops": single_loops,
    "no_loops": no_loops,
    "last_met": last_met,
}
USUAL_GRAPHS = ("multigraph", "tiny", "no_edges")


@cache
def graph_data(name: str) -> Data:
    """One of GRAPHS, kept; not to be written to."""
    return GRAPHS[name]()


@dataclass(frozen=True)
class Inputs:
    """What a model is called with, by name: rows of nodes and rows of edges of the whole graph."""

    nodes: dict[str, Tensor]
    edges: dict[str, Tensor]


@cache
def make_inputs(graph: str) -> Inputs:
    """Letters: N nodes, E edges.

    ================  ======  ===========================================
    x                 [N, 6]  features
    pos, normal       [N, 3]  points in space and directions
    hyperedge_attr    [N, 6]  features of a hyperedge for each node
    hyperedge_weight  [N]     and its weight, positive
    category          [N]     int64, 0 .. 4
    node_type         [N]     int64, 0 .. 1
    edge_weight       [E]     positive
    edge_attr         [E, 5]  features
    pseudo            [E, 2]  between 0 and 1
    edge_type         [E]     int64, 0 .. 2
    negative          [E]     bool, the sign of the edge
    ================  ======  ===========================================
    """
    data = graph_data(graph)
    N, E = data.num_nodes, data.edge_index.shape[1]
    g = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    return Inputs(
        nodes={
            "x": data.x,
            "pos": normal(N, 3),
            "normal": F.normalize(normal(N, 3), dim=1),
            "hyperedge_attr": normal(N, 6),
            "hyperedge_weight": uniform(N) + 0.1,
            "category": torch.randint(5, (N,), generator=g),
            "node_type": torch.randint(2, (N,), generator=g),
        },
        edges={
            "edge_weight": data.edge_weight,
            "edge_attr": normal(E, EDGE_DIM),
            "pseudo": uniform(E, 2),
            "edge_type": torch.randint(RELATIONS, (E,), generator=g),
            "negative": uniform(E) < 0.4,
        },
    )


# Cases --------------------------------------------------------------------------------------------

Make = Callable[[int, int], nn.Module]


@dataclass(frozen=True)
class LayerCase:
    """A model around one layer.

    Attributes:
        layer: its name in `torch_geometric.nn.conv`.
        options: what the case covers, as the table says it.
        make: `make(features, classes)`.
        takes: names of the inputs that the model uses.
        refused: part of the reason for which fullgraph refuses it; None for an exact case.
        graphs: those that it runs on.
        without: reasons why it does not run on one of the usual graphs, by graph.
        constants: inputs that get no gradient, though they are floating point.
        idle: parts of names of parameters that have no influence on the result, hence no gradient.
        replaces_loops: of a node's own loops only the last counts (see `tests.contract.Case`).
        note: what the table has to say besides.
    """

    layer: str
    options: str
    make: Make
    takes: tuple[str, ...] = ("x",)
    refused: str | None = None
    graphs: tuple[str, ...] = USUAL_GRAPHS
    without: Mapping[str, str] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    replaces_loops: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.layer}: {self.options}"

    @property
    def runs_on(self) -> list[str]:
        return [graph for graph in self.graphs if graph not in self.without]


class Net(nn.Module):
    """A linear layer or none, layers with an activation after each, a linear layer or none.

    ``takes`` maps arguments of the layers to names of inputs.
    """

    def __init__(
        self, convs: list[nn.Module], takes: Mapping[str, str], first: nn.Module | None = None,
        last: nn.Module | None = None, act: Callable[[Tensor], Tensor] = F.elu, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.first, self.last = first or nn.Identity(), last or nn.Identity()
        self.convs = nn.ModuleList(convs)
        self.takes, self.act, self.options = dict(takes), act, options

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        x = self.first(inputs["x"])
        kwargs = {argument: inputs[name] for argument, name in self.takes.items()}
        for conv in self.convs:
            x = self.act(self.call(conv, x, edge_index, kwargs))
        return self.last(x)

    def call(self, conv: nn.Module, x: Tensor, edge_index: Any, kwargs: dict[str, Tensor]) -> Any:
        return conv(x, edge_index, **kwargs, **self.options)


class PairNet(Net):
    """Layers that are given the rows of sources and targets separately."""

    def call(self, conv: nn.Module, x: Tensor, edge_index: Any, kwargs: dict[str, Tensor]) -> Any:
        return conv((x, x), edge_index, **kwargs)


class RootNet(Net):
    """Layers that are also given the first rows (GCN2Conv, FAConv)."""

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        x = x_0 = self.first(inputs["x"])
        kwargs = {argument: inputs[name] for argument, name in self.takes.items()}
        for conv in self.convs:
            x = self.act(conv(x, x_0, edge_index, **kwargs))
        return self.last(x)


class PointNet(nn.Module):
    """Layers over points in space; the first may do without features."""

    def __init__(
        self, convs: list[nn.Module], last: nn.Module, names: tuple[str, ...], features: bool
    ) -> None:
        super().__init__()
        self.convs, self.last = nn.ModuleList(convs), last
        self.names, self.features = names, features

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        x = inputs["x"] if self.features else None
        where = [inputs[name] for name in self.names]
        for conv in self.convs:
            x = F.elu(conv(x, *where, edge_index))
        return self.last(x)


class JumpingNet(nn.Module):
    """DNAConv as in PyG's example: each layer attends to the results of all before it."""

    def __init__(self, first: nn.Module, convs: list[nn.Module], last: nn.Module, weighted: bool):
        super().__init__()
        self.first, self.convs, self.last = first, nn.ModuleList(convs), last
        self.weighted = weighted

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        x = F.elu(self.first(inputs["x"]))
        weight = inputs["edge_weight"] if self.weighted else None
        x_all = x.view(-1, 1, x.size(-1))
        for conv in self.convs:
            x = F.elu(conv(x_all, edge_index, weight))
            x_all = torch.cat([x_all, x.view(-1, 1, x.size(-1))], dim=1)
        return self.last(x)


class SignedNet(nn.Module):
    """Two kinds of edges, friends and foes."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2, self.last = conv1, conv2, last

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        negative = inputs["negative"]
        friends, foes = edge_index[:, ~negative], edge_index[:, negative]
        x = F.elu(self.conv1(inputs["x"], friends, foes))
        return self.last(F.elu(self.conv2(x, friends, foes)))


class TypedNet(nn.Module):
    """HGTConv and HANConv with one type of nodes, and one relation or one for each edge type."""

    def __init__(self, convs: list[nn.Module], last: nn.Module, relations: int) -> None:
        super().__init__()
        self.convs, self.last, self.relations = nn.ModuleList(convs), last, relations

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        x, edge_type = inputs["x"], inputs.get("edge_type")
        edges = {
            key: edge_index if self.relations == 1 else edge_index[:, edge_type == k]
            for k, key in enumerate(metadata(self.relations)[1])
        }
        for conv in self.convs:
            x = F.elu(conv({"node": x}, edges)["node"])
        return self.last(x)


def metadata(relations: int) -> tuple[list[str], list[tuple[str, str, str]]]:
    return ["node"], [("node", f"relation{k}", "node") for k in range(relations)]


class CategoryNet(nn.Module):
    """The first layer embeds the nodes' categories."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2, self.last = conv1, conv2, last

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        x = F.elu(self.conv1(inputs["category"], edge_index, inputs["edge_type"]))
        return self.last(F.elu(self.conv2(x, edge_index, inputs["edge_type"])))


class AttentionLossNet(nn.Module):
    """SuperGATConv with the loss of its attention, which needs edges drawn at random."""

    def __init__(self, conv: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.conv, self.last = conv, last

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        out = self.last(self.conv(inputs["x"], edge_index))
        return out + self.conv.get_attention_loss()


class FusedNet(nn.Module):
    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        return self.conv(inputs["x"], *self.conv.to_graph_format(edge_index))


class OwnGraphNet(nn.Module):
    """A layer that makes its own graph, after one on the given graph."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv1, conv2

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        return self.conv2(F.elu(self.conv1(inputs["x"], edge_index)))


class PanNet(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, inputs: Mapping[str, Tensor], edge_index: Any) -> Tensor:
        return self.conv(inputs["x"], edge_index)[0]


WIDTH = 4

Build = Callable[[int, int], nn.Module]


def two(
    layer: str, options: str, build: Build | None = None, *, takes: str = "", width: int = WIDTH,
    out: int | None = None, kind: type[Net] = Net, act: Callable[[Tensor], Tensor] = F.elu,
    call: Mapping[str, Any] | None = None, **rest: Any,
) -> LayerCase:  # fmt: skip
    """Two layers, `build(in, width)` each, and a linear one.

    takes: "argument" or "argument=input", separated by spaces; out: how wide a layer's result is,
    if not `width`; call: further arguments of the layers' call.
    """
    wide = width if out is None else out
    pairs = [word.partition("=") for word in takes.split()]
    names = {argument: name or argument for argument, _, name in pairs}
    build = build or getattr(pyg, layer)

    def make(features: int, classes: int) -> nn.Module:
        convs = [build(features, width), build(wide, width)]
        return kind(convs, names, last=nn.Linear(wide, classes), act=act, **(call or {}))

    return LayerCase(layer, options, make, ("x", *names.values()), **rest)


def same_width(
    layer: str, options: str, build: Callable[[int], nn.Module], *, takes: str = "",
    width: int = WIDTH, kind: type[Net] = Net, layers: int = 2, **rest: Any,
) -> LayerCase:  # fmt: skip
    """A linear layer, `layers` layers that keep the width, `build(width)` each, a linear layer."""
    pairs = [word.partition("=") for word in takes.split()]
    names = {argument: name or argument for argument, _, name in pairs}

    def make(features: int, classes: int) -> nn.Module:
        first, last = nn.Linear(features, width), nn.Linear(width, classes)
        return kind([build(width) for _ in range(layers)], names, first, last)

    return LayerCase(layer, options, make, ("x", *names.values()), **rest)


def mlp(*widths: int) -> nn.Module:
    return MLP([*widths], norm=None, act="elu")


# Layers for which PyG needs what is not installed ----------------------------------------------


@contextmanager
def _pretend_knn() -> Iterator[None]:
    """Layers that find neighbours can be constructed, though not run, without pyg-lib."""
    with mock.patch.object(torch_geometric.typing, "WITH_KNN", True):
        yield


@contextmanager
def _pretend_dgnn() -> Iterator[None]:
    """FusedGATConv can be constructed, though not run, without dgNN."""
    operators: Any = ModuleType("dgNN.operators")
    operators.GATConvFuse = None
    modules = {"dgNN": ModuleType("dgNN"), "dgNN.operators": operators}
    with mock.patch.dict(sys.modules, modules):
        yield


def _dynamic_edge(features: int, classes: int) -> nn.Module:
    with _pretend_knn():
        conv = pyg.DynamicEdgeConv(mlp(2 * WIDTH, classes), k=2)
    return OwnGraphNet(pyg.SAGEConv(features, WIDTH), conv)


def _gravnet(features: int, classes: int) -> nn.Module:
    with _pretend_knn():
        conv = pyg.GravNetConv(WIDTH, classes, 2, 3, k=2)
    return OwnGraphNet(pyg.SAGEConv(features, WIDTH), conv)


def _fused_gat(features: int, classes: int) -> nn.Module:
    with _pretend_dgnn():
        return FusedNet(pyg.FusedGATConv(features, classes, add_self_loops=False))


def _spline_basis(
    pseudo: Tensor, kernel_size: Tensor, is_open_spline: Tensor, degree: int
) -> tuple[Tensor, Tensor]:
    """pyg-lib's, in torch: values [E, S] and columns [E, S] of the S weights that an edge uses."""
    E, dims = pseudo.shape
    values, columns = pseudo.new_ones(E, 1), torch.zeros(E, 1, dtype=torch.int64)
    stride = 1
    for d in range(dims):
        size, is_open = int(kernel_size[d]), bool(is_open_spline[d])
        place = pseudo[:, d] * (size - degree if is_open else size)
        start = place.detach().floor()
        t, at = place - start, start.long()
        one = torch.ones_like(t)
        base = {
            1: [one - t, t],
            2: [0.5 * t * t - t + 0.5, -t * t + t + 0.5, 0.5 * t * t],
        }[degree]
        new_values = torch.stack(base, dim=1)
        new_columns = (at[:, None] + torch.arange(degree + 1)) % size * stride
        values = (values[:, :, None] * new_values[:, None, :]).flatten(1)
        columns = (columns[:, :, None] + new_columns[:, None, :]).flatten(1)
        stride *= size
    return values, columns


def _spline_weighting(x: Tensor, weight: Tensor, basis: Tensor, columns: Tensor) -> Tensor:
    """pyg-lib's, in torch: x [E, F], weight [K, F, F'], basis and columns [E, S] to [E, F']."""
    return torch.einsum("es,ef,esfo->eo", basis, x, weight[columns])


def _spline(features: int, width: int, **options: Any) -> nn.Module:
    if spline_conv.spline_basis is None:
        spline_conv.spline_basis = _spline_basis
        spline_conv.spline_weighting = _spline_weighting
    return pyg.SplineConv(features, width, 2, **options)


# The table ----------------------------------------------------------------------------------------

_GAT_LOOPS = "edge_attr, add_self_loops with fill_value"
_DEGREES = torch.tensor([5, 1, 1, 4, 5, 6, 7, 9, 8, 4])  # how many nodes have 0, 1, .. in-edges
_LAMBDA: dict[str, Any] = {"lambda_max": 2.5}
_NO_MAX = "without edges PyG divides 0 by a largest eigenvalue of 0"


_LARGEST = "counts nodes by the largest"
_AT_ONCE = "needs all messages of a node at once"


def _simple() -> list[LayerCase]:
    def one(options: str, conv: dict[str, Any], wide: int = WIDTH, **rest: Any) -> LayerCase:
        """A linear layer, SimpleConv, a linear layer, SimpleConv, a linear layer."""

        def make(features: int, classes: int) -> nn.Module:
            return pyg.Sequential("inputs, edge_index", [
                (lambda inputs: inputs["x"], "inputs -> x"),
                (lambda inputs: inputs.get("edge_weight"), "inputs -> weight"),
                (nn.Linear(features, WIDTH), "x -> x"),
                (pyg.SimpleConv(**conv), "x, edge_index, weight -> x"),
                (nn.Linear(wide, WIDTH), "x -> x"),
                (pyg.SimpleConv(**conv), "x, edge_index, weight -> x"),
                (nn.Linear(wide, classes), "x -> x"),
            ])  # fmt: skip

        return LayerCase("SimpleConv", options, make, **rest)

    weighted = ("x", "edge_weight")
    return [
        one("aggr='sum', edge_weight", {}, takes=weighted),
        one("aggr='mean', combine_root='sum'", {"aggr": "mean", "combine_root": "sum"}),
        one("aggr='max', combine_root='self_loop'", {"aggr": "max", "combine_root": "self_loop"}),
        one("combine_root='self_loop', edge_weight", {"combine_root": "self_loop"}, takes=weighted),
        one(
            "aggr=['mean', 'max', 'min'], combine_root='cat'",
            {"aggr": ["mean", "max", "min"], "combine_root": "cat"},
            4 * WIDTH,
        ),
        one(
            "aggr=['std', 'var']",
            {"aggr": ["std", "var"]},
            2 * WIDTH,
            idle=("module_2.bias", "module_4.bias"),  # a spread does not depend on them
        ),
        one("aggr='mul'", {"aggr": "mul"}),
        # PyG's median fails where the last nodes have no in-edges.
        one(
            "aggr='median', self_loop",
            {"aggr": "median", "combine_root": "self_loop"},
            refused=_AT_ONCE,
        ),
    ]


def _point_net(options: str, loops: bool, features: bool, **rest: Any) -> LayerCase:
    def make(f: int, c: int) -> nn.Module:
        convs = [
            pyg.PointNetConv(mlp((f if features else 0) + 3, 5), mlp(5, WIDTH), loops),
            pyg.PointNetConv(mlp(WIDTH + 3, WIDTH), None, loops, aggr="mean"),
        ]
        return PointNet(convs, nn.Linear(WIDTH, c), ("pos",), features)

    takes = ("x", "pos") if features else ("pos",)
    return LayerCase("PointNetConv", options, make, takes, **rest)


def _ppf(options: str, loops: bool, features: bool, **rest: Any) -> LayerCase:
    def make(f: int, c: int) -> nn.Module:
        convs = [
            pyg.PPFConv(mlp((f if features else 0) + 4, 5), mlp(5, WIDTH), loops),
            pyg.PPFConv(mlp(WIDTH + 4, WIDTH), None, loops, aggr="mean"),
        ]
        return PointNet(convs, nn.Linear(WIDTH, c), ("pos", "normal"), features)

    takes = ("x", "pos", "normal") if features else ("pos", "normal")
    return LayerCase("PPFConv", options, make, takes, **rest)


def _point_transformer(options: str, idle: tuple[str, ...], **layers: Any) -> LayerCase:
    def make(f: int, c: int) -> nn.Module:
        def conv(i: int) -> nn.Module:
            networks = {name: build() for name, build in layers.items() if callable(build)}
            return pyg.PointTransformerConv(i, WIDTH, **{**layers, **networks})

        return PointNet([conv(f), conv(WIDTH)], nn.Linear(WIDTH, c), ("pos",), True)

    return LayerCase("PointTransformerConv", options, make, ("x", "pos"), idle=idle)


def _point_gnn(f: int, c: int) -> nn.Module:
    def conv(i: int) -> nn.Module:
        return pyg.PointGNNConv(mlp(i, 5, 3), mlp(i + 3, 5, WIDTH), mlp(WIDTH, i))

    return PointNet([conv(f), conv(f)], nn.Linear(f, c), ("pos",), True)


def _dna(options: str, weighted: bool = False, idle: tuple[str, ...] = (), **conv: Any):
    def make(f: int, c: int) -> nn.Module:
        convs = [pyg.DNAConv(WIDTH, **conv) for _ in range(2)]
        return JumpingNet(nn.Linear(f, WIDTH), convs, nn.Linear(WIDTH, c), weighted)

    return LayerCase(
        "DNAConv", options, make, ("x", "edge_weight") if weighted else ("x",), idle=idle,
        replaces_loops=weighted and conv.get("normalize", True) and conv.get("add_self_loops", True)
    )  # fmt: skip


def _signed(f: int, c: int) -> nn.Module:
    return SignedNet(
        pyg.SignedConv(f, WIDTH, first_aggr=True), pyg.SignedConv(WIDTH, WIDTH, first_aggr=False),
        nn.Linear(2 * WIDTH, c),
    )  # fmt: skip


def _typed(layer: str, options: str, relations: int, **rest: Any) -> LayerCase:
    def make(f: int, c: int) -> nn.Module:
        kind = getattr(pyg, layer)
        convs = [kind(i, WIDTH, metadata(relations), heads=2) for i in (f, WIDTH)]
        return TypedNet(convs, nn.Linear(WIDTH, c), relations)

    takes = ("x",) if relations == 1 else ("x", "edge_type")
    return LayerCase(layer, options, make, takes, **rest)


def _categories(f: int, c: int) -> nn.Module:
    return CategoryNet(
        pyg.RGCNConv(5, WIDTH, RELATIONS), pyg.RGCNConv(WIDTH, WIDTH, RELATIONS),
        nn.Linear(WIDTH, c),
    )  # fmt: skip


def _spread(aggregators: list[str], scalers: list[str], **options: Any) -> Build:
    return lambda i, o: pyg.PNAConv(i, o, aggregators, scalers, _DEGREES, **options)


def _rgat(i: int, o: int, heads: int = 2, **options: Any) -> nn.Module:
    conv = pyg.RGATConv(i, o // 2, RELATIONS, heads=heads, **options)
    nn.init.normal_(conv.l2)  # PyG leaves it as memory happened to be
    return conv


_RGAT_IDLE = (".w", ".l1", ".b1", ".l2", ".b2")
_RGAT_ADDITIVE = (".l1", ".b1", ".l2", ".b2")
_MULTIPLICATIVE = {"attention_mode": "multiplicative-self-attention", "dim": 2}

CASES: list[LayerCase] = [
    *_simple(),
    two("GCNConv", "defaults"),
    two("GCNConv", "improved, edge_weight", lambda i, o: pyg.GCNConv(i, o, improved=True),
        takes="edge_weight", replaces_loops=True),
    two("GCNConv", "cached", lambda i, o: pyg.GCNConv(i, o, cached=True)),
    two("GCNConv", "add_self_loops=False, edge_weight",
        lambda i, o: pyg.GCNConv(i, o, add_self_loops=False), takes="edge_weight"),
    two("GCNConv", "normalize=False, bias=False, aggr='max'",
        lambda i, o: pyg.GCNConv(i, o, normalize=False, bias=False, aggr="max")),
    two("ChebConv", "normalization='sym', K=3", lambda i, o: pyg.ChebConv(i, o, 3)),
    two("ChebConv", "normalization='sym', edge_weight", lambda i, o: pyg.ChebConv(i, o, 2),
        takes="edge_weight"),
    two("ChebConv", "normalization='rw', edge_weight, lambda_max",
        lambda i, o: pyg.ChebConv(i, o, 3, "rw"), takes="edge_weight", call=_LAMBDA),
    two("ChebConv", "normalization=None, lambda_max, bias=False",
        lambda i, o: pyg.ChebConv(i, o, 2, None, bias=False), call=_LAMBDA),
    two("ChebConv", "normalization=None, edge_weight (a lambda_max of the largest)",
        lambda i, o: pyg.ChebConv(i, o, 3, None), takes="edge_weight",
        without={"no_edges": _NO_MAX}),
    two("SAGEConv", "mean, normalize", lambda i, o: pyg.SAGEConv(i, o, normalize=True)),
    two("SAGEConv", "max, project", lambda i, o: pyg.SAGEConv(i, o, "max", project=True),
        act=F.relu),
    two("SAGEConv", "root_weight=False, aggr=['min', 'sum']",
        lambda i, o: pyg.SAGEConv(i, o, ["min", "sum"], root_weight=False)),
    two("SAGEConv", "aggr='softmax' with a learnt t",
        lambda i, o: pyg.SAGEConv(i, o, "softmax", aggr_kwargs={"learn": True})),
    two("SAGEConv", "(x, x)", kind=PairNet),
    two("SAGEConv", "aggr='lstm'", lambda i, o: pyg.SAGEConv(i, o, "lstm"), refused=_AT_ONCE),
    two("SAGEConv", "flow='target_to_source'",
        lambda i, o: pyg.SAGEConv(i, o, flow="target_to_source")),
    two("GraphConv", "add, edge_weight", takes="edge_weight"),
    two("GraphConv", "max, edge_weight", lambda i, o: pyg.GraphConv(i, o, "max"),
        takes="edge_weight", act=F.relu),
    two("GraphConv", "mean, bias=False", lambda i, o: pyg.GraphConv(i, o, "mean", bias=False)),
    LayerCase("GravNetConv", "", _gravnet, refused="graph of its own"),
    two("GatedGraphConv", "add", lambda i, o: pyg.GatedGraphConv(o, 2), width=8),
    two("GatedGraphConv", "mean, edge_weight, bias=False",
        lambda i, o: pyg.GatedGraphConv(o, 3, "mean", bias=False), width=8, takes="edge_weight"),
    two("ResGatedGraphConv", "defaults"),
    two("ResGatedGraphConv", "edge_dim, root_weight=False",
        lambda i, o: pyg.ResGatedGraphConv(i, o, edge_dim=EDGE_DIM, root_weight=False),
        takes="edge_attr"),
    two("ResGatedGraphConv", "act=Tanh, bias=False, (x, x)",
        lambda i, o: pyg.ResGatedGraphConv((i, i), o, act=nn.Tanh(), bias=False), kind=PairNet),
    two("GATConv", "heads, concat", lambda i, o: pyg.GATConv(i, o // 2, heads=2)),
    two("GATConv", f"concat=False, residual, {_GAT_LOOPS}='mean'",
        lambda i, o: pyg.GATConv(i, o, heads=3, concat=False, residual=True, edge_dim=EDGE_DIM),
        takes="edge_attr"),
    two("GATConv", f"{_GAT_LOOPS}='max'",
        lambda i, o: pyg.GATConv(i, o, edge_dim=EDGE_DIM, fill_value="max"), takes="edge_attr"),
    two("GATConv", f"{_GAT_LOOPS}=0.5, edge_attr of one dimension",
        lambda i, o: pyg.GATConv(i, o, edge_dim=1, fill_value=0.5), takes="edge_attr=edge_weight"),
    two("GATConv", "add_self_loops=False, edge_attr, bias=False",
        lambda i, o: pyg.GATConv(
            i, o // 2, 2, add_self_loops=False, edge_dim=EDGE_DIM, bias=False
        ), takes="edge_attr"),
    two("GATConv", "(x, x)", lambda i, o: pyg.GATConv((i, i), o // 2, heads=2), kind=PairNet),
    LayerCase("FusedGATConv", "", _fused_gat, refused="csr"),
    two("GATv2Conv", "heads, concat", lambda i, o: pyg.GATv2Conv(i, o // 2, heads=2)),
    two("GATv2Conv", f"concat=False, residual, {_GAT_LOOPS}='mean'",
        lambda i, o: pyg.GATv2Conv(i, o, heads=3, concat=False, residual=True, edge_dim=EDGE_DIM),
        takes="edge_attr"),
    two("GATv2Conv", "share_weights, add_self_loops=False, bias=False",
        lambda i, o: pyg.GATv2Conv(
            i, o // 2, 2, share_weights=True, add_self_loops=False, bias=False
        )),
    two("GATv2Conv", "(x, x), edge_attr",
        lambda i, o: pyg.GATv2Conv((i, i), o, edge_dim=EDGE_DIM), kind=PairNet, takes="edge_attr"),
    two("TransformerConv", "heads, concat", lambda i, o: pyg.TransformerConv(i, o // 2, heads=2),
        idle=("lin_key.bias",)),
    two("TransformerConv", "beta, edge_dim",
        lambda i, o: pyg.TransformerConv(i, o // 2, heads=2, beta=True, edge_dim=EDGE_DIM),
        takes="edge_attr", idle=("lin_key.bias",)),
    two("TransformerConv", "concat=False, root_weight=False, bias=False",
        lambda i, o: pyg.TransformerConv(i, o, 3, concat=False, root_weight=False, bias=False),
        idle=("lin_skip",)),
    two("TransformerConv", "concat=False, beta, (x, x)",
        lambda i, o: pyg.TransformerConv((i, i), o, 2, concat=False, beta=True), kind=PairNet,
        idle=("lin_key.bias",)),
    same_width("AGNNConv", "defaults", lambda w: pyg.AGNNConv()),
    same_width("AGNNConv", "requires_grad=False, add_self_loops=False",
               lambda w: pyg.AGNNConv(requires_grad=False, add_self_loops=False)),
    two("TAGConv", "K=3, edge_weight", takes="edge_weight"),
    two("TAGConv", "K=2, normalize=False, bias=False",
        lambda i, o: pyg.TAGConv(i, o, 2, normalize=False, bias=False)),
    two("GINConv", "batch norm in nn", lambda i, o: pyg.GINConv(MLP([i, 5, o])),
        idle=("nn.lins.0.bias",)),
    two("GINConv", "train_eps, mean", lambda i, o: pyg.GINConv(
        mlp(i, 5, o), eps=0.3, train_eps=True, aggr="mean")),
    two("GINConv", "max, (x, x)", lambda i, o: pyg.GINConv(mlp(i, o), aggr="max"), kind=PairNet,
        act=F.relu),
    same_width("GINEConv", "train_eps", lambda w: pyg.GINEConv(mlp(w, 5, w), train_eps=True),
               width=EDGE_DIM, takes="edge_attr"),
    two("GINEConv", "edge_dim, max, eps", lambda i, o: pyg.GINEConv(
        nn.Sequential(nn.Linear(i, 5), nn.BatchNorm1d(5), nn.ELU(), nn.Linear(5, o)), eps=0.2,
        edge_dim=EDGE_DIM, aggr="max"), takes="edge_attr", idle=("nn.0.bias",)),
    two("ARMAConv", "num_stacks, num_layers", lambda i, o: pyg.ARMAConv(i, o, 3, 2)),
    two("ARMAConv", "shared_weights, act=None, edge_weight, bias=False",
        lambda i, o: pyg.ARMAConv(i, o, 1, 3, shared_weights=True, act=None, bias=False),
        takes="edge_weight"),
    two("ARMAConv", "one stack, one layer", idle=(".weight",)),
    two("SGConv", "K=2", lambda i, o: pyg.SGConv(i, o, 2)),
    two("SGConv", "add_self_loops=False, edge_weight",
        lambda i, o: pyg.SGConv(i, o, 3, add_self_loops=False), takes="edge_weight"),
    LayerCase("SGConv", "cached", lambda f, c: Net([pyg.SGConv(f, c, 2, cached=True)], {})),
    two("SSGConv", "K=2, edge_weight", lambda i, o: pyg.SSGConv(i, o, 0.2, 2),
        takes="edge_weight", replaces_loops=True),
    two("SSGConv", "K=3, add_self_loops=False",
        lambda i, o: pyg.SSGConv(i, o, 0.1, 3, add_self_loops=False)),
    LayerCase("SSGConv", "cached", lambda f, c: Net([pyg.SSGConv(f, c, 0.1, 2, cached=True)], {})),
    same_width("APPNP", "edge_weight", lambda w: pyg.APPNP(3, 0.2), takes="edge_weight",
               replaces_loops=True),
    same_width("APPNP", "cached, add_self_loops=False",
               lambda w: pyg.APPNP(2, 0.1, cached=True, add_self_loops=False)),
    same_width("APPNP", "normalize=False, edge_weight",
               lambda w: pyg.APPNP(2, 0.1, normalize=False), takes="edge_weight"),
    two("MFConv", "max_degree=10", idle=(".lins_l.", ".lins_r.")),
    two("MFConv", "max_degree=6, bias=False, (x, x)",
        lambda i, o: pyg.MFConv(i, o, 6, bias=False), kind=PairNet, idle=(".lins_l.", ".lins_r.")),
    two("RGCNConv", "mean", lambda i, o: pyg.RGCNConv(i, o, RELATIONS), takes="edge_type"),
    two("RGCNConv", "num_bases, sum, bias=False",
        lambda i, o: pyg.RGCNConv(i, o, RELATIONS, num_bases=2, aggr="sum", bias=False),
        takes="edge_type"),
    two("RGCNConv", "num_blocks, root_weight=False",
        lambda i, o: pyg.RGCNConv(i, o, RELATIONS, num_blocks=2, root_weight=False),
        takes="edge_type"),
    two("RGCNConv", "max", lambda i, o: pyg.RGCNConv(i, o, RELATIONS, aggr="max"),
        takes="edge_type"),
    LayerCase("RGCNConv", "categories instead of features", _categories, ("category", "edge_type")),
    two("FastRGCNConv", "mean", lambda i, o: pyg.FastRGCNConv(i, o, RELATIONS), takes="edge_type"),
    two("FastRGCNConv", "num_blocks, add",
        lambda i, o: pyg.FastRGCNConv(i, o, RELATIONS, num_blocks=2, aggr="add"),
        takes="edge_type"),
    two("FastRGCNConv", "num_bases, root_weight=False",
        lambda i, o: pyg.FastRGCNConv(i, o, RELATIONS, num_bases=2, root_weight=False),
        takes="edge_type"),
    two("RGATConv", "additive, across-relation", _rgat, takes="edge_type", idle=_RGAT_IDLE),
    two("RGATConv", "within-relation, num_bases, concat=False, edge_dim",
        lambda i, o: _rgat(i, 2 * o, num_bases=2, concat=False, edge_dim=EDGE_DIM,
                           attention_mechanism="within-relation"),
        takes="edge_type edge_attr", idle=_RGAT_IDLE),
    two("RGATConv", "multiplicative, num_blocks, edge_dim",
        lambda i, o: _rgat(i, o, num_blocks=2, edge_dim=EDGE_DIM, **_MULTIPLICATIVE), out=8,
        takes="edge_type edge_attr", idle=_RGAT_IDLE),
    two("RGATConv", "multiplicative, within-relation, concat=False, mod='additive'",
        lambda i, o: _rgat(i, o, 1, concat=False, mod="additive", bias=False,
                           attention_mechanism="within-relation", **_MULTIPLICATIVE),
        takes="edge_type", idle=_RGAT_ADDITIVE),
    two("RGATConv", "mod='additive'", lambda i, o: _rgat(i, o, mod="additive"), takes="edge_type",
        idle=_RGAT_ADDITIVE),
    two("RGATConv", "mod='scaled'", lambda i, o: _rgat(i, o, mod="scaled"), takes="edge_type",
        idle=(".w",)),
    two("RGATConv", "mod='f-additive'", lambda i, o: _rgat(i, o, mod="f-additive"),
        takes="edge_type", idle=_RGAT_IDLE),
    two("RGATConv", "multiplicative, mod='f-scaled'",
        lambda i, o: _rgat(i, o, mod="f-scaled", **_MULTIPLICATIVE), out=8, takes="edge_type",
        idle=_RGAT_IDLE),
    LayerCase("SignedConv", "first_aggr, then not", _signed, ("x", "negative")),
    _dna("heads, groups", heads=2, groups=2),
    _dna("edge_weight, bias=False", weighted=True, bias=False),
    _dna("cached, add_self_loops=False", cached=True, add_self_loops=False),
    _dna("normalize=False, edge_weight", weighted=True, heads=4, normalize=False),
    _point_net("add_self_loops, features", True, True),
    _point_net("add_self_loops=False, positions alone", False, False),
    two("GMMConv", "mean", lambda i, o: pyg.GMMConv(i, o, 2, 3), takes="edge_attr=pseudo"),
    two("GMMConv", "separate_gaussians, add, bias=False",
        lambda i, o: pyg.GMMConv(i, o, 2, 2, separate_gaussians=True, aggr="add", bias=False),
        takes="edge_attr=pseudo"),
    two("SplineConv", "degree=1, mean", lambda i, o: _spline(i, o, kernel_size=3),
        takes="edge_attr=pseudo",
        note="exact with a stand-in in plain torch for the splines of pyg-lib (torch-spline-conv)"),
    two("SplineConv", "degree=2, closed, add, root_weight=False", lambda i, o: _spline(
        i, o, kernel_size=[4, 3], degree=2, is_open_spline=False, aggr="add", root_weight=False),
        takes="edge_attr=pseudo"),
    two("NNConv", "add", lambda i, o: pyg.NNConv(i, o, mlp(EDGE_DIM, 4, i * o)), takes="edge_attr"),
    two("NNConv", "max, root_weight=False, bias=False, (x, x)",
        lambda i, o: pyg.NNConv((i, i), o, mlp(EDGE_DIM, i * o), "max", False, False),
        takes="edge_attr", kind=PairNet),
    same_width("CGConv", "add", lambda w: pyg.CGConv(w)),
    same_width("CGConv", "mean, edge features, batch_norm",
               lambda w: pyg.CGConv(w, EDGE_DIM, "mean", batch_norm=True), takes="edge_attr"),
    same_width("CGConv", "max, bias=False, (x, x)",
               lambda w: pyg.CGConv((w, w), 0, "max", bias=False), kind=PairNet),
    two("EdgeConv", "max", lambda i, o: pyg.EdgeConv(mlp(2 * i, 5, o))),
    two("EdgeConv", "mean, (x, x)", lambda i, o: pyg.EdgeConv(mlp(2 * i, o), "mean"), kind=PairNet),
    two("EdgeConv", "batch norm in nn", lambda i, o: pyg.EdgeConv(MLP([2 * i, 5, o])),
        idle=("nn.lins.0.bias",)),
    LayerCase("DynamicEdgeConv", "", _dynamic_edge, refused="graph of its own"),
    _ppf("add_self_loops, features", True, True, constants=("pos", "normal"),
         note="positions and normals take no gradient where loops are: PyG's is NaN there"),
    _ppf("add_self_loops=False, positions alone", False, False,
         graphs=("no_loops", "tiny", "no_edges")),
    two("FeaStConv", "heads=3", lambda i, o: pyg.FeaStConv(i, o, 3)),
    two("FeaStConv", "add_self_loops=False, bias=False, (x, x)",
        lambda i, o: pyg.FeaStConv(i, o, 2, add_self_loops=False, bias=False), kind=PairNet,
        without={"no_edges": "PyG's view(0, heads, -1) fails without edges"}),
    _point_transformer("defaults", ("lin_dst",)),
    _point_transformer("pos_nn, attn_nn", ("attn_nn.lins.1.bias",),
                       pos_nn=lambda: mlp(3, 5, WIDTH), attn_nn=lambda: mlp(WIDTH, 5, WIDTH)),
    _point_transformer("add_self_loops=False, attn_nn", ("attn_nn.lins.0.bias", "lin_dst"),
                       add_self_loops=False, attn_nn=lambda: mlp(WIDTH, WIDTH)),
    two("HypergraphConv", "a hyperedge for each node"),
    two("HypergraphConv", "hyperedge_weight, bias=False",
        lambda i, o: pyg.HypergraphConv(i, o, bias=False), takes="hyperedge_weight"),
    LayerCase("HypergraphConv", "use_attention, attention_mode='node'", lambda f, c: Net(
        [pyg.HypergraphConv(f, f // 2, use_attention=True, heads=2) for _ in range(2)],
        {"hyperedge_attr": "hyperedge_attr"}, last=nn.Linear(f, c)), ("x", "hyperedge_attr")),
    LayerCase("HypergraphConv", "use_attention, attention_mode='edge', concat=False",
              lambda f, c: Net(
                  [pyg.HypergraphConv(f, f, use_attention=True, attention_mode="edge", heads=2,
                                      concat=False) for _ in range(2)],
                  {"hyperedge_attr": "hyperedge_attr"}, last=nn.Linear(f, c)),
              ("x", "hyperedge_attr")),
    two("LEConv", "edge_weight", takes="edge_weight"),
    two("LEConv", "bias=False, max, (x, x)", lambda i, o: pyg.LEConv(i, o, bias=False, aggr="max"),
        kind=PairNet),
    two("PNAConv", "mean, min, max, std × identity, amplification, attenuation",
        _spread(["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"])),
    two("PNAConv", "sum, var × linear, inverse_linear, train_norm",
        _spread(["sum", "var"], ["linear", "inverse_linear"], train_norm=True),
        idle=("avg_deg_log",)),
    two("PNAConv", "edge_dim, towers, divide_input, pre_layers, post_layers",
        _spread(["mean", "max"], ["identity", "amplification"], edge_dim=EDGE_DIM, towers=2,
                divide_input=True, pre_layers=2, post_layers=2), takes="edge_attr"),
    two("PNAConv", "towers, train_norm, edge_dim",
        _spread(["sum", "std"], ["attenuation", "linear"], edge_dim=EDGE_DIM, towers=2,
                train_norm=True), takes="edge_attr"),
    two("ClusterGCNConv", "add_self_loops"),
    two("ClusterGCNConv", "diag_lambda, bias=False",
        lambda i, o: pyg.ClusterGCNConv(i, o, diag_lambda=0.5, bias=False)),
    two("GENConv", "softmax, batch norm"),
    two("GENConv", "softmax with a learnt t, edge_dim, msg_norm, layer norm",
        lambda i, o: pyg.GENConv(i, o, t=0.7, learn_t=True, edge_dim=EDGE_DIM, msg_norm=True,
                                 learn_msg_scale=True, norm="layer", bias=True),
        takes="edge_attr"),
    two("GENConv", "powermean with a learnt p",
        lambda i, o: pyg.GENConv(i, o, "powermean", p=1.5, learn_p=True, norm="layer")),
    two("GENConv", "softmax_sg, num_layers=1, (x, x)",
        lambda i, o: pyg.GENConv(i, o, "softmax_sg", t=0.5, num_layers=1), kind=PairNet),
    two("GENConv", "aggr=['softmax', 'max', 'mean'], msg_norm",
        lambda i, o: pyg.GENConv(i, o, ["softmax", "max", "mean"], msg_norm=True)),
    same_width("GCN2Conv", "shared_weights", lambda w: pyg.GCN2Conv(w, 0.1, 0.5, 1), kind=RootNet),
    same_width("GCN2Conv", "shared_weights=False, edge_weight",
               lambda w: pyg.GCN2Conv(w, 0.2, 0.5, 2, shared_weights=False), kind=RootNet,
               takes="edge_weight", replaces_loops=True),
    same_width("GCN2Conv", "cached", lambda w: pyg.GCN2Conv(w, 0.2, cached=True), kind=RootNet),
    same_width("GCN2Conv", "normalize=False", lambda w: pyg.GCN2Conv(w, 0.2, normalize=False),
               kind=RootNet),
    LayerCase("PANConv", "", lambda f, c: PanNet(pyg.PANConv(f, c, 2)), refused="graph of its own"),
    same_width("WLConvContinuous", "defaults", lambda w: pyg.WLConvContinuous()),
    same_width("WLConvContinuous", "edge_weight", lambda w: pyg.WLConvContinuous(),
               takes="edge_weight"),
    two("FiLMConv", "one relation"),
    two("FiLMConv", "relations", lambda i, o: pyg.FiLMConv(i, o, RELATIONS), takes="edge_type"),
    two("FiLMConv", "relations, nn, act=None, max, (x, x)",
        lambda i, o: pyg.FiLMConv(i, o, RELATIONS, mlp(i, 2 * o), act=None, aggr="max"),
        takes="edge_type", kind=PairNet),
    two("SuperGATConv", "MX", lambda i, o: pyg.SuperGATConv(i, o // 2, 2)),
    two("SuperGATConv", "SD, concat=False, add_self_loops=False, is_undirected",
        lambda i, o: pyg.SuperGATConv(i, o, 2, False, attention_type="SD", add_self_loops=False,
                                      is_undirected=True),
        without={"no_edges": "PyG's negative sampling fails without edges"}),
    LayerCase("SuperGATConv", "get_attention_loss in training", lambda f, c: AttentionLossNet(
        pyg.SuperGATConv(f, WIDTH), nn.Linear(WIDTH, c)), refused="attention loss"),
    same_width("FAConv", "defaults", lambda w: pyg.FAConv(w), kind=RootNet),
    same_width("FAConv", "normalize=False, edge_weight",
               lambda w: pyg.FAConv(w, 0.3, normalize=False), kind=RootNet, takes="edge_weight"),
    same_width("FAConv", "cached, add_self_loops=False, eps=0",
               lambda w: pyg.FAConv(w, 0, cached=True, add_self_loops=False), kind=RootNet),
    two("EGConv", "symnorm", lambda i, o: pyg.EGConv(i, o, num_heads=2, num_bases=3)),
    two("EGConv", "sum, mean, symnorm, min, max, var, std", lambda i, o: pyg.EGConv(
        i, o, ["sum", "mean", "symnorm", "min", "max", "var", "std"], 2, 2)),
    two("EGConv", "mean, std, add_self_loops",
        lambda i, o: pyg.EGConv(i, o, ["mean", "std"], 2, 2), graphs=("last_met", "tiny")),
    two("EGConv", "mean, add_self_loops, last nodes without edges",
        lambda i, o: pyg.EGConv(i, o, ["mean"], 2, 2), refused=_LARGEST),
    two("EGConv", "max, add_self_loops=False, cached, bias=False", lambda i, o: pyg.EGConv(
        i, o, ["max"], 2, 2, cached=True, add_self_loops=False, bias=False)),
    two("PDNConv", "normalize, add_self_loops", lambda i, o: pyg.PDNConv(i, o, EDGE_DIM, 4),
        takes="edge_attr", graphs=("single_loops", "tiny", "no_edges"),
        note="of a node's several loops PyG's gradient is wrong; tested without"),
    two("PDNConv", "normalize, add_self_loops=False",
        lambda i, o: pyg.PDNConv(i, o, EDGE_DIM, 4, add_self_loops=False), takes="edge_attr"),
    two("PDNConv", "normalize=False, bias=False",
        lambda i, o: pyg.PDNConv(i, o, EDGE_DIM, 4, normalize=False, bias=False),
        takes="edge_attr"),
    two("GeneralConv", "add"),
    two("GeneralConv", "mean, edge features, attention, heads", lambda i, o: pyg.GeneralConv(
        i, o, EDGE_DIM, "mean", attention=True, heads=2), takes="edge_attr"),
    two("GeneralConv", "attention_type='dot_product', directed_msg=False, l2_normalize",
        lambda i, o: pyg.GeneralConv(i, o, attention=True, attention_type="dot_product", heads=2,
                                     directed_msg=False, l2_normalize=True)),
    same_width("GeneralConv", "max, the same width, (x, x), bias=False",
               lambda w: pyg.GeneralConv(w, w, aggr="max", bias=False), kind=PairNet),
    _typed("HGTConv", "one relation", 1, idle=("convs.0.skip",)),
    _typed("HGTConv", "three relations", 3, idle=("convs.0.skip",)),
    two("HEATConv", "heads, concat, root_weight", lambda i, o: pyg.HEATConv(
        i, o // 2, 2, RELATIONS, 3, EDGE_DIM, 4, heads=2),
        takes="node_type edge_type edge_attr"),
    two("HEATConv", "concat=False, root_weight=False, bias=False", lambda i, o: pyg.HEATConv(
        i, o, 2, RELATIONS, 3, EDGE_DIM, 4, heads=2, concat=False, root_weight=False, bias=False),
        takes="node_type edge_type edge_attr"),
    _typed("HANConv", "one relation", 1, idle=("k_lin", ".q")),
    _typed("HANConv", "three relations", 3),
    same_width("LGConv", "edge_weight", lambda w: pyg.LGConv(), takes="edge_weight"),
    same_width("LGConv", "normalize=False", lambda w: pyg.LGConv(normalize=False)),
    LayerCase("PointGNNConv", "max", _point_gnn, ("x", "pos")),
    two("MixHopConv", "powers 0, 1, 2, edge_weight", out=3 * WIDTH, takes="edge_weight",
        replaces_loops=True),
    two("MixHopConv", "powers 1, 3, add_self_loops=False, bias=False",
        lambda i, o: pyg.MixHopConv(i, o, [1, 3], add_self_loops=False, bias=False),
        out=2 * WIDTH),
    two("MeshCNNConv", "", refused="order of edges"),
]  # fmt: skip


def all_layers() -> list[str]:
    """Every layer of this PyG that passes messages, in PyG's order."""
    kinds = {name: getattr(pyg.conv, name) for name in pyg.conv.__all__}
    return [
        name
        for name, kind in kinds.items()
        if inspect.isclass(kind)
        and issubclass(kind, pyg.MessagePassing)
        and kind is not pyg.MessagePassing
    ]


def exact_layers() -> list[str]:
    return [n for n in all_layers() if any(c.layer == n and c.refused is None for c in CASES)]


# Why PyG cannot do without, for layers that are refused.
REASONS = {
    "GravNetConv": "it makes a graph of its own from the features, in every pass",
    "DynamicEdgeConv": "it makes a graph of its own from the features, in every pass",
    "FusedGATConv": "it takes the whole graph's CSR and CSC arrays; GATConv is the same layer",
    "PANConv": "it makes a graph of its own: powers of the whole adjacency matrix, sparse",
    "MeshCNNConv": "its messages combine every four edges in the order of edges",
}
PARTS = {
    _LARGEST: "without 'symnorm' it counts nodes by the largest with an edge; PyG then leaves out "
    "the loops of later ones",
    _AT_ONCE: "`aggr='lstm'`, `'median'` and the like, which need all messages of a node at once",
    "attention loss": "`get_attention_loss` in training draws edges of the whole graph at random",
}


def table() -> str:
    """docs/layers.md."""
    layers = all_layers()
    exact = exact_layers()
    lines = [
        "# Layers",
        "",
        f"PyG {torch_geometric.__version__} has {len(layers)} layers that pass messages: "
        f"{len(exact)} are exact on a distributed graph, {len(layers) - len(exact)} are refused.",
        "",
        "*Exact*: loss, outputs, buffers and the gradients of every input and parameter equal "
        "those of the layer in one process, in float64, on 1, 2, 3 and 4 workers, under the "
        "schedules `sequential` and `oneshot`. *Refused*: `convert`, or the first forward pass, "
        "says why.",
        "",
        "`tests/test_layers.py` runs every option that is listed, in a model of two such layers, "
        "and fails when this file is out of date; `python -m tests.layer_cases > docs/layers.md` "
        "writes it.",
        "",
        "| layer | | options that are tested | refused, and notes |",
        "|---|---|---|---|",
    ]
    for layer in layers:
        cases = [case for case in CASES if case.layer == layer]
        tested = "; ".join(case.options for case in cases if case.refused is None)
        notes = [case.note for case in cases if case.note]
        for graph, reason in sorted({item for case in cases for item in case.without.items()}):
            notes.append(f"not tested on the graph `{graph}`: {reason}")
        parts = [case.refused for case in cases if case.refused is not None]
        if layer in exact:
            status = "exact, in part" if parts else "exact"
            notes = [f"refused: {PARTS[part]}" for part in parts] + notes
        else:
            status = "refused"
            notes = [REASONS[layer], *notes]
        lines.append(f"| `{layer}` | {status} | {tested} | {'; '.join(notes)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
