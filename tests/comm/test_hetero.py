"""The distributed graph with several types of nodes, against plain scatter on the whole graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.hetero import DistributedHeteroGraph
from fullgraph.graph.folder import save
from fullgraph.ops.aggregate import aggregate
from tests.graphs import named_parts
from tests.ranks import run_ranks
from tests.typed_graphs import NO_EDGES, ODD, ONE_PART, typed_data, typed_parts

SHARES = [(1, 1), (1, 3), (2, 4), (3, 3), (4, 4)]  # ranks, parts
CASES = [("mean", False), ("max", False), ("mean", True), ("max", True), ("sum", False),
         ("sum", True)]  # fmt: skip
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


def build(group: Group, parts: int, empty_part: bool = False) -> DistributedHeteroGraph:
    return DistributedHeteroGraph.build(typed_parts(parts, empty_part), group)


def counts(data: HeteroData) -> dict[str, int]:
    return {name: data[name].num_nodes for name in data.node_types}


def _ids_and_fields(group: Group, parts: int) -> tuple[dict, dict]:
    data, hetero = typed_data(), build(group, parts)
    assert hetero.metadata() == data.metadata()
    assert hetero.num_nodes_dict == counts(data)
    assert hetero.num_features_dict == {"paper": 5, "author": 3, ODD: 2, "nobody": 4}
    assert list(hetero.x_dict) == ["paper", "author", ODD, "nobody"]
    for name, x in hetero.x_dict.items():
        assert torch.equal(x, data[name].x[hetero.node_id_dict[name]])
        assert hetero[name].x is x
    assert list(hetero.y_dict) == list(hetero.train_mask_dict) == ["paper"]
    papers = hetero["paper"]
    assert torch.equal(hetero.y_dict["paper"], data["paper"].y[papers.node_id])
    assert torch.equal(papers.train_mask, data["paper"].train_mask[papers.node_id])
    assert torch.equal(hetero.val_mask_dict["paper"], ~papers.train_mask)
    assert hetero.test_mask_dict == {}
    assert (papers.num_classes, hetero.meta.num_classes, hetero.num_nodes) == (3, 3, 76)
    for key, relation in hetero.edge_index_dict.items():
        source, _, target = key
        assert hetero[key] is relation
        assert relation.x is hetero[source].x
        assert relation.y is hetero[target].y
        assert relation.node_id is hetero[target].node_id
        assert relation.num_sources == hetero.num_owned_dict[source]
        assert relation.num_owned == hetero.num_owned_dict[target]
        assert relation.num_nodes == counts(data)[target]
        index = data[key].edge_index
        ids = hetero.edge_id_dict[key]
        assert torch.equal(index[1][ids], relation.node_id[relation.edge_target.long()])
        degree = torch.bincount(index[1], minlength=relation.num_nodes)
        assert torch.equal(relation.in_degree, degree[relation.node_id])
        for name, found in (
            ("edge_weight", hetero.edge_weight_dict), ("edge_attr", hetero.edge_attr_dict)
        ):  # fmt: skip
            assert (key in found) == (name in data[key])
            if key in found:
                assert torch.equal(found[key], data[key][name][ids])
        assert relation.edge_type is None
    owned = {name: ids.tolist() for name, ids in hetero.node_id_dict.items()}
    return owned, {key: ids.tolist() for key, ids in hetero.edge_id_dict.items()}


@pytest.mark.parametrize(("size", "parts"), SHARES)
def test_rows_and_edges_of_every_type_keep_their_ids(size: int, parts: int) -> None:
    shares = run_ranks(_ids_and_fields, size, parts)
    data = typed_data()
    for name, count in counts(data).items():
        assert sorted(i for nodes, _ in shares for i in nodes[name]) == list(range(count))
    for key in data.edge_types:
        ids = sorted(e for _, edges in shares for e in edges[key])
        assert ids == list(range(data[key].num_edges))


def reference(
    index: Tensor, x: Tensor, weight: Tensor | None, reduce: str, num_targets: int
) -> Tensor:
    messages = x[index[0]] if weight is None else x[index[0]] * weight.unsqueeze(1)
    out = x.new_zeros(num_targets, x.shape[1])
    if reduce == "max":
        target = index[1].unsqueeze(1).expand_as(messages)
        return out.scatter_reduce(0, target, messages, "amax", include_self=False)
    out = out.index_add(0, index[1], messages)
    degree = torch.bincount(index[1], minlength=num_targets).clamp(min=1)
    return out / degree.unsqueeze(1) if reduce == "mean" else out


def compare(
    graph: DistributedGraph, index: Tensor, sources: tuple[Tensor, int], reduce: str, weigh: bool
) -> None:
    """A graph with edges `index` [2, E] between all nodes, of whose sources this rank owns some
    (their ids, and how many there are), gives what scatter gives: rows and gradients."""
    g = torch.Generator().manual_seed(5)
    source_id, num_sources = sources
    whole_x = torch.randn(num_sources, 3, generator=g, dtype=torch.float64).requires_grad_()
    whole_w = torch.rand(index.shape[1], generator=g, dtype=torch.float64).requires_grad_()
    scale = torch.randn(graph.num_nodes, 3, generator=g, dtype=torch.float64)
    expected = reference(index, whole_x, whole_w if weigh else None, reduce, graph.num_nodes)
    (expected * scale).sum().backward()
    x = whole_x.detach()[source_id].requires_grad_()
    w = whole_w.detach()[graph.edge_id].requires_grad_()
    out = aggregate(graph, x, reduce, weight=w if weigh else None)
    (out * scale[graph.node_id]).sum().backward()
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(out, expected[graph.node_id], **close)
    torch.testing.assert_close(x.grad, whole_x.grad[source_id], **close)
    if weigh:
        torch.testing.assert_close(w.grad, whole_w.grad[graph.edge_id], **close)


def _aggregated(group: Group, parts: int, empty_part: bool) -> None:
    data, hetero = typed_data(), build(group, parts, empty_part)
    views = [hetero.with_schedule("oneshot"), hetero.with_schedule("sequential:remat=off")]
    cases = [(hetero, reduce, weigh) for reduce, weigh in CASES]
    cases += [(view, *case) for view in (*views, hetero.to("cpu")) for case in CASES[-2:]]
    for view, reduce, weigh in cases:
        for key, relation in view.edge_index_dict.items():
            sources = view.node_id_dict[key[0]], data[key[0]].num_nodes
            compare(relation, data[key].edge_index, sources, reduce, weigh)


@pytest.mark.parametrize(
    ("size", "parts", "empty_part"),
    [*((*share, False) for share in SHARES[1:]), (2, 4, True), (4, 4, True)],
)
def test_a_relation_aggregates_its_sources_into_its_targets(
    size: int, parts: int, empty_part: bool
) -> None:
    run_ranks(_aggregated, size, parts, empty_part)


def whole_union(data: HeteroData) -> tuple[Tensor, Tensor, dict[str, int]]:
    """edge_index and edge_type of all relations, and each type's first node."""
    first, nodes = {}, 0
    for name, count in counts(data).items():
        first[name], nodes = nodes, nodes + count
    index, types = [], []
    for r, key in enumerate(data.edge_types):
        offset = torch.tensor([[first[key[0]]], [first[key[2]]]])
        index.append(data[key].edge_index + offset)
        types += [r] * data[key].num_edges
    return torch.cat(index, dim=1), torch.tensor(types), first


def _union(group: Group, parts: int) -> list[int]:
    data, hetero = typed_data(), build(group, parts)
    index, types, first = whole_union(data)
    union = hetero.union
    assert hetero.union is union
    assert union.num_owned == sum(hetero.num_owned_dict.values())
    assert list(hetero.union_slices) == hetero.node_types
    for name, rows in hetero.union_slices.items():
        assert torch.equal(union.node_id[rows], hetero.node_id_dict[name] + first[name])
    assert torch.equal(union.edge_type, types[union.edge_id])
    assert (union.num_relations, union.num_nodes) == (len(data.edge_types), 76)
    assert torch.equal(index[1][union.edge_id], union.node_id[union.edge_target.long()])
    for block in union.edges.blocks:  # what chunks of sources rest on
        forward = list(zip(block.edge_rows().tolist(), block.cols.tolist()))
        assert forward == sorted(forward)
    sources = union.node_id, 76
    for view in (hetero, hetero.with_schedule("oneshot"), hetero.to("cpu")):
        assert view.union.traffic is hetero.traffic
        for reduce, weigh in CASES if view is hetero else CASES[-1:]:
            compare(view.union, index, sources, reduce, weigh)
    later = build(group, parts).with_schedule("oneshot").to("cpu").union
    assert torch.equal(later.edge_id, union.edge_id)
    return union.edge_id.tolist()


@pytest.mark.parametrize(("size", "parts"), SHARES)
def test_the_union_is_all_relations_in_one_graph(size: int, parts: int) -> None:
    owned = run_ranks(_union, size, parts)
    assert sorted(e for edges in owned for e in edges) == list(range(406))


def _messages_of_few_rows(group: Group) -> None:
    hetero = DistributedHeteroGraph.build(typed_parts(4), group, max_block_bytes=50)
    data = typed_data()
    for key, relation in hetero.edge_index_dict.items():
        sources = hetero.node_id_dict[key[0]], data[key[0]].num_nodes
        compare(relation, data[key].edge_index, sources, "sum", True)
    index, _, _ = whole_union(data)
    compare(hetero.union, index, (hetero.union.node_id, 76), "max", True)


def test_rows_may_travel_in_small_messages() -> None:
    run_ranks(_messages_of_few_rows, 2)


def _views(group: Group) -> None:
    hetero = build(group, 4)
    moved, other = hetero.to("cpu"), hetero.with_schedule("oneshot")
    for view in (moved, other):
        assert view.traffic is hetero.traffic
        for key, relation in view.edge_index_dict.items():
            assert relation.x is view[key[0]].x
            assert relation.traffic is hetero.traffic
            assert torch.equal(relation.edge_id, hetero[key].edge_id)
    assert {str(graph.schedule) for graph in other.edge_index_dict.values()} == {"oneshot"}
    assert str(other.schedule) == "oneshot"
    hetero.traffic.clear()
    x = hetero.x_dict["author"]
    kept = aggregate(hetero[WRITES], x, layer="one")
    sent = hetero.traffic.bytes_sent
    assert aggregate(hetero[WRITES], x, layer="one") is kept  # own features travel once
    assert hetero.traffic.bytes_sent == sent > 0
    hetero.forget()
    assert aggregate(hetero[WRITES], x, layer="one") is not kept


def test_views_share_the_account_and_know_their_features() -> None:
    run_ranks(_views, 2)


def _gather(group: Group) -> None:
    hetero = build(group, 4, True)
    for name, ids in hetero.node_id_dict.items():
        found = hetero.gather(name, torch.stack([ids, ids * 2], 1))
        every = torch.arange(hetero.num_nodes_dict[name])
        if group.rank == 0:
            assert torch.equal(found, torch.stack([every, every * 2], 1))
        else:
            assert found is None
        with pytest.raises(ValueError, match="one row for each of the"):
            hetero.gather(name, torch.zeros(ids.numel() + 1))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_results_of_a_type_come_back_in_its_order(size: int) -> None:
    run_ranks(_gather, size)


def test_loops_go_within_one_type_only() -> None:
    hetero = build(Group(), 1)
    looped = hetero[CITES].with_self_loops()
    assert (looped.in_degree >= 1).all()
    source, target = typed_data()[CITES].edge_index
    without = torch.isin(torch.arange(40), source[source == target], invert=True)
    added = looped.edge_id[looped.edge_id >= 94] - 94
    assert torch.equal(added.sort().values, without.nonzero().view(-1))
    assert hetero[NO_EDGES].with_self_loops().in_degree.tolist() == [1] * 23
    for key in (WRITES, ONE_PART):
        for call in (hetero[key].with_self_loops, lambda key=key: hetero[key].for_seeds(None, 1)):
            with pytest.raises(
                ValueError, match=f"needs edges between .*{' '.join(key)}' is a rel"
            ):
                call()


def test_what_is_not_there_is_named() -> None:
    hetero = build(Group(), 1)
    with pytest.raises(KeyError, match=r"papper.*is neither of.*paper"):
        hetero["papper"]
    with pytest.raises(AttributeError, match="'author' has no train mask"):
        _ = hetero["author"].train_mask
    with pytest.raises(TypeError, match="cannot be unpacked"):
        list(hetero)
    with pytest.raises(ValueError, match="has types of nodes: give it to"):
        DistributedGraph.build(typed_parts(1), Group())
    with pytest.raises(ValueError, match="no types of nodes: use DistributedGraph"):
        DistributedHeteroGraph.build(named_parts("tiny", 1, False), Group())
    with pytest.raises(ValueError, match="max_block_bytes must be positive"):
        DistributedHeteroGraph.build(typed_parts(1), Group(), max_block_bytes=0)


def _load(group: Group, source: object, options: dict) -> tuple[dict, int]:
    hetero = fullgraph.load(source, group=group, **options)
    assert isinstance(hetero, fullgraph.DistributedHeteroGraph)
    data = typed_data()
    for key, weight in hetero.edge_weight_dict.items():
        assert torch.equal(weight, data[key].edge_weight[hetero.edge_id_dict[key]])
    compare(
        hetero[WRITES], data[WRITES].edge_index, (hetero.node_id_dict["author"], 23), "mean", True
    )
    return hetero.num_owned_dict, hetero.meta.num_parts


@pytest.mark.parametrize(
    ("size", "method"), [(1, "metis"), (2, "metis"), (3, "random"), (2, "contiguous")]
)
def test_load_shares_a_hetero_data(size: int, method: str) -> None:
    owned = run_ranks(_load, size, typed_data(), {"parts": 4, "method": method})
    for name, count in counts(typed_data()).items():
        assert sum(share[name] for share, _ in owned) == count
    assert {parts for _, parts in owned} == {4}


def test_load_opens_a_folder_with_any_number_of_ranks(tmp_path: Path) -> None:
    save(typed_parts(4, True), tmp_path / "parts")
    for size in (1, 2, 4):
        owned = run_ranks(_load, size, str(tmp_path / "parts"), {})
        assert sum(share["paper"] for share, _ in owned) == 40


def _more_ranks_than_nodes(group: Group) -> None:
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.ones(1, 2), 1
    data["a", "to", "b"].edge_index = torch.tensor([[0, 0], [0, 0]])
    hetero = fullgraph.load(data, group=group)
    out = aggregate(hetero["a", "to", "b"], hetero.x_dict["a"])
    assert out.tolist() == [[2, 2]] * hetero.num_owned_dict["b"]
    assert hetero.union.num_owned == sum(hetero.num_owned_dict.values())


def test_there_may_be_more_ranks_than_nodes() -> None:
    run_ranks(_more_ranks_than_nodes, 3)


def test_a_graph_without_relations_is_a_graph() -> None:
    data = HeteroData()
    data["a"].x = torch.ones(3, 2)
    hetero = fullgraph.load(data, group=Group(), parts=2)
    assert (hetero.edge_index_dict, hetero.union.num_local_edges) == ({}, 0)
    assert hetero["a"].num_owned == 3
