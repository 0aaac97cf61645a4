"""Every layer × schedule × number of ranks × graph through the contract of tests/contract.py."""

from __future__ import annotations

from unittest import mock

import pytest
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn

from fullgraph.comm import distributed
from fullgraph.comm.group import Group
from tests.contract import SCHEDULES, Case, Setting, check_contract
from tests.graphs import GRAPHS
from tests.ranks import run_ranks


class TwoConvs(nn.Module):
    """A conv, ReLU, another conv: the shape of most scripts."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv1, conv2

    def forward(self, x, edge_index, **kwargs):
        return self.conv2(F.relu(self.conv1(x, edge_index, **kwargs)), edge_index, **kwargs)


class Propagated(nn.Module):
    """A linear layer, then propagation: APPNP's shape."""

    def __init__(self, features: int, classes: int, **kwargs) -> None:
        super().__init__()
        self.lin, self.prop = nn.Linear(features, classes), pyg.APPNP(K=3, alpha=0.2, **kwargs)

    def forward(self, x, edge_index, **kwargs):
        return self.prop(self.lin(x), edge_index, **kwargs)


def two(conv, weighted=False, hidden=5, **kwargs) -> Case:
    def make(f: int, c: int) -> nn.Module:
        return TwoConvs(conv(f, hidden, **kwargs), conv(hidden, c, **kwargs))

    loops = conv is pyg.GCNConv and kwargs.get("add_self_loops", kwargs.get("normalize", True))
    return Case(make, weighted, loops)


def gin(f: int, c: int, **kwargs) -> nn.Module:
    mlp1 = pyg.MLP([f, 5, 5], norm="batch_norm")
    mlp2 = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, c))
    return TwoConvs(pyg.GINConv(mlp1, **kwargs), pyg.GINConv(mlp2, **kwargs))


CASES = {
    "gcn": two(pyg.GCNConv),
    "gcn_wide": two(pyg.GCNConv, hidden=9),
    "gcn_weighted": two(pyg.GCNConv, weighted=True),
    "gcn_cached": two(pyg.GCNConv, cached=True),
    "gcn_improved_weighted": two(pyg.GCNConv, weighted=True, improved=True),
    "gcn_improved": two(pyg.GCNConv, improved=True),
    "gcn_without_loops": two(pyg.GCNConv, add_self_loops=False),
    "gcn_without_loops_weighted": two(pyg.GCNConv, weighted=True, add_self_loops=False),
    "gcn_unnormalized": two(pyg.GCNConv, weighted=True, normalize=False, bias=False),
    "gcn_mean": two(pyg.GCNConv, aggr="mean"),
    "gcn_max": two(pyg.GCNConv, aggr="max", weighted=True),
    "sage_mean": two(pyg.SAGEConv),
    "sage_mean_wide": two(pyg.SAGEConv, hidden=9),
    "sage_sum": two(pyg.SAGEConv, aggr="sum"),
    "sage_max": two(pyg.SAGEConv, aggr="max"),
    "sage_min": two(pyg.SAGEConv, aggr="min"),
    "sage_project": two(pyg.SAGEConv, project=True),
    "sage_max_project": two(pyg.SAGEConv, aggr="max", project=True),
    "sage_normalize": two(pyg.SAGEConv, normalize=True),
    "sage_without_root": two(pyg.SAGEConv, root_weight=False, bias=False),
    "graph_add": two(pyg.GraphConv, weighted=True),
    "graph_mean": two(pyg.GraphConv, weighted=True, aggr="mean"),
    "graph_max": two(pyg.GraphConv, weighted=True, aggr="max"),
    "graph_min": two(pyg.GraphConv, aggr="min", bias=False),
    "gin": Case(gin),
    "gin_eps_mean": Case(lambda f, c: gin(f, c, train_eps=True, eps=0.3, aggr="mean")),
    "gin_max": Case(lambda f, c: gin(f, c, aggr="max")),
    "sgc": Case(lambda f, c: pyg.SGConv(f, c, K=2)),
    "sgc_wide_weighted": Case(lambda f, c: pyg.SGConv(f, 9, K=3, add_self_loops=False), True),
    "appnp": Case(Propagated),
    "appnp_weighted": Case(Propagated, weighted=True, replaces_loops=True),
    "appnp_unnormalized": Case(lambda f, c: Propagated(f, c, normalize=False), weighted=True),
    "model_gcn": Case(lambda f, c: pyg.GCN(f, 5, 3, c, norm="batch_norm"), True, True),
    "model_sage_jk": Case(lambda f, c: pyg.GraphSAGE(f, 5, 3, c, norm="LayerNorm",
                                                norm_kwargs={"mode": "node"}, jk="cat")),
    "model_gin": Case(lambda f, c: pyg.GIN(f, 5, 2, c, norm="batch_norm", jk="max")),
    "layer_norm": Case(lambda f, c: pyg.Sequential("x, edge_index", [
        (pyg.SAGEConv(f, 4), "x, edge_index -> x"), (pyg.LayerNorm(4, mode="node"), "x -> x"),
        nn.ELU(), (pyg.SAGEConv(4, c), "x, edge_index -> x"),
    ])),
}  # fmt: skip


# On how many of the schedules a graph is run, for how many steps, and the bytes of a message: so
# few that most blocks take several.
RUNS = {
    "multigraph": (4, 2, 300),
    "tiny": (1, 2, 300),
    "no_edges": (1, 1, 300),
    "one_source_part": (2, 1, 100),
    "citeseer": (2, 1, 20_000),
}
REAL_ON = (1, 3)  # numbers of ranks; it is by far the largest graph


def settings(size: int, graph: str, name: str) -> list[Setting]:
    """Schedules, each with one of: more parts than ranks, as many, one of them empty.

    The multigraph has every schedule. Which layouts go with which schedules there, and which
    schedules the other graphs have, turns with the case, the graph and the number of ranks, so
    that over the whole test each meets each.
    """
    layouts = [(max(size, 4), False), (size, False), (5, True)]
    count, _, block_bytes = RUNS[graph]
    first = size + [*GRAPHS].index(graph) + [*CASES].index(name)
    return [
        Setting(
            schedule := SCHEDULES[k % 4],
            1 << 25 if schedule == "oneshot" else block_bytes,
            *layouts[k % 3],
        )
        for k in range(first, first + count)
    ]


def check_case(group: Group, name: str) -> None:
    for graph in GRAPHS:
        if graph == "citeseer" and group.size not in REAL_ON:
            continue
        try:
            check_contract(
                group, CASES[name], graph, settings(group.size, graph, name), RUNS[graph][1]
            )
        except AssertionError as error:
            raise AssertionError(f"{name} on {error}") from None


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_case_meets_every_schedule_and_every_graph_all_of_them(size: int) -> None:
    for name in CASES:
        assert {s.schedule for s in settings(size, "multigraph", name)} == {*SCHEDULES}
    for graph in GRAPHS:
        met = {
            (s.schedule, s.num_parts, s.empty_part)
            for name in CASES
            for s in settings(size, graph, name)
        }
        layouts = {(parts, empty) for _, parts, empty in met}
        assert met == {(s, *layout) for s in SCHEDULES for layout in layouts}, graph
        assert layouts == {(max(size, 4), False), (size, False), (5, True)}, graph


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_equals_pyg_in_one_process(name: str, size: int) -> None:
    run_ranks(check_case, size, name)


def _wrong_gradient(group: Group, kind: str) -> None:
    """The contract on operators broken on purpose."""
    from fullgraph.ops import aggregate as module

    right = module.send_to_sources
    if kind == "drop remote gradients":
        module.send_to_sources = lambda graph, dx, fill, *, layer, writes: fill(
            own := graph.edges.blocks[graph.group.rank], own.whole, dx[0]
        )
    try:
        check_contract(group, CASES["sage_sum"], "multigraph", [Setting("sequential", 200, 2)])
    finally:
        module.send_to_sources = right


def test_contract_sees_a_gradient_that_stays_away() -> None:
    run_ranks(_wrong_gradient, 2, "nothing")
    with pytest.raises(AssertionError, match=r"step 0, x\.grad: Tensor-likes are not close"):
        run_ranks(_wrong_gradient, 2, "drop remote gradients")


LARGER = {name: CASES[name] for name in ("sage_mean", "gcn_weighted", "graph_max", "sage_min")} | {
    "gat": two(pyg.GATConv, heads=2, concat=False),
    "gatv2": two(pyg.GATv2Conv, heads=2, concat=False),
    "transformer": two(pyg.TransformerConv, heads=2, concat=False),
}


def _larger_messages(group: Group, name: str) -> None:
    with mock.patch.object(distributed, "SMALL_MESSAGE_BYTES", 1):
        usual = Setting("sequential", 1 << 25, group.size)
        graph = usual.build("multigraph", group)
        assert graph.rows_of_message(8) < graph.rows_of_message(8, recorded=True)
        kept = Setting("sequential:remat=off", 1 << 25, 5, True)
        check_contract(group, LARGER[name], "multigraph", [usual, kept])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", LARGER)
def test_messages_are_larger_in_a_forward_pass_that_is_recorded(name: str, size: int) -> None:
    run_ranks(_larger_messages, size, name)
