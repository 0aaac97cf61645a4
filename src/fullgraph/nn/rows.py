"""What a converted model's own functions mean when the rows are shared among ranks.

While a converted model runs on a distributed graph, `RowFunctions` stands between it and
`torch.nn.functional`: dropout takes its counter-based mask, batch norm its statistics from all
ranks, and functions that would silently mix a rank's rows are refused. Everything else, being
row-wise, passes through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.hetero import DistributedHeteroGraph, OwnedNodes
from fullgraph.comm.seeds import SeedGraphs
from fullgraph.nn.edge_index import EdgeIndex, NodeIndex
from fullgraph.ops import pointwise
from fullgraph.ops.batch_norm import batch_norm
from fullgraph.ops.dropout import DropoutKey, dropout
from fullgraph.ops.edge_list import list_of_size
from fullgraph.ops.reduce import extremum_over_ranks

# What a converted model can be given where `edge_index` (or a dict of them) went.
Graph = DistributedGraph | SeedGraphs | DistributedHeteroGraph

_OTHER_DROPOUTS = {
    F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.rrelu,
    F.gumbel_softmax, torch.dropout_, torch.alpha_dropout, torch.feature_dropout, torch.bernoulli,
    torch.rand_like, torch.randn_like, torch.randint_like, Tensor.bernoulli_, Tensor.normal_,
    Tensor.uniform_, Tensor.bernoulli,
}  # fmt: skip

_LOSSES = {
    F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits,
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.kl_div,
}  # fmt: skip

REDUCTIONS = {
    getattr(owner, name)
    for owner in (torch, Tensor)
    for name in (
        "sum",
        "mean",
        "max",
        "min",
        "amax",
        "amin",
        "var",
        "std",
        "prod",
        "norm",
        "softmax",
        "log_softmax",
        "logsumexp",
        "cumsum",
        "sort",
        "argsort",
        "median",
        "argmax",
        "argmin",
        "var_mean",
        "std_mean",
        "topk",
        "unique",
        "flip",
        "roll",
        "cumprod",
        "nanmean",
        "nansum",
        "logcumsumexp",
        "cummax",
        "cummin",
        "nanmedian",
        "quantile",
        "nanquantile",
        "mode",
        "kthvalue",
        "aminmax",
        "count_nonzero",
        "diff",
    )
    if hasattr(owner, name)
} | {
    F.softmax,
    F.log_softmax,
    F.normalize,
    torch.linalg.norm,
    torch.linalg.vector_norm,
}

# Whatever their arguments.
_MIXTURES = {
    F.instance_norm, F.scaled_dot_product_attention, F.multi_head_attention_forward,
}  # fmt: skip

_JOINS = {torch.stack, torch.cat, torch.concat, torch.concatenate}
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}


def drop_edges(weight: Tensor, graph: DistributedGraph, p: float) -> Tensor:
    """Dropout on a value for each edge [E], keyed on the edges' ids, for layers to call."""
    if has_torch_function_unary(weight):
        return handle_torch_function(drop_edges, (weight,), weight, graph, p)
    raise RuntimeError("dropout on edges is keyed on a converted model's forward pass")


def is_running() -> bool:
    """Whether a converted model's forward pass on a distributed graph is under way."""
    if has_torch_function_unary(None):
        return bool(handle_torch_function(is_running, ()))
    return False


def running_graph() -> DistributedGraph | None:
    """The graph of the forward pass that is under way, or None outside of one: for modules whose
    `forward` is given rows and nothing else, as norms are."""
    if has_torch_function_unary(None):
        found: DistributedGraph | None = handle_torch_function(running_graph, ())
        return found
    return None


def next_layer() -> DistributedGraph:
    """The graph for a layer that was given what `for_seeds` made."""
    return handle_torch_function(next_layer, ())


def with_rows(function: Callable[[RowFunctions], Any]) -> Any:
    """`function`, given the pass that is under way, and called without it standing between."""
    if has_torch_function_unary(None):
        return handle_torch_function(with_rows, (), function)
    raise _outside()


def _outside() -> RuntimeError:
    return RuntimeError(
        "a layer was called on a distributed graph outside of the converted model's forward pass, "
        "where batch norm and dropout would see this rank's rows only. Call the model that "
        "fullgraph.convert returned. (Activation checkpointing, which calls layers again in the "
        "backward pass, is not supported)"
    )


Call = TypeVar("Call", bound=Callable[..., Any])


def outside_rows(function: Call) -> Call:
    """For what layers do on a distributed graph: inside, torch's functions are torch's own again.

    Outside of a converted model's forward pass it raises RuntimeError, because batch norm and
    dropout around it would see this rank's rows only.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_running():
            raise _outside()
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


class RowSet(NamedTuple):
    """Rows that a tensor may have: the nodes of a type, or those of a layer of `for_seeds`.

    ``ids``: int64 [n], of the owned ones, by which dropout is keyed; ``total``: on all ranks.
    """

    ids: Tensor
    total: int


def row_sets(graph: Graph) -> list[RowSet]:
    """The sets of rows that tensors have in a forward pass on this graph."""
    if isinstance(graph, SeedGraphs):
        sources = [graph.base.node_id[layer.source_rows] for layer in graph]
        return [RowSet(*pair) for pair in zip([*sources, graph.node_id], graph.total_rows)]
    if isinstance(graph, DistributedGraph) and graph.types is None:
        return [RowSet(graph.node_id, graph.num_nodes)]
    types = types_of(graph)
    return [RowSet(nodes.node_id, nodes.num_nodes) for nodes in types.values()]


def types_of(graph: Graph) -> dict[str, OwnedNodes]:
    """The owned nodes by type; empty where there are no types."""
    if isinstance(graph, DistributedHeteroGraph):
        return graph.nodes
    return graph.types or {} if isinstance(graph, DistributedGraph) else {}


def of_rows(tensor: Any, ids: Tensor) -> Any:
    """Note whose rows a tensor has, by the very tensor of their ids; functions of it keep the
    note."""
    if isinstance(tensor, Tensor):
        tensor.fullgraph_rows = ids  # type: ignore[attr-defined]
    return tensor


class RowFunctions(TorchFunctionMode):
    """One forward pass of a converted model over a distributed graph.

    Args:
        seed, step: the key of this pass's dropout masks.
    """

    def __init__(self, graph: Graph, seed: int, step: int) -> None:
        super().__init__()
        self.whole, self.seed, self.step = graph, seed, step
        self.graph = _any_relation(graph)
        self.sets = row_sets(graph)
        self.num_dropouts = self.num_layers = 0
        self._typed = len(self.sets) > 1 and not isinstance(graph, SeedGraphs)

    def next_key(self) -> DropoutKey:
        """The key of the next dropout; they are counted through the forward pass."""
        return self.next_keys(1)

    def next_keys(self, count: int) -> DropoutKey:
        """The key of the first of the next `count` dropouts."""
        key = DropoutKey(self.seed, self.step, self.num_dropouts)
        self.num_dropouts += count
        return key

    def next_layer(self) -> DistributedGraph:
        """The layer of `for_seeds` that the next layer of the model runs on."""
        assert isinstance(self.whole, SeedGraphs)
        if self.num_layers == len(self.whole):
            raise ValueError(
                f"the model has more layers than the {len(self.whole)} that for_seeds made graphs "
                "for; give it num_layers, counting every layer that passes messages"
            )
        self.num_layers += 1
        return self.whole[self.num_layers - 1]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = self._call(func, args, kwargs or {})
        if self._typed and isinstance(out, (Tensor, tuple, list)):
            self._keep_notes(func, args, kwargs or {}, out)
        return out

    def _keep_notes(self, func: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> None:
        """What has been computed from a type's rows, and has as many, has that type's rows. So has
        what is left of a stack of such rows, as PyG makes one of relations, when it is reduced."""
        given = list(_tensors((args, kwargs)))
        notes = [getattr(t, "fullgraph_rows", None) for t in given]
        if _joins_first(func, args, kwargs, out):
            if func is torch.stack and all(ids is notes[0] for ids in notes):
                out.fullgraph_stack = notes[0]
            return
        ids = next((ids for ids in notes if ids is not None), None)
        stack = next((t for t in given if getattr(t, "fullgraph_stack", None) is not None), None)
        for tensor in _tensors(out):
            found = ids
            if ids is None and stack is not None:
                whole: Any = stack
                if tensor.shape == whole.shape:
                    tensor.fullgraph_stack = whole.fullgraph_stack  # type: ignore[attr-defined]
                elif tensor.dim() == whole.dim() - 1 and _takes_first(func, args, kwargs, whole):
                    found = whole.fullgraph_stack
            if found is not None and tensor.dim() and tensor.shape[0] == found.numel():
                of_rows(tensor, found)

    def rows_of(self, x: Tensor) -> RowSet | None:
        """Whose rows these are, or None."""
        if x.dim() == 0:
            return None
        note = getattr(x, "fullgraph_rows", None)
        if note is not None:
            return next((rows for rows in self.sets if rows.ids is note), None)
        fitting = [rows for rows in self.sets if rows.ids.numel() == x.shape[0]]
        if self._typed and len(fitting) > 1:
            return None
        return fitting[0] if fitting else None

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if func is is_running:
            return True
        if func is running_graph:
            return self.graph
        if func is next_layer:
            return self.next_layer()
        if func is with_rows:
            return args[0](self)
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is torch.dropout:
            return self._dropout(*args, **{"training" if k == "train" else k: v
                                           for k, v in kwargs.items()})  # fmt: skip
        if func is drop_edges:
            return self._drop_edges(*args)
        if (
            func in _RELU
            and len(args) == 1
            and not kwargs.get("inplace")
            and pointwise.suits(args[0])
        ):
            return pointwise.relu(args[0])
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func is F.layer_norm and self._has_node_rows(args[0]):
            if len(args[1] if len(args) > 1 else kwargs["normalized_shape"]) == args[0].dim():
                raise NotImplementedError("layer_norm over the node dimension; " + _ADVICE)
        elif func in _EXTREMA and len(args) == 1 and not kwargs and self._are_all_rows(args[0]):
            return extremum_over_ranks(args[0], _EXTREMA[func], self.graph.group)
        elif func in _EXTREMA and len(args) == 1 and not kwargs:
            return func(*args)
        elif func in _REFUSABLE:
            self._refuse(func, args, kwargs)
        return func(*args, **kwargs)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        rows = self.rows_of(input)
        if rows is None and input.dim():
            edges = list_of_size(self.graph, input.shape[0])
            rows = None if edges is None else RowSet(edges.edge_id, 0)
        if rows is None:
            raise self._not_rows(input, "dropout")
        out = dropout(input, rows.ids, p, self.next_key())
        return input.copy_(out) if inplace else out

    def _drop_edges(self, weight: Tensor, graph: DistributedGraph, p: float) -> Tensor:
        return dropout(weight, graph.edge_id, p, self.next_key())

    def _batch_norm(
        self, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
        momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if not training:
            return F.batch_norm(
                input, running_mean, running_var, weight, bias, False, momentum, eps
            )
        rows = self.rows_of(input)
        if rows is None:
            raise self._not_rows(input, "batch norm")
        if isinstance(self.whole, SeedGraphs):
            raise NotImplementedError(
                "batch norm in training takes the statistics of all nodes, of which for_seeds "
                "computes only some; train on the whole graph, or use a LayerNorm"
            )
        if input.dim() != 2:
            raise ValueError(f"batch norm takes rows [n, F], got shape {tuple(input.shape)}")
        return batch_norm(
            input, running_mean, running_var, weight, bias, momentum, eps,
            num_rows=rows.total, group=self.graph.group,
        )  # fmt: skip

    def _not_rows(self, input: Tensor, what: str) -> ValueError:
        counts = sorted({rows.ids.numel() for rows in self.sets})
        owned = " or ".join(map(str, counts))
        hint = "anything else would differ from rank to rank"
        if self._typed:
            hint = "of one type, and it cannot be told of which: compute it from that type's x"
        return ValueError(
            f"{what} inside a converted model takes one row for each of the {owned} owned nodes, "
            f"got shape {tuple(input.shape)}; {hint}"
        )

    def _refuse(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs.get("input")
        if not self._has_node_rows(x):
            return
        name = getattr(func, "__name__", str(func))
        if func in _OTHER_DROPOUTS:
            if kwargs.get("training", True) is not False:
                raise NotImplementedError(
                    f"{name} on node rows draws numbers that depend on the number of ranks; "
                    "use torch.nn.functional.dropout, whose mask does not"
                )
        elif func in _LOSSES:
            if kwargs.get("reduction", "mean") != "none":
                raise NotImplementedError(
                    f"{name} inside a converted model is a loss of this rank's rows alone; use "
                    "fullgraph.cross_entropy or fullgraph.global_mean(values, mask)"
                )
        elif func in _RECURRENT:
            if not _is_along_each_row(args):
                raise NotImplementedError(
                    f"{name} takes the nodes of one rank for a sequence; it runs along the second "
                    "dimension of rows [n, L, F] where batch_first=True, without dropout"
                )
        elif func in _MIXTURES or reduces_rows(func, args, kwargs, x.dim()):
            raise NotImplementedError(
                f"{name} over the node dimension sees only the {x.shape[0]} rows of this rank; "
                + _ADVICE
            )

    def _are_all_rows(self, x: Any) -> bool:
        """Whether x has a row for each node, or edge, on every rank: on one it may be chance. All
        ranks come here together, as they run the same model."""
        if self.graph.group.size == 1 or not isinstance(x, Tensor):
            return False
        if isinstance(x, (torch.nn.Parameter, EdgeIndex, NodeIndex)):
            return False
        vote = torch.tensor([int(self._has_node_rows(x))])
        return int(self.graph.group.all_reduce(vote, "whose rows these are")) == (
            self.graph.group.size
        )

    def _has_node_rows(self, x: Any) -> bool:
        return (
            self.graph.group.size > 1
            and isinstance(x, Tensor)
            and not isinstance(x, (torch.nn.Parameter, EdgeIndex, NodeIndex))
            and x.dim() > 0
            and (
                getattr(x, "fullgraph_rows", None) is not None
                or (not self._typed and self.rows_of(x) is not None)
                or list_of_size(self.graph, x.shape[0]) is not None
            )
            # Nodes may come second, after stacks or heads that happen to be as many.
            and getattr(x, "fullgraph_stack", None) is None
            and not (x.dim() > 2 and x.shape[1] == self.graph.num_owned)
        )


_RELU = {F.relu, torch.relu, Tensor.relu}

_EXTREMA = {
    torch.max: True, torch.amax: True, Tensor.max: True, Tensor.amax: True,
    torch.min: False, torch.amin: False, Tensor.min: False, Tensor.amin: False,
}  # fmt: skip
_REFUSABLE = _OTHER_DROPOUTS | _LOSSES | REDUCTIONS | _MIXTURES | _RECURRENT
_ADVICE = "reduce with fullgraph.sum_over_ranks or fullgraph.global_mean"

# Where the dimension is among the arguments, and what it is by default, if not second and all.
_DIM_AT = dict.fromkeys(
    ("norm", "topk", "roll", "normalize", "vector_norm", "quantile", "nanquantile", "kthvalue",
     "diff"), 2,
)  # fmt: skip
_DEFAULT_DIM = {
    **dict.fromkeys(("sort", "argsort", "topk", "mode", "kthvalue", "diff"), -1), "normalize": 1
}  # fmt: skip


def _any_relation(graph: Graph) -> DistributedGraph:
    """A graph of this pass by which to find its group; of a typed one, a relation."""
    if isinstance(graph, SeedGraphs):
        return graph.base
    if isinstance(graph, DistributedHeteroGraph):
        return next(iter(graph.edge_index_dict.values()))
    return graph


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _joins_first(func: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> bool:
    """Whether rows are put after rows, or stacked before them."""
    if func not in _JOINS:
        return False
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    return bool(dim % out.dim() == 0)


def _takes_first(func: Callable[..., Any], args: Any, kwargs: Any, whole: Tensor) -> bool:
    """Whether the call, which leaves a dimension out, leaves out the first."""
    if func is Tensor.__getitem__:
        return isinstance(args[1], int)
    return func in REDUCTIONS and reduces_rows(func, args, kwargs, whole.dim())


def _is_along_each_row(args: Any) -> bool:
    """Whether a recurrent network's call has a sequence of its own for every row, and draws no
    dropout: (input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first)."""
    return (
        len(args) == 9
        and isinstance(args[3], bool)  # packed sequences have their parameters here
        and args[8] is True
        and not (args[5] > 0 and args[6])
    )


def reduces_rows(
    func: Callable[..., Any], args: Any, kwargs: Any, num_dims: int, dim: int = 0
) -> bool:
    """Whether the call's dimensions include the first, or `dim`, by their usual place in the
    arguments."""
    name = getattr(func, "__name__", "")
    at = _DIM_AT.get(name, 1)
    default: Any = _DEFAULT_DIM.get(name)
    named = next((kwargs[k] for k in ("dim", "axis", "dims", "dim0") if k in kwargs), default)
    dims = args[at] if len(args) > at else named
    if isinstance(dims, Tensor):  # torch.max(a, b) is element by element
        return False
    if dims is None or isinstance(dims, bool):
        return True
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    return any(d % num_dims == dim for d in dims)
