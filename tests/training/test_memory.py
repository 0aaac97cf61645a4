"""Peak memory: what training took at most, not what was there before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fullgraph.training import memory

MB = 1 << 20
# In a process of its own, which had no higher peak before: that is what all systems can tell.
TAKE_256_MB = """
import sys
from pathlib import Path
import numpy as np
from fullgraph.training import memory

if "sandbox" in sys.argv:
    memory._status = lambda key: 0
peak = memory.PeakMemory()
before = peak.bytes()
array = np.ones(256 << 20, dtype=np.uint8)
del array
print(peak.bytes() - before)
"""


@pytest.mark.parametrize("where", ["here", "sandbox"])
def test_the_peak_stays_when_memory_is_given_back(where: str) -> None:
    """Also where the system tells the highest of the whole life only."""
    run = subprocess.run(
        [sys.executable, "-c", TAKE_256_MB, where], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    # Where only the highest is known, what importing took for a moment is not seen again.
    assert 128 * MB < int(run.stdout) < 288 * MB


def test_an_earlier_peak_does_not_count() -> None:
    array = bytearray(b"1") * (128 * MB)
    del array
    assert memory.PeakMemory().bytes() < 32 * MB
