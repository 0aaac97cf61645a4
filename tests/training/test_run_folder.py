"""Run folders: valid at every moment, and nothing else is ever overwritten."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch

from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.curves import draw_curves
from fullgraph.training.models import ModelOptions
from fullgraph.training.run_folder import RunFolder, RunFolderError, replacing

LINES = [
    {"epoch": 1, "loss": 1.5, "seconds": 0.1, "train": 0.2, "val": None, "test": 0.3},
    {"epoch": 2, "loss": None, "seconds": 0.1},
    {"epoch": 3, "loss": 1.1, "seconds": 0.1, "train": 0.4, "val": None, "test": 0.2},
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "deep" / "run")
    run.create({"workers": 1})
    run.write_result({"status": "interrupted"})
    run.begin({"workers": 2, "data": {"num_nodes": 3}}, LINES[:1])
    assert not run.has_result()
    for line in LINES[1:]:
        run.add_metrics(line)
    weights = {"lin.weight": torch.rand(2, 3), "norm.num_batches_tracked": torch.tensor(7)}
    run.write_weights(weights)
    run.write_result({"status": "finished"})
    assert run.config()["data"] == {"num_nodes": 3}
    assert run.config()["workers"] == 2
    assert run.metrics() == LINES
    torch.testing.assert_close(run.weights(), weights, rtol=0, atol=0)
    assert run.result() == {"status": "finished"}
    names = {path.name for path in run.path.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "model.safetensors", "result.json"}


def test_a_file_that_fails_to_be_written_leaves_the_former(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("before")
    with contextlib.suppress(OSError), replacing(file) as beside:
        beside.write_text("half")
        raise OSError("disk full")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_nan_never_reaches_a_file(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({})
    with pytest.raises(ValueError, match="JSON compliant"):
        run.write_result({"loss": float("nan")})
    assert not run.has_result()


def test_only_run_folders_are_overwritten(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({"seed": 1})
    run.write_result({"status": "finished"})
    with pytest.raises(RunFolderError, match="exists; choose another --out, or add --overwrite"):
        run.create({"seed": 2})
    run.create({"seed": 2}, overwrite=True)
    assert run.config()["seed"] == 2
    assert not run.has_result()
    (run.checkpoints / "epoch-000003").mkdir(parents=True)
    (run.checkpoints / ".epoch-000004.0123abcd.tmp").mkdir()
    run.create({"seed": 3}, overwrite=True)
    assert not run.checkpoints.exists()
    run.profile.mkdir()
    (run.profile / "rank-0.json.gz").touch()
    run.create({"seed": 4}, overwrite=True)
    assert not run.profile.exists()
    (run.checkpoints / "mine").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"not only a run folder \(checkpoints\)"):
        run.create({}, overwrite=True)
    (run.checkpoints / "mine").rmdir()
    (run.path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match=r"not only a run folder \(thesis.tex\)"):
        run.create({}, overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(RunFolderError, match="not only a run folder"):
        RunFolder(tmp_path / "other").create({}, overwrite=True)


def test_a_run_that_ends_early_has_a_result(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({})
    run.add_metrics(LINES[0])
    run.end_early("failed", "worker 1 failed: KeyError")
    assert run.result() == {"epochs": 1, "status": "failed", "error": "worker 1 failed: KeyError"}
    run.write_result({"epochs": 9, "status": "interrupted"})
    run.end_early("failed", "because")
    assert run.result() == {"epochs": 9, "status": "failed", "error": "because"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a run folder: it has no config.json"),
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"format": "other"}', "is not a run folder of fullgraph train"),
        ('{"format": "fullgraph-run", "version": 2}', "written by a newer fullgraph"),
    ],
)
def test_foreign_folders_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunFolderError, match=message):
        RunFolder(tmp_path).config()


def test_missing_and_damaged_weights_are_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(RunFolderError, match="ended before its first evaluation"):
        run.weights()
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0notjson!")
    with pytest.raises(RunFolderError, match=r"model\.safetensors is damaged"):
        run.weights()


def test_the_configuration_survives_json() -> None:
    config = RunConfig(GraphOptions("a.npz", parts=3), ModelOptions("gin", layers=4), workers=2)
    text = json.dumps({**config.to_json(), "format": "x", "data": {}})
    assert RunConfig.from_json(json.loads(text)) == config
    with pytest.raises(ValueError, match="not the configuration of a run"):
        RunConfig.from_json({"model": {}})


@pytest.mark.parametrize("lines", [LINES, []])
def test_curves_are_a_picture_even_of_nothing(tmp_path: Path, lines: list[dict]) -> None:
    path = tmp_path / "curves.png"
    draw_curves(path, lines, "roc_auc", "sage on <graph_1>", tested=3 if lines else None)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]
