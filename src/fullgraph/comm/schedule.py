"""Schedules: how the exchange of remote rows and the compute on them interleave."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

EXACT = "'sequential', 'sequential:prefetch=N,remat=on|off' or 'oneshot'"


@dataclass(frozen=True)
class Schedule:
    """What a step holds of other ranks' rows, and for how long.

    Attributes:
        name: as it is given on the command line.
        prefetch: how many messages are under way while the one before them is worked on.
        remat: fetch remote rows again in the backward pass where it needs them, instead of
            keeping them.
        exact: whether results equal those of one process.
        period: of an approximate schedule, in how many training passes every remote row travels
            once; 0: remote rows never take part in training.
    """

    name: str
    prefetch: int
    remat: bool
    exact: bool = True
    period: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def holds_all(self) -> bool:
        """Whether all remote rows of a layer are held at once."""
        return self.prefetch == sys.maxsize

    @property
    def is_local(self) -> bool:
        """Whether remote rows take no part in training."""
        return not self.exact and self.period == 0

    @staticmethod
    def parse(text: str | Schedule) -> Schedule:
        """From "oneshot", "sequential", "sequential:prefetch=2,remat=off", "delayed:5", "local".

        Raises ValueError for anything else.
        """
        if isinstance(text, Schedule):
            return text
        kind, _, rest = text.partition(":")
        if text in _PLAIN:
            return _PLAIN[text]()
        if kind == "delayed":
            if _NUMBER.fullmatch(rest) and int(rest) > 0:
                return delayed(int(rest))
            raise ValueError(
                "schedule 'delayed:r' takes a whole number r of 1 or more, the number of epochs "
                f"in which every remote row travels once, as in 'delayed:5'; got {text!r}"
            )
        options = dict(item.partition("=")[::2] for item in rest.split(",") if item)
        unknown = set(options) - {"prefetch", "remat"}
        prefetch, remat = options.get("prefetch", "1"), options.get("remat", "on")
        fits = not unknown and _NUMBER.fullmatch(prefetch) and remat in _SWITCH
        if kind == "sequential" and fits:
            return sequential(int(prefetch), _SWITCH[remat])
        raise ValueError(
            f"schedule must be {EXACT}, or, approximately, 'delayed:r' or 'local'; got {text!r}"
        )


_SWITCH = {"on": True, "off": False}
_NUMBER = re.compile("[0-9]{1,9}")


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


def delayed(r: int) -> Schedule:
    """Approximate: a remote row travels once in r training passes, and is used stale in between.

    DistGNN's cd-r (arXiv 2104.06700). Rows belong to r bins by a hash of their node's id. The first
    pass is exact; each one after it sends the rows of one bin, which travel while the rank's own
    rows and the stale ones are worked on, and are used from the next pass on. So what is used is 1
    to r passes old. Gradients to remote rows go home in the same turns; their owner uses the last
    that came, those of this pass's bin included, which makes them 0 to r - 1 passes old. Under
    delayed(1), cd-1, all rows travel in every pass and arrive one late, as in PipeGCN
    (arXiv 2203.10428), and gradients in time. Partial results, of placements where edges live
    elsewhere than their targets, go in the same turns, and are used as they came last (cd-r on a
    vertex cut). Without gradients, or after `model.eval()`,
    nothing is. Memory for remote rows: all of them, for every layer, from one pass to the next.

    Raises ValueError unless r is 1 or more.
    """
    if isinstance(r, bool) or not isinstance(r, int) or r < 1:
        raise ValueError(f"delayed(r) takes a whole number r of 1 or more, got {r!r}")
    return Schedule(f"delayed:{r}", sys.maxsize, remat=False, exact=False, period=r)


def local() -> Schedule:
    """Approximate: edges between ranks are left out of training, where layers exchange nothing.

    DistGNN's 0c (arXiv 2104.06700). Degrees, and what is normalised by them, stay those of the
    whole graph; what a layer's own code counts, it counts over the edges that are left. Without
    gradients, or after `model.eval()`, all edges are there.
    """
    return Schedule("local", sys.maxsize, remat=False, exact=False, period=0)


_PLAIN = {"oneshot": oneshot, "sequential": sequential, "local": local}
