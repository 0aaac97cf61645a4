"""What the machine gives: the rates that a profile compares those of kernels with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fullgraph import kernels
from fullgraph.comm.group import Group

ROWS, COLUMNS, DEGREE, SQUARE, REPEAT = 1 << 18, 128, 32, 1024, 5


@dataclass(frozen=True)
class Peaks:
    """Of one rank while all ranks measure, as those of one machine share its memory.

    ``gather``: bytes a second of rows of 512 bytes that a sum reads at random from 128 MiB.
    ``stream``: bytes a second of a copy, read and written. ``flops``: operations a second of a
    product of float32 matrices, by the faster of torch's libraries.
    """

    gather: float
    stream: float
    flops: float

    def seconds(self, random: float, stream: float, flops: float) -> float:
        """The least that an operation of this cost takes: of memory, or of arithmetic."""
        return max(random / self.gather + stream / self.stream, flops / self.flops)


def measure(group: Group) -> Peaks:
    """Takes about half a second, with torch's number of threads. A collective."""
    rows = torch.ones(ROWS, COLUMNS)
    rng = torch.Generator().manual_seed(0)
    cols = torch.randint(ROWS, (ROWS // 4,), generator=rng, dtype=torch.int32)
    offsets = torch.arange(0, len(cols) + 1, DEGREE)
    out = torch.empty(len(offsets) - 1, COLUMNS)  # small enough for the cache
    square = torch.ones(SQUARE, SQUARE)

    def gather() -> None:
        kernels.spmm(offsets[:-1], offsets[1:], cols, rows, out, accumulate=False)

    def best(*runs: Callable[[], object]) -> float:
        group.all_reduce(torch.zeros(1), "the start of a measurement")
        times = []
        for run in runs * REPEAT:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)

    products: list[Callable[[], object]] = [lambda: square @ square]
    if torch.backends.mkldnn.is_available():  # another library; which is faster depends on the CPU
        linear = torch.ops.mkldnn._linear_pointwise
        products.append(lambda: linear(square, square, None, "none", [], ""))

    return Peaks(
        gather=cols.numel() * rows[0].nbytes / best(gather),
        stream=rows.nbytes / best(lambda: rows[: ROWS // 2].copy_(rows[ROWS // 2 :])),
        flops=2 * SQUARE**3 / best(*products),
    )
