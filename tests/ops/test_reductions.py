"""Reductions folded in piece by piece are those of all messages at once, and so are gradients."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fullgraph.comm.group import Group
from fullgraph.ops.reductions import KINDS
from tests.ranks import run_ranks

ROWS, EDGES = 7, 60


@dataclass(frozen=True)
class SomeEdges:
    rows: Tensor
    offsets: Tensor
    position: Tensor


def pieces(target: Tensor, size: int) -> list[tuple[SomeEdges, Tensor, Tensor]]:
    """Each with the edges it has, in its order, and which of its rows they go to."""
    found = []
    for chosen in torch.arange(target.numel()).split(size):
        order = chosen[torch.argsort(target[chosen], stable=True)]
        rows, index, counts = target[order].unique(return_inverse=True, return_counts=True)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        found.append((SomeEdges(rows, offsets, order), order, index))
    return found


def messages(zeros: bool = True) -> tuple[Tensor, Tensor]:
    """Few different values, so that extrema tie; row 0 has no edge, row 1 one of 0 only."""
    g = torch.Generator().manual_seed(0)
    values = torch.randint(-2, 3, (EDGES, 3), generator=g).double() / 2
    target = torch.randint(2, ROWS, (EDGES,), generator=g)
    target[5], values[5] = 1, 0
    return (values if zeros else values + 0.7), target


def whole(kind: str, values: Tensor, target: Tensor) -> Tensor:
    if kind == "each":
        return values * 1
    if kind == "total":
        return values.sum(0)
    start = torch.full((ROWS, 3), 1.0 if kind == "prod" else 0.0, dtype=values.dtype)
    index = target.unsqueeze(1).expand_as(values)
    return start.scatter_reduce(0, index, values, kind, include_self=kind in ("sum", "prod"))


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, EDGES])
def test_pieces_are_the_whole(kind: str, size: int, with_index: bool) -> None:
    values, target = messages()
    leaf = values.clone().requires_grad_()
    expected = whole(kind, leaf, target)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    count = {"each": EDGES}.get(kind, ROWS)
    reduction = KINDS[kind](count, values.shape[1:], values.dtype, Group())
    given = pieces(target, size)
    for piece, order, index in given:
        reduction.add(piece, index if with_index else None, values[order])
    torch.testing.assert_close(reduction.finish(), expected.detach())
    wanted, found = reduction.start_backward(grad), torch.zeros_like(values)
    for piece, order, index in given:
        found[order] = reduction.gradient(
            piece, index if with_index else None, values[order], wanted
        )
    torch.testing.assert_close(found, leaf.grad)


@pytest.mark.parametrize("kind", ["sum", "amax", "amin", "prod"])
def test_integers_and_bf16(kind: str) -> None:
    values, target = messages()
    for dtype in (torch.int64, torch.bfloat16):
        small = (values * 2).to(dtype)
        reduction = KINDS[kind](ROWS, small.shape[1:], dtype, Group())
        for piece, order, _ in pieces(target, 9):
            reduction.add(piece, None, reduction.wide_rows(small[order]))
        found = reduction.finish()
        assert found.dtype == dtype
        expected = whole(kind, (values * 2).long() if dtype == torch.int64 else values * 2, target)
        torch.testing.assert_close(found.double(), expected.double(), rtol=0.01, atol=0)


def total_of_ranks(group: Group) -> tuple[Tensor, Tensor]:
    values = torch.full((group.rank, 3), float(group.rank))  # rank 0 has no edges
    reduction = KINDS["total"](ROWS, values.shape[1:], values.dtype, group)
    for piece, order, _ in pieces(torch.zeros(group.rank, dtype=torch.int64), 1):
        reduction.add(piece, None, values[order])
    grad = reduction.start_backward(torch.full((3,), group.rank + 1.0))
    return reduction.finish(), grad


def test_a_total_and_its_gradient_are_of_all_ranks() -> None:
    for total, grad in run_ranks(total_of_ranks, 3):
        assert total.tolist() == [5.0] * 3  # 0 + 1 · 1 + 2 · 2
        assert grad.tolist() == [[6.0] * 3]
