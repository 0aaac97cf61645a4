from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fullgraph.graph.partition import PartitionedInMemory, PartitionedVertexCut, partition
from fullgraph.graph.parts import Field, labelled
from fullgraph.graph.whole import WholeGraph
from tests.graph.small import graph, random_graph, star, with_types


def test_fields_list_what_exists_with_dtype_and_shape() -> None:
    meta = partition(random_graph(10, 30), 2).meta
    assert meta.fields == (
        Field("x", "float32", (2,)),
        Field("y", "int64", ()),
        Field("mask.train", "bool", ()),
        Field("mask.val", "bool", ()),
        Field("edge_weight", "float32", ()),
        Field("edge_attr", "float32", (2,)),
    )
    assert meta.mask_names == ("train", "val")
    assert meta.field("y") == Field("y", "int64", ())
    assert meta.field("mask.test") is None
    assert meta.fields[0].torch_dtype == torch.float32
    typed = partition(with_types(random_graph(10, 30)), 2).meta
    assert typed.fields == (*meta.fields, Field("edge_type", "int64", ()))
    assert (meta.num_relations, typed.num_relations) == (0, 4)


def test_a_bare_graph_has_no_fields() -> None:
    meta = partition(WholeGraph("bare", torch.tensor([[0], [1]]), 3), 2).meta
    assert (meta.fields, meta.mask_names, meta.part_labelled) == ((), (), (0, 0))


CHANGES: list[Callable[[WholeGraph, torch.Tensor], object]] = [
    lambda whole, part: whole.edge_index[0, 5].add_(1).remainder_(whole.num_nodes),
    lambda whole, part: whole.x[3, 1].add_(1e-3),  # type: ignore[index]
    lambda whole, part: whole.y[2].add_(1).remainder_(3),  # type: ignore[index]
    lambda whole, part: whole.masks["val"][1].logical_not_(),
    lambda whole, part: whole.edge_weight[7].add_(1),  # type: ignore[index]
    lambda whole, part: whole.edge_attr[7, 1].add_(1),  # type: ignore[index]
    lambda whole, part: whole.edge_type[7].add_(1).remainder_(4),  # type: ignore[index]
    lambda whole, part: setattr(whole, "num_relations", 5),
    lambda whole, part: part[4].add_(1).remainder_(3),
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_sees_every_change(
    change: Callable[[WholeGraph, torch.Tensor], object],
) -> None:
    def make(changed: bool, name: str = "a") -> str:
        whole, part = with_types(random_graph(20, 60)), torch.arange(20) % 3
        whole.name = name
        if changed:
            change(whole, part)
        return PartitionedInMemory(whole, part, 3).meta.fingerprint

    assert make(False) == make(False, name="b")
    assert make(False) != make(True)
    assert len(make(False)) == 64


def test_the_fingerprint_sees_one_more_empty_part() -> None:
    whole, part = random_graph(20, 60), torch.arange(20) % 3
    assert len({PartitionedInMemory(whole, part, k).meta.fingerprint for k in (3, 4)}) == 2


def test_the_fingerprint_of_a_vertex_cut_sees_where_edges_are() -> None:
    whole, part, placed = random_graph(20, 60), torch.arange(20) % 3, torch.arange(60) % 3
    moved = placed.clone()
    moved[7] = 2
    found = [PartitionedInMemory(whole, part, 3).meta.fingerprint]
    for edge_part in (placed, moved, placed.to(torch.int16)):
        found.append(PartitionedVertexCut(whole, part, edge_part, 3).meta.fingerprint)
    whole.x[3, 1] += 1  # type: ignore[index]
    found.append(PartitionedVertexCut(whole, part, placed, 3).meta.fingerprint)
    assert len(set(found)) == 4
    assert found[1] == found[3]


GOLDEN = "fc57c71705ef294636f62bd45d91be091026e9de1afe8cc2465e376af9f5feaf"


def test_a_destination_fingerprint_is_what_it_was_before_there_were_vertex_cuts() -> None:
    found = PartitionedInMemory(star(9), torch.arange(9) % 2, 2).meta
    assert (found.fingerprint, found.placement) == (GOLDEN, "destination")
    assert (found.part_held, found.replication) == ((), None)


def test_labelled_nodes_are_those_for_training_or_else_those_with_a_label() -> None:
    whole = graph([], num_nodes=4, train=[1])
    assert labelled(whole).tolist() == [False, True, False, False]
    assert whole.y is not None
    whole.y[2] = -1
    assert labelled(replace(whole, masks={})).tolist() == [True, True, False, True]
    assert labelled(replace(whole, masks={}, y=None)).tolist() == [False] * 4
    assert labelled(replace(whole, masks={}, y=torch.zeros(4, 3))).tolist() == [True] * 4
