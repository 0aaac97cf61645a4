"""Functions of rows inside a converted model: dropout, batch norm, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.contract import assert_same, run_ours
from tests.graphs import GRAPHS, partitioned
from tests.ranks import run_ranks


def test_the_result_of_dropout_can_be_written_to() -> None:
    graph = DistributedGraph.build(partitioned(GRAPHS["multigraph"](), 1), Group())

    class AddsInPlace(nn.Module):
        def forward(self, x, edge_index):
            y = F.dropout(x, 0.5)
            y += x
            return y

    x = torch.randn(50, 6, requires_grad=True)
    out = fullgraph.convert(AddsInPlace())(x, graph)
    out.sum().backward()
    kept = (out - x).detach() != 0
    assert kept.any()
    torch.testing.assert_close(x.grad, 1 + 2.0 * kept)


class WithDropout(nn.Module):
    """Functional dropout, module dropout, in place, on the input too, and on edges (APPNP)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(features, 8), pyg.SAGEConv(8, 8, aggr="max")
        self.drop, self.drop2 = nn.Dropout(0.5), nn.Dropout(0.5, inplace=True)
        self.lin = nn.Linear(8, classes)
        self.prop = pyg.APPNP(2, 0.1, dropout=0.5)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.drop(F.relu(self.conv1(x, edge_index)))
        x = self.drop2(self.conv2(x, edge_index) * 1)
        return self.prop(self.lin(x), edge_index)


def _dropout_equals_one_rank(group: Group, name: str, schedule: str) -> None:
    data = GRAPHS[name]()
    torch.manual_seed(0)
    model = fullgraph.convert(WithDropout(data.x.shape[1], int(data.y.max()) + 1).double(), seed=11)
    one = copy.deepcopy(model)
    graph = DistributedGraph.build(partitioned(data, 4), group, schedule, max_block_bytes=400)
    whole = DistributedGraph.build(partitioned(data, 1), Group(), "oneshot")
    outs = []
    for step in range(3):
        ours, reference = run_ours(model, data, graph, False), run_ours(one, data, whole, False)
        for key, value in reference.items():
            value = value[graph.node_id] if key in ("out", "x.grad", "evaluation") else value
            assert_same(f"step {step}, {key}", ours[key], value)
        outs.append(reference["out"])
    if data.x.shape[0] > 5:
        assert not torch.equal(outs[0], outs[1])  # a new mask each step


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("schedule", ["sequential", "sequential:remat=off", "oneshot"])
def test_dropout_is_the_same_on_any_number_of_ranks(size: int, schedule: str) -> None:
    for name in ("multigraph", "tiny", "citeseer"):
        run_ranks(_dropout_equals_one_rank, size, name, schedule)


def _batch_norm(group: Group, counts: list[int]) -> None:
    """Ranks with `counts` rows against one batch norm over all rows, far from zero."""
    total = sum(counts)
    g = torch.Generator().manual_seed(0)
    x = 1e4 + 1e-2 * torch.randn(total, 3, generator=g, dtype=torch.float64)
    probe = torch.randn(total, 3, generator=g, dtype=torch.float64)
    first = sum(counts[: group.rank])
    rows = slice(first, first + counts[group.rank])
    reference, ours = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    from fullgraph.ops.batch_norm import batch_norm

    for _ in range(2):
        a = x.clone().requires_grad_()
        (reference(a) * probe).sum().backward()
        b = x[rows].clone().requires_grad_()
        out = batch_norm(
            b, ours.running_mean, ours.running_var, ours.weight, ours.bias, 0.1, 1e-5,
            num_rows=total, group=group,
        )  # fmt: skip
        (out * probe[rows]).sum().backward()
    fullgraph.sum_gradients(ours, group)
    # the inputs carry a rounding error of 1e4 × 2⁻⁵³, and both sides divide it by a std of 1e-2
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(ours.running_mean, reference.running_mean, **close)
    torch.testing.assert_close(ours.running_var, reference.running_var, **close)
    torch.testing.assert_close(b.grad, a.grad[rows], **close)
    for p, q in zip(ours.parameters(), reference.parameters()):
        torch.testing.assert_close(p.grad, q.grad, **close)
    torch.testing.assert_close(out, reference(x)[rows], **close)


def test_batch_norm_has_global_statistics_far_from_zero_and_with_empty_ranks() -> None:
    run_ranks(_batch_norm, 3, [0, 1, 5])
    run_ranks(_batch_norm, 2, [40, 60])


def _refusals(group: Group) -> None:
    graph = DistributedGraph.build(partitioned(GRAPHS["multigraph"](), group.size), group)
    x = torch.randn(graph.num_owned, 4)

    class Calls(nn.Module):
        def __init__(self, call):
            super().__init__()
            self.call = call

        def forward(self, x, edge_index):
            return self.call(x)

    refused = {
        "mean": lambda x: x - x.mean(0),
        "sum": lambda x: x.sum(),
        "softmax": lambda x: x.softmax(dim=0),
        "max": lambda x: torch.max(x, dim=-2),
        "cross_entropy": lambda x: F.cross_entropy(x, x.argmax(1)),
        "normalize": lambda x: F.normalize(x, dim=0),
        "linalg": lambda x: torch.linalg.norm(x, dim=0),
        "cumprod": lambda x: x.cumprod(0),
        "layer_norm": lambda x: F.layer_norm(x, x.shape),
        "scaled_dot_product": lambda x: F.scaled_dot_product_attention(x, x, x),
        "nanmean": lambda x: x.nanmean(),
        "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
        "rand_like": lambda x: torch.rand_like(x),
    }
    for name, call in refused.items():
        with pytest.raises(NotImplementedError, match=name):
            fullgraph.convert(Calls(call))(x, graph)
    with pytest.raises(ValueError, match="dropout inside a converted model takes one row"):
        fullgraph.convert(Calls(lambda x: F.dropout(x[:3], 0.5)))(x, graph)
    allowed = [
        lambda x: x.mean(1), lambda x: x.sum(dim=-1, keepdim=True), lambda x: x.log_softmax(-1),
        lambda x: torch.max(x, x * 2), lambda x: F.layer_norm(x, (4,)), lambda x: x.cumsum(1),
        lambda x: torch.dropout(x, 0.5, False), lambda x: torch.linalg.norm(x, dim=1),
        lambda x: F.normalize(x), lambda x: x.norm(dim=1),
        lambda x: x.argmax(dim=1), lambda x: F.alpha_dropout(x, 0.5, training=False),
    ]  # fmt: skip
    for call in allowed:
        expected = call(x)
        assert torch.equal(fullgraph.convert(Calls(call))(x, graph), expected)


def test_functions_that_mix_a_ranks_rows_are_refused() -> None:
    run_ranks(_refusals, 2)
