"""`--placement auto` takes the fastest placement that fits on this machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fullgraph.planner import auto
from fullgraph.planner.rates import NOMINAL
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.models import ModelOptions

CONFIG = RunConfig(
    GraphOptions("planted:nodes=4000,edges=20000,features=8,classes=4,communities=4,mix=0.01"),
    ModelOptions("sage", hidden=32), workers=4, threads=1,
)  # fmt: skip


def test_a_graph_with_locality_is_placed_by_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where moving rows is what takes the time."""
    monkeypatch.setattr(auto, "ONE_MACHINE", replace(auto.ONE_MACHINE, bandwidth=1e6))
    chosen = auto.place(CONFIG, rates=lambda watch: NOMINAL)
    assert (chosen.placement, chosen.schedule) == ("destination", "sequential")
    assert chosen.exact


def test_the_schedule_that_was_asked_for_is_kept() -> None:
    config = replace(CONFIG, schedule="oneshot", placement="auto")
    assert auto.place(config, rates=lambda watch: NOMINAL).schedule == "oneshot"
    assert not auto.place(replace(CONFIG, schedule="local"), rates=lambda watch: NOMINAL).exact


def test_where_nothing_fits_the_smallest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "free_memory", lambda workers: 1e6)
    with pytest.raises(ValueError, match=r"placement auto: nothing fits: the smallest, .* needs"):
        auto.place(CONFIG, rates=lambda watch: NOMINAL)


def test_free_memory_is_shared() -> None:
    free = auto.free_memory(1)
    assert free is None or 0 < auto.free_memory(4) < free  # type: ignore[operator]
