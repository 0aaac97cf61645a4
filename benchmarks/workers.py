"""Processes of a benchmark that form a group over loopback, each of which prints its answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

WAIT_SECONDS = 3600


def run_workers(
    arguments: list[str], size: int, threads: int, **environment: str
) -> list[dict[str, Any]] | None:
    """What each of `size` workers printed last, as JSON; None where one failed, as when another
    program took the free port.

    Args:
        arguments: of Python, which every worker is given.
        threads: of each worker.
    """
    around = dict(os.environ, OMP_NUM_THREADS=str(max(1, threads)), **environment)
    if size > 1:
        around.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()), WORLD_SIZE=str(size),
            GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
    workers = [
        subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, text=True,
            env={**around, **({"RANK": str(rank)} if size > 1 else {})},
        )
        for rank in range(size)
    ]  # fmt: skip
    said = []
    for worker in workers:
        said.append(worker.communicate(timeout=WAIT_SECONDS)[0])
        if worker.returncode:
            for other in workers:
                other.kill()
            return None
    return [json.loads(text.splitlines()[-1]) for text in said]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
