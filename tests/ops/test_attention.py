"""Attention as an operator against a plain formula over all edges in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import softmax

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.ops import attention
from fullgraph.ops.dropout import DropoutKey
from tests.graphs import multigraph, partitioned
from tests.ranks import run_ranks

H, C, D = 3, 5, 4
SLOPE = 0.2
KINDS = ["gat", "gatv2", "dot"]
INF = float("inf")


class Case(NamedTuple):
    kind: str
    edges: bool = False
    p: float = 0.0

    @property
    def key(self) -> DropoutKey | None:
        return DropoutKey(seed=11, step=3, layer=2) if self.p else None


CASES = [Case(kind, edges, p) for kind in KINDS for edges in (False, True) for p in (0.0, 0.4)]


class Inputs(NamedTuple):
    """What a case takes, by name, and what each tensor has rows of."""

    tensors: dict[str, Tensor]
    rows: dict[str, str]  # "node", "edge" or "all"

    def on(self, graph: DistributedGraph, dtype: torch.dtype) -> dict[str, Tensor]:
        take = {"node": graph.node_id, "edge": graph.edge_id, "all": slice(None)}
        return {
            name: x[take[self.rows[name]]].to(dtype).clone().requires_grad_()
            for name, x in self.tensors.items()
        }


def inputs(case: Case, num_nodes: int, num_edges: int, scale: float = 1.0) -> Inputs:
    g = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=g, dtype=torch.float64)

    n, e = num_nodes, num_edges
    names: dict[str, tuple[tuple[int, ...], str]] = {
        "gat": {"value": ((n, H, C), "node"), "source_logit": ((n, H), "node"),
                "target_logit": ((n, H), "node")},
        "gatv2": {"source": ((n, H, C), "node"), "target": ((n, H, C), "node"),
                  "att": ((H, C), "all")},
        "dot": {"query": ((n, H, C), "node"), "key_rows": ((n, H, C), "node"),
                "value": ((n, H, C), "node")},
    }[case.kind]  # fmt: skip
    if case.edges and case.kind == "gat":
        names["edge_logit"] = ((e, H), "edge")
    elif case.edges:
        names["edge_attr"], names["edge_weight"] = ((e, D), "edge"), ((H * C, D), "all")
    return Inputs(
        {name: normal(*shape) for name, (shape, _) in names.items()},
        {name: rows for name, (_, rows) in names.items()},
    )


def ours(graph: DistributedGraph, case: Case, tensors: dict[str, Tensor]) -> Tensor:
    run: Callable[..., Tensor] = getattr(attention, f"{case.kind}_attention")
    slope = {} if case.kind == "dot" else {"negative_slope": SLOPE}
    return run(graph, **tensors, **slope, p=case.p, key=case.key, layer="att")


def plain(data: Data, case: Case, t: dict[str, Tensor]) -> Tensor:
    """The formula as PyG's layers have it, over every edge of the whole graph."""
    j, i = data.edge_index
    term: Tensor | float = 0.0
    if "edge_attr" in t:
        term = (t["edge_attr"] @ t["edge_weight"].T).view(-1, H, C)
    if case.kind == "gat":
        raw = t["source_logit"][j] + t["target_logit"][i] + t.get("edge_logit", 0.0)
        logit, value = torch.nn.functional.leaky_relu(raw, SLOPE), t["value"][j]
    elif case.kind == "gatv2":
        total = t["source"][j] + t["target"][i] + term
        logit = (torch.nn.functional.leaky_relu(total, SLOPE) * t["att"]).sum(2)
        value = t["source"][j]
    else:
        logit = (t["query"][i] * (t["key_rows"][j] + term)).sum(2) / C**0.5
        value = t["value"][j] + term
    weight = softmax(logit, i, num_nodes=data.num_nodes)
    if case.key is not None:
        keep = torch.ones_like(weight)
        kernels.dropout(keep, torch.arange(len(j)), keep, p=case.p, **case.key._asdict())
        weight = weight * keep
    out = value.new_zeros(data.num_nodes, H, C)
    return out.index_add(0, i, weight.unsqueeze(2) * value)


@cache
def expected(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Of the multigraph, with inputs rounded to dtype: the result, its gradient, and those of the
    inputs."""
    data = multigraph()
    given = inputs(case, data.num_nodes, data.edge_index.shape[1])
    tensors = {name: x.to(dtype).double().requires_grad_() for name, x in given.tensors.items()}
    out = plain(data, case, tensors)
    g = torch.Generator().manual_seed(6)
    dout = torch.randn(out.shape, generator=g, dtype=torch.float64).to(dtype).double()
    out.backward(dout)
    return out.detach(), dout, {name: x.grad for name, x in tensors.items()}


def _agrees(
    group: Group, schedules: list[str], cases: list[Case], block_bytes: int, dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    data = multigraph()
    parts = partitioned(data, 3)
    for schedule in schedules:
        graph = DistributedGraph.build(parts, group, schedule, block_bytes)
        for case in cases:
            out, dout, grads = expected(case, dtype)
            given = inputs(case, data.num_nodes, data.edge_index.shape[1])
            tensors = given.on(graph, dtype)
            got = ours(graph, case, tensors)
            got.backward(dout[graph.node_id].to(dtype))
            torch.testing.assert_close(
                got.double(), out[graph.node_id], rtol=tolerance, atol=tolerance
            )  # fmt: skip
            assert got.dtype == dtype
            take = {"node": graph.node_id, "edge": graph.edge_id, "all": slice(None)}
            for name, x in tensors.items():
                grad = x.grad.double()
                if given.rows[name] == "all":
                    group.all_reduce(grad, name)
                torch.testing.assert_close(
                    grad, grads[name][take[given.rows[name]]], rtol=tolerance,
                    atol=tolerance * float(grads[name].abs().max()),
                    msg=lambda text, name=name, case=case: f"{case}: {name}: {text}",
                )  # fmt: skip
                assert x.grad.dtype == dtype


SCHEDULES = ["sequential", "sequential:remat=off", "oneshot"]


@pytest.mark.parametrize("block_bytes", [3000, 1 << 20])  # some rows a message, and all in one
@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_and_gradients_are_those_of_one_process(size: int, block_bytes: int) -> None:
    run_ranks(_agrees, size, SCHEDULES, CASES, block_bytes, torch.float64, 1e-10)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 6e-2)], ids=str
)
def test_narrow_dtypes_agree_to_their_rounding(dtype: torch.dtype, tolerance: float) -> None:
    run_ranks(_agrees, 2, ["sequential"], CASES, 500, dtype, tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_by_finite_differences(case: Case) -> None:
    data = multigraph()
    data.edge_index = data.edge_index[:, :60]
    del data.edge_weight
    graph = DistributedGraph.build(partitioned(data, 2), Group(), None, 700)
    tensors = inputs(case, data.num_nodes, 60).on(graph, torch.float64)

    def f(*values: Tensor) -> Tensor:
        return ours(graph, case, dict(zip(tensors, values)))

    assert torch.autograd.gradcheck(f, tuple(tensors.values()), fast_mode=True)


def graph_of(edges: list[tuple[int, int]], num_nodes: int) -> DistributedGraph:
    """Of one part, whose rows are therefore the nodes, and whose edges are in order of target."""
    index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    data = Data(edge_index=index, num_nodes=num_nodes, x=torch.zeros(num_nodes, 1),
                y=torch.zeros(num_nodes, dtype=torch.int64),
                train_mask=torch.ones(num_nodes, dtype=torch.bool))  # fmt: skip
    return DistributedGraph.build(partitioned(data, 1), Group())


def _attend(logits: list[float], p: float = 0.0) -> tuple[Tensor, list[Tensor]]:
    """Edges with these logits into node 0, from nodes whose value is their number; one head."""
    n = len(logits) + 1
    graph = graph_of([(k, 0) for k in range(1, n)], n)
    value = torch.arange(n, dtype=torch.float32).view(n, 1, 1).requires_grad_()
    logit = torch.tensor([[0.0], *([x] for x in logits)], requires_grad=True)
    target = torch.zeros(n, 1, requires_grad=True)
    key = DropoutKey(0, 0, 0)
    out = attention.gat_attention(graph, value, logit, target, p=p, key=key)
    out.sum().backward()
    assert not out[1:].any()  # no edges
    return out[0, 0, 0], [value.grad.view(-1), logit.grad.view(-1), target.grad.view(-1)]


def test_a_row_whose_logits_are_all_minus_infinity_gives_zero_and_no_gradient() -> None:
    out, grads = _attend([-INF, -INF, -INF])
    assert out == 0
    assert not any(grad.any() for grad in grads)  # nor NaN, which is true


def test_edges_of_minus_infinity_do_not_count() -> None:
    out, grads = _attend([-INF, 1.0, 1.0, -INF])
    assert out == 2.5
    assert grads[0].tolist() == [0, 0, 0.5, 0.5, 0]
    assert grads[1].tolist() == pytest.approx([0, 0, -0.25, 0.25, 0])


@pytest.mark.parametrize("huge", [1e30, 3e38, -1e30])
def test_huge_logits_that_tie_share(huge: float) -> None:
    out, grads = _attend([huge, huge, -3e38])
    assert out == 1.5
    assert grads[0].tolist() == [0, 0.5, 0.5, 0]
    slope = 1.0 if huge > 0 else SLOPE
    assert grads[1].tolist() == pytest.approx([0, -0.25 * slope, 0.25 * slope, 0])


@pytest.mark.parametrize("bad", [INF, float("nan")])
def test_infinite_and_nan_logits_make_the_row_nan(bad: float) -> None:
    out, _ = _attend([1.0, bad, 2.0])
    assert out.isnan()


def test_dropping_everything_gives_zero() -> None:
    out, grads = _attend([1.0, 2.0], p=1.0)
    assert out == 0
    assert not any(grad.any() for grad in grads)


def _kept(group: Group, block_bytes: int) -> dict[int, list[bool]]:
    """For each edge, whether each head kept it, seen from gradients: only kept values get one."""
    data = multigraph()
    graph = DistributedGraph.build(partitioned(data, 3), group, None, block_bytes)
    case = Case("gat", edges=True, p=0.4)
    tensors = inputs(case, data.num_nodes, data.edge_index.shape[1]).on(graph, torch.float64)
    ones = torch.ones_like(tensors["value"]).requires_grad_()
    # With values of 1 the result is the sum of kept coefficients; its square's gradient by the
    # logit of an edge differs in sign with whether the edge was kept.
    out = ours(graph, case, {**tensors, "value": ones})
    out.sum().backward()
    mean = out.detach()[graph.edge_target.long(), :, 0]
    kept = tensors["edge_logit"].grad > 0
    alone = (graph.in_degree == 1)[graph.edge_target.long()]
    same = (mean == 0) | ((mean - 1 / (1 - case.p)).abs() < 1e-9)  # all dropped, or all kept
    clear = ~(alone.unsqueeze(1) | same)
    return {
        e: [(bool(k) if c else None) for k, c in zip(ks, cs)]
        for e, ks, cs in zip(graph.edge_id.tolist(), kept.tolist(), clear.tolist())
    }


@pytest.mark.parametrize("block_bytes", [1000, 1 << 20])
def test_the_mask_depends_on_the_edge_and_head_alone(block_bytes: int) -> None:
    data = multigraph()
    num_edges = data.edge_index.shape[1]
    keep = torch.ones(num_edges, H)
    key = Case("gat", p=0.4).key
    kernels.dropout(keep, torch.arange(num_edges), keep, p=0.4, **key._asdict())
    for size in (1, 2, 3):
        masks: dict[int, Any] = {}
        for of_rank in run_ranks(_kept, size, block_bytes):
            masks.update(of_rank)
        assert len(masks) == num_edges
        seen = 0
        for e, of_heads in masks.items():
            for h, kept in enumerate(of_heads):
                if kept is not None:
                    seen += 1
                    assert kept == bool(keep[e, h]), (e, h)
        assert seen > num_edges


def _bits(group: Group, kind: str) -> list[bytes]:
    data = multigraph()
    graph = DistributedGraph.build(partitioned(data, 3), group, "sequential", 400)
    case = Case(kind, edges=True, p=0.3)
    tensors = inputs(case, data.num_nodes, data.edge_index.shape[1]).on(graph, torch.float32)
    out = ours(graph, case, tensors)
    out.square().sum().backward()
    return [out.detach().numpy().tobytes(), *(x.grad.numpy().tobytes() for x in tensors.values())]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_repeats_bit_for_bit(kind: str) -> None:
    assert run_ranks(_bits, 2, kind) == run_ranks(_bits, 2, kind)


def _saves_nothing_of_edges(group: Group) -> None:
    """Saved are tensors of nodes, inputs, and with remat off what was received."""
    data = multigraph()
    for schedule in SCHEDULES:
        graph = DistributedGraph.build(partitioned(data, 3), group, schedule)
        for case in CASES:
            tensors = inputs(case, data.num_nodes, data.edge_index.shape[1])
            given = tensors.on(graph, torch.float64)
            saved: list[Tensor] = []
            with torch.autograd.graph.saved_tensors_hooks(saved.append, id):
                ours(graph, case, given)
            n = graph.num_owned
            inputs_size = sum(x.numel() for x in given.values())
            halo = 0 if graph.schedule.remat else graph.plan.halo_offsets[-1] * 2 * H * C
            assert sum(x.numel() for x in saved) <= inputs_size + n * H * C + 2 * n * H + halo


def test_nothing_of_the_edges_is_saved() -> None:
    run_ranks(_saves_nothing_of_edges, 2)


def _refetches(group: Group) -> None:
    data = multigraph()
    graph = DistributedGraph.build(partitioned(data, 2), group)
    case = Case("gat")
    fetch, back = (sum(n) for n in graph.plan.predicted_bytes((H * C + H) * 8))
    for name, again in zip(SCHEDULES, (fetch, 0, 0)):
        view = graph.with_schedule(name)
        tensors = inputs(case, data.num_nodes, 0).on(graph, torch.float64)
        graph.traffic.clear()
        out = ours(view, case, tensors)
        assert graph.traffic.bytes_sent == fetch
        graph.traffic.clear()
        out.sum().backward()
        assert graph.traffic.bytes_sent == back + again, name


def test_the_schedule_decides_whether_rows_travel_twice() -> None:
    run_ranks(_refetches, 2)


def test_the_gradient_has_no_gradient() -> None:
    graph = graph_of([(0, 1), (2, 1)], 3)
    value = torch.ones(3, 1, 2, requires_grad=True)
    logit = torch.ones(3, 1, requires_grad=True)
    out = attention.gat_attention(graph, value, logit, logit)
    (grad,) = torch.autograd.grad(out.square().sum(), value, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_misuse_is_named() -> None:
    graph = graph_of([(0, 1)], 3)
    value, logit = torch.ones(3, 2, 4), torch.ones(3, 2)
    gat = attention.gat_attention
    with pytest.raises(ValueError, match=r"value must be of shape .* got \(3, 8\)"):
        gat(graph, value.flatten(1), logit, logit)
    with pytest.raises(ValueError, match=r"value must be .* \(3, 2, 4\), got .*\(2, 2, 4\)"):
        gat(graph, value[:2], logit, logit)
    with pytest.raises(ValueError, match=r"target_logit must be .* \(3, 2\).*\(3, 1\)"):
        gat(graph, value, logit, logit[:, :1])
    with pytest.raises(ValueError, match=r"edge_logit must be .* \(1, 2\)"):
        gat(graph, value, logit, logit, edge_logit=torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        gat(graph, value, logit, logit, p=1.5)
    with pytest.raises(ValueError, match="needs a key"):
        gat(graph, value, logit, logit, p=0.5)
    with pytest.raises(ValueError, match="both be given"):
        attention.dot_attention(graph, value, value, value, edge_attr=torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"edge_weight must be .* \(8, 2\), got .*\(2, 8\)"):
        attention.gatv2_attention(
            graph, value, value, torch.ones(2, 4), edge_attr=torch.ones(1, 2),
            edge_weight=torch.ones(2, 8),
        )  # fmt: skip
