"""What approximate schedules keep of other ranks' rows from one training pass to the next.

A pass is one forward pass of a converted model that is in training, with its backward pass. Every
call of a layer in it is kept apart, by its number. Rows that travel together form a *bin*.

Letters: W ranks, m owned rows that edges start from, S rows that one rank needs of another, F
columns, r bins.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fullgraph.comm.plan import ExchangePlan

if TYPE_CHECKING:
    from fullgraph.comm.distributed import DistributedGraph


class Call(NamedTuple):
    """One call of an operator, for its backward pass to go the way that the forward pass went.

    ``layer``: for the account. ``remote``: what remote rows are in it: "fresh", "stale", or "none"
    where they take no part. ``key``: the name of what is kept for it, where they are stale.
    """

    layer: str
    remote: str = "fresh"
    key: str = ""


# Bins ---------------------------------------------------------------------------------------------


def bins_of(node_id: Tensor, num_bins: int) -> Tensor:
    """int64, of 0 .. num_bins - 1: the bin of each node, by a hash of its id (Knuth's golden ratio,
    64 bits), so that neither order nor partition of the ids matters."""
    hashed = node_id * -7046029254386353131  # 2**64 / golden ratio, as a signed number
    return ((hashed >> 32) & 0x7FFFFFFF) % num_bins


@dataclass(frozen=True)
class Bin:
    """Rows that travel in the same pass.

    ``plan``: exchanges them. ``needed[q]``: int64, which of the rows that this rank needs of rank q
    they are; ``sent[q]``: which of those that rank q needs of this one.
    """

    plan: ExchangePlan
    needed: tuple[Tensor, ...]
    sent: tuple[Tensor, ...]


@dataclass(frozen=True)
class Bins:
    """The bins of a graph's exchange. ``signature``: a number that is the same on all ranks, and
    another for another graph, partition or number of bins."""

    bins: list[Bin]
    signature: int

    @staticmethod
    def build(graph: DistributedGraph, plan: ExchangePlan, ids: Tensor, num_bins: int) -> Bins:
        """A collective. The rows to sort into bins are those that a plan of the graph exchanges;
        ids: int64, of the rows that it sends from."""
        group = graph.group
        of_row = bins_of(ids, num_bins).cpu()
        sent = [of_row[rows.cpu().long()] for rows in plan.send_rows]
        needed = [torch.empty(n, dtype=torch.int64) for n in plan.num_needed]
        group.exchange(sent, needed, "the bins of remote rows")
        counts = torch.zeros(num_bins, group.size, group.size, dtype=torch.int64)
        for peer, bins in enumerate(needed):
            counts[:, group.rank, peer] = torch.bincount(bins, minlength=num_bins)
        group.all_reduce(counts, "the sizes of bins")
        found = []
        for b in range(num_bins):
            needed_b, sent_b = _places(needed, b, graph), _places(sent, b, graph)
            rows = tuple(all_rows[at] for all_rows, at in zip(plan.send_rows, sent_b))
            sizes = tuple(map(tuple, counts[b].tolist()))
            found.append(Bin(ExchangePlan(group.rank, rows, sizes), needed_b, sent_b))
        text = f"{graph.meta.fingerprint} {graph.ownership.first_part} {plan.counts} {num_bins}"
        digest = hashlib.sha256(text.encode()).digest()
        return Bins(found, int.from_bytes(digest[:6], "big"))


def _places(bins: Sequence[Tensor], b: int, graph: DistributedGraph) -> tuple[Tensor, ...]:
    return tuple((of_peer == b).nonzero().view(-1).to(graph.node_id.device) for of_peer in bins)


def _source_ids(graph: DistributedGraph) -> Tensor:
    """int64 [m]: the ids of the owned rows that edges start from."""
    if graph.source_rows is not None:
        base = graph.base
        while base is not None and base.source_rows is not None:
            base = base.base
        assert base is not None  # a layer of for_seeds was made from a graph
        return base.node_id[graph.source_rows]
    if graph.source_ownership is not None and graph.types is not None:
        nodes = graph.types.values()
        return next(n.node_id for n in nodes if n.ownership is graph.source_ownership)
    return graph.node_id


# What is kept -------------------------------------------------------------------------------------


@dataclass
class Kept:
    """The rows of one exchange of a call as they arrived last, one tensor for each peer.

    ``rows[q]``: [S, F] of peer q, as used in this pass. ``arrived[q]``: those of the bin that
    travelled in this pass, until they `settle`. ``turn``: passes since the first; in turn t > 0 bin
    t % r travels. ``form``: what they fit, the same on all ranks.
    """

    rows: list[Tensor]
    arrived: list[Tensor]
    turn: int
    form: tuple[int, ...]

    def next_turn(self, bins: Bins, *, returning: bool, into: list[Tensor] | None) -> Bin:
        """The bin that travels now.

        returning: whether these are rows that come back to their owner, not those of others, which
            settle now from the turn before.
        into: where the rows are to be from now on.
        """
        if into is not None:
            for new, old in zip(into, self.rows):
                new.copy_(old)
            self.rows = into
        if self.turn and not returning:
            self.settle(bins.bins[self.turn % len(bins.bins)].needed)
        self.turn += 1
        now = bins.bins[self.turn % len(bins.bins)]
        self.arrived = [
            rows.new_empty(places.numel(), rows.shape[1])
            for rows, places in zip(self.rows, now.sent if returning else now.needed)
        ]
        return now

    def settle(self, places: Sequence[Tensor]) -> None:
        """Put what has arrived in its places."""
        for rows, at, new in zip(self.rows, places, self.arrived):
            rows[at] = new
        self.arrived = [new[:0] for new in self.arrived]


class StaleRows:
    """All that a graph keeps of other ranks' rows for its schedule; views of the graph share it.

    Under an exact schedule there is nothing in it. `state_dict` and `load_state_dict` are for
    checkpoints: they are of one rank, and fit the same number of ranks on the same graph; anything
    else is ignored, and training goes on as from a first pass, which is exact.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._bins: weakref.WeakKeyDictionary[object, Bins] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._num_models = 0
        self._calls: Counter[str] | None = None  # of the pass that is under way
        self._model = 0

    # Passes ------------------------------------------------------------------------------------

    @contextmanager
    def training_pass(self, model: object) -> Iterator[None]:
        """Around the forward pass of a model in training; outside, remote rows are fresh.

        A model is known by the order in which models first ran on the graph.
        """
        if model not in self._models:
            self._models[model] = self._num_models
            self._num_models += 1
            alive = set(self._models.values())
            for key in list(self._kept):  # models that are gone
                if int(key.partition(".")[0]) in {*range(self._num_models)} - alive:
                    del self._kept[key]
        self._model, self._calls = self._models[model], Counter()
        try:
            yield
        finally:
            self._calls = None

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """For what is computed in a training pass and kept: it has to be exact."""
        calls, self._calls = self._calls, None
        try:
            yield
        finally:
            self._calls = calls

    def call(self, graph: DistributedGraph, layer: str | Call) -> Call:
        """What becomes of remote rows in this call of a layer."""
        if isinstance(layer, Call):
            return layer
        schedule = graph.schedule
        if self._calls is None or schedule.exact or graph.group.size == 1:
            return Call(layer)
        if schedule.is_local:
            return Call(layer, "none")
        self._calls[layer] += 1
        return Call(layer, "stale", f"{self._model}.{layer}.{self._calls[layer]}")

    def leaves_out(self, graph: DistributedGraph) -> bool:
        """Whether the calls to come take no remote rows."""
        return self.call(graph, "").remote == "none" if graph.schedule.is_local else False

    # Rows --------------------------------------------------------------------------------------

    def bins(self, graph: DistributedGraph) -> Bins:
        """Of the rows that edges start from. Built at the first call, which all ranks make."""
        return self._bins_of(graph, graph, graph.plan)

    def bins_of_targets(self, graph: DistributedGraph) -> Bins:
        """Of the rows that they end in, where those are elsewhere; built likewise."""
        assert graph.targets is not None
        return self._bins_of(graph.targets, graph, graph.targets.plan)

    def _bins_of(self, key: object, graph: DistributedGraph, plan: ExchangePlan) -> Bins:
        found = self._bins.get(key)
        if found is None or len(found.bins) != graph.schedule.period:
            ids = _source_ids(graph) if plan is graph.plan else graph.node_id
            found = self._bins[key] = Bins.build(graph, plan, ids, graph.schedule.period)
        return found

    def find(self, key: str, form: tuple[int, ...]) -> Kept | None:
        """What is kept under `key`, if it is of this form."""
        found = self._kept.get(key)
        return found if found is not None and found.form == form else None

    def start(self, key: str, rows: list[Tensor], form: tuple[int, ...]) -> None:
        """Keep rows that have just been exchanged, all of them."""
        self._kept[key] = Kept(rows, [row[:0] for row in rows], 0, form)

    # Checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Copies, by names that end in ".rows", ".arrived" and ".turn"."""
        state = {}
        for key, kept in self._kept.items():
            for q, (rows, arrived) in enumerate(zip(kept.rows, kept.arrived)):
                state[f"{key}.rows.{q}"] = rows.detach().clone()
                state[f"{key}.arrived.{q}"] = arrived.detach().clone()
            state[f"{key}.turn"] = torch.tensor([kept.turn, *kept.form])
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` gave, in the place of all that is there.

        Raises ValueError for anything else.
        """
        kept = {}
        names = set(state)
        for name in state:
            if not name.endswith(".turn"):
                continue
            key = name.removesuffix(".turn")
            turn, *form = state[name].tolist()
            groups: list[list[Tensor]] = []
            for kind in ("rows", "arrived"):
                peers = range(sum(n.startswith(f"{key}.{kind}.") for n in state))
                found = [state.get(f"{key}.{kind}.{q}") for q in peers]
                groups.append([t.clone() for t in found if t is not None])
                names -= {f"{key}.{kind}.{q}" for q in peers}
            kept[key] = Kept(groups[0], groups[1], turn, tuple(form))
            names.discard(name)
        if names:
            raise ValueError(f"not the stale rows of a graph: {sorted(names)[:3]}")
        self._kept = kept
