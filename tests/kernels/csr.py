"""Ugly edge ranges for kernel tests: empty rows, a huge row, gaps, an offset, a row map."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# What a result may differ by from a float64 reference, for rows of that dtype: sums have another
# order, over up to 100,000 numbers; float32 results of bfloat16 rows are as good as of float32.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5}
DTYPES = list(TOLERANCE)
WIDTHS = [0, 1, 3, 16, 64, 100, 257]


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


@dataclass
class Ranges:
    """D ranges over E edges whose columns are of col_offset .. col_offset + num_sources - 1."""

    begin: Tensor
    end: Tensor
    cols: Tensor
    rows: Tensor | None  # int32 [D], into num_rows rows
    num_rows: int
    num_sources: int
    col_offset: int

    @property
    def csr(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.begin, self.end, self.cols

    @property
    def place(self) -> dict[str, Tensor | int | None]:
        return {"rows": self.rows, "col_offset": self.col_offset}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ranges(kind: str, seed: int = 0) -> Ranges:
    g = generator(seed)
    num_sources = 50
    sizes = torch.randint(0, 9, (300,), generator=g)
    sizes[torch.rand(300, generator=g) < 0.3] = 0
    if kind == "huge":
        sizes = sizes[:40]
        sizes[7] = 100_003
    elif kind == "no ranges":
        sizes = sizes[:0]
    elif kind == "no edges":
        sizes[:] = 0
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    begin, end = offsets[:-1], offsets[1:]
    cols = torch.randint(0, num_sources, (int(offsets[-1]),), generator=g, dtype=torch.int32)
    rows, num_rows, col_offset = None, len(sizes), 0
    if kind == "chunk":  # of a longer list: parts of the rows, columns from another range
        keep = (end - begin) // 2
        begin, end = begin + keep // 2, begin + keep // 2 + keep
        col_offset = 1000
        inside = torch.zeros(len(cols), dtype=torch.bool)
        for b, e in zip(begin.tolist(), end.tolist()):
            inside[b:e] = True
        cols = torch.where(inside, cols + col_offset, 2**31 - 1)  # unused ones are no rows at all
        num_rows = 400
        rows = torch.randperm(num_rows, generator=g)[: len(sizes)].to(torch.int32)
    return Ranges(begin, end, cols, rows, num_rows, num_sources, col_offset)


# (kind, number of columns): each kind of rows, each width of tiles
CASES = [
    *((kind, width) for kind in ("plain", "chunk") for width in WIDTHS),
    *((kind, width) for kind in ("no ranges", "no edges") for width in (0, 16)),
    *(("huge", width) for width in (3, 100)),
]


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed)).to(dtype)


def few_values(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Small integers over 4, so that maxima tie and products are exact in every dtype."""
    return (torch.randint(-3, 4, shape, generator=generator(seed)) / 4).to(dtype)


_written: dict[Any, list[tuple[int, Tensor]]] = {}


def run_reference(function: Callable[..., None], *args: Any) -> None:
    """`function(*args)`, which takes long and writes the same on every instruction set: it runs
    once for arguments of the same contents."""
    key = (function, *(_content(arg) for arg in args))
    if key in _written:
        for k, result in _written[key]:
            args[k].copy_(result)
        return
    before = [arg._version if isinstance(arg, Tensor) else 0 for arg in args]
    function(*args)
    _written[key] = [
        (k, arg.clone())
        for k, (arg, version) in enumerate(zip(args, before))
        if isinstance(arg, Tensor) and arg._version != version
    ]


def _content(arg: Any) -> Any:
    if not isinstance(arg, Tensor):
        return arg
    content = hashlib.sha256(arg.contiguous().numpy().tobytes()).digest()
    return arg.dtype, arg.shape, content
