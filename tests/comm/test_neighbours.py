"""Messages through memory, between ranks of one machine: the same as gloo brings, or an error."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from fullgraph.comm import neighbours
from fullgraph.comm.group import CommError, Group
from fullgraph.comm.neighbours import Arriving, Leaving, Neighbours
from tests.ranks import RanksFailedError, run_ranks

SECOND = timedelta(seconds=1)


def _near(group: Group) -> Neighbours:
    group.read_neighbours()
    near = group.neighbours
    assert near is not None, "memory cannot be read here, which these tests are about"
    assert near.ranks == set(range(group.size)) - {group.rank}
    return near


def _rows(rank: int, peer: int, number: int) -> Tensor:
    """What a rank sends a peer: different each time, of any size."""
    rng = torch.Generator().manual_seed(1000 * rank + 100 * peer + number)
    size = int(torch.randint(1, 3000, (1,), generator=rng))
    kind = (torch.float64, torch.float32, torch.uint8, torch.bfloat16)[number % 4]
    return (torch.rand(size, 3, generator=rng) * 200).to(kind)


def _many_messages_arrive(group: Group) -> None:
    _near(group)
    for first in range(0, 96, 8):
        posted: list[tuple[Any, Any, Tensor, Tensor]] = []
        for number in range(first, first + 8):
            for step in range(1, group.size):
                to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
                rows, expected = _rows(group.rank, to, number), _rows(source, group.rank, number)
                into = torch.full_like(expected, 7)
                works = group.post((into, source), (rows, to))
                posted.append((*works, into, expected))
        if first % 16:  # whichever is waited for first
            posted.reverse()
        for receive, send, into, expected in posted:
            assert type(receive) is Arriving
            assert type(send) is Leaving
            group.wait(receive, "receiving")
            group.wait(send, "sending")
            assert torch.equal(into, expected)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_messages_of_any_size_arrive_in_order(size: int) -> None:
    run_ranks(_many_messages_arrive, size)


def _in_pieces(group: Group) -> None:
    _near(group)
    neighbours.MOST_BYTES = 1000  # of one system call
    try:
        rows, into = torch.arange(7000) + group.rank, torch.zeros(7000, dtype=torch.int64)
        group.exchange([rows] * 2, [into] * 2, "rows")
        assert torch.equal(into, torch.arange(7000) + 1 - group.rank)
    finally:
        neighbours.MOST_BYTES = 1 << 30


def test_what_one_call_cannot_read_is_read_in_pieces() -> None:
    run_ranks(_in_pieces, 2)


def _rows_stay_until_they_are_read(group: Group) -> None:
    near = _near(group)
    if group.rank == 0:
        rows = torch.full((1000,), 3.0)
        near.send(rows, 1)
        place = rows.data_ptr()
        del rows, near  # and nobody waits for what was posted
        group.neighbours = None
        gc.collect()
        others = [torch.zeros(1000) for _ in range(100)]
        assert place not in [other.data_ptr() for other in others]
        group.all_reduce(torch.zeros(1), "the others are made")
        return
    group.all_reduce(torch.zeros(1), "the others are made")
    into = torch.zeros(1000)
    near.receive(into, 0).wait(SECOND)
    assert (into == 3).all()


def test_rows_stay_until_they_are_read_even_if_nobody_waits() -> None:
    run_ranks(_rows_stay_until_they_are_read, 2)


def _rows_that_were_read_are_let_go(group: Group) -> None:
    near = _near(group)
    for _ in range(50):
        rows, into = torch.zeros(10), torch.ones(10)
        receive, send = group.post((into, 1 - group.rank), (rows, 1 - group.rank))
        group.wait(receive, "receiving")
        group.wait(send, "sending")
    (channel,) = near._channels.values()
    assert not channel.unread  # all of them are known to be read
    assert not channel.awaited
    assert channel.sent == channel.taken == 50


def test_rows_that_were_read_are_let_go() -> None:
    run_ranks(_rows_that_were_read_are_let_go, 2)


def _nobody_answers(group: Group) -> list[str]:
    _near(group)
    if group.rank == 1:
        time.sleep(6)
        return []
    said = []
    receive, send = group.post((torch.zeros(9), 1), (torch.zeros(100), 1))
    for work, operation in ((send, "sending to rank 1"), (receive, "receiving from rank 1")):
        start = time.monotonic()
        with pytest.raises(CommError) as caught:
            group.wait(work, operation)
        assert time.monotonic() - start < 3.9  # with the time to look for the reason
        said.append(str(caught.value))
    return said


def test_a_wait_for_a_rank_that_does_not_answer_ends_and_says_which() -> None:
    first, second = run_ranks(_nobody_answers, 2, wait_limit=1)[0]
    assert "rank 0: sending to rank 1 failed (limit 1 s): timed out: it has not been read" in first
    assert "rank 0: receiving from rank 1 failed (limit 1 s): timed out: it has not been" in second


def _sender_is_killed(group: Group) -> None:
    near = _near(group)
    if group.rank == 1:
        near.send(torch.zeros(100), 0)
        group.all_reduce(torch.zeros(1), "it is posted")
        os.kill(os.getpid(), signal.SIGKILL)
    receive, send = group.post((torch.zeros(100), 1), (torch.zeros(100), 1))
    group.all_reduce(torch.zeros(1), "it is posted")
    time.sleep(0.5)
    start, said = time.monotonic(), []
    for work, operation in ((receive, "receiving"), (send, "sending")):
        with pytest.raises(CommError) as caught:
            group.wait(work, operation)
        said.append(str(caught.value))
    assert time.monotonic() - start < 8
    raise ValueError(f"as expected: {said}")


def test_reading_from_a_process_that_is_gone_is_an_error_at_once() -> None:
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(_sender_is_killed, 2)
    said = str(caught.value)
    assert "rank 0: receiving failed (limit 90 s): memory of process" in said
    assert "rank 0: sending failed (limit 90 s): the process that was to read it has ended" in said


def _reader_is_gone_at_once(group: Group) -> None:
    near = _near(group)
    if group.rank == 0:
        send = near.send(torch.zeros(100), 1)
        time.sleep(1)  # meanwhile it is read, and the reader ends
        send.wait(SECOND)
        raise ValueError("as expected")
    near.receive(torch.zeros(100), 0).wait(SECOND)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_reader_may_end_once_it_has_read() -> None:
    with pytest.raises(RanksFailedError, match="ValueError: as expected"):
        run_ranks(_reader_is_gone_at_once, 2)


def _sizes_differ(group: Group) -> None:
    near = _near(group)
    if group.rank == 0:
        near.send(torch.zeros(10), 1)
    else:
        with pytest.raises(RuntimeError, match="40 bytes were sent where 36 are expected"):
            near.receive(torch.zeros(9), 0).wait(SECOND)
    group.all_reduce(torch.zeros(1), "the end")


def test_a_message_of_another_size_is_refused() -> None:
    run_ranks(_sizes_differ, 2)


def test_only_the_process_that_was_met_is_read() -> None:
    board, found = (ctypes.c_int64 * 2)(5, 8), ctypes.c_int64(0)
    place = ctypes.addressof(board)
    own = neighbours._Memory(os.getpid(), place, 5)
    assert own.word(place + 8) == 8
    own.set_word(place + 8, 9)
    assert board[1] == 9
    with pytest.raises(RuntimeError, match="is not what it was"):
        own._replace(number=6).word(place + 8)
    with pytest.raises(RuntimeError, match="is not what it was"):
        own._replace(number=6).set_word(place + 8, 10)
    assert board[1] == 9
    with pytest.raises(RuntimeError, match="out of reach"):
        own._replace(pid=2**22 + 1).word(place + 8)
    with pytest.raises(RuntimeError, match="Bad address"):
        own.read(8, ctypes.addressof(found), 8)
    with pytest.raises(RuntimeError, match="Bad address"):
        own.set_word(8, 8)


def test_a_note_that_is_not_whole_is_not_taken() -> None:
    board, note = (ctypes.c_int64 * 2)(5, 0), neighbours._Note()
    memory = neighbours._Memory(os.getpid(), ctypes.addressof(board), 5)
    has_read = ctypes.c_int64.from_buffer(board, 8)
    sender = neighbours._Channel(memory, note, has_read, 0, 0)
    rows, into = torch.ones(3), torch.zeros(3)
    reader = neighbours._Channel(
        memory, neighbours._Note(), ctypes.c_int64(), ctypes.addressof(note),
        ctypes.addressof(has_read),
    )  # fmt: skip
    reader.awaited.append(Arriving(reader, into))
    assert not reader.take()
    sender.post(rows)
    for name in ("count", "address", "size", "next", "check"):
        written = getattr(note, name)
        setattr(note, name, 0)
        assert not reader.take(), name
        setattr(note, name, written)
    assert (into == 0).all()
    assert reader.take()
    assert (into == 1).all()
    assert not sender.is_read(2)
    assert sender.is_read(1)
    assert not sender.unread


def test_a_count_that_is_half_written_is_not_taken() -> None:
    for before, after in ((0, 1), (255, 256), (65_535, 65_536), (2**31 - 2, 2**31 - 1)):
        old, new = ((n and neighbours._checked(n)) % 2**64 for n in (before, after))
        assert neighbours._from_checked(neighbours._checked(after)) == after
        for size in range(1, 8):  # so many bytes of the new word, from below and from above
            low = 2 ** (8 * size) - 1
            for mixed in (new & low | old & ~low, old & low | new & ~low):
                signed = mixed - 2**64 if mixed >= 2**63 else mixed
                assert neighbours._from_checked(signed) in (0, before, after)


def _not_contiguous(group: Group) -> None:
    near = _near(group)
    for rows, into in ((torch.zeros(3, 2).T, None), (None, torch.zeros(3, 2).T)):
        send, receive = (x if x is None else (x, 1 - group.rank) for x in (rows, into))
        with pytest.raises(CommError, match="tensor has to be contiguous"):
            group.post(receive, send)
    assert near.ranks == {1 - group.rank}


def test_what_is_not_contiguous_is_refused() -> None:
    run_ranks(_not_contiguous, 2)


def _one_is_elsewhere(group: Group) -> set[int]:
    machine = neighbours._machine
    if group.rank == 2:
        neighbours._machine = lambda: 99
    try:
        group.read_neighbours()
    finally:
        neighbours._machine = machine
    into = torch.zeros(3, 9)
    group.exchange([torch.full((9,), group.rank + 1.0)] * 3, [*into], "rows")
    into[group.rank] = group.rank + 1
    assert (into == torch.tensor([[1.0], [2], [3]])).all()
    return set() if group.neighbours is None else group.neighbours.ranks


def test_ranks_on_different_machines_read_nothing_of_each_other() -> None:
    assert run_ranks(_one_is_elsewhere, 3) == [{1}, {0}, set()]


def _one_may_not_read(group: Group, denied: str) -> bool:
    library = neighbours._libc
    if group.rank == 0:  # a system without that call, or that denies it
        neighbours._libc = lambda: _Without(denied, library())
    try:
        group.read_neighbours()
    finally:
        neighbours._libc = library
    into = torch.zeros(9)
    group.exchange([torch.full((9,), group.rank + 1.0)] * 2, [into] * 2, "rows")
    assert (into == 2 - group.rank).all()
    return group.neighbours is None


class _Without:
    def __init__(self, denied: str, library: ctypes.CDLL) -> None:
        self.denied, self.library = denied, library

    def __getattr__(self, name: str) -> Any:
        if name == self.denied:
            return lambda *args: -1
        if self.denied == "all":
            raise AttributeError(name)
        return getattr(self.library, name)


@pytest.mark.parametrize("denied", ["process_vm_readv", "process_vm_writev", "all"])
def test_a_rank_that_cannot_read_or_write_uses_gloo(denied: str) -> None:
    assert run_ranks(_one_may_not_read, 2, denied) == [True, True]


def test_what_has_no_other_or_no_limit_goes_as_before() -> None:
    group = Group()
    group.read_neighbours()
    assert group.neighbours is None
    unlimited = Group(timeout=None)
    unlimited.read_neighbours()
    assert unlimited.neighbours is None


def test_tensors_on_other_devices_are_not_reached() -> None:
    channel: Any = neighbours._Channel(*[None] * 5)  # type: ignore[arg-type]
    near = Neighbours({1: channel})
    assert near.reach(torch.zeros(3), 1)
    assert not near.reach(torch.zeros(3), 0)
    assert not near.reach(torch.zeros(3, device="meta"), 1)
