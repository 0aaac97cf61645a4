"""Every layer of PyG that passes messages: exact on 1 to 4 ranks, or refused with a reason."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.graph.partition import PartitionedInMemory
from tests.contract import (
    InputsCase,
    Reference,
    Setting,
    check_inputs,
    inputs_step,
    reference_steps,
)
from tests.graphs import partitioned
from tests.layer_cases import (
    CASES,
    CLASSES,
    LayerCase,
    all_layers,
    exact_layers,
    graph_data,
    make_inputs,
    table,
)
from tests.ranks import run_ranks

BY_NAME = {case.name: case for case in CASES}
TABLE = Path(__file__).parents[1] / "docs" / "layers.md"


# In one process -----------------------------------------------------------------------------------


def on_graph(case: LayerCase, graph: str) -> InputsCase:
    data, inputs = graph_data(graph), make_inputs(graph)
    return InputsCase(
        partial(case.make, data.x.shape[1], CLASSES),
        data,
        {name: rows for name, rows in inputs.nodes.items() if name in case.takes},
        {name: rows for name, rows in inputs.edges.items() if name in case.takes},
        case.constants,
        case.replaces_loops,
    )


@cache
def reference(name: str, graph: str) -> Reference:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "We do not recommend using the non-optimized CPU version")
        return reference_steps(on_graph(BY_NAME[name], graph))


def same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def check_pyg(group: Group, layer: str) -> None:
    """What every exact case of a layer is compared with is worth comparing with."""
    for case in CASES:
        if case.layer == layer and case.refused is None:
            try:
                check_reference(case)
            except AssertionError as error:
                raise AssertionError(f"{case.name}: {error}") from None


def check_reference(case: LayerCase) -> None:
    """PyG repeats itself, is finite, and on some graph every input and parameter has influence."""
    without: list[set[str]] = []
    for graph in case.runs_on:
        steps = reference(case.name, graph).steps
        for step, again in zip(steps, reference.__wrapped__(case.name, graph).steps):
            assert all(same(again[key], value) for key, value in step.items()), graph
            assert is_finite(step), graph
        without.append(without_influence(steps[0]))
        assert len(without[-1]) < sum(key.endswith(".grad") for key in steps[0]), graph
    never = set.intersection(*without)
    for part in case.idle:
        found = {key for key in never if part in f".{key}"}
        assert found, f"{part} has an influence"
        never -= found
    assert not never, f"{never} have no influence on any graph"
    for graph in case.without:
        assert not_comparable(case, graph), f"runs on {graph} after all"


def is_finite(step: dict[str, Tensor | None]) -> bool:
    return all(value is None or bool(value.isfinite().all()) for value in step.values())


def without_influence(step: dict[str, Tensor | None]) -> set[str]:
    """The inputs and parameters with a gradient of 0, to rounding."""
    grads = {key: value for key, value in step.items() if key.endswith(".grad")}
    return {k for k, v in grads.items() if v is None or not bool((v.abs() > 1e-9).any())}


def not_comparable(case: LayerCase, graph: str) -> bool:
    try:
        step = reference(case.name, graph).steps[0]
    except (RuntimeError, IndexError):
        return True
    grads = {key for key in step if key.endswith(".grad")}
    return not is_finite(step) or without_influence(step) == grads


@pytest.mark.parametrize("layer", exact_layers())
def test_pyg_itself_gives_something_to_compare(layer: str) -> None:
    run_ranks(check_pyg, 1, layer)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(CASES)


def test_every_layer_of_pyg_is_in_the_table() -> None:
    assert {case.layer for case in CASES} == set(all_layers())
    assert len(all_layers()) >= 57
    assert len(exact_layers()) >= 50


def test_the_table_in_the_docs_is_up_to_date() -> None:
    assert TABLE.read_text() == table(), "run: python -m tests.layer_cases > docs/layers.md"


# On ranks -----------------------------------------------------------------------------------------


@cache
def parts(graph: str, num_parts: int, empty_part: bool) -> PartitionedInMemory:
    return partitioned(graph_data(graph), num_parts, empty_part)


def settings(size: int, graph: str) -> list[tuple[Setting, int]]:
    """How a graph is shared, and for how many steps.

    The usual graph under both schedules; the smallest only on some numbers of ranks, under one of
    them. One of two has more parts than ranks, one of them empty.
    """
    layouts = [(size, False), (5, True)]
    # On two ranks small enough that a block is fetched in several messages; on one rank, which has
    # no messages, that its block is walked in several pieces.
    block_bytes = {1: 5000, 2: 500}.get(size, 1000)
    chosen = [
        Setting(schedule, block_bytes, *layouts[(size + k) % 2])
        for k, schedule in enumerate(["sequential", "oneshot"])
    ]
    if graph in ("tiny", "no_edges"):
        here = size in ((2, 4) if graph == "tiny" else (1, 3))
        return [(chosen[size // 2 % 2], 1)] if here else []
    return [(chosen[0], 2 if size == 2 else 1), (chosen[1], 1)]


def build(group: Group, graph: str, setting: Setting) -> DistributedGraph:
    return DistributedGraph.build(
        parts(graph, setting.num_parts, setting.empty_part),
        group,
        setting.schedule,
        setting.max_block_bytes,
    )


def check_layer(group: Group, layer: str) -> dict[str, str]:
    """All exact cases of a layer: what differs first in each in which something does."""
    failures: dict[str, str] = {}
    graphs: dict[tuple[str, Setting], DistributedGraph] = {}
    for case in CASES:
        if case.layer != layer or case.refused is not None:
            continue
        for graph in case.runs_on:
            for setting, steps in settings(group.size, graph):
                if (graph, setting) not in graphs:
                    graphs[graph, setting] = build(group, graph, setting)
                on, expected = on_graph(case, graph), reference(case.name, graph)
                where = f"on {graph}, {setting}"
                try:
                    check_inputs(on, expected, graphs[graph, setting], steps)
                except (AssertionError, fullgraph.UnsupportedLayerError) as error:
                    failures.setdefault(case.options, f"{where}: {error}")
                except Exception as error:
                    raise RuntimeError(f"in {case.name} {where}") from error
    return failures


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("layer", exact_layers())
def test_equals_pyg_in_one_process(layer: str, size: int) -> None:
    failures: dict[str, str] = {}
    for rank, found in enumerate(run_ranks(check_layer, size, layer)):
        for options, what in found.items():
            failures.setdefault(options, f"{layer}: {options}: rank {rank} {what}")
    assert not failures, "\n".join(failures.values())


def refusal(group: Group, name: str) -> tuple[str, bool]:
    """The message, and whether it came with `convert`."""
    case = BY_NAME[name]
    on = on_graph(case, "multigraph")
    torch.manual_seed(0)
    model = on.make().double()
    try:
        model = fullgraph.convert(copy.deepcopy(model))
    except fullgraph.UnsupportedLayerError as error:
        return str(error), True
    graph = build(group, "multigraph", settings(group.size, "multigraph")[0][0])
    try:
        inputs_step(model, on.inputs(graph.node_id, graph.edge_id), graph, on)
    except NotImplementedError as error:
        return str(error), False
    raise AssertionError(f"{name} is not refused")


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", [case.name for case in CASES if case.refused is not None])
def test_is_refused_with_the_reason(name: str, size: int) -> None:
    case = BY_NAME[name]
    for message, by_convert in run_ranks(refusal, size, name):
        assert case.refused is not None
        assert case.refused in message
        if by_convert:
            assert any(f"layer {path!r} ({case.layer})" in message for path in paths(case.make))


def paths(make: Callable[[int, int], torch.nn.Module]) -> list[str]:
    """Of the layers in a model."""
    return [path for path, _ in make(6, CLASSES).named_modules()]
