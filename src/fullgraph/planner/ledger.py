"""The ledger of a dry run: what every operation allocates, frees and costs.

A `TorchDispatchMode` sees all operations, the backward pass's and the kernels' included. Memory is
that of the storages that are alive. Time is a clock that each operation moves on by its price, and
that waits for messages (see `Wire`).
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from fullgraph.kernels._memory import LARGE_BYTES
from fullgraph.kernels.costs import ATTENTION as ATTENTIONS
from fullgraph.kernels.costs import EDGE_KERNELS, MAKES_ROOM, OWN, POOL, flops_of_product
from fullgraph.planner.rates import (
    ATTENTION,
    ATTENTION_GRAD,
    DROPPED,
    DROPPED_GRAD,
    SUMS,
    EdgeWork,
    Rates,
)

WITH_DROPOUT = {ATTENTION: DROPPED, ATTENTION_GRAD: DROPPED_GRAD}
ROW_KERNELS = {"gather_rows", "scatter_add_rows"}  # move the rows of their third argument


class Ledger(TorchDispatchMode):
    """``live``: bytes in tensors; ``peak``: the most that the process held for them, which keeps
    what small ones (below `LARGE_BYTES`) have ever taken, while that of large ones goes back to the
    system. ``now``: seconds; ``compute``: those of them spent on work.

    Kernels are given ranges without contents; `note_edges` tells how many edges they have.
    """

    def __init__(self, rates: Rates) -> None:
        super().__init__()
        self.rates = rates
        self.live = self.peak = 0
        self._small = self._most_small = 0
        self.now = self.compute = 0.0
        self._edges_of: dict[int, float] = {}  # for each entry, by the key of a storage
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor):
                self._hold(tensor, func._schema.name != POOL)
        if not func.is_view:
            self.spend(self._price(func, args, out))
        return out

    def note_edges(self, ends: Tensor, edges: float) -> None:
        """There are so many edges in the ranges that end so; in some of them, a like share."""
        self._edges_of[_key(ends)] = edges / max(ends.numel(), 1)

    def spend(self, seconds: float) -> None:
        self.now += seconds
        self.compute += seconds

    def _hold(self, tensor: Tensor, fresh: bool) -> None:
        storage = tensor.untyped_storage()
        key, size = _key(tensor), storage.nbytes()
        if key in self._alive:
            return

        small = size if size < LARGE_BYTES else 0

        def free(_: Any) -> None:
            self.live -= size
            self._small -= small
            del self._alive[key]

        if fresh and not small:
            self.spend(size / self.rates.fresh)
        self._alive[key] = weakref.ref(storage, free)
        self.live += size
        self._small += small
        self._most_small = max(self._most_small, self._small)
        self.peak = max(self.peak, self.live - self._small + self._most_small)

    def _price(self, func: Any, args: Any, out: Any) -> float:
        name, rates = func._schema.name, self.rates
        call = rates.call if name.startswith(OWN) else rates.step
        flops = flops_of_product(func, args)
        if flops is not None:
            return call + flops / rates.flops
        if name.startswith(OWN):
            kernel = name.removeprefix(OWN)
            if kernel in EDGE_KERNELS:
                names = [argument.name for argument in func._schema.arguments]
                return call + self._edge_price(kernel, dict(zip(names, args)))
            if kernel == "dropout":
                return call + args[0].nbytes / rates.dropout
            if kernel in ROW_KERNELS:
                return call + 3 * args[2].nbytes / rates.stream
        if name in MAKES_ROOM:
            return 0.0
        if name == "aten::index":
            return call + 2 * out.nbytes / rates.stream
        moved = sum(_bytes(x) for x in tree_iter((args, out)) if isinstance(x, Tensor))
        return call + moved / rates.stream

    def _edge_price(self, kernel: str, given: dict[str, Any]) -> float:
        kind = SUMS
        if kernel.startswith(ATTENTIONS):
            kind = ATTENTION_GRAD if "_grad" in kernel else ATTENTION
        if given.get("ids") is not None:
            kind = WITH_DROPOUT[kind]
        end, rows = given["end"], given[EDGE_KERNELS[kernel][0][0]]  # which edges name
        degree = self._edges_of[_key(end)]
        work = EdgeWork(kind, rows.shape[1], _heads(kernel, given), rows.shape[0], round(degree))
        return self.rates.edges(end.numel() * degree, work)


def _heads(kernel: str, given: dict[str, Any]) -> int:
    if "state" in given:
        return int(given["state"].shape[-1]) // (4 if kernel == "gat_grad" else 3)
    return int(given["total"].shape[-1]) if "total" in given else 1


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> int:
    """What is read of it: a broadcast tensor, whatever its shape, has its storage's bytes."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
