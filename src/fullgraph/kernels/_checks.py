"""Checks of kernel arguments: cheap ones before every call, the expensive one when asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.kernels.reference import edges_of

# dtype of rows that are read → dtype of sums over them
SUM_DTYPE = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bfloat16: torch.float32,
}


def check(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...], like: Tensor
) -> None:
    """ValueError naming the argument unless it has this dtype and shape (None: any size), is
    contiguous, and is on the device of `like`."""
    fits = tensor.dim() == len(shape) and all(
        want is None or want == got for want, got in zip(shape, tensor.shape)
    )
    if tensor.dtype != dtype or not fits:
        want = "[" + ", ".join("*" if n is None else str(n) for n in shape) + "]"
        raise ValueError(
            f"{name} must be {short(dtype)} of shape {want}, "
            f"got {short(tensor.dtype)} {list(tensor.shape)}"
        )
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
    if tensor.device != like.device:
        raise ValueError(f"{name} is on {tensor.device}, the other arguments on {like.device}")


def check_ends(src: Tensor, dst: Tensor) -> None:
    """ValueError unless these, both ends of edges, are int32 or int64 [E], alike, on the CPU."""
    if src.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"src must be int32 or int64, got {short(src.dtype)}")
    cpu = torch.empty(0)
    check("src", src, src.dtype, (None,), cpu)
    check("dst", dst, src.dtype, tuple(src.shape), cpu)


def check_rows(name: str, x: Tensor) -> torch.dtype:
    """The dtype of sums over the rows x; ValueError unless x is [*, F] in a supported dtype."""
    if x.dtype not in SUM_DTYPE:
        raise ValueError(f"{name} must be float32, float64 or bfloat16, got {short(x.dtype)}")
    check(name, x, x.dtype, (None, None), x)
    return SUM_DTYPE[x.dtype]


def check_ranges(
    begin: Tensor, end: Tensor, cols: Tensor, rows: Tensor | None, like: Tensor, num_out: int | None
) -> None:
    """num_out: rows of the output that `rows`, or the ranges themselves, map to; None: no check."""
    check("begin", begin, torch.int64, (None,), like)
    check("end", end, torch.int64, (begin.shape[0],), like)
    check("cols", cols, torch.int32, (None,), like)
    if rows is not None:
        check("rows", rows, torch.int32, (begin.shape[0],), like)
    elif num_out is not None and begin.shape[0] > num_out:
        raise ValueError(
            f"begin has {begin.shape[0]} rows, but the output has {num_out}; pass rows to say "
            "which of its rows they are"
        )


def check_weights(
    weight: Tensor | None, weight_index: Tensor | None, cols: Tensor, dtype: torch.dtype,
    like: Tensor,
) -> None:  # fmt: skip
    if weight is None:
        if weight_index is not None:
            raise ValueError("weight_index is given without weight")
        return
    if weight_index is None:
        check("weight", weight, dtype, (cols.shape[0],), like)
    else:
        check("weight", weight, dtype, (None,), like)
        check("weight_index", weight_index, torch.int64, (cols.shape[0],), like)


def validate_csr(
    begin: Tensor, end: Tensor, cols: Tensor, num_sources: int, *, col_offset: int = 0,
    rows: Tensor | None = None, num_rows: int | None = None,
) -> None:  # fmt: skip
    """Look at every index: ValueError naming the first that kernels must not be given.

    Kernels do not check this: they would read or write other memory. Ranges must lie within cols;
    columns within the ranges must be of col_offset .. col_offset + num_sources - 1; rows, if
    given, distinct and of 0 .. num_rows - 1.
    """
    check_ranges(begin, end, cols, rows, begin, None)
    if (i := _first((begin < 0) | (end < begin) | (end > len(cols)))) is not None:
        raise ValueError(
            f"range {i} has the edges {int(begin[i])} .. {int(end[i])} of {len(cols)} edges"
        )
    stop = col_offset + num_sources
    bad = (cols < col_offset) | (cols >= stop)
    if bad.any():  # it matters only if a range has it
        _, e = edges_of(begin, end)
        if (at := _first(bad[e])) is not None:
            at = int(e[at])
            raise ValueError(
                f"cols[{at}] is {int(cols[at])}, outside of {col_offset} .. {stop - 1}"
            )
    if rows is None:
        return
    if num_rows is None:
        raise ValueError("num_rows is needed to check rows")
    if (i := _first((rows < 0) | (rows >= num_rows))) is not None:
        raise ValueError(f"rows[{i}] is {int(rows[i])}, outside of 0 .. {num_rows - 1}")
    values, counts = rows.unique(return_counts=True)
    if (i := _first(counts > 1)) is not None:
        raise ValueError(f"rows has {int(values[i])} more than once; rows must be distinct")


def _first(bad: Tensor) -> int | None:
    return int(bad.nonzero()[0, 0]) if bad.any() else None


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
