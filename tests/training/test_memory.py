"""Peak memory: what training took at most, not what was there before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fullgraph.training import memory

MB = 1 << 20
# An array larger than all that the process ever had, or was given by the one that started it
# (which counts, on Linux): that is what all systems can tell.
TAKE = """
import sys
import numpy as np
from fullgraph.training import memory

if "sandbox" in sys.argv:
    memory._status = lambda key: 0
size = memory._lifetime_peak() + (256 << 20)
peak = memory.PeakMemory()
before = peak.bytes()
array = np.ones(size, dtype=np.uint8)
del array
print(size, peak.bytes() - before)
"""


@pytest.mark.parametrize("where", ["here", "sandbox"])
def test_the_peak_stays_when_memory_is_given_back(where: str) -> None:
    """Also where the system tells the highest of the whole life only."""
    run = subprocess.run(
        [sys.executable, "-c", TAKE, where], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    size, found = map(int, run.stdout.split())
    assert 240 * MB < found < size + 32 * MB
    if "VmHWM" in memory.STATUS.read_text() and where == "here":
        assert found > size - 32 * MB


def test_an_earlier_peak_does_not_count() -> None:
    array = bytearray(b"1") * (128 * MB)
    del array
    assert memory.PeakMemory().bytes() < 32 * MB


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (MemoryError(), ""),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes. "
                      "Error code 12 (Cannot allocate memory)"), " (it asked for 64 bytes)"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU"),
         " (it asked for 2.00 GiB)"),
        (RuntimeError("std::bad_alloc"), ""),
        (OSError(12, "Cannot allocate memory"), ""),
    ],
)  # fmt: skip
def test_errors_that_mean_that_memory_ran_out_say_what_to_do(
    error: BaseException, asked: str
) -> None:
    said = memory.ran_out(error)
    assert said is not None
    assert said.startswith(f"MemoryError: memory ran out{asked}. More workers, ")


def test_other_errors_do_not() -> None:
    assert memory.ran_out(ValueError("memory is 3 bytes")) is None
