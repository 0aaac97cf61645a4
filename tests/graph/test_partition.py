from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fullgraph.graph.partition import (
    PartitionedInMemory,
    PartitionedVertexCut,
    partition,
    split_parts,
)
from fullgraph.graph.parts import Part
from fullgraph.graph.whole import WholeGraph
from tests.data import shared_data
from tests.graph.small import graph, random_cut, random_graph, star

GRAPHS: dict[str, Callable[[], WholeGraph]] = {
    "multigraph": lambda: random_graph(60, 900),
    "star": lambda: star(50),
    "no edges": lambda: graph([], num_nodes=10),
    "one node": lambda: graph([(0, 0), (0, 0)], num_nodes=1),
    "all sources in the last nodes": lambda: graph([(19, i) for i in range(20)] * 2, 20),
}


def original_edges(parts: list[Part], part: Part) -> torch.Tensor:
    """[2, E_k] original ids of a part's edges, from its rows."""
    src = part.src.clone().long()
    for q, source in enumerate(parts):
        edges = slice(int(part.source_offsets[q]), int(part.source_offsets[q + 1]))
        src[edges] = source.node_id[part.src[edges].long()]
    return torch.stack([src, part.node_id[part.dst.long()]])


@pytest.mark.parametrize("method", ["metis", "random", "contiguous"])
@pytest.mark.parametrize("num_parts", [1, 3, 8, 70])
@pytest.mark.parametrize("name", GRAPHS)
def test_parts_put_together_are_the_graph(name: str, num_parts: int, method: str) -> None:
    whole = GRAPHS[name]()
    partitioned = partition(whole, num_parts, method=method)
    parts = [partitioned.part(k) for k in range(num_parts)]
    node_id = torch.cat([part.node_id for part in parts])
    edge_id = torch.cat([part.edge_id for part in parts])
    assert node_id.sort().values.tolist() == list(range(whole.num_nodes))
    assert edge_id.sort().values.tolist() == list(range(whole.num_edges))
    for part in parts:
        edges = original_edges(parts, part)
        assert torch.equal(edges, whole.edge_index[:, part.edge_id].long())
        for key in ("x", "y"):
            assert torch.equal(getattr(part, key), getattr(whole, key)[part.node_id]), key
        for key in ("edge_weight", "edge_attr"):
            assert torch.equal(getattr(part, key), getattr(whole, key)[part.edge_id]), key
        for key, mask in whole.masks.items():
            assert torch.equal(part.masks[key], mask[part.node_id])


@pytest.mark.parametrize("name", GRAPHS)
def test_orders_and_types_are_as_promised(name: str) -> None:
    partitioned = partition(GRAPHS[name](), 4, method="random")
    for part in split_parts(partitioned.graph, partitioned.assignment, 4):
        assert (part.node_id.diff() > 0).all()
        offsets = part.source_offsets
        assert offsets[0] == 0
        assert offsets[-1] == part.num_edges
        source_part = torch.repeat_interleave(torch.arange(4), offsets.diff())
        keys = [source_part, part.dst, part.src, part.edge_id]
        rows = list(zip(*(key.tolist() for key in keys)))
        assert rows == sorted(rows)
        assert [part.src.dtype, part.dst.dtype] == [torch.int32] * 2
        assert {part.node_id.dtype, part.edge_id.dtype, offsets.dtype} == {torch.int64}


@pytest.mark.parametrize("num_parts", [1, 3, 70])
@pytest.mark.parametrize("name", GRAPHS)
def test_parts_of_a_vertex_cut_have_their_nodes_and_the_edges_placed_there(
    name: str, num_parts: int
) -> None:
    whole = GRAPHS[name]()
    cut = random_cut(whole, num_parts)
    parts = [cut.part(k) for k in range(num_parts)]
    owner = cut.assignment
    src, dst = whole.edge_index.long()
    for k, part in enumerate(parts):
        assert part.node_id.tolist() == (owner == k).nonzero().view(-1).tolist()
        assert sorted(part.edge_id.tolist()) == (cut.edge_part == k).nonzero().view(-1).tolist()
        assert part.dst_part is not None
        assert part.dst_part.dtype == torch.int32
        source_part = torch.repeat_interleave(torch.arange(num_parts), part.source_offsets.diff())
        assert torch.equal(source_part.int(), owner[src[part.edge_id]])
        assert torch.equal(part.dst_part, owner[dst[part.edge_id]])
        ends = {"src": (source_part, src), "dst": (part.dst_part.long(), dst)}
        for end, (of, ids) in ends.items():
            rows = getattr(part, end).tolist()
            found = [int(parts[q].node_id[row]) for q, row in zip(of.tolist(), rows)]
            assert found == ids[part.edge_id].tolist(), end
        keys = [source_part, part.dst_part, part.dst, part.src, part.edge_id]
        order = list(zip(*(key.tolist() for key in keys)))
        assert order == sorted(order)
        for key in ("edge_weight", "edge_attr"):
            assert torch.equal(getattr(part, key), getattr(whole, key)[part.edge_id]), key
    meta = cut.meta
    assert meta.placement == "vertex-cut"
    assert meta.part_nodes == tuple(part.num_nodes for part in parts)
    assert meta.part_edges == tuple(part.num_edges for part in parts)
    held = [{*part.node_id.tolist(), *src[part.edge_id].tolist(), *dst[part.edge_id].tolist()}
            for part in parts]  # fmt: skip
    assert meta.part_held == tuple(map(len, held))


def test_a_vertex_cut_by_destination_has_the_same_parts() -> None:
    whole, owner = random_graph(60, 900), torch.arange(60, dtype=torch.int32) % 4
    cut = PartitionedVertexCut(whole, owner, owner[whole.edge_index[1].long()], 4)
    plain = PartitionedInMemory(whole, owner, 4)
    for k in range(4):
        part = cut.part(k)
        assert part.dst_part is not None
        assert (part.dst_part == k).all()
        for key, value in vars(plain.part(k)).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, getattr(part, key)), key


def test_the_order_holds_where_one_sort_key_would_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = random_graph(60, 900)
    wanted = partition(whole, 3, method="random").part(1)
    monkeypatch.setattr("fullgraph.graph.partition.MAX_KEY", 1)
    found = partition(whole, 3, method="random").part(1)
    assert torch.equal(found.edge_id, wanted.edge_id)
    order = random_cut(whole, 3).part(1).edge_id
    monkeypatch.undo()
    assert torch.equal(random_cut(whole, 3).part(1).edge_id, order)


def test_meta_counts_what_the_parts_hold() -> None:
    partitioned = partition(shared_data("citeseer"), 5)
    meta = partitioned.meta
    parts = [partitioned.part(k) for k in range(5)]
    assert meta.part_nodes == tuple(part.num_nodes for part in parts)
    assert meta.part_edges == tuple(part.num_edges for part in parts)
    assert meta.part_labelled == tuple(int(part.masks["train"].sum()) for part in parts)
    assert (meta.name, meta.num_nodes, meta.num_edges) == ("citeseer", 3327, 9104)
    assert (meta.num_features, meta.num_classes, meta.num_parts) == (3703, 6, 5)
    assert meta.placement == "destination"
    assert meta.part_nodes == partitioned.report.nodes
    assert meta.part_edges == partitioned.report.edges


def test_results_by_row_go_back_to_the_original_order() -> None:
    whole = random_graph(100, 300)
    assert whole.x is not None
    result = torch.zeros(100)
    for part in split_parts(whole, torch.arange(100) % 7, 7):
        assert part.x is not None
        result[part.node_id] = part.x[:, 0]
    assert result.tolist() == list(range(100))


def test_a_part_is_the_same_at_every_call_and_shares_nothing_with_the_graph() -> None:
    partitioned = partition(random_graph(40, 200), 3)
    one = partitioned.part(1)
    for tensor in (one.node_id, one.x, one.src, one.edge_id, one.edge_weight):
        assert tensor is not None
        tensor.zero_()
    again = partitioned.part(1)
    fresh = partition(random_graph(40, 200), 3).part(1)
    for key in ("node_id", "x", "src", "edge_id", "edge_weight"):
        assert torch.equal(getattr(again, key), getattr(fresh, key)), key


def test_wrong_arguments_are_refused() -> None:
    whole = star(5)
    with pytest.raises(ValueError, match=r"parts 0 .. 3, outside of 0 .. 2"):
        PartitionedInMemory(whole, torch.tensor([0, 1, 2, 3, 0]), 3)
    with pytest.raises(ValueError, match=r"shape \[5\], got torch.int64 \[4\]"):
        PartitionedInMemory(whole, torch.tensor([0, 1, 2, 3]), 4)
    with pytest.raises(ValueError, match=r"edge_part must be integers of shape \[8\], got"):
        PartitionedVertexCut(whole, torch.zeros(5).int(), torch.zeros(5).int(), 2)
    with pytest.raises(ValueError, match=r"edge_part has parts 0 .. 2, outside of 0 .. 1"):
        PartitionedVertexCut(whole, torch.zeros(5).int(), torch.arange(8) % 3, 2)
    with pytest.raises(ValueError, match="part 2 does not exist; there are 2"):
        partition(whole, 2).part(2)


def test_an_infinity_that_was_allowed_when_read_does_not_stop_partitioning() -> None:
    whole = star(5)
    assert whole.x is not None
    whole.x[0, 0] = np.inf
    assert partition(whole, 2).meta.num_nodes == 5
    with pytest.raises(ValueError, match=r"x\[0, 0\] is inf"):
        partition(whole.to_pyg(), 2)
