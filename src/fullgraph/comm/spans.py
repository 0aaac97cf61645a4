"""Named ranges of exchanges in the timeline of a profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

WAITING, EXCHANGE = "wait: ", "exchange: "  # how the names of ranges begin


def span(name: str) -> AbstractContextManager[object]:
    """A range of this name where torch.profiler is recording; nothing otherwise."""
    if torch.autograd.profiler._is_profiler_enabled:
        return torch.autograd.profiler.record_function(name)
    return nullcontext()
