"""Any messages at all: computed for a piece of edges, reduced, freed, and rebuilt for gradients.

What a message is made of is a `Program`, which knows nothing of blocks: given the sources', the
targets' and the edges' rows of one piece it returns the messages and how each is reduced. A pass
over all edges runs it piece by piece, without gradients; the backward pass runs it again on each
piece, with gradients, and hands the pieces' gradients to whom they belong. Sequential aggregation
and rematerialization: SAR (Mostafa, MLSys 2022, arXiv 2111.06483).

Letters: n owned rows, m owned rows that edges start from, E edges of the list, e edges and d rows
of a piece, H halo rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fullgraph.comm.stale import Call
from fullgraph.graph.blocks import Block, Chunk
from fullgraph.ops.edge_list import EdgeList, Piece
from fullgraph.ops.halo import fetch_and_send_back, for_each_kept, for_each_source, new_halo
from fullgraph.ops.reductions import KINDS, Reducible, Reduction
from fullgraph.ops.targets import to_targets

# A piece has at least so many edges, however small a message may be.
MIN_EDGES = 64


@dataclass
class Inputs:
    """The tensors that a program reads, whole or of one piece.

    ``sources``: [m, ...] ([e, ...] of a piece) each; ``targets``: [n, ...] ([e, ...]); ``edges``:
    [E, ...] ([e, ...]); ``captured``: what else messages use, parameters mostly; ``known``: results
    of earlier passes, [n, ...] ([d, ...]), or a row for all edges.
    """

    sources: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    edges: list[Tensor] = field(default_factory=list)
    captured: list[Tensor] = field(default_factory=list)
    known: list[Tensor] = field(default_factory=list)

    def flat(self) -> list[Tensor]:
        return [*self.sources, *self.targets, *self.edges, *self.captured, *self.known]

    def like(self, tensors: Sequence[Any]) -> _Grouped:
        """These tensors, one for each of `flat()`, in the same groups."""
        rest = list(tensors)
        sizes = [len(g) for g in (self.sources, self.targets, self.edges, self.captured)]
        groups: list[list[Any]] = []
        for size in sizes:
            groups.append(rest[:size])
            rest = rest[size:]
        sources, targets, edges, captured = groups
        return _Grouped(sources, targets, edges, captured, rest)


@dataclass
class _Grouped:
    sources: list[Any]
    targets: list[Any]
    edges: list[Any]
    captured: list[Any]
    known: list[Any]


# From the inputs of a piece, and the piece, to the messages of every reduction of this pass.
Program = Callable[[Inputs, Piece], "list[Reducible]"]


@dataclass(frozen=True)
class Spec:
    """A reduction of a pass, as known before it: its kind, the shape and dtype of a message, and
    whether a gradient reaches the messages."""

    kind: str
    tail: torch.Size
    dtype: torch.dtype
    differentiable: bool


@dataclass
class Pass:
    """One pass over the edges of a list.

    ``known_per_row``: of each of the known results, whether it has a row for each owned row.
    """

    edges: EdgeList
    program: Program
    specs: list[Spec]
    known_per_row: list[bool]
    layer: str

    def new_reductions(self) -> list[Reduction]:
        graph = self.edges.graph
        sizes = {"each": self.edges.num_edges}
        return [
            KINDS[spec.kind](
                sizes.get(spec.kind, graph.num_targets), spec.tail, spec.dtype, graph.group
            )
            for spec in self.specs
        ]  # fmt: skip


class _MessagePass(torch.autograd.Function):
    """Z_k = reduce_k over the edges (j, i) of f_k(x_j, x_i, e_ji, θ, Z of earlier passes).

    Saved: the inputs, what the reductions need (results of extrema and products), and the halo
    where the schedule keeps it. Backward: pieces are rebuilt with gradients; remote rows are kept
    or fetched again, and their gradients sent home.
    """

    @staticmethod
    def forward(ctx: Any, task: Pass, inputs: Inputs, *tensors: Tensor) -> tuple[Tensor, ...]:
        packed = _Packed.of(inputs.sources)
        graph = task.edges.graph
        rebuilt = any(ctx.needs_input_grad)
        rows = None if packed is None else packed.rows
        halo = None
        if rebuilt and rows is not None and not graph.schedule.remat:
            halo = new_halo(graph, rows)
        reductions = task.new_reductions()

        def use(piece: Piece, sources: list[Tensor]) -> None:
            found = task.program(_of_piece(inputs, task, piece, sources), piece)
            _check_found(found, task)
            for reduction, messages in zip(reductions, found):
                reduction.add(piece, messages.index, reduction.wide_rows(messages.values))

        ctx.call = _walk(task, packed, use, halo, task.layer)
        ctx.task, ctx.inputs, ctx.packed = task, _shapes_of(inputs), _without_rows(packed)
        ctx.reductions, ctx.has_halo = reductions, halo is not None
        for k, reduction in enumerate(reductions if graph.targets is not None else []):
            reduction.merge(graph, ctx.call, f"{k}")
        results = tuple(reduction.finish() for reduction in reductions)
        constant = [r for r, spec in zip(results, task.specs) if not spec.differentiable]
        ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(False)
        if rebuilt:
            rest = tensors[len(inputs.sources) :]  # their sources are in the packed rows
            ctx.save_for_backward(*rest, *(t for t in (rows, halo) if t is not None))
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        task: Pass = ctx.task
        saved = list(ctx.saved_tensors)
        halo = saved.pop() if ctx.has_halo else None
        packed: _Packed | None = ctx.packed
        if packed is not None:
            packed = copy.copy(packed)
            packed.rows = saved.pop()
        grouped = ctx.inputs.like([*ctx.inputs.sources, *saved])
        inputs = Inputs(**vars(grouped))
        graph = task.edges.graph
        needs = ctx.inputs.like(ctx.needs_input_grad[2:])
        reductions: list[Reduction] = ctx.reductions
        wanted = [
            None if g is None or not spec.differentiable else r.start_backward(g)
            for r, g, spec in zip(reductions, grads, task.specs)
        ]
        if graph.targets is not None:
            wanted = [
                None if g is None else r.spread(g, graph, ctx.call, f"{k}")
                for k, (g, r) in enumerate(zip(wanted, reductions))
            ]
        sums = _Gradients(inputs, needs, task)

        def use(piece: Piece, sources: list[Tensor], into: Tensor | None) -> None:
            with torch.enable_grad():
                leaves = _as_leaves(_of_piece(inputs, task, piece, sources), needs)
                found = task.program(leaves, piece)
            _check_found(found, task)
            outputs, out_grads = [], []
            for reduction, messages, grad in zip(reductions, found, wanted):
                if grad is not None and messages.values.requires_grad:
                    values = reduction.wide_rows(messages.values)
                    piece_grad = reduction.gradient(piece, messages.index, values, grad)
                    outputs.append(messages.values)
                    out_grads.append(piece_grad.view_as(messages.values).to(messages.values.dtype))
            if outputs and not sums.is_checked:
                sums.is_checked = True
                _check_leaves(outputs, leaves, task)
            with_grad = [t for t in leaves.flat() if t.requires_grad]
            if not outputs or not with_grad:
                return
            found_grads = iter(
                torch.autograd.grad(outputs, with_grad, out_grads, allow_unused=True)
            )
            by_input = [next(found_grads) if t.requires_grad else None for t in leaves.flat()]
            sums.add(inputs.like(by_input), piece, packed, into)

        _walk_back(task, packed, use, halo, sums, ctx.call)
        return None, None, *sums.results()


def message_pass(task: Pass, inputs: Inputs) -> tuple[Tensor, ...]:
    """The results of all reductions of a pass: [n, ...], [E, ...] for "each", a row for "total"."""
    graph, layer = task.edges.graph, task.layer
    inputs = replace(
        inputs,
        targets=[to_targets(graph, t, layer=layer) for t in inputs.targets],
        known=[
            to_targets(graph, z, layer=layer) if per_row else z
            for z, per_row in zip(inputs.known, task.known_per_row)
        ],
    )
    return _MessagePass.apply(task, inputs, *inputs.flat())


class _Packed:
    """Source tensors as one matrix, so that a node's rows travel as one: [m, columns]."""

    rows: Tensor

    def __init__(self, tensors: list[Tensor]) -> None:
        if any(t.is_complex() for t in tensors):
            raise NotImplementedError("messages of complex rows are not supported")
        floats = [t.dtype for t in tensors if t.is_floating_point()]
        dtype = floats[0] if floats else torch.int64
        for other in floats[1:]:
            dtype = torch.promote_types(dtype, other)
        self.dtypes = [t.dtype for t in tensors]
        self.has_integers = len(floats) < len(tensors)
        self.tails = [t.shape[1:] for t in tensors]
        self.places: list[slice] = []
        first, columns = 0, []
        for tensor in tensors:
            flat = self._to_columns(tensor.detach(), dtype)
            self.places.append(slice(first, first + flat.shape[1]))
            first += flat.shape[1]
            columns.append(flat)
        self.rows = (columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)).contiguous()

    @staticmethod
    def of(tensors: list[Tensor]) -> _Packed | None:
        return _Packed(tensors) if tensors else None

    @staticmethod
    def _to_columns(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        flat = tensor.reshape(tensor.shape[0], tensor.shape[1:].numel())
        if flat.is_floating_point() or not dtype.is_floating_point:
            return flat.to(dtype)
        return flat.to(torch.int64).contiguous().view(dtype)  # integers as the bits of floats

    def gradients(self, d_rows: Tensor) -> list[Tensor]:
        """[m, ...] of each tensor, in its own dtype."""
        return [
            d_rows[:, place].reshape(-1, *tail).to(dtype)
            for place, tail, dtype in zip(self.places, self.tails, self.dtypes)
        ]

    def unpacked(self, rows: Tensor) -> list[Tensor]:
        """[e, ...] of each tensor, from rows of the matrix."""
        found = []
        for place, tail, dtype in zip(self.places, self.tails, self.dtypes):
            columns = rows[:, place]
            if not dtype.is_floating_point and rows.is_floating_point():
                columns = columns.contiguous().view(torch.int64)
            found.append(columns.to(dtype).reshape(-1, *tail))
        return found


class _Gradients:
    """What the gradients of all inputs add up to."""

    def __init__(self, inputs: Inputs, needs: _Grouped, task: Pass) -> None:
        self.task = task
        # Those of sources go through the packed matrix, if any.
        self.sources_needed = any(needs.sources)
        self.d_rows: Tensor | None = None
        self.needs, self.dtypes = needs, [t.dtype for t in inputs.flat()]
        first = len(inputs.sources)
        self.of = inputs.like([
            torch.zeros_like(t, dtype=_wide(t.dtype)) if n and k >= first else None
            for k, (t, n) in enumerate(zip(inputs.flat(), _flat(needs)))
        ])  # fmt: skip
        self.packed: _Packed | None = None
        self.is_checked = False

    def add(
        self, found: _Grouped, piece: Piece, packed: _Packed | None, into: Tensor | None
    ) -> None:
        if packed is not None and into is not None:
            for place, grad in zip(packed.places, found.sources):
                if grad is not None:
                    flat = grad.reshape(grad.shape[0], -1).to(into.dtype)
                    into[:, place].index_add_(0, piece.source, flat)
        for total, grad in zip(self.of.targets, found.targets):
            if grad is not None and total is not None:
                total.index_add_(0, piece.target, grad.to(total.dtype))
        for total, grad in zip(self.of.edges, found.edges):
            if grad is not None and total is not None:
                total[piece.position] = grad.to(total.dtype)
        for total, grad in zip(self.of.captured, found.captured):
            if grad is not None and total is not None:
                total += grad
        for total, grad, per_row in zip(self.of.known, found.known, self.task.known_per_row):
            if grad is not None and total is not None:
                if per_row:
                    total.index_add_(0, piece.rows, grad.to(total.dtype))
                else:
                    total += grad

    def results(self) -> list[Tensor | None]:
        if self.packed is not None and self.d_rows is not None:
            grads = self.packed.gradients(self.d_rows)
            self.of.sources = [g if n else None for g, n in zip(grads, self.needs.sources)]
        return [None if t is None else t.to(d) for t, d in zip(_flat(self.of), self.dtypes)]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """In which many gradients add up."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _check_leaves(outputs: list[Tensor], leaves: Inputs, task: Pass) -> None:
    """Raise RuntimeError where messages depend on a tensor that is not among the program's own, so
    that its gradient would be lost."""
    own = {id(t) for t in leaves.flat()}
    nodes: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)  # where the gradient of a leaf goes
        if variable is not None and id(variable) not in own:
            raise RuntimeError(
                f"layer {task.layer!r}: its message uses a tensor of shape "
                f"{tuple(variable.shape)} whose gradient would be lost: one that was not there in "
                "the forward pass, or that only a torch.autograd.Function sees. Give it to "
                "propagate as an argument, or keep it as a parameter of the layer"
            )
        new = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= new
        nodes.extend(new)


def _flat(groups: _Grouped) -> list[Any]:
    return [
        *groups.sources, *groups.targets, *groups.edges, *groups.captured, *groups.known
    ]  # fmt: skip


def _without_rows(packed: _Packed | None) -> _Packed | None:
    if packed is not None:
        packed = copy.copy(packed)
        del packed.rows
    return packed


def _shapes_of(inputs: Inputs) -> Inputs:
    """Only how many of each there are; the tensors themselves are saved by autograd."""
    return Inputs(**{
        name: [t.new_empty(0) for t in group] for name, group in vars(inputs).items()
    })  # fmt: skip


def _of_piece(inputs: Inputs, task: Pass, piece: Piece, sources: list[Tensor]) -> Inputs:
    return Inputs(
        sources=sources,
        targets=[t.detach().index_select(0, piece.target) for t in inputs.targets],
        edges=[t.detach()[piece.position] for t in inputs.edges],
        captured=[t.detach() for t in inputs.captured],
        known=[
            z.detach().index_select(0, piece.rows) if per_row else z.detach()
            for z, per_row in zip(inputs.known, task.known_per_row)
        ],
    )


def _as_leaves(inputs: Inputs, needs: _Grouped) -> Inputs:
    for tensor, needed in zip(inputs.flat(), _flat(needs)):
        if needed:
            tensor.requires_grad_()
    return inputs


def _max_edges(task: Pass, packed: _Packed | None) -> int:
    width = 8 if packed is None else packed.rows.shape[1] * packed.rows.element_size()
    return max(MIN_EDGES, task.edges.graph.rows_of_piece(width))


def _pieces(
    task: Pass, packed: _Packed | None, block: Block, chunk: Chunk, rows: Tensor | None
) -> Iterator[tuple[Piece, list[Tensor]]]:
    """The pieces of a chunk, each with its edges' source rows; and of the loops that were added."""
    limit, graph = _max_edges(task, packed), task.edges.graph
    walks = [task.edges.pieces(block, chunk, limit)]
    if block is graph.edges.blocks[graph.group.rank]:
        walks.append(task.edges.added_loops(limit))
    for walk in walks:
        for piece in walk:
            if packed is None or rows is None:
                yield piece, []
            else:
                yield piece, packed.unpacked(rows.index_select(0, piece.source))


def _walk(
    task: Pass, packed: _Packed | None, use: Callable[[Piece, list[Tensor]], None],
    halo: Tensor | None, layer: str | Call, *, kept: bool = False,
) -> Call:  # fmt: skip
    """Returns what the walk back is to be given."""
    graph = task.edges.graph

    def use_chunk(block: Block, chunk: Chunk, rows: Tensor) -> None:
        for piece, sources in _pieces(task, packed, block, chunk, rows):
            use(piece, sources)

    if packed is None:
        for block in graph.edges.blocks:
            for piece, sources in _pieces(task, None, block, block.whole, None):
                use(piece, sources)
        return graph.stale.call(graph, layer)
    if kept and halo is not None:
        return for_each_kept(graph, packed.rows, use_chunk, halo=halo, layer=layer)
    return for_each_source(
        graph, packed.rows, use_chunk, layer=layer, halo=halo, as_is=packed.has_integers
    )


def _walk_back(
    task: Pass, packed: _Packed | None, use: Callable[[Piece, list[Tensor], Tensor | None], None],
    halo: Tensor | None, sums: _Gradients, call: Call,
) -> None:  # fmt: skip
    if packed is None or not sums.sources_needed:
        _walk(task, packed, lambda piece, sources: use(piece, sources, None), halo, call,
              kept=halo is not None)  # fmt: skip
        return

    def use_chunk(block: Block, chunk: Chunk, rows: Tensor, into: Tensor) -> None:
        for piece, sources in _pieces(task, packed, block, chunk, rows):
            use(piece, sources, into)

    sums.packed = packed
    wide = _wide(packed.rows.dtype)
    sums.d_rows = torch.zeros_like(packed.rows, dtype=wide)
    fetch_and_send_back(
        task.edges.graph,
        packed.rows,
        sums.d_rows,
        use_chunk,
        layer=call,
        halo=halo,
        as_is=packed.has_integers,
    )


def check_edges_alone(
    program: Program, inputs: Inputs, piece: Piece, found: list[Reducible], layer: str
) -> None:
    """Raise NotImplementedError where an edge's message depends on which others are at hand: the
    messages of a piece have to be those of its two halves."""
    size = piece.position.numel()
    half = size // 2
    for part in (slice(0, half), slice(half, size)):
        offsets = piece.offsets.clamp(part.start, part.stop) - part.start
        smaller = Piece(piece.rows, offsets, piece.source[part], piece.position[part])
        of_edges = Inputs(
            [t[part] for t in inputs.sources], [t[part] for t in inputs.targets],
            [t[part] for t in inputs.edges], inputs.captured, inputs.known,
        )  # fmt: skip
        again = program(of_edges, smaller)
        for one, other in zip(found, again):
            # Messages of some of the edges only, in an order of their own, are not looked at.
            if one.index is None and not is_close(other.values, one.values[part]):
                raise NotImplementedError(
                    f"layer {layer!r}: its message combines different edges other than by "
                    "their node. Reduce over a node's edges with torch_geometric.utils.scatter or "
                    "softmax and the `index` that message can ask for"
                )


def is_close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the rounding of another order of the rows."""
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return bool((one == other).all())
    one, other = one.detach(), other.detach()
    if not one.numel():
        return True
    scale = float(other.abs().nan_to_num(0, 0, 0).max())
    is_short = one.element_size() == 2
    rough = 0.05 if is_short else 1e-4
    close = torch.isclose(one, other, rtol=rough, atol=rough * scale, equal_nan=True)
    # Where a message compares, a last bit decides, which short numbers come across often.
    return float((~close).float().mean()) <= (0.1 if is_short else 0.0)


def _check_found(found: list[Reducible], task: Pass) -> None:
    kinds = [messages.kind for messages in found]
    if kinds != [spec.kind for spec in task.specs]:
        raise RuntimeError(
            f"the messages of layer {task.layer!r} are reduced by {kinds} for some edges and by "
            f"{[spec.kind for spec in task.specs]} for others; they must not depend on how many "
            "edges there are"
        )
