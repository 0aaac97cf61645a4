"""The plan: every placement under every schedule, predicted, and the one to take.

Letters: W workers; R, C, K the shape of a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fullgraph.comm.exchange import wire_dtype
from fullgraph.comm.placement import DESTINATION, Placement, grids_of
from fullgraph.comm.schedule import Schedule
from fullgraph.planner.dry_run import DryRun, dry_run
from fullgraph.planner.figures import GraphFigures, Shares
from fullgraph.planner.machine import PROCESS_BYTES, Machine
from fullgraph.training.models import ModelOptions, build_model

SCHEDULES = ("sequential", "oneshot")
APPROXIMATE = ("delayed:5", "local")

SharesOf = Callable[[Placement], Shares]


@dataclass(frozen=True)
class Candidate:
    """A placement under a schedule; figures are of the worker that has the most.

    ``memory``: peak, process included; ``sent``: bytes of layers' rows in an epoch; ``seconds`` of
    an epoch, ``compute`` of which are work. ``imbalance``: the most edges of a worker over the
    mean. ``refused``: why it cannot run; then the figures are 0. ``fits``: within the memory limit.
    """

    placement: str
    schedule: str
    exact: bool = True
    memory: int = 0
    sent: int = 0
    seconds: float = 0.0
    compute: float = 0.0
    imbalance: float = 1.0
    refused: str = ""
    fits: bool = True

    @property
    def usable(self) -> bool:
        return self.fits and not self.refused


@dataclass(frozen=True)
class Plan:
    """``candidates``: fastest first, those that do not fit or cannot run last.

    ``source``: the graph as it was given. ``wire``: what rows travel in.
    """

    source: str
    figures: GraphFigures
    model: ModelOptions
    workers: int
    machine: Machine
    candidates: tuple[Candidate, ...]
    wire: str = "float32"

    @property
    def best(self) -> Candidate | None:
        """The fastest exact one that fits, if there is one; of a plan without any exact one, the
        fastest."""
        only_approximate = not any(c.exact for c in self.candidates)
        usable = (c for c in self.candidates if c.usable and (c.exact or only_approximate))
        return next(usable, None)

    @property
    def smallest(self) -> Candidate | None:
        """The one that takes the least memory."""
        return min((c for c in self.candidates if not c.refused), key=_memory, default=None)

    def command(self, candidate: Candidate) -> str:
        """What to type to run it."""
        model = self.model
        options = {
            "model": model.name, "hidden": model.hidden, "layers": model.layers,
            "workers": self.workers, "placement": candidate.placement,
            "schedule": candidate.schedule,
        }  # fmt: skip
        if self.wire != "float32":
            options["wire"] = self.wire
        for name in ("dropout", "norm", "heads"):
            if getattr(model, name) != getattr(ModelOptions(), name):
                options[name] = getattr(model, name)
        graph = "GRAPH" if self.figures.name == "figures" else self.source
        return " ".join([f"fullgraph train {graph}", *(f"--{k} {v}" for k, v in options.items())])

    def to_json(self) -> dict[str, Any]:
        """Bytes and seconds; see `Candidate`."""
        machine, best = self.machine, self.best
        rates = machine.rates
        return {
            "graph": asdict(self.figures), "model": asdict(self.model), "workers": self.workers,
            "wire": self.wire,
            "machine": {
                "memory_bytes": machine.memory, "flops": rates.flops,
                "gather_bytes_per_second": rates.gather,
                "bandwidth_bytes_per_second": machine.network.bandwidth,
                "latency_seconds": machine.network.latency, "workers_taking_turns": machine.turns,
            },
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "recommended": None if best is None else {
                "placement": best.placement, "schedule": best.schedule,
                "command": self.command(best),
            },
        }  # fmt: skip


def _memory(candidate: Candidate) -> int:
    return candidate.memory


def placements(num_ranks: int, cut: bool = False) -> Iterator[Placement]:
    """Every placement of so many ranks but grids Px1x1, which are `destination`; `cut`: vertex cuts
    as well."""
    yield DESTINATION
    if num_ranks > 1:
        if cut:
            yield Placement("vertex-cut")
        yield from (grid for grid in grids_of(num_ranks) if grid.rows < num_ranks)


def choose(
    source: str, figures: GraphFigures, shares_of: SharesOf, model: ModelOptions, workers: int,
    machine: Machine, *, among: Sequence[str | Placement] | None = None,
    schedules: Sequence[str] = SCHEDULES, wire: str = "float32",
    on_candidate: Callable[[Candidate], None] = lambda candidate: None,
) -> Plan:  # fmt: skip
    """Predict every placement of `among` under every schedule.

    Args:
        source: the graph as the user gave it, for the command.
        shares_of: the shares of the ranks under a placement, as `count_shares` and `expect_shares`
            give them; a ValueError becomes the reason why that placement is refused.
        among: all placements of so many workers but vertex cuts, unless given.
        wire: what rows travel in; all but "float32" is approximate.
        on_candidate: told of each as it is found.

    Raises:
        ValueError: an option of the model is wrong, or no worker.
    """
    model.validate()
    wire_dtype(wire)
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    found = []
    for placement in map(Placement.parse, placements(workers) if among is None else among):
        placement.check_ranks(workers)
        for candidate in _under(placement, figures, shares_of, model, machine, schedules, wire):
            found.append(candidate)
            on_candidate(candidate)
    found.sort(key=lambda c: (not c.usable, bool(c.refused), c.seconds))
    return Plan(source, figures, model, workers, machine, tuple(found), wire)


def _under(
    placement: Placement, figures: GraphFigures, shares_of: SharesOf, model: ModelOptions,
    machine: Machine, schedules: Sequence[str], wire: str,
) -> Iterator[Candidate]:  # fmt: skip
    try:
        shares = shares_of(placement)
    except ValueError as error:
        yield Candidate(str(placement), "any", refused=str(error), fits=False)
        return
    for schedule in schedules:
        exact = Schedule.parse(schedule).exact and wire == "float32"
        base = Candidate(str(placement), schedule, exact, imbalance=shares.edge_imbalance)
        try:
            yield _predict(base, figures, shares, model, machine, wire)
        except (ValueError, NotImplementedError) as error:
            yield replace(base, refused=str(error), fits=False)


def _predict(
    base: Candidate, figures: GraphFigures, shares: Shares, model: ModelOptions, machine: Machine,
    wire: str,
) -> Candidate:  # fmt: skip
    runs = predict_ranks(figures, shares, model, base.schedule, machine, shares.heaviest(), wire)
    memory = PROCESS_BYTES + max(run.peak for run in runs)
    slowest = max(runs, key=lambda run: run.seconds)
    return replace(
        base, memory=memory, sent=max(run.sent for run in runs), seconds=slowest.seconds,
        compute=slowest.compute, fits=machine.memory is None or memory <= machine.memory,
    )  # fmt: skip


def predict_ranks(
    figures: GraphFigures, shares: Shares, model: ModelOptions, schedule: str, machine: Machine,
    ranks: Sequence[int], wire: str = "float32",
) -> list[DryRun]:  # fmt: skip
    """What these ranks do."""

    def build() -> torch.nn.Module:
        return build_model(model, figures.features, figures.classes)

    rates = machine.rates.shared_by(machine.turns)
    return [
        dry_run(figures, shares, rank, build, schedule, rates, machine.network, wire)
        for rank in ranks
    ]
