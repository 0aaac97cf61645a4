"""PyG's ready-made models, and those that propagate labels or take them as features."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.contract import Case, Setting, assert_same, check_contract
from tests.graphs import multigraph, named, named_parts, partitioned
from tests.ranks import run_ranks

# Ready-made models ---------------------------------------------------------------------------


class Deep(nn.Module):
    """DeepGCN layers of one kind between an encoder and a decoder."""

    def __init__(self, features: int, classes: int, block: str, norm: type[nn.Module]) -> None:
        super().__init__()
        width = [4, 8] if block == "dense" else [4, 4]  # dense: the input stays beside the output
        self.encode, self.decode = nn.Linear(features, 4), nn.Linear(2 * width[1], classes)
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                pyg.SAGEConv(w, w), norm(w), nn.ELU(), block=block, dropout=0.0, ckpt_grad=False
            )
            for w in width
        )
        if block != "dense":
            self.decode = nn.Linear(4, classes)

    def forward(self, x: Tensor, edge_index: object) -> Tensor:
        x = self.encode(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.decode(x)


def deep(block: str, norm: type[nn.Module]) -> Case:
    return Case(lambda f, c: Deep(f, c, block, norm))


MODELS = {
    "gcn_lstm": Case(lambda f, c: pyg.GCN(f, 4, 3, c, norm="GraphNorm", jk="lstm"), True, True),
    "sage_max": Case(lambda f, c: pyg.GraphSAGE(f, 5, 3, c, norm="PairNorm", jk="max",
                                                norm_kwargs={"scale_individually": True},
                                                act_first=True)),
    "gin_cat": Case(lambda f, c: pyg.GIN(f, 5, 2, c, norm="LayerNorm", act="elu", jk="cat")),
    "gcn_last": Case(lambda f, c: pyg.GCN(f, 5, 2, c, norm="InstanceNorm", jk="last",
                                          act_first=True,
                                          norm_kwargs={"track_running_stats": True})),
    "sage_groups": Case(lambda f, c: pyg.GraphSAGE(f, 5, 2, c, norm="DiffGroupNorm",
                                                   norm_kwargs={"groups": 3, "lamda": 0.5})),
    "gat": Case(lambda f, c: pyg.GAT(f, 4, 2, c, heads=2, norm="GraphNorm", jk="cat")),
    "edge_cnn": Case(lambda f, c: pyg.EdgeCNN(f, 4, 2, c, norm="BatchNorm", act_first=True)),
    "pna": Case(lambda f, c: pyg.PNA(f, 4, 2, c, norm="BatchNorm", aggregators=["mean", "std"],
                                     scalers=["identity", "amplification"],
                                     deg=torch.tensor([1, 4, 9, 5]))),
    "deep_res+": deep("res+", pyg.GraphNorm),
    "deep_res": deep("res", nn.LayerNorm),
    "deep_dense": deep("dense", nn.BatchNorm1d),
    "deep_plain": deep("plain", pyg.BatchNorm),
}  # fmt: skip


def _check_models(group: Group) -> None:
    settings = [Setting("sequential", 500, max(group.size, 4)), Setting("oneshot", 500, 5, True)]
    for k, (name, case) in enumerate(MODELS.items(), start=group.size):
        for graph in ("multigraph", "tiny") if group.size > 2 else ("multigraph",):
            try:
                check_contract(group, case, graph, [settings[k % 2 if graph != "tiny" else 0]])
            except AssertionError as error:
                raise AssertionError(f"{name} on {error}") from None


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_models_equal_pyg_in_one_process(size: int) -> None:
    run_ranks(_check_models, size)


def test_a_layer_that_is_to_be_called_again_in_the_backward_pass_is_refused() -> None:
    layer = pyg.DeepGCNLayer(pyg.SAGEConv(4, 4), nn.LayerNorm(4), nn.ReLU(), ckpt_grad=True)
    with pytest.raises(fullgraph.UnsupportedLayerError, match=r"layer '0'.*ckpt_grad=False"):
        fullgraph.convert(nn.Sequential(layer))


# Label propagation ---------------------------------------------------------------------------


def on(group: Group, name: str) -> DistributedGraph:
    parts, empty, schedule = [(5, True, "oneshot"), (max(group.size, 4), False, "sequential")][
        name != "multigraph"
    ]
    return DistributedGraph.build(named_parts(name, parts, empty), group, schedule, 200)


@contextmanager
def float64_by_default() -> Iterator[None]:
    """PyG normalises, and makes labels columns, in the default dtype."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@float64_by_default()
def _label_propagation(group: Group) -> None:
    propagate = pyg.LabelPropagation(num_layers=3, alpha=0.7)
    ours = fullgraph.convert(copy.deepcopy(propagate))
    for name in ("multigraph", "tiny", "no_edges", "one_source_part"):
        data, graph = named(name), on(group, name)
        own, weight, train = graph.node_id, data.edge_weight / 3, data.train_mask
        y = data.y.clone()
        y[0] = 5  # the number of classes is known to one rank only
        for labels, masked, weighted, post_step in (
            (y, False, False, None),
            (y.view(-1, 1), True, True, None),
            (F.one_hot(y), True, False, None),
            (data.x, False, False, lambda rows: rows.softmax(dim=-1)),
        ):
            expected = propagate(
                labels, data.edge_index, train if masked else None, weight if weighted else None,
                post_step,
            )  # fmt: skip
            out = ours(
                labels[own], graph, train[own] if masked else None,
                weight[graph.edge_id] if weighted else None, post_step,
            )  # fmt: skip
            assert not out.requires_grad
            assert_same(f"{name}, {tuple(labels.shape)}, {masked}", out, expected[own])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_label_propagation_equals_pyg(size: int) -> None:
    run_ranks(_label_propagation, size)


@float64_by_default()
def _correct_and_smooth(group: Group) -> None:
    for name in ("multigraph", "tiny", "one_source_part"):
        data, graph = named(name), on(group, name)
        train, y, own = data.train_mask, data.y, graph.node_id
        mask, labels = train[own], y[own][train[own]]
        soft = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(5)).softmax(-1)
        for autoscale, weighted in ((True, False), (True, True), (False, False)):
            model = pyg.CorrectAndSmooth(3, 0.8, 2, 0.6, autoscale=autoscale, scale=1.7)
            ours = fullgraph.convert(copy.deepcopy(model))
            weight = data.edge_weight / 4 if weighted else None
            args = (y[train], train, data.edge_index, weight)
            mine = (labels, mask, graph, weight[graph.edge_id] if weighted else None)
            corrected = model.correct(soft, *args)
            expected = model.smooth(corrected, *args)
            first = ours.correct(soft[own], *mine)
            assert_same(f"{name}, corrected", first, corrected[own])
            assert_same(f"{name}, smoothed", ours.smooth(first, *mine), expected[own])
            assert_same(f"{name}, both", ours(soft[own], *mine), expected[own])
        index, one_hot = mask.nonzero().view(-1), F.one_hot(labels, 3)
        again = ours(soft[own], one_hot.double(), index, *mine[2:])
        assert_same(f"{name}, index and one-hot", again, expected[own])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_correct_and_smooth_equals_pyg(size: int) -> None:
    run_ranks(_correct_and_smooth, size)


def alone() -> DistributedGraph:
    return DistributedGraph.build(partitioned(multigraph(), 2), Group())


def test_unknown_labels_are_rows_of_zeros() -> None:
    graph = alone()
    propagate = fullgraph.convert(pyg.LabelPropagation(2, 0.5))
    y, hidden = graph.y.clone(), torch.arange(50) % 3 == 0
    y[hidden] = -1
    assert torch.equal(propagate(y, graph), propagate(graph.y, graph, mask=~hidden))


def test_labels_that_are_not_this_ranks_are_refused() -> None:
    graph = alone()
    mask, soft = graph.train_mask, torch.zeros(50, 2)
    with pytest.raises(ValueError, match="y must have a label for each of the 50 owned rows"):
        fullgraph.convert(pyg.LabelPropagation(2, 0.5))(graph.y[:7], graph)
    model = fullgraph.convert(pyg.CorrectAndSmooth(2, 0.5, 2, 0.5))
    with pytest.raises(ValueError, match="y_true must have a label for each of the"):
        model.correct(soft, graph.y, mask, graph)
    with pytest.raises(ValueError, match=r"classes of 0 .. 1 .*got values of 0 .. 2"):
        model.smooth(soft, graph.y[mask], mask, graph)
    backwards = pyg.LabelPropagation(2, 0.5)
    backwards.flow = "target_to_source"
    with pytest.raises(fullgraph.UnsupportedLayerError, match="flow='target_to_source'"):
        fullgraph.convert(backwards)

    class Mine(pyg.LabelPropagation):
        pass

    with pytest.raises(fullgraph.UnsupportedLayerError, match="inherits from LabelPropagation"):
        fullgraph.convert(Mine(2, 0.5))


def test_on_a_plain_edge_index_label_models_are_pygs() -> None:
    data = multigraph()
    propagate = pyg.LabelPropagation(3, 0.6)
    expected = propagate(data.y, data.edge_index, data.train_mask)
    converted = fullgraph.convert(copy.deepcopy(propagate))
    for model in (converted, copy.deepcopy(converted)):
        assert torch.equal(model(data.y, data.edge_index, data.train_mask), expected)
    smooth = pyg.CorrectAndSmooth(2, 0.5, 2, 0.5)
    args = (torch.rand(50, 3), data.y[data.train_mask], data.train_mask, data.edge_index)
    assert torch.equal(fullgraph.convert(copy.deepcopy(smooth))(*args), smooth(*args))
    labels = fullgraph.convert(pyg.MaskLabel(3, 4))
    assert not (labels.ratio_mask(data.train_mask, 0.5) & ~data.train_mask).any()


class Around(nn.Module):
    """A model around one that is converted already."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: object) -> Tensor:
        return self.inner(*args)


def test_what_is_converted_already_stays_so_inside_another_model() -> None:
    graph, rows = alone(), torch.rand(50, 3)
    mask = graph.train_mask
    for model, args in (
        (pyg.LabelPropagation(2, 0.5), (graph.y, graph, mask)),
        (pyg.CorrectAndSmooth(2, 0.5, 2, 0.5), (rows, graph.y[mask], mask, graph)),
        (pyg.GCN(3, 4, 2, 3, norm="GraphNorm"), (rows, graph)),
    ):
        inner = fullgraph.convert(model)
        expected = inner(*args)
        kinds = [type(module) for module in inner.modules()]
        outer = fullgraph.convert(Around(inner))
        assert [type(module) for module in inner.modules()] == kinds
        assert torch.equal(outer(*args), expected)


# Labels as features --------------------------------------------------------------------------


class LabelReuse(nn.Module):
    """Features and the labels of some rows, then GraphSAGE: the loss is on the other labels."""

    def __init__(self, features: int, classes: int, method: str) -> None:
        super().__init__()
        width = features if method == "add" else 4
        self.labels = pyg.MaskLabel(classes, width, method)
        inputs = features if method == "add" else features + width
        self.gnn = pyg.GraphSAGE(inputs, 8, 2, classes, norm="batch_norm")

    def forward(self, x: Tensor, edge_index: object, y: Tensor, mask: Tensor) -> Tensor:
        return self.gnn(self.labels(x, y, mask), edge_index)


def _label_reuse(group: Group, method: str) -> None:
    """Three steps of Adam, each with other labels in the input, on a graph with unknown labels."""
    for name in ("multigraph", "one_source_part"):
        data = named(name)
        reference = LabelReuse(data.x.shape[1], 3, method).double()
        ours = fullgraph.convert(copy.deepcopy(reference))
        graph = DistributedGraph.build(named_parts(name, 5, True), group, max_block_bytes=200)
        y = torch.where(data.train_mask, data.y, -1)
        one, many = (torch.optim.Adam(m.parameters(), lr=0.05) for m in (reference, ours))
        for step in range(3):
            shown = data.train_mask & (torch.arange(len(y)) % 3 == step)
            asked = data.train_mask & ~shown
            one.zero_grad()
            out = reference(data.x, data.edge_index, y, shown)
            loss = F.cross_entropy(out[asked], y[asked])
            loss.backward()
            one.step()
            many.zero_grad()
            own = graph.node_id
            rows = ours(graph.x, graph, y[own], shown[own])
            mine = fullgraph.cross_entropy(rows, y[own], asked[own], group=group)
            mine.backward()
            fullgraph.sum_gradients(ours, group)
            many.step()
            assert_same(f"{name}, loss {step}", mine.detach(), loss.detach())
            assert_same(f"{name}, out {step}", rows.detach(), out.detach()[own])


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("method", ["add", "concat"])
def test_label_reuse_trains_as_in_one_process(method: str, size: int) -> None:
    run_ranks(_label_reuse, size, method)


class Drawn(nn.Module):
    """Which of the rows are shown is drawn in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = pyg.MaskLabel(3, 6)

    def forward(self, graph: object, mask: Tensor, ratio: float) -> Tensor:
        return self.labels.ratio_mask(mask, ratio)


def _drawn(group: Group) -> list[Tensor]:
    graph = DistributedGraph.build(named_parts("citeseer", 4, False), group)
    model = fullgraph.convert(Drawn(), seed=3)
    masks = [model(graph, graph.train_mask, ratio) for ratio in (0.3, 0.3, 0.0, 1.0)]
    assert not masks[2].any()
    assert torch.equal(masks[3], graph.train_mask)
    chosen = torch.stack([*masks[:2], graph.train_mask])
    return [graph.node_id[row] for row in chosen]


def test_labels_drawn_in_the_forward_pass_do_not_depend_on_the_number_of_ranks() -> None:
    drawn = [run_ranks(_drawn, size) for size in (1, 3)]
    sets = [[set(torch.cat(ids).tolist()) for ids in zip(*ranks)] for ranks in drawn]
    assert sets[0] == sets[1]
    first, second, train = sets[0]
    assert first != second
    assert first | second <= train
    assert 0.2 < len(first) / len(train) < 0.4
