"""Workers: started together, and ended together when one of them fails."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.launch import WorkerError, default_threads, run_workers
from fullgraph.training.options import FitOptions
from fullgraph.training.prepare import partitioned_folder
from fullgraph.training.run_folder import RunFolder
from tests.training.processes import wait_until_gone
from tests.training.template import fork_workers

TASKS = "tests.training.tasks:"


def _children() -> list[psutil.Process]:
    return psutil.Process(os.getpid()).children(recursive=True)


def test_workers_form_a_group(tmp_path: Path) -> None:
    run_workers(TASKS + "note", {"folder": str(tmp_path)}, workers=2, threads=1, timeout=60)
    said = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert said == {"0": "0 2 3.0 1", "1": "1 2 3.0 1"}


@pytest.mark.parametrize(
    ("task", "reason"),
    [("fail_on_1", "KeyError: 'no such label'"), ("vanish_on_1", "it ended with exit code 7")],
)
def test_a_failing_worker_is_named_and_ends_the_others(task: str, reason: str) -> None:
    before, environment = set(_children()), dict(os.environ)
    handler = signal.getsignal(signal.SIGINT)
    start = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        run_workers(TASKS + task, {}, workers=2, threads=1, timeout=60)
    assert time.monotonic() - start < 60
    waiting = "waiting then: worker 0 (all-reduce of something)"
    assert str(caught.value) == f"worker 1 failed: {reason}; {waiting}"
    assert ("fail_on_1" in caught.value.trace) == (task == "fail_on_1")
    assert wait_until_gone(list(set(_children()) - before), 1) == []
    assert dict(os.environ) == environment
    assert signal.getsignal(signal.SIGINT) is handler


def test_workers_are_brought_back_so_often_and_no_more(tmp_path: Path) -> None:
    told = []

    def on_restart(error: WorkerError, number: int) -> dict[str, Any]:
        told.append((str(error), number))
        return {"attempt": number}

    with pytest.raises(WorkerError, match="attempt 2"):
        run_workers(
            TASKS + "fail_always", {"folder": str(tmp_path)}, 1, 1, 60.0, max_restarts=2,
            on_restart=on_restart,
        )  # fmt: skip
    assert told == [
        ("worker 0 failed: KeyError: 'attempt 0'", 1),
        ("worker 0 failed: KeyError: 'attempt 1'", 2),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "1-0", "2-0"]


def _trained(folder: Path, victim: int | None) -> tuple[list[Any], dict[str, Any]]:
    """Metrics without times, and weights, of a run in which a worker may die after epoch 7."""
    source = GraphOptions("planted:nodes=200,edges=600,classes=3,features=8")
    training = FitOptions(epochs=12, checkpoint_every=3, lr=0.05)
    config = RunConfig(source, training=training, workers=2, schedule="delayed:2")
    run = RunFolder(folder / "run")
    run.create(config.to_json())
    arguments: dict[str, Any] = {"config": config.to_json(), "out": str(run.path), "quiet": True}
    task, told = "fullgraph.training.tasks:train", []

    def on_restart(error: WorkerError, number: int) -> dict[str, Any]:
        told.append(str(error))
        return {"resume": True}

    if victim is not None:
        task = TASKS + "train_and_die"
        arguments |= {"victim": victim, "epoch": 7, "marker": str(folder / "died")}
    with partitioned_folder(source, 2) as graph:
        arguments["graph"] = str(graph.path)
        run_workers(task, arguments, 2, 1, 60.0, max_restarts=1, on_restart=on_restart)
    assert len(told) == (victim is not None)
    assert all(f"worker {victim} failed: it was ended by SIGKILL" in text for text in told)
    assert run.result()["status"] == "finished"
    # What is kept from epoch to epoch is sent once more by those that were brought back.
    measured = ("seconds", "evaluation_seconds", "peak_memory_bytes", "bytes_sent")
    lines = [{k: v for k, v in line.items() if k not in measured} for line in run.metrics()]
    return lines, run.weights()


@pytest.mark.slow
def test_stale_rows_are_brought_back_with_a_worker_that_died_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch)
    (tmp_path / "undisturbed").mkdir()
    lines, weights = _trained(tmp_path / "undisturbed", None)
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    for victim in (0, 1):
        (tmp_path / f"{victim}").mkdir()
        others, other_weights = _trained(tmp_path / f"{victim}", victim)
        assert others == lines
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
        assert weights.keys() == other_weights.keys()


def test_threads_are_an_equal_share_and_at_least_one() -> None:
    cores = len(os.sched_getaffinity(0))
    assert default_threads(1) == cores
    assert default_threads(2) == max(1, cores // 2)
    assert default_threads(10_000) == 1
