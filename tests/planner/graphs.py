"""Graphs and machines for the tests of this folder."""

from __future__ import annotations

from fullgraph.graph.partition import PartitionedInMemory, partition
from fullgraph.planner.machine import Machine
from fullgraph.planner.rates import NOMINAL
from fullgraph.planner.wire import Network

MACHINE = Machine(NOMINAL, Network(bandwidth=1e9, latency=1e-4))


def planted(num_parts: int, nodes: int = 300, edges: int = 1500) -> PartitionedInMemory:
    """12 features, 5 classes; a part of it without self-loops would be chance."""
    source = f"planted:nodes={nodes},edges={edges},features=12,classes=5,mix=0.5"
    return partition(source, num_parts, method="random")
