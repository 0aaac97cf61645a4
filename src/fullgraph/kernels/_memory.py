"""What the C library does with the memory of large tensors. Nothing here changes a result."""

from __future__ import annotations

import ctypes
import os
import sys

LARGE_BYTES = 1 << 18
M_MMAP_THRESHOLD = -3


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


def _of_libc(name: str) -> ctypes._FuncPointer | None:
    """A function of the C library; None where it is another system's."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
