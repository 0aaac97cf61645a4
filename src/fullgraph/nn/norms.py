"""PyG's normalisation layers with the statistics of all nodes, not of one rank's.

Each class here is its PyG module with a `forward` for the time when a converted model runs on a
distributed graph, which it asks for (`running_graph`), being given rows only. At any other time it
runs PyG's code. `convert` swaps the classes; nobody constructs these. Variances are means of
squares of centred rows, which stay exact where the mean is far from 0.

Letters: n owned rows, N nodes of the whole graph, F columns, T types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.nn.message_run import MessageRun
from fullgraph.nn.rows import running_graph
from fullgraph.ops.batch_norm import batch_norm
from fullgraph.ops.reduce import sum_over_ranks


@dataclass(frozen=True)
class _AllRows:
    """Means over the rows of all ranks; every rank gets the same, and may own no row at all."""

    graph: DistributedGraph

    @property
    def count(self) -> int:
        return self.graph.num_nodes

    def mean(self, values: Tensor) -> Tensor:
        """[n, ...] to [...]; differentiable."""
        return sum_over_ranks(values.sum(0), self.graph.group) / self.count


class _GlobalNorm:
    """Before a norm whose statistics run over one graph's nodes; bfloat16 is computed in
    float32."""

    def forward(self, x: Tensor, batch: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        graph = None if self._is_row_wise() else _graph_around(self)
        if graph is None:
            out: Tensor = super().forward(x, batch, *args, **kwargs)  # type: ignore[misc]
            return out
        if batch is not None:
            raise NotImplementedError(
                f"{type(self).__name__} was given a batch vector, for many graphs in one; a "
                "distributed graph is a single one. Leave batch out (None)"
            )
        _check_rows(self, x, graph)
        with torch._C.DisableTorchFunction():
            wide = x.float() if x.dtype == torch.bfloat16 else x
            return self._normalised(wide, _AllRows(graph)).to(x.dtype)

    def _is_row_wise(self) -> bool:
        return False

    def _normalised(self, x: Tensor, rows: _AllRows) -> Tensor:
        raise NotImplementedError


class GraphNorm(_GlobalNorm, pyg.GraphNorm):
    """GraphNorm (arXiv 2009.03294): γ (x - α μ) / sqrt(mean (x - α μ)² + ε) + β, by column."""

    def _normalised(self, x: Tensor, rows: _AllRows) -> Tensor:
        out = x - rows.mean(x) * self.mean_scale
        std = (rows.mean(out.square()) + self.eps).sqrt()
        return self.weight * out / std + self.bias


class PairNorm(_GlobalNorm, pyg.PairNorm):
    """PairNorm (arXiv 1909.12223): s (x - μ) over the root of the mean squared length of centred
    rows, or over each one's own length."""

    def _normalised(self, x: Tensor, rows: _AllRows) -> Tensor:
        x = x - rows.mean(x)
        if self.scale_individually:
            return self.scale * x / (self.eps + x.norm(2, -1, keepdim=True))
        return self.scale * x / (self.eps + rows.mean(x.square().sum(-1))).sqrt()


class MeanSubtractionNorm(_GlobalNorm, pyg.MeanSubtractionNorm):
    """Mean subtraction (arXiv 2003.13663): x - μ."""

    def _normalised(self, x: Tensor, rows: _AllRows) -> Tensor:
        return x - rows.mean(x)


class LayerNorm(_GlobalNorm, pyg.LayerNorm):
    """Layer norm (arXiv 1607.06450) over all nodes and columns at once (mode "graph"):
    γ (x - μ) / (σ + ε) + β. Mode "node" treats every row by itself."""

    def _is_row_wise(self) -> bool:
        return self.mode != "graph"

    def _normalised(self, x: Tensor, rows: _AllRows) -> Tensor:
        x = x - rows.mean(x).mean()
        var = rows.mean(x.square()).mean()
        spread = var > 0  # the root has no slope at 0, where PyG's standard deviation gives 0
        std = torch.where(spread, var, 1.0).sqrt() * spread
        out = x / (std + self.eps)
        if self.weight is not None and self.bias is not None:
            out = out * self.weight + self.bias
        return out


class GraphSizeNorm(_GlobalNorm, pyg.GraphSizeNorm):
    """Graph size norm (arXiv 2003.00982): x / sqrt(N)."""

    def _normalised(self, x: Tensor, rows: _AllRows) -> Tensor:
        return x * x.new_tensor(float(rows.count)).pow(-0.5)


class InstanceNorm(_GlobalNorm, pyg.InstanceNorm):
    """Instance norm (arXiv 1607.08022): for a single graph, what batch norm computes, in
    evaluation too unless it tracks running statistics."""

    def _normalised(self, x: Tensor, rows: _AllRows) -> Tensor:
        if self.track_running_stats and not self.training:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.momentum, self.eps,
            num_rows=rows.count, group=rows.graph.group,
        )  # fmt: skip


class BatchNorm(pyg.BatchNorm):
    """Batch norm (arXiv 1502.03167); `RowFunctions` gives it the statistics of all rows. Whether
    there is a single row (`allow_single_element`) is asked of the whole graph."""

    def forward(self, x: Tensor) -> Tensor:
        graph = _graph_around(self) if self.allow_single_element else None
        if graph is None:
            return super().forward(x)
        if graph.num_nodes <= 1:
            norm = self.module
            return F.batch_norm(
                x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        return self.module(x)


class HeteroBatchNorm(pyg.HeteroBatchNorm):
    """Batch norm (arXiv 1502.03167) with the statistics [T, F] of each type of node; as in PyG, no
    gradient passes through them."""

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        graph = _graph_around(self)
        if graph is None:
            return super().forward(x, type_vec)
        _check_rows(self, x, graph)
        with torch._C.DisableTorchFunction():
            wide = x.float() if x.dtype == torch.bfloat16 else x
            if self.training or not self.track_running_stats:
                mean, var = self._statistics(wide, type_vec, graph)
            else:
                mean, var = self.running_mean, self.running_var
            out = (wide - mean[type_vec]) / var.clamp(self.eps).sqrt()[type_vec]
            if self.affine:
                out = out * self.weight[type_vec] + self.bias[type_vec]
            return out.to(x.dtype)

    @torch.no_grad()
    def _statistics(
        self, x: Tensor, type_vec: Tensor, graph: DistributedGraph
    ) -> tuple[Tensor, Tensor]:
        def over_types(values: Tensor, what: str) -> Tensor:
            out = values.new_zeros(self.num_types, values.shape[1]).index_add_(0, type_vec, values)
            return graph.group.all_reduce(out, f"{what} of types")

        sums = over_types(torch.cat([x, x.new_ones(len(x), 1)], 1), "sums and counts")
        count = sums[:, -1:]
        mean = sums[:, :-1] / count.clamp(min=1)
        var = over_types((x - mean[type_vec]).square(), "variances") / count.clamp(min=1)
        if self.training and self.track_running_stats:
            step = self.momentum
            if step is None:
                self.num_batches_tracked.add_(1)
                step = 1.0 / float(self.num_batches_tracked)
            present = count.view(-1) > 0
            for running, new in ((self.running_mean, mean), (self.running_var, var)):
                running[present] = (1.0 - step) * running[present] + (
                    step * new[present].to(running.dtype)
                )
        return mean, var


class HeteroLayerNorm(pyg.HeteroLayerNorm):
    """Layer norm (arXiv 1607.06450) of each row with its type's γ and β."""

    def forward(self, x: Tensor, type_vec: Tensor | None = None, type_ptr: Any = None) -> Tensor:
        if type_ptr is not None and running_graph() is not None:
            raise NotImplementedError(
                "HeteroLayerNorm was given type_ptr, for rows sorted by type; a rank's rows are in "
                "the order of graph.node_id. Give type_vec, the type of each owned row"
            )
        return super().forward(x, type_vec, type_ptr)


NORMS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    pyg.BatchNorm: BatchNorm,
    pyg.GraphNorm: GraphNorm,
    pyg.GraphSizeNorm: GraphSizeNorm,
    pyg.HeteroBatchNorm: HeteroBatchNorm,
    pyg.HeteroLayerNorm: HeteroLayerNorm,
    pyg.InstanceNorm: InstanceNorm,
    pyg.LayerNorm: LayerNorm,
    pyg.MeanSubtractionNorm: MeanSubtractionNorm,
    pyg.PairNorm: PairNorm,
}


def _graph_around(norm: object) -> DistributedGraph | None:
    """The graph of the forward pass that is under way, None outside of one.

    Raises NotImplementedError inside a layer's message, whose rows are those of edges: PyG would
    take the statistics of the edges at hand.
    """
    for mode in _get_current_function_mode_stack():
        if isinstance(mode, MessageRun):
            raise NotImplementedError(
                f"layer {mode.setting.layer!r}: {type(norm).__name__} inside its message would "
                "normalise over edges, of which only some are at hand at a time. BatchNorm and "
                "norms of single rows can be there; others go after the layer"
            )
    return running_graph()


def _check_rows(norm: object, x: Tensor, graph: DistributedGraph) -> None:
    if x.dim() == 0 or x.shape[0] != graph.num_owned:
        raise ValueError(
            f"{type(norm).__name__} inside a converted model takes one row for each of the "
            f"{graph.num_owned} owned nodes, got shape {tuple(x.shape)}"
        )
