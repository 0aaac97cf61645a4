"""Peak memory: what training took at most, not what was there before."""

from __future__ import annotations

import numpy as np

from fullgraph.training.memory import PeakMemory

MB = 1 << 20


def test_the_peak_stays_when_memory_is_given_back() -> None:
    peak = PeakMemory()
    before = peak.bytes()
    array = np.ones(64 * MB, dtype=np.uint8)
    del array
    assert 60 * MB < peak.bytes() - before < 80 * MB


def test_an_earlier_peak_does_not_count() -> None:
    array = np.ones(128 * MB, dtype=np.uint8)
    del array
    assert PeakMemory().bytes() < 32 * MB
