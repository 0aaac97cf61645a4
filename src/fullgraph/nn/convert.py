"""`convert`: make a PyG model accept a distributed graph where it took `edge_index`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch_geometric
import torch_geometric.nn as pyg
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric.nn.conv import MessagePassing

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.hetero import DistributedHeteroGraph
from fullgraph.comm.seeds import SeedGraphs
from fullgraph.nn.generic import check_generic
from fullgraph.nn.layers import layer_class
from fullgraph.nn.norms import NORMS
from fullgraph.nn.propagation import LABEL_MODELS, check_propagation
from fullgraph.nn.rows import Graph, RowFunctions, is_running, of_rows, types_of
from fullgraph.nn.typed import HeteroLinear
from fullgraph.ops.gradients import check_same_parameters

Model = TypeVar("Model", bound=torch.nn.Module)


class UnsupportedLayerError(NotImplementedError):
    """A layer that would not give the whole graph's result; names its path in the model."""


class Converted:
    """Mixed into the class of a converted model: runs its forward pass on a distributed graph.

    ``dropout_seed`` and ``dropout_step`` (forward passes with dropout so far) key its dropout
    masks. The first pass checks that all ranks hold the same parameters. On anything but a
    distributed graph the model runs as it did before.
    """

    dropout_seed: int
    dropout_step: int
    parameters_checked: bool
    training: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        graph = _find_graph([*args, *kwargs.values()])
        inner = self.__dict__.get("forward_of_instance") or super().forward  # type: ignore[misc]
        if graph is None or is_running():  # the outer model's pass looks after this one
            return inner(*args, **kwargs)
        if not self.parameters_checked:
            check_same_parameters(self, graph.group)  # type: ignore[arg-type]
            self.parameters_checked = True
        _note_types(graph, [*args, *kwargs.values()])
        with (
            _training_pass(self, graph),
            RowFunctions(graph, self.dropout_seed, self.dropout_step) as rows,
        ):
            out = inner(*args, **kwargs)
        self.dropout_step += rows.num_dropouts > 0
        if isinstance(graph, SeedGraphs) and rows.num_layers != len(graph):
            raise ValueError(
                f"for_seeds made graphs for {len(graph)} layers, and the model has "
                f"{rows.num_layers} that pass messages; its output is not that of the seeds"
            )
        return out

    def _set_jittable_template(self, raise_on_error: bool = False) -> None:
        """Nothing: a copy of PyG's Sequential would put its own `forward` in the place of ours."""


def convert(model: Model, seed: int = 0) -> Model:
    """Make `model` accept a `DistributedGraph` where it took `edge_index`, in place.

    Parameters and the keys of `state_dict` stay as they are, so weights load both ways, and on a
    plain `edge_index` the model still runs PyG's own code. Layers are given their distributed
    counterpart by changing their class; dropout, batch norm and functions that mix rows are
    looked after while the model runs (see `fullgraph.nn.rows`).

    Args:
        model: a PyG or torch model, or a single layer.
        seed: of the dropout masks; the same on every rank.

    Raises:
        UnsupportedLayerError: a layer, or an option of one, that is not supported; it names the
            layer's path, the reason, and what is.
    """
    if isinstance(model, Converted):
        model.dropout_seed = seed
        return model
    modules = list(model.named_modules())
    for path, module in _outermost(modules):
        _check(path or "(the model)", module, alone=module is model)
    for path, module in modules:
        if type(module) in _OTHERS:
            module.__class__ = _OTHERS[type(module)]
            if isinstance(module, MessagePassing):
                module.fullgraph_layer = path or type(module).__name__
        elif isinstance(module, MessagePassing) and not hasattr(module, "fullgraph_layer"):
            module.__class__ = layer_class(module)
            for name in ("propagate", "edge_updater"):  # PyG sometimes binds its own
                module.__dict__.pop(name, None)
            module.fullgraph_layer = path or type(module).__name__
    kind = type(model)
    model.__class__ = type(kind.__name__, (Converted, kind), {"__module__": kind.__module__})
    converted: Any = model
    converted.dropout_seed, converted.dropout_step = seed, 0
    converted.parameters_checked = False
    if "forward" in model.__dict__:  # as PyG's Sequential has it
        converted.forward_of_instance = model.__dict__.pop("forward")
    return model


def dropout_state(model: torch.nn.Module) -> dict[str, list[int]]:
    """The seed and step of the dropout masks of every converted module in `model`, by its path."""
    return {
        path: [module.dropout_seed, module.dropout_step]
        for path, module in model.named_modules()
        if isinstance(module, Converted)
    }


def set_dropout_state(model: torch.nn.Module, state: dict[str, list[int]]) -> None:
    """Put back what `dropout_state` gave. Raises ValueError where other modules are converted."""
    here = dropout_state(model)
    if here.keys() != state.keys():
        names = sorted(path or "(the model)" for path in here.keys() ^ state.keys())
        raise ValueError(
            f"converted then or now, but not both: {', '.join(names)}. Call fullgraph.convert on "
            "the same modules, before their state is loaded"
        )
    modules = dict(model.named_modules())
    for path, (seed, step) in state.items():
        module: Any = modules[path]
        module.dropout_seed, module.dropout_step = seed, step


def _outermost(
    modules: list[tuple[str, torch.nn.Module]],
) -> Iterator[tuple[str, torch.nn.Module]]:
    """Without those that belong to a module which answers for them."""
    inside = {
        f"{path}.{name}".lstrip(".")
        for path, module in modules
        for kind, name in (
            (pyg.JumpingKnowledge, "lstm"),  # along the layers of one node
            (pyg.HeteroBatchNorm, "mean_var"),
        )
        if isinstance(module, kind)
    }
    inside |= {  # the aggregations of a layer, wherever it has them
        f"{path}.{name}".lstrip(".")
        for path, layer in modules
        if isinstance(layer, MessagePassing)
        for name, module in layer.named_modules()
        if isinstance(module, pyg.aggr.Aggregation)
    }
    for path, module in modules:
        if not any(path == name or path.startswith(name + ".") for name in inside):
            yield path, module


# Swapped for their counterparts, as layers are.
_OTHERS = {**NORMS, **LABEL_MODELS, pyg.HeteroLinear: HeteroLinear}

# Modules of PyG, besides those that are swapped, that treat every row by itself (or, like batch
# norm, through functions that `RowFunctions` looks after).
_ROW_WISE = (
    pyg.Linear, pyg.MLP, pyg.JumpingKnowledge, pyg.HeteroJumpingKnowledge, pyg.DeepGCNLayer,
    pyg.MessageNorm, pyg.DiffGroupNorm, pyg.models.basic_gnn.BasicGNN, pyg.Sequential,
    pyg.module_dict.ModuleDict, pyg.parameter_dict.ParameterDict,
    pyg.HeteroConv, pyg.HeteroDictLinear, pyg.DirGNNConv, pyg.AntiSymmetricConv,
    torch_geometric.nn.conv.dna_conv.MultiHead, torch_geometric.nn.conv.dna_conv.Linear,
    torch_geometric.nn.conv.gen_conv.MLP,
)  # fmt: skip


_MIXTURES = (
    torch.nn.MultiheadAttention, torch.nn.Transformer, torch.nn.TransformerEncoderLayer,
    torch.nn.TransformerDecoderLayer, torch.nn.RNNBase, torch.nn.SyncBatchNorm,
)  # fmt: skip


def _check(path: str, module: torch.nn.Module, alone: bool) -> None:
    reason = None
    if isinstance(module, tuple(_OTHERS)):
        reason = _check_other(module, alone)
    elif isinstance(module, MessagePassing):
        reason = check_generic(module)
    elif isinstance(module, torch.nn.modules.instancenorm._InstanceNorm):
        reason = "it normalises over the nodes of one rank; use torch_geometric.nn.InstanceNorm"
    elif isinstance(module, _MIXTURES):
        reason = "it may combine the nodes of one rank, taking them for a sequence"
    elif isinstance(module, pyg.DeepGCNLayer) and module.ckpt_grad:
        reason = (
            "ckpt_grad=True calls its layer again in the backward pass; with ckpt_grad=False, the "
            "schedule 'sequential' keeps nothing remote for the backward pass as it is"
        )
    elif _of_pyg(module) and not isinstance(module, _ROW_WISE):
        reason = "it may combine nodes in a way that is not supported yet"
    if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
        reason = "its size is not known yet (in_channels=-1); give the size, or run it once on PyG"
    if reason is not None:
        raise UnsupportedLayerError(
            f"layer {path!r} ({type(module).__name__}) cannot run on a distributed graph: "
            f"{reason}. Supported are MessagePassing layers, PyG's and your own, whose messages "
            "depend on their edge and its two nodes, and are reduced over each node's edges by "
            "sums, means, products, maxima, minima, variances or softmax; PyG's norms, MLP, "
            "JumpingKnowledge, HeteroConv, LabelPropagation and models made of these; and torch "
            "modules that treat rows one by one, BatchNorm1d, LayerNorm and Dropout"
        )


def _check_other(module: Any, alone: bool) -> str | None:
    """Why this norm or model of labels, or what inherits from one, cannot run, or None."""
    if type(module) in NORMS and alone:
        return "by itself it is given no graph; convert the model that it belongs to"
    if isinstance(module, pyg.LabelPropagation) and (reason := check_propagation(module)):
        return reason
    if type(module) in _OTHERS or isinstance(module, tuple(_OTHERS.values())):
        return None
    if isinstance(module, (pyg.MaskLabel, pyg.HeteroLayerNorm)):
        return None
    if isinstance(module, pyg.BatchNorm) and not module.allow_single_element:
        return None
    if isinstance(module, pyg.LayerNorm) and module.mode == "node":
        return None
    kind = next(kind for kind in _OTHERS if isinstance(module, kind))
    return (
        f"it inherits from {kind.__name__}, whose counterpart takes the place of that very class; "
        f"use {kind.__name__} itself, or write the class anew with fullgraph.sum_over_ranks"
    )


def _of_pyg(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch_geometric.nn")


def _training_pass(model: Converted, graph: Graph) -> AbstractContextManager[None]:
    """In which an approximate schedule is approximate; evaluation is exact."""
    stale = graph.base.stale if isinstance(graph, SeedGraphs) else graph.stale
    if model.training and torch.is_grad_enabled():
        return stale.training_pass(model)
    return nullcontext()


def _find_graph(values: list[Any]) -> Graph | None:
    for value in values:
        if isinstance(value, (DistributedGraph, SeedGraphs, DistributedHeteroGraph)):
            return value
        if isinstance(value, (list, tuple, dict)):
            inside = value.values() if isinstance(value, dict) else value
            found = _find_graph([*inside])
        else:
            found = getattr(value, "edge_index", None)
        if isinstance(found, (DistributedGraph, SeedGraphs, DistributedHeteroGraph)):
            return found
    return None


def _note_types(graph: Graph, values: list[Any]) -> None:
    """Note on the tensors of an x_dict which type's rows they have."""
    types = types_of(graph)
    for value in values:
        if isinstance(value, dict):
            for name, tensor in value.items():
                if name in types and isinstance(tensor, Tensor):
                    of_rows(tensor, types[name].node_id)
