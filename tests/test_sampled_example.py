"""examples/sampled_train.py: exact evaluation for real, and training wherever PyG can sample."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.typing
from safetensors.torch import load_file, save_file

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = EXAMPLES / "sampled_train.py"
GRAPH = "planted:nodes=1500,edges=9000,features=16,classes=5"
CAN_SAMPLE = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE


def _run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=170,
    )  # fmt: skip


@pytest.fixture(scope="module")
def example() -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec = importlib.util.spec_from_file_location("sampled_train", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLES))
    return module


def _expected(example: ModuleType, weights: Path) -> list[float]:
    """Loss and accuracies of these weights by PyG in one process."""
    data = example.load_data(GRAPH)
    model = example.Net(16, 64, 5)
    model.load_state_dict(load_file(weights))
    with torch.no_grad():
        out = model(data.x, data.edge_index)
    right = (out.argmax(1) == data.y).float()
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    return [float(v) for v in (loss, right[data.val_mask].mean(), right[data.test_mask].mean())]


def _printed(output: str, workers: int) -> list[float]:
    pattern = (
        rf"whole graph, {workers} worker\(s\): training loss ([\d.]+)  "
        r"validation accuracy ([\d.]+)  test accuracy ([\d.]+)"
    )
    found = re.search(pattern, output)
    assert found, output
    return [float(value) for value in found.groups()]


@pytest.mark.slow
def test_workers_evaluate_the_weights_as_pyg_does(example: ModuleType, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    torch.manual_seed(3)
    save_file(example.Net(16, 64, 5).state_dict(), weights)
    expected = pytest.approx(_expected(example, weights), abs=2e-4)  # printed to 4 digits
    command = [str(SCRIPT), GRAPH, "--evaluate", weights.name]
    by_itself = _run(*command, "--workers", "2", cwd=tmp_path)
    assert by_itself.returncode == 0, by_itself.stderr
    assert _printed(by_itself.stdout, 2) == expected
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    under_torchrun = _run(*torchrun, *command, cwd=tmp_path)
    assert under_torchrun.returncode == 0, under_torchrun.stderr
    assert _printed(under_torchrun.stdout, 3) == expected


@pytest.mark.slow
def test_training_samples_where_pyg_can_and_says_what_is_missing_where_not(
    example: ModuleType, tmp_path: Path
) -> None:
    done = _run(str(SCRIPT), GRAPH, "--epochs", "3", "--workers", "2", cwd=tmp_path)
    if not CAN_SAMPLE:
        assert done.returncode == 1
        assert "requires either 'pyg-lib' or 'torch-sparse'. Install one of them" in done.stderr
        assert "Traceback" not in done.stderr
        return
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"sampled loss ([\d.]+)", done.stdout)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    expected = _expected(example, tmp_path / "model.safetensors")
    assert _printed(done.stdout, 2) == pytest.approx(expected, abs=2e-4)
