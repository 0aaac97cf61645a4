"""Arrays of more than 2³¹ elements, and lists of more than 2³¹ edges: positions are of 64 bits.

The large arrays are zeros that no memory stands for until it is written to, so they take what is
touched and no more. Each kernel runs on six rows and twenty edges, then on the same rows and edges
far apart in large arrays, and has to give the same bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.kernels import EdgeDropout
from tests.kernels.csr import generator, normal, wide

pytestmark = pytest.mark.usefixtures("isa")

H, F = 3, 9
ROWS = 2**28 + 8  # of 9 elements: 2.4e9 in all
BORDER = 2**31 // F  # the row in which element 2³¹ is
FAR = torch.tensor([0, ROWS // 2, BORDER - 1, BORDER, BORDER + 1, ROWS - 1])
EDGES = 2**31 + 12  # of which the last twenty are used, on both sides of 2³¹
N, E = len(FAR), 20


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Of a sparse file, which has no name any more and goes with the tensor."""
    size = torch.Size(shape).numel()
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(size * dtype.itemsize)
        flat = torch.from_file(file.name, shared=True, size=size, dtype=dtype)
    return flat.view(shape)


@dataclass(frozen=True)
class Place:
    """Where the six rows and the twenty edges are."""

    far_rows: bool = False
    far_edges: bool = False

    def rows(self, values: Tensor) -> Tensor:
        """values [N, *] by row, or large and zero elsewhere."""
        return self._put(values, ROWS, FAR) if self.far_rows else values.clone()

    def edges(self, values: Tensor) -> Tensor:
        """values [E, *] or [E] by edge, likewise."""
        at = torch.arange(EDGES - E, EDGES)
        return self._put(values, EDGES, at) if self.far_edges else values.clone()

    @staticmethod
    def _put(values: Tensor, size: int, at: Tensor) -> Tensor:
        large = zeros(size, *values.shape[1:], dtype=values.dtype)
        large[at] = values
        return large

    def back(self, values: Tensor) -> Tensor:
        """What is in the places of rows or edges, whichever it is; small ones as they are."""
        if len(values) == ROWS:
            assert not bool(values[FAR + torch.tensor([1, -1, -1, 2, 1, -1])].any())
            return values[FAR]
        return values[-E:] if len(values) == EDGES else values

    @property
    def index(self) -> Tensor:
        """int32 [N], what the rows are called."""
        return FAR.to(torch.int32) if self.far_rows else torch.arange(N, dtype=torch.int32)

    @property
    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """begin, end [N] and cols."""
        offsets = torch.tensor([0, 3, 3, 9, 12, 18, E]) + (EDGES - E if self.far_edges else 0)
        cols = torch.randint(N, (E,), generator=generator())
        return offsets[:-1], offsets[1:], self.edges(self.index[cols])


Case = Callable[[Place, torch.dtype], list[Tensor]]


def spmm(p: Place, dtype: torch.dtype) -> list[Tensor]:
    x, out = p.rows(normal(N, F, dtype=dtype)), p.rows(normal(N, F, dtype=wide(dtype)))
    kernels.spmm(*p.ends, x, out, rows=p.index, weight=p.edges(normal(E, dtype=wide(dtype))))
    return [out]


def spmm_indexed(p: Place, dtype: torch.dtype) -> list[Tensor]:
    x, out = p.rows(normal(N, F, dtype=dtype)), p.rows(normal(N, F, dtype=wide(dtype)))
    order = torch.arange(E - 1, -1, -1) + (EDGES - E if p.far_edges else 0)
    kernels.spmm(
        *p.ends, x, out, rows=p.index, weight=p.edges(normal(E, dtype=wide(dtype))),
        weight_index=p.edges(order),
    )  # fmt: skip
    return [out]


def sddmm(p: Place, dtype: torch.dtype) -> list[Tensor]:
    x, grad = p.rows(normal(N, F, dtype=dtype)), p.rows(normal(N, F, dtype=wide(dtype)))
    out = p.edges(normal(E, dtype=wide(dtype)))
    kernels.sddmm(*p.ends, x, grad, out, rows=p.index)
    return [out]


def extremum(p: Place, dtype: torch.dtype) -> list[Tensor]:
    x, out = p.rows(normal(N, F, dtype=dtype)), p.rows(normal(N, F, dtype=wide(dtype)) - 9)
    count = p.rows(torch.zeros(N, F, dtype=torch.int32))
    weight = p.edges(torch.ones(E, dtype=wide(dtype)))
    kernels.extremum(*p.ends, x, out, count, rows=p.index, weight=weight, largest=True)
    share, dw = p.rows(normal(N, F, dtype=wide(dtype))), p.edges(torch.zeros_like(p.back(weight)))
    kernels.extremum_grad_weight(*p.ends, x, out, share, dw, rows=p.index, weight=weight)
    dx = torch.zeros(N, F, dtype=wide(dtype))
    mine = p.back(x).contiguous()
    kernels.extremum_grad_source(*p.ends, mine, out, share, dx, weight=weight)
    return [out, count, dw, dx]


def rows(p: Place, dtype: torch.dtype) -> list[Tensor]:
    x, out = p.rows(normal(N, F, dtype=dtype)), torch.zeros(N, F, dtype=dtype)
    kernels.gather_rows(x, p.index, out)
    rounded = torch.zeros(N, F, dtype=torch.bfloat16)
    kernels.gather_rows(p.rows(normal(N, F, dtype=torch.float32)), p.index, rounded)
    kernels.scatter_add_rows(x, p.index, normal(N, F, dtype=dtype, seed=2))
    return [out, rounded, x]


def softmax(p: Place, dtype: torch.dtype) -> list[Tensor]:
    """out, top and total of attention, as at its beginning."""
    shapes = ((N, F), (N, H), (N, H))
    return [p.rows(torch.zeros(shape, dtype=wide(dtype)) + 1) for shape in shapes]


def dropped(p: Place) -> EdgeDropout:
    return EdgeDropout(p.edges(torch.arange(E) * 2**40), 0.3, seed=1, step=2, layer=3)


def gat(p: Place, dtype: torch.dtype) -> list[Tensor]:
    value, source = p.rows(normal(N, F, dtype=dtype)), p.rows(normal(N, H, dtype=dtype))
    target, edge = p.rows(normal(N, H, dtype=wide(dtype))), p.edges(normal(E, H, dtype=wide(dtype)))
    made = softmax(p, dtype)
    kernels.gat(
        *p.ends, value, source, target, *made, slope=0.2, rows=p.index, edge_logit=edge,
        dropout=dropped(p),
    )  # fmt: skip
    return made


def gat_grad(p: Place, dtype: torch.dtype) -> list[Tensor]:
    """Its targets are few: it sums over all of them."""
    near = Place(far_edges=p.far_edges)
    sums = wide(dtype)
    given = [normal(N, F, dtype=dtype), normal(N, H, dtype=dtype), normal(N, 4 * H, dtype=sums),
             normal(N, F, dtype=sums)]  # fmt: skip
    out = [torch.zeros(shape, dtype=sums) for shape in ((N, F), (N, H), (N, H))]
    edge, dedge = (p.edges(normal(E, H, dtype=sums, seed=seed)) for seed in (3, 4))
    index = p.edges(torch.arange(E - 1, -1, -1) + (EDGES - E if p.far_edges else 0))
    kernels.gat_grad(
        *near.ends, *given, *out, slope=0.2, index=index, edge_logit=edge, dedge_logit=dedge,
        dropout=dropped(p),
    )  # fmt: skip
    return [*out, dedge]


def gatv2(p: Place, dtype: torch.dtype) -> list[Tensor]:
    sums = wide(dtype)
    source, target = p.rows(normal(N, F, dtype=dtype)), p.rows(normal(N, F, dtype=sums))
    att, edge = normal(H, F // H, dtype=sums), p.edges(normal(E, F, dtype=sums))
    made = softmax(p, dtype)
    shared = {"slope": 0.2, "rows": p.index, "edge": edge, "dropout": dropped(p)}
    kernels.gatv2(*p.ends, source, target, att, *made, **shared)  # type: ignore[arg-type]
    state, dout = p.rows(normal(N, 3 * H, dtype=sums)), p.rows(normal(N, F, dtype=sums))
    grads = [p.rows(torch.zeros(N, F, dtype=sums)), torch.zeros_like(att)]
    dedge = p.edges(torch.zeros(E, F, dtype=sums))
    kernels.gatv2_grad_target(
        *p.ends, source, target, att, state, dout, *grads, dedge=dedge, **shared,  # type: ignore[arg-type]
    )  # fmt: skip
    dsource = p.rows(torch.zeros(N, F, dtype=sums))
    index = p.edges(torch.arange(E) + (EDGES - E if p.far_edges else 0))
    kernels.gatv2_grad_source(
        *p.ends, source, target, att, state, dout, dsource, index=index, **shared,  # type: ignore[arg-type]
    )  # fmt: skip
    return [*made, *grads, dedge, dsource]


def dot(p: Place, dtype: torch.dtype) -> list[Tensor]:
    sums = wide(dtype)
    key, value = (p.rows(normal(N, F, dtype=dtype, seed=seed)) for seed in (1, 2))
    query, edge = p.rows(normal(N, F, dtype=sums)), p.edges(normal(E, F, dtype=sums))
    made = softmax(p, dtype)
    shared = {"rows": p.index, "edge": edge, "dropout": dropped(p)}
    kernels.dot(*p.ends, key, value, query, *made, **shared)  # type: ignore[arg-type]
    state, dout = p.rows(normal(N, 3 * H, dtype=sums)), p.rows(normal(N, F, dtype=sums))
    dquery, dkey, dvalue = (p.rows(torch.zeros(N, F, dtype=sums)) for _ in range(3))
    dedge = p.edges(torch.zeros(E, F, dtype=sums))
    kernels.dot_grad_target(
        *p.ends, key, value, query, state, dout, dquery, dedge=dedge, **shared,  # type: ignore[arg-type]
    )  # fmt: skip
    index = p.edges(torch.arange(E) + (EDGES - E if p.far_edges else 0))
    kernels.dot_grad_source(
        *p.ends, key, value, query, state, dout, dkey, dvalue, index=index, **shared,  # type: ignore[arg-type]
    )  # fmt: skip
    return [*made, dquery, dedge, dkey, dvalue]


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (spmm, spmm_indexed, sddmm, extremum, rows, gat, gat_grad, gatv2, dot)
}
PLACES = [Place(far_rows=True), Place(far_edges=True)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("place", PLACES, ids=["rows", "edges"])
@pytest.mark.parametrize("name", CASES)
def test_far_places_give_the_bits_of_near_ones(name: str, place: Place, dtype: torch.dtype) -> None:
    near, far = CASES[name](Place(), dtype), CASES[name](place, dtype)
    assert any(bool(values.any()) for values in near)
    for here, there in zip(near, far):
        there = place.back(there)
        assert here.dtype == there.dtype
        assert torch.equal(here, there)
