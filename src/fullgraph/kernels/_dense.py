"""Products of many rows with weights, into memory that is there. Checks, then the op.

Torch makes a new matrix for each product of rows, and the library that it calls leaves half of what
some processors can do unused. Letters: n rows, K and G columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.kernels import _ops
from fullgraph.kernels._checks import check, short

DENSE_DTYPES = (torch.float32, torch.float64)


def dense(
    x: Tensor, w: Tensor, out: Tensor, *, bias: Tensor | None = None, accumulate: bool = False
) -> None:
    """out = x w + bias, or, accumulating, out += x w. A row's bits do not depend on other rows.

    Args:
        x: [n, K], float32 or float64. w: [K, G] in its dtype, of any strides. out: [n, G].
        bias: [G]; not while accumulating.
    """
    _check_rows("x", x)
    if w.dtype != x.dtype or w.dim() != 2 or w.shape[0] != x.shape[1] or w.device != x.device:
        raise ValueError(
            f"w must be {short(x.dtype)} of shape [{x.shape[1]}, *] on {x.device}, got "
            f"{short(w.dtype)} {list(w.shape)} on {w.device}"
        )
    check("out", out, x.dtype, (x.shape[0], w.shape[1]), x)
    if bias is not None:
        check("bias", bias, x.dtype, (w.shape[1],), x)
        if accumulate:
            raise ValueError("a bias is for a new product: accumulate must be False with it")
    _ops.dense(x, w, bias, out, accumulate)


def dense_weight_grad(grad: Tensor, x: Tensor, out: Tensor, sums: Tensor | None = None) -> None:
    """out = gradᵀ x and, if given, sums = Σ grad over the rows. grad: [n, G]; x: [n, K] in its
    dtype, float32 or float64; out: [G, K]; sums: [G].

    Rows are summed in at most 64 runs of consecutive ones, and then the runs, on any number of
    threads.
    """
    _check_rows("grad", grad)
    check("x", x, grad.dtype, (grad.shape[0], None), grad)
    check("out", out, grad.dtype, (grad.shape[1], x.shape[1]), grad)
    if sums is not None:
        check("sums", sums, grad.dtype, (grad.shape[1],), grad)
    _ops.dense_weight_grad(grad, x, out, sums)


def _check_rows(name: str, x: Tensor) -> None:
    if x.dtype not in DENSE_DTYPES:
        raise ValueError(f"{name} must be float32 or float64, got {short(x.dtype)}")
    check(name, x, x.dtype, (None, None), x)
