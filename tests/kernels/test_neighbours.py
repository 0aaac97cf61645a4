from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fullgraph import kernels
from fullgraph.kernels import reference_ldg


def random_edges(
    num_nodes: int, num_edges: int, seed: int, mirrored: bool
) -> tuple[list[int], list[int]]:
    """Mostly within groups of ten, with hubs, multi-edges, loops; the last nodes have no edge."""
    rng = random.Random(seed)
    last = max(1, num_nodes * 4 // 5)
    src = [int(last * rng.random() ** 2) for _ in range(num_edges)]
    dst = [
        min(last - 1, u // 10 * 10 + rng.randrange(10))
        if rng.random() < 0.8
        else rng.randrange(last)
        for u in src
    ]
    return (src + dst, dst + src) if mirrored else (src, dst)


def lists(offsets: Tensor, found: Tensor) -> list[list[int]]:
    return [found[a:b].tolist() for a, b in itertools.pairwise(offsets.tolist())]


SIZES = [(0, 0), (1, 5), (7, 0), (9, 40), (60, 400), (400, 900), (800, 2000)]


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("num_nodes", "num_edges"), SIZES)
def test_the_kernels_do_what_the_reference_does(
    num_nodes: int, num_edges: int, mirrored: bool
) -> None:
    for seed in range(2 if num_nodes < 1000 else 1):
        src, dst = random_edges(num_nodes, num_edges if num_nodes else 0, seed, mirrored)
        wanted = reference_ldg.neighbours(src, dst, num_nodes)
        adjacency = kernels.neighbours(
            torch.tensor(src).long(), torch.tensor(dst).long(), num_nodes
        )
        assert lists(*adjacency) == wanted
        rng = random.Random(seed)
        weights = [[1, dst.count(v), rng.randrange(2)] for v in range(num_nodes)]
        for num_parts in (1, 2, 7, 65):
            args = (num_parts, seed * 2**61 - 5)
            found = kernels.ldg(*adjacency, torch.tensor(weights).long().view(-1, 3), *args)
            assert found.tolist() == reference_ldg.ldg(wanted, weights, *args)


def test_one_direction_is_enough_where_the_other_is_there_too() -> None:
    src, dst = torch.tensor([0, 1, 1, 2, 2, 0, 1]), torch.tensor([1, 0, 2, 1, 0, 2, 1])
    assert lists(*kernels.neighbours(src, dst, 3)) == [[1, 2], [0, 2], [1, 0]]
    assert lists(*kernels.neighbours(src[:5], dst[:5], 3)) == [[1, 1, 2], [0, 0, 2, 2], [1, 1, 0]]
    circle = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])  # in-degrees are out-degrees
    assert lists(*kernels.neighbours(*circle, 3)) == [[1, 2], [0, 2], [1, 0]]


def test_narrow_ids_and_any_number_of_threads_give_the_same() -> None:
    src, dst = (torch.tensor(ids) for ids in random_edges(900, 5000, 0, False))
    weights = torch.ones(900, 3, dtype=torch.int64)
    adjacency = kernels.neighbours(src, dst, 900)
    wanted = kernels.ldg(*adjacency, weights, 5, 3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        narrow = kernels.neighbours(src.int(), dst.int(), 900)
        found = kernels.ldg(*narrow, weights, 5, 3)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(*pair) for pair in zip(narrow, adjacency))
    assert torch.equal(found, wanted)
    assert not torch.equal(kernels.ldg(*adjacency, weights, 5, 4), wanted)


def test_weights_that_pull_apart_are_balanced_all_the_same() -> None:
    # Dense groups have the edges, sparse ones the nodes: a part full of one has room for the other.
    dense = [(u, v) for first in range(0, 200, 20) for u in range(first, first + 20)
             for v in range(first, first + 20) if u != v]  # fmt: skip
    sparse = [(u, u + 1) for u in range(200, 1999) if u % 100]
    edges = torch.tensor(dense + sparse + [(v, u) for u, v in sparse])
    src, dst = edges.t().contiguous()
    weights = torch.stack(
        [torch.ones(2000).long(), torch.bincount(dst, minlength=2000), torch.arange(2000) % 2], 1
    )
    for seed in range(5):
        part = kernels.ldg(*kernels.neighbours(src, dst, 2000), weights, 4, seed)
        for column in weights.t():
            load = torch.zeros(4).long().index_add_(0, part, column)
            limit = max(1.05 * column.sum().item() / 4, column.sum().item() / 4 + int(column.max()))
            assert load.max() <= limit


IDS = torch.tensor([0, 1, 2])
OFFSETS, ONES = torch.tensor([0, 1, 2, 3]), torch.ones(3, 3, dtype=torch.int64)
WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (kernels.neighbours, (IDS.float(), IDS, 3), "src must be int32 or int64, got float32"),
    (kernels.neighbours, (IDS, IDS.int(), 3), r"dst must be int64 of shape \[3\], got int32"),
    (kernels.neighbours, (IDS, IDS[:2], 3), r"dst must be int64 of shape \[3\], got int64 \[2\]"),
    (kernels.neighbours, (IDS, IDS, 2**31), r"num_nodes must be .* below 2\*\*31, got 2147483648"),
    (kernels.neighbours, (IDS + 1, IDS, 3), r"src\[2\] is 3, outside of 0 .. 2"),
    (kernels.neighbours, (IDS, IDS - 1, 3), r"dst\[0\] is -1, outside of 0 .. 2"),
    (kernels.neighbours, (IDS.to("meta"), IDS, 3), "src is on meta"),
    (
        kernels.ldg,
        (OFFSETS, IDS, ONES, 2, 0),
        r"neighbours must be int32 of shape \[3\], got int64",
    ),
    (kernels.ldg, (OFFSETS[:3], IDS.int(), ONES, 2, 0), r"offsets must be int64 of shape \[4\]"),
    (kernels.ldg, (OFFSETS, IDS.int(), ONES[:, :2], 2, 0), "weights must be int64 of shape"),
    (kernels.ldg, (OFFSETS, IDS.int(), ONES, 0, 0), "num_parts must be 1 or more, got 0"),
]


@pytest.mark.parametrize(("kernel", "args", "message"), WRONG)
def test_a_wrong_argument_is_named(
    kernel: Callable[..., Any], args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(*args)
