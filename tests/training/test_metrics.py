"""Metrics over all ranks, against plain counting on the whole of the rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fullgraph.comm.group import Group
from fullgraph.training.metrics import METRICS, accuracy, f1, roc_auc
from tests.ranks import run_ranks


def _rows(classes: int, n: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs with ties, labels of which some are unknown, a mask."""
    g = torch.Generator().manual_seed(classes)
    out = torch.randint(5, (n, classes), generator=g).double()
    y = torch.randint(-1, classes, (n,), generator=g)
    return out, y, torch.rand(n, generator=g) < 0.7


def _share(group: Group, rows: Tensor) -> Tensor:
    """Uneven shares; the last of several ranks has no row at all."""
    if group.size == 1:
        return rows
    bounds = [0, 7, 40, rows.shape[0], rows.shape[0]]
    bounds = [*bounds[: group.size - 1], rows.shape[0], rows.shape[0]]
    return rows[bounds[group.rank] : bounds[group.rank + 1]]


def _measure(group: Group, metric: str, classes: int) -> float:
    out, y, mask = (_share(group, rows) for rows in _rows(classes))
    return METRICS[metric](out, y, mask, group=group)


def plain_accuracy(pairs: list[tuple[list[float], int]]) -> float:
    right = [max(range(len(out)), key=out.__getitem__) == label for out, label in pairs]
    return sum(right) / len(right)


def plain_f1_macro(pairs: list[tuple[list[float], int]]) -> float:
    predicted = [max(range(len(out)), key=out.__getitem__) for out, _ in pairs]
    labels = [label for _, label in pairs]
    scores = []
    for c in set(predicted) | set(labels):
        hits = sum(p == label == c for p, label in zip(predicted, labels))
        scores.append(2 * hits / (predicted.count(c) + labels.count(c)))
    return sum(scores) / len(scores)


def plain_roc_auc(pairs: list[tuple[list[float], int]]) -> float:
    ones = [out[1] - out[0] for out, label in pairs if label == 1]
    zeros = [out[1] - out[0] for out, label in pairs if label == 0]
    wins = sum((a > b) + 0.5 * (a == b) for a in ones for b in zeros)
    return wins / (len(ones) * len(zeros))


PLAIN = {
    "accuracy": plain_accuracy,
    "f1_micro": plain_accuracy,
    "f1_macro": plain_f1_macro,
    "roc_auc": plain_roc_auc,
}


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("metric", list(METRICS))
def test_metrics_match_plain_counting_on_any_number_of_ranks(metric: str, size: int) -> None:
    classes = 2 if metric == "roc_auc" else 4
    out, y, mask = _rows(classes)
    counted = [
        (row.tolist(), int(label)) for row, label, on in zip(out, y, mask) if on and label != -1
    ]
    expected = PLAIN[metric](counted)
    assert run_ranks(_measure, size, metric, classes) == pytest.approx([expected] * size, abs=1e-12)


def test_unknown_labels_never_count_even_without_a_mask() -> None:
    out = torch.tensor([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0]])
    y = torch.tensor([0, -1, 0])
    assert accuracy(out, y) == 0.5
    assert roc_auc(torch.tensor([3.0, 9.0, 1.0]), torch.tensor([1, -1, 0])) == 1.0


@pytest.mark.parametrize("metric", list(METRICS))
def test_nothing_labelled_anywhere_gives_nan(metric: str) -> None:
    out, y = torch.rand(3, 2), torch.tensor([0, 1, 0])
    assert math.isnan(METRICS[metric](out, y, torch.zeros(3, dtype=torch.bool)))
    assert math.isnan(METRICS[metric](out[:0], y[:0]))


def test_a_single_class_has_no_roc_auc() -> None:
    assert math.isnan(roc_auc(torch.rand(4), torch.ones(4, dtype=torch.int64)))


def test_mistakes_are_named() -> None:
    out, y = torch.rand(3, 3), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="roc_auc takes out of shape"):
        roc_auc(out, y)
    with pytest.raises(ValueError, match="roc_auc takes classes 0 and 1, got 2"):
        roc_auc(out[:, :2], y)
    with pytest.raises(ValueError, match=r"out must have 2 rows, as y does, got shape \[3, 3\]"):
        accuracy(out, y[:2])
    with pytest.raises(ValueError, match=r"mask must be bool of shape \[3\], got torch.int64"):
        accuracy(out, y, y)
    with pytest.raises(ValueError, match="y must hold a class for each row"):
        accuracy(out, out)
    with pytest.raises(ValueError, match="average must be"):
        f1(out, y, average="weighted")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="y has class 2, but out has only 2 columns"):
        f1(out[:, :2], y)
