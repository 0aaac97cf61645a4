"""One run of a layer's own `message` and `aggregate` on a piece of its edges.

PyG's code runs as it is. `MessageRun` stands between it and torch: where the code reduces messages
over the edges of a node (`scatter_add_` and its kin, which PyG's aggregations and its `softmax` end
in), the messages are noted and the result is handed back if an earlier pass has found it; if not, a
stand-in is, and everything computed from it is provisional. What the code does between is torch's.

In a piece, destinations are numbered compactly, 0 .. d - 1, and the code is told that there are d.

Letters: n owned rows, e edges and d rows of a piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fullgraph.nn.rows import REDUCTIONS, reduces_rows
from fullgraph.ops.dropout import DropoutKey, dropout
from fullgraph.ops.reductions import Reducible


class Kind:
    """What a tensor of a run is, beyond an ordinary one: bits of an int, which cost least."""

    NONE = 0
    INDEX = 1  # which row each edge ends in
    EDGES = 2  # a row for each edge of the piece
    ROWS = 4  # a row for each of the piece's destinations
    OWNED = 8  # a row for each owned row
    PROVISIONAL = 16  # computed from a reduction that is not known yet


@dataclass
class Recording:
    """What the code uses without being given it, by id.

    ``captured``: tensors with a gradient, parameters mostly; ``outside``: those and all others, and
    their versions; ``written``: those that the code itself writes to.
    """

    captured: dict[int, Tensor] = field(default_factory=dict)
    outside: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)


@dataclass
class Setting:
    """What a run knows of its piece and of the layer.

    ``index``: int64 [e], the destination of each edge; ``target``: int64 [e], its owned row;
    ``num_rows``: d; ``edge_id``: int64 [e]; ``edge_dim``: where a message has its edges;
    ``total_edges``: edges of the list on all ranks; ``key``: of the first dropout mask;
    ``num_owned``: n; ``node_rows``: ids of tensors from outside that have a row for each of them;
    ``is_split``: whether an edge may live elsewhere than with the owner of its target.
    """

    index: Tensor
    target: Tensor
    num_rows: int
    edge_id: Tensor
    edge_dim: int
    total_edges: Callable[[], int]
    key: DropoutKey | None
    layer: str
    num_owned: int
    node_rows: frozenset[int]
    is_split: bool = False


_SUMS = {
    Tensor.scatter_add_, Tensor.scatter_add, torch.scatter_add, Tensor.index_add_,
    Tensor.index_add, torch.index_add,
}  # fmt: skip
_REDUCES = {
    Tensor.scatter_reduce_, Tensor.scatter_reduce, torch.scatter_reduce, Tensor.index_reduce_,
    Tensor.index_reduce, torch.index_reduce,
}  # fmt: skip
_IN_PLACE_REDUCTIONS = {
    Tensor.scatter_add_, Tensor.index_add_, Tensor.scatter_reduce_, Tensor.index_reduce_,
}  # fmt: skip
_VIEWS = {
    Tensor.view, Tensor.expand, Tensor.expand_as, Tensor.unsqueeze, Tensor.reshape, Tensor.repeat,
    Tensor.view_as, torch.unsqueeze, torch.reshape, Tensor.contiguous, Tensor.long, Tensor.detach,
    Tensor.squeeze, torch.squeeze, Tensor.clone, Tensor.flatten, torch.flatten,
}  # fmt: skip
_LOOKUPS = {
    Tensor.index_select, torch.index_select, Tensor.__getitem__, Tensor.gather, torch.gather,
    torch.take_along_dim, F.embedding,
}  # fmt: skip
_ABOUT = {
    Tensor.size, Tensor.dim, Tensor.is_floating_point, Tensor.new_zeros, Tensor.new_ones,
    Tensor.new_full, Tensor.new_empty, Tensor.element_size, Tensor.is_contiguous,
    Tensor.__len__, torch.is_floating_point, torch.is_tensor, torch.zeros_like, torch.ones_like,
    Tensor.stride, Tensor.type, Tensor.get_device, torch.numel, Tensor.__hash__, Tensor.__repr__,
}  # fmt: skip
_QUESTIONS = {
    Tensor.dim, Tensor.size, Tensor.is_floating_point, Tensor.element_size,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cuda")),
}  # fmt: skip
# What each reduction starts from, and whether `scatter_reduce_` counts that in.
_STARTS = {"sum": (0, True), "prod": (1, True), "amax": (0, False), "amin": (0, False)}
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}


class MessageRun(TorchFunctionMode):
    """Runs code on a piece; `reduced` then holds the messages of reductions that were not known.

    Args:
        known: results of earlier passes, of this piece's rows, by place among the calls.
        swaps: a tensor to use instead of another, by the other's id.
        recording: where to note what the code uses.
        effects: whether tensors from outside (running statistics) may be written.
    """

    def __init__(
        self, setting: Setting, known: dict[int, Tensor], *,
        swaps: dict[int, Tensor] | None = None, recording: Recording | None = None,
        effects: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.setting, self.known, self.recording, self.effects = setting, known, recording, effects
        self.swaps = dict(swaps or {})
        self.reduced: dict[int, Reducible] = {}
        self.num_calls = self.num_dropouts = 0
        self.has_effects = False
        self._kinds: dict[int, tuple[Tensor, int]] = {}
        self._sub_index: dict[int, Tensor | None] = {}
        self._made: dict[int, Tensor] = {}
        self._shadows: dict[int, Tensor] = {}
        self._outside_written: list[Tensor] = []
        self._mark(setting.index, Kind.INDEX)
        self._sub_index[id(setting.index)] = None

    # Kinds -------------------------------------------------------------------------------------

    def mark_edges(self, tensor: Tensor) -> None:
        """This tensor has a row for each edge."""
        self._mark(tensor, Kind.EDGES)

    def has_edge_rows(self, tensor: Tensor) -> bool:
        """Whether a tensor that the code has made has a row for each edge."""
        return bool(self._kind(tensor) & Kind.EDGES)

    def is_provisional(self, value: Any) -> bool:
        return any(self._kind(t) & Kind.PROVISIONAL for t in tensors_in(value))

    def _mark(self, tensor: Tensor, kind: int) -> None:
        self._kinds[id(tensor)] = (tensor, kind)
        self._made[id(tensor)] = tensor

    def _kind(self, tensor: Tensor) -> int:
        found = self._kinds.get(id(tensor))
        return Kind.NONE if found is None else found[1]

    def _kind_of_any(self, tensor: Tensor) -> int:
        """The kind of a tensor of the run, or of one from outside."""
        found = self._kinds.get(id(tensor))
        if found is not None:
            return found[1]
        is_table = tensor.dim() > 0 and tensor.shape[0] == self.setting.num_owned
        is_own = is_table and not isinstance(tensor, torch.nn.Parameter)
        return Kind.OWNED if is_own else Kind.NONE

    # The functions of the code -------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _QUESTIONS:  # half of all calls
            return self._answer(func, *args, **kwargs)
        given = tensors_in((args, kwargs))
        kind = Kind.NONE
        for tensor in given:
            kind |= self._kind_of_any(tensor)
        if kind & Kind.INDEX:
            return self._with_index(func, args, kwargs, kind)
        if func is F.dropout or func is torch.dropout:
            return self._dropout(*args, **{"training" if k == "train" else k: v
                                           for k, v in kwargs.items()})  # fmt: skip
        if func is F.batch_norm and self._trains_batch_norm(args, kwargs):
            return self._batch_norm(*args, **kwargs)
        self._refuse(func, args, kwargs, kind)
        if self.recording is not None:
            self._record(given)
        writes = _writes(func, kwargs)
        if writes and given and id(given[0]) not in self._made:
            self._write_outside(given[0])
        if self.swaps:
            args, kwargs = _swapped(args, self.swaps), _swapped(kwargs, self.swaps)
        out = func(*args, **kwargs)
        if writes and given and id(given[0]) in self._shadows:
            return None if out is None else given[0]
        used = tensors_in((args, kwargs)) if self.swaps else given
        if id(out) in self._made or not any(out is t for t in used):
            self._note(out, kind)  # but for a tensor from outside that came back as it is
        if writes and given and id(given[0]) in self._made:
            self._note(given[0], kind)
        return out

    def _answer(self, func: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What a function says of a tensor, of whatever kind: no tensor comes out of it."""
        if self.recording is not None:
            self._record([tensor])
        return func(self.swaps.get(id(tensor), tensor), *args, **kwargs)

    def _write_outside(self, tensor: Tensor) -> None:
        """Let the code see what it writes; whoever else has the tensor sees it once, if at all."""
        self.has_effects = True
        if self.recording is not None:
            self.recording.written.add(id(tensor))
        if not self.effects and id(tensor) not in self._shadows:
            self._shadows[id(tensor)] = copy = self.swaps.get(id(tensor), tensor).detach().clone()
            self._outside_written.append(tensor)  # so that its id stays its own
            self.swaps[id(tensor)] = copy

    def _note(self, out: Any, kind: int) -> None:
        """Remember what came out of a function whose arguments were of this kind."""
        for tensor in tensors_in(out):
            new = kind & Kind.PROVISIONAL
            if kind & Kind.EDGES and tensor.dim() and self._has_edges(tensor):
                new |= Kind.EDGES
            elif kind & Kind.ROWS and tensor.dim() and tensor.shape[0] == self.setting.num_rows:
                new |= Kind.ROWS
            elif kind & Kind.OWNED and tensor.dim() and (
                tensor.shape[0] == self.setting.num_owned
            ):  # fmt: skip
                new |= Kind.OWNED
            self._mark(tensor, new | self._kind(tensor))

    def _has_edges(self, tensor: Tensor) -> bool:
        return self.setting.index.numel() in (tensor.shape[0], *self._edge_size(tensor))

    def _edge_size(self, tensor: Tensor) -> tuple[int, ...]:
        dim = self.setting.edge_dim
        return (tensor.shape[dim],) if -tensor.dim() <= dim < tensor.dim() else ()

    def _record(self, given: list[Tensor]) -> None:
        assert self.recording is not None
        for tensor in given:
            if id(tensor) not in self._made:
                version = 0 if tensor.is_inference() else tensor._version
                self.recording.outside.setdefault(id(tensor), (tensor, version))
                if tensor.requires_grad:
                    self.recording.captured.setdefault(id(tensor), tensor)

    def _refuse(self, func: Callable[..., Any], args: Any, kwargs: Any, kind: int) -> None:
        x = args[0] if args else kwargs.get("input")
        if func in REDUCTIONS and isinstance(x, Tensor) and not self._kind(x) & Kind.EDGES:
            self._refuse_over_rows(func, args, kwargs, x)
        if not kind & Kind.EDGES:
            return
        mixes = func in _RECURRENT or (
            func in REDUCTIONS
            and isinstance(x, Tensor)
            and self._kind(x) & Kind.EDGES
            and self._dims_of(x, self.setting.index.numel())
            and reduces_rows(
                func, args, kwargs, x.dim(), self._dims_of(x, self.setting.index.numel())[0]
            )
        )
        if mixes:
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: its message calls {_name(func)} over the edges, of "
                "which only some are at hand at a time. Reduce over a node's edges with "
                "torch_geometric.utils.scatter or softmax and the `index` that message can ask for"
            )

    def _dims_of(self, x: Tensor, size: int) -> list[int]:
        """Where a tensor has its edges or rows, so many: where the layer has them, or first."""
        dims = [self.setting.edge_dim] if x.dim() > 2 else []
        return [d % x.dim() for d in (*dims, 0) if x.dim() and x.shape[d] == size]

    def _refuse_over_rows(
        self, func: Callable[..., Any], args: Any, kwargs: Any, x: Tensor
    ) -> None:
        """Refuse to mix aggregated rows, or rows that the code has from elsewhere."""
        kind = self._kind(x)
        outside = id(x) in self.setting.node_rows or kind & Kind.OWNED
        if not outside and not kind & Kind.ROWS:
            return
        size = self.setting.num_owned if outside else self.setting.num_rows
        dims = self._dims_of(x, size)
        if dims and reduces_rows(func, args, kwargs, x.dim(), dims[0]):
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: its message or aggregation calls {_name(func)} "
                "over the rows of nodes, of which only some are at hand; do so in its forward, "
                "with fullgraph.sum_over_ranks or fullgraph.global_mean"
            )

    # Reductions --------------------------------------------------------------------------------

    def _with_index(self, func: Callable[..., Any], args: Any, kwargs: Any, kind: int) -> Any:
        if func in _SUMS or func in _REDUCES:
            return self._reduce(func, args, kwargs)
        index = next(t for t in tensors_in((args, kwargs)) if self._kind(t) & Kind.INDEX)
        if func is Tensor.__getitem__ and args[0] is index:
            return self._part_of_index(index, args[1])
        if func in _LOOKUPS:
            return self._look_up(func, args, kwargs, index, kind)
        if func in _VIEWS and args[0] is index:
            out = func(*args, **kwargs)
            self._mark(out, Kind.INDEX)
            self._sub_index[id(out)] = self._sub_index[id(index)]
            return out
        if func is Tensor.numel:  # for code that asks whether there are edges at all
            return max(1, index.numel())
        if func is Tensor.max and len(args) == 1:  # for code that counts the destinations so
            return torch.tensor(self.setting.num_rows - 1)
        if func in _ABOUT or _name(func) == "__get__":
            return func(*args, **kwargs)
        raise NotImplementedError(
            f"layer {self.setting.layer!r}: its message or aggregation calls {_name(func)} on the "
            "index of the edges, and so needs all messages of a node at once. Sums, means, "
            "products, maxima, minima, variances, softmax and what is made of them are supported"
        )

    def _part_of_index(self, index: Tensor, chosen: Any) -> Tensor:
        whole = self._sub_index[id(index)]
        out = index[chosen]
        self._mark(out, Kind.INDEX)
        self._sub_index[id(out)] = (index if whole is None else whole)[chosen]
        return out

    def _look_up(
        self, func: Callable[..., Any], args: Any, kwargs: Any, index: Tensor, kind: int
    ) -> Tensor:
        """A row for each edge: of the piece's destinations, or of all owned rows of a tensor that
        is not of this run."""
        table = args[1] if func is F.embedding else args[0]
        if self.recording is not None:
            self._record([table])
        outside = id(table) not in self._made or id(table) in self.swaps
        of_owned = outside or bool(self._kind(table) & Kind.OWNED)
        self._check_table(table, of_owned)
        if of_owned and self.setting.is_split:
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: its message looks rows of nodes up by the index of "
                "edges, but under this placement edges live elsewhere than their targets. Give "
                "propagate the rows, and ask for them by a name that ends in _i"
            )
        table = self.swaps.get(id(table), table)
        place = index
        if of_owned:
            sub = self._sub_index[id(index)]
            place = self.setting.target if sub is None else self._rows_at(sub)
            if index.dim() > 1:
                place = place.view([-1] + [1] * (index.dim() - 1)).expand_as(index)
            if table.shape[0] == 0:  # a rank without rows, in a run without edges
                table = table.new_zeros(1, *table.shape[1:])
        swaps = {id(index): place, id(args[1] if func is F.embedding else args[0]): table}
        out = func(*_swapped(args, swaps), **_swapped(kwargs, swaps))
        self._mark(out, Kind.EDGES | (kind & Kind.PROVISIONAL))
        return out

    def _check_table(self, table: Tensor, of_owned: bool) -> None:
        if isinstance(table, torch.nn.Parameter):
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: its message looks rows of a parameter up by the "
                "index of nodes, which counts this rank's rows only; look it up by graph.node_id "
                "before, and give propagate the rows"
            )
        size = self.setting.num_owned if of_owned else self.setting.num_rows
        dims = (0, self.setting.edge_dim) if table.dim() > 2 else (0,)
        if all(table.shape[d] != size for d in dims):
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: its message looks up, by the index of nodes, a "
                f"tensor of shape {tuple(table.shape)}; one row for each of the "
                f"{self.setting.num_owned} owned nodes is supported"
            )

    def _rows_at(self, index: Tensor) -> Tensor:
        rows = self.setting.target.new_zeros(self.setting.num_rows)
        rows[self.setting.index] = self.setting.target
        return rows[index]

    def _reduce(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        into, dim, index, values, kind = self._call_of(func, args, kwargs)
        call, self.num_calls = self.num_calls, self.num_calls + 1
        dim = dim % max(1, into.dim())
        if into.shape[dim] != self.setting.num_rows:
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: {_name(func)} reduces messages into "
                f"{into.shape[dim]} rows where there are {self.setting.num_rows} destinations; use "
                "the dim_size or size_i that message can ask for"
            )
        sub = self._sub_index[id(index)]
        num_messages = self.setting.index.numel() if sub is None else sub.numel()
        if values.shape[dim] != num_messages or (
            "index_" not in _name(func) and index.shape != values.shape
        ):
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: {_name(func)} reduces {tuple(values.shape)} by an "
                f"index of shape {tuple(index.shape)}; an index as wide as the values is supported "
                "(an argument of propagate with a row for each edge must have had so at first)"
            )
        found = self.known.get(call)
        if found is None:
            if not self.is_provisional((into, values)):
                if self.recording is not None:
                    self._record([values])
                values = self.swaps.get(id(values), values)
                self.reduced[call] = Reducible(kind, values.movedim(dim, 0), sub)
            out = into
            self._mark(out, Kind.ROWS | Kind.PROVISIONAL)
            return out
        found = found.movedim(0, dim)
        if func not in _IN_PLACE_REDUCTIONS:
            into = into.clone()
        if kind == "sum":
            into += found
        else:
            into.copy_(found)
        self._mark(into, Kind.ROWS)
        return into

    def _call_of(
        self, func: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Tensor, int, Tensor, Tensor, str]:
        """What is reduced into, the dimension, the index, the values and the kind of a call."""
        given: dict[str, Any]
        names = ["input", "dim", "index", "source" if "index_" in _name(func) else "src", "reduce"]
        given = {**dict(zip(names, args)), **kwargs}
        given.setdefault("input", given.get("self"))
        into, dim, index = given["input"], given["dim"], given["index"]
        values: Any = given.get("src", given.get("source"))
        kind: str = "sum" if func in _SUMS else given["reduce"]
        supported = (
            kind in _STARTS
            and isinstance(values, Tensor)
            and isinstance(index, Tensor)
            and self._kind(index) & Kind.INDEX
            and given.get("alpha", 1) == 1
        )
        if supported:
            start, include_self = _STARTS[kind]
            supported = given.get("include_self", True) in (include_self, None) or kind == "sum"
            if not self.is_provisional(into):
                supported &= bool((into == start).all())
        if not supported:
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: {_name(func)} with reduce={kind!r} in this form is "
                "not supported in a message; torch_geometric.utils.scatter with sum, mean, mul, "
                "min or max is"
            )
        return into, dim, index, values, kind

    def keep(self, values: Any) -> Any:
        """The result of code whose values stay with their edges: [e, ...]."""
        if not isinstance(values, Tensor) or values.shape[:1] != self.setting.index.shape:
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: its edge_update returns {shape}; a tensor with a "
                f"row for each of the {self.setting.index.numel()} edges at hand is supported"
            )
        call, self.num_calls = self.num_calls, self.num_calls + 1
        if call not in self.known and not self.is_provisional(values):
            self.reduced[call] = Reducible("each", values)
        return values

    def _total(self, values: Tensor) -> Tensor:
        """Σ over all edges of all ranks of values [e, F]."""
        call, self.num_calls = self.num_calls, self.num_calls + 1
        found = self.known.get(call)
        if found is not None:
            self._mark(found, Kind.NONE)
            return found
        if not self.is_provisional(values):
            self.reduced[call] = Reducible("total", values)
        stand_in = values.new_zeros(values.shape[1:])
        self._mark(stand_in, Kind.PROVISIONAL)
        return stand_in

    # Random numbers and statistics ------------------------------------------------------------

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        kind = self._kind(input)
        if kind & Kind.ROWS and not kind & Kind.EDGES:
            self._refuse_on_rows("dropout")
        dim = self._dim_of_edges(input, "dropout")
        k, self.num_dropouts = self.num_dropouts, self.num_dropouts + 1
        key = self.setting.key
        if key is None:  # only to see what the code does
            out = input * 1
        else:
            key = key._replace(layer=key.layer + k)
            rows = dropout(input.movedim(dim, 0), self.setting.edge_id, p, key)
            out = rows.movedim(0, dim)
        self._mark(out, kind | Kind.EDGES)
        if inplace:
            input.copy_(out)
            return input
        return out

    def _dim_of_edges(self, tensor: Tensor, what: str) -> int:
        num_edges = self.setting.index.numel()
        dim = self.setting.edge_dim
        dims = [dim, 0] if dim < 0 and tensor.dim() > 2 else [0]
        for dim in dims:
            if tensor.dim() and tensor.shape[dim] == num_edges:
                return dim
        raise NotImplementedError(
            f"layer {self.setting.layer!r}: {what} inside a message takes a row for each of the "
            f"{num_edges} edges at hand, got shape {tuple(tensor.shape)}"
        )

    def _refuse_on_rows(self, what: str) -> None:
        raise NotImplementedError(
            f"layer {self.setting.layer!r}: {what} on aggregated rows inside the aggregation is "
            "not supported; apply it to the layer's output"
        )

    def _trains_batch_norm(self, args: Any, kwargs: Any) -> bool:
        training = kwargs.get("training", args[5] if len(args) > 5 else False)
        return bool(training)

    def _batch_norm(
        self, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
        momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        """Statistics over the messages of all edges of all ranks, in two passes."""
        if self._kind(input) & Kind.ROWS and not self._kind(input) & Kind.EDGES:
            self._refuse_on_rows("batch norm")
        if input.dim() != 2 or input.shape[0] != self.setting.index.numel():
            raise NotImplementedError(
                f"layer {self.setting.layer!r}: batch norm inside a message takes a row for each "
                f"of the {self.setting.index.numel()} edges at hand, got {tuple(input.shape)}"
            )
        count = max(1, self.setting.total_edges())
        if self.recording is not None:
            self._record([t for t in (input, weight, bias) if t is not None])
        wide = input.float() if input.element_size() == 2 else input
        if wide is not input:
            self._mark(wide, self._kind(input))
        with self:
            mean = self._total(wide) / count
            centred = wide - mean
            variance = self._total(centred.square()) / count
            out = centred * (variance + eps).rsqrt()
            if weight is not None:
                out = out * weight
            if bias is not None:
                out = out + bias
            out = out.to(input.dtype)
        self.has_effects |= running_mean is not None
        if self.setting.total_edges() == 1:
            raise ValueError(
                f"layer {self.setting.layer!r}: batch norm needs more than 1 edge to train, got 1 "
                "on all ranks"
            )
        updates = self.effects and self.setting.total_edges() > 0
        if updates and running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                unbiased = variance * (count / max(1, count - 1))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        return out


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    found: list[Tensor] = []
    _collect_tensors(value, found)
    return found


def _collect_tensors(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect_tensors(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect_tensors(item, found)


def _swapped(value: Any, swaps: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return swaps.get(id(value), value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_swapped(item, swaps) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_swapped(item, swaps) for item in value)
    if isinstance(value, dict):
        return {key: _swapped(item, swaps) for key, item in value.items()}
    return value


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", str(func))


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function writes into its first argument."""
    return _is_in_place(func) or kwargs.get("inplace") is True


@lru_cache(maxsize=1024)
def _is_in_place(func: Callable[..., Any]) -> bool:
    name = _name(func)
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in ("__setitem__", "__set__") or name in _OPERATORS


_OPERATORS = {f"__i{op}__" for op in ("add", "sub", "mul", "truediv", "pow", "and", "or", "xor")}
