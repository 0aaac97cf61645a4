"""The distributed graph: ids, loops, views, results in the original order, and loading it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import add_remaining_self_loops

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.schedule import oneshot
from fullgraph.graph.blocks import Ownership
from fullgraph.graph.folder import save
from fullgraph.graph.partition import PartitionedInMemory
from fullgraph.graph.sources import read
from fullgraph.ops.halo import for_each_source
from tests.data import shared_data
from tests.graphs import named, named_parts
from tests.ranks import run_ranks


def _ids_and_fields(group: Group, num_parts: int) -> list[int]:
    data = named("multigraph")
    graph = DistributedGraph.build(named_parts("multigraph", num_parts, False), group)
    assert torch.equal(graph.x, data.x[graph.node_id])
    assert torch.equal(graph.y, data.y[graph.node_id])
    assert torch.equal(graph.train_mask, data.train_mask[graph.node_id])
    assert torch.equal(graph.edge_weight, data.edge_weight[graph.edge_id])
    assert torch.equal(data.edge_index[1][graph.edge_id], graph.node_id[graph.edge_target.long()])
    assert graph.edge_attr is None
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (50, 6, 3)
    order = graph.gather(torch.stack([graph.node_id, graph.node_id * 2], 1))
    if group.rank == 0:
        assert torch.equal(order, torch.stack([torch.arange(50), torch.arange(50) * 2], 1))
    else:
        assert order is None
    with pytest.raises(ValueError, match="one row for each of the"):
        graph.gather(torch.zeros(1, 2))
    return sorted(graph.edge_id.tolist())


@pytest.mark.parametrize(("size", "parts"), [(1, 8), (2, 8), (3, 8), (4, 4)])
def test_rows_and_edges_keep_their_ids(size: int, parts: int) -> None:
    owned = run_ranks(_ids_and_fields, size, parts)
    assert sorted(e for edges in owned for e in edges) == list(range(344))


def _loops(group: Group) -> None:
    data = named("multigraph")
    graph = DistributedGraph.build(named_parts("multigraph", 3, False), group)
    looped = graph.with_self_loops()
    assert graph.with_self_loops() is looped
    index, weight = add_remaining_self_loops(data.edge_index, data.edge_weight, 7.0, 50)
    ours = graph.extend_to_self_loops(graph.edge_weight, 7.0)
    ids = looped.edge_id
    source = torch.cat([data.edge_index[0], torch.arange(50)])[ids]
    found = sorted(
        zip(graph.node_id[looped.edge_target.long()].tolist(), source.tolist(), ours.tolist())
    )
    mine = torch.isin(index[1], graph.node_id)
    expected = sorted(zip(index[1][mine].tolist(), index[0][mine].tolist(), weight[mine].tolist()))
    assert found == expected
    assert (looped.in_degree >= 1).all()
    assert ids.unique().numel() == ids.numel()
    assert looped.with_self_loops() is looped  # every row has exactly one already


@pytest.mark.parametrize("size", [1, 2, 3])
def test_self_loops_are_added_as_pyg_adds_them(size: int) -> None:
    run_ranks(_loops, size)


def _types(group: Group) -> list[list[int]]:
    data = named("multigraph").clone()
    data.edge_type = torch.arange(344) * 7 % 5
    graph = fullgraph.load(data, group=group, parts=4)
    assert torch.equal(graph.edge_type, data.edge_type[graph.edge_id])
    assert graph.num_relations == 5
    looped = graph.with_self_loops()
    for view in (looped, looped.with_schedule("oneshot"), graph.to("cpu").with_self_loops()):
        with pytest.raises(ValueError, match="the self-loops added have no type"):
            _ = view.edge_type
    assert torch.equal(graph.to("cpu").edge_type, graph.edge_type)
    return sorted(zip(graph.edge_id.tolist(), graph.edge_type.tolist()))


@pytest.mark.parametrize("size", [1, 3])
def test_edges_keep_their_types(size: int) -> None:
    owned = run_ranks(_types, size)
    assert sorted(e for edges in owned for e in edges) == [(e, e * 7 % 5) for e in range(344)]


def test_a_graph_without_edge_types_has_none() -> None:
    graph = fullgraph.load(named("multigraph"), group=Group())
    assert (graph.edge_type, graph.num_relations) == (None, 0)


def test_a_missing_mask_is_named() -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, x=torch.ones(2, 1))
    graph = fullgraph.load(data, group=Group())
    with pytest.raises(AttributeError, match="has no test mask"):
        _ = graph.test_mask


def _load(group: Group, source: object, options: dict) -> tuple[int, int, float]:
    graph = fullgraph.load(source, group=group, **options)
    total = group.all_reduce(graph.x.double().sum().reshape(1), "features")
    if isinstance(source, Data):  # edge data are read when asked for, whatever became of the files
        assert torch.equal(graph.edge_weight, source.edge_weight[graph.edge_id])
    return graph.num_owned, graph.meta.num_parts, total.item()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_load_shares_a_file_or_a_data_object(size: int) -> None:
    cora = str(shared_data("cora"))
    owned = run_ranks(_load, size, cora, {"method": "random"})
    assert sum(n for n, _, _ in owned) == 2708
    assert {parts for _, parts, _ in owned} == {size}
    owned = run_ranks(_load, size, named("multigraph"), {"parts": 5})
    assert {parts for _, parts, _ in owned} == {5}
    assert owned[0][2] == pytest.approx(float(named("multigraph").x.sum()))


def test_load_opens_a_folder_with_any_number_of_ranks(tmp_path) -> None:
    save(named_parts("multigraph", 4, False), tmp_path / "parts")
    for size in (1, 2, 4):
        owned = run_ranks(_load, size, str(tmp_path / "parts"), {})
        assert sum(n for n, _, _ in owned) == 50
    with pytest.raises(ValueError, match="partitioned already"):
        fullgraph.load(tmp_path / "parts", group=Group(), parts=2)
    with pytest.raises(ValueError, match="max_block_bytes must be positive"):
        fullgraph.load(tmp_path / "parts", group=Group(), max_block_bytes=0)


@pytest.mark.parametrize(
    ("ranks", "owned", "most_bytes", "rows", "recorded"),
    [
        (4, (80_000, 160_000), 64 << 20, 20_000, 80_000),  # an eighth of the larger, and a half
        (9, (80_000, 79_000), 64 << 20, 10_000, 40_000),
        (3, (80_000, 120_000), 64 << 20, 20_000, 120_000),  # a sixth, and all
        (2, (80_000, 79_000), 64 << 20, 20_000, 80_000),  # a quarter
        (4, (80, 160), 64 << 20, 1024, 1024),  # small messages are not worth it
        (2, (80_000, 160_000), 512 * 7, 7, 7),  # what was asked for
        (4, (80_000, 160_000), 1, 1, 1),
    ],
)
def test_a_message_has_so_many_of_a_ranks_rows(
    ranks: int, owned: tuple[int, int], most_bytes: int, rows: int, recorded: int
) -> None:
    graph = DistributedGraph.build(named_parts("multigraph", 1, False), Group())
    graph.ownership, graph.max_block_bytes = Ownership.of_parts([0, 1, 2], owned), most_bytes
    graph.group.size = ranks
    assert graph.rows_of_message(512) == rows
    assert graph.rows_of_message(512, recorded=True) == recorded
    graph.schedule = oneshot()  # which holds all of them: as many as may be
    assert graph.rows_of_message(512) == min(max(*owned, 1024), max(1, most_bytes // 512))


def _rows_that_leave(group: Group, cluster: torch.Tensor | None) -> None:
    ends = named("multigraph").edge_index
    data = Data(
        x=torch.arange(300.0).view(50, 6), edge_index=ends[:, ends[0] // 2 != 10], num_nodes=50
    )
    parts = torch.arange(50) % 2
    graph = DistributedGraph.build(PartitionedInMemory(read(data), parts, 2, cluster), group)
    peer, sent = 1 - group.rank, []

    def post(receive, send, context=""):
        sent.append(send[0])
        return Group.post(group, receive, send, context)

    x = data.x[graph.node_id]
    group.post = post
    received = []
    for_each_source(graph, x, lambda block, chunk, rows: received.append(rows.clone()), layer="-")
    assert torch.equal(sent[0], x[graph.plan.send_rows[peer].long()])
    own = x.untyped_storage().data_ptr()
    assert (sent[0].untyped_storage().data_ptr() == own) == (cluster is not None)
    run = graph.plan.runs[peer]
    assert (run is not None) == (cluster is not None)
    if run is not None:
        assert 0 < run.start < run.stop == len(x)
    assert graph.plan.runs[group.rank] is None
    theirs = data.edge_index[:, (parts[data.edge_index[0]] == peer)]
    needed = theirs[0][parts[theirs[1]] == group.rank].unique()
    assert torch.equal(received[1].sort(0)[0], data.x[needed].sort(0)[0])


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_that_are_a_run_leave_from_where_they_are(ordered: bool) -> None:
    run_ranks(_rows_that_leave, 2, torch.arange(50) * 11 % 7 if ordered else None)


class _Aggregates(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(2, 2)

    def forward(self, x, graph):
        return fullgraph.aggregate(graph, self.lin(x))


def _aggregates_first(group: Group) -> None:
    """Nothing has asked for the plan's runs before, and every row is needed."""
    ends = torch.cartesian_prod(torch.arange(12), torch.arange(12)).T
    data = Data(x=torch.arange(24.0).view(12, 2), edge_index=ends, num_nodes=12)
    graph = fullgraph.load(data, group=group, method="contiguous")
    model = fullgraph.convert(_Aggregates())
    out = model(graph.x, graph)
    torch.testing.assert_close(out, model.lin(data.x).sum(0).expand_as(out))


def test_aggregate_in_a_converted_model_needs_no_layer_before_it() -> None:
    run_ranks(_aggregates_first, 2)


def _load_errors(group: Group) -> list[str]:
    said = []
    for source, options in (("no/such.npz", {}), (named("tiny"), {"parts": 1})):
        with pytest.raises(ValueError, match=r"npz|parts=1") as caught:
            fullgraph.load(source, group=group, **options)
        said.append(str(caught.value))
    return said


def test_what_rank_0_cannot_read_is_an_error_on_every_rank() -> None:
    for missing, few in run_ranks(_load_errors, 2):
        assert "no/such.npz" in missing
        assert "parts=1 cannot be shared by 2 workers" in few


def _moved(group: Group) -> None:
    """The code that moves a graph; there may be no other device than the CPU to move it to."""
    graph = DistributedGraph.build(named_parts("multigraph", 2, False), group)
    moved = graph.to("cpu").with_self_loops()
    model = fullgraph.convert(pyg.GCN(6, 5, 2, 3, norm="batch_norm").double())
    x = graph.x.clone().requires_grad_()
    fullgraph.cross_entropy(model(x, moved), moved.y, moved.train_mask, group=group).backward()
    expected, x.grad = x.grad, None
    fullgraph.cross_entropy(model(x, graph), graph.y, graph.train_mask, group=group).backward()
    assert torch.equal(x.grad, expected)


def test_a_graph_that_was_moved_is_the_same_graph() -> None:
    run_ranks(_moved, 2)


def _two_triangles(group: Group, schedule: str) -> None:
    """Nothing to exchange at all."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    data = Data(edge_index=edges, num_nodes=6, x=torch.eye(6), y=torch.zeros(6, dtype=torch.int64),
                train_mask=torch.ones(6, dtype=torch.bool))  # fmt: skip
    graph = fullgraph.load(data, group=group, method="contiguous", schedule=schedule)
    conv = fullgraph.convert(pyg.GraphConv(6, 2, aggr="max"))
    x = graph.x.clone().requires_grad_()
    conv(x, graph).sum().backward()
    assert graph.traffic.bytes_sent == graph.traffic.bytes_received == 0


@pytest.mark.parametrize("schedule", ["sequential", "oneshot"])
def test_disconnected_parts_exchange_nothing(schedule: str) -> None:
    run_ranks(_two_triangles, 2, schedule)


def _autocast(group: Group) -> None:
    graph = DistributedGraph.build(named_parts("multigraph", 2, False), group)
    x = graph.x.float()
    for conv in (
        pyg.SAGEConv(6, 3), pyg.GCNConv(6, 3), pyg.SAGEConv(6, 3, aggr="max"), pyg.GATConv(6, 3),
        pyg.GATv2Conv(6, 3), pyg.TransformerConv(6, 3),
    ):  # fmt: skip
        for given in (x, x.bfloat16()):
            model = fullgraph.convert(copy.deepcopy(conv))
            outs, grads = [], []
            for narrow in (False, True):
                inputs = (given if narrow else given.float()).clone().requires_grad_()
                model.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                    outs.append(model(inputs, graph))
                outs[-1].float().square().sum().backward()
                grads.append([inputs.grad.float(), *(p.grad for p in model.parameters())])
            torch.testing.assert_close(outs[1].float(), outs[0], rtol=0.05, atol=0.05)
            for ours, wide in zip(grads[1], grads[0]):
                torch.testing.assert_close(ours, wide, rtol=0.1, atol=0.1 * wide.abs().max().item())


def test_layers_run_under_autocast() -> None:
    run_ranks(_autocast, 2)


def _hidden_failure(group: Group) -> str:
    """One rank raises in its backward pass."""

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ArithmeticError("in backward")

    graph = DistributedGraph.build(named_parts("multigraph", 3, False), group)
    x = graph.x.clone().requires_grad_()
    hidden = fullgraph.aggregate(graph, Breaks.apply(x) if group.rank == 1 else x, layer="one")
    out = fullgraph.aggregate(
        graph, Breaks.apply(hidden) if group.rank == 1 else hidden, layer="two"
    )
    try:
        out.sum().backward()
        fullgraph.sum_gradients([x], group)
    except ArithmeticError as error:
        group.report_failure(error)
        raise
    except fullgraph.CommError as error:
        return str(error)
    return ""


def test_a_rank_that_raises_in_backward_stops_the_others() -> None:
    from tests.ranks import RanksFailedError

    with pytest.raises(RanksFailedError, match=r"ArithmeticError: in backward"):
        run_ranks(_hidden_failure, 3, wait_limit=3)
