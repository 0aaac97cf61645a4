"""PyG layers whose messages are linear in the source's row, on a distributed graph.

Each class here is its PyG layer with `propagate` (and, where the order of the two products can be
chosen, `forward`) answering for a distributed graph. On a plain `edge_index` all of them run PyG's
code. `convert` swaps the classes; nobody constructs these.

Letters: n owned rows, E edges on this rank, F columns.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.nn.attention import ATTENTION
from fullgraph.nn.generic import Generic, generic
from fullgraph.nn.linear import is_plain, narrows, project, widens
from fullgraph.nn.normalize import Normalized, gcn_normalized
from fullgraph.nn.rows import of_rows, outside_rows
from fullgraph.nn.typed import TYPED
from fullgraph.ops.aggregate import aggregate
from fullgraph.ops.pointwise import added, fork, plus_bias
from fullgraph.ops.products import add_product, linear, two_products

SUPPORTED_AGGREGATIONS = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max", "min": "min"}


class _CacheKey:
    """The key of one layer; equal to itself only."""


class _Linear(Generic):
    """Messages w[e] · x[src(e)], reduced by the layer's aggregation."""

    def forward_on_graph(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, DistributedGraph) for value in [*args, *kwargs.values()]):
            return self.on_graph(*args, **kwargs)
        # An edge_index, or a stand-in for one that another layer has taken apart.
        return super().forward_on_graph(*args, **kwargs)

    def on_graph(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's `forward` on a distributed graph."""
        return super(Generic, self).forward(*args, **kwargs)

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
        if not isinstance(edge_index, DistributedGraph):
            return super().propagate(edge_index, size=size, **kwargs)
        x = kwargs["x"]
        x = x[0] if isinstance(x, (tuple, list)) else x
        return self._aggregated(edge_index, x, kwargs.get("edge_weight"))

    def _aggregated(self, graph: DistributedGraph, x: Tensor, weight: Tensor | None) -> Tensor:
        out = self._aggregate(graph, x, weight)
        return out if graph.types is None else of_rows(out, graph.node_id)

    @outside_rows
    def _aggregate(self, graph: DistributedGraph, x: Tensor, weight: Tensor | None) -> Tensor:
        reduce = SUPPORTED_AGGREGATIONS[self.aggr]
        return aggregate(graph, x, reduce, weight=weight, layer=self.fullgraph_layer)

    def _pair(self, graph: DistributedGraph, x: Any) -> tuple[Tensor, Tensor | None]:
        """The rows of sources, and those of targets, if any."""
        source, target = x if isinstance(x, (tuple, list)) else (x, x)
        if target is not None and target is not source and target.shape[0] != graph.num_owned:
            raise ValueError(
                f"layer {self.fullgraph_layer!r} was given targets with {target.shape[0]} rows, "
                f"where this rank owns {graph.num_owned}"
            )
        return source, target

    def _aggregate_and_project(
        self, graph: DistributedGraph, x: Tensor, lin: Any, weight: Tensor | None,
        root_lin: Any, root: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """lin(A x) + root_lin(root), the second where there is a root.

        The first is computed as (A x) Wᵀ or A (x Wᵀ), whichever exchanges narrower rows. The
        graph's own features are aggregated first: that is done once, not every step.
        """
        has_plain_root = root is not None and is_plain(root_lin) and root_lin.bias is None
        linear_in_rows = SUPPORTED_AGGREGATIONS[self.aggr] in ("sum", "mean")
        if not (linear_in_rows and narrows(lin)) or graph.is_static(x):
            if root is x:
                x, root = fork(x)
            out = project(lin, self._aggregated(graph, x, weight))
            # In place: what a plain layer gives is its own, and nobody keeps it.
            if root is not None and has_plain_root and is_plain(lin):
                return add_product(out, root, root_lin.weight)
            return out if root is None else out + project(root_lin, root)
        of_root = None
        if has_plain_root and root is x:
            x, of_root = two_products(x, lin.weight, root_lin.weight)
        else:
            x = linear(x, lin.weight)
        out = self._aggregated(graph, x, weight)
        out = out if lin.bias is None else added(out, lin.bias)  # nobody else has it
        if root is None:
            return out
        return added(out, project(root_lin, root) if of_root is None else of_root)


class SAGEConv(_Linear, pyg.SAGEConv):
    """GraphSAGE (arXiv 1706.02216): W_l · aggr(x[j]) + W_r · x[i]."""

    def on_graph(self, x: Any, edge_index: DistributedGraph, size: Any = None) -> Tensor:
        source, target = self._pair(edge_index, x)
        if self.project:
            source = project(self.lin, source).relu()
        root_lin, root = (self.lin_r, target) if self.root_weight else (None, None)
        out = self._aggregate_and_project(
            edge_index, source, self.lin_l, None, root_lin, root
        )  # fmt: skip
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out


class GraphConv(_Linear, pyg.GraphConv):
    """Higher-order GNN (arXiv 1810.02244): W_rel · aggr(w[e] x[j]) + W_root · x[i]."""

    def on_graph(
        self, x: Any, edge_index: DistributedGraph, edge_weight: Tensor | None = None,
        size: Any = None,
    ) -> Tensor:  # fmt: skip
        source, target = self._pair(edge_index, x)
        return self._aggregate_and_project(
            edge_index, source, self.lin_rel, edge_weight, self.lin_root, target
        )


class GINConv(_Linear, pyg.GINConv):
    """GIN (arXiv 1810.00826): nn((1 + ε) x[i] + aggr(x[j]))."""


class _Normalized(_Linear):
    """A layer on D^-1/2 A D^-1/2, as PyG's `gcn_norm` has it."""

    add_self_loops: bool
    improved: bool = False
    normalize: bool = True
    cached: bool

    @property
    def _cache_key(self) -> _CacheKey:
        """What this layer keeps for itself on a graph is found under; a copy has its own."""
        if "_own_cache_key" not in self.__dict__:
            self._own_cache_key = _CacheKey()
        return self._own_cache_key

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.__dict__.pop("_own_cache_key", None)

    def _norm(self, graph: DistributedGraph, x: Tensor, weight: Tensor | None) -> Normalized:
        if not self.normalize:
            return Normalized(graph, weight, None)
        found = graph.layer_cache.get(self._cache_key) if self.cached else None
        if found is not None:
            return found
        fill = (2.0 if self.improved else 1.0) if self.add_self_loops else None
        norm = gcn_normalized(graph, weight, fill, x.dtype)
        if self.cached:
            graph.layer_cache[self._cache_key] = norm
        return norm

    def _aggregate(self, graph: DistributedGraph, x: Tensor, weight: Tensor | None) -> Tensor:
        norm = self._norm(graph, x, weight)
        return norm.aggregate(x, SUPPORTED_AGGREGATIONS[self.aggr], self.fullgraph_layer)


class GCNConv(_Normalized, pyg.GCNConv):
    """GCN (arXiv 1609.02907): D^-1/2 (A + I) D^-1/2 x W + b."""

    one_x = True

    def on_graph(
        self, x: Tensor, edge_index: DistributedGraph, edge_weight: Tensor | None = None
    ) -> Tensor:
        if isinstance(x, (tuple, list)):
            return super(Generic, self).forward(x, edge_index, edge_weight)  # PyG's own error
        sums = SUPPORTED_AGGREGATIONS[self.aggr] in ("sum", "mean")
        if sums and (widens(self.lin) or edge_index.is_static(x)):
            # Not in place: a layer in the place of `lin` may give what is kept of the features.
            return plus_bias(
                project(self.lin, self._aggregate(edge_index, x, edge_weight)), self.bias
            )
        out = self._aggregate(edge_index, project(self.lin, x), edge_weight)
        if sums and self.bias is not None:
            return added(out, self.bias)  # of what nobody else has, and no gradient needs
        return plus_bias(out, self.bias)


class SGConv(_Normalized, pyg.SGConv):
    """SGC (arXiv 1902.07153): (D^-1/2 (A + I) D^-1/2)^K x W + b."""

    def on_graph(
        self, x: Tensor, edge_index: DistributedGraph, edge_weight: Tensor | None = None
    ) -> Tensor:
        cached = edge_index.layer_cache.get(self._cache_key) if self.cached else None
        if cached is not None:
            return project(self.lin, cached.detach())
        narrow_first = narrows(self.lin) and not self.cached and not edge_index.is_static(x)
        if narrow_first:
            x = linear(x, self.lin.weight)
        with edge_index.stale.fresh() if self.cached else nullcontext():
            for _ in range(self.K):
                x = self._aggregate(edge_index, x, edge_weight)
        if self.cached:
            edge_index.layer_cache[self._cache_key] = x
        if not narrow_first:
            return project(self.lin, x)
        return x if self.lin.bias is None else x + self.lin.bias


class APPNP(_Normalized, pyg.APPNP):
    """APPNP (arXiv 1810.05997): x ← (1 - α) D^-1/2 (A + I) D^-1/2 x + α h, K times."""

    def on_graph(
        self, x: Tensor, edge_index: DistributedGraph, edge_weight: Tensor | None = None
    ) -> Tensor:
        h, norm = x, self._norm(edge_index, x, edge_weight)
        for _ in range(self.K):
            if self.dropout > 0 and self.training:
                norm = norm.with_edge_dropout(self.dropout, x.dtype)
            x = norm.aggregate(x, SUPPORTED_AGGREGATIONS[self.aggr], self.fullgraph_layer)
            x = x * (1 - self.alpha) + self.alpha * h
        return x


LAYERS: dict[type[MessagePassing], type[MessagePassing]] = {
    pyg.SAGEConv: SAGEConv,
    pyg.GraphConv: GraphConv,
    pyg.GINConv: GINConv,
    pyg.GCNConv: GCNConv,
    pyg.SGConv: SGConv,
    pyg.APPNP: APPNP,
}


def layer_class(layer: MessagePassing) -> type[MessagePassing]:
    """The class that this layer becomes: its own counterpart here, or the generic one of its class
    where an option reaches beyond what that does."""
    for table in (TYPED, ATTENTION):
        if type(layer) in table:
            return table[type(layer)]
    kind = LAYERS.get(type(layer))
    linear = (
        isinstance(layer.aggr, str)
        and layer.aggr in SUPPORTED_AGGREGATIONS
        and layer.flow == "source_to_target"
        and layer.node_dim in (-2, 0)
    )
    return kind if kind is not None and linear else generic(type(layer))
