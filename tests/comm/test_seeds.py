"""Layers for seeds: the seeds' results and gradients are the whole graph's, from fewer rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.ops.aggregate import aggregate
from fullgraph.ops.edges import sum_to_targets
from tests.contract import assert_same
from tests.graphs import named, named_parts
from tests.ranks import run_ranks

GRAPHS = ["multigraph", "tiny", "no_edges", "one_source_part"]
SEEDS = ["few", "one", "a_rank", "all"]
SIZES = [1, 2, 3, 4]


def _seeds(data: Data, which: str, size: int) -> Tensor:
    """bool [N]; parts are node ids modulo the number of ranks."""
    ids = torch.arange(data.num_nodes)
    return {
        "few": (ids % 17 == 1) | (ids == data.num_nodes - 1),
        "one": ids == 2,
        "a_rank": ids % size == size - 1,
        "all": ids >= 0,
    }[which]


def _graph(group: Group, name: str, schedule: str = "sequential") -> DistributedGraph:
    parts = named_parts(name, group.size, False)
    return DistributedGraph.build(parts, group, schedule, max_block_bytes=100)


def _parameters(data: Data, num_layers: int) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(5)
    widths = [data.num_features, *[5] * (num_layers - 1), int(data.y.max()) + 1]
    return [
        tuple(
            torch.randn(a, b, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2)
        )
        for a, b in pairwise(widths)
    ]


def _neighbours(data: Data, x: Tensor, reduce: str, weight: Tensor) -> Tensor:
    """[N, F]: what the in-edges bring to every node, by plain torch."""
    src, dst = data.edge_index
    messages = x[src] if reduce == "mean" else x[src] * weight[:, None]
    index = dst[:, None].expand_as(messages)
    how = {"mean": "mean", "sum": "sum", "max": "amax"}[reduce]
    return torch.zeros_like(x).scatter_reduce(0, index, messages, how, include_self=False)


def _whole(data: Data, seeds: Tensor, num_layers: int, reduce: str) -> dict[str, Tensor]:
    """Loss and gradients, from the whole graph."""
    x, weight = data.x.clone().requires_grad_(), data.edge_weight.clone().requires_grad_()
    parameters = _parameters(data, num_layers)
    h = x
    for k, (root, other) in enumerate(parameters):
        h = h.relu() if k else h
        h = h @ root + _neighbours(data, h, reduce, weight) @ other
    loss = F.cross_entropy(h[seeds], data.y[seeds])
    loss.backward()
    return _results(loss, x, weight, parameters)


def _results(
    loss: Tensor, x: Tensor, weight: Tensor, parameters: list[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    leaves = {"x": x, "weight": weight}
    leaves |= {f"W{k}{j}": w for k, pair in enumerate(parameters) for j, w in enumerate(pair)}
    grads = {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in leaves.items()}
    return {"loss": loss.detach(), **grads}


def _ours(
    group: Group, name: str, which: str, num_layers: int, reduce: str, schedule: str
) -> dict[str, Tensor]:
    data = named(name)
    graph = _graph(group, name, schedule)
    mask = _seeds(data, which, group.size)[graph.node_id]
    layers = graph.for_seeds(mask, num_layers)
    assert len(layers) == num_layers
    x, weight = graph.x.clone().requires_grad_(), graph.edge_weight.clone().requires_grad_()
    parameters = _parameters(data, num_layers)
    h = x[layers.rows]
    for k, (g, (root, other)) in enumerate(zip(layers, parameters)):
        h = h.relu() if k else h
        w = None if reduce == "mean" else g.from_base_edges(weight)
        h = h[g.target_rows] @ root + aggregate(g, h, reduce, weight=w) @ other
    loss = fullgraph.cross_entropy(h, layers.y, group=group)
    loss.backward()
    for pair in parameters:
        for w in pair:
            w.grad = torch.zeros_like(w) if w.grad is None else w.grad
            group.all_reduce(w.grad, "gradients")
    assert torch.equal(layers.seed_rows, mask.nonzero().view(-1))
    assert torch.equal(layers.node_id, graph.node_id[mask])
    assert torch.equal(layers.masks["train"], graph.train_mask[mask])
    return {"id": graph.node_id, "edge": graph.edge_id, **_results(loss, x, weight, parameters)}


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _check(
    group: Group, name: str, reductions: list[str], schedules: list[str], depths: list[int]
) -> None:
    data = named(name)
    for which in SEEDS:
        seeds = _seeds(data, which, group.size)
        if not seeds.any():
            continue
        for num_layers in depths:
            for reduce in reductions:
                expected = _whole(data, seeds, num_layers, reduce)
                for schedule in schedules:
                    ours = _ours(group, name, which, num_layers, reduce, schedule)
                    where = {"x": ours.pop("id"), "weight": ours.pop("edge")}
                    for key, value in ours.items():
                        reference = expected[key]
                        reference = reference[where[key]] if key in where else reference
                        what = f"{which}, {num_layers} layers, {reduce}, {schedule}: {key}"
                        assert_same(what, value, reference, scale=_largest(expected[key]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GRAPHS)
def test_loss_and_gradients_are_those_of_the_whole_graph(name: str, size: int) -> None:
    run_ranks(_check, size, name, ["mean"], ["sequential", "oneshot"], [1, 2, 3])


@pytest.mark.parametrize("size", [1, 3])
def test_weighted_sums_and_maxima_too(size: int) -> None:
    schedules = ["sequential", "sequential:remat=off", "oneshot"]
    run_ranks(_check, size, "multigraph", ["sum", "max"], schedules, [2])


def _levels(data: Data, seeds: Tensor, num_layers: int) -> list[set[int]]:
    """The nodes that go into each layer, and the seeds, by walking edges backwards."""
    pairs = data.edge_index.T.tolist()
    levels = [set(seeds.nonzero().view(-1).tolist())]
    for _ in range(num_layers):
        levels.append(levels[-1] | {u for u, v in pairs if v in levels[-1]})
    return levels[::-1]


def _members(group: Group, name: str, which: str) -> list:
    """What the layers of this rank hold, after checks of what a rank can see by itself."""
    data, graph = named(name), _graph(group, name)
    layers = graph.for_seeds(_seeds(data, which, group.size)[graph.node_id], 3)
    seen = []
    for k, g in enumerate(layers):
        owned, targets = graph.node_id[g.source_rows], g.source_rows[g.target_rows]
        assert g.base is graph
        assert torch.equal(g.node_id, graph.node_id[targets])
        assert torch.equal(g.in_degree, graph.in_degree[targets])
        assert torch.equal(data.edge_index[1][g.edge_id], g.node_id[g.edge_target.long()])
        assert torch.equal(g.edge_weight, data.edge_weight[g.edge_id])
        assert g.edge_attr is None
        assert torch.equal(g.y, graph.y[targets])
        assert g.num_local_edges == g.edge_id.numel()
        assert (g.num_sources, g.num_owned) == layers.num_rows[k : k + 2]
        if k:
            assert torch.equal(layers[k - 1].node_id, owned)
        src = data.edge_index[0][g.edge_id]
        remote = src[~torch.isin(src, graph.node_id)].unique().numel()
        assert sum(g.plan.num_needed) == remote  # and nothing more is fetched
        seen.append((owned.tolist(), g.node_id.tolist(), g.edge_id.tolist()))
    assert layers[0].x is layers.x
    assert torch.equal(layers.x, graph.x[layers.rows])
    assert layers[1:] == layers.layers[1:]
    with pytest.raises(ValueError, match="computes some rows only"):
        layers[0].gather(layers[0].node_id)
    with pytest.raises(ValueError, match="is a layer already"):
        layers[0].for_seeds(layers[0].train_mask, 1)
    return [seen, layers.total_rows]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_layer_holds_the_nodes_and_edges_that_it_should(name: str, size: int) -> None:
    data = named(name)
    for which in SEEDS:
        seeds = _seeds(data, which, size)
        if not seeds.any():
            continue
        found = run_ranks(_members, size, name, which)
        levels = _levels(data, seeds, 3)
        for k in range(3):
            sources, targets, edges = (
                sorted(i for seen, _ in found for i in seen[k][kind]) for kind in range(3)
            )
            assert sources == sorted(levels[k]), which
            assert targets == sorted(levels[k + 1]), which
            into = [e for e, v in enumerate(data.edge_index[1].tolist()) if v in levels[k + 1]]
            assert edges == into, which
        assert all(total == tuple(len(level) for level in levels) for _, total in found)


def _gcn(group: Group, loops_first: bool) -> dict[str, Tensor]:
    data, graph = named("multigraph"), _graph(group, "multigraph")
    looped = graph.with_self_loops()
    looped_weight = graph.extend_to_self_loops(graph.edge_weight, 1.0)
    scale_of_rows = sum_to_targets(looped, looped_weight).pow(-0.5)
    base = looped if loops_first else graph
    layers = base.for_seeds(_seeds(data, "few", group.size)[graph.node_id], 2)
    x, parameters = graph.x.clone().requires_grad_(), _parameters(data, 2)
    h = x[layers.rows]
    for k, (g, (w, _)) in enumerate(zip(layers, parameters)):
        h = h.relu() if k else h
        if loops_first:
            weight = g.from_base_edges(looped_weight)
        else:
            weight = g.extend_to_self_loops(g.edge_weight, 1.0)
        g_looped = g.with_self_loops()
        assert g_looped.with_self_loops() is g_looped
        assert g_looped.edge_id.unique().numel() == g_looped.num_local_edges
        with pytest.raises(ValueError, match="have self-loops added"):
            _ = g_looped.edge_weight
        scale = scale_of_rows[g.source_rows]
        h = aggregate(
            g_looped, h @ w, weight=weight, source_scale=scale, target_scale=scale[g.target_rows]
        )
    loss = fullgraph.cross_entropy(h, layers.y, group=group)
    loss.backward()
    for w, _ in parameters:
        group.all_reduce(w.grad, "gradients")
    return {"loss": loss.detach(), "id": graph.node_id, "x": x.grad,
            "W": torch.cat([w.grad.view(-1) for w, _ in parameters])}  # fmt: skip


@pytest.mark.parametrize("loops_first", [True, False])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_gcn_normalisation_is_by_the_degrees_of_the_whole_graph(
    size: int, loops_first: bool
) -> None:
    data = named("multigraph")
    index, weight = gcn_norm(data.edge_index, data.edge_weight, data.num_nodes)
    looped = Data(edge_index=index)
    x, parameters = data.x.clone().requires_grad_(), _parameters(data, 2)
    h = x
    for k, (w, _) in enumerate(parameters):
        h = _neighbours(looped, (h.relu() if k else h) @ w, "sum", weight)
    seeds = _seeds(data, "few", size)
    loss = F.cross_entropy(h[seeds], data.y[seeds])
    loss.backward()
    for ours in run_ranks(_gcn, size, loops_first):
        assert_same("loss", ours["loss"], loss.detach())
        assert_same("x", ours["x"], x.grad[ours["id"]], scale=float(x.grad.abs().max()))
        assert_same("W", ours["W"], torch.cat([w.grad.view(-1) for w, _ in parameters]))


def _kept(group: Group) -> None:
    graph = _graph(group, "multigraph")
    layers = graph.for_seeds(graph.train_mask, 2)
    first = aggregate(layers[0], layers.x, "mean")
    moved = sum(graph.traffic.received.values())
    assert aggregate(layers[0], layers.x, "mean") is first
    assert sum(graph.traffic.received.values()) == moved
    with torch.inference_mode():
        made = graph.for_seeds(graph.train_mask, 2)
    assert not made.x.is_inference()
    assert torch.equal(made.to("cpu").rows, layers.rows)
    assert torch.equal(made.to("cpu")[0].edge_id, layers[0].edge_id)


@pytest.mark.parametrize("size", [1, 2])
def test_the_graphs_own_features_are_aggregated_once(size: int) -> None:
    run_ranks(_kept, size)


def _refused(group: Group) -> list[str]:
    graph = _graph(group, "multigraph")
    none = torch.zeros(graph.num_owned, dtype=torch.bool)
    last = group.rank == group.size - 1
    said = []
    for mask, num_layers in (
        (none, 2),
        (none[1:] if last else ~none, 2),
        (~none, 0),
        (~none, 1 + last),
    ):
        with pytest.raises(ValueError, match=r"mask|num_layers") as raised:
            graph.for_seeds(mask, num_layers)
        said.append(str(raised.value))
    return said


def test_every_rank_refuses_what_one_cannot_use() -> None:
    for said in run_ranks(_refused, 2):
        assert "no seed on any rank" in said[0]
        assert "not on rank(s) [1]" in said[1]
        assert "got [0, 0]" in said[2]
        assert "got [1, 2]" in said[3]
