"""Schedules and placements as text: each reads what it writes, and refuses all else."""

from __future__ import annotations

import pytest

from fullgraph.comm.placement import Placement
from fullgraph.comm.schedule import Schedule


@pytest.mark.parametrize(
    "text", ["oneshot", "sequential", "sequential:prefetch=2,remat=off", "delayed:12", "local"]
)
def test_a_schedule_reads_what_it_writes(text: str) -> None:
    assert str(Schedule.parse(text)) == text


@pytest.mark.parametrize("number", ["", "0x2", "-1", "1.5", "²", "٣", "9" * 10, "9" * 5000])
def test_a_number_that_is_none_or_too_large_is_refused(number: str) -> None:
    for text in (f"delayed:{number}", f"sequential:prefetch={number}"):
        with pytest.raises(ValueError, match=r"schedule must be|'delayed:r' takes") as error:
            Schedule.parse(text)
        assert repr(text) in str(error.value)
    with pytest.raises(ValueError, match="placement must be") as error:
        Placement.parse(f"grid:{number}x2x2")
    assert number in str(error.value)
