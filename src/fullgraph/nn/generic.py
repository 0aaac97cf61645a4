"""Any MessagePassing layer: its own `forward`, `message`, `aggregate` and `update`, on a graph that
is spread over ranks.

`forward` runs as it is on a stand-in for `edge_index` (see `edge_index`). `propagate` and
`edge_updater` run the layer's message code over pieces of the blocks (`message_run`), in as many
passes as its reductions depend on each other: one for sums, three for a softmax over a node's edges
(its maximum, its sum, what it weighs). No message outlives its piece; the backward pass makes it
again.

Letters: n owned rows, m owned rows that edges start from, E edges of the list, e edges of a piece.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.seeds import SeedGraphs
from fullgraph.nn.edge_index import EdgeIndex
from fullgraph.nn.layer_state import LayerState, OfPieces, attributes_undone, draws_undone
from fullgraph.nn.message_run import MessageRun, Recording, Setting
from fullgraph.nn.rows import RowFunctions, next_layer, of_rows, with_rows
from fullgraph.ops.dropout import DropoutKey
from fullgraph.ops.edge_list import EdgeList, Piece
from fullgraph.ops.edge_move import turned
from fullgraph.ops.messages import (
    Inputs,
    Pass,
    Spec,
    check_edges_alone,
    is_close,
    message_pass,
)
from fullgraph.ops.reductions import Reducible


class Generic(MessagePassing):
    """Mixed into the class of a converted layer, before PyG's."""

    fullgraph_layer: str
    # Whether the layer itself makes targets' rows of x on a graph of `for_seeds`.
    one_x = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, SeedGraphs) for value in [*args, *kwargs.values()]):
            args, kwargs = _on_next_layer(self, args, kwargs)
        return self.forward_on_graph(*args, **kwargs)

    def forward_on_graph(self, *args: Any, **kwargs: Any) -> Any:
        """PyG's `forward`, with stand-ins where graphs are."""
        layer = self.fullgraph_layer
        args = tuple(_with_standin(value, layer) for value in args)
        kwargs = {name: _with_standin(value, layer) for name, value in kwargs.items()}
        return super().forward(*args, **kwargs)

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
        if isinstance(edge_index, DistributedGraph):
            edge_index = _with_standin(edge_index, self.fullgraph_layer)
        if not isinstance(edge_index, EdgeIndex):
            return super().propagate(edge_index, size=size, **kwargs)
        for hook in self._propagate_forward_pre_hooks.values():
            changed = hook(self, (edge_index, size, kwargs))
            if changed is not None:
                edge_index, size, kwargs = changed
        out = with_rows(_Propagation(self, edge_index, kwargs).run)
        if edge_index.edges.graph.types is not None:
            of_rows(out, edge_index.edges.graph.node_id)
        for hook in self._propagate_forward_hooks.values():
            changed = hook(self, (edge_index, size, kwargs), out)
            out = out if changed is None else changed
        return out

    def edge_updater(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
        if isinstance(edge_index, DistributedGraph):
            edge_index = _with_standin(edge_index, self.fullgraph_layer)
        if not isinstance(edge_index, EdgeIndex):
            return super().edge_updater(edge_index, size=size, **kwargs)
        return with_rows(_EdgeUpdate(self, edge_index, kwargs).run)

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Nothing: PyG has prepared its class, and would put its own `propagate` on ours when a
        layer is copied."""


def _on_next_layer(layer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a layer that is given what `for_seeds` made: its own graph instead, and for
    x, which has a row for each source, the pair of it and the targets' rows."""
    graph = next_layer()
    if type(layer).one_x:  # and of edge values it takes those of the whole graph
        return _for_layer(args, graph, False), _for_layer(kwargs, graph, False)
    if layer.flow != "source_to_target" or not _takes_pairs(layer):
        raise NotImplementedError(
            f"layer {layer.fullgraph_layer!r} ({type(layer).__name__}) takes one x for sources and "
            "targets alike, so it cannot run on the graphs of for_seeds; run it on the whole graph"
        )
    values = list(args)
    at = "x" in kwargs
    x = kwargs["x"] if at else values[0]
    if isinstance(x, Tensor):
        pair = (x, x[graph.target_rows])
        if at:
            kwargs = {**kwargs, "x": pair}
        else:
            values[0] = pair
    return _for_layer(tuple(values), graph), _for_layer(kwargs, graph)


def _for_layer(values: Any, graph: DistributedGraph, of_edges: bool = True) -> Any:
    """Arguments with the layer's graph for that of all layers and, of values of the whole graph's
    edges, those of the layer's."""
    if isinstance(values, dict):
        return {name: _for_layer((v,), graph, of_edges)[0] for name, v in values.items()}
    base = graph.base
    assert base is not None
    found = []
    for value in values:
        if isinstance(value, SeedGraphs):
            value = graph
        elif of_edges and isinstance(value, Tensor) and (
            value.dim() and value.shape[0] == base.num_local_edges
        ):  # fmt: skip
            value = graph.from_base_edges(value)
        found.append(value)
    return tuple(found)


def _takes_pairs(layer: Any) -> bool:
    """Whether PyG's class says that x may be a pair of sources' and targets' rows."""
    for kind in type(layer).__mro__:
        if kind.__module__.startswith("torch_geometric.") and "forward" in vars(kind):
            x = inspect.signature(vars(kind)["forward"]).parameters.get("x")
            return x is not None and "Tuple[" in str(x.annotation)
    return False


def generic(kind: type) -> type[MessagePassing]:
    """The class that a layer of this class becomes."""
    return _generic(kind)


@functools.cache
def _generic(kind: Hashable) -> Any:
    assert isinstance(kind, type)
    return type(kind.__name__, (Generic, kind), {"__module__": kind.__module__})


def _with_standin(value: Any, layer: str) -> Any:
    """`value` with a stand-in where it is, or holds, a distributed graph."""
    if isinstance(value, DistributedGraph):
        return EdgeIndex.of(EdgeList(value), layer)
    if isinstance(value, dict):
        return {key: _with_standin(item, layer) for key, item in value.items()}
    return value


@dataclass
class _Slots:
    """Where each argument of the code comes from: an index into a group of `Inputs`."""

    inputs: Inputs = field(default_factory=Inputs)
    sources: dict[str, int] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    edges: dict[str, int] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)


def _slot(tensors: list[Tensor], tensor: Tensor) -> int:
    """The place of a tensor among these, to which it is added if it is new."""
    for k, other in enumerate(tensors):
        if other is tensor:
            return k
    tensors.append(tensor)
    return len(tensors) - 1


class _Code:
    """A layer's code that runs on pieces of edges, and the passes that it takes."""

    entry: str
    functions: tuple[str, ...]

    def __init__(self, layer: Any, edge_index: EdgeIndex, kwargs: dict[str, Any]) -> None:
        self.layer, self.name = layer, layer.fullgraph_layer
        self.is_reversed = edge_index.flipped != (layer.flow == "target_to_source")
        self.given, self.edges_given = kwargs, edge_index.edges
        self.per_row: dict[int, bool] = {}
        self.key: DropoutKey | None = None
        self.draws = False
        self.draw_key: DropoutKey | None = None

    # Arguments ---------------------------------------------------------------------------------

    def _collect(self) -> None:
        edges = self.edges_given
        self.edges = turned(edges)[0] if self.is_reversed else edges
        graph = self.edges.graph
        slots = self.slots = _Slots()
        self.node_dims: dict[str, int] = {}
        names = self.layer.inspector.get_flat_param_names([*self.functions])
        for name in names:
            if name in _SPECIAL:
                continue
            if name.endswith(("_i", "_j")):
                self._collect_of_nodes(name, graph)
                continue
            value = self.given.get(name, Parameter.empty)
            if self._is_of_edges(name, value):
                moved = turned(edges)[1](value) if self.is_reversed else value
                slots.edges[name] = _slot(slots.inputs.edges, moved)
            elif value is not Parameter.empty:
                slots.plain[name] = value
        self.is_deep = any(t.dim() > 2 for t in slots.inputs.sources)
        plain = [t for t in slots.plain.values() if isinstance(t, Tensor) and t.dim()]
        self.node_rows = frozenset(
            id(t) for t in plain
            if t.shape[0] == graph.num_owned and not isinstance(t, torch.nn.Parameter)
        )  # fmt: skip

    def _collect_of_nodes(self, name: str, graph: DistributedGraph) -> None:
        of_source = name.endswith("_j")
        value = self.given.get(name[:-2], Parameter.empty)
        pair = isinstance(value, (tuple, list))
        if pair:
            # PyG's pairs are of (sources, targets). Where it could not write code for the class,
            # they are of (row 0, row 1) of edge_index, whichever of them messages go to.
            by_row = self.layer.flow == "target_to_source" and not self._has_written_code()
            value = value[0 if of_source != by_row else 1]
        if not isinstance(value, Tensor):
            if value is not Parameter.empty:
                self.slots.plain[name] = value
            return
        dim = self.layer.node_dim
        size = graph.num_sources if of_source else graph.num_owned
        rows = value.movedim(dim, 0)
        if rows.shape[0] != size:
            raise ValueError(
                f"layer {self.name!r} was given {name[:-2]} with {rows.shape[0]} rows in dimension "
                f"{dim}, where this rank owns {size}"
            )
        self.node_dims[name] = dim if dim >= 0 else dim + value.dim()
        if of_source:
            self.slots.sources[name] = self._node_slot(self.slots.inputs.sources, value, rows)
        else:
            self.slots.targets[name] = self._node_slot(self.slots.inputs.targets, value, rows)

    def _has_written_code(self) -> bool:
        own = getattr(super(Generic, self.layer), self.entry)
        return own.__func__ is not getattr(MessagePassing, self.entry)

    def _node_slot(self, tensors: list[Tensor], value: Tensor, rows: Tensor) -> int:
        seen = self.__dict__.setdefault("_rows_of", {})
        rows = seen.setdefault((id(value), rows.shape), rows)
        return _slot(tensors, rows)

    def _is_of_edges(self, name: str, value: Any) -> bool:
        """Whether an argument has a value for each edge: by its size, agreed on by all ranks when
        the layer first gets one of its kind on this graph."""
        if not isinstance(value, Tensor) or isinstance(value, torch.nn.Parameter):
            return False
        fits = value.dim() > 0 and value.shape[0] == self.edges_given.num_edges
        graph = self.edges_given.graph
        decided = graph.layer_cache.setdefault(self.layer, {})
        key = (name, value.shape[1:], value.dtype, self.edges_given.origin is None)
        if key not in decided:
            vote = torch.tensor([int(fits)])
            votes = graph.group.all_reduce(vote, "which arguments are of edges")
            decided[key] = int(votes) == graph.group.size
        if decided[key] and not fits:
            raise ValueError(
                f"layer {self.name!r} was given {name} with shape {tuple(value.shape)}, where this "
                f"rank has {self.edges_given.num_edges} edges (in the order of graph.edge_id)"
            )
        return bool(decided[key])

    def _arguments(self, inputs: Inputs, setting: Setting) -> dict[str, Any]:
        """What the code can ask for, of one piece."""
        slots, found = self.slots, dict(self.slots.plain)
        for name, k in slots.sources.items():
            found[name] = inputs.sources[k].movedim(0, self.node_dims[name])
        for name, k in slots.targets.items():
            found[name] = inputs.targets[k].movedim(0, self.node_dims[name])
        for name, k in slots.edges.items():
            found[name] = inputs.edges[k]
        graph = self.edges.graph
        found.update(
            index=setting.index, edge_index_i=setting.index, ptr=None, adj_t=None,
            dim_size=setting.num_rows, size_i=setting.num_rows, size_j=graph.num_sources,
            size=[graph.num_sources, setting.num_rows],
        )  # fmt: skip
        for name in ("edge_index", "edge_index_j"):
            if name in self.layer.inspector.get_flat_param_names([*self.functions]):
                raise NotImplementedError(
                    f"layer {self.name!r}: its message asks for {name}, whose values differ from "
                    "rank to rank; index, size_i and arguments that end in _i or _j are supported"
                )
        return found

    # Passes --------------------------------------------------------------------------------------

    def run(self, rows: RowFunctions) -> Any:
        if (reason := check_hooks(self.layer)) is not None:  # set after `convert`
            raise NotImplementedError(f"layer {self.name!r} cannot run: {reason}")
        if rows.graph.placement.feats > 1:
            raise NotImplementedError(
                f"layer {self.name!r} ({type(self.layer).__name__}) computes messages from whole "
                f"rows, but under the placement {rows.graph.placement} a worker has a slice of the "
                "columns. Layers that aggregate rows as they are, and GATConv, GATv2Conv and "
                "TransformerConv, run there; for this one use a grid with K = 1"
            )
        self._collect()
        known: dict[int, Tensor] = {}
        recording = Recording()
        while True:
            recording.captured.clear()
            with attributes_undone(self.layer) as attributes:
                result, run = self._run_without_edges(known, recording)
                set_here = _changed(attributes)
            if run.num_dropouts and self.key is None:  # masks are keyed on their place in all
                self.key = rows.next_keys(run.num_dropouts)
                continue
            if self.draws and self.draw_key is None:
                self.draw_key = rows.next_key()
            if not run.reduced:
                by_rows = self.entry == "propagate" and rows.graph.group.size > 1
                if by_rows and not self._is_checked("rows"):
                    self._check_rows_alone(known, result)
                if run.has_effects:
                    with attributes_undone(self.layer) as attributes:
                        result, run = self._run_without_edges(known, None, effects=True)
                        set_here = _changed(attributes)
                self._set_attributes(set_here, run)
                out = self._finish(result, known, rows)
                self._forget()
                return out
            self._pass(known, run, recording)

    def _forget(self) -> None:
        """Let go of what the backward pass does not need; autograd keeps what it does."""
        self.given, self.slots.inputs = {}, Inputs()
        self.__dict__.pop("_rows_of", None)

    def _set_attributes(
        self, found: list[tuple[dict[str, Any], str, Any]], run: MessageRun
    ) -> None:
        """What the code has set on its layer, but for what has a row for each made-up edge."""
        for own, name, value in found:
            gone = isinstance(value, Tensor) and run.has_edge_rows(value)
            what = f"layer {self.name!r}: {name}, which its message has set,"
            own[name] = OfPieces.of(what) if gone else value

    def _pass(self, known: dict[int, Tensor], run: MessageRun, recording: Recording) -> None:
        calls = sorted(run.reduced)
        captured = list(recording.captured.values()) if torch.is_grad_enabled() else []
        inputs = Inputs(
            self.slots.inputs.sources, self.slots.inputs.targets, self.slots.inputs.edges,
            captured, list(known.values()),
        )  # fmt: skip
        specs = [
            Spec(m.kind, m.values.shape[1:], m.values.dtype, m.values.requires_grad)
            for m in (run.reduced[call] for call in calls)
        ]
        ids, places = [id(t) for t in captured], list(known)
        device = self.edges.graph.node_id.device
        state = LayerState(self.layer, recording, device, self._draw_seed())
        is_checked = self._is_checked(f"pass {calls}")

        def messages(piece_inputs: Inputs, piece: Piece) -> list[Reducible]:
            found = self._run_piece(
                piece_inputs, piece, dict(zip(ids, piece_inputs.captured)),
                dict(zip(places, piece_inputs.known)), state,
            )  # fmt: skip
            missing = [call for call in calls if call not in found]
            if missing or len(found) != len(calls):
                raise RuntimeError(
                    f"the message code of layer {self.name!r} takes another way for some edges "
                    "than for others; it must not depend on how many edges there are"
                )
            return [found[call] for call in calls]

        def program(piece_inputs: Inputs, piece: Piece) -> list[Reducible]:
            nonlocal is_checked
            found = messages(piece_inputs, piece)
            if not is_checked and piece.position.numel() > 1:
                is_checked = True
                with torch.no_grad():
                    check_edges_alone(messages, piece_inputs, piece, found, self.name)
            return found

        per_row = [self.per_row[place] for place in places]
        task = Pass(self.edges, program, specs, per_row, self.name)
        results = message_pass(task, inputs)
        for call, result, spec in zip(calls, results, specs):
            known[call] = result
            self.per_row[call] = spec.kind not in ("total", "each")

    def _is_checked(self, what: str) -> bool:
        """Whether it has been looked at, in this mode, that the layer's messages depend on nothing
        but their own edge; from now on it has. Random numbers would differ."""
        if self.draws:
            return True
        modes = tuple(module.training for module in self.layer.modules())
        checked = self.layer.__dict__.setdefault("_fullgraph_checked", set())
        key = (self.entry, what, modes)
        is_checked = key in checked
        checked.add(key)
        return is_checked

    def _check_rows_alone(self, known: dict[int, Tensor], result: Any) -> None:
        """Raise NotImplementedError where a row of the result depends on other nodes' rows."""
        n = self.edges.graph.num_owned
        if n < 2 or not isinstance(result, Tensor):
            return
        half = {
            call: z[: n // 2].detach() if self.per_row[call] else z for call, z in known.items()
        }
        with torch.no_grad(), attributes_undone(self.layer):
            alone, _ = self._run_without_edges(half, None, num_rows=n // 2)
        dim = self.layer.node_dim
        if not is_close(alone, result.detach().narrow(dim, 0, n // 2)):
            raise NotImplementedError(
                f"layer {self.name!r}: its aggregation mixes the rows of different nodes, of which "
                "this rank has some only; do so in its forward, with fullgraph.sum_over_ranks or "
                "fullgraph.global_mean"
            )

    def _draw_seed(self) -> Callable[[int], int] | None:
        if self.draw_key is None:
            return None
        key = self.draw_key
        return lambda edge: hash((*key, edge)) & 0x7FFF_FFFF_FFFF_FFFF

    def _run_piece(
        self, inputs: Inputs, piece: Piece, swaps: dict[int, Tensor], known: dict[int, Tensor],
        state: LayerState,
    ) -> dict[int, Reducible]:  # fmt: skip
        ids = self.edges.edge_id
        setting = self._setting(
            piece.index, piece.target, piece.rows.numel(),
            ids[piece.position] if self.key is not None else piece.position,
        )  # fmt: skip
        with state.restored(swaps, int(ids[piece.position[0]]) if self.draws else 0):
            _, run = self._run_code(inputs, setting, known, swaps=swaps)
        return run.reduced

    def _run_without_edges(
        self, known: dict[int, Tensor], recording: Recording | None, effects: bool = False,
        num_rows: int | None = None,
    ) -> tuple[Any, MessageRun]:  # fmt: skip
        """Run the code on one made-up edge, for all owned rows: where all reductions are known, it
        returns the layer's result; otherwise, it shows which reductions come next."""
        graph, given = self.edges.graph, self.slots.inputs
        n = max(1, graph.num_owned) if num_rows is None else num_rows

        def blank(t: Tensor) -> Tensor:
            return t.new_zeros(1, *t.shape[1:]).requires_grad_(
                t.requires_grad and torch.is_grad_enabled()
            )

        inputs = Inputs(
            [blank(t) for t in given.sources], [blank(t) for t in given.targets],
            [blank(t) for t in given.edges],
        )  # fmt: skip
        nothing = torch.zeros(1, dtype=torch.int64, device=graph.node_id.device)
        # A rank without rows gets one, joined on, so that gradients still find the way to the pass.
        padded = {
            call: torch.cat([z, z.new_zeros(1, *z.shape[1:])])
            if self.per_row[call] and not len(z)
            else z
            for call, z in known.items()
        }
        setting = self._setting(nothing, nothing, n, nothing)
        with draws_undone(graph.node_id.device, self._note_draws):
            return self._run_code(inputs, setting, padded, recording=recording, effects=effects)

    def _note_draws(self, drawn: bool) -> None:
        self.draws |= drawn

    def _setting(self, index: Tensor, target: Tensor, num_rows: int, edge_id: Tensor) -> Setting:
        node_dim = self.layer.node_dim
        return Setting(
            index, target, num_rows, edge_id, node_dim if self.is_deep else 0,
            lambda: self.edges.total_edges, self.key, self.name, self.edges.graph.num_owned,
            self.node_rows, self.edges.graph.targets is not None,
        )  # fmt: skip

    def _run_code(
        self, inputs: Inputs, setting: Setting, known: dict[int, Tensor], **options: Any
    ) -> tuple[Any, MessageRun]:
        run = MessageRun(setting, known, **options)
        arguments = self._arguments(inputs, setting)
        names = (self.slots.sources, self.slots.targets, self.slots.edges)
        for name in (name for group in names for name in group):
            run.mark_edges(arguments[name])
        with run:
            result = self.code(arguments, run)
        return result, run

    def code(self, arguments: dict[str, Any], run: MessageRun) -> Any:
        raise NotImplementedError

    def _finish(self, result: Any, known: dict[int, Tensor], rows: RowFunctions) -> Any:
        raise NotImplementedError


def _changed(
    attributes: list[tuple[dict[str, Any], dict[str, Any]]],
) -> list[tuple[dict[str, Any], str, Any]]:
    """What was set on a layer, where, and under which name."""
    return [
        (own, name, value)
        for own, before in attributes
        for name, value in own.items()
        if name not in before or before[name] is not value
    ]


class _Propagation(_Code):
    """`message`, `aggregate` and `update`."""

    entry = "propagate"
    functions = ("message", "aggregate")

    def code(self, arguments: dict[str, Any], run: MessageRun) -> Any:
        layer = self.layer
        collect = layer.inspector.collect_param_data
        messages = layer.message(**collect("message", arguments))
        if not isinstance(messages, Tensor):
            raise NotImplementedError(
                f"layer {self.name!r}: its message returns a {type(messages).__name__}; a tensor "
                "is supported"
            )
        return layer.aggregate(messages, **collect("aggregate", arguments))

    def _finish(self, result: Any, known: dict[int, Tensor], rows: RowFunctions) -> Any:
        layer, graph = self.layer, self.edges.graph
        if graph.num_owned == 0:
            result = result.narrow(layer.node_dim, 0, 0)
        names = layer.inspector.get_param_names("update")
        arguments = {name: self.given[name] for name in names if name in self.given}
        for name in names:
            if (name.endswith(("_i", "_j")) and name != "size_i") or name in _SPECIAL - _OF_ROWS:
                raise NotImplementedError(
                    f"layer {self.name!r}: its update asks for {name}, of which PyG has a row for "
                    "each edge; arguments as propagate is given them are supported"
                )
        n = graph.num_owned
        arguments.update(size=[graph.num_sources, n], size_i=n, dim_size=n)
        with rows:  # batch norm and dropout, if any, are of all ranks' rows again
            return layer.update(result, **layer.inspector.collect_param_data("update", arguments))


class _EdgeUpdate(_Code):
    """`edge_update`, whose result stays with the edges."""

    entry = "edge_updater"
    functions = ("edge_update",)

    def code(self, arguments: dict[str, Any], run: MessageRun) -> Any:
        layer = self.layer
        result = layer.edge_update(**layer.inspector.collect_param_data("edge_update", arguments))
        return run.keep(result)

    def _finish(self, result: Any, known: dict[int, Tensor], rows: RowFunctions) -> Any:
        out = known[max(known)]
        return turned(self.edges_given)[2](out) if self.is_reversed else out


_SPECIAL = MessagePassing.special_args
_OF_ROWS = {"size", "size_i", "dim_size"}


def check_generic(layer: Any) -> str | None:
    """Why this layer cannot run piece by piece, or None."""
    for kind, why in _REFUSED_LAYERS.items():
        if isinstance(layer, kind):
            return why
    if (reason := check_hooks(layer)) is not None:
        return reason
    for module in layer.modules():
        name = type(module).__name__
        if isinstance(module, pyg.aggr.Aggregation) and name in _REFUSED_AGGREGATIONS:
            return f"its aggregation {name} {_ALL_AT_ONCE}; {_AGGREGATIONS}"
    return None


def check_hooks(layer: Any) -> str | None:
    """Whether something looks at all messages at once: hooks on them, or an explanation."""
    for name in ("message", "aggregate", "message_and_aggregate", "edge_update"):
        for when in ("pre_hooks", "hooks"):
            if getattr(layer, f"_{name}_forward_{when}", None):
                return (
                    f"it has hooks on {name}, which runs several times on parts of the edges; "
                    "hooks on propagate, or on the layer, are supported"
                )
    if layer.explain:
        return "explain=True looks at the messages of all edges at once; set explain=False"
    return None


_OWN_GRAPH = (
    "it makes a graph of its own from the features in every pass; make the graph before, and use "
    "{} on it"
)
_REFUSED_LAYERS = {
    pyg.DynamicEdgeConv: _OWN_GRAPH.format("EdgeConv"),
    pyg.GravNetConv: _OWN_GRAPH.format("a layer that takes edge_weight"),
    pyg.PANConv: (
        "it makes a graph of its own, powers of the whole adjacency matrix; TAGConv or MixHopConv "
        "reach as far"
    ),
    pyg.FusedGATConv: (
        "it takes the whole graph's csr and csc arrays; GATConv is the same layer, and runs fused"
    ),
    pyg.MeshCNNConv: "its messages combine every four edges in the order of edges",
}
_ALL_AT_ONCE = "needs all messages of a node at once, in order, and they come block by block"
_AGGREGATIONS = (
    "sum, mean, mul, min, max, var, std, softmax, powermean, degree scalers and several of them "
    "together are supported"
)
_REFUSED_AGGREGATIONS = {
    "LSTMAggregation", "GRUAggregation", "SortAggregation", "MedianAggregation",
    "QuantileAggregation", "MLPAggregation", "SetTransformerAggregation",
    "GraphMultisetTransformer", "EquilibriumAggregation", "Set2Set", "LCMAggregation",
    "PatchTransformerAggregation",
}  # fmt: skip
