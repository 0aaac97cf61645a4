"""Where the ranks meet: their store, on loopback alone when all of them are on this machine.

torch's own TCPStore listens on every address of the machine, so for a run on one machine the
socket is made here, bound to loopback, and handed to the store.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

LOOPBACK = "127.0.0.1"


class Place(NamedTuple):
    """What the environment says of this rank: who it is, and where rank 0 can be reached."""

    rank: int
    size: int
    address: str
    port: int


def meet(timeout: timedelta) -> tuple[dist.Store, int, int]:
    """The store that all ranks share, this rank, and their number, once all ranks are there.

    When all ranks are on this machine, gloo is kept to the loopback interface too, unless
    GLOO_SOCKET_IFNAME says otherwise.

    Raises:
        ValueError: the environment variables of torchrun are incomplete or make no sense.
        TimeoutError: rank 0 cannot be reached, or ranks are missing; names them.
        OSError: rank 0 cannot listen at MASTER_ADDR and MASTER_PORT.
    """
    place = read_environment()
    if all_ranks_are_here(place):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"fullgraph/{attempt}", _open_store(place, timeout))
    store.set_timeout(timeout)
    store.set(f"here/{place.rank}", "")
    everyone = {rank: f"here/{rank}" for rank in range(place.size)}
    try:
        store.wait(list(everyone.values()), timeout)
    except RuntimeError as error:
        missing = [rank for rank, key in everyone.items() if not store.check([key])]
        raise TimeoutError(
            f"rank {place.rank}: of {place.size} ranks, these did not join within "
            f"{timeout.total_seconds():g} s: {missing}"
        ) from error
    return store, place.rank, place.size


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


def loopback_interface() -> str:
    """The name of the loopback interface: "lo" on Linux, "lo0" on macOS."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


def loopback_store(
    port: int, num_ranks: int, timeout: timedelta, address: str = LOOPBACK
) -> dist.TCPStore:
    """A store that this process serves on this loopback address and no other; port 0 chooses one.

    Does not wait for anyone. Raises OSError when the port is taken.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        port = listener.getsockname()[1]
        return dist.TCPStore(
            address, port, num_ranks, is_master=True, timeout=timeout, wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {address}:{port} (MASTER_PORT): {error}") from error


def _open_store(place: Place, timeout: timedelta) -> dist.Store:
    """Served by rank 0, unless torchrun's agent serves it already."""
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if place.rank == 0 and not served and is_loopback(place.address):
        address = LOOPBACK if place.address == "localhost" else place.address
        return loopback_store(place.port, place.size, timeout, address)
    try:
        return dist.TCPStore(
            place.address, place.port, place.size, is_master=place.rank == 0 and not served,
            timeout=timeout, wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
    except RuntimeError as error:
        raise TimeoutError(
            f"rank {place.rank}: rank 0 cannot be reached at {place.address}:{place.port} "
            f"(MASTER_ADDR, MASTER_PORT) within {timeout.total_seconds():g} s: is it running?"
        ) from error
