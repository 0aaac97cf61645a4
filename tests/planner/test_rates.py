"""Rates are measured on the kernels, and those that are given take their place."""

from __future__ import annotations

import threading

import pytest
import torch

from fullgraph.planner import rates as module
from fullgraph.planner.rates import (
    ATTENTION,
    KERNELS,
    MANY,
    NOMINAL,
    Edges,
    EdgeWork,
    Rates,
    Stopwatch,
    measure,
    on_threads,
)

QUICK = Stopwatch(threads=1, num_rows=2048, num_edges=8192, repeat=1)


def test_every_rate_is_measured() -> None:
    rates = measure(QUICK)
    for kind in KERNELS:
        work = EdgeWork(kind, 40, 4, 2000, 3)
        assert min(rates.edge(work), NOMINAL.edge(work)) > 0
    assert min(rates.flops, rates.stream, rates.fresh, rates.dropout, rates.call, rates.step) > 0
    assert rates.gather > 0


def test_a_kernel_is_measured_once_for_blocks_of_about_the_size_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def attention(edges: Edges) -> object:
        made.append((edges.work, edges.offsets.numel() - 1, int(edges.cols.max())))
        return lambda: None

    monkeypatch.setitem(module.KERNELS, ATTENTION, attention)
    rates = measure(QUICK)
    with torch.device("meta"):  # as in a dry run
        for rows in (1900, 2048, 2200):
            rates.edges(7, EdgeWork(ATTENTION, 40, 4, rows, 7))
    rates.edge(EdgeWork(ATTENTION, 40, 1, 10**9, 1000))
    (work, num_ranges, last), (other, _, _) = made
    assert (work, num_ranges) == (EdgeWork(ATTENTION, 40, 4, 2048, 8), 1024)
    assert 2000 < last < 2048
    assert other == EdgeWork(ATTENTION, 40, 1, MANY, 64)


def test_other_workers_are_busy_while_the_clock_runs_and_gone_afterwards() -> None:
    before, during = threading.active_count(), []
    watch = Stopwatch(threads=1, others=2, repeat=1)
    watch.seconds(lambda: during.append(threading.active_count()))
    assert during == [before + 2] * 2
    assert threading.active_count() == before


def test_given_rates_take_the_place_of_measured_ones() -> None:
    rates = NOMINAL.with_given(flops=1e12, gather=2 * NOMINAL.gather)
    assert rates.flops == 1e12
    assert rates.gather == pytest.approx(2 * NOMINAL.gather)
    assert rates.stream == pytest.approx(2 * NOMINAL.stream)
    assert rates.fresh == pytest.approx(2 * NOMINAL.fresh)
    assert rates.dropout == pytest.approx(2 * NOMINAL.dropout)
    work = EdgeWork(ATTENTION, 16, 4)
    assert rates.edges(5, work) == pytest.approx(NOMINAL.edges(5, work) / 2)
    assert NOMINAL.with_given(None, None) == NOMINAL


def test_workers_that_take_turns_are_slower_by_their_number() -> None:
    def seconds(rates: Rates) -> list[float]:
        edges = [rates.edges(7, EdgeWork(kind, 25)) for kind in KERNELS]
        bytes_a_second = (rates.stream, rates.fresh, rates.dropout)
        return [
            *edges,
            1 / rates.flops,
            *(1 / rate for rate in bytes_a_second),
            rates.call,
            rates.step,
        ]

    shared = seconds(NOMINAL.shared_by(4))
    assert shared == pytest.approx([4 * s for s in seconds(NOMINAL)])
    assert NOMINAL.shared_by(0.5) == NOMINAL


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with on_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"), on_threads(0):
        pass
