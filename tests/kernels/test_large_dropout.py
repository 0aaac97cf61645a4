"""Dropout of more than 2³¹ elements, all of which it goes through: one piece of memory, in many
places one after the other, so that they take no more than that. On one instruction set alone."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile

import pytest
import torch
from torch import Tensor

from fullgraph import kernels
from tests.kernels.csr import generator

ROWS, F, TIMES = 3 << 17, 64, 86  # of the piece, 48 MiB in bfloat16, by which 2³² does not divide
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000


def repeated(piece: Tensor, times: int) -> Tensor:
    """The rows of `piece` so many times, in the same memory; never given back."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = piece.nbytes
    assert size % mmap.PAGESIZE == 0
    reserve = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    start = libc.mmap(None, size * times, 0, reserve, -1, 0)
    with tempfile.TemporaryFile() as file:
        file.write(piece.view(torch.uint8).numpy().tobytes())
        file.flush()
        for i in range(times):
            place = libc.mmap(
                start + i * size, size, mmap.PROT_READ | mmap.PROT_WRITE,
                mmap.MAP_SHARED | MAP_FIXED, file.fileno(), 0,
            )  # fmt: skip
            assert place == start + i * size, os.strerror(ctypes.get_errno())
    memory = (ctypes.c_uint8 * (size * times)).from_address(start)
    flat = torch.frombuffer(memory, dtype=piece.dtype)
    return flat.view(len(piece) * times, *piece.shape[1:])


@pytest.mark.slow
def test_dropout_of_more_than_2_31_elements_is_that_of_its_rows() -> None:
    x = torch.ones(ROWS, F, dtype=torch.bfloat16)
    ids = torch.randint(2**48, (ROWS,), generator=generator())
    args = {"p": 0.5, "seed": 1, "step": 2, "layer": 3}
    expected = torch.empty_like(x)
    kernels.dropout(x, ids, expected, **args)
    out = repeated(torch.zeros_like(x), TIMES)
    assert out.numel() > 2**31
    kernels.dropout(repeated(x, TIMES), repeated(ids, TIMES), out, **args)
    assert torch.equal(out[-ROWS:], expected)
