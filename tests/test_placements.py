"""Every layer × placement × schedule × number of ranks through the contract of tests/contract.py,
and what else holds for placements."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.data import Data

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.placed_edges import planned_rows
from fullgraph.comm.placement import Placement, grids_of, slice_offsets
from fullgraph.graph.partition import PartitionedInMemory
from fullgraph.ops.aggregate import aggregate
from fullgraph.ops.targets import to_targets
from tests import layer_cases, test_layers
from tests.contract import SCHEDULES, Setting, check_contract, check_inputs
from tests.graphs import cut, named, named_cut, named_parts, partitioned
from tests.layer_cases import exact_layers
from tests.ranks import run_ranks
from tests.test_contract import CASES

PLACEMENTS = {
    1: ["vertex-cut", "grid:1x1x1"],
    2: ["vertex-cut", "grid:2x1x1", "grid:1x2x1", "grid:1x1x2"],
    3: ["vertex-cut", "grid:1x3x1", "grid:1x1x3", "grid:3x1x1"],
    4: ["vertex-cut", "grid:2x2x1", "grid:1x2x2", "grid:2x1x2"],
    8: ["grid:2x2x2", "vertex-cut", "grid:4x2x1"],
}
SMALL = ["multigraph", "tiny", "no_edges", "one_source_part"]


def settings(size: int, name: str) -> list[tuple[str, Setting]]:
    """Every placement of so many ranks on the ugliest graph, and every other one on one more graph;
    graphs, schedules and layouts of parts take turns from case to case."""
    turn = size + [*CASES].index(name)
    layouts = [(max(size, 4), False), (size, False), (size + 1, True)]
    found = []
    for k, placement in enumerate(PLACEMENTS[size]):
        others = [SMALL[1 + (turn + k) % 3]] if (turn + k) % 2 else []
        for graph in (SMALL[0], *others):
            schedule = SCHEDULES[(turn + k + len(found)) % 4]
            block_bytes = 1 << 25 if schedule == "oneshot" else 200
            layout = layouts[(turn + k) % 3]
            found.append((graph, Setting(schedule, block_bytes, *layout, placement)))
    return found


def check_case(group: Group, name: str) -> None:
    for graph, setting in settings(group.size, name):
        try:
            check_contract(group, CASES[name], graph, [setting], steps=1)
        except AssertionError as error:
            raise AssertionError(f"{name} on {error}") from None


@pytest.mark.parametrize("size", PLACEMENTS)
def test_every_placement_meets_every_schedule_and_layout(size: int) -> None:
    met = {(s.placement, s.schedule) for name in CASES for _, s in settings(size, name)}
    assert met == {(p, s) for p in PLACEMENTS[size] for s in SCHEDULES}
    layouts = {(s.placement, s.empty_part) for name in CASES for _, s in settings(size, name)}
    assert layouts == {(p, empty) for p in PLACEMENTS[size] for empty in (True, False)}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_equals_pyg_in_one_process(name: str, size: int) -> None:
    run_ranks(check_case, size, name)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "sage_max", "gin"])
def test_equals_pyg_on_eight_ranks(name: str) -> None:
    run_ranks(check_case, 8, name, timeout=300)


# Every layer of PyG -------------------------------------------------------------------------------

ELSEWHERE = "needs every edge to live with the owner of its target"


def shares_of(name: str, placement: str, num_parts: int) -> PartitionedInMemory:
    data = layer_cases.graph_data(name)
    return cut(data, num_parts) if placement == "vertex-cut" else partitioned(data, num_parts)


def check_layer(group: Group, layer: str, placement: str, schedule: str) -> dict[str, str]:
    """Of every case of a layer, by its options, what went wrong."""
    graph = DistributedGraph.build(
        shares_of("multigraph", placement, 5), group, schedule, 1000, placement
    )
    failures = {}
    for case in layer_cases.CASES:
        if case.layer != layer or case.refused is not None or "multigraph" not in case.runs_on:
            continue
        on, expected = (f(case, "multigraph") for f in (test_layers.on_graph, reference_of))
        try:
            check_inputs(on, expected, graph, steps=1)
        except (AssertionError, ValueError, NotImplementedError) as error:
            failures[case.options] = str(error)
    return failures


def reference_of(case: layer_cases.LayerCase, graph: str) -> test_layers.Reference:
    return test_layers.reference(case.name, graph)


@pytest.mark.parametrize("layer", exact_layers())
def test_every_layer_equals_pyg_on_a_vertex_cut(layer: str) -> None:
    schedule = SCHEDULES[exact_layers().index(layer) % 4]
    for failures in run_ranks(check_layer, 3, layer, "vertex-cut", schedule):
        assert not failures, failures


@pytest.mark.parametrize("placement", ["grid:2x2x1", "grid:2x1x2"])
@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_attention_equals_pyg_on_a_grid(layer: str, placement: str) -> None:
    """Heads are split over the slices; a layer with fewer heads than slices is refused."""
    for failures in run_ranks(check_layer, 4, layer, placement, "sequential"):
        for options, reason in failures.items():
            assert placement == "grid:2x1x2", failures
            if "fill_value='max'" in options:
                assert "use a grid with K = 1" in reason, reason
            else:
                assert "needs at least 2 heads" in reason, (options, reason)
        assert len(failures) <= 2, failures


@pytest.mark.parametrize("layer", ["EdgeConv", "PNAConv", "ResGatedGraphConv"])
def test_messages_of_whole_rows_are_refused_with_slices(layer: str) -> None:
    for failures in run_ranks(check_layer, 2, layer, "grid:1x1x2", "sequential"):
        assert failures
        for reason in failures.values():
            assert f"({layer})" in reason
            assert "a worker has a slice of the columns" in reason


# Dropout ------------------------------------------------------------------------------------------


def drop_coefficients(group: Group, placement: str) -> tuple[Tensor | None, Tensor]:
    graph = DistributedGraph.build(
        shares_of("multigraph", placement, 4), group, "sequential", 500, placement
    )
    torch.manual_seed(1)
    layer = pyg.GATConv(graph.num_features, 4, heads=6, dropout=0.5).double()
    model = fullgraph.convert(pyg.Sequential("x, edge_index", [(layer, "x, edge_index -> x")]))
    assert graph.x is not None
    out = model(graph.x.double(), graph)
    fullgraph.global_mean(out.square(), group=group).backward()
    fullgraph.sum_gradients(model, group)
    grad = layer.att_src.grad
    assert grad is not None
    return graph.gather(out), grad


def test_masks_of_coefficients_do_not_depend_on_the_placement() -> None:
    expected, of_att = run_ranks(drop_coefficients, 1, "destination")[0]
    for placement, size in [("grid:2x2x1", 4), ("grid:1x1x4", 4), ("vertex-cut", 3)]:
        results = run_ranks(drop_coefficients, size, placement)
        torch.testing.assert_close(results[0][0], expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(results[0][1], of_att, rtol=1e-10, atol=1e-12)


# Edges chosen and added ---------------------------------------------------------------------------


def check_chosen(group: Group) -> None:
    data, by_two = named("multigraph"), torch.arange(344) % 2 == 0
    source, target = data.edge_index[:, by_two]
    for placement in PLACEMENTS[group.size]:
        graph = DistributedGraph.build(
            shares_of("multigraph", placement, 5), group, "sequential", 300, placement
        )
        graph.with_self_loops()  # which is another's than that of the chosen edges
        some = graph[:, by_two[graph.edge_id]]
        assert torch.equal(some.is_self_loop, (source == target)[some.edge_id // 2]), placement
        model = fullgraph.convert(pyg.SGConv(6, 3, K=2).double())
        with torch.no_grad():
            out = model(data.x[graph.node_id], some)
        expected = pyg.SGConv(6, 3, K=2).double()
        expected.load_state_dict(model.state_dict())
        reference = expected(data.x, data.edge_index[:, by_two])[graph.node_id]
        torch.testing.assert_close(out, reference, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2, 4])
def test_chosen_edges_have_their_self_loops(size: int) -> None:
    """Those of other ranks' nodes, too, which a grid with slices has."""
    run_ranks(check_chosen, size)


def check_empty(group: Group, placement: str) -> None:
    """Rank 1 has no edges, which the others sum by their targets before they propagate."""
    parts = named_cut if placement == "vertex-cut" else named_parts
    graph = DistributedGraph.build(parts("tiny", 4, False), group, "sequential", 1000, placement)
    assert group.rank != 1 or graph.num_local_edges == 0
    for case in layer_cases.CASES:  # a self-loop's attributes are the mean of its node's edges'
        if case.layer == "GATConv" and case.options.endswith("fill_value='mean'"):
            on, expected = (f(case, "tiny") for f in (test_layers.on_graph, reference_of))
            check_inputs(on, expected, graph, steps=1)


@pytest.mark.parametrize("placement", ["vertex-cut", "grid:2x2x1"])
def test_a_rank_without_edges_takes_part_in_sums_by_target(placement: str) -> None:
    run_ranks(check_empty, 4, placement)


# Numbers of edges ---------------------------------------------------------------------------------


def check_kept_numbers(group: Group) -> None:
    """What a training pass without remote edges counts and keeps, an evaluation uses."""
    data = named("multigraph")
    kind = torch.arange(data.num_edges) % 3
    graph = DistributedGraph.build(
        shares_of("multigraph", "vertex-cut", 4), group, "local", 300, "vertex-cut"
    )
    x, weight, of_edge = data.x[graph.node_id], graph.edge_weight, kind[graph.edge_id]
    for layer, values, whole in [
        (pyg.RGCNConv(6, 3, 3).double(), of_edge, kind),
        (pyg.GCNConv(6, 3).double(), weight, data.edge_weight),
    ]:
        expected = layer(data.x, data.edge_index, whole).detach()[graph.node_id]
        model = fullgraph.convert(layer)
        trained = model(x, graph, values)
        assert trained.isfinite().all()
        fullgraph.global_mean(trained.square(), group=group).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        with torch.no_grad():
            found = model.eval()(x, graph, values)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_numbers_that_are_kept_are_those_of_the_whole_graph() -> None:
    run_ranks(check_kept_numbers, 3)


def check_many(group: Group, wire: str) -> None:
    """More edges into a node than bfloat16 can count."""
    star = torch.stack([torch.arange(602), torch.zeros(602, dtype=torch.int64)])
    data = Data(x=torch.rand(602, 2), edge_index=star)
    graph = DistributedGraph.build(cut(data, 2), group, placement="vertex-cut", wire=wire)
    kind = torch.zeros(graph.num_local_edges, dtype=torch.int64)
    model = fullgraph.convert(pyg.RGCNConv(2, 2, 1).bfloat16())
    norm = model._norm(graph, kind, torch.bfloat16)
    assert torch.equal(norm, torch.tensor(602).bfloat16().reciprocal().expand_as(norm))
    assert torch.equal(to_targets(graph, graph.node_id + 1001), graph.target_id + 1001)


@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_integers_are_counted_and_travel_as_they_are(wire: str) -> None:
    run_ranks(check_many, 2, wire)


# Bytes --------------------------------------------------------------------------------------------


def counted(group: Group, placement: str, columns: int) -> dict[str, tuple[int, int]]:
    parts = named_cut if placement == "vertex-cut" else named_parts
    graph = DistributedGraph.build(
        parts("multigraph", group.size, False), group, "oneshot", 300, placement
    )
    x = torch.rand(graph.num_owned, columns, dtype=torch.float64, requires_grad=True)
    aggregate(graph, x, "sum").sum().backward()
    rows = [*graph.traffic.rows()]
    return {
        direction: (
            sum(sent for flow, sent, _ in rows if flow.direction == direction),
            sum(received for flow, _, received in rows if flow.direction == direction),
        )
        for direction in ("forward", "backward")
    }


@pytest.mark.parametrize(
    "placement",
    ["destination", "vertex-cut", *(str(grid) for grid in grids_of(4)), "grid:3x1x1", "grid:1x1x3"],
)
def test_planned_rows_are_the_bytes_that_travel(placement: str) -> None:
    """Every rank sends its slice of source rows to who gathers them, and of partial rows to their
    owners; the backward pass moves the same the other way."""
    size, columns = (3, 7) if "3" in placement else (4, 7)
    parts = named_cut if placement == "vertex-cut" else named_parts
    plan = planned_rows(parts("multigraph", size, False), size, placement)
    parsed = Placement.parse(placement)
    widths = [b - a for a, b in pairwise(slice_offsets(columns, parsed.feats))]
    for rank, account in enumerate(run_ranks(counted, size, placement, columns)):
        mine = 8 * widths[parsed.slice_of(rank)]
        of_rank = [8 * widths[parsed.slice_of(r)] for r in range(size)]
        sent = sum(plan.gather[r][rank] * of_rank[r] for r in range(size))
        sent += sum(plan.reduce[rank]) * mine
        received = sum(plan.gather[rank]) * mine
        received += sum(plan.reduce[r][rank] * of_rank[r] for r in range(size))
        assert account["forward"] == (sent, received)
        assert account["backward"] == (received, sent)


def test_a_grid_moves_fewer_rows_than_one_dimension() -> None:
    """Of a graph without locality, where every block of a grid needs nearly all rows."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(400, (2, 20_000), generator=generator)
    parts = partitioned(Data(x=torch.rand(400, 4), edge_index=edges), 16)
    totals = {}
    for placement in ("destination", "grid:16x1x1", "grid:4x4x1", "grid:4x2x2"):
        plan = planned_rows(parts, 16, placement)
        rows = sum(map(sum, plan.gather)) + sum(map(sum, plan.reduce))
        totals[placement] = rows / Placement.parse(placement).feats
    assert totals["destination"] == totals["grid:16x1x1"]
    assert totals["grid:4x4x1"] < 0.45 * totals["destination"]
    assert totals["grid:4x2x2"] < totals["grid:4x4x1"]


# Mistakes -----------------------------------------------------------------------------------------


def use(group: Group, placement: str, parts: str, what: str) -> None:
    made = named_cut if parts == "vertex-cut" else named_parts
    graph = DistributedGraph.build(
        made("multigraph", 4, False), group, "sequential", 300, placement
    )
    if what == "columns":
        aggregate(graph, torch.rand(graph.num_owned, 1), "sum")
    elif what == "for_seeds":
        graph.for_seeds(graph.train_mask, 2)
    elif what == "flip":
        graph.flip([0])


def refused(group: Group, *args: str) -> str:
    with pytest.raises((ValueError, NotImplementedError)) as found:
        use(group, *args)
    return str(found.value)


@pytest.mark.parametrize(
    ("placement", "parts", "what", "message"),
    [
        ("grid:2x2x1", "destination", "", "grid of 4 workers, but there are 2"),
        ("vertex-cut", "destination", "", "was partitioned into parts of nodes"),
        ("destination", "vertex-cut", "", "was partitioned into --placement vertex-cut"),
        ("grid:2x1x1", "vertex-cut", "", "which is for placement vertex-cut"),
        ("grid:1x1x2", "destination", "columns", "needs at least 2 columns"),
        ("grid:1x2x1", "destination", "for_seeds", ELSEWHERE),
        ("grid:1x1x2", "destination", "flip", "use a grid with K = 1"),
        ("grid", "destination", "", "placement must be 'destination', 'vertex-cut' or 'grid"),
        ("grid:0x2x1", "destination", "", "placement must be"),
    ],
)
def test_mistakes_are_named_on_every_rank(
    placement: str, parts: str, what: str, message: str
) -> None:
    for said in run_ranks(refused, 2, placement, parts, what):
        assert message in said


def test_placements_are_read_and_written() -> None:
    for text in ("destination", "vertex-cut", "grid:2x3x4"):
        assert str(Placement.parse(text)) == text
    assert Placement.parse("grid:2x3") == Placement("grid", 2, 3, 1)
    grid = Placement("grid", 2, 3, 4)
    places = [grid.coordinates(rank) for rank in range(24)]
    assert [grid.rank_of(*place) for place in places] == [*range(24)]
    assert len({*places}) == 24
    assert {str(g) for g in grids_of(4)} == {
        "grid:4x1x1", "grid:1x4x1", "grid:2x2x1", "grid:2x1x2", "grid:1x2x2", "grid:1x1x4",
    }  # fmt: skip
    assert slice_offsets(7, 3) == [0, 3, 5, 7]
