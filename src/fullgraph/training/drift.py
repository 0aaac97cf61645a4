"""Drift: how far an approximate training step is from the exact one on the same weights.

The exact step runs on a copy of the model, under an exact schedule, with the same dropout masks and
random numbers, and leaves the model, the graph and the random numbers as they were.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.schedule import sequential
from fullgraph.comm.traffic import Traffic

# Forward pass, loss, backward pass and the sum of gradients over ranks; returns the output.
Step = Callable[[nn.Module, DistributedGraph], Tensor]


class DriftCheck:
    """Made before a training step, and measured after its backward pass, on every rank."""

    def __init__(self, model: nn.Module, graph: DistributedGraph) -> None:
        self.before = copy.deepcopy(model)
        self.random = torch.get_rng_state()
        self.exact = graph.with_schedule(sequential(), wire="float32")
        self.exact.traffic = Traffic()  # not of the run

    def measure(self, model: nn.Module, out: Tensor, step: Step) -> dict[str, float]:
        """The relative errors, in the Euclidean norm, of the outputs of all ranks ("outputs") and
        of the gradients of all parameters ("gradients").

        out: [n, C], what the training step has given.
        """
        self.before.zero_grad()
        with torch.random.fork_rng():
            torch.set_rng_state(self.random)
            expected = step(self.before, self.exact).detach()
        squares = torch.stack([_square(out.detach() - expected), _square(expected)]).cpu()
        self.exact.group.all_reduce(squares, "the error of outputs")
        of_grads = torch.zeros(2, dtype=torch.float64)
        for ours, theirs in zip(model.parameters(), self.before.parameters()):
            if ours.grad is not None and theirs.grad is not None:
                of_grads[0] += _square(ours.grad - theirs.grad).cpu()
                of_grads[1] += _square(theirs.grad).cpu()
        return {"outputs": _relative(squares), "gradients": _relative(of_grads)}


def _square(values: Tensor) -> Tensor:
    return values.double().square().sum()


def _relative(squares: Tensor) -> float:
    error, size = squares.sqrt().tolist()
    return error / size if size else float(error > 0)
