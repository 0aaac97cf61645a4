"""What the machine gives, and how long that makes things take at least."""

from __future__ import annotations

import pytest
import torch

from fullgraph.comm.group import Group
from fullgraph.training.peaks import Peaks, measure


def test_what_is_measured_is_a_rate_and_leaves_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    peaks = measure(Group())
    assert torch.equal(torch.get_rng_state(), state)
    for rate in (peaks.gather, peaks.stream):
        assert 1e6 < rate < 1e13
    assert 1e7 < peaks.flops < 1e15


def test_the_least_time_is_that_of_memory_or_of_arithmetic() -> None:
    peaks = Peaks(gather=10.0, stream=20.0, flops=100.0)
    assert peaks.seconds(5, 10, 0) == pytest.approx(1.0)
    assert peaks.seconds(5, 10, 300) == pytest.approx(3.0)
