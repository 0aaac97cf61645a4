"""What a tree of processes does: which are left, and on which addresses they listen."""

from __future__ import annotations

import ipaddress
import struct
import time
from pathlib import Path

import psutil

LISTEN = "0A"


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def wait_until_gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after this time; zombies do not count."""
    deadline = time.monotonic() + seconds
    left = processes
    while left and time.monotonic() < deadline:
        left = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.05)
    return left


def listening(processes: list[psutil.Process]) -> list[str]:
    """The addresses, as text, on which these processes listen with TCP (Linux)."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            target = str(descriptor.readlink()) if descriptor.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and words[9] in inodes:
                found.append(_address(words[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    """The kernel writes addresses as hexadecimal words of 32 bits, each in the host's order."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words)))


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
