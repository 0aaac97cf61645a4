"""Hosts of their own on one machine: network namespaces at a bridge, each with its own name, its
own /etc/hosts and one cable (needs Linux, root and iproute2).

As on Debian, a host knows itself by 127.0.1.1, at which no other can reach it, and the others by
their addresses.

Everything belongs to processes that end with this one, so nothing is left behind.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

RELAY = Path(__file__).with_name("relay.py")
LOCALHOST = "127.0.0.1 localhost\n::1 localhost\n"
HOLD = """
mount --bind "$1" /etc/hosts
hostname "$2"
ip link set lo up
echo ready
exec cat
"""


class Host(NamedTuple):
    """``pid``: of a process in its namespaces. ``address``, ``address6``: of its one cable, whose
    name, ``interface``, no other host has."""

    name: str
    pid: int
    address: str
    address6: str
    interface: str


class Link:
    """The cable of a host: it can be cut, or, where it is relayed, made bad."""

    def __init__(self, switch: int, port: str, relay: subprocess.Popen[str] | None) -> None:
        self._switch, self._port, self._relay = switch, port, relay

    def cut(self) -> None:
        ip(self._switch, f"link set {self._port} down")

    def mend(self) -> None:
        ip(self._switch, f"link set {self._port} up")

    def make_bad(self, milliseconds: float, loss: float) -> tuple[int, int]:
        """Delay each way, and share of frames lost, from now on; frames carried and lost before."""
        assert self._relay is not None
        assert self._relay.stdin is not None
        assert self._relay.stdout is not None
        self._relay.stdin.write(f"{milliseconds} {loss}\n")
        self._relay.stdin.flush()
        carried, lost = map(int, self._relay.stdout.readline().split())
        return carried, lost


class Network(NamedTuple):
    hosts: list[Host]
    links: list[Link]


@contextlib.contextmanager
def network(folder: Path, count: int, relayed: int | None = None) -> Iterator[Network]:
    """So many hosts; the link of host number `relayed` can be made bad."""
    names = [f"host-{i}" for i in range(count)]
    known = [f"fd77::{i + 1} {name}\n" for i, name in enumerate(names)]
    with contextlib.ExitStack() as stack:
        switch = _hold(stack, folder, "switch", LOCALHOST)
        ip(switch, "link add bridge type bridge", "link set bridge up")
        hosts, links = [], []
        for i, name in enumerate(names):
            others = "".join(known[:i] + known[i + 1 :])
            pid = _hold(stack, folder, name, f"{LOCALHOST}127.0.1.1 {name}\n{others}")
            host = Host(name, pid, f"10.77.0.{i + 1}", f"fd77::{i + 1}", f"net{i}")
            hosts.append(host)
            links.append(_connect(stack, switch, host, i == relayed))
        yield Network(hosts, links)


@contextlib.contextmanager
def host_without_cable(folder: Path) -> Iterator[int]:
    """The pid of a process in namespaces that have only `lo`."""
    with contextlib.ExitStack() as stack:
        yield _hold(stack, folder, "alone", f"{LOCALHOST}127.0.1.1 alone\n")


def _connect(stack: contextlib.ExitStack, switch: int, host: Host, relayed: bool) -> Link:
    port, relay = f"to-{host.name}", None
    if relayed:
        command = ["nsenter", f"--target={switch}", "--net", sys.executable, str(RELAY)]
        relay = _start(stack, *command, host.interface, port)
        ip(switch, f"link set {host.interface} netns {host.pid}")
    else:
        peer = f"peer name {host.interface} netns {host.pid}"
        ip(switch, f"link add {port} type veth {peer}")
    ip(switch, f"link set {port} master bridge", f"link set {port} up")
    ip(
        host.pid,
        f"address add {host.address}/24 dev {host.interface}",
        f"address add {host.address6}/64 dev {host.interface} nodad",
        f"link set {host.interface} up",
    )
    return Link(switch, port, relay)


def _hold(stack: contextlib.ExitStack, folder: Path, name: str, known: str) -> int:
    """The pid of a process that holds namespaces in which only `lo` is up. known: /etc/hosts."""
    file = folder / f"hosts-of-{name}"
    file.write_text(known)
    unshare = ["unshare", "--net", "--mount", "--uts"]
    return _start(stack, *unshare, "sh", "-ec", HOLD, "sh", str(file), name).pid


def _start(stack: contextlib.ExitStack, *command: str) -> subprocess.Popen[str]:
    """A process that says that it is ready, and ends with its stdin, as when this process does."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    stack.callback(process.communicate)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RefusedError(process.communicate()[1].strip() or f"{command[0]} ended")
    return process


def ip(pid: int, *commands: str) -> None:
    """Run lines of `ip` in the network namespace of a process."""
    done = subprocess.run(
        ["nsenter", f"--target={pid}", "--net", "ip", "-batch", "-"],
        input="\n".join(commands), capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RefusedError(done.stderr.strip())


class RefusedError(RuntimeError):
    """The kernel does not let this process make namespaces, or devices in them."""


def refusal(folder: Path) -> str:
    """Why the kernel refuses to make hosts; "" where it does not. What is merely not installed
    fails the tests instead."""
    if not sys.platform.startswith("linux"):
        return "it is not Linux"
    for program in ("unshare", "nsenter", "ip", "mount", "hostname"):
        if shutil.which(program) is None:
            pytest.fail(f"these tests need {program} (Debian: iproute2, util-linux, hostname)")
    try:
        with network(folder, 2, relayed=1):
            return ""
    except RefusedError as error:
        return str(error)
