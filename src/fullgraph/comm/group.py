"""The group of ranks: point-to-point moves and all-reduce, with bounded waits and named errors."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fullgraph.comm import neighbours
from fullgraph.comm.rendezvous import meet
from fullgraph.comm.spans import EXCHANGE, WAITING, span

DEFAULT_TIMEOUT = timedelta(minutes=5)
LOOK_SECONDS = 2.0  # for what other ranks have reported
KEPT = 4  # tensors of the last collectives
LET_GO_SECONDS = 1.0  # that gloo's threads are given to let go of them
_last = deque[Tensor](maxlen=KEPT)  # of all groups of this process


class CommError(RuntimeError):
    """An exchange did not complete: names this rank, the peer and the operation."""


class Group:
    """The ranks that train together. Passed to whatever communicates; there is no global one.

    Args:
        process_group: a torch.distributed group; None makes a group of one. See also `init`, and
            `Group.of` for the default group of torch.distributed.
        timeout: the longest any single wait may take; None: what the process group was made with.
        store: where a failing rank leaves its message for the others (see `init`); None: nowhere.

    Attributes:
        on_wait: told before each wait what is waited for, and "" when it is over.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        store: dist.Store | None = None,
    ) -> None:
        self.process_group = process_group
        self.rank = 0 if process_group is None else dist.get_rank(process_group)
        self.size = 1 if process_group is None else dist.get_world_size(process_group)
        self.timeout = timeout
        self.on_wait: Callable[[str], None] = lambda operation: None
        self.neighbours: neighbours.Neighbours | None = None
        self._store = store

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, size={self.size})"

    @staticmethod
    def of(group: Group | None) -> Group:
        """`group`, or where it is None the default group of torch.distributed, if there is one."""
        if group is not None:
            return group
        return Group(dist.group.WORLD if dist.is_initialized() else None, timeout=None)

    def read_neighbours(self) -> None:
        """From now on, exchange messages with ranks on this machine through memory (see
        `fullgraph.comm.neighbours`), if waits have a limit; all ranks call it."""
        if self.timeout is not None:
            self.neighbours = neighbours.meet(self)

    # Plain moves -------------------------------------------------------------------------------

    def isend(self, tensor: Tensor, peer: int, operation: str | None = None) -> dist.Work:
        return self._post(dist.isend, tensor, peer, operation or f"sending to rank {peer}")

    def irecv(self, tensor: Tensor, peer: int, operation: str | None = None) -> dist.Work:
        return self._post(dist.irecv, tensor, peer, operation or f"receiving from rank {peer}")

    def _post(self, move: Any, tensor: Tensor, peer: int, operation: str) -> dist.Work:
        try:
            work = move(tensor, group=self.process_group, group_dst=peer) if move is dist.isend \
                else move(tensor, group=self.process_group, group_src=peer)  # fmt: skip
        except RuntimeError as error:
            raise self._error(operation, error) from error
        assert work is not None  # this rank is in its own group
        return work

    def post(
        self, receive: tuple[Tensor, int] | None, send: tuple[Tensor, int] | None,
        context: str = "",
    ) -> tuple[dist.Work | None, dist.Work | None]:  # fmt: skip
        """Post a receive and a send, each (tensor, peer) or None, as one: NCCL may order the two
        ends of a pair differently, and block, unless they are.

        context: for errors, what the exchange is of: " in the forward pass of …".
        """
        moves: list[tuple[Any, tuple[Tensor, int]]] = []
        works: list[Any] = [None, None]
        near = self.neighbours
        try:
            with span(f"{EXCHANGE}posting"):
                if receive and near and near.reach(*receive):
                    works[0] = near.receive(*receive)
                elif receive:
                    moves.append((dist.irecv, receive))
                if send and near and near.reach(*send):
                    works[1] = near.send(*send)
                elif send:
                    moves.append((dist.isend, send))
                if moves:
                    posted = dist.batch_isend_irecv([
                        dist.P2POp(move, tensor, group=self.process_group, group_peer=peer)
                        for move, (tensor, peer) in moves
                    ])  # fmt: skip
                    for (move, _), work in zip(moves, posted, strict=True):
                        works[move is dist.isend] = work
        except RuntimeError as error:
            peers = sorted({move[1] for move in (receive, send) if move})
            raise self._error(f"exchange with ranks {peers}{context}", error) from error
        return works[0], works[1]

    def wait(self, work: dist.Work, operation: str) -> None:
        """Wait for a posted move; CommError naming `operation` when it fails or takes too long."""
        self.on_wait(operation)
        try:
            with span(WAITING + operation):
                work.wait() if self.timeout is None else work.wait(self.timeout)
        except RuntimeError as error:
            raise self._error(operation, error) from error
        self.on_wait("")

    def all_reduce(self, tensor: Tensor, operation: str) -> Tensor:
        """Sum `tensor` over the ranks, in place; the same bits on every rank."""
        if self.size > 1:
            try:
                work = dist.all_reduce(
                    _handed_over(tensor), group=self.process_group, async_op=True
                )  # fmt: skip
            except RuntimeError as error:
                raise self._error(f"all-reduce of {operation}", error) from error
            assert work is not None
            self.wait(work, f"all-reduce of {operation}")
        return tensor

    def broadcast(self, tensor: Tensor, operation: str) -> Tensor:
        """Copy `tensor` of rank 0 to every rank, in place."""
        if self.size > 1:
            try:
                work = dist.broadcast(
                    _handed_over(tensor), group=self.process_group, group_src=0, async_op=True
                )  # fmt: skip
            except RuntimeError as error:
                raise self._error(f"broadcast of {operation}", error) from error
            assert work is not None
            self.wait(work, f"broadcast of {operation}")
        return tensor

    def all_gather(self, tensor: Tensor, operation: str) -> list[Tensor]:
        """Every rank's `tensor`, by rank; first sizes may differ, the rest may not. For set-up."""
        if self.size == 1:
            return [tensor]
        sizes = torch.zeros(self.size, dtype=torch.int64, device=tensor.device)
        sizes[self.rank] = tensor.shape[0]
        rows = self.all_reduce(sizes, f"sizes of {operation}").tolist()
        pieces = [tensor.new_empty((n, *tensor.shape[1:])) for n in rows]
        pieces[self.rank] = tensor.contiguous()
        self.exchange([pieces[self.rank]] * self.size, pieces, operation)
        return pieces

    def exchange(self, outgoing: list[Tensor], incoming: list[Tensor], operation: str) -> None:
        """Send outgoing[r] to every other rank r and fill incoming[r] from it. For set-up."""
        works = []
        for step in range(1, self.size):
            to, source = (self.rank - step) % self.size, (self.rank + step) % self.size
            receive, send = self.post(
                (incoming[source], source) if incoming[source].numel() else None,
                (outgoing[to], to) if outgoing[to].numel() else None,
                f" of {operation}",
            )
            works.append((receive, f"receiving {operation} from rank {source}"))
            works.append((send, f"sending {operation} to rank {to}"))
        for work, what in works:
            if work is not None:
                self.wait(work, what)

    # Failures ----------------------------------------------------------------------------------

    def report_failure(self, error: BaseException) -> None:
        """Leave the reason this rank stops where the other ranks' errors will quote it."""
        if self._store is not None and not isinstance(error, CommError):
            # the store may have gone down with the rank that held it
            with contextlib.suppress(RuntimeError):
                self._store.set(f"failed/{self.rank}", f"{type(error).__name__}: {error}"[:500])

    def _error(self, operation: str, error: RuntimeError) -> CommError:
        self.on_wait(operation)  # or what would have been waited for
        reason = str(error).strip().splitlines()
        message = f"rank {self.rank}: {operation} failed"
        limit = "" if self.timeout is None else f" (limit {self.timeout.total_seconds():g} s)"
        message += f"{limit}: {reason[0] if reason else ''}"
        return CommError(message + self._failures(operation))

    def _failures(self, operation: str) -> str:
        """What other ranks reported before they stopped, giving them a moment to do so; else which
        of them did not give up as well, as those that are cut off."""
        if self._store is None:
            return ""
        # in a thread, as a store never answers whose rank is stopped or cut off
        said: list[str] = []
        asking = threading.Thread(
            target=self._look_for_failures, args=(self._store, operation, said), daemon=True
        )
        asking.start()
        asking.join(LOOK_SECONDS)
        if asking.is_alive():
            said = ["the store that all ranks share does not answer"]
        return "".join(f"; {line}" for line in said)

    def _look_for_failures(self, store: dist.Store, operation: str, said: list[str]) -> None:
        deadline = time.monotonic() + LOOK_SECONDS / 2
        others = [rank for rank in range(self.size) if rank != self.rank]
        silent: list[int] = []
        with contextlib.suppress(RuntimeError):  # the store may end meanwhile, with its rank
            store.set(f"gave-up/{self.rank}", operation)
            while not said and time.monotonic() < deadline:
                said += [
                    f"rank {r} raised {store.get(f'failed/{r}').decode()}"
                    for r in others
                    if store.check([f"failed/{r}"])
                ]
                silent = [r for r in others if not store.check([f"gave-up/{r}"])]
                if not silent:
                    return
                time.sleep(0.1)
        if silent and not said:
            said += [f"not heard from: ranks {silent}"]


def init(timeout: timedelta | float = DEFAULT_TIMEOUT, backend: str | None = None) -> Group:
    """Join the group that torchrun started, or make a group of one where nothing did.

    An exception that ends this process is reported to the other ranks, whose own errors then name
    it. Calling it again, or after ``torch.distributed.init_process_group``, joins what is there.
    When all ranks are on this machine they talk over loopback alone (see `meet`).

    Args:
        timeout: the longest any single wait may take, in seconds or as a timedelta.
        backend: of torch.distributed; by default "gloo", with "nccl" for tensors on a GPU if any.

    Raises:
        ValueError: the environment variables of torchrun are incomplete, or the backend is not
            part of this torch.
        CommError: the ranks do not find each other in time; names those that are missing.
    """
    timeout = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if timeout <= timedelta(0):
        raise ValueError(f"timeout must be positive, got {timeout}")
    if dist.is_initialized():
        return Group(dist.group.WORLD, timeout=timeout)
    if "WORLD_SIZE" not in os.environ:
        return Group(timeout=timeout)
    backend = _choose_backend(backend)
    try:
        store, rank, size = meet(timeout)
        dist.init_process_group(
            backend, store=dist.PrefixStore("group", store), rank=rank, world_size=size,
            timeout=timeout,
        )  # fmt: skip
    except (TimeoutError, OSError) as error:
        raise CommError(str(error)) from error
    except RuntimeError as error:
        raise CommError(f"{backend} could not connect the ranks: {error}") from error
    group = Group(dist.group.WORLD, timeout, dist.PrefixStore("fullgraph", store))
    group.read_neighbours()
    _report_uncaught(group)
    atexit.register(_leave_group, group)
    return group


def _handed_over(tensor: Tensor) -> Tensor:
    """The same tensor for a collective, as an object that nobody but `_last` holds."""
    _last.append(tensor.detach())
    return _last[-1]


def _are_held() -> bool:
    """Whether torch still holds one of the last tensors of collectives, though these are over."""
    ours = 3  # the deque, `x`, and the argument
    return any(sys.getrefcount(x) > ours for x in _last)


def _leave_group(group: Group) -> None:
    """End the process group before Python shuts down, and once gloo's threads have let go of the
    last tensors that they were handed: they need Python's lock for that, and a thread that asks for
    it while Python shuts down aborts the process."""
    end = time.monotonic() + LET_GO_SECONDS
    while _are_held() and time.monotonic() < end:
        time.sleep(1e-3)
    group.process_group = None
    if dist.is_initialized():
        dist.destroy_process_group()


def _choose_backend(backend: str | None) -> str:
    if backend is None:
        return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if ":" not in backend and not dist.is_backend_available(backend):
        raise ValueError(f"backend {backend!r} is not part of this torch; gloo is on every machine")
    return backend


def _report_uncaught(group: Group) -> None:
    previous = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        group.report_failure(error)
        previous(kind, error, trace)

    sys.excepthook = report
