"""Approximate schedules: stale rows are those that a simulation in one process has, `local` is PyG
without the edges between ranks, evaluation is exact, and what is kept can be saved."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops, degree, softmax

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.schedule import Schedule, delayed, local
from fullgraph.comm.stale import bins_of
from tests.contract import Case, Setting, assert_same, check_contract
from tests.graphs import GRAPHS, named_cut, named_parts, partitioned
from tests.ranks import run_ranks
from tests.typed_graphs import ONE_PART, typed_parts

SMALL = [name for name in GRAPHS if name != "citeseer"]


class Twice(torch.nn.Module):
    """A layer that is used twice in one forward pass."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.lin, self.conv = torch.nn.Linear(features, 8), pyg.SAGEConv(8, 8)
        self.out = torch.nn.Linear(8, classes)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = self.conv(self.lin(x), edge_index).relu()
        return self.out(self.conv(x, edge_index))


class BySource(pyg.MessagePassing):
    """Looks rows up by the edges' sources, and sums to them, with gradients."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(aggr="sum")
        self.lin = torch.nn.Linear(features, classes)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = self.lin(x)
        per_edge = x[edge_index[0]].tanh()
        leaving = x.new_zeros(x.shape).index_add(0, edge_index[0], per_edge)
        return self.propagate(edge_index, x=x, gate=per_edge.sum(1, keepdim=True)) + leaving

    def message(self, x_j: Tensor, gate: Tensor) -> Tensor:
        return x_j * gate.sigmoid()


def _two(make: Callable[[int, int], torch.nn.Module], hidden: int = 8) -> Any:
    def build(features: int, classes: int) -> torch.nn.Module:
        return pyg.Sequential("x, edge_index", [
            (make(features, hidden), "x, edge_index -> x"), torch.nn.ReLU(),
            (make(hidden, classes), "x, edge_index -> x"),
        ])  # fmt: skip

    return build


MODELS: dict[str, Case] = {
    "sage": Case(_two(pyg.SAGEConv)),
    "sage_max": Case(_two(lambda i, o: pyg.SAGEConv(i, o, aggr="max"))),
    "gcn": Case(lambda f, c: pyg.GCN(f, 8, 2, c), weighted=True, replaces_loops=True),
    "gat": Case(_two(lambda i, o: pyg.GATConv(i, o, heads=2, concat=False))),
    "gatv2": Case(_two(lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False))),
    "transformer": Case(_two(pyg.TransformerConv)),
    "edge": Case(_two(lambda i, o: pyg.EdgeConv(torch.nn.Linear(2 * i, o), aggr="max"))),
    "softmax": Case(_two(lambda i, o: pyg.GENConv(i, o, num_layers=1, norm=None))),
    "twice": Case(Twice),
    "by_source": Case(BySource),
}


# Values that stay -------------------------------------------------------------------------------


def _constant(group: Group, model: str, graphs: list[str], schedules: list[str]) -> None:
    for graph in graphs:
        settings = [Setting(s, 1 << 20, group.size) for s in schedules]
        settings.append(Setting(schedules[-1], 100, group.size + 1, empty_part=True))
        check_contract(group, MODELS[model], graph, settings, steps=4)


@pytest.mark.parametrize(
    ("model", "size"), [*((name, 3) for name in MODELS), ("gat", 2), ("sage", 4)]
)
def test_what_does_not_change_is_exact_however_old(model: str, size: int) -> None:
    run_ranks(_constant, size, model, ["multigraph"], ["delayed:1", "delayed:3"])


def _constant_placed(group: Group, model: str, placements: list[str]) -> None:
    for placement in placements:
        setting = Setting("delayed:2", 200, group.size, placement=placement)
        check_contract(group, MODELS[model], "multigraph", [setting], steps=3)


@pytest.mark.parametrize("model", ["sage", "sage_max", "gcn", "gat", "gatv2", "edge", "softmax"])
def test_rows_go_stale_under_every_placement(model: str) -> None:
    slices = [] if model in ("edge", "softmax") else ["grid:2x1x2"]
    run_ranks(_constant_placed, 4, model, ["vertex-cut", "grid:2x2x1", *slices])


def _bytes_of_passes(group: Group, model: str, placement: str, schedule: str) -> list[int]:
    parts = named_cut if placement == "vertex-cut" else named_parts
    graph = DistributedGraph.build(
        parts("multigraph", group.size, False), group, schedule, 1 << 20, placement
    )
    torch.manual_seed(0)
    net = fullgraph.convert(MODELS[model].make(graph.num_features, graph.num_classes).double())
    assert graph.x is not None
    x = graph.x.double().requires_grad_()
    found = []
    for _ in range(7):
        graph.traffic.clear()
        fullgraph.cross_entropy(net(x, graph), graph.y, graph.train_mask, group=group).backward()
        found.append(graph.traffic.bytes_sent)
    return found


@pytest.mark.parametrize("placement", ["destination", "vertex-cut", "grid:2x2x1", "grid:2x1x2"])
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_every_row_travels_once_in_r_passes(model: str, placement: str) -> None:
    """Partial results, too; and under `local` nothing does."""
    exact = run_ranks(_bytes_of_passes, 4, model, placement, "oneshot")
    kept = run_ranks(_bytes_of_passes, 4, model, placement, "sequential:remat=off")
    for rank, found in enumerate(run_ranks(_bytes_of_passes, 4, model, placement, "delayed:3")):
        every_pass = exact[rank][1]
        assert every_pass == kept[rank][1]
        assert found[0] >= every_pass
        assert sum(found[1:4]) == sum(found[4:7]) == every_pass
        assert max(found[1:]) < every_pass
    for found in run_ranks(_bytes_of_passes, 4, model, placement, "local"):
        assert found[1:] == [0] * 6


def test_graphs_with_nothing_remote_on_some_rank_or_on_all() -> None:
    rest = [name for name in SMALL if name != "multigraph"]
    for model in ("sage_max", "gat", "edge"):
        run_ranks(_constant, 3, model, rest, ["delayed:2"])


# Values that change, against a simulation ---------------------------------------------------------


class _Mix(torch.autograd.Function):
    """[W, N, F] from rows [N, F]: what every rank takes for the rows of all nodes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, oracle: Oracle, key: str) -> Tensor:
        ctx.oracle, ctx.key = oracle, key
        fresh = rows.detach().expand(oracle.num_ranks, *rows.shape)
        return oracle.seen(f"{key} rows", fresh, ~oracle.owned)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        oracle = ctx.oracle
        seen = oracle.seen(f"{ctx.key} gradients", grads[0], ~oracle.owned, at_once=True)
        return seen.sum(0), None, None


class Oracle:
    """Simulates delayed:r in one process, from the owners and the bins of nodes alone.

    ``owned``: bool [W, N, 1].
    """

    def __init__(self, owner: Tensor, num_ranks: int, r: int) -> None:
        self.num_ranks, self.r = num_ranks, r
        self.owned = torch.stack([owner == p for p in range(num_ranks)]).unsqueeze(2)
        self.bin = bins_of(torch.arange(owner.numel()), r)
        self.last: dict[str, list[Any]] = {}

    def seen(self, key: str, fresh: Tensor, remote: Tensor, at_once: bool = False) -> Tensor:
        """Fresh values [W, N, F], but for remote ones those that travelled last: before this turn,
        or up to it."""
        if key not in self.last:
            self.last[key] = [fresh.clone(), 0]
            return fresh.clone()
        stale, turn = self.last[key]
        travels = self.bin == (turn + 1) % self.r
        arrived = torch.where(travels.view(1, -1, 1), fresh, stale)
        self.last[key] = [arrived, turn + 1]
        return torch.where(remote, arrived if at_once else stale, fresh)

    def mix(self, rows: Tensor, key: str) -> Tensor:
        return _Mix.apply(rows, self, key)

    def join(self, of_ranks: Tensor) -> Tensor:
        """[N, F] of the owners, from [W, N, F]."""
        return (of_ranks * self.owned).sum(0)


def _sage(oracle: Oracle, p: dict[str, Tensor], key: str, x: Tensor, edges: Tensor) -> Tensor:
    seen, n = oracle.mix(x, key), x.shape[0]
    sums = seen.new_zeros(seen.shape).index_add(1, edges[1], seen[:, edges[0]])
    mean = oracle.join(sums) / degree(edges[1], n).clamp(min=1).unsqueeze(1)
    return F.linear(mean, p[f"{key}.lin_l.weight"], p[f"{key}.lin_l.bias"]) + F.linear(
        x, p[f"{key}.lin_r.weight"]
    )


def _gcn(oracle: Oracle, p: dict[str, Tensor], key: str, x: Tensor, edges: Tensor) -> Tensor:
    n = x.shape[0]
    edges = add_remaining_self_loops(edges, num_nodes=n)[0]
    scale = degree(edges[1], n, dtype=x.dtype).rsqrt().unsqueeze(1)
    seen = oracle.mix(x * scale, key)
    sums = seen.new_zeros(seen.shape).index_add(1, edges[1], seen[:, edges[0]])
    return F.linear(oracle.join(sums) * scale, p[f"{key}.lin.weight"], p[f"{key}.bias"])


def _gat(oracle: Oracle, p: dict[str, Tensor], key: str, x: Tensor, edges: Tensor) -> Tensor:
    n = x.shape[0]
    edges = edges[:, edges[0] != edges[1]]
    edges = torch.cat([edges, torch.arange(n).expand(2, n)], dim=1)
    rows = F.linear(x, p[f"{key}.lin.weight"])
    target = (rows * p[f"{key}.att_dst"][0]).sum(1)
    logits = (rows * p[f"{key}.att_src"][0]).sum(1, keepdim=True)
    seen = oracle.mix(torch.cat([rows, logits], 1), key)
    of_ranks = []
    for values in seen:
        logit = F.leaky_relu(values[edges[0], -1] + target[edges[1]], 0.2)
        alpha = softmax(logit, edges[1], num_nodes=n).unsqueeze(1)
        of_ranks.append(torch.zeros_like(rows).index_add(0, edges[1],
                                                        alpha * values[edges[0], :-1]))  # fmt: skip
    return oracle.join(torch.stack(of_ranks)) + p[f"{key}.bias"]


# Layers that widen send their input, so that what travels has no weights in it; GATConv's rows do.
LAYERS = {"sage": (pyg.SAGEConv, _sage), "gcn": (pyg.GCNConv, _gcn), "gat": (pyg.GATConv, _gat)}


class Net(torch.nn.Module):
    def __init__(self, kind: Any, features: int) -> None:
        super().__init__()
        self.one, self.two = kind(features, features + 2), kind(features + 2, features + 3)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        return self.two(self.one(x, edge_index).tanh(), edge_index)


def _follows_oracle(group: Group, layer: str, r: int, block_bytes: int) -> None:
    kind, simulated = LAYERS[layer]
    data = GRAPHS["multigraph"]()
    graph = DistributedGraph.build(
        partitioned(data, group.size), group, f"delayed:{r}", block_bytes
    )
    model = Net(kind, data.x.shape[1]).double()
    theirs = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    model = fullgraph.convert(model)
    oracle = Oracle(torch.arange(data.num_nodes) % group.size, group.size, r)
    all_x = data.x.clone().requires_grad_()
    x = data.x[graph.node_id].clone().requires_grad_()
    for epoch in range(2 * r + 3):
        hidden = simulated(oracle, theirs, "one", all_x, data.edge_index).tanh()
        all_out = simulated(oracle, theirs, "two", hidden, data.edge_index)
        F.cross_entropy(all_out[data.train_mask], data.y[data.train_mask]).backward()
        out = model(x, graph)
        fullgraph.cross_entropy(out, graph.y, graph.train_mask, group=group).backward()
        fullgraph.sum_gradients(model, group)
        assert_same(f"out {epoch}", out.detach(), all_out.detach()[graph.node_id])
        pairs = [(f"{n}.grad {epoch}", p, theirs[n]) for n, p in model.named_parameters()]
        for name, one, other in pairs:
            assert_same(name, one.grad, other.grad)
        assert_same(f"x.grad {epoch}", x.grad, all_x.grad[graph.node_id])
        with torch.no_grad():
            for _, one, other in [*pairs, ("x", x, all_x)]:
                for p in (one, other):
                    p -= 0.5 * p.grad
                    p.grad = None


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_stale_rows_and_gradients_are_those_of_a_simulation(layer: str, size: int) -> None:
    for r, block_bytes in ((1, 1 << 20), (2, 150), (3, 1 << 20)):
        run_ranks(_follows_oracle, size, layer, r, block_bytes)


# Local --------------------------------------------------------------------------------------------


def _without_cut_edges(group: Group, name: str) -> None:
    data = GRAPHS["multigraph"]()
    n, edges = data.num_nodes, data.edge_index
    inside = edges[0] % group.size == edges[1] % group.size
    graph = DistributedGraph.build(partitioned(data, group.size), group, "local")
    features = data.x.shape[1]
    ones = torch.ones(edges.shape[1], dtype=torch.float64)
    kept, weight, args = edges[:, inside], None, {}
    if name == "mean":  # of all in-edges: a sum with weights 1 / degree
        ours, theirs = pyg.GraphConv(features, 9, aggr="mean"), pyg.GraphConv(features, 9)
        weight = (ones / degree(edges[1], n, dtype=ones.dtype)[edges[1]])[inside]
    elif name == "gcn":
        ours = pyg.GCNConv(features, 9)
        theirs = pyg.GCNConv(features, 9, normalize=False, add_self_loops=False)
        looped, _ = add_remaining_self_loops(edges, num_nodes=n)
        scale = degree(looped[1], n, dtype=ones.dtype).rsqrt()
        kept = looped[:, looped[0] % group.size == looped[1] % group.size]
        weight = scale[kept[0]] * scale[kept[1]]
    else:
        ours = {
            "max": lambda: pyg.SAGEConv(features, 9, aggr="max"),
            "gat": lambda: pyg.GATConv(features, 9),
            "transformer": lambda: pyg.TransformerConv(features, 9, heads=3),
            "edge": lambda: pyg.EdgeConv(torch.nn.Linear(2 * features, 9), aggr="max"),
            "gen": lambda: pyg.GENConv(features, 9, num_layers=1, norm=None),
        }[name]()
        theirs = copy.deepcopy(ours)
    whole = copy.deepcopy(ours).double()
    theirs.load_state_dict(ours.state_dict())
    theirs, ours = theirs.double(), fullgraph.convert(ours.double())
    args = {} if weight is None else {"edge_weight": weight}
    all_x = data.x.clone().requires_grad_()
    expected = theirs(all_x, kept, **args)
    expected.square().mean().backward()
    x = data.x[graph.node_id].clone().requires_grad_()
    for of_x in (True, False):
        x.grad = None if of_x else x.grad
        ours.zero_grad()
        out = ours(x if of_x else x.detach(), graph)
        fullgraph.global_mean(out.square(), group=group).backward()
        fullgraph.sum_gradients(ours, group)
        assert_same("out", out.detach(), expected.detach()[graph.node_id])
        assert_same("x.grad", x.grad, all_x.grad[graph.node_id])
        grads = [p.grad for p in theirs.parameters()]
        scale = max(float(grad.abs().max()) for grad in grads)  # some are 0, of terms that cancel
        for (key, p), grad in zip(ours.named_parameters(), grads):
            assert_same(key, p.grad, grad, scale)
        assert graph.traffic.bytes_sent == 0
    with torch.no_grad():
        assert_same("no gradients", ours(x, graph), whole(data.x, edges)[graph.node_id])
    assert_same("eval", ours.eval()(x, graph), whole(data.x, edges)[graph.node_id])
    assert graph.traffic.bytes_sent > 0


@pytest.mark.parametrize("name", ["mean", "gcn", "max", "gat", "transformer", "edge", "gen"])
def test_local_is_pyg_without_cut_edges_and_with_global_degrees(name: str) -> None:
    for size in (2, 3):
        run_ranks(_without_cut_edges, size, name)


# Evaluation, static features, checkpoints, bytes --------------------------------------------------


def _net(group: Group, schedule: str, wire: str = "float32") -> tuple[Any, DistributedGraph]:
    graph = DistributedGraph.build(
        named_parts("multigraph", group.size, False), group, schedule, wire=wire
    )
    torch.manual_seed(0)
    return fullgraph.convert(pyg.GAT(6, 8, 3, 3, heads=2, dropout=0.5).double()), graph


def _train(model: Any, graph: DistributedGraph, epochs: int, between: Any = None) -> list[Tensor]:
    losses = []
    model.train()
    for _ in range(epochs):
        out = model(graph.x.clone(), graph)
        loss = fullgraph.cross_entropy(out, graph.y, graph.train_mask, group=graph.group)
        if between is not None:
            between()
        model.zero_grad()
        loss.backward()
        fullgraph.sum_gradients(model, graph.group)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        losses.append(loss.detach())
    return losses


def _evaluation_is_apart(group: Group, schedule: str) -> None:
    model, graph = _net(group, schedule)
    expected = _train(model, graph, 6)
    model, graph = _net(group, schedule)
    whole = graph.with_schedule("oneshot")

    def between() -> None:
        before = graph.stale.state_dict()
        model.eval()
        results = []
        for g in (graph, whole):
            x = g.x.clone().requires_grad_()
            out = model(x, g)
            model.zero_grad()
            fullgraph.global_mean(out.square(), group=group).backward()
            with torch.no_grad():
                again = model.train()(x, g)
                model.dropout_step -= 1
                model.eval()
            results.append((out.detach(), x.grad, again))
        model.train()
        for one, other in zip(*results):
            assert torch.equal(one, other)
        after = graph.stale.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)

    assert torch.equal(torch.stack(_train(model, graph, 6, between)), torch.stack(expected))


@pytest.mark.parametrize("schedule", ["delayed:2", "local"])
def test_evaluation_is_exact_and_leaves_training_alone(schedule: str) -> None:
    run_ranks(_evaluation_is_apart, 3, schedule)


def _own_features(group: Group, schedule: str) -> None:
    graph = DistributedGraph.build(named_parts("multigraph", group.size, False), group, schedule)
    conv = fullgraph.convert(pyg.SAGEConv(6, 8).double())
    whole = graph.with_schedule("oneshot")
    assert torch.equal(conv(graph.x, graph), conv(graph.x.clone(), whole))
    assert not graph.stale.state_dict()


@pytest.mark.parametrize("schedule", ["delayed:3", "local"])
def test_what_is_computed_once_from_the_graphs_features_is_exact(schedule: str) -> None:
    run_ranks(_own_features, 3, schedule)


def _resumed(group: Group) -> None:
    model, graph = _net(group, "delayed:3")
    _train(model, graph, 4)
    weights, step = copy.deepcopy(model.state_dict()), model.dropout_step
    state = graph.stale.state_dict()
    expected = _train(model, graph, 5)
    model, graph = _net(group, "delayed:3")
    model.load_state_dict(weights)
    model.dropout_step = step
    graph.stale.load_state_dict(state)
    assert torch.equal(torch.stack(_train(model, graph, 5)), torch.stack(expected))
    with pytest.raises(ValueError, match="not the stale rows"):
        graph.stale.load_state_dict({"x": torch.zeros(1)})
    # What does not fit is as if it were not there: the next pass is exact.
    model, graph = _net(group, "delayed:2")
    graph.stale.load_state_dict(state)
    exact, whole = _net(group, "oneshot")
    assert torch.equal(_train(model, graph, 1)[0], _train(exact, whole, 1)[0])


def test_training_goes_on_bit_for_bit_from_saved_stale_rows() -> None:
    run_ranks(_resumed, 3)


def _bytes_by_epoch(group: Group, schedule: str, epochs: int, wire: str = "float32") -> list[int]:
    model, graph = _net(group, schedule, wire)
    found = []
    for _ in range(epochs):
        graph.traffic.clear()
        _train(model, graph, 1)
        found.append(graph.traffic.bytes_sent)
    return found


@pytest.mark.parametrize("r", [1, 3])
def test_every_remote_row_travels_once_in_r_epochs(r: int) -> None:
    whole = [by_epoch[0] for by_epoch in run_ranks(_bytes_by_epoch, 3, "oneshot", 1)]
    for rank, by_epoch in enumerate(run_ranks(_bytes_by_epoch, 3, f"delayed:{r}", 2 * r + 1)):
        assert by_epoch[0] == whole[rank] > 0
        for first in range(1, r + 2):
            assert sum(by_epoch[first : first + r]) == whole[rank]


def _two_models(group: Group) -> None:
    expected = []
    for seed in (1, 2):
        model, graph = _net(group, "delayed:2")
        torch.nn.init.normal_(model.convs[0].lin.weight, generator=torch.manual_seed(seed))
        expected.append(_train(model, graph, 4))
    pair, (_, graph) = [_net(group, "delayed:2")[0] for _ in range(2)], _net(group, "delayed:2")
    for seed, model in enumerate(pair, 1):
        torch.nn.init.normal_(model.convs[0].lin.weight, generator=torch.manual_seed(seed))
    found = [[_train(model, graph, 1)[0] for model in pair] for _ in range(4)]
    assert [list(losses) for losses in zip(*found)] == expected


def test_two_models_on_one_graph_keep_rows_of_their_own() -> None:
    run_ranks(_two_models, 2)


# Typed graphs and layers of for_seeds -------------------------------------------------------------


def _steps(model: Any, xs: list[Tensor], graph: Any, group: Group) -> list[Tensor]:
    """Results and gradients of three steps with the same weights."""
    found = []
    for _ in range(3):
        model.zero_grad()
        for x in xs:
            x.grad = None
        outs = model(*xs, graph)
        loss = sum(fullgraph.global_mean(o.square(), group=group) for o in outs if o.shape[1])
        loss.backward()
        found += [*(o.detach() for o in outs), *(x.grad.clone() for x in xs)]
    return found


class Typed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        keys = [("author", "writes", "paper"), ("paper", "cites", "paper"), ONE_PART]
        self.names = ("paper", "author", "tag")
        self.tags = torch.nn.Linear(5, 4)
        self.one = pyg.HeteroConv({
            keys[0]: pyg.SAGEConv((3, 5), 6), keys[1]: pyg.GATConv(5, 6, add_self_loops=False),
            keys[2]: pyg.SAGEConv((4, 5), 6, aggr="max"),
            ("paper", "rev_writes", "author"): pyg.GraphConv((5, 3), 6),
        })  # fmt: skip
        self.two = pyg.HeteroConv({keys[0]: pyg.SAGEConv(6, 3), keys[1]: pyg.SAGEConv(6, 3)})

    def forward(self, paper: Tensor, author: Tensor, tag: Tensor, edges: Any) -> list[Tensor]:
        x = self.one({"paper": paper, "author": author, "tag": tag}, edges)
        return [self.two({k: v.tanh() for k, v in x.items()}, edges)["paper"]]


def _typed(group: Group) -> None:
    hetero = fullgraph.DistributedHeteroGraph.build(typed_parts(group.size), group, "delayed:2")
    torch.manual_seed(0)
    model = fullgraph.convert(Typed().double())
    g = torch.Generator().manual_seed(group.rank)
    widths = {"paper": 5, "author": 3, "tag": 4}
    xs = [torch.randn(hetero[t].num_owned, w, generator=g, dtype=torch.float64).requires_grad_()
          for t, w in widths.items()]  # fmt: skip
    stale = _steps(model, xs, hetero.edge_index_dict, group)
    assert hetero.stale.state_dict()
    whole = _steps(model, xs, hetero.with_schedule("oneshot").edge_index_dict, group)
    for one, other in zip(stale, whole):
        assert_same("typed", one, other)
    left = _steps(model, xs, hetero.with_schedule("local").edge_index_dict, group)
    assert not torch.equal(left[0], whole[0])


def test_typed_graphs_take_stale_rows() -> None:
    run_ranks(_typed, 3)


class OfSeeds(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = pyg.GAT(6, 8, 2, 3, heads=2)

    def forward(self, x: Tensor, graph: Any) -> list[Tensor]:
        return [self.net(x, graph)]


def _seeds(group: Group) -> None:
    graph = DistributedGraph.build(named_parts("multigraph", group.size, False), group, "delayed:2")
    torch.manual_seed(0)
    model = fullgraph.convert(OfSeeds().double())
    layers = graph.for_seeds(graph.node_id % 7 == 3, 2)
    x = layers.x.clone().requires_grad_()
    stale = _steps(model, [x], layers, group)
    assert graph.stale.state_dict()
    graph.traffic.clear()
    _steps(model, [x], layers, group)
    sent = graph.traffic.bytes_sent
    layers = graph.with_schedule("oneshot").for_seeds(graph.node_id % 7 == 3, 2)
    graph.traffic.clear()
    whole = _steps(model, [x], layers, group)
    assert sent < 0.75 * graph.traffic.bytes_sent
    for one, other in zip(stale, whole):
        assert_same("seeds", one, other)


def test_layers_of_for_seeds_take_stale_rows() -> None:
    run_ranks(_seeds, 3)


# Bins and names -----------------------------------------------------------------------------------


def test_bins_are_even_and_depend_on_the_id_alone() -> None:
    ids = torch.randperm(100_000)
    for r in (1, 2, 5, 64):
        bins = bins_of(ids, r)
        counts = torch.bincount(bins, minlength=r)
        assert counts.numel() == r
        assert counts.max() < 1.2 * counts.min()
        assert torch.equal(bins_of(ids[:10], r), bins[:10])
    assert bins_of(torch.tensor([2**40, 2**47]), 7).min() >= 0


def test_names_and_errors() -> None:
    assert Schedule.parse("delayed:5") == delayed(5) == fullgraph.delayed(5)
    assert Schedule.parse("local") == local() == fullgraph.local()
    assert not delayed(2).exact
    assert not local().exact
    assert str(delayed(12)) == "delayed:12"
    for bad in ("delayed:0", "delayed:-1", "delayed", "delayed:", "delayed:1.5", "delayed:x"):
        with pytest.raises(ValueError, match="whole number r of 1 or more"):
            Schedule.parse(bad)
    for wrong in (0, -2, 1.5, True):
        with pytest.raises(ValueError, match="whole number r of 1 or more"):
            delayed(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'delayed:r' or 'local'"):
        Schedule.parse("local:1")
