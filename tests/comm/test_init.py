"""`init`: which ranks it finds, over which addresses, and what it says when it cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from fullgraph.comm.group import CommError, init
from fullgraph.comm.interface import loopback_interface
from fullgraph.comm.rendezvous import (
    Place,
    all_ranks_are_here,
    is_loopback,
    loopback_store,
)

VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is restored, whatever init sets
        monkeypatch.delenv(name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _set(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_without_torchrun_there_is_a_group_of_one() -> None:
    group = init()
    assert (group.rank, group.size, group.process_group) == (0, 1, None)


def test_incomplete_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, WORLD_SIZE=2, MASTER_ADDR="localhost")
    with pytest.raises(
        ValueError, match="RANK and MASTER_PORT not: start the script with torchrun"
    ):
        init()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "first"}, "RANK='first' must be a whole number"),
        ({"RANK": "2"}, "RANK=2 must be at least 0 and less than WORLD_SIZE=2"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is not a port"),
    ],
)
def test_wrong_values_are_named(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str], message: str
) -> None:
    values = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    _set(monkeypatch, **{**values, **change})
    with pytest.raises(ValueError, match=message):
        init()


def test_an_unknown_backend_and_a_bad_timeout_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="timeout must be positive"):
        init(timeout=0)
    _set(monkeypatch, RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=_free_port())
    with pytest.raises(ValueError, match="backend 'mpi3' is not part of this torch"):
        init(backend="mpi3")


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, RANK=0, WORLD_SIZE=3, MASTER_ADDR="localhost", MASTER_PORT=_free_port())
    with pytest.raises(CommError, match=r"of 3 ranks, these did not join within 1 s: \[1, 2\]"):
        init(timeout=1)


def test_an_unreachable_rank_0_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = _free_port()
    _set(monkeypatch, RANK=1, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    with pytest.raises(CommError, match=f"rank 0 cannot be reached at 127.0.0.1:{port}"):
        init(timeout=1)


def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _set(monkeypatch, RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        with pytest.raises(CommError, match=f"cannot listen on 127.0.0.1:{port} "):
            init(timeout=1)


def test_what_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_loopback, ("10.0.0.1", "0.0.0.0", "node-7", "localhost.example")))
    assert not all_ranks_are_here(Place(0, 4, "node-7", 29500))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert not all_ranks_are_here(Place(0, 4, "node-7", 29500))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # torchrun started all four here
    assert all_ranks_are_here(Place(0, 4, "node-7", 29500))


def test_the_loopback_store_refuses_other_addresses_of_this_machine() -> None:
    from datetime import timedelta

    store = loopback_store(0, 1, timedelta(seconds=5))
    store.set("key", "value")
    assert store.get("key") == b"value"
    with socket.create_connection(("127.0.0.1", store.port), timeout=5):
        pass
    # 127.0.0.2 is this machine too: a socket that listens on all addresses would answer there.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), timeout=5)


RANK_SCRIPT = """
import os, sys
import torch
from fullgraph.comm.group import init
group = init(timeout=60)
total = group.all_reduce(torch.tensor([float(group.rank + 1)]), "ranks").item()
print(group.rank, group.size, total, os.environ["GLOO_SOCKET_IFNAME"])
sys.stdout.flush()
os._exit(0)
"""


def test_ranks_that_were_started_by_hand_meet_over_loopback() -> None:
    here = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    here |= {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(_free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_SCRIPT], env={**here, "RANK": str(rank)},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=90)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert said == [[str(rank), "2", "3.0", loopback_interface()] for rank in range(2)]
