"""Kernels of attention against the float64 reference, and the rules at their edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.kernels import reference_attention as reference
from tests.kernels.csr import DTYPES, Ranges, generator, normal, ranges, run_reference, wide

INF, NAN = float("inf"), float("nan")
SLOPE = 0.2
DRAW = (11, 2, 5)  # seed, step, layer
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-5}
pytestmark = pytest.mark.usefixtures("isa")

# (kind of ranges, heads, channels): tiles of one and four heads, odd numbers, wide rows
CASES = [
    ("plain", 3, 5), ("plain", 5, 32), ("plain", 8, 8), ("chunk", 1, 40), ("chunk", 4, 64),
    ("chunk", 4, 16), ("chunk", 2, 0), ("no edges", 4, 8),
]  # fmt: skip
BY_SOURCE = [(kind, *shape) for kind, *shape in CASES if kind != "chunk"] + [
    ("plain", *shape) for kind, *shape in CASES if kind == "chunk"
]


class Data:
    """Tensors in the dtype of rows or of sums, and the same numbers in float64."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.seed = dtype, 0

    def rows(self, *shape: int) -> tuple[Tensor, Tensor]:
        """Columns of wider rows."""
        return self._both(self.dtype, shape[0], shape[1] + 3, columns=shape[1])

    def sums(self, *shape: int) -> tuple[Tensor, Tensor]:
        return self._both(wide(self.dtype), *shape)

    def wide_sums(self, *shape: int) -> tuple[Tensor, Tensor]:
        return self._both(wide(self.dtype), shape[0], shape[1] + 3, columns=shape[1])

    def _both(
        self, dtype: torch.dtype, *shape: int, columns: int | None = None
    ) -> tuple[Tensor, Tensor]:
        self.seed += 1
        x = normal(*shape, dtype=dtype, seed=self.seed)
        exact = x.double().clone()  # of float64, too: both are written to
        return x[:, :columns], exact[:, :columns].contiguous()


def compare(got: Iterable[Tensor], expected: Iterable[Tensor], dtype: torch.dtype,
            longest: int = 1) -> None:  # fmt: skip
    for x, exact in zip(got, expected):
        torch.testing.assert_close(
            x.double(), exact, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * longest**0.5
        )


def options(how: str, num_edges: int) -> tuple[bool, kernels.EdgeDropout | None, tuple[Any, ...]]:
    """Whether edges have values; the dropout, and as an op takes it."""
    if "dropout" not in how:
        return "edges" in how, None, (None, 0.0, 0, 0, 0)
    ids = torch.randint(0, 2**40, (num_edges,), generator=generator(9))
    first_head = num_edges % 7
    drop = (ids, 0.3, *DRAW[:-1], DRAW[-1] + (first_head << 16))
    return "edges" in how, kernels.EdgeDropout(ids, 0.3, *DRAW, first_head), drop


def longest(r: Ranges) -> int:
    return max(1, int((r.end - r.begin).max())) if len(r.begin) else 1


HOW = pytest.mark.parametrize("how", ["plain", "edges and dropout"])
DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@HOW
@DTYPE
@pytest.mark.parametrize("name", ["gat", "gatv2", "dot"])
@pytest.mark.parametrize(("kind", "heads", "channels"), CASES)
def test_forward(
    kind: str, heads: int, channels: int, name: str, dtype: torch.dtype, how: str
) -> None:
    r, width, data = ranges(kind), heads * channels, Data(dtype)
    with_edge, dropout, drop = options(how, len(r.cols))
    sources = [data.rows(r.num_sources, width)]
    if name != "gatv2":
        sources.append(data.rows(r.num_sources, heads if name == "gat" else width))
    targets = [data.sums(r.num_rows, heads if name == "gat" else width)]
    if name == "gatv2":
        targets.append(data.sums(heads, channels))
    edge = (None, None)
    if with_edge:
        edge = data.sums(len(r.cols), heads if name == "gat" else width)
    edge_name = "edge_logit" if name == "gat" else "edge"
    slope = {} if name == "dot" else {"slope": SLOPE}
    for accumulate in (False, True):
        state = [data.sums(r.num_rows, n) for n in (width, heads, heads)]
        for x in state[2]:
            x.abs_()
        inputs = [*sources, *targets]
        getattr(kernels, name)(
            *r.csr, *(x for x, _ in inputs), *(x for x, _ in state), **r.place,
            **{edge_name: edge[0]}, **slope, dropout=dropout, accumulate=accumulate,
        )  # fmt: skip
        run_reference(
            getattr(reference, name), *r.csr, r.rows, r.col_offset, *(x for _, x in inputs),
            edge[1], *slope.values(), *drop, *(x for _, x in state), accumulate,
        )  # fmt: skip
        top, total = state[1], state[2]
        compare([top[0], state[0][0]], [top[1], state[0][1]], dtype, 4)
        torch.testing.assert_close(
            total[0].double(), total[1], rtol=10 * TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


def made_state(data: Data, num_rows: int, heads: int, slots: int) -> tuple[Tensor, Tensor]:
    """Top at 3, above most logits, 1 / total positive; the rest whatever."""
    state, exact = data.sums(num_rows, slots * heads)
    for x in (state, exact):
        x[:, :heads] = 3
        x[:, heads : 2 * heads].abs_()
    return state, exact


@HOW
@DTYPE
@pytest.mark.parametrize("name", ["gatv2", "dot"])
@pytest.mark.parametrize(("kind", "heads", "channels"), CASES)
def test_gradients_by_target(
    kind: str, heads: int, channels: int, name: str, dtype: torch.dtype, how: str
) -> None:
    r, width, data = ranges(kind), heads * channels, Data(dtype)
    with_edge, dropout, drop = options(how, len(r.cols))
    inputs = [data.rows(r.num_sources, width)]
    outputs = [data.sums(r.num_rows, width)]
    if name == "gatv2":
        inputs += [data.sums(r.num_rows, width), data.sums(heads, channels)]
        outputs.append(data.sums(heads, channels))
    else:
        inputs += [data.rows(r.num_sources, width), data.sums(r.num_rows, width)]
    after = [made_state(data, r.num_rows, heads, 3), data.sums(r.num_rows, width)]
    edge = data.sums(len(r.cols), width) if with_edge else (None, None)
    dedge = data.sums(len(r.cols), width) if with_edge else (None, None)
    slope = {} if name == "dot" else {"slope": SLOPE}
    getattr(kernels, f"{name}_grad_target")(
        *r.csr, *(x for x, _ in [*inputs, *after, *outputs]), **r.place, **slope, edge=edge[0],
        dedge=dedge[0], dropout=dropout,
    )  # fmt: skip
    run_reference(
        getattr(reference, f"{name}_grad_target"), *r.csr, r.rows, r.col_offset,
        *(x for _, x in inputs), edge[1], *(x for _, x in after),
        *slope.values(), *drop, *(x for _, x in outputs), dedge[1],
    )  # fmt: skip
    found = outputs + ([dedge] if with_edge else [])
    compare((x for x, _ in found), (x for _, x in found), dtype, 100 * channels * longest(r))


@HOW
@DTYPE
@pytest.mark.parametrize("name", ["gat", "gat of a mean", "gat anew", "gatv2", "dot"])
@pytest.mark.parametrize(("kind", "heads", "channels"), BY_SOURCE)
def test_gradients_by_source(
    kind: str, heads: int, channels: int, name: str, dtype: torch.dtype, how: str
) -> None:
    r, width, data = ranges(kind), heads * channels, Data(dtype)  # columns are targets here
    dout_width = channels if name == "gat of a mean" else width  # or all heads have the same
    anew = {"accumulate": False} if name == "gat anew" else {}
    name = name.split()[0]
    num_targets, num_edges = r.num_sources, len(r.cols)
    with_edge, dropout, drop = options(how, num_edges)
    index = torch.randperm(num_edges, generator=generator(4))
    rows = None
    if name != "gat" and with_edge:
        rows = torch.randperm(len(r.begin) + 7, generator=generator(5))[: len(r.begin)].int()
    num_sources = len(r.begin) + (0 if rows is None else 7)
    sources = [data.rows(num_sources, width)]
    outputs = [data.wide_sums(num_sources, width)]
    if name != "gatv2":
        second = heads if name == "gat" else width
        sources.append(data.rows(num_sources, second))
        outputs.append(data.wide_sums(num_sources, second))
    for written, _ in outputs if anew else []:
        written.fill_(NAN)
    targets = [] if name == "gat" else [data.sums(num_targets, width)]
    if name == "gatv2":
        targets.append(data.sums(heads, channels))
    after = [
        made_state(data, num_targets, heads, 4 if name == "gat" else 3),
        data.sums(num_targets, dout_width),
    ]
    edge_width = heads if name == "gat" else width
    edge = data.sums(num_edges, edge_width) if with_edge else (None, None)
    more: dict[str, Any] = {"rows": rows, "edge": edge[0]}
    if name == "gat":
        dedge = data.sums(num_edges, heads) if with_edge else (None, None)
        outputs.append(data.sums(num_targets, heads))
        more = {"edge_logit": edge[0], "dedge_logit": dedge[0]}
    slope = {} if name == "dot" else {"slope": SLOPE}
    function = "gat_grad" if name == "gat" else f"{name}_grad_source"
    getattr(kernels, function)(
        *r.csr, *(x for x, _ in [*sources, *targets, *after, *outputs]), **slope, **more, **anew,
        index=index if with_edge or dropout else None, dropout=dropout,
    )  # fmt: skip
    lists = (*r.csr, index) if name == "gat" else (*r.csr, rows, index)
    last = [dedge[1], not anew] if name == "gat" else []
    run_reference(
        getattr(reference, function), *lists, *(x for _, x in [*sources, *targets]),
        edge[1], *(x for _, x in after), *slope.values(), *drop, *(x for _, x in outputs), *last,
    )  # fmt: skip
    found = outputs + ([dedge] if name == "gat" and with_edge else [])
    most = max(longest(r), num_edges // num_targets)
    compare((x for x, _ in found), (x for _, x in found), dtype, 100 * max(1, channels) * most)


def test_rows_of_a_hundred_thousand_edges() -> None:
    how, dtype = "edges and dropout", torch.float32
    test_forward("huge", 4, 8, "gat", dtype, how)
    test_gradients_by_target("huge", 4, 8, "gatv2", dtype, how)
    test_gradients_by_source("huge", 4, 8, "gat", dtype, how)


@DTYPE
@pytest.mark.parametrize("width", [12, 4])  # that of all heads, or of one, which is for all
def test_head_dots(width: int, dtype: torch.dtype) -> None:
    data = Data(dtype)
    (x, x64), (_, _) = data.sums(70, width), data.sums(1, 1)
    y = normal(70, 12, dtype=dtype, seed=30)
    out, out64 = data.wide_sums(70, 3)
    kernels.head_dots(x, y, out)
    reference.head_dots(x64, y.double(), out64)
    compare([out], [out64], dtype)


def softmax_of(logits: list[float], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The coefficients of one row with these logits, and the sum of exponentials."""
    n = len(logits)
    logit = torch.tensor(logits, dtype=dtype).unsqueeze(1)
    out, top, total = torch.zeros(1, n, dtype=dtype), *torch.zeros(2, 1, 1, dtype=dtype)
    kernels.gat(
        torch.tensor([0]), torch.tensor([n]), torch.arange(n, dtype=torch.int32),
        torch.eye(n, dtype=dtype), logit, torch.zeros(1, 1, dtype=dtype), out, top, total,
        slope=1.0, accumulate=False,
    )  # fmt: skip
    return out[0], total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponentials_are_as_good_as_torchs(dtype: torch.dtype) -> None:
    logits = [0.0, *(-normal(2000, seed=3).abs() * 20).tolist(), -87.0, -90.0, -1e30]
    got, total = softmax_of(logits, dtype)
    exact = torch.tensor(logits, dtype=dtype).double().exp()
    exact = torch.where(exact < torch.finfo(dtype).tiny, 0, exact)
    rounding = torch.finfo(dtype).eps
    got = got.double() * total.double().item()
    torch.testing.assert_close(got, exact, rtol=8 * rounding, atol=1.2e-38)


@pytest.mark.parametrize("num_edges", [8, 16, 32, 63, 64, 65, 128, 256])
def test_rows_of_whole_runs(num_edges: int) -> None:
    logits = normal(num_edges, seed=4)
    got, _ = softmax_of(logits.tolist(), torch.float64)
    torch.testing.assert_close(got, logits.softmax(0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("heads", "channels"), [(4, 32), (3, 5), (1, 47)])
def test_gradients_of_rows_of_several_runs_are_written_as_a_whole(
    heads: int, channels: int
) -> None:
    """Written, they are what is added to zeros."""
    lengths = torch.tensor([3, 200, 0, 64, 1, 130, 2])
    offsets = torch.tensor([0, *lengths.cumsum(0).tolist()])
    width = heads * channels
    cols = torch.randint(0, 5, (int(offsets[-1]),), generator=generator(3), dtype=torch.int32)
    data = Data(torch.float32)
    source = [normal(7, width, seed=1, dtype=torch.float32), data.sums(7, heads)[0]]
    given = [made_state(data, 5, heads, 4)[0], data.sums(5, width)[0]]

    def gradients(first: float) -> list[Tensor]:
        outputs = [torch.full((7, n), first) for n in (width, heads)] + [torch.zeros(5, heads)]
        kernels.gat_grad(
            offsets[:-1], offsets[1:], cols, *source, *given, *outputs, slope=SLOPE,
            accumulate=first == 0,
        )  # fmt: skip
        return outputs

    for written, added in zip(gradients(NAN), gradients(0.0), strict=True):
        assert added.abs().max() > 0
        assert torch.equal(written, added)


def test_rows_of_minus_infinity_huge_and_unbounded_logits() -> None:
    assert softmax_of([-INF, -INF, -INF])[0].tolist() == [0, 0, 0]
    assert softmax_of([-INF, 1.0, 1.0])[0].tolist() == [0, 0.5, 0.5]
    for huge in (1e30, 3e38, -3e38):
        assert softmax_of([huge, huge, -INF])[0].tolist() == [0.5, 0.5, 0]
    assert softmax_of([0.0, INF])[0].isnan().all()
    assert softmax_of([0.0, NAN])[0].isnan().all()
    many = softmax_of([-INF] * 100 + [2.0] * 100 + [-INF] * 100)[0]
    torch.testing.assert_close(many[100:200], torch.full((100,), 0.01))
    assert not many[:100].any()


def test_lists_merge_whatever_their_order() -> None:
    """Edges of one row in two lists give what they give in one; an empty or lost list, nothing."""
    logit, value = 30 * normal(40, 2, seed=1), normal(40, 6, seed=2)
    cols, zeros = torch.arange(40, dtype=torch.int32), torch.zeros(1, 2, dtype=torch.float64)
    logit[:4] = -INF

    def run(*cuts: tuple[int, int]) -> Tensor:
        out = torch.full((1, 6), NAN, dtype=torch.float64)
        top, total = torch.full((2, 1, 2), NAN, dtype=torch.float64)
        for k, (begin, end) in enumerate(cuts):
            kernels.gat(
                torch.tensor([begin]), torch.tensor([end]), cols, value, logit, zeros, out, top,
                total, slope=1.0, accumulate=k > 0,
            )  # fmt: skip
        return out

    whole = run((0, 40))
    for cuts in (((0, 4), (4, 40)), ((20, 40), (0, 0), (0, 20)), ((7, 7), (4, 39), (39, 40))):
        torch.testing.assert_close(run(*cuts), whole, rtol=1e-12, atol=1e-12)
    assert run((3, 3)).tolist() == [[0] * 6]


def test_rows_that_are_not_listed_stay_as_they_are() -> None:
    out, top, total = torch.full((4, 2), 5.0), torch.zeros(4, 1), torch.ones(4, 1)
    kernels.gat(
        torch.tensor([0, 1]), torch.tensor([1, 1]), torch.zeros(1, dtype=torch.int32),
        torch.ones(1, 2), torch.zeros(1, 1), torch.zeros(4, 1), out, top, total, slope=0.2,
        rows=torch.tensor([3, 1]).int(), accumulate=False,
    )  # fmt: skip
    assert out[:, 0].tolist() == [5, 0, 5, 1]
    assert top[:, 0].tolist() == [0, -INF, 0, 0]


@pytest.mark.parametrize("kind", ["plain", "huge"])
def test_results_have_the_same_bits_on_one_and_two_threads(kind: str) -> None:
    r, data = ranges(kind), Data(torch.float32)
    n = max(r.num_rows, r.num_sources)
    x, y, dout = (data.sums(n, 32)[0] for _ in range(3))
    logit, att = data.sums(n, 4)[0], data.sums(4, 8)[0]
    state = made_state(data, n, 4, 4)[0]
    short = state[:, :12].contiguous()
    before = torch.get_num_threads()

    def results() -> list[Tensor]:
        out, a, b, c = torch.zeros(n, 32), *torch.zeros(3, n, 4)
        dx, dy, datt = torch.zeros(n, 32), torch.zeros(n, 32), torch.zeros(4, 8)
        kernels.gat(*r.csr, x, logit, logit, out, a, b, slope=SLOPE, accumulate=False)
        kernels.gat_grad(*r.csr, x, logit, state, dout, dx, b, c, slope=SLOPE)
        kernels.gatv2_grad_target(*r.csr, x, y, att, short, dout, dy, datt, slope=SLOPE)
        return [out, a, b, c, dx, dy, datt]

    try:
        torch.set_num_threads(1)
        one = results()
        torch.set_num_threads(2)
        two = results()
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, two))


def test_misuse_is_named() -> None:
    r = ranges("plain")
    x, logit = torch.ones(r.num_sources, 6), torch.ones(r.num_sources, 2)
    out, top, total = torch.ones(r.num_rows, 6), *torch.ones(2, r.num_rows, 2)
    target = torch.ones(r.num_rows, 2)

    def gat(**change: Any) -> None:
        args = {"value": x, "source_logit": logit, "target_logit": target, "out": out, "top": top,
                "total": total, "slope": 0.2} | change  # fmt: skip
        kernels.gat(*r.csr, **args)

    gat()
    with pytest.raises(ValueError, match=r"value must be float32, float64 or bfloat16, got int32"):
        gat(value=x.int())
    with pytest.raises(ValueError, match=r"value must be float32 of shape \[50, 6\].*\[50, 5\]"):
        gat(value=x[:, :5])
    with pytest.raises(ValueError, match=r"source_logit must be float32.*float64"):
        gat(source_logit=logit.double())
    with pytest.raises(ValueError, match="elements of a row of value must be adjacent"):
        gat(value=torch.ones(6, r.num_sources).T)
    with pytest.raises(ValueError, match="6 columns cannot be 4 heads"):
        gat(top=torch.ones(r.num_rows, 4), total=torch.ones(r.num_rows, 4),
            source_logit=torch.ones(r.num_sources, 4))  # fmt: skip
    with pytest.raises(ValueError, match=r"edge_logit must be float32 of shape"):
        gat(edge_logit=torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"dropout.ids must be int64"):
        gat(dropout=kernels.EdgeDropout(torch.ones(3), 0.5, 0, 0, 0))
    ids = torch.zeros(len(r.cols), dtype=torch.int64)
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        gat(dropout=kernels.EdgeDropout(ids, 2.0, 0, 0, 0))
    state, dout = torch.ones(r.num_sources, 8), torch.ones(r.num_sources, 6)
    grads = torch.ones(len(r.begin), 6), torch.ones(len(r.begin), 2), torch.ones(r.num_sources, 2)
    own = torch.ones(len(r.begin), 6), torch.ones(len(r.begin), 2)
    with pytest.raises(ValueError, match="index is needed"):
        kernels.gat_grad(*r.csr, *own, state, dout, *grads, slope=0.2,
                         dropout=kernels.EdgeDropout(ids, 0.5, 0, 0, 0))  # fmt: skip
    with pytest.raises(ValueError, match="dedge_logit is given without edge_logit"):
        kernels.gat_grad(*r.csr, *own, state, dout, *grads, slope=0.2,
                         dedge_logit=torch.ones(len(r.cols), 2))  # fmt: skip
    with pytest.raises(ValueError, match=r"state must be float32 of shape \[50, 8\]"):
        kernels.gat_grad(*r.csr, *own, state[:, :6].contiguous(), dout, *grads, slope=0.2)
