"""PyG's models that work on labels: propagation without parameters, and labels as features.

As in `layers`, each class is its PyG module with an answer for a distributed graph, `convert` swaps
the classes, and on a plain `edge_index` PyG's code runs. Labels, masks and predictions are those of
the owned rows; an index in place of a mask counts a rank's own rows.

Letters: n owned rows, m of them labelled, E edges on this rank, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.nn.normalize import Normalized, gcn_normalized
from fullgraph.nn.rows import RowFunctions, is_running, outside_rows, running_graph
from fullgraph.ops.reduce import sum_over_ranks


class LabelPropagation(pyg.LabelPropagation):
    """Label propagation (arXiv 2010.13993): y ← clamp(α D^-1/2 A D^-1/2 y + (1 - α) y₀), K times.

    Without gradients. As in PyG, edge weights that are given are taken as they are, without
    normalisation. Classes y [n] become one column a class, as many as the largest label of all
    ranks asks for; an unknown label (-1) becomes a row of zeros.
    """

    fullgraph_layer: str

    @torch.no_grad()
    def forward(
        self, y: Tensor, edge_index: Any, mask: Tensor | None = None,
        edge_weight: Tensor | None = None, post_step: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        if not isinstance(edge_index, DistributedGraph):
            return super().forward(y, edge_index, mask, edge_weight, post_step)
        with _pass_over(edge_index):
            out = _start(y, mask, edge_index)
            if edge_weight is None:
                norm = gcn_normalized(edge_index, None, None, out.dtype)
            else:
                norm = Normalized(edge_index, edge_weight, None)
            rest = (1 - self.alpha) * out
            for _ in range(self.num_layers):
                out = norm.aggregate(out, "sum", self.fullgraph_layer) * self.alpha + rest
                out = out.clamp_(0.0, 1.0) if post_step is None else post_step(out)
        return out

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Nothing: PyG has prepared its class."""


class CorrectAndSmooth(pyg.CorrectAndSmooth):
    """Correct and Smooth (arXiv 2010.13993): the error on labelled rows is propagated and taken off
    the predictions, which are then propagated with the labels.

    ``y_soft`` [n, C], ``y_true`` [m] or [m, C], ``mask`` bool [n] or the index [m] of own rows.
    """

    def correct(
        self, y_soft: Tensor, y_true: Tensor, mask: Tensor, edge_index: Any,
        edge_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        graph = edge_index
        if not isinstance(graph, DistributedGraph):
            return super().correct(y_soft, y_true, mask, graph, edge_weight)
        with _pass_over(graph):
            wrong = _label_rows(y_true, mask, y_soft) - y_soft[mask]
            error = torch.zeros_like(y_soft).index_put((mask,), wrong)
            if not self.autoscale:
                smoothed = self.prop1(
                    error, graph, edge_weight=edge_weight,
                    post_step=lambda rows: rows.index_put_((mask,), wrong),
                )  # fmt: skip
                return y_soft + self.scale * smoothed
            smoothed = self.prop1(
                error, graph, edge_weight=edge_weight, post_step=lambda rows: rows.clamp_(-1, 1)
            )
            scale = _mean_size(wrong, graph.group) / smoothed.abs().sum(dim=1, keepdim=True)
            scale = scale.masked_fill(scale.isinf() | (scale > 1000), 1.0)
            return y_soft + scale * smoothed

    def smooth(
        self, y_soft: Tensor, y_true: Tensor, mask: Tensor, edge_index: Any,
        edge_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if not isinstance(edge_index, DistributedGraph):
            return super().smooth(y_soft, y_true, mask, edge_index, edge_weight)
        with _pass_over(edge_index):
            start = y_soft.index_put((mask,), _label_rows(y_true, mask, y_soft))
            return self.prop2(start, edge_index, edge_weight=edge_weight)


class MaskLabel(pyg.MaskLabel):
    """Labels as features (arXiv 2009.03509), row by row: embeddings of the labels of chosen rows
    are added to their features, or stand beside them."""

    @staticmethod
    def ratio_mask(mask: Tensor, ratio: float) -> Tensor:
        """`mask` with a share `ratio` of its rows, drawn at random.

        In a converted model's forward pass the draw goes by the nodes' ids, as dropout does, and is
        the same on any number of ranks. Outside of it, this is PyG's, with each rank's own draw.
        """
        if running_graph() is None:
            return pyg.MaskLabel.ratio_mask(mask, ratio)
        draw = torch.ones(mask.shape[0], 1, device=mask.device)
        return mask & (F.dropout(draw, p=1.0 - ratio) > 0).view(-1)


LABEL_MODELS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    pyg.LabelPropagation: LabelPropagation,
    pyg.CorrectAndSmooth: CorrectAndSmooth,
    pyg.MaskLabel: MaskLabel,
}


def check_propagation(layer: MessagePassing) -> str | None:
    """Why this label propagation cannot run on a distributed graph, or None."""
    if layer.aggr != "add" or layer.flow != "source_to_target":
        return f"aggr={layer.aggr!r} with flow={layer.flow!r}; it adds from source to target"
    return None


def _pass_over(graph: DistributedGraph) -> AbstractContextManager[Any]:
    """A forward pass over the graph, unless one is under way: these methods are called directly,
    too. There is no dropout in it, so nothing depends on its key."""
    return nullcontext() if is_running() else RowFunctions(graph, seed=0, step=0)


@outside_rows
def _start(y: Tensor, mask: Tensor | None, graph: DistributedGraph) -> Tensor:
    """[n, C]: what is propagated first, with zeros for the rows outside of the mask."""
    if y.shape[0] != graph.num_owned:
        raise ValueError(
            f"y must have a label for each of the {graph.num_owned} owned rows, got shape "
            f"{tuple(y.shape)}"
        )
    if _are_classes(y):
        y = y.reshape(-1)
        largest = y.new_zeros(graph.group.size)
        if y.numel():
            largest[graph.group.rank] = y.max() + 1
        graph.group.all_reduce(largest, "the number of classes")
        y = _one_hot(y, int(largest.max()), torch.get_default_dtype())
    elif not y.is_floating_point():
        y = y.to(torch.get_default_dtype())
    if mask is None:
        return y
    out = torch.zeros_like(y)
    out[mask] = y[mask]
    return out


def _are_classes(y: Tensor) -> bool:
    return y.dtype == torch.long and prod(y.shape[1:]) == 1


def _one_hot(classes: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    columns = torch.arange(num_classes, device=classes.device)
    return (classes.unsqueeze(1) == columns).to(dtype)


@outside_rows
def _label_rows(y_true: Tensor, mask: Tensor, like: Tensor) -> Tensor:
    """Labels [m] or [m, C] of the mask's rows, as rows [m, C] such as those of `like`."""
    count = int(mask.sum()) if mask.dtype == torch.bool else mask.shape[0]
    if y_true.shape[0] != count:
        raise ValueError(
            f"y_true must have a label for each of the {count} rows of the mask on this rank, got "
            f"shape {tuple(y_true.shape)}"
        )
    if not _are_classes(y_true):
        return y_true.to(like.dtype)
    num_classes = like.shape[1]
    if ((y_true < 0) | (y_true >= num_classes)).any():
        raise ValueError(
            f"y_true must be classes of 0 .. {num_classes - 1} (y_soft has {num_classes} columns), "
            f"got values of {int(y_true.min())} .. {int(y_true.max())}"
        )
    return _one_hot(y_true.reshape(-1), num_classes, like.dtype)


@outside_rows
def _mean_size(wrong: Tensor, group: Group) -> Tensor:
    """The mean, over the labelled rows of all ranks, of the sum of a row's absolute errors."""
    total = sum_over_ranks(wrong.abs().sum(), group)
    return total / sum_over_ranks(total.new_tensor(float(wrong.shape[0])), group)
