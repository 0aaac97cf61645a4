"""Rows between ranks on one machine: the receiver reads them from the sender's memory.

gloo takes bytes through the kernel twice, by threads that compete with those that compute. Here a
sender only notes where its rows are; the receiver looks at its notes, copies the rows, by one
system call (process_vm_readv(2) of Linux), and writes into the sender's memory how many messages it
has read. What arrives is the same to the bit.

Notes are read while they are written. So this is for processors that let others see one thread's
writes in their order (x86-64), and a note says of itself whether it is whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fullgraph.comm.spans import EXCHANGE, span

if TYPE_CHECKING:
    from fullgraph.comm.group import Group

WORD = 8
MOST_BYTES = 1 << 30  # of one system call, which stops at 2 GiB
EAGER_SECONDS, LONGEST_NAP = 1e-3, 1e-3  # how long to look without a pause, and the longest pause
PR_SET_PTRACER = 0x59616D61  # prctl(2): who else may read this process's memory, under Yama
_KEPT: list[Any] = []  # what others may still read when nothing here needs it any more


class _Segment(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Memory(NamedTuple):
    """Of another process, which keeps a number at `board` that it drew when the ranks met."""

    pid: int
    board: int
    number: int

    def read(self, address: int, into: int, size: int) -> None:
        """Copy bytes to an address of ours.

        Raises RuntimeError where that cannot be, or where the process is another than it was: its
        number is read again with every piece.
        """
        for done in range(0, size, MOST_BYTES):
            length = min(size - done, MOST_BYTES)
            number = ctypes.c_int64(0)
            here = _segments((into + done, length), (ctypes.addressof(number), WORD))
            there = _segments((address + done, length), (self.board, WORD))
            self._move(_libc().process_vm_readv, here, there, length + WORD)
            if number.value != self.number:
                raise RuntimeError(f"process {self.pid} is not what it was")

    def word(self, address: int) -> int:
        value = ctypes.c_int64(0)
        self.read(address, ctypes.addressof(value), WORD)
        return value.value

    def set_word(self, address: int, value: int) -> None:
        """Write eight bytes, once it is seen to be the process that it was. Raises RuntimeError as
        `read`."""
        self.word(self.board)
        word = ctypes.c_int64(value)
        here, there = _segments((ctypes.addressof(word), WORD)), _segments((address, WORD))
        self._move(_libc().process_vm_writev, here, there, WORD)

    def _move(
        self, call: Any, here: ctypes.Array[_Segment], there: ctypes.Array[_Segment], size: int
    ) -> None:
        moved = call(self.pid, here, len(here), there, len(there), 0)
        if moved < 0:
            reason = os.strerror(ctypes.get_errno())
            raise RuntimeError(f"memory of process {self.pid} is out of reach: {reason}")
        if moved != size:
            raise RuntimeError(f"process {self.pid} is not what it was")


class _Note(ctypes.Structure):
    """A message: which of those from one rank to another, from 1; where its bytes are, and how
    many; and where the note of the next one will be."""

    _fields_ = (
        ("count", ctypes.c_int64), ("address", ctypes.c_int64), ("size", ctypes.c_int64),
        ("next", ctypes.c_int64), ("check", ctypes.c_int64),
    )  # fmt: skip

    def check_for(self, count: int) -> int:
        """What `check` is when all of it is there."""
        return int(~(count ^ self.address ^ self.size ^ self.next))


@dataclass
class _Channel:
    """Messages between this rank and another of this machine.

    Attributes:
        memory: the other's.
        note: of the next message from here, empty so far. ``sent``: how many there were, of which
            ``unread`` are not known to be read, with their notes.
        has_read: how many of these the other has read, `_checked`, which it writes here itself.
        next_note: where the other has the note of the next message to here. ``taken``: how many
            were read; ``awaited``: those to be read next, in order.
        have_read: the address, in the other's memory, of its `has_read`.
    """

    memory: _Memory
    note: _Note
    has_read: ctypes.c_int64
    next_note: int
    have_read: int
    sent: int = 0
    unread: deque[tuple[int, Tensor, _Note]] = field(default_factory=deque)
    taken: int = 0
    awaited: deque[Arriving] = field(default_factory=deque)

    def post(self, tensor: Tensor) -> Leaving:
        self.sent += 1
        note, self.note = self.note, _Note()
        note.address, note.size = tensor.data_ptr(), tensor.nbytes
        note.next = ctypes.addressof(self.note)
        note.check = note.check_for(self.sent)
        self.unread.append((self.sent, tensor, note))
        note.count = self.sent  # from now on it is one
        return Leaving(self, self.sent)

    def is_read(self, count: int) -> bool:
        done = _from_checked(self.has_read.value)
        while self.unread and self.unread[0][0] <= done:
            self.unread.popleft()
        return done >= count

    def is_alive(self) -> bool:
        try:
            self.memory.word(self.memory.board)
        except RuntimeError:
            return False
        return True

    def take(self) -> bool:
        """Read the next message, if it has been sent."""
        note = _Note()
        self.memory.read(self.next_note, ctypes.addressof(note), ctypes.sizeof(note))
        if note.count != self.taken + 1 or note.check != note.check_for(note.count):
            return False
        into = self.awaited[0].tensor
        if note.size != into.nbytes:
            raise RuntimeError(f"{note.size} bytes were sent where {into.nbytes} are expected")
        with span(f"{EXCHANGE}reading"):
            self.memory.read(note.address, into.data_ptr(), into.nbytes)
        self.next_note, self.taken = note.next, note.count
        self.awaited.popleft()
        self.memory.set_word(self.have_read, _checked(note.count))
        return True


class Neighbours:
    """The ranks on this rank's machine with which it exchanges messages through memory."""

    def __init__(self, channels: dict[int, _Channel]) -> None:
        self._channels = channels
        # Notes and rows of messages that nobody waits for any more may still be looked at.
        _KEPT.extend(channels.values())

    @property
    def ranks(self) -> set[int]:
        return set(self._channels)

    def reach(self, tensor: Tensor, peer: int) -> bool:
        return peer in self._channels and tensor.device.type == "cpu"

    def receive(self, tensor: Tensor, peer: int) -> Arriving:
        """Post a receive into a contiguous tensor. Raises RuntimeError for another."""
        channel = self._channels[peer]
        _check_contiguous(tensor)
        arriving = Arriving(channel, tensor)
        channel.awaited.append(arriving)
        return arriving

    def send(self, tensor: Tensor, peer: int) -> Leaving:
        """Post a send of a contiguous tensor, which stays as it is until it was waited for. Raises
        RuntimeError for another."""
        _check_contiguous(tensor)
        return self._channels[peer].post(tensor)


@dataclass(eq=False)
class Arriving:
    """Rows on their way. (torch's Work, as far as `Group.wait` goes.)"""

    channel: _Channel
    tensor: Tensor

    def wait(self, timeout: timedelta) -> None:
        """Raises RuntimeError when they have not come in time, or cannot be read."""
        pause = _Pause(timeout)
        while self in self.channel.awaited:  # those before it come first
            if not self.channel.take():
                pause("it has not been sent")


@dataclass(eq=False)
class Leaving:
    """Rows that another rank is to read. (torch's Work, as far as `Group.wait` goes.)"""

    channel: _Channel
    count: int

    def wait(self, timeout: timedelta) -> None:
        """Raises RuntimeError when they have not been read in time, or the reader is gone."""
        pause = _Pause(timeout)
        while not self.channel.is_read(self.count):
            if pause("it has not been read") and not self.channel.is_alive():
                if self.channel.is_read(self.count):  # and then it ended
                    return
                raise RuntimeError("the process that was to read it has ended")


class _Pause:
    """Between two looks at what another process does: none at first, then longer ones."""

    def __init__(self, timeout: timedelta) -> None:
        self.start = time.monotonic()
        self.limit = timeout.total_seconds()

    def __call__(self, state: str) -> bool:
        """Whether it was a longer one. Raises RuntimeError when the time is over."""
        waited = time.monotonic() - self.start
        if waited > self.limit:
            raise RuntimeError(f"timed out: {state}")
        if waited < EAGER_SECONDS:
            os.sched_yield()
            return False
        time.sleep(min(LONGEST_NAP, waited / 20))
        return True


def meet(group: Group) -> Neighbours | None:
    """Find out, with all ranks of a group, which of them exchange messages through memory with this
    one; None where nobody does.

    They are on one machine if they have its boot and its network in common. Each then tries.
    """
    if group.size == 1 or "cpu:gloo" not in dist.get_backend_config(group.process_group):
        return None
    _let_siblings_read()
    size, rank = group.size, group.rank
    # The number, how many messages to each rank it has read, where the first note for each will be.
    board = (ctypes.c_int64 * (1 + 2 * size))()
    board[0] = secrets.randbits(62) + 1
    notes = [_Note() for _ in range(size)]
    for peer, note in enumerate(notes):
        board[1 + size + peer] = ctypes.addressof(note)
    _KEPT.append(board)
    table = torch.zeros(size, 4, dtype=torch.int64)
    table[rank] = torch.tensor([_machine(), os.getpid(), ctypes.addressof(board), board[0]])
    group.all_reduce(table, "who is on which machine")
    channels: dict[int, _Channel] = {}
    for peer, (machine, *memory) in enumerate(table.tolist()):
        if peer != rank and machine == _machine() != 0:
            with contextlib.suppress(RuntimeError, AttributeError):
                there = _Memory(*memory)
                channel = _Channel(
                    there, notes[peer],
                    has_read=ctypes.c_int64.from_buffer(board, WORD * (1 + peer)),
                    next_note=there.word(there.board + WORD * (1 + size + rank)),
                    have_read=there.board + WORD * (1 + rank),
                )  # fmt: skip
                there.set_word(channel.have_read, 0)
                channels[peer] = channel  # what was tried went well
    reads = torch.zeros(size, size, dtype=torch.int64)
    reads[rank, list(channels)] = 1
    group.all_reduce(reads, "whose memory can be read")
    mutual = {peer: c for peer, c in channels.items() if reads[peer, rank]}
    return Neighbours(mutual) if mutual else None


# ---- Small steps --------------------------------------------------------------------------------


def _checked(count: int) -> int:
    """A count below 2**31 beside its complement, so that half a word is not taken for one."""
    return count << 32 | (~count & 0xFFFFFFFF)


def _from_checked(word: int) -> int:
    """The count, 0 where the word is not whole, or nothing was written."""
    count = word >> 32
    return count if count == ~word & 0xFFFFFFFF else 0


def _check_contiguous(tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise RuntimeError("tensor has to be contiguous")


def _segments(*places: tuple[int, int]) -> ctypes.Array[_Segment]:
    return (_Segment * len(places))(*(_Segment(*place) for place in places))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _machine() -> int:
    """A number that this machine's processes have in common, and no others; 0 where nothing is to
    be exchanged through memory."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return 0
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(f"{boot} {network}".encode()).digest()[:7], "big")


def _let_siblings_read() -> None:
    """Yama lets only ancestors read a process's memory: let its parent's other children, too."""
    with contextlib.suppress(OSError, AttributeError):
        _libc().prctl(PR_SET_PTRACER, os.getppid(), 0, 0, 0)
