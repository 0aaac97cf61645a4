"""The memory of large tensors: given back when freed, in huge pages where there are any."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fullgraph.kernels import in_huge_pages
from tests.kernels.test_runtime import run

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
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


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="no huge pages here"
)
def test_a_large_tensor_is_marked_for_huge_pages() -> None:
    x = in_huge_pages(torch.empty(4_000_000))
    middle = x.data_ptr() + x.nbytes // 2
    flags = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            here = int(place[1], 16) <= middle < int(place[2], 16)
        elif line.startswith("VmFlags") and here:
            flags = line
    assert " hg" in flags


@pytest.mark.parametrize("numel", [0, 1, 600_000, 1_100_000])
def test_a_tensor_of_any_size_is_itself(numel: int) -> None:
    x = torch.empty(numel)
    assert in_huge_pages(x) is x
    x.fill_(3)
    assert bool((x == 3).all())


def test_a_fake_tensor_is_left_alone() -> None:
    with FakeTensorMode():
        x = torch.empty(4_000_000)
        assert in_huge_pages(x) is x
