"""Every index of a part leads somewhere: each array, spoilt in each way, is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fullgraph.graph import check_part as module
from fullgraph.graph.check_part import check_part
from fullgraph.graph.partition import PartitionedInMemory, partition
from fullgraph.graph.parts import Part
from tests.graph.small import random_cut, random_graph, with_types
from tests.graph.test_folder import GRAPHS
from tests.typed_graphs import typed_parts

MADE: dict[str, Callable[[], PartitionedInMemory]] = {
    "plain": lambda: partition(with_types(random_graph(60, 900)), 3, "contiguous"),
    "cut": lambda: random_cut(random_graph(60, 900), 3),
    "typed": lambda: typed_parts(3),
}


@pytest.mark.parametrize("chunk", [4, module.CHUNK])
def test_what_is_made_is_right(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    made = [make() for make in MADE.values()]
    made += [partition(make(), num_parts) for make in GRAPHS.values() for num_parts in (1, 3)]
    for partitioned in made:
        for k in range(partitioned.num_parts):
            check_part(partitioned.meta, partitioned.part(k))


def put(name: str, at: int, value: int) -> Callable[[Part], None]:
    def spoil(part: Part) -> None:
        getattr(part, name)[at] = value

    return spoil


def swap(part: Part) -> None:
    for name in ("src", "dst", "edge_id"):
        values = getattr(part, name)
        values[[0, 1]] = values[[1, 0]]


def no_bool(part: Part) -> None:
    part.masks["train"].view(torch.uint8)[3] = 2


def typed_label(part: Part) -> None:
    part.by_type["y.0"][2] = 3


SPOILT = [
    ("plain", put("node_id", 0, -1), r"node_id\[0\] is -1, but there are 60 nodes"),
    ("plain", put("node_id", -1, 60), r"node_id\[19\] is 60, but there are 60 nodes"),
    ("plain", put("node_id", 4, 20), "node 20 is in node_id twice"),
    ("plain", put("source_offsets", 0, 1), "source_offsets do not ascend from 0"),
    ("plain", put("source_offsets", 1, 10_000), "source_offsets do not ascend from 0"),
    ("plain", put("source_offsets", -1, 5), "source_offsets do not ascend from 0"),
    ("plain", put("src", 7, 20), r"src\[7\] is 20 in part 0, but there are 20 rows"),
    ("plain", put("src", -1, -9), r"src\[\d+\] is -9 in part 2, but there are 20 rows"),
    ("plain", put("dst", 7, 2**31 - 1), r"dst\[7\] is 2147483647 in part 1, but there are 20 rows"),
    ("plain", put("edge_id", 7, 900), r"edge_id\[7\] is 900, but there are 900 edges"),
    ("plain", put("edge_type", 7, 4), r"edge_type\[7\] is 4, but there are 4 relations"),
    ("plain", put("y", 7, 3), r"y\[7\] is 3: not below num_classes = 3"),
    ("plain", put("y", 0, -1), r"_mask\[0\] is True, but y\[0\] is -1"),
    ("plain", swap, "edges 0 and 1 are not in the order of a part"),
    ("plain", no_bool, r"train_mask\[3\] is 2, but there are 2 values of a bool"),
    ("plain", lambda part: part.masks["val"].zero_().logical_not_(), "are both True"),
    ("plain", lambda part: part.masks["train"].zero_(), "has 0 labelled nodes, but the graph says"),
    ("cut", put("dst_part", 7, 3), r"dst_part\[7\] is 3, but there are 3 parts"),
    ("cut", put("dst", 7, 60), r"dst\[7\] is 60 in part \d, but there are \d+ rows"),
    ("cut", put("dst_part", 0, 2), "are not in the order of a part"),
    ("typed", put("edge_type", 7, 6), r"edge_type has \[.*\] edges of the relations"),
    ("typed", put("edge_type", 7, 7), r"edge_type\[7\] is 7, but there are 7 relations"),
    ("typed", typed_label, r"y\[2\] is 3: not below num_classes = 3"),
]


@pytest.mark.parametrize(("kind", "spoil", "message"), SPOILT)
def test_what_leads_nowhere_is_refused(
    kind: str, spoil: Callable[[Part], object], message: str
) -> None:
    partitioned = MADE[kind]()
    part = partitioned.part(1)
    spoil(part)
    with pytest.raises(ValueError, match=message):
        check_part(partitioned.meta, part)


@pytest.mark.parametrize("name", ["src", "dst", "edge_id"])
def test_what_is_of_another_type_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_check_order", lambda part: None)
    partitioned = typed_parts(1)
    part = partitioned.part(0)
    getattr(part, name)[405] = 45  # an author, and an edge that an author starts from
    with pytest.raises(ValueError, match=rf"{name}\[405\] is 45, which is not of relation 5"):
        check_part(partitioned.meta, part)


def test_nodes_of_another_type_are_refused() -> None:
    partitioned = typed_parts(2)
    part = partitioned.part(0)
    part.node_id[20] = 39  # a paper in the row of the first author, above the last paper's
    with pytest.raises(ValueError, match=r"rows 20 \.\. 31 are not nodes of type 1"):
        check_part(partitioned.meta, part)
