"""The scripts in examples/ run as the README says, and print the same on any number of workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str) -> str:
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(output: str) -> list[list[float]]:
    lines = re.findall(r"epoch +(\d+) +loss ([\d.]+) +validation accuracy ([\d.]+)", output)
    return [[float(value) for value in line] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_after_prints_what_before_prints(workers: int) -> None:
    before = numbers(run(sys.executable, "examples/before.py"))
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    after = numbers(run(sys.executable, *launch, "examples/after.py"))
    assert [line[0] for line in before] == list(range(1, 31))
    assert len(after) == 30
    for ours, reference in zip(after, before):
        assert ours[1] == pytest.approx(reference[1], abs=5e-3)  # float32, printed to 4 digits
        assert ours[2] == pytest.approx(reference[2], abs=1e-2)


def test_readme_shows_the_scripts_as_they_are() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in ("before.py", "after.py"):
        assert (ROOT / "examples" / name).read_text().split('"""\n', 1)[1].strip() in readme, name
