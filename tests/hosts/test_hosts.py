"""Training on several hosts: exact over real addresses, on bad links, and ended by one that breaks.

The hosts are network namespaces, each with a name that only it knows, at 127.0.1.1, and a cable
whose name no other has.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fullgraph.training.run_folder import RunFolder
from tests.hosts import processes
from tests.hosts.network import Network, host_without_cable, network, refusal
from tests.training.processes import listening

pytestmark = pytest.mark.slow

GRAPH = "planted:nodes=200,edges=800,classes=3,features=6"
EPOCHS = 6
TRAIN = (
    "train", "parts", "--model", "sage", "--hidden", 8, "--norm", "batch", "--threads", 1,
    "--schedule", "oneshot", "--eval-every", 2, "--checkpoint-every", 2,
)  # fmt: skip
SECONDS = 300  # for what should take a few, on a busy machine
MEASURED = ("seconds", "evaluation_seconds", "peak_memory_bytes", "bytes_sent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hosts")
    if reason := refusal(folder):
        pytest.skip(f"this kernel refuses network namespaces: {reason}")
    return folder


@pytest.fixture(scope="module")
def net(folder: Path) -> Iterator[Network]:
    with network(folder, 4, relayed=3) as made:
        yield made


@pytest.fixture(scope="module")
def reference(folder: Path) -> RunFolder:
    """Trained by four workers on one host that has only `lo`."""
    with host_without_cable(folder) as pid:
        for name, words in {
            "partition": ("partition", GRAPH, "--parts", 4, "--out", "parts"),
            "reference": (*TRAIN, "--workers", 4, "--epochs", EPOCHS, "--out", "reference"),
        }.items():
            program = processes.start(pid, folder, name, processes.fullgraph, *words)
            assert program.wait(SECONDS) == 0, program.err
    return RunFolder(folder / "reference")


def lines(run: RunFolder) -> list[dict[str, Any]]:
    """Losses and metrics, without what was measured."""
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in run.metrics()]


def check_same(run: RunFolder, reference: RunFolder) -> None:
    """To the bit."""
    assert run.result()["status"] == "finished"
    assert lines(run) == lines(reference)
    assert len(lines(run)) == EPOCHS
    there, here = reference.weights(), run.weights()
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in there)


def test_torchrun_on_four_hosts_is_exact_though_one_link_is_slow_and_loses_frames(
    folder: Path, net: Network, reference: RunFolder
) -> None:
    net.links[3].make_bad(milliseconds=50, loss=0.01)
    try:
        agents = [
            processes.start(
                host.pid, folder, f"agent-{i}", processes.torchrun, "--nnodes", 4, "--node-rank", i,
                "--master-addr", net.hosts[0].address, "--master-port", 29400, "-m",
                "fullgraph.cli", *TRAIN, "--epochs", EPOCHS, "--out", "torchrun",
            )
            for i, host in enumerate(net.hosts)
        ]  # fmt: skip
        for agent in agents:
            assert agent.wait(SECONDS) == 0, agent.err
    finally:
        carried, lost = net.links[3].make_bad(milliseconds=0, loss=0)
    assert carried > 100
    assert lost > 0
    check_same(RunFolder(folder / "torchrun"), reference)
    assert ["epoch" in agent.out for agent in agents] == [True, False, False, False]


def test_a_link_that_is_cut_ends_all_hosts_and_a_restart_comes_to_the_same_bits(
    folder: Path, net: Network, reference: RunFolder
) -> None:
    run, timeout, cut = RunFolder(folder / "cut"), 10, 2
    words = (*TRAIN, "--timeout", timeout, "--out", "cut", "--epochs", EPOCHS)
    where: dict[str, Any] = {"address": net.hosts[0].address}
    net.links[3].make_bad(milliseconds=20, loss=0)  # so that epochs take a second
    started = processes.ranks(net.hosts, folder, "cut", processes.fullgraph, *words, **where)
    processes.wait_for(lambda: len(run.metrics()) == EPOCHS - 3, SECONDS, started)
    net.links[cut].cut()
    start = time.monotonic()
    try:
        codes = [program.wait(5 * timeout) for program in started]
    finally:
        net.links[cut].mend()
    assert codes == [2] * 4
    assert time.monotonic() - start < timeout + 8
    for rank, program in enumerate(started):
        *_, line = program.err.splitlines()
        assert re.match(f"fullgraph: error: rank {rank}: .* failed \\(limit 10 s\\): ", line)
        named = r"rank 2\b|not heard from: ranks \[2\]"
        assert re.search("does not answer" if rank == cut else named, line), line
    assert run.result()["status"] == "failed"
    assert EPOCHS - 3 <= len(lines(run)) < EPOCHS
    assert lines(run) == lines(reference)[: len(lines(run))]

    # torchrun counts a restart on some hosts only, and not always on that of rank 0.
    again = [
        processes.start(
            host.pid, folder, f"again-{rank}", processes.fullgraph, *words, RANK=rank,
            WORLD_SIZE=4, MASTER_ADDR=where["address"], MASTER_PORT=29500,
            TORCHELASTIC_RESTART_COUNT=int(rank == cut),
        )
        for rank, host in enumerate(net.hosts)
    ]  # fmt: skip
    for program in again:
        assert program.wait(SECONDS) == 0, program.err
    check_same(run, reference)
    assert re.search("going on after epoch [24]", again[0].out)


def join_and_say(timeout: float, out: str = "") -> None:
    """Join the other ranks; rank, sum of ranks, interfaces, and addresses listened at, as JSON."""
    import psutil

    from fullgraph.comm.group import init

    group = init(timeout=timeout)
    total = group.all_reduce(torch.tensor([float(group.rank)]), "ranks").item()
    interfaces = [os.environ[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
    listens = sorted(set(listening([psutil.Process()])))
    print(json.dumps([group.rank, total, interfaces, listens]), flush=True)
    group.all_reduce(torch.zeros(1), "the end")


@pytest.mark.parametrize("address", ["10.77.0.1", "fd77::1", "host-0"])
def test_the_interface_is_that_of_the_route_to_rank_0(
    folder: Path, net: Network, address: str
) -> None:
    # host-0 is 127.0.1.1 to itself, so that it has to listen everywhere to be reached
    joined = processes.ranks(net.hosts[:2], folder, "join", join_and_say, 30, address=address)
    said = []
    for program in joined:
        assert program.wait(SECONDS) == 0, program.err
        said.append(json.loads(program.out))
    own = [{host.address, host.address6} for host in net.hosts]
    for rank, (told, total, interfaces, listens) in enumerate(said):
        assert (told, total, interfaces) == (rank, 1.0, [f"net{rank}", f"=net{rank}"])
        if rank == 0 and address == "host-0":
            assert "::" in listens
        else:
            assert set(listens) <= own[rank]


def occupy(address: str, port: int) -> None:
    with socket.create_server((address, port)):
        print("listening", flush=True)
        time.sleep(SECONDS)


def test_what_is_wrong_with_a_meeting_is_named(folder: Path, net: Network) -> None:
    hosts, first = net.hosts, net.hosts[0].address
    taken = processes.start(hosts[0].pid, folder, "taken", occupy, first, 29599)
    processes.wait_for(lambda: "listening" in taken.out, SECONDS, [taken])
    cases: dict[str, tuple[float, int, dict[str, Any]]] = {
        "missing": (15, 29600, {"address": first, "WORLD_SIZE": 3}),
        "wrong": (3, 29601, {"address": hosts[2].address}),
        "unknown": (3, 29602, {"address": "nowhere.invalid"}),
        "taken-port": (3, 29599, {"address": first}),
        "no-interface": (3, 29604, {"address": first, "GLOO_SOCKET_IFNAME": "net1"}),
    }
    started = {
        name: processes.ranks(hosts[:2], folder, name, join_and_say, wait, port=port, **variables)
        for name, (wait, port, variables) in cases.items()
    }
    said = {}
    for name, programs in started.items():
        assert [program.wait(SECONDS) for program in programs] == [1, 1]
        said[name] = [program.err.splitlines()[-1].partition(": ")[2] for program in programs]
    taken.kill()
    missing = "of 3 ranks, these did not join within 15 s: [2] (at 10.77.0.1:29600)"
    assert said["missing"] == [f"rank {rank}: {missing}" for rank in range(2)]
    for rank, name, where, why in (
        (0, "wrong", "10.77.0.3:29601", "rank 0 runs on this host, whose addresses are 127.0."),
        (1, "wrong", "10.77.0.3:29601", "Connection refused; is it running?"),
        (0, "unknown", "nowhere.invalid:29602", "no host named 'nowhere.invalid' is known here"),
        (1, "unknown", "nowhere.invalid:29602", "no host named 'nowhere.invalid' is known here"),
        (1, "taken-port", "10.77.0.1:29599", "what listens there does not answer"),
    ):
        line = f"rank {rank}: rank 0 cannot be reached at {where} (MASTER_ADDR, MASTER_PORT)"
        assert said[name][rank].startswith(f"{line} within 3 s: {why}")
    assert all(host in said["wrong"][0] for host in ("10.77.0.1", "fd77::1"))
    assert said["taken-port"][0].startswith(
        "cannot listen on 10.77.0.1:29599 (MASTER_PORT): [Errno 98] Address already in use"
    )
    assert said["no-interface"][0] == (
        "GLOO_SOCKET_IFNAME=net1: this host has no interface net1; it has lo, net0"
    )
