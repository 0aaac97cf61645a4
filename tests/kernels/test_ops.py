"""The kernels as torch ops: schemas, fakes, autograd, compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fullgraph import kernels
from tests.kernels.csr import few_values, normal, ranges

R = ranges("chunk")
SHAPE = (R.num_rows, 5)
X, W = normal(R.num_sources, 5), normal(len(R.cols))
PLACE = (*R.csr, R.rows, R.col_offset)
T = ranges("plain")  # read as lists by source
INDEX = torch.randperm(20, dtype=torch.int32)

CALLS: dict[str, tuple[Any, ...]] = {
    "spmm": (*PLACE, X, W, None, torch.zeros(SHAPE, dtype=X.dtype), True),
    "sddmm": (*PLACE, X, normal(*SHAPE), torch.zeros_like(W)),
    "extremum": (
        *PLACE, X, W, torch.full(SHAPE, -1e9, dtype=X.dtype), torch.zeros(SHAPE, dtype=torch.int32),
        True,
    ),
    "extremum_grad_source": (
        *T.csr, few_values(len(T.begin), 5), None, None, few_values(T.num_sources, 5),
        normal(T.num_sources, 5), torch.zeros(len(T.begin), 5, dtype=X.dtype),
    ),
    "extremum_grad_weight": (*PLACE, X, W, normal(*SHAPE), normal(*SHAPE), torch.zeros_like(W)),
    "gather_rows": (X, INDEX, torch.zeros(20, 5, dtype=X.dtype)),
    "scatter_add_rows": (torch.zeros(SHAPE, dtype=X.dtype), INDEX, normal(20, 5)),
    "dropout": (X, torch.arange(len(X)), torch.zeros_like(X), 0.5, 1, 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_op_is_what_its_schema_says(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.fullgraph, name).default, CALLS[name])


def test_tensors_that_require_a_gradient_are_accepted() -> None:
    begin, end, cols = T.csr
    x = normal(T.num_sources, 3).requires_grad_()
    w = normal(len(cols)).requires_grad_()
    out = torch.zeros(T.num_rows, 3, dtype=torch.float64, requires_grad=True)
    count = torch.zeros(T.num_rows, 3, dtype=torch.int32)
    kernels.spmm(begin, end, cols, x, out, weight=w)
    kernels.sddmm(begin, end, cols, x, out, w)
    kernels.extremum(begin, end, cols, x, out, count, weight=w, largest=True)
    kernels.extremum_grad_weight(begin, end, cols, x, out, out, w, weight=w)
    kernels.extremum_grad_source(begin, end, cols, out, x, x, out, weight=w)
    kernels.gather_rows(x, cols[:4], out[:4])
    kernels.scatter_add_rows(out, INDEX, x[:20])
    kernels.dropout(x, torch.arange(len(x)), x, p=0.5, seed=0, step=0, layer=0)
    assert x.grad_fn is None
    assert out.grad_fn is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_function_calls_the_kernel_without_a_graph_break() -> None:
    def double_sum(x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(T.num_rows, x.shape[1])
        kernels.spmm(*T.csr, x, out)
        return 2 * out

    x = normal(T.num_sources, 3)
    compiled = torch.compile(double_sum, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), double_sum(x))
