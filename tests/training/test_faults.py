"""Whatever becomes of one worker, the others stop in time and say so, and the run can go on.

Real processes: in each attempt of a run one worker is killed, stopped, runs out of memory or
raises, at another place; the one after the last of them finishes.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fullgraph.comm.group import Group
from fullgraph.training import tasks
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.launch import WorkerError, run_workers
from fullgraph.training.models import ModelOptions
from fullgraph.training.options import FitOptions
from fullgraph.training.prepare import partitioned_folder
from fullgraph.training.run_folder import FILES, RunFolder
from fullgraph.training.snapshot import CheckpointError, find, read
from tests.cli.commands import environment
from tests.ranks import run_ranks
from tests.training.template import fork_workers

SECONDS = 20  # for the others to notice, on a busy machine, where nothing has to time out
KILLED = "it was ended by SIGKILL, which the system sends when memory runs out"
SILENT, STOPPED = "it did not answer the others within 10 s", r": it is stopped \(SIGSTOP\)"
RAN_OUT = r"MemoryError: memory ran out \(it asked for \d+ bytes\). More workers, .* how much"
# where the connection is lost before anything is posted, it is the exchange that fails
EXCHANGE = r"(receiving \d+ rows from rank 1|exchange with ranks \[1\])"
IN_FORWARD = EXCHANGE + " in the forward pass of layer 'convs.1'"
IN_BACKWARD = EXCHANGE + " in the backward pass of layer 'convs.1'"
AFTER = r"(receiving|sending) \d+ rows .*|exchange with ranks .*|all-reduce of gradients"

# kind, place, rank, epoch; why it failed; what the other was waiting for; the last checkpoint
FAULTS: dict[str, list[tuple[str, str, int, int, str, str, int]]] = {
    "killed": [
        ("kill", "start-up", 1, 0, KILLED, "joining the other workers", 0),
        ("kill", "forward", 1, 2, KILLED, IN_FORWARD, 0),
        ("kill", "backward", 1, 4, KILLED, IN_BACKWARD, 3),
        ("kill", "exchange", 0, 5, KILLED, AFTER, 3),
        ("kill", "all-reduce", 1, 5, KILLED, "all-reduce of gradients", 3),
        ("kill", "checkpoint", 0, 6, KILLED, "sending a checkpoint to rank 0", 3),
        ("kill", "receive", 1, 6, KILLED, "receiving a checkpoint from rank 1", 3),
        ("kill", "weights", 0, 12, KILLED, "", 12),
    ],
    "silent": [
        ("stop", "exchange", 1, 5, SILENT + STOPPED, AFTER, 3),
        ("stop", "all-reduce", 0, 7, SILENT + STOPPED, "all-reduce of gradients", 6),
        ("hang", "all-reduce", 1, 7, SILENT, "all-reduce of gradients", 6),
    ],
    "failing": [
        ("raise", "start-up", 0, 0, "ValueError: on purpose", "joining the other workers", 0),
        ("raise", "backward", 1, 4, "ValueError: on purpose", IN_BACKWARD, 3),
        ("memory", "forward", 1, 4, RAN_OUT, AFTER, 3),
    ],
}

SOURCE = GraphOptions("planted:nodes=1000,edges=3000,classes=3,features=8")


def _config(timeout: float) -> RunConfig:
    # A layer's rows are a mebibyte, which runs out where memory does.
    return RunConfig(
        SOURCE, ModelOptions(hidden=512), FitOptions(epochs=12, checkpoint_every=3, lr=0.05),
        workers=2, threads=1, timeout=timeout,
    )  # fmt: skip


def _train(group: Group, arguments: dict[str, Any]) -> None:
    tasks.train(group, **arguments)


def _content(run: RunFolder) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Lines of metrics without what was measured, and weights."""
    measured = ("seconds", "evaluation_seconds", "peak_memory_bytes", "bytes_sent")
    lines = [{k: v for k, v in line.items() if k not in measured} for line in run.metrics()]
    return lines, run.weights()


def _last_epoch(checkpoints: list[Path]) -> int:
    """Of the newest; 0 where there is none, -1 where it cannot be read."""
    try:
        return int(read(checkpoints[0])[0]["epoch"]) if checkpoints else 0
    except CheckpointError:
        return -1


class Account:
    """What was found after each attempt; `problems` is what should not be, in words."""

    def __init__(self, run: RunFolder, group: str, timeout: float, marker: Path) -> None:
        self.run, self.faults, self.timeout, self.marker = run, FAULTS[group], timeout, marker
        self.before = set(psutil.Process().children(recursive=True))
        self.problems: list[str] = []
        marker.touch()  # as a worker may fail before its fault

    def on_restart(self, error: WorkerError, number: int) -> dict[str, Any]:
        kind, place, rank, _, reason, waiting, saved = self.faults[number - 1]
        expected = f"worker {rank} failed: {reason}"
        if waiting:
            expected += rf"; waiting then: worker {1 - rank} \(({waiting})\)"
        took = time.time() - self.marker.stat().st_mtime
        limit = SECONDS + (self.timeout if reason.startswith(SILENT) else 0)
        left = set(psutil.Process().children(recursive=True)) - self.before
        self.run.end_early("failed", str(error))
        checkpoints = find(self.run.checkpoints)
        for what, right in {
            f"said {str(error)!r}": re.fullmatch(expected, str(error)),
            f"took {took:.1f} s": took < limit,
            f"left {left}": not left,
            f"result {self.run.result()}": self.run.result()["status"] == "failed",
            f"checkpoints {checkpoints}": saved == _last_epoch(checkpoints),
        }.items():
            if not right:
                self.problems.append(f"{kind} in {place} of rank {rank}: {what}")
        return {"resume": True, "attempt": number}


@pytest.mark.slow
@pytest.mark.parametrize("group", FAULTS)
def test_a_worker_comes_to_grief_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    fork_workers(monkeypatch)
    timeout = 10.0 if group == "silent" else 100.0
    config = _config(timeout)
    undisturbed, run = RunFolder(tmp_path / "undisturbed"), RunFolder(tmp_path / "run")
    for folder in (undisturbed, run):
        folder.create(config.to_json())
    account = Account(run, group, timeout, tmp_path / "marker")
    with partitioned_folder(SOURCE, 2) as graph:
        common = {"config": config.to_json(), "graph": str(graph.path), "quiet": True}
        arguments: dict[str, Any] = {
            "faults": [fault[:4] for fault in FAULTS[group]],
            "marker": str(account.marker), **common, "out": str(run.path),
        }  # fmt: skip
        run_workers(
            "tests.training.faults:train", arguments, 2, 1, timeout,
            max_restarts=len(FAULTS[group]), on_restart=account.on_restart,
        )  # fmt: skip
        run_ranks(_train, 2, {**common, "out": str(undisturbed.path)})
    assert account.problems == []
    assert {p.name for p in run.path.iterdir()} == {*FILES, "checkpoints"}
    assert run.result()["status"] == "finished"
    (lines, weights), (others, other_weights) = _content(run), _content(undisturbed)
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    assert lines == others
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


RANK_SCRIPT = """
import os, signal, time
import torch
from fullgraph.comm.group import init
group = init(timeout=2)
group.all_reduce(torch.zeros(1), "greetings")
if group.rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
group.all_reduce(torch.zeros(1), "farewells")
"""


def test_a_rank_that_is_stopped_with_the_store_holds_nobody_up() -> None:
    """Ranks that were started by hand: rank 0 serves the store, where failures are looked up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_SCRIPT], env={**environment(), **here, "RANK": str(rank)},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        _, said = ranks[1].communicate(timeout=60)
        assert ranks[0].poll() is None
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert ranks[1].returncode == 1
    assert "CommError: rank 1: all-reduce of farewells failed (limit 2 s)" in said
