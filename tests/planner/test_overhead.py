"""What an operation takes, however small: of a step of training that has nothing else."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from fullgraph.kernels.costs import MAKES_ROOM
from fullgraph.planner.overhead import tiny_step


def test_the_operations_of_a_tiny_step_are_counted() -> None:
    step, count = tiny_step()
    names: list[str] = []

    class Lists(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if not func.is_view:
                names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    with Lists():
        step()
    assert count == sum(name not in MAKES_ROOM for name in names) > 100
    assert {"fullgraph::spmm", "fullgraph::dense", "fullgraph::dense_weight_grad"} <= set(names)
