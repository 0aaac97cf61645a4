"""Runs the process that reads mutated inputs, and says what became of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fuzz.child import STATUS

ROOT = Path(__file__).parents[2]


def fuzz(
    work: Path, mutations: int, seed: int, only: tuple[str, int] | None = None,
    seconds: float = 1800.0,
) -> dict[str, Any]:  # fmt: skip
    """Read so many mutated inputs in a process of its own; its report, see `describe`.

    work: an empty folder, in which an input that fails is kept. only: a target and the number of
    one mutation.
    """
    (work / "status").write_bytes(bytes(STATUS.size))
    given = {"work": str(work.absolute()), "mutations": mutations, "seed": seed, "only": only}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.child", json.dumps(given)],
        cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
    if (work / "report").exists():
        report: dict[str, Any] = json.loads((work / "report").read_text())
        return {**report, "mutations": sum(_count(t) for t in report["targets"].values())}
    target, number = STATUS.unpack((work / "status").read_bytes())
    ended = process.returncode
    how = signal.Signals(-ended).name if ended < 0 else f"exit code {ended}"
    why = f"the process ended with {how}\n{said[-3000:]}"
    failure = {"target": target, "mutation": number, "why": why, "kept": str(work / f"{target}")}
    return {"mutations": 0, "targets": {}, "failures": [failure], "memory_is_limited": False}


def _count(target: dict[str, Any]) -> int:
    return sum(target["counts"].values())


def describe(report: dict[str, Any]) -> str:
    """The number of mutations, and for each target what became of them."""
    limit = "" if report["memory_is_limited"] else "; this system does not limit memory"
    lines = [f"{report['mutations']:,} mutated inputs{limit}"]
    for name, target in report["targets"].items():
        counts = ", ".join(f"{n:,} {what}" for what, n in sorted(target["counts"].items()))
        lines.append(
            f"  {name}: {_count(target):,} in {target['seconds']:.0f} s, {counts}; "
            f"{target['memory'] / 1e6:.0f} MB more at most"
        )
    for failure in report["failures"]:
        lines.append(
            f"{failure['target']}, mutation {failure['mutation']} ({failure['kept']}):\n"
            f"{failure['why']}"
        )
    return "\n".join(lines)
