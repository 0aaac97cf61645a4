"""The machines that a plan is for: measured here, or described."""

from __future__ import annotations

from dataclasses import dataclass, field

from fullgraph.planner.rates import NOMINAL, Rates, Stopwatch, measure
from fullgraph.planner.wire import Network

# What a worker holds when everything is imported and no graph is loaded (torch 2.13 on Linux).
PROCESS_BYTES = 350_000_000


@dataclass(frozen=True)
class Machine:
    """A worker, and what is between workers.

    Attributes:
        memory: bytes that a worker may have, its process included; None: no limit.
        rates: of a worker that runs alone.
        turns: how many workers take turns on the cores that `rates` were measured on.
    """

    rates: Rates
    network: Network = field(default_factory=Network)
    memory: float | None = None
    turns: float = 1.0


@dataclass(frozen=True)
class GivenMachine:
    """What a user says of the machines: bytes; bytes a second and seconds of a message; operations
    a second, and bytes a second that sums read. None: no limit, and to be measured here."""

    memory: float | None
    bandwidth: float
    latency: float
    flops: float | None = None
    gather: float | None = None

    @property
    def measures(self) -> bool:
        return self.flops is None or self.gather is None

    def machine(self, threads: int | None = None) -> Machine:
        """threads: to measure with; torch's own number unless given."""
        watch = Stopwatch() if threads is None else Stopwatch(threads)
        rates = measure(watch) if self.measures else NOMINAL
        network = Network(self.bandwidth, self.latency)
        return Machine(rates.with_given(self.flops, self.gather), network, self.memory)
