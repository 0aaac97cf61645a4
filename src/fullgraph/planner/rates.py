"""How fast a machine is: the rates that an epoch is priced with, measured or given.

Letters: n rows, F columns, H heads; R ranges of edges, of rows that are written, and S rows that
edges name at random.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from fullgraph import kernels
from fullgraph.kernels import EdgeDropout

Clock = Callable[[], float]

SUMS, ATTENTION, ATTENTION_GRAD = "sums", "attention", "attention_grad"
DROPPED, DROPPED_GRAD = "attention_with_dropout", "attention_grad_with_dropout"
WIDE = 128  # columns, of what a machine is described by
MANY = 1 << 18  # rows, which are in no cache
CALLS, STEPS = 500, 10  # of what is small
FRESH = 4  # tensors at a time, as a layer needs some


class EdgeWork(NamedTuple):
    """A kernel over edges, by what the time of an edge depends on.

    ``kind``: `SUMS`, `ATTENTION`, `ATTENTION_GRAD`, and with dropout of coefficients `DROPPED` and
    `DROPPED_GRAD`. ``columns`` of a row, and ``heads``. ``rows``: S, of which as many stay in
    caches as fit. ``degree``: edges of a range, as there is work for each range, too.
    """

    kind: str
    columns: int
    heads: int = 1
    rows: int = MANY
    degree: int = 16

    def rounded(self) -> EdgeWork:
        """To powers of two of rows and edges: there is a different number for every block."""
        rows = min(max(_power_of_two(self.rows), 1 << 10), MANY)
        return self._replace(rows=rows, degree=min(max(_power_of_two(self.degree), 1), 64))


def _power_of_two(count: float) -> int:
    return 1 << round(math.log2(max(count, 1)))


EdgeSeconds = Callable[[EdgeWork], float]  # of one edge


@dataclass(frozen=True)
class Rates:
    """Of one worker.

    Attributes:
        flops: operations a second of a dense product in float32.
        edge: seconds of a kernel for each edge.
        stream: bytes a second, read and written, of what goes through rows one by one.
        fresh: bytes a second of memory that the system gives for a large tensor and clears.
        dropout: bytes a second of a mask.
        call: seconds that a kernel of ours takes, however small, and ``step`` any other operation,
            with the Python around it.
        slowed: how many times what `edge` says edges take.
    """

    flops: float
    edge: EdgeSeconds
    stream: float
    fresh: float
    dropout: float
    call: float = 2e-5
    step: float = 2e-6
    slowed: float = 1.0

    def edges(self, count: float, work: EdgeWork) -> float:
        """Seconds of a kernel over so many edges."""
        return count * self.slowed * self.edge(work)

    def with_given(self, flops: float | None, gather: float | None) -> Rates:
        """With a rate of dense products, and one at which sums read rows (bytes a second); the
        other rates of memory change as that one does."""
        rates = self if flops is None else replace(self, flops=flops)
        if gather is None:
            return rates
        factor = self.gather / gather
        return replace(
            rates, slowed=self.slowed * factor, stream=self.stream / factor,
            fresh=self.fresh / factor, dropout=self.dropout / factor,
        )  # fmt: skip

    @property
    def gather(self) -> float:
        """Bytes a second that sums read of rows, wide ones."""
        return 4 * WIDE / self.edges(1, EdgeWork(SUMS, WIDE))

    def shared_by(self, workers: float) -> Rates:
        """Where so many workers take turns on what one of them was measured on."""
        if workers <= 1:
            return self
        return Rates(
            self.flops / workers, self.edge, self.stream / workers, self.fresh / workers,
            self.dropout / workers, self.call * workers, self.step * workers,
            self.slowed * workers,
        )  # fmt: skip


def _nominal_edge(work: EdgeWork) -> float:
    per_edge, bandwidth = {
        SUMS: (1e-9, 2e10), ATTENTION: (1e-8, 1.5e10), ATTENTION_GRAD: (2e-8, 8e9),
        DROPPED: (3e-8, 1.5e10), DROPPED_GRAD: (4e-8, 8e9),
    }[work.kind]  # fmt: skip
    return per_edge + 4 * work.columns / bandwidth


# A server core of 2020 with AVX2, for plans that measure nothing.
NOMINAL = Rates(flops=5e10, edge=_nominal_edge, stream=8e9, fresh=3e9, dropout=4e9)


@dataclass(frozen=True)
class Stopwatch:
    """How rates are measured.

    Attributes:
        threads: of the worker; torch's own number unless given.
        others: workers that run at the same time on other cores of this machine, and slow down
            what reads much of memory.
        num_rows: of products and of what goes through rows one by one.
        num_edges: which are random.
        repeat: the median of so many runs, after one to warm up, by `clock`.
    """

    threads: int = field(default_factory=torch.get_num_threads)
    others: int = 0
    num_rows: int = 1 << 18
    num_edges: int = 1 << 19
    repeat: int = 3
    clock: Clock = time.perf_counter

    def seconds(self, *runs: Callable[[], object]) -> list[float]:
        """Of each."""
        with on_threads(self.threads), _busy_others(self.others):
            return [self._median(run) for run in runs]

    def _median(self, run: Callable[[], object]) -> float:
        run()
        times = []
        for _ in range(self.repeat):
            start = self.clock()
            run()
            times.append(self.clock() - start)
        return statistics.median(times)

    def edges(self, work: EdgeWork) -> Edges:
        rng, num_ranges = torch.Generator().manual_seed(0), self.num_edges // work.degree
        size = (num_ranges * work.degree,)
        cols = torch.randint(work.rows, size, generator=rng, dtype=torch.int32, device="cpu")
        return Edges(torch.arange(num_ranges + 1, device="cpu") * work.degree, cols, work)


def measure(stopwatch: Stopwatch | None = None) -> Rates:
    """Run the kernels of a worker on this machine. Those over edges are run when their rate is
    first asked for, with the columns and heads of the model and blocks of such a size, which takes
    some tenths of a second each."""
    from fullgraph.planner.overhead import tiny_step

    watch = Stopwatch() if stopwatch is None else stopwatch
    training, operations = tiny_step()
    rows, weight = torch.randn(watch.num_rows, WIDE), torch.randn(WIDE, WIDE)
    ids, out, small = torch.arange(watch.num_rows), torch.empty_like(rows), torch.randn(8, 8)
    few = small.clone()

    def kernel_calls() -> None:
        for _ in range(CALLS):
            kernels.dense(small, small, few)

    product, stream, fill, fresh, dropped, calls, steps = watch.seconds(
        lambda: kernels.dense(rows, weight, out),
        lambda: torch.relu_(rows),
        lambda: out.zero_(),
        lambda: [torch.empty_like(rows).zero_() for _ in range(FRESH)],
        lambda: kernels.dropout(rows, ids, out, p=0.5, seed=0, step=0, layer=0),
        kernel_calls,
        lambda: [training() for _ in range(STEPS)],
    )
    step = steps / STEPS / operations
    fresh = max(fresh / FRESH - fill, fresh / FRESH / 100)

    @cache
    def of_rounded(work: EdgeWork) -> float:
        with _disable_current_modes():  # a dry run may be what asks
            edges = watch.edges(work)
            return watch.seconds(KERNELS[work.kind](edges))[0] / edges.cols.numel()

    def edge(work: EdgeWork) -> float:
        return of_rounded(work.rounded())

    return Rates(
        flops=2 * rows.numel() * WIDE / product, edge=edge, stream=2 * rows.nbytes / stream,
        fresh=rows.nbytes / fresh, dropout=rows.nbytes / dropped,
        call=max(calls / CALLS, step), step=step,
    )  # fmt: skip


@contextmanager
def on_threads(count: int | None) -> Iterator[None]:
    """With so many threads of torch; None: as many as there are."""
    if count is not None and count < 1:
        raise ValueError(f"threads must be at least 1, got {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _busy_others(count: int) -> Iterator[None]:
    """With so many threads that sum rows of their own all the time."""
    done = threading.Event()

    def work() -> None:
        torch.set_num_threads(1)  # of this thread
        sums = _sums(Stopwatch(threads=1).edges(EdgeWork(SUMS, WIDE)))
        while not done.is_set():
            sums()

    others = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        done.set()
        for other in others:
            other.join()


# ---- The kernels over edges ---------------------------------------------------------------------


class Edges(NamedTuple):
    """``offsets`` [R + 1] of ranges; ``cols``: which of S rows each edge names."""

    offsets: Tensor
    cols: Tensor
    work: EdgeWork

    @property
    def given(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.offsets[:-1], self.offsets[1:], self.cols

    def ranges(self, *columns: int) -> list[Tensor]:
        """Rows that are written or read once, of so many columns each."""
        return [torch.rand(self.offsets.numel() - 1, width, device="cpu") for width in columns]

    def named(self, *columns: int) -> list[Tensor]:
        """Rows that edges name."""
        return [torch.rand(self.work.rows, width, device="cpu") for width in columns]

    def dropout(self) -> EdgeDropout:
        return EdgeDropout(torch.arange(self.cols.numel(), device="cpu"), 0.5, 0, 0, 0)


def _sums(edges: Edges) -> Callable[[], object]:
    (x,), (out,) = edges.named(edges.work.columns), edges.ranges(edges.work.columns)
    return lambda: kernels.spmm(*edges.given, x, out, accumulate=False)


def _attention(edges: Edges, dropout: EdgeDropout | None = None) -> Callable[[], object]:
    columns, heads = edges.work.columns, edges.work.heads
    x, source = edges.named(columns, heads)
    out, target, top, total = edges.ranges(columns, heads, heads, heads)
    return lambda: kernels.gat(
        *edges.given, x, source, target, out, top, total, slope=0.2, dropout=dropout,
        accumulate=False,
    )  # fmt: skip


def _gradient(edges: Edges, dropout: EdgeDropout | None = None) -> Callable[[], object]:
    columns, heads = edges.work.columns, edges.work.heads
    x, source, dx, dsource = edges.ranges(columns, heads, columns, heads)
    state, dout, dtarget = edges.named(4 * heads, columns, heads)
    state += 1  # sums of exponentials
    index = None if dropout is None else torch.randperm(edges.cols.numel(), device="cpu")
    return lambda: kernels.gat_grad(
        *edges.given, x, source, state, dout, dx, dsource, dtarget, slope=0.2, index=index,
        dropout=dropout, accumulate=False,
    )  # fmt: skip


KERNELS: dict[str, Callable[[Edges], Callable[[], object]]] = {
    SUMS: _sums, ATTENTION: _attention, ATTENTION_GRAD: _gradient,
    DROPPED: lambda edges: _attention(edges, edges.dropout()),
    DROPPED_GRAD: lambda edges: _gradient(edges, edges.dropout()),
}  # fmt: skip
