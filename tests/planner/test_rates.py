"""Rates are measured on the kernels, and those that are given take their place."""

from __future__ import annotations

import threading

import pytest
import torch

from fullgraph.planner import rates as module
from fullgraph.planner.rates import (
    ATTENTION,
    KERNELS,
    NOMINAL,
    Rates,
    Stopwatch,
    measure,
    on_threads,
)

QUICK = Stopwatch(threads=1, num_rows=2048, degree=4, repeat=1)


def test_every_rate_is_measured() -> None:
    rates = measure(QUICK)
    assert min(rates.edge(kind, 40, 4) for kind in KERNELS) > 0
    assert min(NOMINAL.edge(kind, 40, 4) for kind in KERNELS) > 0
    assert min(rates.flops, rates.stream, rates.fresh, rates.dropout, rates.call) > 0
    assert rates.gather > 0


def test_a_kernel_is_measured_once_with_the_columns_and_heads_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def attention(offsets: object, cols: object, columns: int, heads: int) -> object:
        made.append((columns, heads))
        return lambda: None

    monkeypatch.setitem(module.KERNELS, ATTENTION, attention)
    rates = measure(QUICK)
    with torch.device("meta"):  # as in a dry run
        seconds = {rates.edges(ATTENTION, count, 40, 4) / count for count in (1, 2, 4)}
    rates.edge(ATTENTION, 40, 1)
    assert len(seconds) == 1
    assert made == [(40, 4), (40, 1)]


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
    assert rates.edges(ATTENTION, 5, 16, 4) == pytest.approx(
        NOMINAL.edges(ATTENTION, 5, 16, 4) / 2
    )  # fmt: skip
    assert NOMINAL.with_given(None, None) == NOMINAL


def test_workers_that_take_turns_are_slower_by_their_number() -> None:
    def seconds(rates: Rates) -> list[float]:
        edges = [rates.edges(kind, 7, 25, 1) for kind in KERNELS]
        bytes_a_second = (rates.stream, rates.fresh, rates.dropout)
        return [*edges, 1 / rates.flops, *(1 / rate for rate in bytes_a_second), rates.call]

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
