"""Kernels over rows: gathering, adding back, dropout. Checks, then the op."""

from __future__ import annotations

import torch
from torch import Tensor

from fullgraph.kernels import _ops
from fullgraph.kernels._checks import check, check_rows

MAX_LAYER = 2**16


def gather_rows(x: Tensor, index: Tensor, out: Tensor) -> None:
    """out[i] = x[index[i]].

    Args:
        x: [S, F] of any dtype. index: int32 [D]. out: [D, F] in the dtype of x, or bfloat16 for
            x in float32, to which rows are then rounded.
    """
    check("x", x, x.dtype, (None, None), x)
    check("index", index, torch.int32, (None,), x)
    rounded = x.dtype == torch.float32 and out.dtype == torch.bfloat16
    check("out", out, out.dtype if rounded else x.dtype, (index.shape[0], x.shape[1]), x)
    _ops.gather_rows(x, index, out)


def scatter_add_rows(out: Tensor, index: Tensor, x: Tensor) -> None:
    """out[index[i]] += x[i]. out: [S, F]; index: int32 [D], distinct; x: [D, F] in its dtype."""
    check_rows("out", out)
    check("index", index, torch.int32, (None,), out)
    check("x", x, out.dtype, (index.shape[0], out.shape[1]), out)
    _ops.scatter_add_rows(out, index, x)


def dropout(
    x: Tensor, ids: Tensor, out: Tensor, *, p: float, seed: int, step: int, layer: int
) -> None:
    """out = x / (1 - p) where column c of the row with id ids[i] is kept, else 0.

    The draw of (seed, step, layer, id, column) is a word of Philox4x32-10 (Salmon et al., SC 2011;
    see csrc/dropout.h), and an element is kept when it is at least p · 2³². out may be x.

    Args:
        x, out: [D, F] or [D], which is one column; same dtype. ids: int64 [D], each of
            0 .. 2⁴⁸ - 1.
        p: 0 copies, 1 gives zeros.
        seed: its low 64 bits are used; step: its low 32 bits; layer: of 0 .. 65535.
    """
    if x.dim() == 1 and out.shape == x.shape:
        x, out = x.unsqueeze(1), out.unsqueeze(1)
    check_rows("x", x)
    check("ids", ids, torch.int64, (x.shape[0],), x)
    check("out", out, x.dtype, tuple(x.shape), x)
    if not 0 <= p <= 1:
        raise ValueError(f"p must be between 0 and 1, got {p}")
    if not 0 <= layer < MAX_LAYER:
        raise ValueError(f"layer must be of 0 .. {MAX_LAYER - 1}, got {layer}")
    signed = (seed + 2**63) % 2**64 - 2**63  # which is what ops take
    _ops.dropout(x, ids, out, float(p), signed, step % 2**32, layer)
