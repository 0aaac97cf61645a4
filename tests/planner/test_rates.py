"""Rates are measured on the kernels, and those that are given take their place."""

from __future__ import annotations

import pytest

from fullgraph.planner.rates import (
    ATTENTION,
    KERNELS,
    NOMINAL,
    EdgeRate,
    Rates,
    measure,
)


def test_every_rate_is_measured() -> None:
    rates = measure(num_rows=2048, degree=4, repeat=1)
    assert set(rates.edges) == set(KERNELS) == set(NOMINAL.edges)
    for rate in rates.edges.values():
        assert rate.per_edge >= 0
        assert rate.per_byte > 0
    assert min(rates.flops, rates.stream, rates.dropout, rates.call, rates.gather) > 0


def test_an_edge_costs_something_by_itself_and_for_its_row() -> None:
    assert EdgeRate(2.0, 0.5).seconds(3, 4) == 12.0


def test_given_rates_take_the_place_of_measured_ones() -> None:
    rates = NOMINAL.with_given(flops=1e12, gather=2 * NOMINAL.gather)
    assert rates.flops == 1e12
    assert rates.gather == pytest.approx(2 * NOMINAL.gather)
    assert rates.stream == pytest.approx(2 * NOMINAL.stream)
    assert rates.edges[ATTENTION].seconds(5, 64) == pytest.approx(
        NOMINAL.edges[ATTENTION].seconds(5, 64) / 2
    )
    assert NOMINAL.with_given(None, None) == NOMINAL


def test_workers_that_take_turns_are_slower_by_their_number() -> None:
    def seconds(rates: Rates) -> list[float]:
        edges = [rate.seconds(7, 100) for rate in rates.edges.values()]
        return [*edges, 1 / rates.flops, 1 / rates.stream, 1 / rates.dropout, rates.call]

    shared = seconds(NOMINAL.shared_by(4))
    assert shared == pytest.approx([4 * s for s in seconds(NOMINAL)])
    assert NOMINAL.shared_by(0.5) == NOMINAL
