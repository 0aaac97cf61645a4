"""Which network interface leads to the other hosts: what the environment names, else the one that
the route to rank 0 begins at.

gloo would take the address that this host's own name has, which on many hosts is 127.0.1.1.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
SIOCGIFCONF = 0x8912
MOST_ADDRESSES = 1024
IFREQ = struct.Struct("16s 4x 4s 16x" if struct.calcsize("P") == 8 else "16s 4x 4s 8x")


def local_address(host: str, port: int) -> str | None:
    """The address of this host from which it reaches another, or itself; None where there is no
    route, or the host's name is not known."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, there in found:
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(there)  # of datagrams: it looks the route up, and sends nothing
                return str(probe.getsockname()[0])
    return None


def interface_of(address: str) -> str | None:
    """The name of the interface that has an address; None where none has, there is no address, or
    the system is not Linux."""
    if not address:
        return None
    wanted = ipaddress.ip_address(address.partition("%")[0])
    return next((name for name, found in own_addresses() if found == wanted), None)


def own_addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Interfaces that are up, and their addresses; of an interface with several, each. Linux only,
    nothing elsewhere."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        buffer = ctypes.create_string_buffer(MOST_ADDRESSES * IFREQ.size)
        request = struct.pack("iP", len(buffer), ctypes.addressof(buffer))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, SIOCGIFCONF, request)
        (length, _) = struct.unpack("iP", answer)
        for name, packed in IFREQ.iter_unpack(buffer.raw[:length]):
            # "eth0:1" is a label of an address of eth0
            label = name.rstrip(b"\0").decode()
            yield label.partition(":")[0], ipaddress.IPv4Address(packed)
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, interface = line.split()
            yield interface, ipaddress.IPv6Address(bytes.fromhex(digits))


def loopback_interface() -> str:
    """The name of the loopback interface: "lo" on Linux, "lo0" on macOS."""
    return next((name for name in _names() if name in ("lo", "lo0")), "lo")


def named_interface() -> str | None:
    """The interface that GLOO_SOCKET_IFNAME names, or else NCCL_SOCKET_IFNAME, where that is one
    name; None where neither does.

    Raises ValueError where gloo's is none of this host, naming those that there are.
    """
    names = _names()
    given = os.environ.get(GLOO)
    if given:
        if strange := [name for name in given.split(",") if name not in names]:
            raise ValueError(
                f"{GLOO}={given}: this host has no interface {', '.join(strange)}; it has "
                f"{', '.join(names)}"
            )
        return given
    of_nccl = os.environ.get(NCCL, "").removeprefix("=")
    return of_nccl if of_nccl in names else None


def keep_to(interface: str) -> None:
    """Have gloo and NCCL use this interface alone, where the environment does not say otherwise."""
    os.environ[GLOO] = os.environ.get(GLOO) or interface
    os.environ.setdefault(NCCL, f"={interface}")


def _names() -> list[str]:
    return [name for _, name in socket.if_nameindex()]
