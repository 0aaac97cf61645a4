"""What `fullgraph train` logs: lines in a file, a bar on a terminal, JSON, TensorBoard."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fullgraph.cli import main
from fullgraph.comm.group import Group
from fullgraph.training.launch import WorkerError
from fullgraph.training.run_folder import RunFolder
from tests.cli.commands import environment, run
from tests.training.test_board import scalars
from tests.training.test_events import TIME

SMALL = "planted:nodes=300,edges=900,classes=3,features=8"


def _on_a_terminal(*words: object, cwd: Path) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fullgraph.cli", *map(str, words)], cwd=cwd, env=environment(),
        stdout=theirs, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 1 << 16):
            said += piece
    except OSError:  # what Linux says when the other end is closed
        pass
    os.close(ours)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return said.decode()


@pytest.mark.slow
def test_json_events_of_a_run_its_resumption_on_a_terminal_and_its_curves(tmp_path: Path) -> None:
    options = ("train", SMALL, "--threads", 1, "--out", "run", "--tensorboard",
               "--schedule", "delayed:2", "--check-drift", 2)  # fmt: skip
    code, out, err = run(
        *options, "--epochs", 3, "--checkpoint-every", 2, "--log-json",
        cwd=tmp_path,
    )  # fmt: skip
    assert (code, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert [(event["event"], event["rank"]) for event in events] == [
        ("reading", None), ("partitioning", None), ("writing", None), ("start", None),
        ("approximate", None), ("epoch", 0), ("drift", 0), ("epoch", 0), ("checkpoint", 0),
        ("epoch", 0), ("checkpoint", 0), ("result", None),
    ]  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    result = {name: value for name, value in folder.result().items() if name != "traffic"}
    assert {name: events[-1][name] for name in result} == result
    losses = [event["loss"] for event in events if event["event"] == "epoch"]
    assert losses == [line["loss"] for line in folder.metrics()]
    assert [event["epoch"] for event in events if event["event"] == "checkpoint"] == [2, 3]

    said = _on_a_terminal(*options, "--epochs", 5, "--resume", cwd=tmp_path)
    assert "\x1b[" in said  # a bar, so that the files of other tests could have one
    assert "going on after epoch 3" in said
    lines = folder.metrics()
    curves = scalars(folder.tensorboard)
    for tag, name in (("loss", "loss"), ("accuracy/test", "test"), ("seconds", "seconds")):
        expected = [(line["epoch"], pytest.approx(line[name], rel=1e-6)) for line in lines]
        assert curves[tag] == expected
    assert [step for step, _ in curves["loss"]] == [1, 2, 3, 4, 5]
    assert {"bytes_sent", "peak_memory_bytes", "drift/gradients"} < curves.keys()


def test_restarts_and_failures_are_events_that_name_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_twice(*args: Any) -> None:
        on_restart = args[-1]
        on_restart(WorkerError(1, "it fell\nover"), 1)
        raise WorkerError(2, "KeyError: 'x'")

    monkeypatch.setattr("fullgraph.training.launch.run_workers", fail_twice)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    words = ["train", SMALL, "--out", "run", "--max-restarts", "1", "--checkpoint-every", "2"]
    monkeypatch.setattr(sys, "argv", ["fullgraph", *words, "--log-json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(event["event"], event.get("failed")) for event in events[-2:]] == [
        ("restart", 1),
        ("failure", 2),
    ]
    assert events[-2]["message"].startswith("worker 1 failed: it fell over; starting all workers")
    assert events[-1]["message"] == "worker 2 failed: KeyError: 'x'"


def test_a_worker_that_was_started_has_a_share_of_its_own_host_and_says_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = []

    def fail(*args: Any, **options: Any) -> None:
        threads.append(torch.get_num_threads())
        raise ValueError("no\nway")

    monkeypatch.setattr("fullgraph.training.tasks.train", fail)
    monkeypatch.setattr("fullgraph.training.interrupts.stop_on_signals", lambda rank: None)
    monkeypatch.setattr("fullgraph.comm.group.init", lambda timeout: Group())
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fullgraph", "train", SMALL, "--out", "run"])
    before = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        torch.set_num_threads(before)
    assert (ended.value.code, threads) == (2, [3])
    out, err = capsys.readouterr()
    start, failure = out.splitlines()
    assert re.fullmatch(rf"{TIME} rank 0 starting on \S+, process \d+, of 3 thread\(s\)", start)
    assert re.fullmatch(rf"{TIME} rank 0 ValueError: no; way", failure)
    assert err == "fullgraph: error: no; way\n"
