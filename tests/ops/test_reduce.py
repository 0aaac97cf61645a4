"""Losses and gradients over ranks: the global mean, whoever has the labels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullgraph
from fullgraph.comm.group import Group
from tests.ranks import run_ranks


def _rows(group: Group, counts: list[int], seed: int = 0):
    """Rows and labels of all ranks, and the slice of this one."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(counts), 4, generator=g, dtype=torch.float64)
    y = torch.randint(3, (sum(counts),), generator=g)
    first = sum(counts[: group.rank])
    return x, y, slice(first, first + counts[group.rank])


def _loss_is_the_global_mean(group: Group, counts: list[int], options: dict) -> None:
    x, y, mine = _rows(group, counts)
    torch.manual_seed(0)
    lin = nn.Linear(4, 3).double()
    reference = F.cross_entropy(lin(x), y, **options)
    expected = torch.autograd.grad(reference, [*lin.parameters()])
    loss = fullgraph.cross_entropy(lin(x[mine]), y[mine], group=group, **options)
    loss.backward()
    fullgraph.sum_gradients(lin, group)
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=0)
    for p, grad in zip(lin.parameters(), expected):
        torch.testing.assert_close(p.grad, grad, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("counts", [[3, 1], [4, 0], [0, 0, 5], [2, 3, 1, 0]])
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1}, {"weight": torch.tensor([1.0, 2, 5]).double()}]
)
def test_loss_and_gradients_are_those_of_the_global_mean(counts, options) -> None:
    run_ranks(_loss_is_the_global_mean, len(counts), counts, options)


def _unknown_labels_never_count(group: Group) -> None:
    out = torch.randn(4, 3)
    y = torch.tensor([0, -1, 2, -1])
    expected = F.cross_entropy(out[[0, 2]], y[[0, 2]])
    for mask in (None, torch.ones(4, dtype=torch.bool)):
        torch.testing.assert_close(fullgraph.cross_entropy(out, y, mask, group=group), expected)
    with pytest.raises(ValueError, match="all masks are empty"):
        fullgraph.cross_entropy(out, y, torch.zeros(4, dtype=torch.bool), group=group)
    with pytest.raises(ValueError, match=r"mask must be bool of shape \[4\].*int64"):
        fullgraph.cross_entropy(out, y, torch.zeros(4, dtype=torch.int64), group=group)


def test_unknown_labels_never_count() -> None:
    run_ranks(_unknown_labels_never_count, 1)


def _empty_everywhere(group: Group) -> None:
    with pytest.raises(ValueError, match="all masks are empty"):
        fullgraph.global_mean(torch.empty(0), group=group)


def test_empty_masks_everywhere_are_an_error_on_every_rank() -> None:
    run_ranks(_empty_everywhere, 2)


def _mean_and_penalty(group: Group, counts: list[int]) -> None:
    x, _, mine = _rows(group, counts)
    w = torch.ones(4, dtype=torch.float64, requires_grad=True)
    mask = x[:, 0] > 0
    reference = ((x @ w) ** 2)[mask].mean() + 0.3 * (w**3).sum()
    (expected,) = torch.autograd.grad(reference, w)
    loss = fullgraph.global_mean((x[mine] @ w) ** 2, mask[mine], group=group)
    loss = loss + fullgraph.replicated(0.3 * (w**3).sum(), group)
    loss.backward()
    fullgraph.sum_gradients([w], group)
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=0)
    torch.testing.assert_close(w.grad, expected, rtol=1e-10, atol=0)


def test_global_mean_and_a_penalty_on_weights() -> None:
    run_ranks(_mean_and_penalty, 3, [3, 0, 6])


def _statistic(group: Group, counts: list[int]) -> None:
    """A model that divides by a sum over all rows."""
    x, y, mine = _rows(group, counts)
    w = torch.ones(4, dtype=torch.float64, requires_grad=True)
    h = x * w
    reference = F.cross_entropy((h / h.exp().sum())[:, :3], y)
    (expected,) = torch.autograd.grad(reference, w)
    h = x[mine] * w
    h = h / fullgraph.sum_over_ranks(h.exp().sum(), group)
    fullgraph.cross_entropy(h[:, :3], y[mine], group=group).backward()
    fullgraph.sum_gradients([w], group)
    torch.testing.assert_close(w.grad, expected, rtol=1e-10, atol=1e-18)


def test_sum_over_ranks_has_the_gradient_of_what_all_ranks_do_with_it() -> None:
    run_ranks(_statistic, 3, [3, 0, 6])


def _missing_gradients(group: Group) -> None:
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    c.requires_grad_(False)
    d = torch.ones(3, dtype=torch.float64, requires_grad=True)
    e = torch.ones(1, requires_grad=True)
    ((a.sum() if group.rank == 0 else 0) + d.sum() * (group.rank + 1)).backward()
    fullgraph.sum_gradients([a, b, c, d, e], group)
    assert a.grad.tolist() == [1, 1]  # unused on every rank but one: zero there
    assert b.grad is None  # unused everywhere: stays missing, so that the optimizer skips it
    assert e.grad is None
    assert d.grad.tolist() == [sum(range(1, group.size + 1))] * 3


def test_gradients_missing_on_some_ranks_count_as_zero() -> None:
    run_ranks(_missing_gradients, 3)


def _broadcast(group: Group) -> None:
    torch.manual_seed(group.rank)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[1].running_mean += group.rank
    fullgraph.broadcast_parameters(model, group)
    torch.manual_seed(0)
    assert torch.equal(model[0].weight, nn.Linear(3, 2).weight)
    assert model[1].running_mean.tolist() == [0, 0]


def test_every_rank_starts_with_the_parameters_of_rank_0() -> None:
    run_ranks(_broadcast, 3)
