"""A plan is about a folder, a graph or figures, each with the placements that are open to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fullgraph.comm.placement import DESTINATION, Placement
from fullgraph.graph.folder import save
from fullgraph.graph.partition import PartitionedVertexCut, partition
from fullgraph.graph.sources import read
from fullgraph.planner.shares import count_shares
from fullgraph.planner.source import open_source
from tests.planner.graphs import planted

PLANTED = "planted:nodes=300,edges=1500,features=12,classes=5,mix=0.5"


def test_figures_alone_are_a_source() -> None:
    source = open_source("nodes=100,edges=500,features=3,classes=2,halo=0.5", 4)
    assert source.figures.halo == 0.5
    assert Placement("vertex-cut") not in source.among
    assert source.shares_of(Placement.parse("grid:2x2x1")).size == 4


def test_a_folder_is_planned_as_it_is_partitioned(tmp_path: Path) -> None:
    partitioned = planted(5)
    save(partitioned, tmp_path / "g")
    source = open_source(str(tmp_path / "g"), 4)
    assert source.shares_of(DESTINATION) == count_shares(partitioned, 4)
    assert (source.figures.nodes, source.figures.features) == (300, 12)
    assert [p.kind for p in source.among[:2]] == ["destination", "grid"]
    with pytest.raises(ValueError, match="8 workers cannot share 5 part"):
        open_source(str(tmp_path / "g"), 8)


def test_a_vertex_cut_folder_is_open_to_vertex_cuts_alone(tmp_path: Path) -> None:
    whole = partition(PLANTED, 2).graph
    edge_part = torch.arange(whole.num_edges, dtype=torch.int32) % 2
    owner = torch.arange(300, dtype=torch.int32) % 2
    save(PartitionedVertexCut(whole, owner, edge_part, 2), tmp_path / "g")
    source = open_source(str(tmp_path / "g"), 2)
    assert source.among == (Placement("vertex-cut"),)
    assert source.shares_of(source.among[0]).edges(0) == (whole.num_edges + 1) // 2


def test_a_graph_is_partitioned_as_each_placement_wants_it() -> None:
    stages = []

    def stage(name: str):  # type: ignore[no-untyped-def]
        from contextlib import nullcontext

        stages.append(name)
        return nullcontext()

    source = open_source(PLANTED, 4, stage)
    by_metis = source.shares_of(DESTINATION)
    at_random = source.shares_of(Placement.parse("grid:4x1x1"))
    assert sum(map(sum, by_metis.gather)) < sum(map(sum, at_random.gather))
    assert by_metis == count_shares(partition(read(PLANTED), 4), 4)
    assert max(at_random.owned) == min(at_random.owned) == 75
    source.shares_of(Placement.parse("grid:2x2x1"))
    assert len(stages) == 3  # read once, and partitioned twice
    cut = Placement("vertex-cut")
    assert cut in source.among
    assert source.shares_of(cut) == count_shares(
        partition(PLANTED, 4, placement="vertex-cut"), 4, cut
    )


def test_a_method_of_partitioning_opens_the_placements_that_have_it() -> None:
    source = open_source(PLANTED, 2, method="contiguous")
    assert [p.kind for p in source.among] == ["destination", "grid", "grid"]
    made = partition(read(PLANTED), 2, method="contiguous")
    assert source.shares_of(DESTINATION) == count_shares(made, 2)


def test_graphs_that_no_named_model_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no features, which a model to plan for needs"):
        open_source("planted:nodes=30,edges=60,features=0", 2)
    with pytest.raises(ValueError, match="neither a file nor a known name"):
        open_source(str(tmp_path / "none.npz"), 2)
