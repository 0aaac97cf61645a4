"""How ranks find each other at a store, whatever it holds of an earlier attempt or another run.

Every rank but 0 says hello with a token of its own. Rank 0 answers each token with the name of a
new meeting, and only under that name are keys that anyone looks at. A rank that was started again
says hello again; what one that is gone has left there is answered, and harms nobody.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

POLL_SECONDS = 0.02
FAREWELL_SECONDS = 0.5  # for the others to read why rank 0 leaves, and takes the store with it


class MissingRanksError(TimeoutError):
    """Not all ranks came in time; ``ranks``: which are missing."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = list(ranks)
        super().__init__(f"missing ranks: {self.ranks}")


def convene(store: dist.Store, size: int, note: str, seconds: float) -> dist.Store:
    """On rank 0: the meeting's own store, once all ranks are there.

    note: what others are told of this rank (see `notes`).
    Raises MissingRanksError where not all of them come within so many seconds.
    """
    deadline = time.monotonic() + seconds
    name, invited = uuid.uuid4().hex, dict[int, bytes]()
    meeting = dist.PrefixStore(name, store)
    meeting.set("here/0", note)
    missing = list(range(1, size))
    while missing:
        for rank in missing:
            hello = f"hello/{rank}"
            if store.check([hello]) and (token := store.get(hello)) != invited.get(rank):
                store.set(f"invited/{token.decode()}", name)
                invited[rank] = token
        missing = _missing(meeting, missing)
        if missing and time.monotonic() > deadline:
            meeting.set("missing", ",".join(map(str, missing)))
            time.sleep(FAREWELL_SECONDS)
            raise MissingRanksError(missing)
        time.sleep(POLL_SECONDS)
    meeting.set("missing", "")
    return meeting


def attend(store: dist.Store, rank: int, size: int, note: str, seconds: float) -> dist.Store:
    """The same on any other rank."""
    deadline = time.monotonic() + seconds
    token = uuid.uuid4().hex
    store.set(f"hello/{rank}", token)
    missing = [0]
    try:
        store.wait([f"invited/{token}"], _until(deadline))
        meeting = dist.PrefixStore(store.get(f"invited/{token}").decode(), store)
        meeting.set(f"here/{rank}", note)
        try:
            meeting.wait(["missing"], _until(deadline))
            missing = [int(other) for other in meeting.get("missing").decode().split(",") if other]
        except RuntimeError:
            missing = _missing(meeting, range(size))
            raise
    except RuntimeError as error:  # rank 0, who may hold the store, says nothing, or is gone
        raise MissingRanksError(missing) from error
    if missing:
        raise MissingRanksError(missing)
    return meeting


def notes(meeting: dist.Store, size: int) -> list[str]:
    """What each rank wanted the others to know, by rank."""
    return [meeting.get(f"here/{rank}").decode() for rank in range(size)]


def _missing(meeting: dist.Store, ranks: Iterable[int]) -> list[int]:
    return [rank for rank in ranks if not meeting.check([f"here/{rank}"])]


def _until(deadline: float) -> timedelta:
    return timedelta(seconds=max(POLL_SECONDS, deadline - time.monotonic()))
