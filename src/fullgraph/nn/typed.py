"""PyG layers that tell types of edges and nodes apart, on graphs that are spread over ranks.

R-GCN fetches a node's row once for all relations; the heterogeneous transformer shares one softmax
among relations by merging what each has summed; attention over relations averages over the nodes of
all ranks. Message functions are PyG's own or small MessagePassing classes, run by `generic`.

Letters: n owned rows, m owned rows that edges start from, E edges on this rank, R relations,
H heads, D channels a head, F columns.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.utils import scatter

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.kernels import group_by
from fullgraph.nn.edge_index import EdgeIndex
from fullgraph.nn.generic import Generic, generic
from fullgraph.nn.rows import is_running, of_rows
from fullgraph.ops.reduce import sum_over_ranks
from fullgraph.ops.targets import to_owners, to_targets


class _ByRelation(MessagePassing):
    """Σ over edges of norm[e] · x[src(e)] W[type(e)]."""

    def __init__(self) -> None:
        super().__init__(aggr="sum", node_dim=0)

    def message(
        self, x_j: Tensor, edge_type: Tensor, norm: Tensor, weights: tuple[Tensor]
    ) -> Tensor:
        (weight,) = weights  # in a tuple, as there may be as many edges as relations
        if not x_j.is_floating_point():  # nodes by their ids: a row of weight for each
            rows = weight.flatten(0, 1)[edge_type * weight.shape[1] + x_j]
            return rows * norm.to(rows.dtype).unsqueeze(1)
        with torch._C.DisableTorchFunction():  # an order of the edges at hand, and no more
            offsets, order = group_by(edge_type.to(torch.int32), weight.shape[0])
            counts = offsets.diff().tolist()
        of_type = x_j[order].split(counts)
        parts = [self._times(x, weight[r]) for r, x in enumerate(of_type) if counts[r]]
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel(), device=order.device)
        out = torch.cat(parts)[place]
        return out * norm.to(out.dtype).unsqueeze(1)

    @staticmethod
    def _times(x: Tensor, weight: Tensor) -> Tensor:
        if weight.dim() == 2:
            return x @ weight
        blocks = x.view(-1, weight.shape[0], weight.shape[1])  # block diagonal
        return torch.einsum("abc,bcd->abd", blocks, weight).flatten(1)


class _Share(MessagePassing):
    """One relation's share of a softmax over several: Σ exp(s - m) v and Σ exp(s - m), [n, H, D]
    and [n, H] side by side, with m the largest s of a node's edges in this relation."""

    def __init__(self) -> None:
        super().__init__(aggr="sum", node_dim=0)

    def message(
        self, k_j: Tensor, v_j: Tensor, q_i: Tensor, prior: Tensor, index: Tensor, size_i: int
    ) -> Tensor:
        score = (q_i * k_j).sum(-1) * prior / math.sqrt(q_i.shape[-1])
        largest = scatter(score.detach(), index, 0, size_i, "max")
        self.largest = largest
        share = (score - largest[index]).exp()
        return torch.cat([(v_j * share.unsqueeze(-1)).flatten(1), share], dim=1)


def _helper(layer: Any, kind: type[MessagePassing]) -> Any:
    """This layer's own instance of a message function; it has no parameters and is no submodule."""
    found = layer.__dict__.get("_fullgraph_helper")
    if found is None:
        found = kind()
        found.__class__ = generic(kind)
        for name in ("propagate", "edge_updater"):
            found.__dict__.pop(name, None)
        found.fullgraph_layer = layer.fullgraph_layer
        layer.__dict__["_fullgraph_helper"] = found
    return found


class _Relational(Generic):
    """R-GCN (arXiv 1703.06103): Σ_r mean over edges of type r of W_r x[j], plus W_0 x[i]."""

    def forward_on_graph(self, x: Any, edge_index: Any, edge_type: Any = None) -> Tensor:
        if not isinstance(edge_index, DistributedGraph) or self.aggr not in ("mean", "sum", "add"):
            return super().forward_on_graph(x, edge_index, edge_type)
        layer: Any = self
        source, target = x if isinstance(x, tuple) else (x, x)
        if source is None:
            self._check_embeddings(edge_index)
            source = target = edge_index.node_id
        if edge_type is None:
            raise ValueError(
                f"layer {self.fullgraph_layer!r} ({type(self).__name__}) needs edge_type, int64 "
                f"[{edge_index.num_local_edges}]; graph.edge_type is the graph's"
            )
        weight = layer.weight
        if layer.num_bases is not None:
            bases = weight.view(layer.num_bases, -1)
            weight = (layer.comp @ bases).view(layer.num_relations, *weight.shape[1:])
        if layer.num_blocks is not None and not target.is_floating_point():
            raise ValueError(
                "Block-diagonal decomposition not supported for non-continuous input features."
            )
        norm = self._norm(edge_index, edge_type, weight.dtype)
        out = _helper(self, _ByRelation).propagate(
            edge_index, x=source, edge_type=edge_type, norm=norm, weights=(weight,)
        )
        if edge_index.types is not None:
            of_rows(out, edge_index.node_id)
        if layer.root is not None:
            out = out + (target @ layer.root if target.is_floating_point() else layer.root[target])
        return out if layer.bias is None else out + layer.bias

    def _check_embeddings(self, graph: DistributedGraph) -> None:
        channels = self.in_channels_l
        if channels != graph.num_nodes:
            raise ValueError(
                f"layer {self.fullgraph_layer!r} ({type(self).__name__}) without x has a row of "
                f"weights for each node, but in_channels={channels} and the graph has "
                f"{graph.num_nodes} nodes"
            )

    def _norm(self, graph: DistributedGraph, edge_type: Tensor, dtype: torch.dtype) -> Tensor:
        """[E]: 1 / the number of edges of this type into the same node; 1 for a sum."""
        key = ("rgcn", self.aggr == "mean", self.num_relations, dtype)
        found = graph.kept(key, [edge_type])
        if found is not None:
            return found
        with torch._C.DisableTorchFunction():
            largest = int(edge_type.max()) if edge_type.numel() else 0
            if largest >= self.num_relations:
                raise ValueError(
                    f"layer {self.fullgraph_layer!r} ({type(self).__name__}): an edge_type is "
                    f"{largest}, and num_relations={self.num_relations}"
                )
            norm = torch.ones(edge_type.numel(), dtype=dtype, device=edge_type.device)
            if self.aggr == "mean" and graph.targets is not None:
                both = graph.edge_target.long() * self.num_relations + edge_type
                size = graph.num_targets * self.num_relations
                counts = torch.bincount(both, minlength=size).view(-1, self.num_relations)
                with graph.stale.fresh():  # as it is kept
                    total = to_targets(graph, to_owners(graph, counts))
                norm = total.view(-1)[both].to(dtype).reciprocal()
            elif self.aggr == "mean":  # each node's edges are all on this rank
                both = graph.edge_target.long() * self.num_relations + edge_type
                _, place, counts = torch.unique(both, return_inverse=True, return_counts=True)
                norm = counts.to(dtype).reciprocal()[place]
        return graph.keep(key, [edge_type], norm)


class RGCNConv(_Relational, pyg.RGCNConv):
    __doc__ = _Relational.__doc__


class FastRGCNConv(_Relational, pyg.FastRGCNConv):
    __doc__ = _Relational.__doc__


class HGTConv(Generic, pyg.HGTConv):
    """Heterogeneous graph transformer (arXiv 2003.01332): a softmax over the in-edges of a node in
    all relations, each with its own keys, values and prior."""

    def forward_on_graph(self, x_dict: Any, edge_index_dict: Any) -> Any:
        if not any(isinstance(g, DistributedGraph) for g in edge_index_dict.values()):
            return super().forward_on_graph(x_dict, edge_index_dict)
        heads, dim = self.heads, self.out_channels // self.heads
        k_dict, q_dict, v_dict = {}, {}, {}
        for name, rows in self.kqv_lin(x_dict).items():
            k, q, v = torch.tensor_split(rows, 3, dim=1)
            k_dict[name], q_dict[name], v_dict[name] = (t.view(-1, heads, dim) for t in (k, q, v))
        shares: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
        for key, graph in edge_index_dict.items():
            source, _, target = key
            r = self.edge_types_map[key]
            of_heads = torch.arange(heads) * len(self.edge_types) + r
            share, largest = self._share(
                graph, k_dict[source], v_dict[source], q_dict[target], of_heads, key
            )
            shares.setdefault(target, []).append((share, largest, graph.in_degree > 0))
        out_dict = {
            name: self._merge(shares[name]) if name in shares else torch.zeros_like(q).flatten(1)
            for name, q in q_dict.items()
            if name in self.dst_node_types
        }
        a_dict = self.out_lin({name: F.gelu(out) for name, out in out_dict.items()})
        for name in out_dict:
            out = a_dict[name]
            if out.shape[-1] == x_dict[name].shape[-1]:
                alpha = self.skip[name].sigmoid()
                out = alpha * out + (1 - alpha) * x_dict[name]
            out_dict[name] = out
        return out_dict

    def _share(
        self, graph: DistributedGraph, k: Tensor, v: Tensor, q: Tensor, of_heads: Tensor, key: Any
    ) -> tuple[Tensor, Tensor]:
        k = torch.einsum("nhd,hde->nhe", k, self.k_rel.weight[of_heads])
        v = torch.einsum("nhd,hde->nhe", v, self.v_rel.weight[of_heads])
        helper = _helper(self, _Share)
        prior = self.p_rel["__".join(key)]
        share = helper.propagate(graph, k=(k, None), v=(v, None), q=(None, q), prior=prior)
        largest = helper.largest
        del helper.largest
        return share, largest[: graph.num_owned]

    def _merge(self, shares: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """[n, H·D], from what every relation has summed below its own maximum."""
        lowest = [
            largest.masked_fill(~met.unsqueeze(1), float("-inf")) for _, largest, met in shares
        ]
        top = torch.stack(lowest, dim=1).amax(1)
        total: Any = 0
        for (share, _, _), largest in zip(shares, lowest):
            scale = (largest - top).exp().nan_to_num(0)  # no edges at all: 0
            weighed, sums = share.split([self.out_channels, self.heads], dim=1)
            wide = scale.repeat_interleave(self.out_channels // self.heads, dim=1)
            total = total + torch.cat([weighed * wide, sums * scale], dim=1)
        weighed, sums = total.split([self.out_channels, self.heads], dim=1)
        sums = (sums + 1e-16).repeat_interleave(self.out_channels // self.heads, dim=1)
        return weighed / sums


class HANConv(Generic, pyg.HANConv):
    """Heterogeneous graph attention (arXiv 1903.07293): attention along each relation, then one
    weight a relation, from the mean over all nodes."""

    def forward_on_graph(
        self, x_dict: Any, edge_index_dict: Any, return_semantic_attention_weights: bool = False
    ) -> Any:
        graphs = list(edge_index_dict.values())
        if not any(isinstance(graph, DistributedGraph) for graph in graphs):
            return super().forward_on_graph(
                x_dict, edge_index_dict, return_semantic_attention_weights
            )
        heads, dim = self.heads, self.out_channels // self.heads
        rows = {name: self.proj[name](x).view(-1, heads, dim) for name, x in x_dict.items()}
        found: dict[str, list[Tensor]] = {name: [] for name in x_dict}
        num_nodes = {}
        for key, graph in edge_index_dict.items():
            source, _, target = key
            name = "__".join(key)
            alpha_source = (rows[source] * self.lin_src[name]).sum(-1)
            alpha_target = (rows[target] * self.lin_dst[name]).sum(-1)
            out = self.propagate(
                graph, x=(rows[source], rows[target]), alpha=(alpha_source, alpha_target)
            )
            found[target].append(F.relu(out))
            num_nodes[target] = graph.num_nodes
        out_dict: dict[str, Tensor | None] = {}
        weights: dict[str, Tensor | None] = {}
        for name, outs in found.items():
            out_dict[name], weights[name] = (
                self._weigh(outs, num_nodes[name], graphs[0]) if outs else (None, None)
            )
        return (out_dict, weights) if return_semantic_attention_weights else out_dict

    def _weigh(
        self, outs: list[Tensor], num_nodes: int, graph: DistributedGraph
    ) -> tuple[Tensor, Tensor]:
        stacked = torch.stack(outs, dim=1)  # [n, R, F], so that nodes stay first
        hidden = torch.tanh(self.k_lin(stacked))
        with torch._C.DisableTorchFunction():
            mean = sum_over_ranks(hidden.sum(0), graph.group) / max(1, num_nodes)
            weights = F.softmax((self.q * mean).sum(-1), dim=0)
        return (weights.view(1, -1, 1) * stacked).sum(1), weights


class HeteroLinear(pyg.HeteroLinear):
    """W[type[i]] x[i]: PyG sorts the rows by type and puts them back, which mixes none."""

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        if not is_running():
            return super().forward(x, type_vec)
        with torch._C.DisableTorchFunction():
            return super().forward(x, type_vec)


class SuperGATConv(Generic, pyg.SuperGATConv):
    """SuperGAT (arXiv 2204.04879), without the loss that tells edges from drawn pairs of nodes."""

    def positive_sampling(self, edge_index: Any) -> Any:
        if not isinstance(edge_index, EdgeIndex):
            return super().positive_sampling(edge_index)
        return torch.empty(2, 0, dtype=torch.int64)

    def negative_sampling(self, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(edge_index, EdgeIndex):
            return super().negative_sampling(edge_index, *args, **kwargs)
        self._fullgraph_ran = True
        return torch.empty(2, 0, dtype=torch.int64)

    def get_attention_loss(self) -> Tensor:
        if self.training and self.__dict__.get("_fullgraph_ran", False):
            raise NotImplementedError(
                f"layer {self.fullgraph_layer!r} (SuperGATConv): the attention loss draws pairs of "
                "nodes from the whole graph, which is not supported on a distributed one; train "
                "without it"
            )
        return super().get_attention_loss()


TYPED: dict[type[MessagePassing], type[MessagePassing]] = {
    pyg.RGCNConv: RGCNConv,
    pyg.FastRGCNConv: FastRGCNConv,
    pyg.HGTConv: HGTConv,
    pyg.HANConv: HANConv,
    pyg.SuperGATConv: SuperGATConv,
}
