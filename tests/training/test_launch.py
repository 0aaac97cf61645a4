"""Workers: started together, and ended together when one of them fails."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from fullgraph.training.launch import WorkerError, default_threads, run_workers
from tests.training.processes import wait_until_gone

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
    assert str(caught.value) == f"worker 1 failed: {reason}"
    assert ("fail_on_1" in caught.value.trace) == (task == "fail_on_1")
    assert wait_until_gone(list(set(_children()) - before), 1) == []
    assert os.environ.get("OMP_NUM_THREADS") == environment.get("OMP_NUM_THREADS")
    assert signal.getsignal(signal.SIGINT) is handler
    assert logging.root.manager.disable == logging.NOTSET


def test_threads_are_an_equal_share_and_at_least_one() -> None:
    cores = len(os.sched_getaffinity(0))
    assert default_threads(1) == cores
    assert default_threads(2) == max(1, cores // 2)
    assert default_threads(10_000) == 1
