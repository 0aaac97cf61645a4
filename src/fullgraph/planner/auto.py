"""`--placement auto`: the placement that trains fastest on this machine, under a given schedule."""

from __future__ import annotations

import os
from collections.abc import Callable

from fullgraph.planner.choose import Candidate, choose
from fullgraph.planner.machine import Machine
from fullgraph.planner.rates import Rates, Stopwatch, measure
from fullgraph.planner.report import advice
from fullgraph.planner.source import Stage, open_source
from fullgraph.planner.wire import Network
from fullgraph.training.config import RunConfig
from fullgraph.training.prepare import no_stage

# Workers of one machine read rows in each other's memory, by the same cores. (gloo over loopback,
# where they cannot: 1.5e9.)
ONE_MACHINE = Network(bandwidth=5e9, latency=1e-4, overlap=False)


def place(
    config: RunConfig, stage: Stage = no_stage, rates: Callable[[Stopwatch], Rates] = measure
) -> Candidate:
    """The placement for a run on this machine; `config.placement` does not matter.

    Args:
        rates: measures those of a worker.

    Raises:
        ValueError: no placement fits in memory, or none can run; says what the smallest needs.
    """
    workers, threads = config.workers, config.threads
    source = open_source(config.graph.source, workers, stage, config.graph.method)
    cores = os.cpu_count() or 1
    with stage("measuring this machine"):
        measured = rates(Stopwatch(threads, others=max(0, min(workers, cores // threads) - 1)))
    turns = max(1.0, workers * threads / cores)
    network = Network(ONE_MACHINE.bandwidth / turns, ONE_MACHINE.latency * turns, overlap=False)
    machine = Machine(measured, network, free_memory(workers), turns)
    with stage("choosing a placement"):
        plan = choose(
            config.graph.source, source.figures, source.shares_of, config.model, workers, machine,
            among=source.among, schedules=[config.schedule], wire=config.wire,
        )  # fmt: skip
    if plan.best is None:
        raise ValueError(f"placement auto: {advice(plan)}")
    return plan.best


def free_memory(workers: int) -> float | None:
    """A worker's share of what is free, in bytes; None where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / workers
    except (ValueError, OSError, AttributeError):  # not on macOS
        return None
