"""The kernels as torch ops: schemas, fakes, autograd, compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fullgraph import kernels
from fullgraph.kernels import _ops
from tests.kernels.csr import few_values, normal, ranges

R = ranges("chunk")
SHAPE = (R.num_rows, 5)
X, W = normal(R.num_sources, 5), normal(len(R.cols))
PLACE = (*R.csr, R.rows, R.col_offset)
T = ranges("plain")  # read as lists by source
INDEX = torch.randperm(20, dtype=torch.int32)

# Attention: H heads of C channels, n targets. By target as R; by source as T, of whose D ranges
# each is a source's and whose columns are the n targets.
H, C, D, N = 2, 3, len(T.begin), T.num_sources
F = H * C
SOFTMAX = (normal(R.num_rows, F), normal(R.num_rows, H), normal(R.num_rows, H).abs(), True)
DROP = (torch.arange(len(R.cols)), 0.5, 1, 2, 3)
DROP_T = (torch.arange(len(T.cols)), 0.5, 1, 2, 3)
ORDER = torch.randperm(len(T.cols))  # by target, of the edges by source
SOURCES, TARGETS, EDGE, ATT = (
    normal(N, F),
    normal(R.num_rows, F),
    normal(len(R.cols), F),
    normal(H, C),
)
SOURCES_T, TARGETS_T, EDGE_T = normal(D, F), normal(N, F), normal(len(T.cols), F)
STATE, DOUT = normal(R.num_rows, 3 * H).abs(), normal(R.num_rows, F)
STATE_T, DOUT_T = normal(N, 4 * H).abs(), normal(N, F)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


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
    "dense": (X, normal(5, 3), normal(3), zeros(len(X), 3), False),
    "dense_weight_grad": (normal(len(X), 4), X, zeros(4, 5), zeros(4)),
    "gat": (
        *PLACE, SOURCES, normal(N, H), normal(R.num_rows, H), EDGE[:, :H].contiguous(), 0.2, *DROP,
        *SOFTMAX,
    ),
    "gat_grad": (
        *T.csr, ORDER, SOURCES_T, normal(D, H), EDGE_T[:, :H].contiguous(), STATE_T, DOUT_T, 0.2,
        *DROP_T, zeros(D, F), zeros(D, H), zeros(N, H), zeros(len(T.cols), H), True,
    ),
    "gatv2": (*PLACE, SOURCES, TARGETS, ATT, EDGE, 0.2, *DROP, *SOFTMAX),
    "gatv2_grad_target": (
        *PLACE, SOURCES, TARGETS, ATT, EDGE, STATE, DOUT, 0.2, *DROP, zeros(R.num_rows, F),
        zeros(H, C), zeros(len(R.cols), F),
    ),
    "gatv2_grad_source": (
        *T.csr, None, ORDER, SOURCES_T, TARGETS_T, ATT, EDGE_T, STATE_T[:, : 3 * H].contiguous(),
        DOUT_T, 0.2, *DROP_T, zeros(D, F),
    ),
    "dot": (*PLACE, SOURCES, normal(N, F, seed=2), TARGETS, EDGE, *DROP, *SOFTMAX),
    "dot_grad_target": (
        *PLACE, SOURCES, normal(N, F, seed=2), TARGETS, EDGE, STATE, DOUT, *DROP,
        zeros(R.num_rows, F), zeros(len(R.cols), F),
    ),
    "dot_grad_source": (
        *T.csr, None, ORDER, SOURCES_T, normal(D, F, seed=2), TARGETS_T, EDGE_T,
        STATE_T[:, : 3 * H].contiguous(), DOUT_T, *DROP_T, zeros(D, F), zeros(D, F),
    ),
    "empty": (X, (0, 5), torch.float32),
    "head_dots": (SOURCES, normal(N, F, seed=2), zeros(N, H)),
}  # fmt: skip


def test_every_op_is_called() -> None:
    ops = {name for name in vars(_ops) if name in dir(torch.ops.fullgraph) and name[0] != "_"}
    assert set(CALLS) == ops


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_op_is_what_its_schema_says(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.fullgraph, name).default, CALLS[name])


def test_autograd_notices_that_a_tensor_was_changed() -> None:
    x = normal(len(X), 5).requires_grad_()
    y = x.exp()  # which its gradient needs
    kernels.scatter_add_rows(y, INDEX, normal(20, 5))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():
        kernels.scatter_add_rows(torch.zeros(len(X), 5, dtype=X.dtype), INDEX, normal(20, 5))


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
