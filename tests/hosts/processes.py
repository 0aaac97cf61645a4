"""Programs in namespaces of other processes, as on other hosts."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.hosts.network import Host
from tests.ranks import forked


class Program:
    """A program on a host: ``out`` and ``err`` are what it said, once it `wait`ed."""

    def __init__(self, process: BaseProcess, folder: Path, name: str) -> None:
        self._process, self._folder, self._name = process, folder, name
        for suffix in ("out", "err"):
            (folder / f"{name}.{suffix}").touch()

    def wait(self, seconds: float) -> int:
        """Its exit code; AssertionError, with what it said, if it still runs then."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.kill()
            raise AssertionError(f"{self._name} did not end within {seconds} s:\n{self.err}")
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    @property
    def out(self) -> str:
        return (self._folder / f"{self._name}.out").read_text()

    @property
    def err(self) -> str:
        return (self._folder / f"{self._name}.err").read_text()


def start(
    pid: int, folder: Path, name: str, call: Callable[..., Any], *args: Any, **variables: object
) -> Program:
    """Call a function of a module in the namespaces of a process, with these environment variables,
    in this folder, where what it says is kept under this name."""
    process = forked(_run, pid, folder, name, call, args, variables)
    return Program(process, folder, name)


def ranks(
    hosts: list[Host], folder: Path, name: str, call: Callable[..., Any], *args: Any,
    address: str, port: int = 29500, **variables: object,
) -> list[Program]:  # fmt: skip
    """One rank a host, as a queueing system starts them: each knows which it is, and rank 0's
    address."""
    shared = {"WORLD_SIZE": len(hosts), "MASTER_ADDR": address, "MASTER_PORT": port, **variables}
    return [
        start(host.pid, folder, f"{name}-{rank}", call, *args, RANK=rank, **shared)
        for rank, host in enumerate(hosts)
    ]


def fullgraph(*words: object) -> None:
    from fullgraph.cli import main

    sys.argv = ["fullgraph", *map(str, words)]
    main()


def torchrun(*words: object) -> None:
    from torch.distributed.run import main

    main(list(map(str, words)))


def _run(
    pid: int, folder: Path, name: str, call: Callable[..., Any], args: tuple[Any, ...],
    variables: dict[str, object],
) -> None:  # fmt: skip
    os.chdir(folder)
    for number, suffix in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{name}.{suffix}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, number)
    system = ctypes.CDLL(None, use_errno=True)
    spaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts", "mnt")]
    for space in spaces:
        if system.setns(space, 0):
            raise OSError(ctypes.get_errno(), "setns")
    os.chdir(folder)
    os.environ.update({key: str(value) for key, value in variables.items()})
    call(*args)


def wait_for(condition: Callable[[], bool], seconds: float, programs: list[Program]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("\n".join(program.err for program in programs))
        time.sleep(0.05)
