"""Every placement and schedule is predicted; the fastest exact one that fits is recommended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fullgraph.comm.placement import Placement
from fullgraph.planner.choose import Candidate, Plan, choose, placements
from fullgraph.planner.figures import GraphFigures, Shares, parse_figures
from fullgraph.planner.machine import PROCESS_BYTES, Machine
from fullgraph.planner.shares import expect_shares
from fullgraph.training.models import ModelOptions
from tests.planner.graphs import MACHINE

FIGURES = parse_figures("nodes=20000,edges=200000,features=32,classes=5,halo=0.5")
MODEL = ModelOptions("sage", layers=2, hidden=16)


def _plan(
    workers: int = 4, machine: Machine = MACHINE, model: ModelOptions = MODEL, **options: object
) -> Plan:
    def shares_of(placement: Placement) -> Shares:
        return expect_shares(FIGURES, workers, placement)

    return choose("GRAPH", FIGURES, shares_of, model, workers, machine, **options)  # type: ignore[arg-type]


def test_every_placement_of_the_workers_is_open() -> None:
    assert [str(p) for p in placements(1)] == ["destination"]
    found = {str(p) for p in placements(4, cut=True)}
    assert found == {
        "destination", "vertex-cut", "grid:2x2x1", "grid:1x4x1", "grid:2x1x2", "grid:1x2x2",
        "grid:1x1x4",
    }  # fmt: skip


def test_candidates_are_every_placement_under_every_schedule_fastest_first() -> None:
    plan = _plan()
    pairs = {(c.placement, c.schedule) for c in plan.candidates}
    assert len(plan.candidates) == len(pairs) == 6 * 2
    seconds = [c.seconds for c in plan.candidates]
    assert seconds == sorted(seconds)
    assert plan.best is plan.candidates[0]
    for candidate in plan.candidates:
        assert candidate.memory > PROCESS_BYTES
        assert candidate.sent > 0
        assert 0 < candidate.compute <= candidate.seconds


def test_locality_speaks_for_destination_and_none_for_a_grid() -> None:
    slow = replace(MACHINE, network=replace(MACHINE.network, bandwidth=1e6))
    plan = _plan(16, slow)
    assert plan.best is not None
    assert plan.best.placement == "destination"
    sent = {c.placement: c.sent for c in plan.candidates}

    def without_locality(placement: Placement) -> Shares:
        return expect_shares(replace(FIGURES, halo=None), 16, placement)

    plan = choose("GRAPH", FIGURES, without_locality, MODEL, 16, slow)
    assert plan.best is not None
    assert plan.best.placement.startswith("grid:")
    assert {c.placement: c.sent for c in plan.candidates}["destination"] > sent["destination"]


def test_what_does_not_fit_is_marked_and_not_recommended() -> None:
    memory = sorted(c.memory for c in _plan().candidates)
    plan = _plan(machine=replace(MACHINE, memory=memory[3]))
    fitting = [c for c in plan.candidates if c.fits]
    assert [c.memory <= memory[3] for c in plan.candidates] == [c.fits for c in plan.candidates]
    assert plan.best is fitting[0]
    assert plan.candidates[: len(fitting)] == tuple(fitting)
    nothing = _plan(machine=replace(MACHINE, memory=memory[0] - 1))
    assert nothing.best is None
    assert nothing.smallest is not None
    assert nothing.smallest.memory == memory[0]


def test_an_approximate_schedule_is_never_recommended() -> None:
    fast, exact = Candidate("destination", "x", exact=False), Candidate("destination", "y")
    plan = Plan("g", FIGURES, MODEL, 1, MACHINE, (fast, exact))
    assert plan.best is exact
    assert replace(plan, candidates=(fast,)).best is fast  # unless only such were asked for


def test_a_wire_of_bf16_halves_the_bytes_and_is_approximate() -> None:
    wide, narrow = (_plan(2, wire=wire, among=["destination"]) for wire in ("float32", "bf16"))
    for one, other in zip(wide.candidates, narrow.candidates):
        assert (one.sent, one.exact, other.exact) == (2 * other.sent, True, False)
    assert narrow.command(narrow.candidates[0]).endswith("--wire bf16")
    with pytest.raises(ValueError, match="wire must be 'float32'"):
        _plan(2, wire="bf17")


def test_approximate_schedules_move_less_and_say_so() -> None:
    plan = _plan(4, among=["destination"], schedules=["oneshot", "delayed:5", "local"])
    found = {c.schedule: c for c in plan.candidates}
    assert [found[s].exact for s in ("oneshot", "delayed:5", "local")] == [True, False, False]
    assert found["delayed:5"].sent == pytest.approx(found["oneshot"].sent / 5, rel=0.01)
    assert found["local"].sent == 0
    assert plan.best is found["oneshot"]


def test_what_cannot_run_is_refused_with_the_reason() -> None:
    """One class does not make four slices of columns."""
    figures = replace(FIGURES, classes=2)

    def shares_of(placement: Placement) -> Shares:
        if placement.kind == "vertex-cut":
            raise ValueError("no cut")
        return expect_shares(figures, 4, placement)

    among = ["vertex-cut", "grid:1x1x4"]
    plan = choose("GRAPH", figures, shares_of, MODEL, 4, MACHINE, among=among)
    reasons = {(c.placement, c.schedule): c.refused for c in plan.candidates}
    assert reasons["vertex-cut", "any"] == "no cut"
    assert "4" in reasons["grid:1x1x4", "oneshot"]
    assert plan.best is None


def test_the_command_is_the_one_that_runs_it() -> None:
    plan = _plan(4, model=replace(MODEL, name="gat", heads=2, norm="layer"))
    candidate = replace(plan.candidates[0], placement="grid:2x2x1", schedule="oneshot")
    assert plan.command(candidate) == (
        "fullgraph train GRAPH --model gat --hidden 16 --layers 2 --workers 4 --placement "
        "grid:2x2x1 --schedule oneshot --norm layer --heads 2"
    )
    plan = replace(plan, source="pyg:Cora", figures=replace(FIGURES, name="Cora"))
    assert plan.command(candidate).startswith("fullgraph train pyg:Cora --model gat")


def test_a_plan_is_json() -> None:
    content = json.loads(json.dumps(_plan(2, replace(MACHINE, memory=16e9)).to_json()))
    assert set(content) == {
        "graph",
        "model",
        "workers",
        "wire",
        "machine",
        "candidates",
        "recommended",
    }
    assert content["graph"]["nodes"] == 20000
    assert content["machine"]["memory_bytes"] == 16e9
    assert set(content["candidates"][0]) == {
        "placement", "schedule", "exact", "memory", "sent", "seconds", "compute", "imbalance",
        "refused", "fits",
    }  # fmt: skip
    assert set(content["recommended"]) == {"placement", "schedule", "command"}


@pytest.mark.parametrize(
    ("workers", "options", "message"),
    [
        (0, {}, "workers must be at least 1, got 0"),
        (4, {"among": ["grid:2x3x1"]}, "grid:2x3x1 is a grid of 6 workers, but there are 4"),
        (4, {"model": ModelOptions("gatt")}, "model 'gatt' is unknown; choose one of gcn, sage"),
        (4, {"schedules": ["twice"]}, "schedule must be"),
        (4, {"among": ["square"]}, "placement must be 'destination', 'vertex-cut' or 'grid:RxCxK'"),
    ],
)
def test_mistakes_are_named(workers: int, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _plan(workers, **options)  # type: ignore[arg-type]


def test_weights_of_edges_take_memory() -> None:
    shares = expect_shares(FIGURES, 1)
    memory = [
        choose("g", figures, lambda p: shares, replace(MODEL, name="gcn"), 1, MACHINE).candidates[0]
        for figures in (FIGURES, replace(FIGURES, weighted=True))
    ]
    assert memory[1].memory > memory[0].memory + 4 * FIGURES.edges


def test_figures_are_checked() -> None:
    with pytest.raises(ValueError, match="nodes=0 must be at least 1"):
        GraphFigures(0, 1, 1, 1).validate()
