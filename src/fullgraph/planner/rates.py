"""How fast a machine is: the rates that an epoch is priced with, measured or given.

Letters: n rows, E edges, F columns, H heads.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from fullgraph import kernels
from fullgraph.kernels import EdgeDropout

Clock = Callable[[], float]
EdgeSeconds = Callable[[str, int, int], float]  # kind, columns of float32, heads: of one edge
SUMS, ATTENTION, ATTENTION_GRAD = "sums", "attention", "attention_grad"
DROPPED, DROPPED_GRAD = "attention_with_dropout", "attention_grad_with_dropout"
WIDE = 128  # columns, of what a machine is described by
FRESH = 4  # tensors at a time, as a layer needs some


@dataclass(frozen=True)
class Rates:
    """Of one worker.

    Attributes:
        flops: operations a second of a dense product in float32.
        edge: seconds of a kernel for each edge, by its kind (`SUMS`, `ATTENTION`,
            `ATTENTION_GRAD`, and with dropout of coefficients `DROPPED` and `DROPPED_GRAD`), the
            columns of the rows that it reads, and heads.
        stream: bytes a second, read and written, of what goes through rows one by one.
        fresh: bytes a second of memory that the system gives for a large tensor and clears.
        dropout: bytes a second of a mask.
        call: seconds that any operation takes, however small.
        slowed: how many times what `edge` says edges take.
    """

    flops: float
    edge: EdgeSeconds
    stream: float
    fresh: float
    dropout: float
    call: float = 1e-5
    slowed: float = 1.0

    def edges(self, kind: str, count: float, columns: int, heads: int) -> float:
        """Seconds of a kernel over so many edges."""
        return count * self.slowed * self.edge(kind, columns, heads)

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
        return 4 * WIDE / self.edges(SUMS, 1, WIDE, 1)

    def shared_by(self, workers: float) -> Rates:
        """Where so many workers take turns on what one of them was measured on."""
        if workers <= 1:
            return self
        return Rates(
            self.flops / workers, self.edge, self.stream / workers, self.fresh / workers,
            self.dropout / workers, self.call * workers, self.slowed * workers,
        )  # fmt: skip


def _nominal_edge(kind: str, columns: int, heads: int) -> float:
    per_edge, bandwidth = {
        SUMS: (1e-9, 2e10), ATTENTION: (1e-8, 1.5e10), ATTENTION_GRAD: (2e-8, 8e9),
        DROPPED: (3e-8, 1.5e10), DROPPED_GRAD: (4e-8, 8e9),
    }[kind]  # fmt: skip
    return per_edge + 4 * columns / bandwidth


# A server core of 2020 with AVX2, for plans that measure nothing.
NOMINAL = Rates(flops=5e10, edge=_nominal_edge, stream=8e9, fresh=3e9, dropout=4e9)


@dataclass(frozen=True)
class Stopwatch:
    """How rates are measured.

    Attributes:
        threads: of the worker; torch's own number unless given.
        others: workers that run at the same time on other cores of this machine, and slow down
            what reads much of memory.
        num_rows, degree: of the graph, whose edges are random.
        repeat: the median of so many runs, after one to warm up, by `clock`.
    """

    threads: int = field(default_factory=torch.get_num_threads)
    others: int = 0
    num_rows: int = 1 << 16
    degree: int = 16
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

    def edges(self) -> tuple[Tensor, Tensor]:
        """Offsets and sources."""
        rng = torch.Generator().manual_seed(0)
        size = (self.num_rows * self.degree,)
        cols = torch.randint(self.num_rows, size, generator=rng, dtype=torch.int32, device="cpu")
        return torch.arange(self.num_rows + 1, device="cpu") * self.degree, cols


def measure(stopwatch: Stopwatch | None = None) -> Rates:
    """Run the kernels of a worker on this machine. Those over edges are run when their rate is
    first asked for, with the columns and heads of the model, which takes some tenths of a second
    each."""
    watch = Stopwatch() if stopwatch is None else stopwatch
    rows, weight = torch.randn(watch.num_rows, WIDE), torch.randn(WIDE, WIDE)
    ids, out, small = torch.arange(watch.num_rows), torch.empty_like(rows), torch.randn(8, 8)
    product, stream, fill, fresh, dropped, calls = watch.seconds(
        lambda: kernels.dense(rows, weight, out),
        lambda: torch.relu_(rows),
        lambda: out.zero_(),
        lambda: [torch.empty_like(rows).zero_() for _ in range(FRESH)],
        lambda: kernels.dropout(rows, ids, out, p=0.5, seed=0, step=0, layer=0),
        lambda: [small + small for _ in range(1000)],
    )
    fresh = max(fresh / FRESH - fill, fresh / FRESH / 100)

    @cache
    def edge(kind: str, columns: int, heads: int) -> float:
        with _disable_current_modes():  # a dry run may be what asks
            offsets, cols = watch.edges()
            run = KERNELS[kind](offsets, cols, columns, heads)
            return watch.seconds(run)[0] / cols.numel()

    return Rates(
        flops=2 * rows.numel() * WIDE / product, edge=edge, stream=2 * rows.nbytes / stream,
        fresh=rows.nbytes / fresh, dropout=rows.nbytes / dropped, call=calls / 1000,
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
        watch = Stopwatch(threads=1)
        sums = _sums(*watch.edges(), WIDE, 1)
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


def _sums(offsets: Tensor, cols: Tensor, columns: int, heads: int) -> Callable[[], object]:
    x = torch.randn(offsets.numel() - 1, columns, device="cpu")
    out = torch.empty_like(x)
    return lambda: kernels.spmm(offsets[:-1], offsets[1:], cols, x, out, accumulate=False)


def _attention(
    offsets: Tensor, cols: Tensor, columns: int, heads: int, dropout: EdgeDropout | None = None
) -> Callable[[], object]:
    x, out = torch.randn(2, offsets.numel() - 1, columns, device="cpu")
    logit, top, total = torch.randn(3, len(x), heads, device="cpu")
    return lambda: kernels.gat(
        offsets[:-1], offsets[1:], cols, x, logit, logit, out, top, total, slope=0.2,
        dropout=dropout, accumulate=False,
    )  # fmt: skip


def _gradient(
    offsets: Tensor, cols: Tensor, columns: int, heads: int, dropout: EdgeDropout | None = None
) -> Callable[[], object]:
    x, dout, dx = torch.randn(3, offsets.numel() - 1, columns, device="cpu")
    logit, dsource, dtarget = torch.randn(3, len(x), heads, device="cpu")
    state = torch.rand(len(x), 4 * heads, device="cpu") + 1
    index = None if dropout is None else torch.randperm(cols.numel(), device="cpu")
    return lambda: kernels.gat_grad(
        offsets[:-1], offsets[1:], cols, x, logit, state, dout, dx, dsource, dtarget, slope=0.2,
        index=index, dropout=dropout,
    )  # fmt: skip


Prepare = Callable[..., Callable[[], object]]  # offsets, sources, columns, heads: what is timed


def _dropped(run: Prepare) -> Prepare:
    def prepare(offsets: Tensor, cols: Tensor, columns: int, heads: int) -> Callable[[], object]:
        ids = torch.arange(cols.numel(), device="cpu")
        dropout = EdgeDropout(ids, 0.5, 0, 0, 0)
        return run(offsets, cols, columns, heads, dropout=dropout)

    return prepare


KERNELS: dict[str, Prepare] = {
    SUMS: _sums, ATTENTION: _attention, ATTENTION_GRAD: _gradient,
    DROPPED: _dropped(_attention), DROPPED_GRAD: _dropped(_gradient),
}  # fmt: skip
