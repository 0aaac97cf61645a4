"""The account of a step: nothing is counted twice, and exchanges tell where they wait."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from fullgraph.comm.spans import EXCHANGE, WAITING, span
from fullgraph.training.account import Account, short


def test_what_happens_in_a_range_of_an_exchange_is_part_of_it() -> None:
    x = torch.rand(3, 4)
    with (
        profile(activities=[ProfilerActivity.CPU]),
        Account() as account,
        torch.autograd.profiler.record_function("mine"),
    ):
        x + 1
        with span(f"{EXCHANGE}posting"):
            x.mul(2)
        with span(f"{WAITING}receiving 7 rows from rank 3 in the forward pass of layer 'a.b'"):
            pass
    found = {name: (tally.family, tally.calls) for name, tally in account.tallies.items()}
    assert found == {
        "add": ("elementwise", 1),
        "exchange: posting": ("exchange", 1),
        "wait: receiving a.b, forward": ("waiting", 1),
    }
    assert account.allocated == x.nbytes
    assert all(tally.seconds > 0 for tally in account.tallies.values())


def test_other_waits_keep_their_names() -> None:
    assert short("wait: all-reduce of the loss") == "wait: all-reduce of the loss"
