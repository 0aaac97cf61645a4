"""Models of typed nodes and typed edges, against unmodified PyG on the whole graph in one process.

Loss, outputs of every type, and the gradients of all features, edge values and parameters.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.hetero import DistributedHeteroGraph
from fullgraph.graph.partition import PartitionedTyped
from fullgraph.graph.sources import read
from tests.contract import InputsCase, Reference, assert_same, check_inputs, reference_steps
from tests.data import shared_data
from tests.graphs import named, partitioned
from tests.ranks import run_ranks
from tests.typed_graphs import ODD, typed

SIZES = [1, 2, 3, 4]
ON_ONE_RANK = ("a", "to", "b")
XDict = Mapping[str, Tensor]

# Graphs -------------------------------------------------------------------------------------------


def corner() -> HeteroData:
    """Two types of equally many nodes. `ON_ONE_RANK` has both ends of its edges in part 0, where
    nodes go to parts by id modulo up to 4 parts, and nothing else ends in b."""
    g = torch.Generator().manual_seed(5)
    data = HeteroData()
    for name, width in (("a", 3), ("b", 4)):
        data[name].x = torch.randn(26, width, generator=g, dtype=torch.float64)
    data["a", "to", "b"].edge_index = 12 * torch.randint(3, (2, 8), generator=g)
    data["b", "back", "a"].edge_index = torch.randint(26, (2, 40), generator=g)
    data["a", "next", "a"].edge_index = torch.randint(26, (2, 50), generator=g)
    for key in data.edge_types:
        count = data[key].edge_index.shape[1]
        data[key].edge_weight = torch.rand(count, generator=g, dtype=torch.float64) + 0.1
    return data


@cache
def graph_data(name: str) -> HeteroData:
    """Not to be written to. Every type has features."""
    if name == "corner":
        return corner()
    data = typed()
    g = torch.Generator().manual_seed(1)
    data["tag"].x = torch.randn(12, 4, generator=g, dtype=torch.float64)
    if name == "ugly":
        return data
    # Without the type whose name torch.nn.ModuleDict does not take.
    del data[ODD]
    for key in [key for key in data.edge_types if ODD in key]:
        del data[key]
    if name == "updated":  # relations end in all types, as to_hetero needs it
        data["paper", "rev_on", "tag"].edge_index = data["tag", "on", "paper"].edge_index.flip(0)
        data["tag", "of", "nobody"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    return data


@cache
def parts(name: str, num_parts: int, empty_part: bool) -> PartitionedTyped:
    """By id within the type modulo parts; optionally part 1 left empty."""
    whole = read(graph_data(name))
    part = torch.cat([torch.arange(n.num_nodes, dtype=torch.int32) for n in whole.nodes])
    part %= num_parts
    if empty_part and num_parts > 1:
        part[part == 1] = 0
    return PartitionedTyped(whole, part, num_parts)


def shares(group: Group, name: str) -> list[tuple[str, DistributedHeteroGraph]]:
    """One with as many parts as ranks and messages of a few rows, one with four parts, one of them
    empty (on four ranks, a rank without nodes); of all graphs but the ugly, one of the two."""
    settings = [(group.size, False, "sequential", 400), (4, True, "oneshot", 1000)]
    if name in ("corner", "updated"):
        settings = [settings[(group.size + (name == "corner")) % 2]]
    return [
        (schedule, DistributedHeteroGraph.build(parts(name, k, empty), group, schedule, size))
        for k, empty, schedule, size in settings
    ]


# The contract -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``make(data)``: a model called as `model(x_dict, edge_index_dict, **values)`, of which it
    takes `values`: edge_weight_dict, edge_attr_dict. It returns a dict of rows by type (None for a
    type without), and perhaps a tensor that is the same everywhere under other names."""

    make: Callable[[HeteroData], nn.Module]
    values: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ("ugly", "corner")


Results = dict[Any, "Tensor | None"]


def run(
    model: nn.Module, edges: Mapping[Any, Any], x: dict[str, Tensor],
    values: dict[str, dict[Any, Tensor]], mean: Callable[[Tensor], Tensor],
    ids: Mapping[str, Tensor],
) -> tuple[Results, Tensor]:  # fmt: skip
    """A step's outputs, by name, and loss."""
    out = model(x, edges, **values)
    results: Results = {("out", name): rows for name, rows in out.items()}
    loss: Any = 0
    for k, (name, rows) in enumerate(out.items()):
        if rows is None or name not in x or name == "nobody":
            continue
        g = torch.Generator().manual_seed(k)
        scale = torch.randn(50, 1, generator=g, dtype=torch.float64)[ids[name]]
        loss = loss + mean((rows.flatten(1) + scale).square() * scale.exp())
    return results, loss


def step(
    model: nn.Module, edges: Mapping[Any, Any], x: dict[str, Tensor],
    values: dict[str, dict[Any, Tensor]], mean: Callable[[Tensor], Tensor],
    ids: Mapping[str, Tensor], group: Group | None = None,
) -> Results:  # fmt: skip
    model.zero_grad()
    for leaf in [*x.values(), *(v for given in values.values() for v in given.values())]:
        leaf.requires_grad_().grad = None
    results, loss = run(model, edges, x, values, mean, ids)
    loss.backward()
    if group is not None:
        fullgraph.sum_gradients(model, group)
    results = {key: None if rows is None else rows.detach() for key, rows in results.items()}
    results["loss"] = loss.detach()
    results |= {("x.grad", name): rows.grad for name, rows in x.items()}
    for what, given in values.items():
        results |= {(f"{what}.grad", key): value.grad for key, value in given.items()}
    for name, p in model.named_parameters():
        results["parameter.grad", name] = None if p.grad is None else p.grad.clone()
    training = model.training
    with torch.no_grad():
        evaluated, _ = run(model.eval(), edges, x, values, mean, ids)
    model.train(training)
    return results | {("evaluation", name): rows for (_, name), rows in evaluated.items()}


def edge_values(case: Case, name: str) -> dict[str, dict[Any, Tensor]]:
    data = graph_data(name)
    return {
        what: {
            key: data[key][what.removesuffix("_dict")].clone()
            for key in data.edge_types
            if what.removesuffix("_dict") in data[key]
        }
        for what in case.values
    }


@cache
def reference(case: str, name: str) -> tuple[nn.Module, list[Results], dict[str, Tensor]]:
    """The model before, two steps, and the buffers after."""
    data = graph_data(name)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There exist node types")
        model = CASES[case].make(data).double()
    start = copy.deepcopy(model)
    x = {key: rows.clone() for key, rows in data.x_dict.items()}
    every = {key: torch.arange(data[key].num_nodes) for key in data.node_types}
    values = edge_values(CASES[case], name)
    steps = [
        step(model, data.edge_index_dict, x, values, lambda rows: rows.mean(), every)
        for _ in range(2)
    ]
    return start, steps, dict(model.named_buffers())


def check(group: Group, cases: list[str]) -> list[str]:
    """What differs first, in each case in which something does."""
    failures = []
    graphs: dict[str, list[tuple[str, DistributedHeteroGraph]]] = {}
    for case in cases:
        for name in CASES[case].graphs:
            if name not in graphs:
                graphs[name] = shares(group, name)
            for schedule, hetero in graphs[name]:
                where = f"{case} on {name}, {schedule}, rank {group.rank} of {group.size}"
                try:
                    check_share(case, name, hetero)
                except AssertionError as error:
                    failures.append(f"{where}: {error}")
                except Exception as error:
                    raise RuntimeError(where) from error
    return failures


def check_share(case: str, name: str, hetero: DistributedHeteroGraph) -> None:
    start, expected, buffers = reference(case, name)
    data, ids = graph_data(name), hetero.node_id_dict
    model = fullgraph.convert(copy.deepcopy(start))
    x = {key: data[key].x[ids[key]].clone() for key in data.node_types}
    edge_ids = hetero.edge_id_dict
    values = {
        what: {key: value[edge_ids[key]].clone() for key, value in given.items()}
        for what, given in edge_values(CASES[case], name).items()
    }
    mean = partial(fullgraph.global_mean, group=hetero.group)
    twice = hetero.group.size <= 2 and str(hetero.schedule) == "sequential"
    ours = [
        step(model, hetero.edge_index_dict, x, values, mean, ids, hetero.group)
        for _ in expected[: 1 + twice]
    ]
    for k, (mine, theirs) in enumerate(zip(ours, expected)):
        compare(f"step {k}", mine, theirs, ids, edge_ids)
    if twice:
        found = dict(model.named_buffers())
        for key, buffer in buffers.items():
            assert_same(f"buffer {key}", found[key], buffer)


def compare(
    what: str, ours: Results, expected: Results, ids: Mapping[Any, Tensor],
    edge_ids: Mapping[Any, Tensor],
) -> None:  # fmt: skip
    assert list(ours) == list(expected), what
    grads = [v for (key, *_), v in expected.items() if key.endswith(".grad") and v is not None]
    largest = max(float(g.abs().max()) for g in grads if g.numel())
    for key, value in expected.items():
        kind, name = key if isinstance(key, tuple) else (key, None)
        if value is not None and kind in ("out", "evaluation", "x.grad") and name in ids:
            value = value[ids[name]]
        elif value is not None and kind.startswith("edge_"):
            value = value[edge_ids[name]]
        assert_same(f"{what}, {key}", ours[key], value, largest if "grad" in kind else 0.0)


# Models -------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """Layers on dicts, with an activation between, and what is done to each type's rows there."""

    def __init__(self, *convs: nn.Module, between: nn.ModuleDict | None = None) -> None:
        super().__init__()
        self.convs, self.between = nn.ModuleList(convs), between

    def forward(self, x: XDict, edges: Any, **values: Any) -> XDict:
        for k, conv in enumerate(self.convs):
            given = {} if k else values
            x = conv(x, edges, **given)
            if self.between is not None:
                x = {name: self.between[str(name in "ab")](rows) for name, rows in x.items()}
            x = {name: F.elu(rows) for name, rows in x.items()}
        return x


def first_seen(model: nn.Module, data: HeteroData, **values: Any) -> nn.Module:
    """Lazy layers are given their sizes by a pass on PyG."""
    with torch.no_grad():
        x = {name: rows.float() for name, rows in data.x_dict.items()}
        model(x, data.edge_index_dict, **values)
    return model


def hetero_conv(
    layer: Callable[[tuple[str, str, str], HeteroData], nn.Module], aggr: str | None
) -> Callable[[HeteroData], nn.Module]:
    """Two HeteroConv; types that nothing ends in are left out after the first."""

    def make(data: HeteroData) -> nn.Module:
        ends = {key[2] for key in data.edge_types}
        keys = [key for key in data.edge_types if key[0] in ends]
        convs = [
            pyg.HeteroConv({key: layer(key, data) for key in chosen}, aggr=aggr)
            for chosen in (data.edge_types, keys)
        ]
        values = {}
        for name in ("edge_weight", "edge_attr"):
            if name in getattr(layer, "takes", ()):
                values[f"{name}_dict"] = {
                    key: data[key][name].float() for key in data.edge_types if name in data[key]
                }
        return first_seen(Layers(*convs), data, **values)

    return make


def _sage(key: Any, data: HeteroData) -> nn.Module:
    return pyg.SAGEConv((-1, -1), 4)


def _max_sage(key: Any, data: HeteroData) -> nn.Module:
    aggr = ["max", "mean", "min"][len(key[1]) % 3]
    return pyg.SAGEConv((-1, -1), 4, aggr=aggr, normalize=True)


def _graph_conv(key: Any, data: HeteroData) -> nn.Module:
    return pyg.GraphConv((-1, -1), 4)


def _gat(key: Any, data: HeteroData) -> nn.Module:
    return pyg.GATConv((-1, -1), 2, heads=2, add_self_loops=False)


def _gcn(key: Any, data: HeteroData) -> nn.Module:
    if key[0] == key[2]:
        return pyg.GCNConv(-1, 4)
    return pyg.GATv2Conv((-1, -1), 4, add_self_loops=False)


def _mixed(key: Any, data: HeteroData) -> nn.Module:
    """Attributes and weights of edges; layers without a counterpart of their own."""
    if "edge_attr" in data[key]:
        width = data[key].edge_attr.shape[1]
        return pyg.GATConv((-1, -1), 2, heads=2, add_self_loops=False, edge_dim=width)
    if "edge_weight" in data[key]:
        return pyg.GraphConv((-1, -1), 4, aggr="mean")
    return pyg.TransformerConv((-1, -1), 2, heads=2)


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.SAGEConv((-1, -1), 5), pyg.SAGEConv((-1, -1), 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class Gat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.GATConv((-1, -1), 2, heads=2, add_self_loops=False)
        self.lin1 = pyg.Linear(-1, 4)
        self.conv2 = pyg.GATConv((-1, -1), 3, add_self_loops=False)
        self.lin2 = pyg.Linear(-1, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = (self.conv1(x, edge_index) + self.lin1(x)).relu()
        return self.conv2(x, edge_index) + self.lin2(x)


def to_hetero(kind: type[nn.Module], aggr: str) -> Callable[[HeteroData], nn.Module]:
    return lambda data: first_seen(pyg.to_hetero(kind(), data.metadata(), aggr=aggr), data)


def sizes(data: HeteroData) -> dict[str, int]:
    return {name: x.shape[1] for name, x in data.x_dict.items()}


def hgt(data: HeteroData) -> nn.Module:
    meta = data.metadata()
    first = pyg.HGTConv(sizes(data), 6, meta, heads=2)
    ends = list(dict.fromkeys(key[2] for key in meta[1]))
    model = Layers(first, Only(pyg.HGTConv(dict.fromkeys(ends, 6), 6, meta, heads=3), ends))
    for p in model.parameters():  # priors other than 1, skips other than even
        nn.init.normal_(p, std=0.5) if p.numel() < 4 else None
    return model


class Only(nn.Module):
    """A layer on the relations between types that have rows."""

    def __init__(self, conv: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.conv, self.names = conv, names

    def forward(self, x: XDict, edges: Mapping[Any, Any]) -> XDict:
        x = {name: rows for name, rows in x.items() if name in self.names and rows is not None}
        return self.conv(x, {key: edge for key, edge in edges.items() if key[0] in x})


def han(data: HeteroData) -> nn.Module:
    return Han(data, 2)


class Han(nn.Module):
    def __init__(self, data: HeteroData, heads: int) -> None:
        super().__init__()
        ends = list(dict.fromkeys(key[2] for key in data.edge_types))
        self.first = pyg.HANConv(sizes(data), 6, data.metadata(), heads=heads)
        self.second = Only(pyg.HANConv(dict.fromkeys(ends, 6), 4, data.metadata()), ends)

    def forward(self, x: XDict, edges: Any) -> dict[Any, Any]:
        x, weights = self.first(x, edges, return_semantic_attention_weights=True)
        out = self.second({k: None if v is None else F.elu(v) for k, v in x.items()}, edges)
        return {**out, **{f"weights of {k}": w for k, w in weights.items()}}


def normed(data: HeteroData) -> nn.Module:
    """A batch norm a type, of all ranks' rows."""
    ends = [key[2] for key in data.edge_types]
    convs = [hetero_conv(_sage, "mean")(data).convs[k] for k in range(2)]
    return PerType(convs, {name: pyg.BatchNorm(4) for name in ends if name != ODD})


class PerType(nn.Module):
    def __init__(self, convs: list[nn.Module], norms: dict[str, nn.Module]) -> None:
        super().__init__()
        self.convs, self.norms = nn.ModuleList(convs), nn.ModuleDict(norms)

    def forward(self, x: XDict, edges: Any) -> XDict:
        for conv in self.convs:
            x = conv(x, edges)
            x = {k: self.norms[k](v) if k in self.norms else v for k, v in x.items()}
            x = {k: F.relu(v) for k, v in x.items()}
        return x


_graph_conv.takes = ("edge_weight",)
_mixed.takes = ("edge_weight", "edge_attr")
CASES = {
    **{f"HeteroConv, SAGEConv, {aggr}": Case(hetero_conv(_sage, aggr)) for aggr in ("sum", "cat")},
    "HeteroConv, SAGEConv, stacked": Case(lambda data: pyg_stack(data)),
    "HeteroConv, SAGEConv of maxima, mean": Case(hetero_conv(_max_sage, "mean")),
    "HeteroConv, GraphConv, max": Case(hetero_conv(_graph_conv, "max"), ("edge_weight_dict",)),
    "HeteroConv, GATConv, mean": Case(hetero_conv(_gat, "mean")),
    "HeteroConv, GCNConv and GATv2Conv, min": Case(hetero_conv(_gcn, "min")),
    "HeteroConv, edge data, sum": Case(
        hetero_conv(_mixed, "sum"), ("edge_weight_dict", "edge_attr_dict")
    ),
    "to_hetero, SAGEConv": Case(to_hetero(Sage, "sum"), graphs=("updated", "corner")),
    "to_hetero, GATConv": Case(to_hetero(Gat, "mean"), graphs=("updated", "corner")),
    "HGTConv": Case(hgt, graphs=("plain", "corner")),
    "HANConv": Case(han, graphs=("plain", "corner")),
    "a batch norm a type": Case(normed),
}


def pyg_stack(data: HeteroData) -> nn.Module:
    """aggr=None: a column for every relation."""
    convs = {key: _sage(key, data) for key in data.edge_types}
    return first_seen(pyg.HeteroConv(convs, aggr=None), data)


FAMILIES = {
    "sums": [name for name in CASES if "SAGEConv" in name and "Hetero" in name],
    "others": [name for name in CASES if "HeteroConv" in name and "SAGEConv" not in name],
    "to_hetero": [name for name in CASES if "to_hetero" in name],
    "attention": ["HGTConv", "HANConv"],
    "norms": ["a batch norm a type"],
}


def test_every_case_is_in_a_family() -> None:
    assert sorted(name for names in FAMILIES.values() for name in names) == sorted(CASES)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_pyg_in_one_process(family: str, size: int) -> None:
    failures = [text for found in run_ranks(check, size, FAMILIES[family]) for text in found]
    assert not failures, "\n".join(failures)


# The graph's own features, and dropout -----------------------------------------------------------


def _own_features(group: Group) -> list[int]:
    """Bytes sent in each of two passes."""
    data, hetero = graph_data("updated"), shares(group, "updated")[0][1]
    torch.manual_seed(0)
    model = to_hetero(Sage, "sum")(data).double()
    expected = model(data.x_dict, data.edge_index_dict)
    model = fullgraph.convert(model)
    sent = []
    for _ in range(2):
        hetero.traffic.clear()
        out = model(hetero.x_dict, hetero.edge_index_dict)
        sent.append(hetero.traffic.bytes_sent)
        for name, rows in expected.items():
            assert_same(name, out[name], rows[hetero.node_id_dict[name]])
    return sent


@pytest.mark.parametrize("size", [1, 3])
def test_a_model_takes_the_dicts_of_the_graph(size: int) -> None:
    first, second = map(sum, zip(*run_ranks(_own_features, size)))
    assert second < first or size == 1  # own features travel once


class Dropping(nn.Module):
    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        first, second = hetero_conv(_sage, "mean")(data).convs
        self.first, self.second = first, second
        self.attention = pyg.HANConv(4, 4, data.metadata(), heads=2, dropout=0.5)

    def forward(self, x: XDict, edges: Any) -> tuple[XDict, XDict]:
        x = {name: F.dropout(rows, 0.3, self.training) for name, rows in x.items()}
        hidden = {k: F.dropout(v, 0.5, self.training) for k, v in self.first(x, edges).items()}
        out = self.attention({k: F.elu(v) for k, v in hidden.items()}, edges)
        out = {k: F.dropout(v + hidden[k], 0.5, self.training) for k, v in out.items()}
        return hidden, self.second(out, edges)


def _dropped(group: Group, num_parts: int) -> dict[str, Tensor] | None:
    """Rows and gradients of all ranks, with dropout, of a step that is not the first."""
    data = graph_data("corner")
    hetero = DistributedHeteroGraph.build(parts("corner", num_parts, False), group, "oneshot")
    torch.manual_seed(0)
    model = fullgraph.convert(Dropping(data).double(), seed=3)
    model(hetero.x_dict, hetero.edge_index_dict)
    x = {name: rows.clone().requires_grad_() for name, rows in hetero.x_dict.items()}
    hidden, out = model(x, hetero.edge_index_dict)
    sum(rows.square().sum() for rows in out.values()).backward()
    fullgraph.sum_gradients(model, group)
    found = {f"parameter {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    for name in hetero.node_types:
        assert x[name].shape[0] == hetero["a"].num_owned
        for what, rows in (("hidden", hidden), ("out", out)):
            found[f"{what} {name}"] = hetero.gather(name, rows[name].detach())
        found[f"gradient {name}"] = hetero.gather(name, x[name].grad)
    return found if group.rank == 0 else None


def test_dropout_of_types_is_the_same_on_any_number_of_ranks() -> None:
    """Even where two types have equally many rows, so that sizes do not tell them apart."""
    (expected,) = run_ranks(_dropped, 1, 1)
    zero = {name: expected[f"hidden {name}"] == 0 for name in "ab"}
    assert all(0.3 < float(z.double().mean()) < 0.7 for z in zero.values())
    assert not torch.equal(zero["a"], zero["b"])
    for size, num_parts in ((2, 4), (3, 3), (4, 4)):
        found = run_ranks(_dropped, size, num_parts)[0]
        assert list(found) == list(expected)
        for name, rows in expected.items():
            assert_same(f"{name} on {size} ranks", found[name], rows, 1e-2)


class Told(nn.Module):
    """Dropout on rows made so that their type could be lost, or be mistaken."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: XDict, edges: Any) -> Tensor:
        a, b = x["a"] * 0 + 1, x["b"] * 0 + 1
        if self.how == "unknown":
            return F.dropout(torch.ones(a.shape), 0.5)
        stack = torch.stack([b[:, :3], b[:, 1:]])
        made = {
            "cat": lambda: torch.cat([b[:, :3], b[:, 1:]], dim=-1),
            "mean": lambda: stack.mean(0),
            "max": lambda: torch.max(stack * 2, dim=0)[0],
            "item": lambda: stack[1],
            "split": lambda: b.split(2, dim=1)[0],
        }
        return F.dropout(made[self.how](), 0.5)


def _told(group: Group, how: str) -> Tensor:
    hetero = shares(group, "corner")[0][1]
    model = fullgraph.convert(Told(how))
    return hetero.gather("b", model(hetero.x_dict, hetero.edge_index_dict))


@pytest.mark.parametrize("how", ["cat", "mean", "max", "item", "split"])
def test_rows_keep_their_type(how: str) -> None:
    expected, found = run_ranks(_told, 1, how)[0], run_ranks(_told, 2, how)[0]
    assert torch.equal(found, expected)
    assert 0 < int((found == 0).sum()) < found.numel()


def test_dropout_on_rows_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be told of which: compute it from that type's x"):
        _told(Group(), "unknown")


def test_rows_after_rows_are_of_no_type() -> None:
    """Else it would be so only where one of the two has no row on the rank."""
    hetero = shares(Group(), "ugly")[0][1]
    model = fullgraph.convert(Seen())
    model(hetero.x_dict, hetero.edge_index_dict)
    assert model.noted == [True, False, True]


class Seen(nn.Module):
    def forward(self, x: XDict, edges: Any) -> XDict:
        papers, nobody = x["paper"], x["nobody"].new_zeros(0, 5)
        made = [papers * 2, torch.cat([papers, nobody]), torch.cat([papers, papers], dim=1)]
        self.noted = [getattr(rows, "fullgraph_rows", None) is not None for rows in made]
        return x


# Typed edges --------------------------------------------------------------------------------------

RELATIONS = 3


class Relational(nn.Module):
    """Nodes by their ids, then their rows."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv1, conv2

    def forward(self, inputs: XDict, edge_index: Any) -> Tensor:
        edge_type = inputs["edge_type"]
        x = F.elu(self.conv1(inputs.get("x"), edge_index, edge_type))
        return self.conv2(x, edge_index, edge_type)


@cache
def typed_edges(graph: str) -> Data:
    if graph == "aifb":
        return read(shared_data("aifb")).to_pyg()
    data = named(graph).clone()
    data.edge_type = torch.arange(data.num_edges) % RELATIONS
    return data


RELATIONAL: dict[str, tuple[type[nn.Module], dict[str, Any], dict[str, Any]]] = {
    "mean": (pyg.RGCNConv, {}, {}),
    "bases": (pyg.RGCNConv, {"num_bases": 2}, {"num_bases": 4, "root_weight": False}),
    "sum, blocks": (pyg.RGCNConv, {"aggr": "sum"}, {"aggr": "sum", "num_blocks": 3}),
    "bases, add": (pyg.RGCNConv, {"num_bases": 2, "aggr": "add", "bias": False}, {"aggr": "add"}),
    "fast": (pyg.FastRGCNConv, {}, {"num_blocks": 3}),
    "fast, sum, bases": (pyg.FastRGCNConv, {"num_bases": 2, "aggr": "sum"}, {"aggr": "sum"}),
}


def relational(name: str, graph: str) -> InputsCase:
    """The first layer is given x where it decomposes by blocks, and nothing otherwise."""
    data = typed_edges(graph)
    if graph == "aifb":
        n, relations, classes = data.num_nodes, int(data.edge_type.max()) + 1, 4
        kind, first, second, hidden = pyg.RGCNConv, {"num_bases": 30}, {"num_bases": 30}, 16
    else:
        kind, first, second = RELATIONAL[name]
        n, relations, classes, hidden = data.num_nodes, RELATIONS, 3, 6

    def make() -> nn.Module:
        return Relational(
            kind(n, hidden, relations, **first), kind(hidden, classes, relations, **second)
        )

    return InputsCase(make, data, {}, {"edge_type": data.edge_type})


@cache
def relational_reference(name: str, graph: str, steps: int) -> Reference:
    return reference_steps(relational(name, graph), steps)


def _relational(group: Group, names: list[str], graph: str, steps: int = 2) -> None:
    data = typed_edges(graph)
    settings = [("sequential", group.size, 300), ("oneshot", 5, 2000)]
    if graph == "aifb":  # one on each number of ranks
        settings = [(*settings[group.size % 2][:2], 1 << 16)]
    for schedule, num_parts, block_bytes in settings:
        graph_parts = partitioned(data, num_parts, num_parts == 5)
        shared = DistributedGraph.build(graph_parts, group, schedule, block_bytes)
        for name in names:
            case, expected = relational(name, graph), relational_reference(name, graph, steps)
            check_inputs(case, expected, shared, steps)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("graph", ["multigraph", "tiny"])
def test_nodes_without_features_on_typed_edges(graph: str, size: int) -> None:
    run_ranks(_relational, size, list(RELATIONAL), graph)


@pytest.mark.parametrize("size", [2, 3])
def test_a_real_knowledge_graph(size: int) -> None:
    run_ranks(_relational, size, ["bases"], "aifb", 1)


# What is refused ---------------------------------------------------------------------------------


def _on_corner(layer: nn.Module) -> Any:
    """The layer's output on `ON_ONE_RANK`, between two types, of one process."""
    hetero = shares(Group(), "corner")[0][1]
    model = fullgraph.convert(Pair(layer).double())
    return model(hetero.x_dict, hetero.edge_index_dict)


class Pair(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: XDict, edges: Any) -> Tensor:
        return self.layer((x["a"], x["b"]), edges[ON_ONE_RANK])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: pyg.GCNConv(3, 2), "received a tuple of node features as input"),
        (lambda: pyg.GCNConv(3, 2, add_self_loops=False), "received a tuple of node features"),
        (
            lambda: pyg.GATConv((3, 4), 2),
            "needs edges between nodes of one type, but .* a to b' is a rel",
        ),
        (
            lambda: pyg.GATv2Conv((3, 4), 2),
            "needs edges between nodes of one type, but .* a to b' is a rel",
        ),
    ],
)
def test_loops_between_types_are_refused(layer: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _on_corner(layer())


def test_layers_of_unknown_size_are_refused() -> None:
    convs = {ON_ONE_RANK: pyg.SAGEConv((-1, -1), 4), ("a", "next", "a"): pyg.SAGEConv(-1, 4)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There exist node types")
        layer = pyg.HeteroConv(convs)
    with pytest.raises(fullgraph.UnsupportedLayerError, match=r"give the size, or run it once"):
        fullgraph.convert(layer)
    for lazy in (
        pyg.to_hetero(Sage(), corner().metadata()),
        pyg.HGTConv(-1, 4, corner().metadata()),
        pyg.HANConv(-1, 4, corner().metadata()),
    ):
        with pytest.raises(fullgraph.UnsupportedLayerError, match="its size is not known yet"):
            fullgraph.convert(lazy)


def test_typed_edges_that_do_not_fit_are_refused() -> None:
    data = typed_edges("multigraph")
    graph = DistributedGraph.build(partitioned(data, 1), Group())
    n, edge_type = graph.num_nodes, graph.edge_type

    def out(layer: nn.Module, x: Tensor | None, *types: Tensor) -> Tensor:
        return fullgraph.convert(layer)(x, graph, *types)

    with pytest.raises(ValueError, match=r"needs edge_type, int64 \[344\]; graph.edge_type is"):
        out(pyg.RGCNConv(n, 4, RELATIONS), None)
    with pytest.raises(ValueError, match="in_channels=7 and the graph has 50 nodes"):
        out(pyg.RGCNConv(7, 4, RELATIONS), None, edge_type)
    with pytest.raises(ValueError, match="Block-diagonal decomposition not supported"):
        out(pyg.RGCNConv(n, 4, RELATIONS, num_blocks=2), None, edge_type)
    with pytest.raises(ValueError, match="an edge_type is 2, and num_relations=2"):
        out(pyg.RGCNConv(6, 4, RELATIONS - 1), data.x.float(), edge_type)
