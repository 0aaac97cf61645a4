"""What a layer's `forward` is given for `edge_index`: a stand-in that can be taken apart.

PyG's layers, and their users', ask an edge_index for its two rows, look values up by them, sum by
them, take edges out and put self-loops in, before they propagate. `EdgeIndex` and `NodeIndex` do
these on the edges of one rank, with an exchange where a value belongs to a row owned elsewhere.
What else is asked of them, their values for example, is refused with a reason.

Letters: n owned rows, m owned rows that edges start from, E edges of the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgraph.ops.edge_list import EdgeList, Piece
from fullgraph.ops.edge_move import turned
from fullgraph.ops.messages import Inputs, Pass, Spec, message_pass
from fullgraph.ops.reductions import Reducible
from fullgraph.ops.sources import gather_from_sources, sum_to_sources
from fullgraph.ops.targets import to_owners, to_targets


class EdgeIndex(Tensor):
    """Stands for int64 [2, E]: the edges of `edges`, as `flipped` says in which direction."""

    edges: EdgeList
    flipped: bool
    layer: str

    @staticmethod
    def of(edges: EdgeList, layer: str, flipped: bool = False) -> EdgeIndex:
        nothing = torch.zeros((), dtype=torch.int64, device=edges.graph.node_id.device)
        made = nothing.expand(2, edges.num_edges).as_subclass(EdgeIndex)
        made.edges, made.flipped, made.layer = edges, flipped, layer
        return made

    def row(self, which: int) -> NodeIndex:
        at_target = (which % 2 == 1) != self.flipped
        return NodeIndex.of(self.edges, at_target, self.layer)

    def like(self, edges: EdgeList) -> EdgeIndex:
        return EdgeIndex.of(edges, self.layer, self.flipped)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})


class NodeIndex(Tensor):
    """Stands for int64 [E] (or a view of it): the node at one end of every edge.

    The end where edges end (``at_target``) is an owned row; the other may be owned elsewhere.
    """

    edges: EdgeList
    at_target: bool
    layer: str

    @staticmethod
    def of(edges: EdgeList, at_target: bool, layer: str) -> NodeIndex:
        nothing = torch.zeros((), dtype=torch.int64, device=edges.graph.node_id.device)
        made = nothing.expand(edges.num_edges).as_subclass(NodeIndex)
        made.edges, made.at_target, made.layer = edges, at_target, layer
        return made

    def like(self, edges: EdgeList) -> NodeIndex:
        return NodeIndex.of(edges, self.at_target, self.layer)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})


_ABOUT = {
    Tensor.size, Tensor.dim, Tensor.is_floating_point, Tensor.element_size,
    Tensor.__len__, torch.is_floating_point, torch.is_tensor, Tensor.is_contiguous,
    Tensor.get_device, Tensor.__hash__,
}  # fmt: skip
_SAME = {
    Tensor.long, Tensor.contiguous, Tensor.detach, Tensor.clone, torch.clone, Tensor.to,
    Tensor.cpu,
}  # fmt: skip
_VIEWS = {Tensor.view, Tensor.expand, Tensor.expand_as, Tensor.unsqueeze, Tensor.reshape}
_NEW = {
    Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, torch.zeros_like,
    torch.ones_like,
}  # fmt: skip
_SUMS = {
    Tensor.scatter_add_, Tensor.scatter_add, torch.scatter_add, Tensor.index_add_,
    Tensor.index_add, torch.index_add,
}  # fmt: skip
_REDUCES = {Tensor.scatter_reduce_, Tensor.scatter_reduce, torch.scatter_reduce}
_EQUAL = {Tensor.eq: True, Tensor.__eq__: True, torch.eq: True,
          Tensor.ne: False, Tensor.__ne__: False, torch.ne: False}  # fmt: skip


def _dispatch(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    first: Any = args[0] if args else None
    name = getattr(func, "__name__", str(func))
    if func in _ABOUT or (name == "__get__" and _plain(func, args, kwargs)):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    if func in (Tensor.max, torch.max) and len(args) == 1 and not kwargs:
        return _largest(first)
    if func in (Tensor.numel, torch.numel) and isinstance(first, EdgeIndex):
        # For code that asks whether there are edges at all before it counts nodes: ask all ranks.
        with torch._C.DisableTorchFunctionSubclass():
            return max(1, first.numel())
    if func in (Tensor.numel, torch.numel):
        with torch._C.DisableTorchFunctionSubclass():
            return first.numel()
    if func in _NEW:
        blank = torch.zeros(first.shape, dtype=torch.int64, device=first.edges.graph.node_id.device)
        return func(blank, *args[1:], **kwargs)
    if func in _SAME and isinstance(first, (EdgeIndex, NodeIndex)):
        return first
    found = NotImplemented
    if isinstance(first, EdgeIndex):
        found = _on_edge_index(func, first, args[1:], kwargs)
    if found is NotImplemented:
        found = _on_node_index(func, args, kwargs)
    if found is NotImplemented:
        found = _joined(func, args, kwargs)
    if found is not NotImplemented:
        return found
    standin = next(s for s in _standins((args, kwargs)))
    what = "values" if name not in ("stride", "storage") else "memory"
    raise NotImplementedError(
        f"layer {standin.layer!r} reads the {what} of edge_index with {name}. On a distributed "
        "graph its edges are spread over ranks in an order of their own: look values up by its "
        "rows, sum by its rows, take edges by a mask, remove or add self-loops (giving num_nodes), "
        "or propagate; numbers of nodes and edges are graph.num_nodes and graph.meta.num_edges"
    )


def _largest(index: EdgeIndex | NodeIndex) -> Tensor:
    """For code that counts nodes by the largest that has an edge: the last owned row.

    Of one end of the edges, this only makes rows for nodes without edges. Of both, PyG counts so
    to add self-loops, and nodes beyond the largest get none: there must not be any.
    """
    edges, graph = index.edges, index.edges.graph
    if isinstance(index, EdgeIndex):
        last = graph.node_id == graph.num_nodes - 1
        met = sum_to_sources(edges, torch.ones(edges.num_edges), index.layer)
        into = torch.bincount(edges.target, minlength=graph.num_targets).to(met.dtype)
        met = met + to_owners(graph, into, layer=index.layer) > 0
        found = torch.tensor([int((met & last).any())])
        if not int(graph.group.all_reduce(found, "whether the last node has edges")):
            raise NotImplementedError(
                f"layer {index.layer!r} counts nodes by the largest in edge_index, and the graph's "
                "last node has no edges: it would count fewer than there are. Give it num_nodes"
            )
    return torch.tensor(graph.num_owned - 1)


def _plain(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a property gives something else than a tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return not isinstance(func(*args, **kwargs), Tensor)


def _standins(value: Any) -> list[EdgeIndex | NodeIndex]:
    if isinstance(value, (EdgeIndex, NodeIndex)):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [found for item in value for found in _standins(item)]
    return []


# edge_index ------------------------------------------------------------------------------------


def _on_edge_index(func: Callable[..., Any], ei: EdgeIndex, args: Any, kwargs: Any) -> Any:
    if func is Tensor.__getitem__:
        return _item(ei, args[0])
    if func in (Tensor.__iter__, Tensor.unbind, torch.unbind):
        rows = (ei.row(0), ei.row(1))
        return iter(rows) if func is Tensor.__iter__ else rows
    if func in (Tensor.flip, torch.flip):
        dims = args[0] if args else kwargs["dims"]
        if tuple([dims] if isinstance(dims, int) else dims) in ((0,), (-2,)):
            return EdgeIndex.of(ei.edges, ei.layer, not ei.flipped)
    if func in (Tensor.select,) and args[0] in (0, -2):
        return ei.row(args[1])
    return NotImplemented


def _item(ei: EdgeIndex, key: Any) -> Any:
    if isinstance(key, int):
        return ei.row(key)
    if isinstance(key, (list, tuple)) and list(key) == [1, 0] and isinstance(key, list):
        return EdgeIndex.of(ei.edges, ei.layer, not ei.flipped)
    if isinstance(key, tuple) and len(key) == 2:
        rows, edges = key
        chosen = ei.like(_chosen(ei.edges, edges))
        if isinstance(rows, int):
            return chosen.row(rows)
        if rows == slice(None):
            return chosen
    return NotImplemented


def _chosen(edges: EdgeList, key: Any) -> EdgeList:
    if isinstance(key, slice) and key == slice(None):
        return edges
    if isinstance(key, Tensor) and key.dtype == torch.bool:
        if key.shape != (edges.num_edges,):
            raise IndexError(
                f"a mask of shape {tuple(key.shape)} for {edges.num_edges} edges of this rank"
            )
        return edges.select(key)
    if isinstance(key, Tensor) and not key.is_floating_point() and key.dim() == 1:
        return edges.select(key)
    if isinstance(key, slice) and key.start in (None, 0) and key.stop == 0:
        return edges.select(key)
    raise NotImplementedError(
        "edges of a distributed graph are taken out of edge_index by a mask over its edges, "
        f"got {type(key).__name__}: their order differs from rank to rank"
    )


def _joined(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Self-loops put after the edges, or two rows put together."""
    parts = args[0] if args else kwargs.get("tensors")
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if func is torch.stack and dim == 0 and len(parts) == 2:
        return _stacked(*parts)
    if func is not torch.cat or dim not in (1, -1) or len(parts) != 2:
        return NotImplemented
    ei, loops = parts
    if not isinstance(ei, EdgeIndex) or isinstance(loops, (EdgeIndex, NodeIndex)):
        return NotImplemented
    n = ei.edges.graph.num_owned
    rows = torch.arange(n, dtype=loops.dtype, device=loops.device)
    if ei.edges.graph.num_sources != n or not torch.equal(loops, rows.expand(2, n)):
        raise NotImplementedError(
            f"layer {ei.layer!r} adds edges to edge_index; only a self-loop of each of the "
            f"{n} nodes of this rank can be added (add_self_loops with num_nodes=x.size(0))"
        )
    return ei.like(ei.edges.with_loops())


def _stacked(row: Any, col: Any) -> Any:
    if not isinstance(row, NodeIndex) or not isinstance(col, NodeIndex):
        return NotImplemented
    if row.edges is not col.edges or row.at_target == col.at_target:
        return NotImplemented
    return EdgeIndex.of(row.edges, row.layer, flipped=row.at_target)


# A row of it -----------------------------------------------------------------------------------


def _on_node_index(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    first: Any = args[0] if args else None
    if isinstance(first, NodeIndex):
        if func is Tensor.__getitem__ and isinstance(args[1], (Tensor, slice)):
            return first.like(_chosen(first.edges, args[1]))
        if func in _VIEWS:  # only ever to meet the shape of what is summed by it
            return first
        if func in _EQUAL and isinstance(args[1], NodeIndex):
            return _same_node(first, args[1], _EQUAL[func])
    if func is Tensor.__getitem__ and isinstance(args[1], NodeIndex):
        return look_up(first, args[1])
    if func in (Tensor.index_select, torch.index_select):
        given = {**dict(zip(("input", "dim", "index"), args)), **kwargs}
        values: Any = given.get("input", given.get("self"))
        dim = given["dim"]
        found = look_up(values.movedim(dim, 0), given["index"])
        return found.movedim(0, dim)
    if func is torch.nn.functional.embedding:
        return look_up(args[1], args[0])
    if func in (Tensor.__setitem__, Tensor.index_put_) and isinstance(args[1], NodeIndex):
        return _set_rows(first, args[1], args[2])
    if func in _SUMS or func in _REDUCES:
        return _reduce(func, args, kwargs)
    return NotImplemented


def _same_node(one: NodeIndex, other: NodeIndex, equal: bool) -> Tensor:
    if one.edges is not other.edges and one.edges.origin is not other.edges.origin:
        raise NotImplementedError("rows of two different edge_index are compared")
    if one.at_target == other.at_target:
        return torch.full((one.edges.num_edges,), equal)
    return one.edges.is_loop if equal else ~one.edges.is_loop


def look_up(values: Tensor, index: NodeIndex) -> Tensor:
    """[E, ...]: the value of the node at this end of every edge, from values [n, ...] or [m, ...]
    of the owned rows."""
    if isinstance(values, torch.nn.Parameter):
        raise NotImplementedError(
            f"layer {index.layer!r} looks rows of a parameter up by edge_index, which on a "
            "distributed graph counts each rank's rows by themselves; look it up by graph.node_id "
            "first, and the result by edge_index"
        )
    if index.at_target:
        if values.shape[0] != index.edges.graph.num_owned:
            raise ValueError(
                f"layer {index.layer!r}: values to look up by edges' targets must have a row for "
                f"each of the {index.edges.graph.num_owned} owned nodes, got shape "
                f"{tuple(values.shape)}"
            )
        return to_targets(index.edges.graph, values, layer=index.layer)[index.edges.target]
    return gather_from_sources(index.edges, values, index.layer)


def _set_rows(table: Tensor, index: NodeIndex, values: Any) -> None:
    """table[index] = values, which needs the rows to be this rank's."""
    if not index.at_target and not bool(index.edges.is_loop.all()):
        raise NotImplementedError(
            f"layer {index.layer!r} writes to the rows of edges' sources; some are owned by other "
            "ranks"
        )
    rows = index.edges.target
    if rows.numel() and int(rows.max()) >= index.edges.graph.num_owned:
        index.edges.graph.require_edges_at_targets(
            f"layer {index.layer!r}, which writes to the rows of edges' targets,"
        )
    if not isinstance(values, Tensor) or values.dim() == 0:
        table[rows] = values
        return
    # Of several values for a row the last stays, and it alone gets the row's gradient.
    order = torch.arange(rows.numel(), device=rows.device)
    last = order.new_full((table.shape[0],), -1).scatter_reduce(0, rows, order, "amax")
    stays = last[rows] == order
    table[rows[stays]] = values[stays]


def _reduce_elsewhere(
    func: Callable[..., Any], into: Tensor, dim: int, edges: EdgeList, values: Tensor,
    given: dict[str, Any], layer: str,
) -> Tensor:  # fmt: skip
    """`scatter_reduce` of values whose edges live elsewhere than their targets: as messages are
    reduced. Rows without edges stay as they are in `into`, whose other rows take no part."""
    if edges.graph.placement.feats > 1:
        raise ValueError(
            f"layer {layer!r} reduces values of edges with {func.__name__}, which is not supported "
            f"under the placement {edges.graph.placement}; use a grid with K = 1"
        )
    reduce = given.get("reduce")
    kinds = {"sum": "sum", "mean": "sum", "prod": "prod", "amax": "amax", "amin": "amin"}
    if reduce not in kinds or given.get("include_self", True):
        edges.graph.require_edges_at_targets(
            f"layer {layer!r}, which reduces values of edges with {func.__name__}, "
            f"reduce={reduce!r}, include_self={given.get('include_self', True)},"
        )
    values = values.movedim(dim, 0)
    spec = Spec(kinds[str(reduce)], values.shape[1:], values.dtype, values.requires_grad)

    def program(inputs: Inputs, piece: Piece) -> list[Reducible]:
        return [Reducible(spec.kind, inputs.edges[0])]

    (found,) = message_pass(Pass(edges, program, [spec], [], layer), Inputs(edges=[values]))
    ones = torch.bincount(edges.target, minlength=edges.graph.num_targets)
    count = to_owners(edges.graph, ones, layer=layer).view(-1, *[1] * (values.dim() - 1))
    if reduce == "mean":
        found = found / count.clamp(min=1)
    out = torch.where(count > 0, found, into.movedim(dim, 0)).movedim(0, dim)
    return into.copy_(out) if func.__name__.endswith("_") else out


def _reduce(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    source = "source" if "index_" in func.__name__ else "src"
    given = {**dict(zip(("input", "dim", "index", source, "reduce"), args)), **kwargs}
    into, dim, index = given.pop("input"), given["dim"], given["index"]
    if not isinstance(index, NodeIndex):
        return NotImplemented
    values, edges = given.pop(source), index.edges
    if not index.at_target and func in _SUMS:
        total = sum_to_sources(edges, values.movedim(dim, 0), index.layer).movedim(0, dim)
        return into.add_(total) if func.__name__.endswith("_") else into + total
    if not index.at_target:  # the edges that leave a row are those that enter it, turned round
        edges, there, _ = turned(edges)
        values = there(values.movedim(dim, 0)).movedim(0, dim)
    graph = edges.graph
    if graph.targets is not None:
        if func not in _SUMS:
            return _reduce_elsewhere(func, into, dim, edges, values, given, index.layer)
        rows = values.movedim(dim, 0)
        partial = rows.new_zeros(graph.num_targets, *rows.shape[1:])
        partial = partial.index_add(0, edges.target, rows)
        total = to_owners(graph, partial, layer=index.layer).movedim(0, dim)
        return into.add_(total) if func.__name__.endswith("_") else into + total
    place = edges.target
    if source == "src":  # as wide as what is reduced
        shape = [1] * values.dim()
        shape[dim] = -1
        place = place.view(shape).expand_as(values)
    more = [given.pop("reduce")] if "reduce" in given else []
    del given["dim"], given["index"]
    return func(into, dim, place, values, *more, **given)
