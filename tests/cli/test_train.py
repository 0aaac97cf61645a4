"""`fullgraph train` and `predict` end to end, on real and on ugly graphs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch_geometric.nn as pyg

from fullgraph.cli.train import _num_profiled
from fullgraph.graph.sources import read
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.fit import normalize_features
from fullgraph.training.run_folder import RunFolder
from fullgraph.training.snapshot import find
from tests.cli.commands import run, start
from tests.data import shared_data
from tests.training.processes import is_loopback, listening, tree, wait_until_gone

pytestmark = pytest.mark.slow

SMALL = "planted:nodes=300,edges=900,classes=3,features=8"
FILES = {"config.json", "metrics.jsonl", "result.json", "model.safetensors", "curves.png"}


@pytest.fixture(scope="module")
def cora_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run on Cora with 2 workers and 3 parts, and the last line that it printed."""
    folder = tmp_path_factory.mktemp("cora")
    code, out, err = run(
        "train", shared_data("cora"), "--model", "gcn", "--hidden", 16, "--epochs", 30,
        "--lr", 0.05, "--weight-decay", "5e-4", "--normalize-features",
        "--workers", 2, "--parts", 3, "--threads", 1, "--out", "run", "--json", cwd=folder,
    )  # fmt: skip
    assert (code, err) == (0, "")
    return folder / "run", json.loads(out.splitlines()[-1])


def test_a_run_leaves_its_folder_and_result(cora_run: tuple[Path, dict[str, Any]]) -> None:
    path, printed = cora_run
    assert {p.name for p in path.iterdir()} == FILES
    folder = RunFolder(path)
    result = folder.result()
    assert printed == {"run": "run", **result}
    expected = {
        "status": "finished", "graph": "cora", "workers": 2, "parts": 3, "epochs": 30, "seed": 0,
        "placement": "destination", "schedule": "sequential", "exact": True, "model": "gcn",
    }  # fmt: skip
    assert {key: result[key] for key in expected} == expected
    assert result["test"] > 0.75
    assert 0 < result["epoch_seconds"] < 60
    assert [0 < peak < 1e9 for peak in result["peak_memory_bytes"]] == [True, True]
    lines = folder.metrics()
    assert [line["epoch"] for line in lines] == list(range(1, 31))
    tested = lines[result["tested_epoch"] - 1]
    assert [tested[split] for split in ("train", "val", "test")] == [
        result[split] for split in ("train", "val", "test")
    ]
    assert result["bytes_sent"] == lines[-1]["bytes_sent"]
    flows = result["traffic"]
    assert {(f["layer"], f["direction"], f["peer"]) for f in flows[0]} == {
        ("convs.0", "forward", 1), ("convs.1", "forward", 1), ("convs.1", "backward", 1),
    }  # fmt: skip
    assert [f["sent"] for f in flows[0]] == [f["received"] for f in flows[1]]
    assert (path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_predictions_are_those_of_pyg_in_the_original_order(
    cora_run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, printed = cora_run
    code, _, err = run(
        "predict", path, "--out", "p.npz", "--workers", 2, "--threads", 1, cwd=tmp_path
    )
    assert (code, err) == (0, "")
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]
    data = read(shared_data("cora")).to_pyg()
    model = pyg.models.GCN(1433, 16, 2, 7)
    model.load_state_dict(RunFolder(path).weights())
    with torch.no_grad():
        expected = model.eval()(normalize_features(data.x), data.edge_index)
    with np.load(tmp_path / "p.npz", allow_pickle=False) as saved:
        np.testing.assert_allclose(saved["logits"], expected.numpy(), rtol=1e-4, atol=1e-5)
        assert saved["pred"].tolist() == expected.argmax(dim=1).tolist()
        assert saved["test"] == printed["test"]


def test_predict_refuses_a_graph_with_other_features(
    cora_run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    code, _, err = run("predict", cora_run[0], "--graph", SMALL, cwd=tmp_path)
    assert code == 2
    assert err.splitlines()[-1].endswith("has 8 features a node; this run's model takes 1433")


def test_info_shows_a_run(cora_run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    code, out, _ = run("info", cora_run[0], cwd=tmp_path)
    assert code == 0
    assert "finished" in out
    assert "weight decay" in out


def test_what_is_approximate_says_so_everywhere(tmp_path: Path) -> None:
    options = ("--workers", 2, "--threads", 1, "--epochs", 6, "--schedule", "delayed:2", "--wire",
               "bf16", "--check-drift", 3, "--profile", "--profile-epochs", 2)  # fmt: skip
    code, out, err = run("train", SMALL, *options, "--out", "run", cwd=tmp_path)
    assert (code, err) == (0, "")
    said = "schedule delayed:2 with wire bf16"
    lines = out.splitlines()
    assert sum(line.endswith(f"training is approximate: {said}") for line in lines) == 1
    assert f"training is approximate ({said}), as is its evaluation" in lines[-1]
    assert sum("drift: outputs" in line for line in lines) == 2
    folder = RunFolder(tmp_path / "run")
    result = folder.result()
    assert (result["exact"], result["approximate"], result["wire"]) == (False, said, "bf16")
    assert [line["epoch"] for line in folder.metrics() if "drift" in line] == [3, 6]
    assert {p.name for p in folder.path.iterdir()} == FILES | {"profile"}
    profiled = json.loads((folder.profile / "summary.json").read_text())["ranks"]
    assert [rank["epochs"] for rank in profiled] == [2, 2]
    for rank in range(2):
        assert any(line.startswith(f"rank {rank}: ") for line in lines)
        assert (folder.profile / f"rank-{rank}.json.gz").is_file()
    code, out, err = run("predict", "run", "--threads", 1, cwd=tmp_path)
    assert (code, err) == (0, "")
    assert f"trained approximately ({said}); predictions are exact" in out.splitlines()
    with np.load(tmp_path / "predictions.npz") as saved:
        assert saved["test"] == pytest.approx(result["test"], abs=0.05)
    code, out, _ = run("info", "run", cwd=tmp_path)
    assert "bf16" in out


@pytest.mark.parametrize("options", [("--schedule", "local"), ("--wire", "bf16")])
def test_exact_refuses_what_is_not_and_names_what_is(
    options: tuple[str, str], tmp_path: Path
) -> None:
    code, _, err = run("train", SMALL, "--exact", *options, "--out", "run", cwd=tmp_path)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    for name in (options[1], "'sequential'", "'oneshot'", "'float32'"):
        assert name in err
    assert not (tmp_path / "run").exists()


def _long_run(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Two workers in the middle of training, and all processes of the run."""
    process = start(
        "train", SMALL, "--workers", 2, "--epochs", 1_000_000, "--out", "run", cwd=folder
    )
    deadline = time.monotonic() + 90
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"training did not start: {process.communicate()}")
        time.sleep(0.1)
    processes = tree(process.pid)
    assert len([p for p in processes if "fullgraph.training.worker" in " ".join(p.cmdline())]) == 2
    return process, processes


def _end(process: subprocess.Popen[str], processes: list[psutil.Process]) -> None:
    for left in wait_until_gone(processes, 0.2):
        left.kill()
    process.communicate()


def test_ctrl_c_leaves_a_valid_folder_and_nobody_listens_to_the_network(tmp_path: Path) -> None:
    process, processes = _long_run(tmp_path)
    try:
        addresses = listening(processes)
        assert len(addresses) >= 2  # the store, and gloo
        assert all(map(is_loopback, addresses)), addresses
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=40)
        assert wait_until_gone(processes, 10) == []
    finally:
        _end(process, processes)
    assert process.returncode == 130
    assert err.strip() == "interrupted; what there is so far is in run"
    folder = RunFolder(tmp_path / "run")
    assert {p.name for p in folder.path.iterdir()} == FILES
    result, lines = folder.result(), folder.metrics()
    assert result["status"] == "interrupted"
    assert result["epochs"] == len(lines) >= 3
    assert result["test"] == lines[result["tested_epoch"] - 1]["test"]
    assert "convs.0.lin_l.weight" in folder.weights()


def test_a_worker_that_is_killed_is_named_and_takes_all_with_it(tmp_path: Path) -> None:
    process, processes = _long_run(tmp_path)
    try:
        victim = next(p for p in processes if p.environ().get("RANK") == "1")
        victim.kill()
        _, err = process.communicate(timeout=60)
        assert wait_until_gone(processes, 10) == []
    finally:
        _end(process, processes)
    assert process.returncode == 1
    assert err.strip().startswith("fullgraph: error: worker 1 failed: it was ended by SIGKILL")
    waiting = r"; waiting then: worker 0 \(.*(rank 1|ranks \[1\]|all-reduce) .*\)$"
    assert re.search(waiting, err.strip())
    assert len(err.strip().splitlines()) == 1
    result = RunFolder(tmp_path / "run").result()
    assert result["status"] == "failed"
    assert "worker 1" in result["error"]
    assert {p.name for p in (tmp_path / "run").iterdir()} <= FILES
    code, out, _ = run("info", "run", cwd=tmp_path)
    assert code == 0
    assert "failed" in out
    code, _, err = run("predict", "run", cwd=tmp_path)  # which rank 0 may have had time to leave
    assert code == 0 or "is missing: the run ended before it wrote its weights" in err


def test_workers_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    """Even one that is stopped."""
    process, processes = _long_run(tmp_path)
    try:
        next(p for p in processes if p.environ().get("RANK") == "1").suspend()
        process.kill()
        assert wait_until_gone(processes, 30) == []
    finally:
        _end(process, processes)
    assert RunFolder(tmp_path / "run").result()["status"] == "interrupted"


def _wait_for_epoch(process: subprocess.Popen[str], folder: RunFolder, epoch: int) -> None:
    deadline = time.monotonic() + 90
    while not (folder.path / "metrics.jsonl").exists() or len(folder.metrics()) < epoch:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "training did not start"
        time.sleep(0.05)


def test_an_interrupted_run_is_resumed_and_what_does_not_fit_is_named(tmp_path: Path) -> None:
    options = (SMALL, "--workers", 2, "--threads", 1, "--out", "run", "--resume")
    every = ("--epochs", 1_000_000, "--checkpoint-every", 100_000)
    folder = RunFolder(tmp_path / "run")
    process = start("train", *options, *every, cwd=tmp_path)
    try:
        _wait_for_epoch(process, folder, 3)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "no run in run yet: starting from the beginning" in err
    (left,) = find(folder.checkpoints)
    done = int(left.name.removeprefix("epoch-"))
    # The interrupt may come when an epoch is noted for the checkpoint and has no line yet.
    assert done - len(folder.metrics()) in (0, 1)
    assert {p.name for p in folder.path.iterdir()} == FILES | {"checkpoints"}

    interrupted = folder.result()
    for changes, message in (
        (("--hidden", 32, "--lr", 0.5), "hidden was 64, now 32, lr was 0.01, now 0.5"),
        (("--overwrite",), "--resume goes on with what --overwrite removes"),
        (("--epochs", 1), "is later than the last epoch, 1; give more epochs"),
    ):
        code, _, err = run("train", *options, *changes, cwd=tmp_path)
        assert code in (1, 2)
        assert message in err
        assert len(err.strip().splitlines()) == 1
        assert folder.result() == interrupted

    other = (SMALL.replace("nodes=300", "nodes=301"), *options[1:], "--epochs", done + 5)
    code, _, err = run("train", *other, cwd=tmp_path)
    assert code == 1
    assert "is of another graph: nodes in all 300 then, 301 now" in err
    assert folder.result() == interrupted

    code, out, err = run(
        "train", SMALL, "--out", "run", "--resume", "--epochs", done + 5, "--workers", 1,
        "--threads", 1, "--schedule", "oneshot", cwd=tmp_path,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert f"going on after epoch {done}\n" in out
    assert [line["epoch"] for line in folder.metrics()] == list(range(1, done + 6))
    assert (folder.result()["status"], folder.result()["epochs"]) == ("finished", done + 5)
    assert find(folder.checkpoints)[0].name == f"epoch-{done + 5:06d}"


def test_a_run_without_checkpoints_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = RunConfig(GraphOptions(SMALL))
    RunFolder(tmp_path / "run").create(config.to_json())
    code, _, err = run("train", SMALL, "--out", "run", "--resume", "--threads", 1, cwd=tmp_path)
    assert code == 2
    assert "no checkpoint to resume from, as it was run without --checkpoint-every" in err
    code, _, err = run("train", SMALL, "--resume", cwd=tmp_path)
    assert code == 2
    assert "--resume needs --out" in err


def test_max_restarts_brings_workers_back_and_says_why(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    process = start(
        "train", SMALL, "--workers", 2, "--threads", 1, "--epochs", 400, "--out", "run",
        "--checkpoint-every", 5, "--max-restarts", 1, "--json", cwd=tmp_path,
    )  # fmt: skip
    processes: list[psutil.Process] = []
    try:
        _wait_for_epoch(process, folder, 20)
        processes = tree(process.pid)
        next(p for p in processes if p.environ().get("RANK") == "1").kill()
        out, err = process.communicate(timeout=120)
    finally:
        _end(process, processes)
    assert process.returncode == 0, err
    assert re.fullmatch(
        r"fullgraph: worker 1 failed: it was ended by SIGKILL, which the system sends when memory "
        r"runs out; waiting then: worker 0 \(.*\); starting all workers again from the last "
        r"checkpoint, 1 of 1", err.strip(),
    )  # fmt: skip
    assert json.loads(out)["status"] == "finished"
    assert [line["epoch"] for line in folder.metrics()] == list(range(1, 401))


@pytest.mark.parametrize(
    ("profile", "epochs", "message"),
    [(False, 2, "given without --profile"), (True, 0, "profile_epochs must be at least 1, got 0")],
)
def test_a_profile_that_makes_no_sense_is_refused(profile: bool, epochs: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _num_profiled(profile, epochs)


def test_a_profile_has_three_epochs_unless_told() -> None:
    assert [_num_profiled(True, None), _num_profiled(True, 7), _num_profiled(False, None)] == [
        3, 7, 0
    ]  # fmt: skip
