"""Mistakes: one line on stderr, exit code 2, before any worker starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fullgraph
from fullgraph.cli import main
from fullgraph.graph.folder import save
from fullgraph.graph.partition import partition
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.run_folder import RunFolder
from tests.data import shared_data
from tests.training.graphs import small
from tests.typed_graphs import typed_parts

# The package is replaced by an empty one, so that only what the commands import counts.
HELP = f"""
import sys, types
package = types.ModuleType("fullgraph")
package.__path__ = [{str(Path(fullgraph.__file__).parent)!r}]
sys.modules["fullgraph"] = package
import fullgraph.cli
assert not {{"torch", "numpy", "matplotlib", "rich"}} & sys.modules.keys(), sorted(sys.modules)
sys.argv = ["fullgraph", *sys.argv[1:]]
fullgraph.cli.main()
"""


@pytest.mark.parametrize("command", [[], ["train"], ["predict"], ["partition"], ["info"]])
def test_help_needs_no_torch(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP + "\n", *command, "--help"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Usage: fullgraph" in done.stdout


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with graphs and runs to make mistakes with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    save(partition(small(), 2), "two-parts")
    save(partition(small(x=None), 2), "no-features")
    save(partition(small(y=None), 2), "no-labels")
    save(typed_parts(2), "typed")
    plain = {"edge_index": np.zeros((2, 1), dtype=np.int64), "num_nodes": 3}
    nothing = np.zeros(3, dtype=bool)
    np.savez("unlabelled.npz", x=np.ones((3, 1)), y=np.zeros(3, int), train_mask=nothing, **plain)
    np.savez("ids.npz", **{**plain, "edge_index": np.array([[0, 7], [1, 1]])})
    run = RunFolder("run")
    run.create({"data": {"num_features": 4, "num_classes": 3}})
    for name, data in (("damaged", {"num_features": 4, "num_classes": 3}), ("unsized", {})):
        run = RunFolder(name)
        run.create({**RunConfig(GraphOptions("two-parts")).to_json(), "data": data})
        run.write_weights({f"lin{i}.weight": torch.zeros(2) for i in range(3)})
    Path("taken").mkdir()
    Path("taken", "file").touch()
    return tmp_path


MISTAKES = {
    "": "",
    "tarin": "No such command 'tarin'",
    "train": "Missing argument",
    "train two-parts --epochs many": "--epochs",
    "train two-parts --wokers 2": "No such option: --wokers",
    "train nothing.npz": "'nothing.npz' is neither a file nor a known name",
    "train taken": "taken has no graph.json",
    "train ids.npz": "edge_index",
    "train planted:nodes=ten,edges=5": "nodes",
    "train two-parts --model gatt": "model 'gatt' is unknown; choose one of gcn, sage",
    "train two-parts --layers 0": "layers must be at least 1, got 0",
    "train two-parts --dropout 1.5": "dropout must be at least 0 and less than 1, got 1.5",
    "train two-parts --lr 0": "lr must be positive, got 0.0",
    "train two-parts --schedule fast": "schedule must be 'sequential', ",
    "train two-parts --metric auc": "metric must be one of accuracy",
    "train two-parts --metric roc_auc": "metric roc_auc takes 2 classes; the graph has 3",
    "train two-parts --workers 3": "3 workers cannot share 2 part(s)",
    "train two-parts --workers 0": "workers must be at least 1, got 0",
    "train two-parts --parts 4": "is partitioned already",
    "train two-parts --threads 0": "threads must be at least 1, got 0",
    "train two-parts --timeout 0": "timeout must be positive, got 0.0",
    "train two-parts --out taken": "taken exists; choose another --out",
    "train two-parts --out taken --overwrite": "not only a run folder (file)",
    "train planted:nodes=9,edges=9 --workers 4 --parts 2": "4 workers cannot share 2 part(s)",
    "train planted:nodes=9,edges=9 --method best": "method 'best' is unknown",
    "train no-features": "has no node features x",
    "train typed": "do not train on; train from Python: fullgraph.load",
    "train no-labels": "needs labels y of shape [N], one class a node, and has none",
    "train unlabelled.npz": "there is no node to train on",
    "predict nothing": "nothing is not a run folder: it has no config.json",
    "predict two-parts": "two-parts is not a run folder",
    "predict run": "model.safetensors is missing",
    "predict run --out out.csv": "--out must end in .npz, got out.csv",
    "predict run --out no/where.npz": "there is no folder no",
    "partition two-parts --parts 2 --out x": "is a partitioned graph, not a whole one",
    "partition ids.npz --parts 0 --out x": "parts must be at least 1, got 0",
    "partition ids.npz --parts 2 --out taken": "taken exists",
    "partition planted:nodes=9,edges=9 --parts 2 --out x --method best": "method 'best'",
    "partition ids.npz --parts 2 --out x --placement ring": "one of destination, vertex-cut",
    "partition ids.npz --parts 2 --out x --method libra": "one of metis, ldg, kahypar, random",
    "partition ids.npz --parts 2 --out x --placement vertex-cut --method metis": "one of libra",
    "partition ids.npz --parts 2 --out x --balance 1.1": "balance=1.1 is for placement 'vertex",
    "partition ids.npz --parts 2 --out x --placement vertex-cut --balance 0.9": "give 1 or more",
    "info nothing": "nothing is not a folder",
    "info taken": "taken is not a run folder",
    "info run": "config.json is not the configuration of a run: 'graph'",
    "predict damaged": "damaged is damaged: weight 'convs.0.lin_l.bias' is absent, but the model's",
    "predict unsized": "config.json does not say how many features and classes the model has",
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_one_line_and_exit_code_2(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("fullgraph.training.launch.run_workers", refuse)
    monkeypatch.setattr(sys, "argv", ["fullgraph", *command.split()])
    before = sorted(Path().iterdir())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err.splitlines()
    if command:
        assert len(errors) == 1
        assert errors[0].startswith("fullgraph: error: ")
        assert MISTAKES[command] in errors[0]
    assert sorted(Path().iterdir()) == before


@pytest.mark.usefixtures("here")
def test_partition_prints_the_table_and_warnings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shared_data("citeseer")
    for command, wanted in (
        (f"partition {path} --parts 3 --out cs", ("citeseer: 3 parts", "halo rows", "edge cut")),
        ("partition planted:nodes=2,edges=1 --parts 4 --out few", ("2 of 4 parts have no nodes",)),
        ("info cs --verify", ("9,104", "x float32", "3703", "all right")),
        (
            f"partition {path} --parts 3 --placement vertex-cut --balance 1 --out vc",
            ("3 parts, vertex cut", "9,104", "3,035", "replication factor", "partial rows"),
        ),
        ("info vc --verify", ("vertex-cut", "3,035", "replication factor", "held", "all right")),
    ):
        monkeypatch.setattr(sys, "argv", ["fullgraph", *command.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr().out
        assert ended.value.code == 0, out
        assert all(text in out for text in wanted), out
