from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fullgraph import kernels
from fullgraph.kernels import reference_cut


def sets_of(holders: torch.Tensor) -> list[set[int]]:
    """The sets of parts as Python has them."""
    return [
        {64 * w + bit for w, word in enumerate(row) for bit in range(64) if word >> bit & 1}
        for row in holders.tolist()
    ]


def words_of(sets: list[set[int]], num_parts: int) -> torch.Tensor:
    words = torch.zeros(len(sets), -(-num_parts // 64), dtype=torch.int64)
    for v, parts in enumerate(sets):
        for k in parts:
            words[v, k // 64] |= torch.tensor(-(2**63) if k % 64 == 63 else 2 ** (k % 64))
    return words


def random_edges(num_nodes: int, num_edges: int, seed: int) -> tuple[list[int], list[int]]:
    """Towards small ids, with multi-edges and loops; the last third of the nodes has no edge."""
    rng = random.Random(seed)
    last = max(1, num_nodes * 2 // 3)
    ends = [int(last * rng.random() ** 2) for _ in range(2 * num_edges)]
    return ends[::2], ends[1::2]


def place(src: list[int], dst: list[int], *args: Any) -> tuple[list[int], list[set[int]]]:
    part, holders = kernels.libra(torch.tensor(src).long(), torch.tensor(dst).long(), *args)
    return part.tolist(), sets_of(holders)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 63, 64, 65, 130])
@pytest.mark.parametrize(
    ("num_nodes", "num_edges"), [(1, 5), (7, 0), (9, 40), (60, 400), (400, 900)]
)
def test_the_kernel_does_what_the_reference_does(
    num_nodes: int, num_edges: int, num_parts: int
) -> None:
    for seed in range(12):
        src, dst = random_edges(num_nodes, num_edges, seed)
        no_loops = sum(u != v for u, v in zip(src, dst))
        fewest = -(-no_loops // num_parts)
        for max_edges in (None, fewest, fewest + 2):
            args = (num_nodes, num_parts, seed * 2**61 - 5, max_edges)
            part, holders = place(src, dst, *args)
            assert (part, holders) == reference_cut.libra(src, dst, *args)
            labelled = [v % 3 == 0 for v in range(num_nodes)]
            owner = kernels.choose_owners(
                words_of(holders, num_parts), num_parts, torch.tensor(labelled)
            )
            assert owner.tolist() == reference_cut.choose_owners(holders, labelled, num_parts)


def test_narrow_ids_and_any_number_of_threads_give_the_same() -> None:
    src, dst = (torch.tensor(ids) for ids in random_edges(200, 3000, 0))
    wanted = kernels.libra(src, dst, 200, 5, 3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = kernels.libra(src.int(), dst.int(), 200, 5, 3)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(*pair) for pair in zip(found, wanted))
    assert found[0].dtype == torch.int32
    assert not torch.equal(kernels.libra(src, dst, 200, 5, 4)[0], wanted[0])


def test_draws_are_those_of_splitmix64() -> None:
    # Published with the generator (Vigna, xoshiro pages; Java's SplittableRandom): seed 1234567.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [reference_cut.draw(1234567, i, 2**64) for i in range(3)] == known
    counts = [0] * 3
    for i in range(3000):
        counts[reference_cut.draw(5, i, 3)] += 1
    assert min(counts) > 900


def in_turn(edges: list[tuple[int, int]], num_parts: int, **options: int) -> list[int]:
    """The parts of edges that come in this order: each leads into a node of its own, and nodes are
    named so that the shuffle of seed 0 brings them in turn."""
    num_nodes = 40
    order = reference_cut.stream(list(range(num_nodes)), num_nodes, 0)
    name = dict(enumerate(order))
    src, dst = ([name[edge[end]] for edge in edges] for end in (0, 1))
    assert reference_cut.stream(dst, num_nodes, 0) == list(range(len(edges)))
    return place(src, dst, num_nodes, num_parts, 0, options.get("max_edges"))[0]


def test_neither_end_placed_goes_to_the_least_loaded_part() -> None:
    assert sorted(in_turn([(30, 0), (31, 1), (32, 2), (33, 3)], 4)) == [0, 1, 2, 3]


def test_one_end_placed_goes_to_its_least_loaded_part() -> None:
    assert len(set(in_turn([(30, 0), (30, 1), (30, 2)], 2))) == 1, "though the other is empty"
    # 30→2 brings node 30 to where node 2 is, so that it is in both parts, of loads 1 and 3.
    one, other, *part = in_turn([(30, 0), (31, 1), (31, 2), (30, 2), (30, 3)], 3)
    assert one != other
    assert part == [other, other, one]


def test_common_parts_come_before_all_else() -> None:
    # Node 2, of degree 3, comes to be in both parts; node 30, of degree 4, stays in one, which has
    # three edges to the other's two when 30→2 comes again.
    edges = [(30, 0), (30, 0), (31, 1), (30, 2), (31, 2), (30, 2)]
    one, *part = in_turn(edges, 2)
    assert part == [one, 1 - one, one, 1 - one, one]


@pytest.mark.parametrize(
    ("more", "decides"), [([], "source"), ([(30, 4)], "destination"), ([(30, 30)], "destination")]
)
def test_the_end_with_the_lower_degree_decides_and_the_destination_where_they_are_equal(
    more: list[tuple[int, int]], decides: str
) -> None:
    edges = [(30, 0), (31, 1), (31, 2), (30, 2), (32, 2)]  # degrees: 2 of node 30, 3 of node 2
    one, other, *part = in_turn(edges + more, 2)
    assert one != other
    assert part[:2] == [other, one if decides == "source" else other]


def test_a_full_part_takes_no_edge_and_the_least_loaded_of_the_others_does() -> None:
    edges = [(30, 0), (30, 1), (30, 2), (30, 3), (30, 4), (30, 5)]
    assert len(set(in_turn(edges, 3))) == 1
    part = in_turn(edges, 3, max_edges=2)
    assert sorted(part.count(k) for k in range(3)) == [2, 2, 2]
    assert part[0] == part[1], "not before it is full"
    assert part[2] == part[3], "where node 30 is now, and has room"
    part = in_turn(edges, 3, max_edges=4)
    assert sorted(part.count(k) for k in range(3)) == [0, 2, 4]


def test_loops_are_not_placed_and_hold_nothing() -> None:
    part, holders = place([0, 1, 0, 2], [0, 1, 1, 2], 4, 2, 0)
    assert part[0] == part[1] == part[3] == -1
    assert holders == [{part[2]}, {part[2]}, set(), set()]


@pytest.mark.parametrize("seed", range(5))
def test_holders_are_the_parts_of_a_nodes_edges(seed: int) -> None:
    src, dst = random_edges(100, 700, seed)
    part, holders = place(src, dst, 100, 70, seed)
    wanted: list[set[int]] = [set() for _ in range(100)]
    for u, v, k in zip(src, dst, part):
        if u != v:
            assert 0 <= k < 70
            wanted[u].add(k)
            wanted[v].add(k)
    assert holders == wanted


def test_owners_hold_their_nodes_and_share_them_evenly() -> None:
    # One holder: no choice. Nodes 3 .. 8 may go to 0 or 1, of which 0 has three already.
    sets = [{0}, {0}, {0}, *[{0, 1}] * 5, set(), set(), {2, 65}]
    owner = kernels.choose_owners(words_of(sets, 66), 66, torch.zeros(11, dtype=torch.bool))
    assert owner.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 3, 4, 2]
    labelled = torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]).bool()
    owner = kernels.choose_owners(words_of(sets, 66), 66, labelled)
    assert owner.tolist() == [0, 0, 0, 1, 1, 0, 1, 1, 3, 4, 2], "node 7 first, to part 1"
    alone = kernels.choose_owners(torch.zeros(7, 1).long(), 3, torch.arange(7) % 2 == 0)
    assert [alone.tolist().count(k) for k in range(3)] == [3, 2, 2]
    assert sorted(alone[::2].tolist()) == [0, 0, 1, 2], "labelled nodes, too"


IDS = torch.tensor([0, 1, 2])
WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (kernels.libra, (IDS.float(), IDS, 3, 2, 0), "src must be int32 or int64, got float32"),
    (kernels.libra, (IDS, IDS.int(), 3, 2, 0), r"dst must be int64 of shape \[3\], got int32"),
    (kernels.libra, (IDS, IDS[:2], 3, 2, 0), r"dst must be int64 of shape \[3\], got int64 \[2\]"),
    (kernels.libra, (IDS, IDS, 3, 0, 0), "num_parts must be 1 or more, got 0"),
    (kernels.libra, (IDS + 1, IDS, 3, 2, 0), r"src\[2\] is 3, outside of 0 .. 2"),
    (kernels.libra, (IDS - 1, IDS, 3, 2, 0), r"src\[0\] is -1, outside of 0 .. 2"),
    (kernels.libra, (IDS, IDS + 1, 3, 2, 0), r"dst\[2\] is 3, outside of 0 .. 2"),
    (kernels.libra, (IDS, IDS.flip(0), 3, 2, 0, 0), "max_edges is 0: 2 parts cannot take 2 edges"),
    (kernels.libra, (IDS.to("meta"), IDS, 3, 2, 0), "src is on meta"),
    (kernels.choose_owners, (IDS[None], 65, IDS[:1].bool()), r"holders must be int64 of shape"),
    (kernels.choose_owners, (IDS[:, None], 2, IDS), "labelled must be bool"),
]


@pytest.mark.parametrize(("kernel", "args", "message"), WRONG)
def test_a_wrong_argument_is_named(
    kernel: Callable[..., Any], args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(*args)
