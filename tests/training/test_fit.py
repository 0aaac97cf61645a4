"""`fit`: the same on any number of ranks, exchanging no more than it must."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fullgraph
from fullgraph.comm.group import Group
from fullgraph.graph.folder import save
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.fit import evaluate, fit, normalize_features, parameter_groups
from fullgraph.training.models import ModelOptions, build_model
from fullgraph.training.options import FitOptions
from fullgraph.training.results import Epoch, FitResult
from fullgraph.training.tasks import open_graph
from tests.ranks import run_ranks
from tests.training.graphs import cora, share, small
from tests.typed_graphs import typed_data, typed_parts

GCN_PAPER = ModelOptions("gcn", layers=2, hidden=16, dropout=0.5, input_dropout=0.5)
TRAINING = FitOptions(epochs=30, weight_decay=5e-4, weight_decay_on="first")


def _cora_curve(group: Group) -> tuple[list[float], dict[str, float], list[int]]:
    graph = share(cora(), group, parts=4)
    assert graph.x is not None
    graph.x = normalize_features(graph.x)
    torch.manual_seed(group.rank)  # rank 0's weights are broadcast
    model = build_model(GCN_PAPER, graph.num_features, graph.num_classes)
    result = fit(model, graph, TRAINING)
    assert result.tested is not None
    return [e.loss for e in result.epochs], result.tested.metrics, result.epochs[-1].bytes_sent


def test_loss_curves_are_the_same_on_1_2_and_4_ranks() -> None:
    limits = {"timeout": 300.0, "wait_limit": 120.0}  # four ranks may share two busy cores
    runs = {size: run_ranks(_cora_curve, size, **limits) for size in (1, 2, 4)}
    curve, metrics, _ = runs[1][0]
    assert curve[-1] < 0.97 * curve[0]
    for size, ranks in runs.items():
        assert len(ranks[0][2]) == size
        for other, others, sent in ranks:
            assert other == ranks[0][0]
            assert others == ranks[0][1]
            assert sent == ranks[0][2]
        assert ranks[0][0] == pytest.approx(curve, abs=1e-5)
        assert ranks[0][1] == pytest.approx(metrics, abs=2e-3)
    assert runs[1][0][2] == [0]
    assert min(runs[4][0][2]) > 0


def _small_model(**options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(ModelOptions("sage", **{"hidden": 6, "dropout": 0.0, **options}), 4, 3)


def _operations(group: Group) -> list[list[str]]:
    """The names of the collectives of each epoch; the second is evaluated."""
    graph, seen, epochs = share(small(), group), [], []
    plain = Group.all_reduce

    def all_reduce(self: Group, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        seen.append(operation)
        return plain(self, tensor, operation)

    Group.all_reduce = all_reduce  # type: ignore[method-assign]
    try:
        model = fullgraph.convert(_small_model())

        def on_epoch(epoch: Epoch) -> None:
            epochs.append(list(seen))
            seen.clear()

        fit(model, graph, epochs=2, eval_every=2, on_epoch=on_epoch)
    finally:
        Group.all_reduce = plain  # type: ignore[method-assign]
    return epochs


def test_a_step_exchanges_layers_loss_and_gradients_only() -> None:
    step = ["the loss", "gradients"]
    measured = ["accuracy"] * 3 + ["the account of memory and bytes"]
    assert run_ranks(_operations, 2) == [[step, step + measured]] * 2


def test_the_model_ends_with_the_weights_that_are_reported() -> None:
    for keep in ("best", "last"):
        graph, model = share(small(), Group()), _small_model()
        result = fit(model, graph, epochs=25, keep=keep, lr=0.05)
        assert result.tested is not None
        assert evaluate(model, graph, "accuracy") == result.tested.metrics
        vals = [epoch.metrics["val"] for epoch in result.epochs]
        expected = 1 + vals.index(max(vals)) if keep == "best" else 25
        assert result.tested.epoch == expected
        assert expected < 25 or keep == "last"


def test_without_a_validation_mask_the_last_weights_are_kept() -> None:
    data = small()
    del data.val_mask
    result = fit(_small_model(), share(data, Group()), epochs=3)
    assert result.tested is result.epochs[-1]
    assert set(result.tested.metrics) == {"train", "test"}


def test_patience_ends_training() -> None:
    graph = share(small(), Group())
    result = fit(_small_model(), graph, epochs=500, patience=5)
    assert result.stopped_early
    assert result.best is not None
    assert len(result.epochs) == result.best.epoch + 5


def test_an_empty_validation_set_is_no_hindrance() -> None:
    nothing = torch.zeros(40, dtype=torch.bool)
    result = fit(_small_model(), share(small(val_mask=nothing), Group()), epochs=3)
    assert result.tested is result.epochs[-1]
    assert math.isnan(result.tested.metrics["val"])
    assert result.to_json()["val"] is None


def test_an_interrupt_keeps_the_weights_of_an_evaluated_epoch() -> None:
    graph, model = share(small(), Group()), _small_model()

    def on_epoch(epoch: Epoch) -> None:
        if epoch.epoch == 7:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(0.123)  # as if in the middle of a step
            raise KeyboardInterrupt

    result = fit(model, graph, epochs=50, keep="last", on_epoch=on_epoch)
    assert result.interrupted
    assert result.tested is result.epochs[6]
    assert evaluate(model, graph, "accuracy") == result.tested.metrics


def test_roc_auc_trains_two_classes() -> None:
    graph = share(small(classes=2), Group())
    torch.manual_seed(0)
    model = build_model(ModelOptions("mlp", hidden=8, dropout=0.0), 4, 2)
    result = fit(model, graph, epochs=60, metric="roc_auc", lr=0.05)
    assert result.tested is not None
    assert result.tested.metrics["train"] > 0.9


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (small(x=None), {}, "has no node features x"),
        (small(y=None), {}, "has none"),
        (small(y=torch.rand(40, 3)), {}, "one class a node, got float32"),
        (small(), {"metric": "roc_auc"}, "metric roc_auc takes 2 classes; the graph has 3"),
        (small(), {"epochs": 0}, "epochs must be at least 1, got 0"),
        (small(), {"lr": math.nan}, "lr must be positive, got nan"),
        (small(), {"weight_decay": -1.0}, "weight_decay must be 0 or more"),
        (small(), {"keep": "first"}, "keep must be one of best, last, got 'first'"),
    ],
)
def test_mistakes_are_named(data: Any, options: dict[str, Any], message: str) -> None:
    graph = share(data, Group())
    with pytest.raises(ValueError, match=message):
        fit(_small_model(), graph, **options)


def test_graphs_with_types_of_nodes_are_trained_otherwise(tmp_path: Path) -> None:
    message = "has types of nodes .*'paper', 'author', .* train from Python: fullgraph.load gives"
    with pytest.raises(ValueError, match=message):
        fit(_small_model(), fullgraph.load(typed_data(), group=Group()))
    save(typed_parts(2), tmp_path / "typed")
    config = RunConfig(GraphOptions(str(tmp_path / "typed")))
    for folder in (None, str(tmp_path / "typed")):  # as under torchrun, and as our own workers do
        with pytest.raises(ValueError, match=message):
            open_graph(Group(), config, folder)


def test_patience_needs_a_validation_mask() -> None:
    data = small()
    del data.val_mask
    with pytest.raises(ValueError, match="patience=3 needs a validation mask"):
        fit(_small_model(), share(data, Group()), patience=3)


def test_weight_decay_on_the_first_layer_only() -> None:
    for name, first in (("gcn", "convs.0."), ("mlp", "mlp.lins.0."), ("gin", "convs.0.")):
        model = fullgraph.convert(build_model(ModelOptions(name), 4, 3))
        groups = parameter_groups(
            model, FitOptions(weight_decay=5e-4, weight_decay_on="first")
        )  # fmt: skip
        names = {id(p): n for n, p in model.named_parameters()}
        decayed = {names[id(p)] for p in groups[0]["params"]}
        assert decayed == {n for n in names.values() if n.startswith(first)}
        assert [g["weight_decay"] for g in groups] == [5e-4, 0.0]
        assert sum(len(g["params"]) for g in groups) == len(names)


def test_features_are_normalised_by_row() -> None:
    x = torch.tensor([[1.0, 3.0], [0.0, 0.0], [-1.0, 1.0]])
    assert normalize_features(x).tolist() == [[0.25, 0.75], [0.0, 0.0], [-0.5, 0.5]]


def test_a_result_without_epochs_is_plain_json() -> None:
    line = FitResult("accuracy").to_json()
    assert line["epochs"] == 0
    assert line["epoch_seconds"] is None
    assert line["tested_epoch"] is None


def _drifting(group: Group, check_drift: int, schedule: str, wire: str) -> tuple[Any, Any, Any]:
    """Losses, drifts and weights, of a model with all that could be disturbed."""
    graph = share(small(), group).with_schedule(schedule, wire)
    model = _small_model(norm="batch", dropout=0.5, layers=3)
    result = fit(model, graph, epochs=9, check_drift=check_drift)
    weights = torch.cat([v.flatten().double() for v in model.state_dict().values()])
    sent = [epoch.own_bytes_sent for epoch in result.epochs]
    return [e.loss for e in result.epochs], (sent, result), weights


@pytest.mark.parametrize(
    ("schedule", "wire"), [("delayed:2", "float32"), ("local", "float32"), ("oneshot", "bf16")]
)
def test_checking_drift_changes_no_bit_of_the_run(schedule: str, wire: str) -> None:
    without = run_ranks(_drifting, 2, 0, schedule, wire)
    checked = run_ranks(_drifting, 2, 3, schedule, wire)
    for (losses, (sent, _), weights), (others, (sent_too, result), other_weights) in zip(
        without, checked
    ):
        assert losses == others
        assert sent == sent_too
        assert torch.equal(weights, other_weights)
        drifts = {e.epoch: e.drift for e in result.epochs if e.drift}
        assert [*drifts] == [3, 6, 9]
        assert all(1e-4 < value < 2 for drift in drifts.values() for value in drift.values())
        assert result.to_json()["drift"] == drifts[9]
        assert result.epochs[2].to_json()["drift"] == drifts[3]
        assert "drift" not in result.epochs[1].to_json()
    assert [r.epochs[2].drift for _, (_, r), _ in checked[:1]] == [
        r.epochs[2].drift for _, (_, r), _ in checked[1:]
    ]


def test_there_is_no_drift_where_training_is_exact() -> None:
    for _, (_, result), _ in run_ranks(_drifting, 2, 9, "oneshot", "float32"):
        assert max(result.epochs[8].drift.values()) < 1e-5
