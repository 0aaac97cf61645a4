"""Where the ranks meet: their store, on loopback alone when all of them are on this machine.

torch's own TCPStore listens on every address of the machine, so the socket is made here, bound to
MASTER_ADDR alone, and handed to the store.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, TypeVar, cast

import torch.distributed as dist

from fullgraph.comm.interface import (
    interface_of,
    keep_to,
    local_address,
    loopback_interface,
    named_interface,
    own_addresses,
)
from fullgraph.comm.meeting import MissingRanksError, attend, convene, notes

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
GRACE_SECONDS = 2.0  # for what waits in vain to say so itself


class Place(NamedTuple):
    """What the environment says of this rank: who it is, and where rank 0 can be reached."""

    rank: int
    size: int
    address: str
    port: int


def meet(timeout: timedelta) -> tuple[dist.Store, int, int]:
    """The store that all ranks share, this rank, and their number, once all ranks are there.

    gloo and NCCL are kept to one interface: the one that the environment names, or else loopback
    when all ranks are on this machine, or else that of the route to rank 0. What the store has of
    an earlier attempt, or another run, is not looked at (see `comm.meeting`).

    Raises:
        ValueError: the environment variables are incomplete or make no sense.
        TimeoutError: rank 0 cannot be reached, or ranks are missing; names them.
        OSError: rank 0 cannot listen at MASTER_ADDR and MASTER_PORT.
    """
    place = read_environment()
    named = named_interface()
    here = all_ranks_are_here(place)
    address = LOOPBACK if here else local_address(place.address, place.port) or ""
    meeting = _within(place, timeout, lambda: _meet(place, address, timeout))
    if not here and (not address or is_loopback(address)):  # as the host's own name often is
        others = _within(place, timeout, lambda: notes(meeting, place.size))
        others = [other for other in others if other and not is_loopback(other)]
        address = (others and local_address(others[0], place.port)) or address
    loopback = here or (address != "" and is_loopback(address))
    interface = named or (loopback_interface() if loopback else interface_of(address))
    if interface is not None:
        keep_to(interface)
    return meeting, place.rank, place.size


def _meet(place: Place, address: str, timeout: timedelta) -> dist.Store:
    """The store of this meeting. address: by which this rank reaches rank 0, for the others."""
    end = time.monotonic() + timeout.total_seconds()
    store = dist.PrefixStore("fullgraph", _open_store(place, timeout))
    store.set_timeout(timeout)
    seconds = max(0.0, end - time.monotonic())
    try:
        if place.rank == 0:
            return convene(store, place.size, address, seconds)
        return attend(store, place.rank, place.size, address, seconds)
    except MissingRanksError as error:
        raise TimeoutError(
            f"rank {place.rank}: of {place.size} ranks, these did not join within "
            f"{timeout.total_seconds():g} s: {error.ranks} (at {place.address}:{place.port})"
        ) from error


def _within(place: Place, timeout: timedelta, call: Callable[[], T]) -> T:
    """The call's result. In a thread, as a store's client waits without limit for an answer, and
    what listens at an address may not be a store, or be cut off."""
    outcome: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout.total_seconds() + GRACE_SECONDS)
    if not outcome:
        raise _unreachable(place, timeout)
    ((result, error),) = outcome
    if error is not None:
        raise error
    return cast(T, result)


def read_environment() -> Place:
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, checked.

    Raises ValueError naming what is missing or wrong.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"WORLD_SIZE is set, but {' and '.join(missing)} not: start the script with torchrun, "
            "or unset WORLD_SIZE to run in one process"
        )
    rank, size, port = (_number(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= rank < size:
        raise ValueError(f"RANK={rank} must be at least 0 and less than WORLD_SIZE={size}")
    if not 0 < port < 2**16:
        raise ValueError(f"MASTER_PORT={port} is not a port, which are 1 .. 65535")
    return Place(rank, size, os.environ["MASTER_ADDR"], port)


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r} must be a whole number")
    return int(text)


def is_loopback(address: str) -> bool:
    """Whether an address is loopback as it is written; a host's name may mean another address on
    another host, so only "localhost" counts among names."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def all_ranks_are_here(place: Place) -> bool:
    """Whether no rank is on another machine: rank 0 is reached over loopback, or torchrun says
    that it started all of them."""
    return is_loopback(place.address) or os.environ.get("LOCAL_WORLD_SIZE") == str(place.size)


def loopback_store(
    port: int, num_ranks: int, timeout: timedelta, address: str = LOOPBACK
) -> dist.TCPStore:
    """A store that this process serves on this loopback address and no other; port 0 chooses one.

    Does not wait for anyone. Raises OSError when the port is taken.
    """
    return _serve(address, address, port, num_ranks, timeout)


def _serve(
    address: str, bound: str, port: int, num_ranks: int, timeout: timedelta
) -> dist.TCPStore:
    """A store that this process serves. bound: the one address to listen on; "": all of them."""
    both = not bound and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in bound else socket.AF_INET
    try:
        with socket.create_server((bound, port), family=family, dualstack_ipv6=both) as listener:
            return dist.TCPStore(
                address, listener.getsockname()[1], num_ranks, is_master=True, timeout=timeout,
                wait_for_workers=False, master_listen_fd=listener.detach(),
            )  # fmt: skip
    except OSError as error:
        raise OSError(f"cannot listen on {bound or '*'}:{port} (MASTER_PORT): {error}") from error


def _open_store(place: Place, timeout: timedelta) -> dist.Store:
    """Served by rank 0, unless torchrun's agent serves it already."""
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        if place.rank == 0 and not served:
            own = _own_address(place)
            return _serve(own or place.address, own, place.port, place.size, timeout)
        return dist.TCPStore(
            place.address, place.port, place.size, is_master=False, timeout=timeout,
            wait_for_workers=False,
        )  # fmt: skip
    except RuntimeError as error:
        raise _unreachable(place, timeout) from error


def _own_address(place: Place) -> str:
    """The address to listen on: that of MASTER_ADDR; "", which is all, where it is another host's
    as far as this one can tell, or only this one's name for itself."""
    if is_loopback(place.address):
        return LOOPBACK if place.address == "localhost" else place.address
    address = local_address(place.address, place.port)
    if address is None or is_loopback(address) or address not in _resolved(place.address):
        return ""
    return address


def _resolved(host: str) -> list[str]:
    """The addresses of a host, empty where its name is not known."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None)]
    except OSError:
        return []


def _unreachable(place: Place, timeout: timedelta) -> TimeoutError:
    where = f"{place.address}:{place.port} (MASTER_ADDR, MASTER_PORT)"
    return TimeoutError(
        f"rank {place.rank}: rank 0 cannot be reached at {where} within "
        f"{timeout.total_seconds():g} s: {_why_unreachable(place)}"
    )


def _why_unreachable(place: Place) -> str:
    if not _resolved(place.address):
        return f"no host named {place.address!r} is known here"
    if place.rank == 0:
        own = ", ".join(str(address) for _, address in own_addresses())
        return f"rank 0 runs on this host, whose addresses are {own}"
    try:
        socket.create_connection((place.address, place.port), timeout=GRACE_SECONDS).close()
    except OSError as error:
        return f"{error.strerror or error}; is it running?"
    return "what listens there does not answer, so it is not, or no longer, rank 0 of this run"
