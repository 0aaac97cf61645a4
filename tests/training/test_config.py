"""The configuration of a run, from JSON that anybody may have written."""

from __future__ import annotations

from typing import Any

import pytest

from fullgraph.training.config import GraphOptions, RunConfig

GOOD = RunConfig(GraphOptions("a.npz", parts=3)).to_json()


def test_whole_numbers_do_for_others() -> None:
    changed = {**GOOD, "timeout": 5, "training": {**GOOD["training"], "lr": 1}}
    config = RunConfig.from_json(changed)
    assert (config.timeout, config.training.lr) == (5.0, 1.0)
    assert isinstance(config.training.lr, float)
    config.validate()


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        (None, "workers", "2"),
        (None, "workers", True),
        (None, "workers", None),
        (None, "exact", 1),
        (None, "schedule", ["oneshot"]),
        (None, "placement", 5),
        (None, "timeout", 10**400),
        (None, "graph", []),
        (None, "model", None),
        ("graph", "source", None),
        ("graph", "parts", 1.5),
        ("model", "layers", 2.0),
        ("training", "lr", "0.01"),
        ("training", "epochs", {}),
    ],
)
def test_a_value_of_another_kind_is_refused(part: str | None, name: str, value: Any) -> None:
    content = {**GOOD, name: value} if part is None else {**GOOD, part: {**GOOD[part], name: value}}
    with pytest.raises(ValueError, match="not the configuration of a run"):
        RunConfig.from_json(content)


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), 1e9, -1.0])
def test_no_wait_is_for_ever(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be positive"):
        RunConfig(GraphOptions("a.npz"), timeout=timeout).validate()
