# ruff: noqa: E501  (a table reads best with a row a line)
"""Wrong arguments raise ValueError saying which, what was got and what is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fullgraph import kernels

BEGIN, END = torch.tensor([0, 1]), torch.tensor([1, 3])
COLS = torch.tensor([0, 2, 1], dtype=torch.int32)
X, OUT, E = torch.ones(3, 4), torch.zeros(2, 4), torch.ones(3)
COUNT, INDEX = torch.zeros(2, 4, dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
IDS, DRAW = torch.arange(3), {"p": 0.5, "seed": 0, "step": 0, "layer": 0}
CSR = (BEGIN, END, COLS)

WRONG: list[tuple[Callable[..., Any], tuple, dict, str]] = [
    (kernels.spmm, (BEGIN.int(), END, COLS, X, OUT), {},
     "begin must be int64 of shape [*], got int32 [2]"),
    (kernels.spmm, (BEGIN, END[:1], COLS, X, OUT), {}, "end must be int64 of shape [2], got int64 [1]"),
    (kernels.spmm, (BEGIN, END, COLS.long(), X, OUT), {}, "cols must be int32"),
    (kernels.spmm, (*CSR, X.half(), OUT), {}, "x must be float32, float64 or bfloat16, got float16"),
    (kernels.spmm, (*CSR, X[0], OUT), {}, "x must be float32 of shape [*, *], got float32 [4]"),
    (kernels.spmm, (*CSR, torch.ones(4, 3).T, OUT), {}, "x must be contiguous, got strides (1, 3)"),
    (kernels.spmm, (*CSR, X.double(), OUT), {}, "out must be float64 of shape [*, 4], got float32"),
    (kernels.spmm, (*CSR, X, OUT[:, :3]), {}, "out must be float32 of shape [*, 4], got float32 [2, 3]"),
    (kernels.spmm, (*CSR, X, OUT[:1]), {}, "begin has 2 rows, but the output has 1"),
    (kernels.spmm, (*CSR, X, OUT), {"rows": IDS[:2]}, "rows must be int32 of shape [2], got int64"),
    (kernels.spmm, (*CSR, X, OUT), {"weight": E.double()}, "weight must be float32 of shape [3]"),
    (kernels.spmm, (*CSR, X, OUT), {"weight": E, "weight_index": COLS},
     "weight_index must be int64 of shape [3], got int32"),
    (kernels.spmm, (*CSR, X, OUT), {"weight_index": IDS}, "weight_index is given without weight"),
    (kernels.spmm, (*CSR, X, OUT.to("meta")), {}, "out is on meta, the other arguments on cpu"),
    (kernels.sddmm, (*CSR, X, OUT.double(), E), {}, "grad must be float32"),
    (kernels.sddmm, (*CSR, X, OUT, E[:2]), {}, "out must be float32 of shape [3], got float32 [2]"),
    (kernels.extremum, (*CSR, X, OUT, COUNT.long()), {"largest": True}, "count must be int32"),
    (kernels.extremum_grad_source, (*CSR, X[:2], X, OUT, OUT), {}, "share must be float32 of shape [3, 4]"),
    (kernels.extremum_grad_source, (*CSR, X[:2], X, X, X), {}, "dx must be float32 of shape [2, 4]"),
    (kernels.extremum_grad_weight, (*CSR, X, OUT, OUT, E), {"weight": E[:2]},
     "weight must be float32 of shape [3], got float32 [2]"),
    (kernels.gather_rows, (X, INDEX.long(), OUT), {}, "index must be int32 of shape [*], got int64"),
    (kernels.gather_rows, (X, INDEX, OUT.double()), {}, "out must be float32 of shape [2, 4]"),
    (kernels.scatter_add_rows, (X, INDEX, X), {}, "x must be float32 of shape [2, 4], got float32 [3, 4]"),
    (kernels.dropout, (X, INDEX, X), DRAW, "ids must be int64 of shape [3], got int32 [2]"),
    (kernels.dropout, (X, IDS, OUT), DRAW, "out must be float32 of shape [3, 4], got float32 [2, 4]"),
    (kernels.dropout, (X, IDS, X), {**DRAW, "p": 1.5}, "p must be between 0 and 1, got 1.5"),
    (kernels.dropout, (X, IDS, X), {**DRAW, "p": float("nan")}, "p must be between 0 and 1, got nan"),
    (kernels.dropout, (X, IDS, X), {**DRAW, "layer": 2**16}, "layer must be of 0 .. 65535, got 65536"),
    (kernels.group_by, (E, 3), {}, "keys must be int32 or int64 of one dimension, got float32 [3]"),
    (kernels.group_by, (COLS, -1), {}, "num_groups must be 0 or more, got -1"),
    (kernels.group_by, (COLS, 2), {}, "keys[1] is 2, outside of 0 .. 1"),
    (kernels.group_by, (torch.tensor([0, -1]), 2), {}, "keys[1] is -1, outside of 0 .. 1"),
    (kernels.validate_csr, (BEGIN, torch.tensor([1, 4]), COLS, 3), {},
     "range 1 has the edges 1 .. 4 of 3 edges"),
    (kernels.validate_csr, (torch.tensor([0, 2]), torch.tensor([1, 1]), COLS, 3), {},
     "range 1 has the edges 2 .. 1 of 3 edges"),
    (kernels.validate_csr, (*CSR, 2), {}, "cols[1] is 2, outside of 0 .. 1"),
    (kernels.validate_csr, (*CSR, 3), {"col_offset": 1}, "cols[0] is 0, outside of 1 .. 3"),
    (kernels.validate_csr, (*CSR, 3), {"rows": INDEX}, "num_rows is needed to check rows"),
    (kernels.validate_csr, (*CSR, 3), {"rows": INDEX, "num_rows": 1},
     "rows[1] is 1, outside of 0 .. 0"),
    (kernels.validate_csr, (*CSR, 3), {"rows": INDEX * 0, "num_rows": 1}, "rows has 0 more than once"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "args", "options", "message"), WRONG)
def test_a_wrong_argument_is_named(
    kernel: Callable[..., Any], args: tuple, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        kernel(*args, **options)


def test_validate_csr_takes_what_is_right() -> None:
    kernels.validate_csr(BEGIN, END, COLS, 3, rows=INDEX, num_rows=2)
    kernels.validate_csr(BEGIN[:1], END[:1], COLS, 1)  # columns that no range has do not matter
    kernels.validate_csr(BEGIN[:0], END[:0], COLS[:0], 0)
