"""Products with fewer buffers are the products that autograd differentiates."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fullgraph.ops.products import LARGEST_WEIGHTS, add_product, linear, two_products


def _tensors(num_rows: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    shapes = [(num_rows, 5), (3, 5), (4, 5), (num_rows, 3)]
    return [torch.randn(s, generator=rng, dtype=dtype).requires_grad_() for s in shapes]


def _assert_same(
    got: torch.Tensor, want: torch.Tensor, inputs: list[torch.Tensor], rtol: float = 1e-12
) -> None:
    torch.testing.assert_close(got, want, rtol=rtol, atol=rtol)
    grad = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=got.dtype)
    got_grads, want_grads = (torch.autograd.grad(y, inputs, grad) for y in (got, want))
    for a, b in zip(got_grads, want_grads):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("num_rows", [0, 1, 6])
def test_two_products_of_the_same_rows(num_rows: int) -> None:
    x, w, v, _ = _tensors(num_rows)
    for rows, inputs in ((x, [x, w, v]), (x.detach(), [w, v])):
        want = torch.cat([F.linear(x, w), F.linear(x, v)], 1)
        _assert_same(torch.cat(two_products(rows, w, v), 1), want, inputs)


@pytest.mark.parametrize("num_rows", [0, 1, 6])
def test_linear_is_that_of_torch(num_rows: int) -> None:
    x, w, *_ = _tensors(num_rows)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    _assert_same(linear(x, w, bias), F.linear(x, w, bias), [x, w, bias])
    _assert_same(linear(x.detach(), w), F.linear(x, w), [w])
    _assert_same(linear(x[:, ::2], w[:, ::2]), F.linear(x[:, ::2], w[:, ::2]), [x, w])
    assert not linear(x.detach(), w.detach()).requires_grad


def test_what_the_kernel_does_not_take_is_left_to_torch() -> None:
    large = torch.ones(2, LARGEST_WEIGHTS)
    for x, w in (
        (torch.ones(3, 4).bfloat16(), torch.ones(2, 4).bfloat16()),
        (torch.ones(5, 3, 4), torch.ones(2, 4)),
        (torch.ones(1, LARGEST_WEIGHTS), large),
    ):
        torch.testing.assert_close(linear(x, w), F.linear(x, w), rtol=0, atol=0)


@pytest.mark.parametrize("num_rows", [0, 1, 6])
def test_a_product_is_added_in_place(num_rows: int) -> None:
    x, w, _, y = _tensors(num_rows)
    out = y * 2
    got = add_product(out, x, w)
    assert got.data_ptr() == out.data_ptr()
    _assert_same(got, y * 2 + F.linear(x, w), [x, w, y])


def test_under_autocast_products_are_autocast() -> None:
    x, w, v, y = _tensors(6, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, both = add_product(y * 2, x, w), two_products(x, w, v)
        want, expected = y * 2 + F.linear(x, w), (F.linear(x, w), F.linear(x, v))
    assert [z.dtype for z in both] == [torch.bfloat16] * 2
    _assert_same(got, want, [x, w, y], 0)
    _assert_same(torch.cat(both, 1), torch.cat(expected, 1), [x, w, v], 0)
