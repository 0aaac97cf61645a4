"""Ranks find each other at a store that holds what earlier attempts left there."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from fullgraph.comm.meeting import MissingRanksError, attend, convene, notes
from fullgraph.comm.rendezvous import loopback_store
from tests.ranks import forked

SIZE = 3
SECONDS = 30.0


def clients(count: int) -> list[dist.Store]:
    """Of one store, each with a connection of its own, as in a process of its own."""
    limit = timedelta(seconds=SECONDS)
    served = loopback_store(0, count, limit)
    more = [
        dist.TCPStore("127.0.0.1", served.port, is_master=False, timeout=limit)
        for _ in range(count - 1)
    ]
    return [served, *more]


def test_a_file_that_an_earlier_run_left_does_no_harm(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    left = [dist.FileStore(path, SIZE) for _ in range(SIZE)]
    old = [notes(meeting, SIZE) for meeting in meet(left, "old")]
    (tmp_path / "store").rename(tmp_path / "kept")  # as it would be, had the process been killed
    del left
    (tmp_path / "kept").rename(path)
    stores = [dist.FileStore(path, SIZE) for _ in range(SIZE)]
    assert stores[0].check(["hello/1"])
    new = [notes(meeting, SIZE) for meeting in meet(stores, "new")]
    assert old == [["old 0", "old 1", "old 2"]] * SIZE
    assert new == [["new 0", "new 1", "new 2"]] * SIZE


def run(store: dist.Store, rank: int, seconds: float = SECONDS, label: str = "note") -> dist.Store:
    if rank == 0:
        return convene(store, SIZE, f"{label} 0", seconds)
    return attend(store, rank, SIZE, f"{label} {rank}", seconds)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What calls return or raise, each in a thread; None of one that has not ended."""
    results: list[Any] = [None] * len(calls)

    def call(i: int) -> None:
        try:
            results[i] = calls[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return results


def meet(stores: list[dist.Store], label: str = "note") -> list[Any]:
    calls = [lambda rank=rank: run(stores[rank], rank, label=label) for rank in range(SIZE)]
    return together(*calls)


def test_every_meeting_at_one_store_has_keys_of_its_own() -> None:
    stores = clients(SIZE)
    for attempt in range(3):
        meetings = meet(stores)
        assert [notes(meeting, SIZE) for meeting in meetings] == [
            ["note 0", "note 1", "note 2"]
        ] * 3
        assert not any(meeting.check(["attempt"]) for meeting in meetings)
        meetings[1].set("attempt", str(attempt))
        assert meetings[2].get("attempt") == str(attempt).encode()


def test_those_who_left_before_all_were_there_are_not_taken_for_their_successors() -> None:
    stores = clients(SIZE)
    # rank 2 never came to this attempt; what the others left is in the store
    first = together(lambda: run(stores[0], 0, 0.3), lambda: run(stores[1], 1, 5.0))
    assert [error.ranks for error in first] == [[2], [2]]
    late: list[Any] = []

    def start_late() -> dist.Store:
        time.sleep(0.3)
        assert late == []  # nobody goes on without this one
        return run(stores[1], 1)

    results = together(
        lambda: late.append(run(stores[0], 0)), start_late, lambda: late.append(run(stores[2], 2))
    )
    assert results[0] is results[2] is None
    assert notes(results[1], SIZE) == notes(late[0], SIZE)


def test_a_rank_that_is_started_again_while_others_wait_is_let_in() -> None:
    stores = clients(SIZE)
    gone = together(lambda: run(stores[1], 1, 0.2))
    assert gone[0].ranks == [0]
    assert [notes(meeting, SIZE)[1] for meeting in meet(stores)] == ["note 1"] * 3


@pytest.mark.parametrize("present", [[0], [0, 2], [1], [1, 2]])
def test_the_missing_are_named_by_all_who_came(present: list[int]) -> None:
    stores = clients(SIZE)
    errors = together(*(lambda rank=rank: run(stores[rank], rank, 0.3) for rank in present))
    missing = [rank for rank in range(SIZE) if rank not in present] if 0 in present else [0]
    assert [type(error) for error in errors] == [MissingRanksError] * len(present)
    assert [error.ranks for error in errors] == [missing] * len(present)


def convene_and_end(port: int) -> None:
    try:
        convene(loopback_store(port, SIZE, timedelta(seconds=SECONDS)), SIZE, "", 1.0)
    finally:
        os._exit(0)


def test_rank_0_says_who_is_missing_before_it_takes_the_store_with_it() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = forked(convene_and_end, port)
    limit = timedelta(seconds=SECONDS)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    with pytest.raises(MissingRanksError) as caught:
        attend(store, 1, SIZE, "", SECONDS)
    assert caught.value.ranks == [2]
    process.join(SECONDS)
