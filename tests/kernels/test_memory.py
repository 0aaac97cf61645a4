"""The memory of torch's own large tensors: given back when freed."""

from __future__ import annotations

import sys

import pytest

from tests.kernels.test_runtime import run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has it")

HELD_AFTER_FREEING = """
import torch
{kernels}
def resident():
    line = next(x for x in open("/proc/self/status") if x.startswith("RssAnon"))
    return int(line.split()[1]) / 1024
torch.ones(6_000_000)  # glibc learns from what is freed first what to keep of the next
before = resident()
tensors = [torch.ones(1_000_000) for _ in range(50)]
del tensors[:-1]  # the last one stays, above the others
print(resident() - before)
"""


def held(kernels: str, **environment: str) -> float:
    """MiB of 200 that a process holds after all but one tensor of 4 were freed."""
    result = run(HELD_AFTER_FREEING.format(kernels=kernels), **environment)
    assert result.returncode == 0, result.stderr
    return float(result.stdout)


def test_what_is_freed_goes_back_to_the_system() -> None:
    assert held("import fullgraph.kernels") < 20


def test_a_threshold_of_the_users_own_stays() -> None:
    assert held("import fullgraph.kernels", MALLOC_MMAP_THRESHOLD_="33554432") > 100
