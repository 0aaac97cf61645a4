"""Large tensors in memory of earlier ones: never two in the same, never more than was in use."""

from __future__ import annotations

import random
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fullgraph.kernels import _ops, release_memory
from fullgraph.kernels._memory import LARGE_BYTES
from fullgraph.kernels._pool import new_empty, new_zeros
from tests.poison import clean_new_empty

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PAGE = 4096
LIKE = torch.empty(0)


@pytest.fixture(autouse=True)
def _nothing_idle() -> Iterator[None]:
    release_memory()
    yield
    release_memory()


def used_and_held() -> tuple[int, int]:
    used, held = _ops.native.pool_bytes()
    return used, held


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
     torch.bool, torch.float16],
)  # fmt: skip
def test_a_new_tensor_is_one_of_torch(dtype: torch.dtype) -> None:
    x = new_empty(LIKE, 700, 900, dtype=dtype)
    assert (x.shape, x.dtype, x.stride()) == ((700, 900), dtype, (900, 1))
    assert (x.requires_grad, x.is_leaf, x._is_view()) == (False, True, False)
    x.fill_(1)
    assert float(x.double().sum()) == 630_000
    assert not new_zeros(LIKE, 700, 900, dtype=dtype).any()
    torch.testing.assert_close(torch.load(_saved(x), weights_only=True), x)


def _saved(x: torch.Tensor) -> object:
    import io

    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return file


def test_large_ones_alone_are_the_pools() -> None:
    before = used_and_held()
    small = new_empty(LIKE, LARGE_BYTES // 4 - 1)
    nothing = new_empty(LIKE, 0, 1 << 40)
    assert used_and_held() == before
    large = new_empty(LIKE, LARGE_BYTES // 4)
    assert used_and_held()[0] == before[0] + LARGE_BYTES
    assert (small.numel(), nothing.numel(), large.numel()) == (65535, 0, 65536)


def test_arrays_without_elements_have_places_of_their_own() -> None:
    nothing = [_ops.new_empty(LIKE, (0, 5), torch.float32) for _ in range(3)]
    assert used_and_held() == (3 * PAGE, 3 * PAGE)
    del nothing
    assert used_and_held() == (0, 3 * PAGE)
    assert _ops.new_empty(LIKE, (3, PAGE), torch.uint8).sum() >= 0


def test_the_memory_of_a_freed_tensor_is_the_next_ones() -> None:
    x = new_empty(LIKE, 1000, 1000)
    place, view = x.data_ptr(), x[10:].t()
    del x
    assert used_and_held()[0] > 0  # a view still has it
    del view
    used, held = used_and_held()
    assert used == 0
    first = new_empty(LIKE, 128, 1024)
    second = new_empty(LIKE, 256, 1024)
    assert (first.data_ptr(), second.data_ptr()) == (place, place + first.nbytes)
    assert used_and_held()[1] == held


def test_parts_of_what_was_freed_become_one_again() -> None:
    pages = [new_empty(LIKE, 128 * PAGE) for _ in range(4)]
    whole = new_empty(LIKE, 4 * 128 * PAGE)
    place = whole.data_ptr()
    del whole
    parts = [new_empty(LIKE, 128 * PAGE).fill_(7) for _ in range(4)]
    assert sorted(part.data_ptr() - place for part in parts) == [512 * PAGE * k for k in range(4)]
    for k in (1, 3, 2, 0):
        parts[k] = LIKE
    whole = clean_new_empty(LIKE, 4 * 128 * PAGE)
    assert whole.data_ptr() == place
    assert bool((whole == 7).all())  # the same pages, not others at the same address
    assert len(pages) == 4


def test_no_more_is_held_than_was_in_use() -> None:
    x = new_empty(LIKE, 1 << 20)
    del x
    y = new_empty(LIKE, (1 << 20) + 1)  # does not fit: what is idle goes first
    used, held = used_and_held()
    assert used == held == 4 * (1 << 20) + PAGE
    del y
    z = [new_empty(LIKE, 1 << 19) for _ in range(2)]
    assert used_and_held() == (4 << 20, held)
    del z
    release_memory()
    assert used_and_held() == (0, 0)


def test_any_order_of_taking_and_freeing() -> None:
    rng, alive, most = random.Random(0), dict[int, torch.Tensor](), 0
    for step in range(3000):
        if alive and rng.random() < 0.5:
            chosen = rng.choice([*alive])
            assert bool((alive[chosen] == chosen).all())
            del alive[chosen]
        else:
            size = rng.choice([65_536, 70_001, 131_072, 300_000, 1_048_576])
            alive[step] = new_empty(LIKE, size).fill_(step)
        used, held = used_and_held()
        most = max(most, used)
        assert used == sum(-(-x.nbytes // PAGE) * PAGE for x in alive.values())
        assert used <= held <= most
        if len(alive) > 12:
            alive.clear()


def test_threads_take_and_free_at_the_same_time() -> None:
    wrong = []

    def work(number: int) -> None:
        for size in range(200):
            x = new_empty(LIKE, 65_536 + 1000 * size).fill_(number)
            y = new_empty(LIKE, 65_536).fill_(-number)
            if not (bool((x == number).all()) and bool((y == -number).all())):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k + 1,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    assert used_and_held()[0] == 0


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(MemoryError, match=f"tried to allocate {4 << 45} bytes"):
        new_empty(LIKE, 1 << 45)
    assert used_and_held() == (0, 0)


def test_a_fake_tensor_and_one_of_another_device_are_left_alone() -> None:
    with FakeTensorMode():
        assert new_empty(torch.empty(2), 4_000_000).shape == (4_000_000,)
    assert new_empty(torch.empty(2, device="meta"), 4_000_000).device.type == "meta"
    assert used_and_held() == (0, 0)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises((RuntimeError, ValueError)):
        new_empty(LIKE, -1, -1_000_000)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone tells")
def test_released_memory_is_the_systems_again() -> None:
    def resident() -> int:
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
        return int(line.split()[1]) * 1024

    before = resident()
    x = new_empty(LIKE, 50_000_000).fill_(1)
    assert resident() - before > 180_000_000
    del x
    assert resident() - before > 180_000_000
    release_memory()
    assert resident() - before < 20_000_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone moves pages")
def test_a_tensor_that_no_idle_block_is_large_enough_for_is_made_of_several() -> None:
    huge = 2 << 20
    whole = new_empty(LIKE, 10 * huge // 4)
    del whole  # what follows lies next to each other
    sizes = (huge + PAGE, 3 * huge, 2 * huge - PAGE, 3 * huge + 9 * PAGE)
    parts = [new_empty(LIKE, size // 4).fill_(k) for k, size in enumerate(sizes)]
    places = [part.data_ptr() for part in parts]
    parts[1] = parts[3] = LIKE
    held = used_and_held()[1]
    large = clean_new_empty(LIKE, 5 * huge // 4)
    moved = {float(x) for x in large[:: huge // 4]}
    assert moved == {1, 3}  # their pages, elsewhere
    assert large.data_ptr() not in places
    assert used_and_held()[1] == held
    large.fill_(9)
    assert bool((parts[0] == 0).all())
    assert bool((parts[2] == 2).all())
    del large, parts
    assert used_and_held() == (0, held)


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="no huge pages here"
)
def test_large_tensors_are_marked_for_huge_pages() -> None:
    x = new_empty(LIKE, 4_000_000)
    assert x.data_ptr() % (2 << 20) == 0
    middle, flags, here = x.data_ptr() + x.nbytes // 2, "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            here = int(place[1], 16) <= middle < int(place[2], 16)
        elif line.startswith("VmFlags") and here:
            flags = line
    assert " hg" in flags
