"""`fullgraph plan` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import run

FIGURES = "nodes=1e4,edges=1e5,features=16,classes=4,halo=0.4"
RATES = ("--flops", "100GFLOPS", "--gather", "20GB/s")


def test_a_plan_of_figures_recommends_a_command(tmp_path: Path) -> None:
    code, out, err = run("plan", FIGURES, "--workers", 4, "--memory", "16GB", *RATES, cwd=tmp_path)
    assert (code, err) == (0, "")
    assert "network: 1.25 GB/s, 50 us a message" in out
    assert "recommended: fullgraph train GRAPH --model sage" in out


def test_a_plan_as_json_is_one_line(tmp_path: Path) -> None:
    only = ("--placement", "destination", "--schedule", "oneshot")
    code, out, err = run("plan", FIGURES, "--workers", 2, *RATES, *only, "--json", cwd=tmp_path)
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert [c["schedule"] for c in content["candidates"]] == ["oneshot"]
    assert content["machine"]["flops"] == 1e11
    assert content["recommended"]["placement"] == "destination"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory", "16"), "--memory '16' has no unit; write it as 16GB or 16GiB"),
        (("--bandwidth", "10GB"), "--bandwidth '10GB' is not understood; write it as 10Gbps"),
        (("--model", "gatt"), "model 'gatt' is unknown; choose one of gcn, sage, gin, gat"),
        (("--placement", "grid:3x3x1"), "is a grid of 9 workers, but there are 4"),
        (("--schedule", "later"), "schedule must be"),
    ],
)
def test_mistakes_are_a_line(tmp_path: Path, words: tuple[str, str], message: str) -> None:
    code, out, err = run("plan", FIGURES, "--workers", 4, *words, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("fullgraph: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_training_takes_the_placement_that_is_found_fastest(tmp_path: Path) -> None:
    words = ("planted:nodes=200,edges=800,features=4,classes=3", "--workers", 2, "--epochs", 2)
    code, out, err = run("train", *words, "--placement", "auto", "--out", "run", cwd=tmp_path)
    assert (code, err) == (0, "")
    (line,) = [
        line for line in out.splitlines() if " placement: " in line and "choosing" not in line
    ]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert line.endswith(f" placement: {config['placement']}")
