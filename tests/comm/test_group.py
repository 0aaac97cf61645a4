"""The group: bounded waits, and errors that name rank, peer, operation and who failed first."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import (
    LET_GO_SECONDS,
    CommError,
    Group,
    _are_held,
    _handed_over,
    _leave_group,
)
from fullgraph.ops.aggregate import aggregate
from tests.graphs import GRAPHS, partitioned
from tests.ranks import RanksFailedError, run_ranks


def _collectives(group: Group) -> None:
    total = group.all_reduce(torch.tensor([float(group.rank)]), "ranks")
    assert total.item() == sum(range(group.size))
    assert group.broadcast(torch.tensor([group.rank + 5]), "rank 0's number").item() == 5
    pieces = group.all_gather(torch.full((group.rank, 2), group.rank), "ragged rows")
    assert [p.shape[0] for p in pieces] == list(range(group.size))
    assert all((p == r).all() for r, p in enumerate(pieces))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_collectives_and_ragged_gather(size: int) -> None:
    run_ranks(_collectives, size)


def _one_rank_raises(group: Group) -> str:
    graph = DistributedGraph.build(partitioned(GRAPHS["multigraph"](), 3), group)
    if group.rank == 1:
        group.report_failure(KeyError("no such label"))
        time.sleep(8)  # alive but not answering, which is the slow way to notice
        return ""
    start = time.monotonic()
    try:
        aggregate(graph, torch.zeros(graph.num_owned, 2), layer="conv7")
        group.all_reduce(torch.zeros(1), "something")
    except CommError as error:
        assert time.monotonic() - start < 7
        return str(error)
    return "no error"


def test_a_rank_that_raises_is_named_by_the_others_in_bounded_time() -> None:
    messages = run_ranks(_one_rank_raises, 3, wait_limit=2)
    for rank in (0, 2):
        assert f"rank {rank}:" in messages[rank]
        assert "rank 1 raised KeyError: 'no such label'" in messages[rank]
    assert any("rank 1 in the forward pass of layer 'conv7'" in m for m in messages)


def _peer_is_silent(group: Group) -> str:
    if group.rank == 0:
        time.sleep(4)
        return ""
    with pytest.raises(CommError) as caught:
        group.wait(group.irecv(torch.zeros(3), 0), "receiving weights from rank 0")
    return str(caught.value)


def test_a_wait_ends_and_says_for_whom() -> None:
    message = run_ranks(_peer_is_silent, 2, wait_limit=1)[1]
    assert "rank 1: receiving weights from rank 0 failed (limit 1 s)" in message


def _raises_on(group: Group, rank: int) -> None:
    if group.rank == rank:
        raise ZeroDivisionError("on purpose")


def test_harness_fails_with_the_traceback_of_the_rank() -> None:
    with pytest.raises(RanksFailedError, match=r"(?s)rank 1:.*ZeroDivisionError: on purpose"):
        run_ranks(_raises_on, 2, 1)


def _hangs(group: Group) -> None:
    if group.rank == 0:
        time.sleep(60)


def test_harness_kills_what_does_not_finish() -> None:
    run_ranks(_collectives, 2)  # so that the processes are there
    with pytest.raises(RanksFailedError, match=r"ranks \[0\] did not finish"):
        run_ranks(_hangs, 2, timeout=2)


def test_tensors_of_collectives_are_known_to_be_held_until_torch_lets_go_of_them() -> None:
    _handed_over(torch.ones(3))
    assert not _are_held()
    weight = torch.ones(3, requires_grad=True)
    product = _handed_over(torch.ones(3)) * weight  # which keeps it for the backward pass
    assert _are_held()
    del product
    assert not _are_held()


def test_a_group_is_left_once_torch_has_let_go_or_after_a_while() -> None:
    weight = torch.ones(3, requires_grad=True)
    products = [_handed_over(torch.ones(3)) * weight]
    threading.Timer(0.2, products.clear).start()
    _leave_group(Group())
    assert not products
    products.append(_handed_over(torch.ones(3)) * weight)
    start = time.monotonic()
    _leave_group(Group())
    assert LET_GO_SECONDS <= time.monotonic() - start < LET_GO_SECONDS + 5
