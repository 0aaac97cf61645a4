"""Run folders: valid at every moment, and nothing else is ever overwritten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from fullgraph.graph.disk import WriteError
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.curves import draw_curves
from fullgraph.training.models import ModelOptions
from fullgraph.training.run_folder import FILES, RunFolder, RunFolderError
from tests.limits import file_size_limit

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


def _add_all(run: RunFolder) -> None:
    for line in LINES:
        run.add_metrics(line)


def test_a_line_of_metrics_is_whole_or_not_there(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    lengths = [len(json.dumps(line)) + 1 for line in LINES]
    for limit in (0, 1, lengths[0], lengths[0] + 5, sum(lengths[:2]), sum(lengths) - 1):
        (run.path / "metrics.jsonl").unlink(missing_ok=True)
        message = r"cannot write .*/metrics\.jsonl: File too large"
        with pytest.raises(WriteError, match=message), file_size_limit(limit):
            _add_all(run)
        assert run.metrics() == [
            line for i, line in enumerate(LINES) if sum(lengths[: i + 1]) <= limit
        ]


def test_a_run_that_ends_because_the_disk_is_full_may_have_no_result(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({})
    with file_size_limit(10):
        run.end_early("failed", "no space")
    assert {path.name for path in run.path.iterdir()} == {"config.json"}
    run.end_early("failed", "no space")
    assert run.result()["error"] == "no space"


def test_what_a_process_that_died_was_writing_goes_with_the_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({})
    (run.path / ".4711.model.safetensors").write_text("half")
    run.create({}, overwrite=True)
    assert {path.name for path in run.path.iterdir()} == {"config.json"}
    (run.path / ".4711.thesis.tex").touch()
    with pytest.raises(RunFolderError, match=r"not only a run folder \(\.4711\.thesis\.tex\)"):
        run.create({}, overwrite=True)


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
    (run.path / ".123.model.safetensors").touch()
    run.create({"seed": 3}, overwrite=True)
    assert [path.name for path in run.path.iterdir()] == ["config.json"]
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
    (run.path / ".123.curves.png").touch()  # of a worker that died
    run.end_early("failed", "worker 1 failed: KeyError")
    assert run.result() == {"epochs": 1, "status": "failed", "error": "worker 1 failed: KeyError"}
    assert {path.name for path in run.path.iterdir()} <= set(FILES)
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
        ('{"format": "fullgraph-run", "version": true}', "version is True, not a version number"),
        ('{"format": "fullgraph-run"}', "version is None, not a version number"),
        ("[" * 100_000, "config.json cannot be read"),
        ("\udcff", "config.json cannot be read"),
    ],
)
def test_foreign_folders_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, errors="surrogateescape")
    with pytest.raises(RunFolderError, match=message):
        RunFolder(tmp_path).config()


def test_missing_and_damaged_weights_are_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(RunFolderError, match="ended before it wrote its weights"):
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


@pytest.mark.parametrize("line", ["{", "[]", "3", "[" * 100_000, "\udcff"])
def test_a_line_of_metrics_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({})
    run.add_metrics(LINES[0])
    with (run.path / "metrics.jsonl").open("a", errors="surrogateescape") as file:
        file.write(line + "\n")
    with pytest.raises(RunFolderError, match=r"metrics.jsonl (cannot be read|is damaged)"):
        run.metrics()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_plain_files_are_read(tmp_path: Path, kind: str) -> None:
    """Even where a link leads to what was written: nothing outside of the folder is read."""
    run = RunFolder(tmp_path / "run")
    run.create({})
    run.add_metrics(LINES[0])
    run.write_result({})
    run.write_weights({"a": torch.zeros(1)})
    for read, name in (
        (run.config, "config.json"), (run.metrics, "metrics.jsonl"), (run.result, "result.json"),
        (run.weights, "model.safetensors"),
    ):  # fmt: skip
        (run.path / name).rename(tmp_path / name)
        if kind == "link":
            (run.path / name).symlink_to(tmp_path / name)
        else:
            os.mkfifo(run.path / name)
        with pytest.raises(RunFolderError, match=f"{name} (cannot be read|is damaged|is missing)"):
            read()
    (run.path / "checkpoints").symlink_to(tmp_path)
    with pytest.raises(RunFolderError, match="checkpoints is a link"):
        print(run.checkpoints)


def test_a_configuration_that_says_too_little_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({"graph": {"source": "a.npz"}, "model": {}, "training": {"lr": "fast"}})
    with pytest.raises(
        RunFolderError, match=r"config.json is not the configuration .*lr is 'fast'"
    ):
        run.run_config()
    for data in (None, [], {"num_features": 3}, {"num_features": 3, "num_classes": True}):
        run.create({"data": data}, overwrite=True)
        with pytest.raises(RunFolderError, match="how many features and classes"):
            run.sizes()


@pytest.mark.parametrize("lines", [LINES, []])
def test_curves_are_a_picture_even_of_nothing(tmp_path: Path, lines: list[dict]) -> None:
    path = tmp_path / "curves.png"
    draw_curves(path, lines, "roc_auc", "sage on <graph_1>", tested=3 if lines else None)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]
