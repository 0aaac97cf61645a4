"""Running the command line as people do: in a process of its own.

`start` starts one from nothing; `run`, which saves the seconds that importing takes, does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fullgraph.cli import main
from tests.ranks import forked

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
    """Exit code, stdout and stderr, in a process that is forked from one with everything imported.
    Workers, if any, are started as they always are."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "err")]
        process = forked(_command, [*map(str, words)], str(cwd), environment(), files)
        process.join(timeout)
        code = process.exitcode
        if code is None:
            process.kill()
            raise TimeoutError(f"fullgraph {words} has not ended: {files[1].read_text()}")
        return code, *(file.read_text() for file in files)


def _command(words: list[str], cwd: str, variables: dict[str, str], files: list[Path]) -> None:
    for number, file in enumerate(files, 1):
        with file.open("wb") as opened:
            os.dup2(opened.fileno(), number)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    sys.argv = ["fullgraph", *words]
    main()
