"""The helper that looks for listening sockets sees them, whatever they are bound to."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from tests.training.processes import is_loopback, listening


@pytest.mark.parametrize(
    ("family", "address", "loopback"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::", False),
    ],
)
def test_listening_sockets_are_seen(family: int, address: str, loopback: bool) -> None:
    before = listening([psutil.Process(os.getpid())])
    with socket.socket(family) as opened:
        opened.bind((address, 0))
        opened.listen()
        now = listening([psutil.Process(os.getpid())])
    assert sorted(now) == sorted([*before, address])
    assert is_loopback(address) == loopback
