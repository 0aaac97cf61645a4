"""Schedules: how the exchange of remote rows and the compute on them interleave."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """What a step holds of other ranks' rows, and for how long.

    Attributes:
        name: as it is given on the command line.
        prefetch: how many messages are under way while the one before them is worked on.
        remat: fetch remote rows again in the backward pass where it needs them, instead of
            keeping them.
        exact: whether results equal those of one process.
    """

    name: str
    prefetch: int
    remat: bool
    exact: bool = True

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def parse(text: str | Schedule) -> Schedule:
        """From "oneshot", "sequential" or "sequential:prefetch=2,remat=off".

        Raises ValueError for anything else.
        """
        if isinstance(text, Schedule):
            return text
        kind, _, rest = text.partition(":")
        options = dict(item.partition("=")[::2] for item in rest.split(",") if item)
        if kind == "oneshot" and not options:
            return oneshot()
        unknown = set(options) - {"prefetch", "remat"}
        prefetch, remat = options.get("prefetch", "1"), options.get("remat", "on")
        if kind == "sequential" and not unknown and prefetch.isdecimal() and remat in _SWITCH:
            return sequential(int(prefetch), _SWITCH[remat])
        raise ValueError(
            f"schedule must be 'oneshot', 'sequential' or 'sequential:prefetch=N,remat=on|off', "
            f"got {text!r}"
        )


_SWITCH = {"on": True, "off": False}


def sequential(prefetch: int = 1, remat: bool = True) -> Schedule:
    """One block at a time: fetch, aggregate, free; the next `prefetch` are under way meanwhile.

    SAR (arXiv 2111.06483), modes 1 and 2. Memory for remote rows: prefetch + 1 messages.
    """
    if prefetch < 0:
        raise ValueError(f"prefetch must be 0 or more, got {prefetch}")
    options = ([f"prefetch={prefetch}"] if prefetch != 1 else []) + ([] if remat else ["remat=off"])
    name = "sequential" + (":" + ",".join(options) if options else "")
    return Schedule(name, prefetch, remat)


def oneshot() -> Schedule:
    """Everything is sent at once, and worked on as it arrives. SAR mode 3; the usual halo
    exchange. Memory for remote rows: all of them."""
    return Schedule("oneshot", sys.maxsize, remat=False)
