"""Quantities as people write them ("16GB", "10Gbps", "50us"), and back."""

from __future__ import annotations

import math
import re

PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}

_BYTES = {prefix + "B": size for prefix, size in {**PREFIXES, **BINARY}.items()}
_RATES = {unit + "/s": size for unit, size in _BYTES.items()}
_BITS = {prefix + "bps": size / 8 for prefix, size in PREFIXES.items()}
_FLOPS = {prefix + "FLOPS": size for prefix, size in PREFIXES.items()}


def parse_bytes(text: str, name: str) -> float:
    """From "16GB" (10⁹) or "16GiB" (2³⁰). Raises ValueError naming `name`, as all here do."""
    return _parse(text, name, _BYTES, "16GB or 16GiB")


def parse_rate(text: str, name: str) -> float:
    """Bytes a second, from "10Gbps" (bits) or "1.2GB/s" (bytes)."""
    return _parse(text, name, {**_BITS, **_RATES}, "10Gbps or 1.2GB/s")


def parse_seconds(text: str, name: str) -> float:
    """From "50us", "1ms" or "2s"; 0 is allowed."""
    return _parse(text, name, SECONDS, "50us or 1ms", zero=True)


def parse_flops(text: str, name: str) -> float:
    """Operations a second, from "500GFLOPS"."""
    return _parse(text, name, _FLOPS, "500GFLOPS or 2TFLOPS")


def _parse(
    text: str, name: str, units: dict[str, float], example: str, zero: bool = False
) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([A-Za-zµ/]+)", text.strip())
    if found is None or found[2] not in units:
        what = "has no unit" if re.fullmatch(r"[\d.e+-]+", text.strip()) else "is not understood"
        raise ValueError(f"{name} {text!r} {what}; write it as {example} (units: {_list(units)})")
    value = float(found[1]) * units[found[2]]
    if not zero and value <= 0:
        raise ValueError(f"{name} must be more than 0, got {text!r}")
    if math.isinf(value):
        raise ValueError(f"{name} must be finite, got {text!r}")
    return value


def _list(units: dict[str, float]) -> str:
    return ", ".join(units)


def show_bytes(count: float) -> str:
    """Three figures: "1.23 GB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def show_seconds(seconds: float) -> str:
    """Three figures: "12.3 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
