"""What operations cost, against what is counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fullgraph import kernels
from fullgraph.kernels import _ops, costs
from fullgraph.kernels.costs import NOTHING, Cost


class _Costs(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, Cost]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        self.found.append((name, costs.family(func), costs.cost(func, args, kwargs or {}, out)))
        return out


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_sum_over_edges_reads_a_row_for_each(accumulate: bool, weighted: bool) -> None:
    offsets = torch.tensor([0, 2, 2, 5, 9])
    cols = torch.tensor([0, 3, 1, 1, 2, 0, 0, 0, 1], dtype=torch.int32)
    x, out, weight = torch.rand(4, 8), torch.zeros(3, 8), torch.rand(9)
    begin, end = offsets[:3], offsets[1:4]  # 3 ranges, 5 edges of the 9
    with _Costs() as mode:
        kernels.spmm(
            begin, end, cols, x, out, weight=weight if weighted else None, accumulate=accumulate
        )
    stream = 5 * 4 + 2 * 3 * 8 + (1 + accumulate) * 3 * 8 * 4 + weighted * 5 * 4
    expected = Cost(5 * 8 * 4, stream, (1 + weighted) * 5 * 8)
    assert mode.found[-1] == ("spmm", "sparse sums", expected)


def test_operations_of_torch_read_what_they_are_given_and_write_what_they_return() -> None:
    a, b, c = torch.rand(6, 5), torch.rand(5, 3), torch.rand(6, 3)
    index = torch.tensor([1, 1])
    with _Costs() as mode:
        a @ b
        torch.addmm(c, a, b)
        c.addmm_(a, b)
        c + c[:1]
        c.mul_(2)
        torch.zeros(6, 3)
        c.zero_()
        c.copy_(torch.empty(6, 3))
        c[index]
        torch.full((1, 3), 1.0).expand(6, 3).contiguous()
        c.t()
    by_name = {name: (kind, cost) for name, kind, cost in mode.found}
    flops = 2 * 6 * 5 * 3
    assert by_name == {
        "mm": ("dense products", Cost(0, 4 * (30 + 15 + 18), flops)),
        "addmm": ("dense products", Cost(0, 4 * (18 + 30 + 15 + 18), flops)),
        "addmm_": ("dense products", Cost(0, 4 * (18 + 30 + 15 + 18), flops)),
        "slice": ("other", NOTHING),
        "add": ("elementwise", Cost(0, 4 * (18 + 3 + 18), 0)),
        "mul_": ("elementwise", Cost(0, 4 * (18 + 18), 0)),
        "zeros": ("allocation", Cost(0, 4 * 18, 0)),
        "zero_": ("allocation", Cost(0, 4 * 18, 0)),
        "empty": ("allocation", NOTHING),
        "copy_": ("elementwise", Cost(0, 4 * (18 + 18), 0)),
        "index": ("other", Cost(4 * 6, 4 * 6 + 2 * 8, 0)),
        "full": ("allocation", Cost(0, 4 * 3, 0)),
        "expand": ("other", NOTHING),
        "clone": ("elementwise", Cost(0, 4 * (3 + 18), 0)),
        "t": ("other", NOTHING),
    }


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_a_product_of_onednn_has_the_cost_of_a_linear_layer() -> None:
    x, w, b = torch.rand(6, 5), torch.rand(3, 5), torch.rand(3)
    with _Costs() as mode:
        torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], "")
    expected = Cost(0, 4 * (30 + 15 + 3 + 18), 2 * 6 * 5 * 3)
    assert mode.found == [("_linear_pointwise", "dense products", expected)]


def test_rows_that_are_packed_and_added_back() -> None:
    x, index = torch.rand(4, 8), torch.tensor([3, 1], dtype=torch.int32)
    out = torch.empty(2, 8)
    with _Costs() as mode:
        kernels.gather_rows(x, index, out)
        kernels.scatter_add_rows(x, index, out)
    assert [cost for _, _, cost in mode.found if cost is not NOTHING][-2:] == [
        Cost(64, 64 + 8, 0), Cost(128, 64 + 8, 0)
    ]  # fmt: skip
    assert {kind for name, kind, _ in mode.found if name.endswith("_rows")} == {"exchange"}


def test_dropout_reads_rows_and_ids_and_writes_rows() -> None:
    x, ids = torch.rand(4, 8), torch.arange(4)
    with _Costs() as mode:
        kernels.dropout(x, ids, torch.empty(4, 8), p=0.5, seed=0, step=0, layer=0)
    assert mode.found[-1] == ("dropout", "dropout", Cost(0, 2 * 4 * 8 * 4 + 4 * 8, 0))


def test_every_kernel_over_edges_has_a_cost() -> None:
    ops = {name: getattr(torch.ops.fullgraph, name, None) for name in vars(_ops)}
    schemas = {name: op.default._schema for name, op in ops.items() if hasattr(op, "default")}
    over_edges = {
        name: {argument.name for argument in schema.arguments}
        for name, schema in schemas.items()
        if any(argument.name == "begin" for argument in schema.arguments)
    }
    assert set(over_edges) == set(costs.EDGE_KERNELS)
    for name, arguments in over_edges.items():
        assert set(costs.EDGE_KERNELS[name][0]) <= arguments, name
