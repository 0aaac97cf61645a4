"""Which interface is chosen, and from what; the choice on several hosts is in tests/hosts."""

from __future__ import annotations

import ipaddress
import os
import socket

import pytest

from fullgraph.comm.interface import (
    interface_of,
    keep_to,
    local_address,
    loopback_interface,
    named_interface,
    own_addresses,
)

LO = loopback_interface()


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is restored, whatever is set
        monkeypatch.delenv(name)


def test_loopback_is_found_by_its_address() -> None:
    assert local_address("127.0.0.1", 1) == local_address("localhost", 1) == "127.0.0.1"
    assert (LO, ipaddress.ip_address("127.0.0.1")) in list(own_addresses())
    assert interface_of("127.0.0.1") == LO
    assert interface_of("192.0.2.1") is None  # an address for documentation only
    assert interface_of("") is None
    assert local_address("no such host", 1) is None


def test_every_address_belongs_to_an_interface_that_there_is() -> None:
    names = {name for _, name in socket.if_nameindex()}
    found = list(own_addresses())
    assert {name for name, _ in found} <= names
    for name, address in found:
        assert address.is_link_local or interface_of(str(address)) == name


@pytest.mark.parametrize(
    ("gloo", "nccl", "chosen"),
    [
        (None, None, None),
        (LO, None, LO),
        (f"{LO},{LO}", "eth", f"{LO},{LO}"),
        (None, LO, LO),
        (None, f"={LO}", LO),
        (None, "^docker", None),
        ("", "no-such", None),
    ],
)
def test_the_environment_comes_first(
    monkeypatch: pytest.MonkeyPatch, gloo: str | None, nccl: str | None, chosen: str | None
) -> None:
    for name, value in (("GLOO_SOCKET_IFNAME", gloo), ("NCCL_SOCKET_IFNAME", nccl)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert named_interface() == chosen
    keep_to("other")
    assert os.environ["GLOO_SOCKET_IFNAME"] == (gloo or "other")
    assert os.environ["NCCL_SOCKET_IFNAME"] == ("=other" if nccl is None else nccl)


def test_a_name_of_no_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", f"{LO},eth99")
    with pytest.raises(ValueError, match=r"=lo0?,eth99: this host has no interface eth99; it has "):
        named_interface()
