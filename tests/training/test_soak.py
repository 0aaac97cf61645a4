"""A run of thousands of epochs: the process stays as it is, and the numbers repeat to the bit."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.launch import run_workers
from fullgraph.training.models import ModelOptions
from fullgraph.training.options import FitOptions
from fullgraph.training.prepare import partitioned_folder
from fullgraph.training.run_folder import RunFolder
from tests.training.template import fork_workers

EPOCHS, EVERY, WORKERS = 2000, 20, 4
# Two communities in four parts: a worker has rows for one other, as messages are what takes time.
SOURCE = GraphOptions("planted:nodes=120,edges=400,classes=2,communities=2,mix=0,features=8")


def _run(folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and weights of a run, whose samples are left in `folder`."""
    training = FitOptions(epochs=EPOCHS, eval_every=100, checkpoint_every=100)
    config = RunConfig(SOURCE, ModelOptions(hidden=8), training, workers=WORKERS, threads=1)
    run = RunFolder(folder / "run")
    run.create(config.to_json())
    with partitioned_folder(SOURCE, WORKERS) as graph:
        arguments = {
            "samples": str(folder), "every": EVERY, "config": config.to_json(), "quiet": True,
            "graph": str(graph.path), "out": str(run.path),
        }  # fmt: skip
        run_workers("tests.training.tasks:train_and_sample", arguments, WORKERS, 1, 60.0)
    return [line["loss"] for line in run.metrics()], run.weights()


@pytest.mark.slow
def test_a_long_run_grows_by_nothing_and_repeats_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch)
    runs: list[Any] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        runs.append(_run(tmp_path / name))
        for rank in range(WORKERS):
            samples = json.loads((tmp_path / name / f"{rank}.json").read_text())
            quarter = len(samples) // 4
            assert quarter == EPOCHS // EVERY // 4
            resident = [bytes_ for bytes_, _ in samples]
            second, last = resident[quarter : 2 * quarter], resident[3 * quarter :]
            growth = statistics.median(last) / statistics.median(second)
            assert 0.99 < growth < 1.01, f"worker {rank} grew by {growth:.4f}"
            assert len({descriptors for _, descriptors in samples[quarter:]}) == 1
    (losses, weights), (others, other_weights) = runs
    assert len(losses) == EPOCHS
    assert losses == others
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
