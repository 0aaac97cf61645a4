"""Where the seconds of a training step go: a timeline and an account of every rank.

What the `Account` of a step does not know of is the rest: Python, autograd, freeing memory.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import record_function

from fullgraph.graph.replace import replacing
from fullgraph.kernels.costs import NOTHING, Cost
from fullgraph.training.account import Account, Used, used
from fullgraph.training.peaks import measure
from fullgraph.training.profile_report import PICTURE, SUMMARY, draw, say

if TYPE_CHECKING:
    from fullgraph.comm.distributed import DistributedGraph
    from fullgraph.comm.hetero import DistributedHeteroGraph

EPOCHS, WARM_UP = 3, 2
TIMELINE = re.compile(r"rank-\d+\.json\.gz")
PROFILING, REST = "profiling", "rest"
STEP, LOOK = "training step", "PythonDispatchMode"


class Profile:
    """Profiles some training steps, and writes what it finds into a folder::

        with fullgraph.Profile(graph, "profile") as profile:
            for epoch in range(1, 31):
                with profile.step():
                    ...  # forward, loss, backward, sum_gradients, optimizer.step

    Every rank makes one, which first measures what the machine gives, and every rank makes the same
    steps. The first ones warm up, then some are profiled, and the later ones are as if there were
    no profile. Results are the same to the bit with it. The folder gets, of every rank r,
    ``rank-r.json.gz``, a timeline of torch.profiler for https://ui.perfetto.dev, and of all
    together ``summary.json`` and ``profile.png``. It is filled after the last profiled step, or at
    the end of the block, where there were fewer.

    Args:
        graph: whose ranks train.
        folder: is made where there is none; files of an earlier profile in it are replaced.
        epochs: how many steps to profile.
        warm_up: steps before; the last of them shows what profiling costs.

    ``summary``: what is in summary.json, on every rank; None until it is there.

    Raises:
        ValueError: for a number of steps that cannot be.
    """

    def __init__(
        self, graph: DistributedGraph | DistributedHeteroGraph, folder: str | os.PathLike[str], *,
        epochs: int = EPOCHS, warm_up: int = WARM_UP,
    ) -> None:  # fmt: skip
        for name, value, least in (("epochs", epochs, 1), ("warm_up", warm_up, 0)):
            if value < least:
                raise ValueError(f"{name} of a profile must be at least {least}, got {value}")
        self.group, self.folder = graph.group, Path(folder)
        self.epochs, self.warm_up = epochs, warm_up
        self.summary: dict[str, Any] | None = None
        self._peaks = measure(self.group)
        self._before: list[float] = []  # seconds of steps that warm up
        self._seconds: list[float] = []  # of those that are profiled
        self._used = Used()  # by the same
        self._account = Account()
        self._profiler: torch.profiler.profile | None = None

    def __enter__(self) -> Profile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None and self.summary is None and self._seconds:
            self._finish()
        elif self._profiler is not None:
            self._stop()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one training step."""
        if self.summary is not None:
            yield
            return
        if len(self._before) < self.warm_up:
            start = time.perf_counter()
            yield
            self._before.append(time.perf_counter() - start)
            return
        if self._profiler is None:
            self._start()
        before, start = used(), time.perf_counter()
        with record_function(STEP), self._account:
            yield
        self._seconds.append(time.perf_counter() - start)
        self._used += used() - before
        if len(self._seconds) == self.epochs:
            self._finish()

    def say(self) -> None:
        """Print the account of every rank, on rank 0."""
        if self.group.rank == 0 and self.summary is not None:
            say(self.summary)

    def _start(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell stderr that it starts
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        )
        self._profiler.start()

    def _stop(self) -> torch.profiler.profile:
        assert self._profiler is not None
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        return profiler

    def _finish(self) -> None:
        profiler, rank = self._stop(), self.group.rank
        if rank == 0:
            remove_all(self.folder)
        self.group.all_reduce(torch.zeros(1), "the clearing of a profile's folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as away:
            plain = Path(away, "timeline.json")
            profiler.export_chrome_trace(str(plain))
            timeline = json.loads(plain.read_text(encoding="utf-8"))
        _mend(timeline, rank, self._account.calls)
        with (
            replacing(self.folder / f"rank-{rank}.json.gz") as file,
            gzip.open(file, "wt", encoding="utf-8") as stream,
        ):
            json.dump(timeline, stream)
        own = torch.tensor(list(json.dumps(self._of_rank()).encode()), dtype=torch.uint8)
        pieces = self.group.all_gather(own, "the profiles of all ranks")
        self.summary = {"ranks": [json.loads(bytes(piece.tolist())) for piece in pieces]}
        self._account = Account()
        if rank == 0:
            with replacing(self.folder / SUMMARY) as file:
                file.write_text(json.dumps(self.summary, indent=1) + "\n", encoding="utf-8")
            draw(self.folder / PICTURE, self.summary)

    def _of_rank(self) -> dict[str, Any]:
        """This rank's share of the summary; seconds, bytes and numbers are of one epoch."""
        times = len(self._seconds)
        seconds = sum(self._seconds) / times
        rows = [
            {"name": name, **tally.row(times, self._peaks)}
            for name, tally in self._account.tallies.items()
        ]
        rows.sort(key=lambda row: -row["seconds"])
        families: dict[str, float] = defaultdict(float, {PROFILING: self._account.own / times})
        for row in rows:
            families[row["family"]] += row["seconds"]
        families[REST] = seconds - sum(families.values())
        return {
            "rank": self.group.rank,
            "threads": torch.get_num_threads(),
            "machine": asdict(self._peaks),
            "epochs": times,
            "seconds": seconds,
            "unprofiled_seconds": self._before[-1] if self._before else None,
            "cpu_seconds": self._used.cpu / times,
            "system_seconds": self._used.system / times,
            "page_faults": self._used.faults / times,
            "allocated_bytes": self._account.allocated / times,
            "families": families,
            "kernels": rows,
        }


def _mend(timeline: dict[str, Any], rank: int, calls: list[tuple[str, Cost]]) -> None:
    """Name the rank in a timeline, leave out the account's own look at each operation (an event of
    `LOOK` in an outer one of the same name), and note the operation's cost."""
    costs: dict[str, list[Cost]] = defaultdict(list)
    for name, found in reversed(calls):
        costs[name].append(found)
    events = timeline["traceEvents"]
    operations = [e for e in events if e.get("cat") == "cpu_op"]
    operations.sort(key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    around: list[dict[str, Any]] = []
    left_out = {id(e) for e in operations if e["name"] == LOOK}
    for event in operations:
        while around and not _inside(event, around[-1]):
            around.pop()
        if [e["name"] for e in around[-2:]] == [event["name"], LOOK]:
            left_out.add(id(around[-2]))
            found = costs[event["name"]].pop() if costs[event["name"]] else NOTHING
            if any(found):
                event["args"] |= {"bytes": found.random + found.stream, "flops": found.flops}
        around.append(event)
    timeline["traceEvents"] = [e for e in events if id(e) not in left_out]
    for event in events:
        if event.get("name") == "process_name":
            event["args"]["name"] = f"rank {rank}"


def _inside(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    same = event["tid"] == outer["tid"]
    return bool(same and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"])


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a profile and nothing else."""
    return folder.is_dir() and all(_is_file(path.name) for path in folder.iterdir())


def remove_all(folder: Path) -> None:
    """Every file of a profile, and the folder if nothing else is in it."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _is_file(path.name):
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_file(name: str) -> bool:
    return name in (SUMMARY, PICTURE) or TIMELINE.fullmatch(name) is not None
