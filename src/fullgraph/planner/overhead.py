"""What an operation takes in a step of training, however small: Python, autograd and torch.

The same operation alone in a loop takes a fraction of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.graph.partition import PartitionedInMemory
from fullgraph.graph.planted import planted
from fullgraph.kernels.costs import MAKES_ROOM
from fullgraph.nn.convert import convert
from fullgraph.ops.gradients import sum_gradients
from fullgraph.ops.reduce import cross_entropy
from fullgraph.training.models import ModelOptions, build_model, run_model

NODES, EDGES, COLUMNS = 64, 256, 8


def tiny_step() -> tuple[Callable[[], None], int]:
    """A step of training of so few rows that nothing but operations as such takes time, and how
    many operations it has that a `Ledger` has a price for."""
    whole = planted(NODES, EDGES, features=COLUMNS, classes=COLUMNS)
    parts = PartitionedInMemory(whole, torch.zeros(NODES, dtype=torch.int32), 1)
    graph = DistributedGraph.build(parts, Group())
    assert graph.y is not None
    y = graph.y
    model = convert(build_model(ModelOptions("sage", 3, COLUMNS, 0.0), COLUMNS, COLUMNS))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(run_model(model, graph), y, graph.train_mask, group=graph.group)
        loss.backward()
        sum_gradients(model, graph.group)
        optimizer.step()

    step()
    with _Counting() as counting:
        step()
    return step, counting.count


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and func._schema.name not in MAKES_ROOM
        return func(*args, **(kwargs or {}))
