"""Machines that are described take the place of the one that could be measured."""

from __future__ import annotations

import pytest

from fullgraph.planner.machine import GivenMachine
from fullgraph.planner.rates import NOMINAL


def test_what_is_given_is_not_measured() -> None:
    given = GivenMachine(16e9, 1e9, 1e-5, flops=1e12, gather=1e11)
    assert not given.measures
    machine = given.machine()
    assert (machine.memory, machine.rates.flops) == (16e9, 1e12)
    assert machine.rates.gather == pytest.approx(1e11)
    assert machine.rates.stream == pytest.approx(NOMINAL.stream * 1e11 / NOMINAL.gather)
    assert (machine.network.bandwidth, machine.network.latency) == (1e9, 1e-5)
    assert GivenMachine(None, 1e9, 1e-5, flops=1e12).measures
