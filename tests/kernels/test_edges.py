"""Kernels over edge ranges against the float64 reference, and the rules at their edges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.kernels import reference
from tests.kernels.csr import (
    CASES,
    DTYPES,
    TOLERANCE,
    Ranges,
    few_values,
    generator,
    normal,
    ranges,
    run_reference,
    wide,
)

INF, NAN = float("inf"), float("nan")
pytestmark = pytest.mark.usefixtures("isa")


def both(dtype: torch.dtype, *tensors: Tensor | None) -> list[list[Tensor | None]]:
    """Each tensor in the dtype of sums, and in float64; integers as they are."""

    def cast(t: Tensor | None, to: torch.dtype) -> Tensor | None:
        return t.to(to) if t is not None and t.is_floating_point() else t

    return [[cast(t, to) for t in tensors] for to in (wide(dtype), torch.float64)]


def compare(got: Tensor | None, expected: Tensor | None, dtype: torch.dtype, r: Ranges) -> None:
    assert got is not None
    assert expected is not None
    longest = max(1, int((r.end - r.begin).max())) if len(r.begin) else 1
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        got.double(), expected, rtol=tolerance, atol=tolerance * longest**0.5
    )  # fmt: skip


def weights(r: Ranges, how: str, make: Callable[..., Tensor] = normal) -> dict[str, Tensor | None]:
    num_edges = len(r.cols)
    if how == "indexed":
        index = torch.randint(0, num_edges + 5, (num_edges,), generator=generator(3))
        return {"weight": make(num_edges + 5, seed=4), "weight_index": index}
    return {"weight": make(num_edges, seed=4) if how == "weighted" else None, "weight_index": None}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "num_features"), CASES)
def test_spmm_sums_rows_of_sources(kind: str, num_features: int, dtype: torch.dtype) -> None:
    r = ranges(kind)
    x = normal(r.num_sources, num_features, dtype=dtype)
    for how in ("plain", "weighted", "indexed"):
        for accumulate in (True, False):
            w = weights(r, how)
            (weight, out), (weight64, expected) = both(
                dtype, w["weight"], normal(r.num_rows, num_features, dtype=wide(dtype), seed=2)
            )
            kernels.spmm(
                *r.csr, x, out, **r.place, weight=weight, weight_index=w["weight_index"],
                accumulate=accumulate,
            )  # fmt: skip
            if weight is not None:
                weight64 = weight.double()
            run_reference(
                reference.spmm, *r.csr, r.rows, r.col_offset, x.double(), weight64,
                w["weight_index"], expected, accumulate,
            )  # fmt: skip
            compare(out, expected, dtype, r)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "num_features"), CASES)
def test_sddmm_adds_inner_products(kind: str, num_features: int, dtype: torch.dtype) -> None:
    r = ranges(kind)
    x = normal(r.num_sources, num_features, dtype=dtype)
    grad = normal(r.num_rows, num_features, dtype=wide(dtype), seed=2)
    out = normal(len(r.cols), dtype=wide(dtype), seed=3)
    expected = out.double()
    kernels.sddmm(*r.csr, x, grad, out, **r.place)
    run_reference(
        reference.sddmm, *r.csr, r.rows, r.col_offset, x.double(), grad.double(), expected
    )
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=50 * TOLERANCE[dtype])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "num_features"), CASES)
def test_extremum_and_its_gradients_count_ties(
    kind: str, num_features: int, dtype: torch.dtype, largest: bool
) -> None:
    r = ranges(kind)
    shape = (r.num_rows, num_features)
    x = few_values(r.num_sources, num_features, dtype=dtype)
    for how in ("plain", "weighted"):
        w = weights(r, how, few_values)["weight"]
        (weight, out, count), (weight64, expected, expected_count) = both(
            dtype, w, torch.full(shape, -INF if largest else INF),
            torch.zeros(shape, dtype=torch.int32),
        )  # fmt: skip
        expected_count = expected_count.clone()
        kernels.extremum(*r.csr, x, out, count, **r.place, weight=weight, largest=largest)
        run_reference(
            reference.extremum, *r.csr, r.rows, r.col_offset, x.double(), weight64, expected,
            expected_count, largest,
        )  # fmt: skip
        assert torch.equal(out.double(), expected)
        assert torch.equal(count, expected_count)

        share = normal(*shape, dtype=wide(dtype), seed=5)
        if weight is not None:
            dw = normal(len(r.cols), dtype=wide(dtype), seed=6)
            expected_dw = dw.double()
            kernels.extremum_grad_weight(*r.csr, x, out, share, dw, **r.place, weight=weight)
            run_reference(
                reference.extremum_grad_weight, *r.csr, r.rows, r.col_offset, x.double(), weight64,
                expected, share.double(), expected_dw,
            )  # fmt: skip
            compare(dw, expected_dw, dtype, r)


@pytest.mark.parametrize("how", ["plain", "weighted", "indexed"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "num_features"), [c for c in CASES if c[0] != "chunk"])
def test_extremum_grad_source_goes_to_those_that_attain_it(
    kind: str, num_features: int, dtype: torch.dtype, how: str
) -> None:
    r = ranges(kind)  # read as lists by source: columns are destinations
    x = few_values(len(r.begin), num_features, dtype=dtype)
    w = weights(r, how, few_values)
    best = few_values(r.num_sources, num_features, dtype=wide(dtype), seed=7)
    share = normal(r.num_sources, num_features, dtype=wide(dtype), seed=5)
    (weight, dx), (weight64, expected) = both(
        dtype, w["weight"], normal(*x.shape, dtype=wide(dtype), seed=8)
    )
    kernels.extremum_grad_source(
        *r.csr, x, best, share, dx, weight=weight, weight_index=w["weight_index"]
    )
    run_reference(
        reference.extremum_grad_source, *r.csr, x.double(), weight64, w["weight_index"],
        best.double(), share.double(), expected,
    )  # fmt: skip
    compare(dx, expected, dtype, r)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("num_features", [1, 47, 257])
def test_gradients_find_the_rounded_product_that_the_extremum_took(
    num_features: int, dtype: torch.dtype
) -> None:
    """Products of arbitrary numbers are inexact: an unrounded or differently rounded one in a
    gradient would not equal the result, and that edge would get nothing."""
    r = ranges("plain")
    x = normal(r.num_sources, num_features, dtype=dtype)
    weight = normal(len(r.cols), dtype=wide(dtype), seed=4)
    out = torch.full((r.num_rows, num_features), -INF, dtype=wide(dtype))
    count = torch.zeros(out.shape, dtype=torch.int32)
    kernels.extremum(*r.csr, x, out, count, weight=weight, largest=True)
    share = torch.ones_like(out)

    t_offsets, order = kernels.group_by(r.cols, r.num_sources)
    row_of_edge = reference.edges_of(r.begin, r.end)[0].to(torch.int32)
    attained = torch.zeros(r.num_sources, num_features, dtype=wide(dtype))
    kernels.extremum_grad_source(
        t_offsets[:-1], t_offsets[1:], row_of_edge[order], x, out, share / count.clamp(min=1),
        attained, weight=weight, weight_index=order,
    )  # fmt: skip
    dw = torch.zeros_like(weight)
    kernels.extremum_grad_weight(*r.csr, x, out, share / count.clamp(min=1), dw, weight=weight)
    total = out[count > 0].double().sum()  # Σ w·x over what attains: both gradients sum to it
    tolerance = {"rtol": 1e-4, "atol": 1e-2}
    torch.testing.assert_close((attained.double() * x.double()).sum(), total, **tolerance)
    torch.testing.assert_close((dw.double() * weight.double()).sum(), total, **tolerance)


@pytest.mark.parametrize("num_features", [1, 33])
@pytest.mark.parametrize("largest", [True, False])
def test_nan_stays_and_infinite_messages_count(num_features: int, largest: bool) -> None:
    sign = 1.0 if largest else -1.0
    worst = -INF * sign
    x = torch.tensor([worst, NAN, 2.0 * sign, INF * sign]).repeat(num_features, 1).T.contiguous()
    cols = torch.tensor([0, 0, 2, 1, 3, 0, 2, 2], dtype=torch.int32)
    begin, end = torch.tensor([0, 2, 5, 8]), torch.tensor([2, 5, 8, 8])
    out = torch.full((4, num_features), worst)
    count = torch.zeros(4, num_features, dtype=torch.int32)
    args = {"largest": largest}
    kernels.extremum(begin, end, cols, x, out, count, **args)
    expected = torch.tensor([worst, NAN, 2.0 * sign, worst]).repeat(num_features, 1).T
    assert torch.equal(out.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    assert count[:, 0].tolist() == [2, 1, 2, 0]

    # a second block: nothing is better than NaN, and ties add up over blocks
    kernels.extremum(
        torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]), torch.tensor([3, 3, 2]).int(), x, out,
        count, rows=torch.tensor([0, 1, 2]).int(), **args,
    )  # fmt: skip
    assert out[1].isnan().all()
    assert count[:, 0].tolist() == [1, 1, 3, 0]
    assert out[0, 0] == INF * sign


@pytest.mark.parametrize("accumulate", [True, False])
def test_rows_that_are_not_listed_stay_as_they_are(accumulate: bool) -> None:
    out = torch.full((4, 2), 5.0)
    kernels.spmm(
        torch.tensor([0, 2]), torch.tensor([2, 2]), torch.tensor([0, 1]).int(), torch.ones(2, 2),
        out, rows=torch.tensor([3, 1]).int(), accumulate=accumulate,
    )  # fmt: skip
    assert out[:, 0].tolist() == ([5.0, 5.0, 5.0, 7.0] if accumulate else [5.0, 0.0, 5.0, 2.0])


@pytest.mark.parametrize("kind", ["plain", "huge", "chunk"])
def test_results_have_the_same_bits_on_one_and_two_threads(kind: str) -> None:
    r = ranges(kind)
    x = normal(r.num_sources, 100, dtype=torch.float32)
    weight = normal(len(r.cols), dtype=torch.float32, seed=4)
    before = torch.get_num_threads()

    def results() -> list[Tensor]:
        out, best = torch.zeros(r.num_rows, 100), torch.full((r.num_rows, 100), -INF)
        count, dw = torch.zeros(r.num_rows, 100, dtype=torch.int32), torch.zeros(len(r.cols))
        kernels.spmm(*r.csr, x, out, **r.place, weight=weight)
        kernels.extremum(*r.csr, x, best, count, **r.place, largest=True)
        kernels.sddmm(*r.csr, x, out, dw, **r.place)
        return [out, best, count, dw]

    try:
        torch.set_num_threads(1)
        one = results()
        torch.set_num_threads(2)
        two = results()
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, two))
