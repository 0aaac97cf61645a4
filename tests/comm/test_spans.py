"""Named ranges: in the timeline where one is recorded, and nothing where none is."""

from __future__ import annotations

from contextlib import nullcontext

from torch.profiler import ProfilerActivity, profile

from fullgraph.comm.spans import span


def test_a_range_is_there_only_while_a_profiler_records() -> None:
    assert isinstance(span("before"), nullcontext)
    with profile(activities=[ProfilerActivity.CPU]) as recorded, span("during"):
        pass
    assert [event.name for event in recorded.events()] == ["during"]
