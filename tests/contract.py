"""The exactness contract: one check that every layer, schedule and number of ranks goes through.

Loss, every output row, and the gradients of the input, of the edge weights and of every parameter
equal those of the unmodified PyG model on the whole graph in one process.

`check_contract` is for models of a graph's features and edge weights; `reference_steps` and
`check_inputs` for models called as `model(inputs, edge_index)`, with rows of nodes and of edges by
name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.graphs import named, named_cut, named_parts

SCHEDULES = ["sequential", "sequential:remat=off", "sequential:prefetch=0", "oneshot"]


@dataclass(frozen=True)
class Case:
    """A model under the contract.

    ``make(features, classes)``; whether it takes edge weights; whether it replaces a node's own
    loops by the last of them, as `gcn_norm` does. The weights of the others then have no influence
    and a gradient of 0; PyG hands them the gradient of the last one (`index_put_` does, for
    positions that occur twice), which is the one place where we are right and PyG is not.
    """

    make: Callable[[int, int], torch.nn.Module]
    weighted: bool = False
    replaces_loops: bool = False


def assert_same(
    name: str, ours: Tensor | None, reference: Tensor | None, scale: float = 0.0
) -> None:
    """Element by element to float64 rounding: relative 1e-10, and for elements that are sums of
    terms which cancel, 1e-12 of `scale` or of the largest element."""
    if ours is None or reference is None:  # no gradient is as good as one of 0
        assert ours is None or not ours.any(), f"{name}: reference is None, ours is not"
        assert reference is None or not reference.any(), f"{name}: ours is None, reference is not"
        return
    if reference.numel():
        scale = max(scale, float(reference.abs().nan_to_num().max()))
    torch.testing.assert_close(
        ours, reference, rtol=1e-10, atol=1e-12 * scale, equal_nan=True,
        msg=lambda text: f"{name}: {text}",
    )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """How a graph is shared: one point of the contract's grid."""

    schedule: str
    max_block_bytes: int
    num_parts: int
    empty_part: bool = False
    placement: str = "destination"

    def build(self, graph_name: str, group: Group) -> DistributedGraph:
        parts = named_cut if self.placement == "vertex-cut" else named_parts
        return DistributedGraph.build(
            parts(graph_name, self.num_parts, self.empty_part), group, self.schedule,
            self.max_block_bytes, self.placement,
        )  # fmt: skip


def check_contract(
    group: Group, case: Case, graph_name: str, settings: list[Setting], steps: int = 2
) -> None:
    """Run on every rank. `steps` steps in a row with an evaluation after each, so that what one
    keeps for the next is used."""
    data = named(graph_name)
    torch.manual_seed(0)
    reference = case.make(data.x.shape[1], int(data.y.max()) + 1).double()
    start = copy.deepcopy(reference)
    expected = [run_reference(reference, data, case) for _ in range(steps)]
    for setting in settings:
        model = fullgraph.convert(copy.deepcopy(start))
        graph = setting.build(graph_name, group)
        try:
            for step in range(steps):
                ours = run_ours(model, data, graph, case.weighted)
                compare(f"step {step}", ours, expected[step], graph)
            for name, buffer in reference.named_buffers():
                assert_same(f"buffer {name}", dict(model.named_buffers())[name], buffer)
        except AssertionError as error:
            raise AssertionError(f"{graph_name}, {setting}: {error}") from None


def compare(
    what: str, ours: dict[str, Tensor | None], expected: dict[str, Tensor | None],
    graph: DistributedGraph, nodes: Collection[str] = ("x",),
    edges: Collection[str] = ("edge_weight",),
) -> None:  # fmt: skip
    """nodes, edges: names of the inputs that have a row for each of them."""
    where = dict.fromkeys(("out", "evaluation", *(f"{n}.grad" for n in nodes)), graph.node_id)
    where |= dict.fromkeys((f"{name}.grad" for name in edges), graph.edge_id)
    # The bias before a batch norm has a gradient of 0: terms as large as its neighbours' cancel.
    grads = [v for n, v in expected.items() if n.endswith(".grad") and v is not None]
    largest = max(float(g.abs().max()) for g in grads if g.numel())
    for name, value in expected.items():
        rows = where.get(name)
        value = value if rows is None or value is None else value[rows]
        scale = largest if name.endswith(".grad") else 0.0
        assert_same(f"{what}, {name}", ours[name], value, scale)


def last_of_loops(edge_index: Tensor) -> Tensor:
    """bool [E]: False for a self-loop that a later self-loop of the same node replaces."""
    last = {int(v): e for e, (u, v) in enumerate(edge_index.T) if u == v}
    keep = [u != v or last[int(v)] == e for e, (u, v) in enumerate(edge_index.T)]
    return torch.tensor(keep, dtype=torch.bool)


def run_reference(model: torch.nn.Module, data: Any, case: Case) -> dict[str, Tensor | None]:
    x = data.x.clone().requires_grad_()
    weight = data.edge_weight.clone().requires_grad_() if case.weighted else None
    model.zero_grad()
    out = model(x, data.edge_index, **({"edge_weight": weight} if case.weighted else {}))
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    if weight is not None and weight.grad is not None and case.replaces_loops:
        weight.grad[~last_of_loops(data.edge_index)] = 0
    results = _results(model, out, loss, x, weight)
    results["evaluation"] = evaluate(model, x, data.edge_index, weight)
    return results


def run_ours(
    model: torch.nn.Module, data: Any, graph: DistributedGraph, weighted: bool
) -> dict[str, Tensor | None]:
    x = data.x[graph.node_id].clone().requires_grad_()
    if weighted:  # the same tensor in every step, as learned weights are
        weight = graph.__dict__.setdefault("learned", data.edge_weight[graph.edge_id].clone())
        weight.requires_grad_().grad = None
    else:
        weight = None
    model.zero_grad()
    out = model(x, graph, **({"edge_weight": weight} if weighted else {}))
    loss = fullgraph.cross_entropy(out, graph.y, graph.train_mask, group=graph.group)
    loss.backward()
    fullgraph.sum_gradients(model, graph.group)
    results = _results(model, out, loss, x, weight)
    if weight is not None:
        results["edge_weight.grad"] = sum_of_shares(weight.grad, graph)
    results["evaluation"] = evaluate(model, x, graph, weight)
    return results


def sum_of_shares(grad: Tensor | None, graph: DistributedGraph) -> Tensor | None:
    """The gradient of values of edges; in a grid with slices of the columns, each of the ranks that
    share the edges has its slice's share of it."""
    if grad is None or graph.placement.feats == 1:
        return grad
    whole = grad.new_zeros(graph.meta.num_edges, *grad.shape[1:])
    whole[graph.edge_id] = grad
    return graph.group.all_reduce(whole, "gradients of edges")[graph.edge_id]


def evaluate(model: torch.nn.Module, x: Tensor, graph: Any, weight: Tensor | None) -> Tensor:
    """The output in evaluation mode, without gradients; the model is as before afterwards."""
    training = model.training
    with torch.no_grad():
        out = model.eval()(x, graph, **({} if weight is None else {"edge_weight": weight}))
    model.train(training)
    return out


def _results(
    model: torch.nn.Module, out: Tensor, loss: Tensor, x: Tensor, weight: Tensor | None
) -> dict[str, Tensor | None]:
    results: dict[str, Tensor | None] = {
        "loss": loss.detach(), "out": out.detach(), "x.grad": x.grad,
    }  # fmt: skip
    if weight is not None:
        results["edge_weight.grad"] = weight.grad
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        results[f"{name}.grad"] = None if grad is None else grad.clone()
    return results


# Models of named inputs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class InputsCase:
    """A model called as `model(inputs, edge_index)` on a graph.

    nodes, edges: rows of the whole graph, by name. Those that are floating point get a gradient,
    but for `constants`. `replaces_loops`: as in `Case`; of the input "edge_weight", the gradients
    of replaced loops are not compared, since PyG's are wrong.
    """

    make: Callable[[], torch.nn.Module]
    data: Any
    nodes: dict[str, Tensor]
    edges: dict[str, Tensor]
    constants: Collection[str] = ()
    replaces_loops: bool = False

    def inputs(self, rows: Tensor | None = None, edges: Tensor | None = None) -> dict[str, Tensor]:
        """Copies of the inputs, of some rows and edges, that collect gradients."""
        taken = {name: _take(value, rows) for name, value in self.nodes.items()}
        taken |= {name: _take(value, edges) for name, value in self.edges.items()}
        for name, value in taken.items():
            value.requires_grad_(value.is_floating_point() and name not in self.constants)
        return taken


def _take(value: Tensor, rows: Tensor | None) -> Tensor:
    return value.clone() if rows is None else value[rows].clone()


@dataclass(frozen=True)
class Reference:
    """What unmodified PyG does: the model before, and results and buffers step by step."""

    start: torch.nn.Module
    steps: list[dict[str, Tensor | None]]
    buffers: list[dict[str, Tensor]]


def reference_steps(case: InputsCase, steps: int = 2) -> Reference:
    torch.manual_seed(0)
    model = case.make().double()
    reference = Reference(copy.deepcopy(model), [], [])
    data = case.data
    for _ in range(steps):
        inputs = case.inputs()
        model.zero_grad()
        out = model(inputs, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        forget_replaced(case, inputs, None)
        reference.steps.append(_inputs_results(model, out, loss, inputs, data.edge_index))
        reference.buffers.append({name: b.clone() for name, b in model.named_buffers()})
    return reference


def forget_replaced(case: InputsCase, inputs: dict[str, Tensor], edges: Tensor | None) -> None:
    """0 for the gradients of loops that have no influence."""
    if case.replaces_loops and inputs["edge_weight"].grad is not None:
        replaced = ~last_of_loops(case.data.edge_index)
        inputs["edge_weight"].grad[replaced if edges is None else replaced[edges]] = 0


def inputs_step(
    model: torch.nn.Module, inputs: dict[str, Tensor], graph: DistributedGraph, case: InputsCase
) -> dict[str, Tensor | None]:
    """One step of a converted model, and an evaluation."""
    model.zero_grad()
    for value in inputs.values():
        value.grad = None
    out = model(inputs, graph)
    loss = fullgraph.cross_entropy(out, graph.y, graph.train_mask, group=graph.group)
    loss.backward()
    fullgraph.sum_gradients(model, graph.group)
    for name in case.edges:
        inputs[name].grad = sum_of_shares(inputs[name].grad, graph)
    forget_replaced(case, inputs, graph.edge_id)
    return _inputs_results(model, out, loss, inputs, graph)


def check_inputs(
    case: InputsCase, reference: Reference, graph: DistributedGraph, steps: int = 2
) -> None:
    """Run on every rank, on its share of `case.data`. A rank that finds a difference has taken
    part in every exchange before it raises, so that the ranks can go on together."""
    model = fullgraph.convert(copy.deepcopy(reference.start))
    inputs = case.inputs(graph.node_id, graph.edge_id)
    ours = [inputs_step(model, inputs, graph, case) for _ in range(steps)]
    for step in range(steps):
        expected = reference.steps[step]
        compare(f"step {step}", ours[step], expected, graph, case.nodes, case.edges)
    buffers = dict(model.named_buffers())
    for name, buffer in reference.buffers[steps - 1].items():
        assert_same(f"buffer {name}", buffers[name], buffer)


def _inputs_results(
    model: torch.nn.Module, out: Tensor, loss: Tensor, inputs: dict[str, Tensor], graph: Any
) -> dict[str, Tensor | None]:
    results: dict[str, Tensor | None] = {"loss": loss.detach(), "out": out.detach()}
    leaves = {name: value for name, value in inputs.items() if value.requires_grad}
    leaves |= {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, leaf in leaves.items():
        results[f"{name}.grad"] = None if leaf.grad is None else leaf.grad.clone()
    training = model.training
    with torch.no_grad():
        results["evaluation"] = model.eval()(inputs, graph)
    model.train(training)
    return results
