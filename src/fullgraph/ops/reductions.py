"""What the messages of all edges are reduced to, piece by piece of edges: sums, extrema, products
over a row's in-edges, sums over all edges, or a value that stays with its edge.

Each reduction folds pieces into its result and, given the result's gradient, says what a message's
gradient is. None keeps a message.

Letters: n owned rows, T targets (n, unless edges live elsewhere than their targets), E edges of the
list, e edges and d rows of a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.stale import Call
from fullgraph.ops.extremum import merge_extrema
from fullgraph.ops.targets import fetch_targets, return_partials, sum_to_owners


class RowsOfPiece(Protocol):
    """What a reduction sees of a piece of edges.

    ``rows``: int64 [d], distinct targets; ``offsets``: int64 [d + 1], where the edges of each
    row start in the piece; ``position``: int64 [e], of each edge in its list.
    """

    @property
    def rows(self) -> Tensor: ...
    @property
    def offsets(self) -> Tensor: ...
    @property
    def position(self) -> Tensor: ...


@dataclass(frozen=True)
class Reducible:
    """The messages of a piece under one reduction.

    ``values``: [e, ...]; ``index``: int64 [e], which of the piece's rows each message goes to, or
    None where all edges take part in the piece's order.
    """

    kind: str
    values: Tensor
    index: Tensor | None = None


class Reduction:
    """One reduction of a pass. ``tail``: the shape of a message; ``dtype``: of messages."""

    def __init__(self, size: int, tail: torch.Size, dtype: torch.dtype, group: Group) -> None:
        self.tail, self.dtype, self.group = tail, dtype, group
        self.wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        self.columns = tail.numel()
        self.result = self.start(size)

    def start(self, size: int) -> Tensor:
        """The result over no edges at all, [size, columns] in the wide dtype."""
        return torch.zeros(size, self.columns, dtype=self.wide)

    def add(self, piece: RowsOfPiece, index: Tensor | None, values: Tensor) -> None:
        """Fold in the messages of a piece: [e, columns], wide."""
        raise NotImplementedError

    def finish(self) -> Tensor:
        """The result, once all edges of this rank are in: [size, ...] in the messages' dtype."""
        return self.result.view(-1, *self.tail).to(self.dtype)

    def start_backward(self, grad: Tensor) -> Tensor:
        """What `gradient` needs of the result's gradient, wide; called once a pass."""
        return grad.reshape(-1, self.columns).to(self.wide).contiguous()

    def gradient(
        self, piece: RowsOfPiece, index: Tensor | None, values: Tensor, grad: Tensor
    ) -> Tensor:
        """[e, columns]: the gradient of these messages, given what `start_backward` returned."""
        raise NotImplementedError

    def merge(self, graph: DistributedGraph, call: Call, name: str) -> None:
        """Where edges live elsewhere than their targets: from results of this rank's edges, [T,
        columns], to those of all ranks', of the owned rows. Called once, before `finish`."""

    def spread(self, grad: Tensor, graph: DistributedGraph, call: Call, name: str) -> Tensor:
        """And back: what `gradient` needs, of all targets, from that of the owned rows. What
        `start_backward` returned is turned into what `gradient` is given."""
        return grad

    def wide_rows(self, values: Tensor) -> Tensor:
        return values.detach().reshape(-1, self.columns).to(self.wide).contiguous()


class Sum(Reduction):
    """Σ over a row's in-edges."""

    def add(self, piece: RowsOfPiece, index: Tensor | None, values: Tensor) -> None:
        if index is None and values.is_floating_point():
            kernels.spmm(
                piece.offsets[:-1], piece.offsets[1:], _in_order(values), values, self.result,
                rows=piece.rows.to(torch.int32),
            )  # fmt: skip
        else:
            self.result.index_add_(0, _rows_of(piece, index), values)

    def gradient(
        self, piece: RowsOfPiece, index: Tensor | None, values: Tensor, grad: Tensor
    ) -> Tensor:
        return grad.index_select(0, _rows_of(piece, index))

    def merge(self, graph: DistributedGraph, call: Call, name: str) -> None:
        found = self.result if self.wide.is_floating_point else self.result.double()
        (found,) = sum_to_owners(graph, found, layer=call, name=name)
        self.result = found.to(self.wide)

    def spread(self, grad: Tensor, graph: DistributedGraph, call: Call, name: str) -> Tensor:
        return _fetch(graph, grad, call, f"{name}.gradient")


class _Extremum(Reduction):
    """The largest or smallest over a row's in-edges, 0 for a row without any.

    Edges that tie share the gradient; a result of exactly 0 counts as one more that ties, as in
    torch's `scatter_reduce_` into zeros, which PyG uses.
    """

    largest: bool

    def start(self, size: int) -> Tensor:
        self.ties = torch.zeros(size, self.columns, dtype=torch.int32)
        self.met = torch.zeros(size, dtype=torch.bool)
        if self.wide.is_floating_point:
            worst: float | int = float("-inf") if self.largest else float("inf")
        else:
            limits = torch.iinfo(self.wide)
            worst = limits.min if self.largest else limits.max
        return torch.full((size, self.columns), worst, dtype=self.wide)

    def add(self, piece: RowsOfPiece, index: Tensor | None, values: Tensor) -> None:
        rows = _rows_of(piece, index)
        self.met[rows] = True
        if index is None and values.is_floating_point():
            kernels.extremum(
                piece.offsets[:-1], piece.offsets[1:], _in_order(values), values, self.result,
                self.ties, largest=self.largest, rows=piece.rows.to(torch.int32),
            )  # fmt: skip
            return
        before = self.result[piece.rows]
        reduce = "amax" if self.largest else "amin"
        now = self.result.scatter_reduce_(0, rows.unsqueeze(1).expand_as(values), values, reduce)
        self.ties[piece.rows] *= before == now[piece.rows]
        self.ties.index_add_(0, rows, (values == now[rows]).to(torch.int32))

    def finish(self) -> Tensor:
        self.result[~self.met] = 0
        return super().finish()

    def start_backward(self, grad: Tensor) -> Tensor:
        self.at_targets = self.result
        return super().start_backward(grad) / (self.ties + (self.result == 0))

    def gradient(
        self, piece: RowsOfPiece, index: Tensor | None, values: Tensor, grad: Tensor
    ) -> Tensor:
        rows = _rows_of(piece, index)
        return torch.where(values == self.at_targets[rows], grad[rows], 0)

    def merge(self, graph: DistributedGraph, call: Call, name: str) -> None:
        (self.result,), (self.ties,) = merge_extrema(
            graph, self.result, self.ties, [self.columns], largest=self.largest, layer=call,
            name=name,
        )  # fmt: skip
        self.met = (self.ties > 0).any(1)

    def spread(self, grad: Tensor, graph: DistributedGraph, call: Call, name: str) -> Tensor:
        self.at_targets = _fetch(graph, self.result, call, f"{name}.result")
        return _fetch(graph, grad, call, f"{name}.gradient")


class Max(_Extremum):
    largest = True


class Min(_Extremum):
    largest = False


class Product(Reduction):
    """Π over a row's in-edges, 1 for a row without any. Zeros are counted, not multiplied, so that
    the gradient of a single zero is the product of the others."""

    def start(self, size: int) -> Tensor:
        self.zeros = torch.zeros(size, self.columns, dtype=torch.int32)
        return torch.ones(size, self.columns, dtype=self.wide)

    def add(self, piece: RowsOfPiece, index: Tensor | None, values: Tensor) -> None:
        rows = _rows_of(piece, index)
        is_zero = values == 0
        self.zeros.index_add_(0, rows, is_zero.to(torch.int32))
        factors = values.masked_fill(is_zero, 1)
        self.result.scatter_reduce_(0, rows.unsqueeze(1).expand_as(values), factors, "prod")

    def finish(self) -> Tensor:
        return self.result.masked_fill(self.zeros > 0, 0).view(-1, *self.tail).to(self.dtype)

    def gradient(
        self, piece: RowsOfPiece, index: Tensor | None, values: Tensor, grad: Tensor
    ) -> Tensor:
        rows, (factors, zeros) = _rows_of(piece, index), self.at_targets
        is_zero = values == 0
        other_zeros = zeros[rows] - is_zero.to(torch.int32)
        others = factors[rows] / values.masked_fill(is_zero, 1)
        return (grad[rows] * others).masked_fill(other_zeros > 0, 0)

    def start_backward(self, grad: Tensor) -> Tensor:
        self.at_targets = self.result, self.zeros
        return super().start_backward(grad)

    def merge(self, graph: DistributedGraph, call: Call, name: str) -> None:
        partial, n = torch.cat([self.result, self.zeros.to(self.wide)], 1), graph.num_owned
        self.result, self.zeros = self.result[:n].clone(), self.zeros[:n].clone()

        def take(rows: Tensor, values: Tensor, _: int) -> None:
            factors, zeros = values.split(self.columns, 1)
            self.result[rows.long()] *= factors
            self.zeros[rows.long()] += zeros.to(torch.int32)

        return_partials(graph, partial, [2 * self.columns], take, layer=call, as_is=True, name=name)

    def spread(self, grad: Tensor, graph: DistributedGraph, call: Call, name: str) -> Tensor:
        zeros = _fetch(graph, self.zeros.to(self.wide), call, f"{name}.zeros").to(torch.int32)
        self.at_targets = _fetch(graph, self.result, call, f"{name}.result"), zeros
        return _fetch(graph, grad, call, f"{name}.gradient")


class Total(Reduction):
    """Σ over all edges of all ranks: one row."""

    def start(self, size: int) -> Tensor:
        return torch.zeros(1, self.columns, dtype=self.wide)

    def add(self, piece: RowsOfPiece, index: Tensor | None, values: Tensor) -> None:
        self.result += values.sum(0)

    def finish(self) -> Tensor:
        self.group.all_reduce(self.result, "a sum over all edges")
        return self.result.view(self.tail).to(self.dtype)

    def start_backward(self, grad: Tensor) -> Tensor:
        whole = super().start_backward(grad).clone()
        return self.group.all_reduce(whole, "the gradient of a sum over all edges")

    def gradient(
        self, piece: RowsOfPiece, index: Tensor | None, values: Tensor, grad: Tensor
    ) -> Tensor:
        return grad.expand_as(values)


class Each(Reduction):
    """Nothing is reduced: the result is [E, ...], a value for each edge of the list."""

    def add(self, piece: RowsOfPiece, index: Tensor | None, values: Tensor) -> None:
        self.result[piece.position] = values

    def gradient(
        self, piece: RowsOfPiece, index: Tensor | None, values: Tensor, grad: Tensor
    ) -> Tensor:
        return grad[piece.position]


KINDS: dict[str, type[Reduction]] = {
    "sum": Sum, "amax": Max, "amin": Min, "prod": Product, "total": Total, "each": Each,
}  # fmt: skip


def _rows_of(piece: RowsOfPiece, index: Tensor | None) -> Tensor:
    """int64 [e]: the target of each message."""
    if index is None:
        return torch.repeat_interleave(piece.rows, piece.offsets.diff())
    return piece.rows[index]


def _fetch(graph: DistributedGraph, rows: Tensor, call: Call, name: str) -> Tensor:
    """[T, columns] in the backward pass."""
    return fetch_targets(graph, rows, layer=call, direction="backward", as_is=True, name=name)


def _in_order(values: Tensor) -> Tensor:
    return torch.arange(values.shape[0], dtype=torch.int32)
