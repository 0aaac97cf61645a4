"""Metrics over the labelled rows of all ranks; every rank gets the same number.

A row counts where the mask is True and the label is not -1 (unknown). Where no rank has a row
that counts, a metric is nan: an empty split is not an error.

Letters: n owned rows, C classes, K rows that count, on all ranks together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fullgraph.comm.group import Group

NAN = float("nan")


def accuracy(
    out: Tensor, y: Tensor, mask: Tensor | None = None, *, group: Group | None = None
) -> float:
    """The share of rows whose largest output is that of their class.

    Args:
        out: [n, C] logits or probabilities of the owned rows; of equal largest ones, the first.
        y: [n] classes, -1 where unknown.
        mask: bool [n], the rows that count; all labelled rows without.
        group: by default the default group of torch.distributed.
    """
    out, y = _counted(out, y, mask)
    right = out.argmax(dim=1) == y if y.numel() else y.new_zeros(0)
    counts = torch.tensor([float(right.sum()), float(y.numel())], dtype=torch.float64)
    right_rows, rows = Group.of(group).all_reduce(counts, "accuracy").tolist()
    return right_rows / rows if rows else NAN


def f1(
    out: Tensor, y: Tensor, mask: Tensor | None = None,
    average: Literal["micro", "macro"] = "micro", *, group: Group | None = None,
) -> float:  # fmt: skip
    """F1, the harmonic mean of precision and recall.

    "micro" counts over all classes at once, which for one class a row is the accuracy. "macro" is
    the mean over the classes that occur among labels or predictions. Args as of `accuracy`.
    """
    if average not in ("micro", "macro"):
        raise ValueError(f"average must be 'micro' or 'macro', got {average!r}")
    out, y = _counted(out, y, mask)
    num_classes = out.shape[1]
    if y.numel() and int(y.max()) >= num_classes:
        raise ValueError(f"y has class {int(y.max())}, but out has only {num_classes} columns")
    predicted = out.argmax(dim=1) if y.numel() else y
    counts = torch.stack([
        torch.bincount(which, minlength=num_classes)
        for which in (y[predicted == y], y, predicted)
    ]).double()  # fmt: skip
    hits, labels, predictions = Group.of(group).all_reduce(counts, "F1")
    if average == "micro":
        hits, labels, predictions = hits.sum(), labels.sum(), predictions.sum()
    score = 2 * hits / (labels + predictions)  # nan where the class does not occur at all
    return float(score.nanmean())


def roc_auc(
    out: Tensor, y: Tensor, mask: Tensor | None = None, *, group: Group | None = None
) -> float:
    """Area under the ROC curve of a binary classifier: the chance that a row of class 1 scores
    higher than one of class 0, ties counting half. Exact: every rank gathers all K scores.

    nan when one of the classes has no row.

    Args:
        out: [n, 2] logits or probabilities, whose difference is the score; or scores [n], [n, 1].
        y: [n] of 0 and 1, -1 where unknown.
        mask, group: as of `accuracy`.

    Raises:
        ValueError: `out` has another shape, or `y` another class.
    """
    if out.dim() == 2 and out.shape[1] == 2:
        score = out[:, 1].double() - out[:, 0].double()
    elif out.dim() == 1 or (out.dim() == 2 and out.shape[1] == 1):
        score = out.reshape(-1).double()
    else:
        raise ValueError(f"roc_auc takes out of shape [n, 2], [n, 1] or [n], got {_shape(out)}")
    score, y = _counted(score, y, mask)
    pairs = torch.stack([score.detach(), y.double()], dim=1).cpu()
    pairs = torch.cat(Group.of(group).all_gather(pairs, "ROC AUC"))
    score, label = pairs[:, 0], pairs[:, 1]
    if (label > 1).any():
        raise ValueError(f"roc_auc takes classes 0 and 1, got {int(label.max())}")
    return _rank_statistic(score, label == 1)


def _rank_statistic(score: Tensor, positive: Tensor) -> float:
    """Mann and Whitney's U over the number of pairs; score [K] float64, positive bool [K]."""
    num_positive = int(positive.sum())
    num_negative = positive.numel() - num_positive
    if num_positive == 0 or num_negative == 0 or score.isnan().any():
        return NAN
    _, place, count = torch.unique(score, return_inverse=True, return_counts=True)
    rank = count.cumsum(0) - (count - 1) / 2  # the mean rank of equal scores, from 1
    above = float(rank.double()[place][positive].sum()) - num_positive * (num_positive + 1) / 2
    return above / (num_positive * num_negative)


METRICS: dict[str, Callable[..., float]] = {
    "accuracy": accuracy,
    "f1_micro": f1,
    "f1_macro": lambda out, y, mask=None, *, group=None: f1(out, y, mask, "macro", group=group),
    "roc_auc": roc_auc,
}


def _counted(out: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rows that count, checked: out [K_rank, ...] and y [K_rank]."""
    if y.dim() != 1 or y.is_floating_point():
        raise ValueError(f"y must hold a class for each row, shape [n], got {y.dtype} {_shape(y)}")
    if out.shape[:1] != y.shape:
        raise ValueError(f"out must have {y.numel()} rows, as y does, got shape {_shape(out)}")
    if mask is None:
        mask = torch.ones_like(y, dtype=torch.bool)
    if mask.dtype != torch.bool or mask.shape != y.shape:
        raise ValueError(f"mask must be bool of shape {_shape(y)}, got {mask.dtype} {_shape(mask)}")
    chosen = mask & (y != -1)
    return out[chosen], y[chosen]


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)
