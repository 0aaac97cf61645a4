"""Curves for TensorBoard, as TensorBoard itself reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fullgraph.training.board import Board, check_installed
from fullgraph.training.results import Epoch
from fullgraph.training.run_folder import RunFolder, RunFolderError


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values, by tag."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_an_epoch_is_a_step_with_what_was_measured(tmp_path: Path) -> None:
    board = Board(tmp_path, "roc_auc")
    board.add(Epoch(1, 0.5, 2.0))
    assert scalars(tmp_path) == {"loss": [(1, 0.5)], "seconds": [(1, 2.0)]}
    evaluated = Epoch(2, 0.25, 3.0, 0, {"train": 0.75, "val": 0.5}, 4.0, [10, 30], [7, 8])
    evaluated.drift = {"outputs": 0.125}
    board.add(evaluated)
    expected = {
        "loss": [(1, 0.5), (2, 0.25)], "seconds": [(1, 2.0), (2, 3.0)],
        "roc_auc/train": [(2, 0.75)], "roc_auc/val": [(2, 0.5)], "drift/outputs": [(2, 0.125)],
        "evaluation_seconds": [(2, 4.0)], "bytes_sent": [(2, 15.0)],
        "peak_memory_bytes": [(2, 30.0)],
    }  # fmt: skip
    assert scalars(tmp_path) == expected  # while it is open, as a process may die
    board.close()


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    for done, last, loss in ((0, 4, 1.0), (2, 5, 2.0)):
        board = Board(tmp_path, "accuracy", done)
        for number in range(done + 1, last + 1):
            board.add(Epoch(number, loss, 0.5))
        board.close()
    assert scalars(tmp_path)["loss"] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]


def test_a_run_folder_with_curves_is_overwritten_and_one_with_other_files_is_not(
    tmp_path: Path,
) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({})
    Board(run.tensorboard, "accuracy").close()
    run.create({}, overwrite=True)
    assert list(run.tensorboard.iterdir()) == []
    (run.tensorboard / "mine.txt").touch()
    with pytest.raises(RunFolderError, match="not only a run folder"):
        run.create({}, overwrite=True)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setattr("fullgraph.training.board.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'fullgraph\[tensorboard\]'"):
        check_installed()
