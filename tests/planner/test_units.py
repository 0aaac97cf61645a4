"""Quantities are read strictly, and shown in three figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fullgraph.planner import units


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.parse_bytes, "16GB", 16e9),
        (units.parse_bytes, "16 GiB", 16 * 2**30),
        (units.parse_bytes, "1.5e3MB", 1.5e9),
        (units.parse_rate, "10Gbps", 1.25e9),
        (units.parse_rate, "1.2GB/s", 1.2e9),
        (units.parse_rate, "100Mbps", 1.25e7),
        (units.parse_seconds, "50us", 5e-5),
        (units.parse_seconds, "50µs", 5e-5),
        (units.parse_seconds, "0s", 0.0),
        (units.parse_flops, "2TFLOPS", 2e12),
    ],
)
def test_quantities_are_read(
    read: Callable[[str, str], float], text: str, value: float
) -> None:  # fmt: skip
    assert read(text, "--x") == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (units.parse_bytes, "16", "--x '16' has no unit; write it as 16GB or 16GiB"),
        (units.parse_bytes, "16G", "--x '16G' is not understood"),
        (units.parse_bytes, "16Gb", "--x '16Gb' is not understood"),
        (units.parse_bytes, "-1GB", "--x '-1GB' is not understood"),
        (units.parse_bytes, "0GB", "--x must be more than 0, got '0GB'"),
        (units.parse_bytes, "1e309B", "--x must be finite, got '1e309B'"),
        (units.parse_bytes, "10Gbps", "units: B, kB, KB, MB"),
        (units.parse_rate, "10GB", "write it as 10Gbps or 1.2GB/s"),
        (units.parse_rate, "fast", "--x 'fast' is not understood"),
        (units.parse_seconds, "50", "--x '50' has no unit; write it as 50us or 1ms"),
        (units.parse_seconds, "5min", "is not understood"),
        (units.parse_flops, "500G", "write it as 500GFLOPS"),
    ],
)
def test_what_is_no_quantity_is_named_with_what_would_be(
    read: Callable[[str, str], float], text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(text, "--x")


def test_bytes_and_seconds_are_shown_in_three_figures() -> None:
    shown = [units.show_bytes(n) for n in (0, 999, 1234, 999_999, 16e9)]
    assert shown == ["0 B", "999 B", "1.23 kB", "1 MB", "16 GB"]
    assert [units.show_seconds(t) for t in (0.0, 5e-5, 0.0123, 61.24)] == [
        "0 us", "50 us", "12.3 ms", "61.2 s",
    ]  # fmt: skip
