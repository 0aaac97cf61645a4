"""Blocks: who owns what, both orders of the edges, and chunks of sources."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fullgraph.graph.blocks import Ownership, build_blocks, make_block
from tests.graphs import GRAPHS, named_parts


def owners(part_nodes: list[int], num_ranks: int, part_edges: list[int] | None = None) -> Ownership:
    meta = replace(
        named_parts("tiny", 1, False).meta, num_parts=len(part_nodes),
        part_nodes=tuple(part_nodes), part_edges=tuple(part_edges or [0] * len(part_nodes)),
    )  # fmt: skip
    return Ownership.balance(meta, num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7, 8])
def test_eight_parts_go_to_any_number_of_ranks(num_ranks: int) -> None:
    sizes = [5, 0, 3, 9, 1, 0, 2, 4]
    ownership = owners(sizes, num_ranks)
    assert [k for r in range(num_ranks) for k in ownership.parts_of(r)] == list(range(8))
    for rank in range(num_ranks):
        rows = 0
        assert len(ownership.parts_of(rank)) >= 1
        for k in ownership.parts_of(rank):
            assert ownership.row_base[k] == rows
            rows += sizes[k]
        assert ownership.num_owned[rank] == rows


def test_ranks_are_balanced_by_nodes_and_edges() -> None:
    assert owners([10] * 8, 4).num_owned == (20, 20, 20, 20)
    assert owners([1] * 4, 2, part_edges=[90, 10, 10, 10]).first_part == (0, 1, 4)
    assert owners([100, 1, 1, 1], 4).first_part == (0, 1, 2, 3, 4)


def test_more_ranks_than_parts_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"4 workers cannot share 2 part.*at most 2 workers"):
        owners([3, 3], 4)


@pytest.mark.parametrize("name", [n for n in GRAPHS if n != "citeseer"])
@pytest.mark.parametrize("empty_part", [False, True])
def test_both_orders_hold_every_edge_once(name: str, empty_part: bool) -> None:
    partitioned = named_parts(name, 4, empty_part)
    ownership = Ownership.balance(partitioned.meta, 3)
    seen = 0
    for rank in range(3):
        parts = [partitioned.part(k) for k in ownership.parts_of(rank)]
        blocks, needed = build_blocks(parts, ownership, rank)
        for block, rows in zip(blocks, needed):
            seen += block.num_edges
            assert (rows.numel() == 0) == (block.source_rank == rank or block.num_edges == 0)
            forward = list(zip(block.edge_rows().tolist(), block.cols.tolist()))
            assert forward == sorted(forward)
            source = torch.repeat_interleave(
                torch.arange(block.num_sources), block.t_offsets.diff()
            )  # fmt: skip
            backward = list(zip(block.t_cols.tolist(), source.tolist()))
            assert [forward[e] for e in block.t_index.tolist()] == backward
            if block.source_rank != rank:
                assert sorted(set(block.cols.tolist())) == list(range(block.num_sources))
    assert seen == partitioned.meta.num_edges


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 50])
def test_chunks_cut_every_row_by_source(max_rows: int) -> None:
    partitioned = named_parts("multigraph", 2, False)
    ownership = Ownership.balance(partitioned.meta, 2)
    blocks, _ = build_blocks([partitioned.part(0)], ownership, 0)
    for block in blocks:
        chunks = block.chunks(max_rows)
        assert block.chunks(max_rows)[0].last_row == chunks[0].last_row
        assert [c.first_row for c in chunks] == list(range(0, block.num_sources, max_rows))
        edges = []
        for chunk in chunks:
            for begin, end in zip(chunk.begin.tolist(), chunk.end.tolist()):
                cols = block.cols[begin:end]
                assert ((cols >= chunk.first_row) & (cols < chunk.last_row)).all()
                edges += range(begin, end)
        assert sorted(edges) == list(range(block.num_edges))


@pytest.mark.parametrize(
    ("degree", "kind"), [(255, torch.uint8), (256, torch.int16), (32768, torch.int32)]
)
def test_chunks_of_a_hub_keep_narrow_integers(degree: int, kind: torch.dtype) -> None:
    dst, src = torch.zeros(degree, dtype=torch.int32), torch.arange(degree, dtype=torch.int32)
    first, second = make_block(1, dst, src, 3, degree, 0, True).chunks(degree - 1)
    assert (first.begin.tolist(), first.end.tolist()) == ([0], [degree - 1])
    assert (second.begin.tolist(), second.end.tolist()) == ([degree - 1], [degree])
    assert first.end.dtype == torch.int64
    assert first._until is not None
    assert first._until.dtype == kind
