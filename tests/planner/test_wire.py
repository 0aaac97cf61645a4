"""Messages take latency and bytes / bandwidth, each direction by itself, and the clock waits."""

from __future__ import annotations

import pytest
import torch

from fullgraph.planner.ledger import Ledger
from fullgraph.planner.rates import NOMINAL
from fullgraph.planner.wire import DryGroup, Network

MESSAGE = torch.empty(1000, dtype=torch.uint8, device="meta")


def _group(size: int = 4, overlap: bool = True) -> DryGroup:
    return DryGroup(0, size, Network(1e6, 1e-4, overlap), Ledger(NOMINAL))


def test_a_message_arrives_after_its_latency_and_its_bytes() -> None:
    group = _group()
    arriving, leaving = group.post((MESSAGE, 1), (MESSAGE, 2))
    group.wait(leaving, "")
    assert group.ledger.now == pytest.approx(1e-3)
    group.wait(arriving, "")
    assert group.ledger.now == pytest.approx(1.1e-3)


def test_messages_follow_each_other_on_a_link_while_a_worker_works() -> None:
    group = _group()
    works = [group.post((MESSAGE, 1), None)[0] for _ in range(3)]
    group.ledger.spend(2.5e-3)
    group.wait(works[0], "")
    assert group.ledger.now == pytest.approx(2.5e-3)  # it came meanwhile
    group.wait(works[2], "")
    assert group.ledger.now == pytest.approx(3.1e-3)
    assert group.ledger.compute == pytest.approx(2.5e-3)


def test_without_overlap_a_worker_works_on_what_it_moves() -> None:
    group = _group(overlap=False)
    work = group.post((MESSAGE, 1), None)[0]
    assert group.ledger.now == pytest.approx(1.1e-3)
    group.ledger.spend(1e-3)
    group.wait(work, "")
    assert group.ledger.now == pytest.approx(2.1e-3)


def test_nothing_is_posted_for_nothing() -> None:
    assert _group().post(None, None) == (None, None)


def test_an_all_reduce_moves_everything_twice_but_for_the_own_share() -> None:
    group = _group(4)
    assert group.all_reduce(MESSAGE, "sum") is MESSAGE
    assert group.ledger.now == pytest.approx(4 * 1e-4 + 2 * 0.75 * 1e-3)
    alone = _group(1)
    alone.all_reduce(MESSAGE, "sum")
    assert alone.ledger.now == 0
