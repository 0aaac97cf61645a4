"""Models by name, as the command line offers them: PyG's, and small ones in their manner.

All take (x [n, F], edge_index or a distributed graph) and return logits [n, C]. Their parameters
have the names that PyG's own classes give them, so weights load into those too.

Letters: n rows, F features, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.models.basic_gnn import BasicGNN

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.training.model_options import NORMS, ModelOptions


def build_model(options: ModelOptions, in_channels: int, out_channels: int) -> torch.nn.Module:
    """The model of these options; its weights come from torch's random numbers as they stand.

    Raises ValueError for options that make no sense, naming them.
    """
    options.validate()
    if in_channels < 1 or out_channels < 1:
        raise ValueError(
            f"a model needs at least one feature and one class, got {in_channels} and "
            f"{out_channels}"
        )
    return MODELS[options.name](options, in_channels, out_channels)


def check_weights(
    options: ModelOptions, in_channels: int, out_channels: int, weights: dict[str, Tensor]
) -> None:
    """Raises ValueError unless these are the names and shapes of the model's weights. Nothing of
    their size is made, whatever the options say."""
    options.validate()
    if options.layers > len(weights) and options.name != "sgc":
        raise ValueError(f"{options.layers} layers cannot have {len(weights)} weights")
    try:
        with torch.device("meta"):
            wanted = build_model(options, in_channels, out_channels).state_dict()
    except (OverflowError, RuntimeError, TypeError) as error:
        raise ValueError(f"no model can be so large: {error}") from error
    for name in sorted(wanted.keys() | weights.keys()):
        there, here = ([*t.shape] if t is not None else "absent"
                       for t in (weights.get(name), wanted.get(name)))  # fmt: skip
        if there != here:
            raise ValueError(f"weight {name!r} is {there}, but the model's is {here}")


def run_model(model: torch.nn.Module, graph: DistributedGraph) -> Tensor:
    """Logits [n, C] of the owned rows, with the graph's edge weights where it has some and the
    model knows what to do with them."""
    weighted = graph.meta.field("edge_weight") is not None
    if not (weighted and getattr(model, "supports_edge_weight", False)):
        return model(graph.x, graph)
    return model(graph.x, graph, edge_weight=graph.edge_weight)


class _InputDropout:
    """Mixed into a model: drops its input features in training."""

    input_dropout: float
    training: bool

    def forward(self, x: Tensor, edge_index: Any, *args: Any, **kwargs: Any) -> Tensor:
        x = F.dropout(x, p=self.input_dropout, training=self.training)
        return super().forward(x, edge_index, *args, **kwargs)  # type: ignore[misc]


class GCN(_InputDropout, pyg.models.GCN):
    """Layers of GCNConv."""


class GraphSAGE(_InputDropout, pyg.models.GraphSAGE):
    """Layers of SAGEConv with mean aggregation."""


class GIN(_InputDropout, pyg.models.GIN):
    """Layers of GINConv, each with a perceptron of two layers."""


class GAT(_InputDropout, pyg.models.GAT):
    """Layers of GATConv; arXiv 1710.10903. Dropout is on the attention, too."""


class GraphConvNet(_InputDropout, BasicGNN):
    """Layers of GraphConv."""

    supports_edge_weight = True
    supports_edge_attr = False
    supports_norm_batch = False

    def init_conv(self, in_channels: Any, out_channels: int, **kwargs: Any) -> pyg.MessagePassing:
        return pyg.GraphConv(in_channels, out_channels, **kwargs)


class _SGC(torch.nn.Module):
    """One SGConv: propagation, then one linear layer."""

    supports_edge_weight = True

    def __init__(self, in_channels: int, out_channels: int, steps: int) -> None:
        super().__init__()
        self.conv = pyg.SGConv(in_channels, out_channels, K=steps)

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        return self.conv(x, edge_index, edge_weight)


class SGC(_InputDropout, _SGC):
    """Linear; arXiv 1902.07153."""


class _Perceptron(torch.nn.Module):
    """A perceptron, and optionally propagation of its result."""

    def __init__(self, mlp: pyg.MLP, propagation: torch.nn.Module | None) -> None:
        super().__init__()
        self.mlp, self.propagation = mlp, propagation
        self.supports_edge_weight = propagation is not None

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        out = self.mlp(x)
        return out if self.propagation is None else self.propagation(out, edge_index, edge_weight)


class Perceptron(_InputDropout, _Perceptron):
    """An MLP that ignores the edges, or APPNP (arXiv 1810.05997)."""


def _gnn(
    kind: type[torch.nn.Module], *more: str
) -> Callable[[ModelOptions, int, int], torch.nn.Module]:
    """more: options that this kind takes besides."""

    def build(options: ModelOptions, in_channels: int, out_channels: int) -> torch.nn.Module:
        norm, norm_kwargs = NORMS[options.norm]
        model: Any = kind(
            in_channels, options.hidden, options.layers, out_channels, dropout=options.dropout,
            norm=norm, norm_kwargs=norm_kwargs, **{name: getattr(options, name) for name in more},
        )  # fmt: skip
        model.input_dropout = options.input_dropout
        return model

    return build


def _sgc(options: ModelOptions, in_channels: int, out_channels: int) -> torch.nn.Module:
    model = SGC(in_channels, out_channels, steps=options.layers)
    model.input_dropout = options.input_dropout
    return model


def _perceptron(steps: int) -> Callable[[ModelOptions, int, int], torch.nn.Module]:
    def build(options: ModelOptions, in_channels: int, out_channels: int) -> torch.nn.Module:
        norm, norm_kwargs = NORMS[options.norm]
        mlp = pyg.MLP(
            in_channels=in_channels, hidden_channels=options.hidden, out_channels=out_channels,
            num_layers=options.layers, dropout=float(options.dropout), norm=norm,
            norm_kwargs=norm_kwargs,
        )  # fmt: skip
        model = Perceptron(mlp, pyg.APPNP(K=steps, alpha=0.1) if steps else None)
        model.input_dropout = options.input_dropout
        return model

    return build


MODELS: dict[str, Callable[[ModelOptions, int, int], torch.nn.Module]] = {
    "gcn": _gnn(GCN),
    "sage": _gnn(GraphSAGE),
    "gin": _gnn(GIN),
    "gat": _gnn(GAT, "heads"),
    "graphconv": _gnn(GraphConvNet),
    "sgc": _sgc,
    "appnp": _perceptron(steps=10),
    "mlp": _perceptron(steps=0),
}
