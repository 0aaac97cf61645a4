"""GATConv, GATv2Conv and TransformerConv with the fused attention of `fullgraph.ops.attention`.

No coefficient of an edge is kept. Options that need one, such as `return_attention_weights`, run
PyG's code through `generic`.

Letters: n owned rows, m owned rows that edges start from, E edges on this rank, H heads, C channels
a head, D attributes of an edge, F columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.utils import add_self_loops, remove_self_loops

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.nn.edge_index import EdgeIndex
from fullgraph.nn.generic import Generic
from fullgraph.nn.linear import is_plain, project
from fullgraph.nn.rows import RowFunctions, of_rows, with_rows
from fullgraph.ops.attention import dot_attention, gat_attention_of_rows, gatv2_attention
from fullgraph.ops.dropout import DropoutKey
from fullgraph.ops.edge_list import EdgeList
from fullgraph.ops.pointwise import mean_of_heads, plus_bias
from fullgraph.ops.products import linear, two_products
from fullgraph.ops.targets import to_targets


class _Attention(Generic):
    heads: int
    out_channels: int
    dropout: float
    concat: bool

    def forward_on_graph(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        wants_more = any(value is not None for value in [*args, *kwargs.values()])
        pair = x if isinstance(x, (tuple, list)) else (x, x)
        if (
            not isinstance(edge_index, DistributedGraph)
            or wants_more
            or any(rows is None or rows.dim() != 2 for rows in pair)
            or not self._is_plain()
        ):
            return super().forward_on_graph(x, edge_index, edge_attr, *args, **kwargs)
        if edge_attr is not None and edge_attr.dim() == 1:
            edge_attr = edge_attr.view(-1, 1)
        return self.on_graph(pair[0], pair[1], edge_index, edge_attr)

    def on_graph(
        self, source: Tensor, target: Tensor, graph: DistributedGraph, edge_attr: Tensor | None
    ) -> Tensor:
        raise NotImplementedError

    def _is_plain(self) -> bool:
        """Whether its parts are what the fused form takes them for: sums, plain linear layers."""
        layer: Any = self
        lin_edge = layer.lin_edge
        return (
            layer.aggr in ("add", "sum")
            and layer.flow == "source_to_target"
            and (lin_edge is None or _is_plain_linear(lin_edge))
        )

    def _attend(
        self, graph: DistributedGraph, attention: Callable[..., Tensor], *rows: Tensor,
        **options: Any,
    ) -> Tensor:  # fmt: skip
        """[n, H C] or, for the mean of the heads, which `attention` may take itself, [n, C]."""
        p = self.dropout if self.training else 0.0

        def run(under: RowFunctions) -> Tensor:
            key: DropoutKey | None = under.next_key() if p > 0 else None
            return attention(graph, *rows, p=p, key=key, layer=self.fullgraph_layer, **options)

        out = with_rows(run)
        if out.dim() == 3:
            out = out.flatten(1) if self.concat else mean_of_heads(out)
        return out if graph.types is None else of_rows(out, graph.node_id)

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.heads, self.out_channels)

    def _with_loops(
        self, graph: DistributedGraph, edge_attr: Tensor | None
    ) -> tuple[DistributedGraph, Tensor | None]:
        """One self-loop for each node, in the place of those it has, and the attributes that PyG
        gives it (`fill_value`)."""
        layer: Any = self
        if not layer.add_self_loops:
            return graph, edge_attr
        looped = graph.with_self_loops()
        if edge_attr is None:
            return looped, None
        whole = EdgeIndex.of(EdgeList(graph), self.fullgraph_layer)
        without, attr = remove_self_loops(whole, edge_attr)
        _, attr = add_self_loops(without, attr, layer.fill_value, graph.num_owned)
        of_loops = to_targets(graph, attr[len(attr) - graph.num_owned :])
        with torch._C.DisableTorchFunction():
            base, origin = graph.num_local_edges, looped.edges.origin
            if origin is None:
                origin = torch.arange(base, device=graph.node_id.device)
            place = torch.where(looped.is_self_loop, base + looped.edge_target, origin)
        return looped, torch.cat([edge_attr, of_loops])[place]


class GATConv(_Attention, pyg.GATConv):
    """GAT (arXiv 1710.10903): softmax over j of leaky(a · [W x[i], W x[j], W_e e]), times
    W x[j]."""

    def on_graph(
        self, source: Tensor, target: Tensor, graph: DistributedGraph, edge_attr: Tensor | None
    ) -> Tensor:
        lin_source, lin_target = self.lin_src, self.lin_dst
        if self.lin is not None:
            lin_source = lin_target = self.lin
        graph, edge_attr = self._with_loops(graph, edge_attr)
        edge_logit = None
        if edge_attr is not None and self.lin_edge is not None:
            edge_logit = F.linear(edge_attr, self._fold(self.lin_edge, self.att_edge))
        source_fold = self._fold(lin_source, self.att_src)
        target_fold = self._fold(lin_target, self.att_dst)
        # A source's values and logits in one product, one row, and one gradient of x.
        weight = torch.cat([lin_source.weight, source_fold])
        if source is target:
            rows, target_logit = two_products(source, weight, target_fold)
        else:
            rows, target_logit = linear(source, weight), linear(target, target_fold)
        with _made_again(graph, rows, source, weight):
            out = self._attend(
                graph,
                gat_attention_of_rows,
                rows,
                target_logit,
                edge_logit=edge_logit,
                negative_slope=self.negative_slope,
                mean=not self.concat,
            )
        if self.res is not None:
            out = out + project(self.res, target)
        return plus_bias(out, self.bias)

    def _fold(self, lin: Any, att: Tensor) -> Tensor:
        """[H, F]: <att, W x> of each head as a product with x, so that nothing of size [n, H, C] is
        made for it."""
        weight = lin.weight.view(self.heads, self.out_channels, -1)
        return torch.einsum("hcf,hc->hf", weight, att[0])

    def _is_plain(self) -> bool:
        lins = [lin for lin in (self.lin, self.lin_src, self.lin_dst) if lin is not None]
        return super()._is_plain() and all(map(_is_plain_linear, lins))


class GATv2Conv(_Attention, pyg.GATv2Conv):
    """GATv2 (arXiv 2105.14491): softmax over j of a · leaky(W_r x[i] + W_l x[j] + W_e e), times
    W_l x[j]."""

    def on_graph(
        self, source: Tensor, target: Tensor, graph: DistributedGraph, edge_attr: Tensor | None
    ) -> Tensor:
        graph, edge_attr = self._with_loops(graph, edge_attr)
        x_l = self._split(project(self.lin_l, source))
        x_r = x_l
        if not (self.share_weights and source is target):
            x_r = self._split(project(self.lin_r, target))
        out = self._attend(
            graph, gatv2_attention, x_l, x_r, self.att[0], edge_attr=edge_attr,
            edge_weight=None if edge_attr is None else _weight(self, edge_attr),
            negative_slope=self.negative_slope,
        )  # fmt: skip
        if self.res is not None:
            out = out + project(self.res, target)
        return plus_bias(out, self.bias)


class TransformerConv(_Attention, pyg.TransformerConv):
    """Graph transformer (arXiv 2009.03509): softmax over j of q[i] · (k[j] + W_e e) / √C, times
    v[j] + W_e e."""

    def on_graph(
        self, source: Tensor, target: Tensor, graph: DistributedGraph, edge_attr: Tensor | None
    ) -> Tensor:
        query = self._split(project(self.lin_query, target))
        key, value = (self._split(project(lin, source)) for lin in (self.lin_key, self.lin_value))
        weight = None
        if self.lin_edge is not None:
            weight = _weight(self, edge_attr)
        elif edge_attr is not None:
            raise ValueError(
                f"layer {self.fullgraph_layer!r} (TransformerConv) was given edge_attr, but has no "
                "edge_dim"
            )
        out = self._attend(
            graph, dot_attention, query, key, value, edge_attr=edge_attr, edge_weight=weight
        )
        if not self.root_weight:
            return out
        skip = project(self.lin_skip, target)
        if self.lin_beta is None:
            return out + skip
        beta = self.lin_beta(torch.cat([out, skip, out - skip], dim=-1)).sigmoid()
        return beta * skip + (1 - beta) * out


def _made_again(graph: DistributedGraph, value: Tensor, x: Tensor, weight: Tensor) -> Any:
    """While attention runs: where the schedule rebuilds for the backward pass, W x is not kept for
    it, as x is at hand and the product is cheap beside the attention."""
    if not graph.schedule.remat or not torch.is_grad_enabled():
        return contextlib.nullcontext()
    place, numel, dtype = value.data_ptr(), value.numel(), value.dtype  # autocast's, perhaps
    x, weight = x.detach(), weight.detach()
    versions = x._version, weight._version

    def pack(tensor: Tensor) -> Tensor | torch.Size:
        same = numel > 0 and tensor.data_ptr() == place and tensor.numel() == numel
        return tensor.shape if same and tensor.dtype == dtype else tensor

    def unpack(kept: Tensor | torch.Size) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        if versions != (x._version, weight._version):
            raise RuntimeError(
                "rows or weights of an attention layer were modified in place before the backward "
                "pass that needs them"
            )
        with torch.no_grad(), _no_autocast(x):
            return linear(x.to(dtype), weight.to(dtype)).view(kept)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _no_autocast(x: Tensor) -> Any:
    device = x.device.type
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else contextlib.nullcontext()


def _weight(layer: Any, edge_attr: Tensor | None) -> Tensor:
    """[H C, D], of edge attributes that there must be."""
    if edge_attr is None or layer.lin_edge is None:
        have, lack = ("edge_dim", "edge_attr") if edge_attr is None else ("edge_attr", "edge_dim")
        raise ValueError(
            f"layer {layer.fullgraph_layer!r} ({type(layer).__name__}) has {have} but no {lack}"
        )
    return layer.lin_edge.weight


def _is_plain_linear(lin: Any) -> bool:
    return lin.bias is None and is_plain(lin)


ATTENTION: dict[type[MessagePassing], type[MessagePassing]] = {
    pyg.GATConv: GATConv,
    pyg.GATv2Conv: GATv2Conv,
    pyg.TransformerConv: TransformerConv,
}
