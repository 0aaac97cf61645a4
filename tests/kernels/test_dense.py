"""Products of rows against torch's, and what they promise beyond."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullgraph import kernels
from tests.kernels.csr import normal

pytestmark = pytest.mark.usefixtures("isa")

FLOATS = [torch.float32, torch.float64]
# Rows, K and G: below, at and above what tiles, panels, depths and segments have; and nothing.
SHAPES = [(0, 3, 2), (1, 1, 1), (5, 0, 4), (7, 4, 0), (13, 47, 100), (97, 130, 47), (600, 64, 65),
          (1100, 33, 257), (20_000, 3, 5)]  # fmt: skip


def close(got: Tensor, expected: Tensor) -> None:
    """expected: of the same numbers in float64."""
    scale = expected.abs().max().item() if expected.numel() else 1.0
    rtol = 1e-12 if got.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=rtol * max(scale, 1.0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_products_are_those_of_torch(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    n, k, g = shape
    x, w, bias = normal(n, k, dtype=dtype), normal(g, k, dtype=dtype), normal(g, dtype=dtype)
    expected = x.double() @ w.double().T
    for weights in (w.T, w.T.contiguous()):
        out = torch.full((n, g), torch.nan, dtype=dtype)
        kernels.dense(x, weights, out)
        close(out, expected)
        kernels.dense(x, weights, out, accumulate=True)
        close(out, 2 * expected)
        kernels.dense(x, weights, out, bias=bias)
        close(out, expected + bias.double())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_weights_are_those_of_torch(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    n, k, g = shape
    x, grad = normal(n, k, dtype=dtype), normal(n, g, dtype=dtype)
    out, sums = torch.full((g, k), torch.nan, dtype=dtype), torch.full((g,), torch.nan, dtype=dtype)
    kernels.dense_weight_grad(grad, x, out)
    close(out, grad.double().T @ x.double())
    again = torch.full_like(out, torch.nan)
    kernels.dense_weight_grad(grad, x, again, sums)
    assert torch.equal(again, out)
    close(sums, grad.double().sum(0))


def test_a_row_is_the_same_to_the_bit_wherever_it_is_and_threads_change_nothing() -> None:
    x, w = normal(1000, 50, dtype=torch.float32), normal(50, 70, dtype=torch.float32)
    whole, part = torch.empty(1000, 70), torch.empty(431, 70)
    kernels.dense(x, w, whole)
    kernels.dense(x[37:468], w, part)
    assert torch.equal(part, whole[37:468])
    before = torch.get_num_threads()
    sums, more = [], torch.empty(3, 50)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            again, sums = torch.empty_like(whole), [*sums, torch.empty(50, 70)]
            kernels.dense(x, w, again)
            kernels.dense_weight_grad(x, whole, sums[-1], more[len(sums) - 1])
            assert torch.equal(again, whole)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])
    assert torch.equal(more[0], more[1])
    assert torch.equal(more[0], more[2])


def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    x, out = torch.ones(9, 4), torch.empty(9, 3)
    x[4, 1], x[6, 2] = torch.inf, torch.nan
    kernels.dense(x, torch.ones(4, 3), out)
    assert out[4].isinf().all()
    assert out[6].isnan().all()
    assert (out[[0, 1, 2, 3, 5, 7, 8]] == 4).all()


X, W, OUT = torch.ones(3, 2), torch.ones(2, 4), torch.ones(3, 4)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X.int(), W, OUT), {}, r"x must be float32 or float64, got int32"),
        ((X.T, W, OUT), {}, r"x must be contiguous"),
        ((X, W.double(), OUT), {}, r"w must be float32 of shape \[2, \*\] on cpu, got float64"),
        ((X, W.T, OUT), {}, r"w must be float32 of shape \[2, \*\] on cpu, got float32 \[4, 2\]"),
        ((X, W, OUT[:, :3]), {}, r"out must be float32 of shape \[3, 4\]"),
        ((X, W, OUT), {"bias": torch.ones(3)}, r"bias must be float32 of shape \[4\]"),
        ((X, W, OUT), {"bias": torch.ones(4), "accumulate": True}, "accumulate must be False"),
    ],
)
def test_wrong_arguments_are_named(args: tuple[Tensor, ...], kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.dense(*args, **kwargs)


def test_a_gradient_of_weights_with_rows_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be float32 of shape \[3, \*\]"):
        kernels.dense_weight_grad(OUT, W, torch.empty(4, 4))
    with pytest.raises(ValueError, match=r"out must be float32 of shape \[4, 2\]"):
        kernels.dense_weight_grad(OUT, X, W)
    with pytest.raises(ValueError, match=r"sums must be float32 of shape \[4\]"):
        kernels.dense_weight_grad(OUT, X, torch.empty(4, 2), torch.empty(5))
