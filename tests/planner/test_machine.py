"""Machines that are described take the place of the one that could be measured."""

from __future__ import annotations

import pytest
import torch

from fullgraph.planner.machine import GivenMachine, on_threads
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


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with on_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"), on_threads(0):
        pass
