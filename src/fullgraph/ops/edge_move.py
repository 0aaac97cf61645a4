"""Lists of edges turned round, and values of edges on their way there and back.

Letters: E edges of a list on this rank, E' edges of the turned list, B edges of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgraph.comm.reverse import EdgeMove
from fullgraph.ops.edge_list import EdgeList

Move = Callable[[Tensor], Tensor]


class _There(torch.autograd.Function):
    """Values to the reversed edges; their gradients back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, move: EdgeMove) -> Tensor:
        ctx.move = move
        return move.there(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.move.back(grad.contiguous()), None


class _Back(torch.autograd.Function):
    """Values of the reversed edges back; their gradients there."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, move: EdgeMove) -> Tensor:
        ctx.move = move
        return move.back(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.move.there(grad.contiguous()), None


def turned(edges: EdgeList) -> tuple[EdgeList, Move, Move]:
    """The list with its edges turned round, and the ways of their values [E, ...] -> [E', ...] and
    back, both differentiable exchanges. The first call of a list is a collective, too."""
    found = edges.__dict__.get("_turned")
    if found is None:
        found = edges.__dict__["_turned"] = _turn(edges)
    return found


def _turn(edges: EdgeList) -> tuple[EdgeList, Move, Move]:
    graph, move = edges.graph.reversed()
    if edges.origin is None:
        return (
            EdgeList(graph),
            lambda values: _There.apply(values, move),
            lambda values: _Back.apply(values, move),
        )
    chosen, loops = edges.spread(torch.ones(edges.num_edges, dtype=torch.bool))
    arrived = move.there(chosen).nonzero().view(-1)
    base = graph.num_local_edges
    origin = arrived
    if loops is not None:
        origin = torch.cat([arrived, base + loops.nonzero().view(-1)])
    new = EdgeList(graph, origin)

    def there(values: Tensor) -> Tensor:
        of_graph, of_loops = edges.spread(values)
        parts = [_There.apply(of_graph, move)]
        parts.append(parts[0].new_zeros(graph.num_owned, *values.shape[1:])
                     if of_loops is None else of_loops)  # fmt: skip
        return torch.cat(parts)[origin]

    def back(values: Tensor) -> Tensor:
        of_graph, of_loops = new.spread(values)
        parts = [_Back.apply(of_graph, move)]
        parts.append(parts[0].new_zeros(graph.num_owned, *values.shape[1:])
                     if of_loops is None else of_loops)  # fmt: skip
        assert edges.origin is not None
        return torch.cat(parts)[edges.origin]

    return new, there, back
