"""How fast a machine is: the rates that an epoch is priced with, measured or given.

A rate that involves edges has a price for each edge and one for each byte of the row it reads, as
short rows are slower a byte. Letters: n rows, E edges, F columns, H heads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.kernels import EdgeDropout

Clock = Callable[[], float]
Prepare = Callable[..., Callable[[], object]]  # offsets, cols and columns to what is to be timed
SUMS, ATTENTION, ATTENTION_GRAD = "sums", "attention", "attention_grad"
NARROW, WIDE, HEADS = 16, 128, 4  # of what is measured
DROPPED, DROPPED_GRAD = "attention_with_dropout", "attention_grad_with_dropout"


@dataclass(frozen=True)
class EdgeRate:
    """Seconds for each edge, and for each byte of the source row that it reads."""

    per_edge: float
    per_byte: float

    def seconds(self, edges: float, row_bytes: float) -> float:
        return edges * (self.per_edge + row_bytes * self.per_byte)


@dataclass(frozen=True)
class Rates:
    """Of one worker.

    Attributes:
        flops: operations a second of a dense product in float32.
        edges: by kind: `SUMS`, `ATTENTION`, `ATTENTION_GRAD`, and with dropout of coefficients
            `DROPPED` and `DROPPED_GRAD`.
        stream: bytes a second, read and written, of what goes through rows one by one.
        dropout: bytes a second of a mask.
        call: seconds that any operation takes, however small.
    """

    flops: float
    edges: dict[str, EdgeRate]
    stream: float
    dropout: float
    call: float = 1e-5

    def with_given(self, flops: float | None, gather: float | None) -> Rates:
        """With a rate of dense products, and one at which sums read rows (bytes a second); the
        other rates of memory change as that one does."""
        rates = self if flops is None else replace(self, flops=flops)
        if gather is None:
            return rates
        factor = self.gather / gather
        edges = {
            kind: EdgeRate(rate.per_edge * factor, rate.per_byte * factor)
            for kind, rate in self.edges.items()
        }
        return replace(
            rates, edges=edges, stream=self.stream / factor, dropout=self.dropout / factor
        )

    @property
    def gather(self) -> float:
        """Bytes a second that sums read of rows, wide ones."""
        return 4 * WIDE / self.edges[SUMS].seconds(1, 4 * WIDE)

    def shared_by(self, workers: float) -> Rates:
        """Where so many workers take turns on what one of them was measured on."""
        if workers <= 1:
            return self
        edges = {
            kind: EdgeRate(rate.per_edge * workers, rate.per_byte * workers)
            for kind, rate in self.edges.items()
        }
        return Rates(
            self.flops / workers, edges, self.stream / workers, self.dropout / workers,
            self.call * workers,
        )  # fmt: skip


# A server core of 2020 with AVX2, for plans that measure nothing.
NOMINAL = Rates(
    flops=5e10,
    edges={
        SUMS: EdgeRate(1e-9, 1 / 2e10),
        ATTENTION: EdgeRate(1e-8, 1 / 1.5e10),
        ATTENTION_GRAD: EdgeRate(2e-8, 1 / 8e9),
        DROPPED: EdgeRate(3e-8, 1 / 1.5e10),
        DROPPED_GRAD: EdgeRate(4e-8, 1 / 8e9),
    },
    stream=8e9,
    dropout=4e9,
)


def measure(
    num_rows: int = 1 << 16, degree: int = 16, repeat: int = 3, clock: Clock = time.perf_counter
) -> Rates:
    """Run each kernel on random edges of a graph of this size, with torch's number of threads; a
    second or two by the clock, unless another is given."""

    def seconds(run: Callable[[], object]) -> float:
        run()
        times = []
        for _ in range(repeat):
            start = clock()
            run()
            times.append(clock() - start)
        return statistics.median(times)

    measured = {kind: _edge_rate(run, num_rows, degree, seconds) for kind, run in KERNELS.items()}
    rows, weight = torch.randn(num_rows, WIDE), torch.randn(WIDE, WIDE)
    ids = torch.arange(num_rows)
    product = seconds(lambda: rows @ weight)
    stream = seconds(lambda: rows.relu())
    out = torch.empty_like(rows)
    dropped = seconds(lambda: kernels.dropout(rows, ids, out, p=0.5, seed=0, step=0, layer=0))
    small = torch.randn(8, 8)
    return Rates(
        flops=2 * num_rows * WIDE * WIDE / product, edges=measured,
        stream=2 * rows.nbytes / stream, dropout=rows.nbytes / dropped,
        call=seconds(lambda: [small + small for _ in range(1000)]) / 1000,
    )  # fmt: skip


def _edge_rate(
    prepare: Prepare, num_rows: int, degree: int,
    seconds: Callable[[Callable[[], object]], float],
) -> EdgeRate:  # fmt: skip
    """From a run on narrow rows and one on wide ones."""
    rng = torch.Generator().manual_seed(0)
    cols = torch.randint(num_rows, (num_rows * degree,), generator=rng, dtype=torch.int32)
    offsets = torch.arange(num_rows + 1) * degree
    narrow, wide = (
        seconds(prepare(offsets, cols, width)) / cols.numel() for width in (NARROW, WIDE)
    )
    per_byte = max(wide - narrow, wide / 100) / (4 * (WIDE - NARROW))
    return EdgeRate(max(narrow - 4 * NARROW * per_byte, 0.0), per_byte)


def _sums(offsets: Tensor, cols: Tensor, width: int) -> Callable[[], object]:
    x = torch.randn(offsets.numel() - 1, width)
    out = torch.empty_like(x)
    return lambda: kernels.spmm(offsets[:-1], offsets[1:], cols, x, out, accumulate=False)


def _attention(
    offsets: Tensor, cols: Tensor, width: int, dropout: EdgeDropout | None = None
) -> Callable[[], object]:
    x, out = torch.randn(2, offsets.numel() - 1, width)
    logit, top, total = torch.randn(3, len(x), HEADS)
    return lambda: kernels.gat(
        offsets[:-1], offsets[1:], cols, x, logit, logit, out, top, total, slope=0.2,
        dropout=dropout, accumulate=False,
    )  # fmt: skip


def _gradient(
    offsets: Tensor, cols: Tensor, width: int, dropout: EdgeDropout | None = None
) -> Callable[[], object]:
    x, dout, dx = torch.randn(3, offsets.numel() - 1, width)
    logit, dsource, dtarget = torch.randn(3, len(x), HEADS)
    state = torch.rand(len(x), 4 * HEADS) + 1
    index = None if dropout is None else torch.randperm(cols.numel())
    return lambda: kernels.gat_grad(
        offsets[:-1], offsets[1:], cols, x, logit, state, dout, dx, dsource, dtarget, slope=0.2,
        index=index, dropout=dropout,
    )  # fmt: skip


def _dropped(run: Prepare) -> Prepare:
    def prepare(offsets: Tensor, cols: Tensor, width: int) -> Callable[[], object]:
        ids = torch.arange(cols.numel())
        return run(offsets, cols, width, dropout=EdgeDropout(ids, 0.5, 0, 0, 0))

    return prepare


KERNELS: dict[str, Prepare] = {
    SUMS: _sums, ATTENTION: _attention, ATTENTION_GRAD: _gradient,
    DROPPED: _dropped(_attention), DROPPED_GRAD: _dropped(_gradient),
}  # fmt: skip
