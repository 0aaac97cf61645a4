"""What a profile says, of any summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fullgraph.training.profile_report import PICTURE, SUMMARY, draw, read, say


def _summary() -> dict[str, Any]:
    row = {"family": "sparse sums", "calls": 4.0, "random_bytes": 3e9, "page_faults": 7.0}
    kernels = [
        {
            **row,
            "name": "spmm",
            "seconds": 0.5,
            "cpu_seconds": 0.9,
            "bytes": 4e9,
            "flops": 1e9,
            "least_seconds": 0.4,
        },
        {
            **row,
            "name": "tiny",
            "seconds": 1e-9,
            "cpu_seconds": 0.0,
            "bytes": 0,
            "flops": 0,
            "least_seconds": 0.0,
        },
    ]
    rank = {
        "rank": 3, "threads": 2, "machine": {"gather": 1e10, "stream": 2e10, "flops": 1e11},
        "epochs": 3, "seconds": 1.0, "unprofiled_seconds": None, "cpu_seconds": 2.0,
        "system_seconds": 0.1, "page_faults": 1234.0, "allocated_bytes": 2e9, "kernels": kernels,
        "families": {"sparse sums": 0.5, "profiling": 0.01, "rest": 0.49},
    }  # fmt: skip
    return {"ranks": [rank]}


def test_a_table_has_a_row_a_kernel_and_one_for_the_small_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(_summary())
    lines = capsys.readouterr().out.splitlines()
    cells = next(line.split() for line in lines if line.startswith("spmm"))
    assert cells == [
        "spmm",
        "4",
        "0.5000",
        "50.0%",
        "0.900",
        "4.000",
        "8.0",
        "1.00",
        "2.0",
        "80%",
        "7",
    ]
    assert any(line.startswith("1 more, small") for line in lines)
    assert any("sparse sums 50%" in line for line in lines)


def test_a_summary_is_read_and_drawn(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    (tmp_path / SUMMARY).write_text(json.dumps(_summary()))
    draw(tmp_path / PICTURE, read(tmp_path) or {})
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert {p.name for p in tmp_path.iterdir()} == {SUMMARY, PICTURE}
