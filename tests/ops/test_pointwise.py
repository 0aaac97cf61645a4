"""Functions of rows in memory of earlier tensors are those that torch differentiates."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fullgraph.ops.class_loss import cross_entropy_of_rows
from fullgraph.ops.pointwise import fork, mean_of_heads, plus_bias, relu, scale_rows_


def rows(num_rows: int, columns: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    rng = torch.Generator().manual_seed(num_rows)
    return torch.randn(num_rows, columns, generator=rng, dtype=dtype).requires_grad_()


def assert_same(got: Tensor, want: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    grad = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=got.dtype)
    both = zip(*(torch.autograd.grad(y, inputs, grad, retain_graph=True) for y in (got, want)))
    for ours, theirs in both:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_relu(num_rows: int) -> None:
    x = rows(num_rows)
    assert_same(relu(x), torch.relu(x), x)
    assert_same(relu(x.t()), torch.relu(x.t()), x)
    assert not relu(x.detach()).requires_grad


def test_relu_of_what_is_no_number_or_no_row() -> None:
    special = torch.tensor([[float("nan"), float("inf"), -float("inf"), -0.0, 0.0]])
    torch.testing.assert_close(relu(special), torch.relu(special), equal_nan=True, rtol=0, atol=0)
    for x in (torch.tensor([1, -1]), torch.randn(2, 3, 4), torch.tensor(-1.0)):
        torch.testing.assert_close(relu(x), torch.relu(x), rtol=0, atol=0)


def test_relu_is_differentiated_twice() -> None:
    x = rows(4)
    assert torch.autograd.gradgradcheck(lambda x: relu(x).pow(3), [x])


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_scaled_rows(num_rows: int) -> None:
    x, scale = rows(num_rows), torch.rand(num_rows)
    y = x * 2
    out = scale_rows_(y, scale)
    assert out.data_ptr() == y.data_ptr()
    assert_same(out, x * 2 * scale.double().unsqueeze(1), x)


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_bias(num_rows: int) -> None:
    x, bias = rows(num_rows), torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert_same(plus_bias(x, bias), x + bias, x, bias)
    assert_same(plus_bias(x, bias.detach()), x + bias, x)
    assert plus_bias(x, None) is x
    mixed = plus_bias(x, bias.float())
    torch.testing.assert_close(mixed, x + bias.float(), rtol=0, atol=0)


@pytest.mark.parametrize(("num_rows", "heads"), [(0, 2), (7, 1), (7, 5)])
def test_mean_of_heads(num_rows: int, heads: int) -> None:
    x = rows(num_rows, 5 * heads)
    assert_same(mean_of_heads(x.view(-1, heads, 5)), x.view(-1, heads, 5).mean(1), x)


def test_a_fork_sums_both_gradients() -> None:
    x = rows(6)
    first, second = fork(x)
    assert_same(first.sin() * second.exp(), x.sin() * x.exp(), x)
    first, second = fork(x)
    assert_same(first * 2, x * 2, x)  # the other is not used
    first, second = fork(x)
    assert_same(second * 3, x * 3, x)
    assert fork(x.detach())[0].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("smoothing", [0, 0.1, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("chosen", [0, 1, 6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_cross_entropy(smoothing: float, weighted: bool, chosen: int, dtype: torch.dtype) -> None:
    x = rows(9, dtype=dtype)
    at, y = torch.randperm(9)[:chosen], torch.randint(5, (chosen,), dtype=torch.int32)
    weight = torch.rand(5, dtype=dtype) if weighted else None
    ours = cross_entropy_of_rows(x, at, y, weight, smoothing)
    theirs = F.cross_entropy(
        x[at], y.long(), weight=weight, label_smoothing=smoothing, reduction="sum"
    )
    rtol = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)
    for a, b in zip(torch.autograd.grad(3 * ours, x), torch.autograd.grad(3 * theirs, x)):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


def test_cross_entropy_of_what_it_does_not_take_itself() -> None:
    x, at, y = rows(4), torch.arange(4), torch.tensor([0, 1, 2, 3])
    half = x.detach().bfloat16()
    torch.testing.assert_close(
        cross_entropy_of_rows(half, at, y), F.cross_entropy(half, y, reduction="sum")
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert cross_entropy_of_rows(x.float(), at, y).dtype == torch.float32


def test_cross_entropy_refuses_what_torch_refuses() -> None:
    x, at = rows(4), torch.arange(4)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        cross_entropy_of_rows(x, at, at, smoothing=1.5)
    with pytest.raises(RuntimeError, match="not differentiable"):
        cross_entropy_of_rows(x, at, at, torch.rand(5).double().requires_grad_())
    with pytest.raises(IndexError, match="out of bounds"):
        cross_entropy_of_rows(x, at, torch.tensor([0, 1, 2, 5]))
