"""A rank's edges under a placement: what is read of the parts, and what they must not have."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from fullgraph.comm.placed_edges import PlacedEdges, planned_rows
from fullgraph.comm.placement import Placement
from fullgraph.graph.blocks import Ownership
from fullgraph.graph.partition import PartitionedInMemory, PartitionedVertexCut
from fullgraph.graph.sources import read

PATH = Data(x=torch.rand(4, 2), edge_index=torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 3]]))


def test_targets_are_numbered_beyond_32_bits() -> None:
    """Here those of rank 1 come after 2**31 rows of rank 0."""
    parts = PartitionedInMemory(read(PATH), torch.tensor([0, 0, 1, 1]), 2)
    ownership = Ownership((0, 1, 2), (0, 0), (2**31, 2))
    edges = PlacedEdges(parts, ownership, Placement.parse("grid:2x1x1"), 1)
    found = [slice_.targets.tolist() for q in range(2) for slice_ in edges._slices(q)]
    assert found == [[2**31], [2**31 + 1, 2**31 + 1]]


def test_self_loops_of_a_vertex_cut_are_with_their_nodes() -> None:
    whole, owner = read(PATH), torch.tensor([0, 0, 1, 1])
    edge_part = torch.tensor([0, 1, 0, 1, 1])
    planned_rows(PartitionedVertexCut(whole, owner, edge_part, 2), 2, "vertex-cut")
    edge_part[4] = 0
    elsewhere = PartitionedVertexCut(whole, owner, edge_part, 2)
    with pytest.raises(ValueError, match="has a self-loop of a node that rank 1 owns"):
        planned_rows(elsewhere, 2, "vertex-cut")


def test_parts_are_kept_without_what_nodes_have() -> None:
    parts = PartitionedInMemory(read(PATH), torch.tensor([0, 0, 1, 1]), 2)
    ownership = Ownership.balance(parts.meta, 1)
    edges = PlacedEdges(parts, ownership, Placement.parse("grid:1x1x1"), 0)
    edges.build()
    assert [part.x for part in edges._opened.values()] == [None, None]
