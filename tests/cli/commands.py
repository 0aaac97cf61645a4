"""Running the command line as people do: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment() -> dict[str, str]:
    """Without what torchrun sets; one thread, so that tests do not fight for cores."""
    kept = {name: value for name, value in os.environ.items() if name not in TORCHRUN}
    return {**kept, "OMP_NUM_THREADS": "1"}


def start(*words: object, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fullgraph.cli", *map(str, words)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, **options,
    )  # fmt: skip


def run(*words: object, cwd: Path, timeout: float = 120) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    process = start(*words, cwd=cwd)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err
