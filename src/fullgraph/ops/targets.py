"""Rows to where edges end, and partial results back: the R of Z = R A G H.

Where edges live elsewhere than with the owner of their target, a rank computes for T targets, its
own n rows first; see `comm.targets`. Under the placement `destination` the targets are the owned
rows, and nothing here does anything.

`fetch_targets` and `sum_to_owners` know nothing of autograd and are each other's adjoint;
`to_targets` and `to_owners` are their differentiable form.

In a grid of K slices of the columns, tensors of owned rows come as K pieces (see `ops.halo`), and
those of targets have the columns of this rank's slice. What is not sliced, such as a number for
each node, is the same on the K ranks that share their edges: they all get it, and only the first
of them has a part in a sum, which so counts an edge once.

Letters: n owned rows, T targets, F columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.plan import ExchangePlan, Message
from fullgraph.comm.stale import Call
from fullgraph.ops.halo import Pieces, exchange

TakePartial = Callable[[Tensor, Tensor, int], None]


def fetch_targets(
    graph: DistributedGraph, rows: Pieces, *, layer: str | Call, direction: str = "forward",
    sliced: bool = True, as_is: bool = False, name: str = "targets",
) -> Tensor:  # fmt: skip
    """[T, F]: the rows of every target, fetched from their owners.

    Args:
        rows: [n, F], contiguous, or pieces; with `sliced`, of each rank's slice of the columns.
        layer: for the account; or the `Call` that this is part of, whose schedule it follows.
        direction: "forward" or "backward", for the account.
        as_is: they have to arrive as they are, so that they travel in no other dtype.
        name: tells apart what a call fetches and returns.
    """
    pieces = [rows] if isinstance(rows, Tensor) else [*rows]
    mine = pieces[graph.feature_slice if sliced else 0]
    if graph.targets is None:
        return mine
    call, plan = graph.stale.call(graph, layer), graph.targets.plan
    out = kernels.new_empty(mine, graph.num_targets, mine.shape[1])
    out[: graph.num_owned] = mine
    foreign = out[graph.num_owned :].split(list(plan.num_needed))
    if call.remote == "none":
        out[graph.num_owned :] = 0
    elif call.remote == "stale":
        bins = graph.stale.bins_of_targets(graph)
        key, form = f"{call.key}.targets.{name}", (bins.signature, *_form(pieces))
        kept = graph.stale.find(key, form)
        if kept is None:
            _fetch(graph, pieces, plan, foreign, call, direction, sliced, as_is)
            graph.stale.start(key, [of_peer.clone() for of_peer in foreign], form)
        else:
            now = kept.next_turn(bins, returning=False, into=None)
            for new, old in zip(foreign, kept.rows):
                new.copy_(old)
            _fetch(graph, pieces, now.plan, kept.arrived, call, direction, sliced, as_is)
    else:
        _fetch(graph, pieces, plan, foreign, call, direction, sliced, as_is)
    return out


def _fetch(
    graph: DistributedGraph, pieces: list[Tensor], plan: ExchangePlan, into: Sequence[Tensor],
    call: Call, direction: str, sliced: bool, as_is: bool,
) -> None:  # fmt: skip
    def make(message: Message) -> Tensor:
        piece = pieces[_slice_of(graph, message, sliced)]
        packed = kernels.new_empty(piece, message.num_rows, piece.shape[1])
        chosen = plan.send_rows[message.peer][message.first_row : message.last_row]
        kernels.gather_rows(piece, chosen, packed)
        return packed

    exchange(
        graph, call.layer, direction, as_is, make=make,
        allot=lambda message: into[message.peer][message.first_row : message.last_row],
        take=lambda message, received: None, meanwhile=lambda: None,
    ).run(plan.fetch_ticks(_max_rows(graph, pieces)), graph.schedule.prefetch)  # fmt: skip


def return_partials(
    graph: DistributedGraph, partial: Tensor, widths: list[int], take: TakePartial, *,
    layer: str | Call, direction: str = "forward", sliced: bool = True, as_is: bool = False,
    name: str = "partials",
) -> None:  # fmt: skip
    """Hand partial results of other ranks' targets to their owners.

    Args:
        partial: [T, F], contiguous.
        widths: how many columns the partial results of each slice have.
        take: `take(rows, values, k)` is given what a rank of slice k has for the owned `rows`,
            int32, distinct.
        layer, direction, as_is, name: as for `fetch_targets`.
    """
    assert graph.targets is not None
    call, plan = graph.stale.call(graph, layer), graph.targets.plan
    foreign = partial[graph.num_owned :].split(list(plan.num_needed))

    def received(message: Message, values: Tensor) -> None:
        rows = plan.send_rows[message.peer][message.first_row : message.last_row]
        take(rows, values, _slice_of(graph, message, sliced))

    if call.remote == "none":
        return
    if call.remote == "fresh":
        _return(graph, plan, foreign, widths, received, call, direction, sliced, as_is)
        return
    bins = graph.stale.bins_of_targets(graph)
    key, form = f"{call.key}.targets.{name}", (bins.signature, sum(widths), partial.element_size())
    kept = graph.stale.find(key, form)
    into = [
        partial.new_empty(rows.numel(), widths[_slice_of(graph, Message(peer, 0, 0), sliced)])
        for peer, rows in enumerate(plan.send_rows)
    ]

    def keep(message: Message, values: Tensor) -> None:
        into[message.peer][message.first_row : message.last_row] = values

    if kept is None:
        _return(graph, plan, foreign, widths, keep, call, direction, sliced, as_is)
        graph.stale.start(key, into, form)
    else:
        now = kept.next_turn(bins, returning=True, into=None)
        into = kept.arrived
        leaving = [values[at] for values, at in zip(foreign, now.needed)]
        _return(graph, now.plan, leaving, widths, keep, call, direction, sliced, as_is)
        kept.settle(now.sent)
        into = kept.rows
    for peer, values in enumerate(into):
        received(Message(peer, 0, values.shape[0]), values)


def _return(
    graph: DistributedGraph, plan: ExchangePlan, leaving: Sequence[Tensor], widths: list[int],
    take: Callable[[Message, Tensor], None], call: Call, direction: str, sliced: bool, as_is: bool,
) -> None:  # fmt: skip
    some = leaving[graph.group.rank]
    exchange(
        graph, call.layer, direction, as_is,
        make=lambda message: leaving[message.peer][message.first_row : message.last_row],
        allot=lambda message: kernels.new_empty(
            some, message.num_rows, widths[_slice_of(graph, message, sliced)]
        ),
        take=take, meanwhile=lambda: None,
    ).run(
        plan.return_ticks(graph.rows_of_message(some.element_size() * max(widths))),
        graph.schedule.prefetch,
    )  # fmt: skip


def sum_to_owners(
    graph: DistributedGraph, partial: Tensor, widths: list[int] | None = None, *,
    layer: str | Call, direction: str = "forward", sliced: bool = True, as_is: bool = False,
    name: str = "partials",
) -> list[Tensor]:  # fmt: skip
    """K pieces [n, F_k]: of every owned row the sum of the partial results [T, F] of all ranks.

    widths: F_k of all pieces, by default one piece of F. All else as for `fetch_targets`.
    """
    widths = [partial.shape[1]] if widths is None else widths
    if graph.targets is None:
        return [partial]
    n, mine = graph.num_owned, graph.feature_slice if sliced else 0
    # A copy, not a view that keeps the rows of other ranks.
    pieces = [
        kernels.copy_of(partial[:n]) if k == mine else kernels.new_zeros(partial, n, width)
        for k, width in enumerate(widths)
    ]

    def add(rows: Tensor, values: Tensor, k: int) -> None:
        kernels.scatter_add_rows(pieces[k], rows, values)

    return_partials(
        graph, partial, widths, add, layer=layer, direction=direction, sliced=sliced, as_is=as_is,
        name=name,
    )  # fmt: skip
    return pieces


def _slice_of(graph: DistributedGraph, message: Message, sliced: bool) -> int:
    """Which slice of the columns the other end works on."""
    return graph.placement.slice_of(message.peer) if sliced else 0


def _form(pieces: list[Tensor]) -> tuple[int, int]:
    return sum(piece.shape[1] for piece in pieces), pieces[0].element_size()


def _max_rows(graph: DistributedGraph, pieces: list[Tensor]) -> int:
    return graph.rows_of_message(pieces[0].element_size() * max(p.shape[1] for p in pieces))


# Differentiable, not sliced ----------------------------------------------------------------------


class _ToTargets(torch.autograd.Function):
    """y[t] = x[row(t)] for every target. Backward: dx = Σ over ranks of dy."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, graph: DistributedGraph, layer: str, as_is: bool) -> Tensor:
        ctx.graph, ctx.call = graph, graph.stale.call(graph, layer)
        return fetch_targets(graph, rows, layer=ctx.call, sliced=False, as_is=as_is)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (dx,) = sum_to_owners(
            ctx.graph, grad.contiguous(), layer=ctx.call, direction="backward", sliced=False
        )
        return dx, None, None, None


class _ToOwners(torch.autograd.Function):
    """y[i] = Σ over ranks, of slice 0 in a grid, of x[target i]. Backward: dx[t] = dy[row(t)]."""

    @staticmethod
    def forward(
        ctx: Any, partial: Tensor, graph: DistributedGraph, layer: str, as_is: bool
    ) -> Tensor:
        ctx.graph, ctx.call = graph, graph.stale.call(graph, layer)
        if graph.feature_slice > 0:
            partial = torch.zeros_like(partial)
        (total,) = sum_to_owners(graph, partial, layer=ctx.call, sliced=False, as_is=as_is)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dx = fetch_targets(
            ctx.graph, grad.contiguous(), layer=ctx.call, direction="backward", sliced=False
        )
        return (dx.zero_() if ctx.graph.feature_slice > 0 else dx), None, None, None


def to_targets(graph: DistributedGraph, rows: Tensor, *, layer: str = "-") -> Tensor:
    """[T, ...]: the rows [n, ...] of every target of this rank. Differentiable; an exchange, where
    targets are other than the owned rows. Integers travel as float64, exact to 2**53."""
    if graph.targets is None:
        return rows
    return _by_columns(rows, lambda flat, as_is: _ToTargets.apply(flat, graph, layer, as_is))


def to_owners(graph: DistributedGraph, partial: Tensor, *, layer: str = "-") -> Tensor:
    """[n, ...]: for every owned row the sum of all ranks' [T, ...]. Differentiable; an exchange,
    where targets are other than the owned rows. Integers are summed as float64. Sums without a
    gradient, degrees and the like, are those of the whole graph whatever the schedule."""
    if graph.targets is None:
        return partial
    with nullcontext() if partial.requires_grad else graph.stale.fresh():
        return _by_columns(partial, lambda flat, as_is: _ToOwners.apply(flat, graph, layer, as_is))


def _by_columns(values: Tensor, apply: Callable[[Tensor, bool], Tensor]) -> Tensor:
    """Of rows [*, ...] as rows [*, F]; integers as float64, which travel as they are."""
    flat = values.reshape(values.shape[0], values.shape[1:].numel()).contiguous()
    is_whole = not flat.is_floating_point()
    out = apply(flat.double() if is_whole else flat, is_whole).to(values.dtype)
    return out.view(out.shape[0], *values.shape[1:])
