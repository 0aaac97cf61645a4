"""The account of a training step: what every operation and every wait took.

A `TorchDispatchMode` measures each operation, torch's and ours, in the forward and in the backward
pass, and knows from its arguments what it had to move and to compute. Exchanges tell where they
post and wait, by named ranges (`fullgraph.comm.spans`).
"""

from __future__ import annotations

import re
import resource
import time
from dataclasses import dataclass, field
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from fullgraph.comm import spans
from fullgraph.kernels.costs import EXCHANGE, NOTHING, OWN, Cost, allocated, cost, family
from fullgraph.training.peaks import Peaks

WAITING = "waiting"
ENTER, EXIT = "profiler::_record_function_enter_new", "profiler::_record_function_exit"


@dataclass
class Used:
    """CPU-seconds of all threads, those of them in the system, page faults that need no disk."""

    cpu: float = 0.0
    system: float = 0.0
    faults: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.cpu + other.cpu, self.system + other.system, self.faults + other.faults
        )  # fmt: skip

    def __sub__(self, other: Used) -> Used:
        return Used(
            self.cpu - other.cpu, self.system - other.system, self.faults - other.faults
        )  # fmt: skip


def used() -> Used:
    """By this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_stime, usage.ru_minflt)


@dataclass
class Tally:
    """Of all calls under one name."""

    family: str
    calls: int = 0
    seconds: float = 0.0
    used: Used = field(default_factory=Used)
    random: int = 0
    stream: int = 0
    flops: int = 0

    def add(self, seconds: float, taken: Used, cost: Cost = NOTHING) -> None:
        self.calls += 1
        self.seconds += seconds
        self.used += taken
        self.random += cost.random
        self.stream += cost.stream
        self.flops += cost.flops

    def row(self, times: int, peaks: Peaks) -> dict[str, Any]:
        return {
            "family": self.family,
            "calls": self.calls / times,
            "seconds": self.seconds / times,
            "cpu_seconds": self.used.cpu / times,
            "page_faults": self.used.faults / times,
            "bytes": (self.random + self.stream) / times,
            "random_bytes": self.random / times,
            "flops": self.flops / times,
            "least_seconds": peaks.seconds(self.random, self.stream, self.flops) / times,
        }


class Account(TorchDispatchMode):
    """``tallies``: by name. ``calls``: each operation's name and cost, in order. ``allocated``:
    bytes of tensors that operations made. ``own``: seconds that this account itself took."""

    def __init__(self) -> None:
        super().__init__()
        self.tallies: dict[str, Tally] = {}
        self.calls: list[tuple[str, Cost]] = []
        self.allocated, self.own = 0, 0.0
        self._open: list[tuple[str, float, Used]] = []  # ranges: name, start, used before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        entered, kwargs, name = time.perf_counter(), kwargs or {}, func._schema.name
        if name in (ENTER, EXIT):
            out = func(*args, **kwargs)
            self._open.append((args[0], entered, used())) if name == ENTER else self._exit()
            return out
        if func.is_view or self._is_inside():  # part of the range
            self.calls.append((name, NOTHING))
            return func(*args, **kwargs)
        before, start = used(), time.perf_counter()
        out = func(*args, **kwargs)
        seconds, taken = time.perf_counter() - start, used() - before
        found = cost(func, args, kwargs, out)
        self._tally(name.removeprefix("aten::").removeprefix(OWN), family(func)).add(
            seconds, taken, found
        )
        self.calls.append((name, found))
        self.allocated += allocated((args, kwargs), out)
        self.own += time.perf_counter() - entered - seconds
        return out

    def _is_inside(self) -> bool:
        """Of a range that an exchange has named; there is none within another."""
        return bool(self._open) and self._open[-1][0].startswith((spans.WAITING, spans.EXCHANGE))

    def _exit(self) -> None:
        if self._is_inside():
            name, start, before = self._open[-1]
            kind = WAITING if name.startswith(spans.WAITING) else EXCHANGE
            self._tally(short(name), kind).add(time.perf_counter() - start, used() - before)
        if self._open:  # otherwise, it began before the step
            self._open.pop()

    def _tally(self, name: str, kind: str) -> Tally:
        if name not in self.tallies:
            self.tallies[name] = Tally(kind)
        return self.tallies[name]


def short(name: str) -> str:
    """Without what differs from message to message."""
    return re.sub(r" \d+ rows \w+ rank \d+ in the (\w+) pass of layer '(.*)'", r" \2, \1", name)
