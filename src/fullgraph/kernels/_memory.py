"""What the C library does with the memory of large tensors. Nothing here changes a result."""

from __future__ import annotations

import ctypes
import os
import sys

from torch import Tensor

LARGE_BYTES = 1 << 18
HUGE_PAGE = 2 << 20
M_MMAP_THRESHOLD, MADV_HUGEPAGE = -3, 14


def return_freed_memory() -> None:
    """Have glibc give the memory of a large tensor back to the system when the tensor is freed.

    Otherwise it keeps what is freed in pieces of up to 32 MiB, between others that are in use, so
    that a worker holds a quarter more than its tensors, the more so the more workers there are. A
    threshold of the user's own, in the environment, stays.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in tunables:
        return
    mallopt = _of_libc("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def in_huge_pages(new: Tensor) -> Tensor:
    """The same tensor, not written to so far; from now on the system may give it huge pages, which
    takes a fraction of the time where they are to be had."""
    if _madvise is None or type(new) is not Tensor or new.device.type != "cpu":  # fake ones, too
        return new
    start = -(-new.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    end = (new.data_ptr() + new.nbytes) // HUGE_PAGE * HUGE_PAGE
    if end > start:
        _madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_HUGEPAGE)
    return new


def _of_libc(name: str) -> ctypes._FuncPointer | None:
    """A function of the C library; None where it is another system's."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


_madvise = _of_libc("madvise")
