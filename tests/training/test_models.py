"""Named models: they are PyG's, and give PyG's results on a distributed graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg

import fullgraph
from fullgraph.comm.group import Group
from fullgraph.training.models import MODELS, ModelOptions, build_model, check_weights, run_model
from tests.ranks import run_ranks
from tests.training.graphs import share, small


def _build(name: str, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(ModelOptions(name, **options), 4, 3).double()


def _outputs(group: Group, name: str, norm: str) -> list[torch.Tensor | None]:
    """Logits in training and evaluation on this rank's share, gathered."""
    data = small()
    data.x = data.x.double()
    graph = share(data, group)
    model = fullgraph.convert(_build(name, hidden=8, dropout=0.0, norm=norm))
    return [graph.gather(run_model(model.train(mode), graph)) for mode in (True, False)]


@pytest.mark.parametrize("name", list(MODELS))
def test_models_match_plain_pyg(name: str) -> None:
    norm = "none" if name == "sgc" else "batch"
    model, data = _build(name, hidden=8, dropout=0.0, norm=norm), small()
    x = data.x.double()
    expected = [model.train(mode)(x, data.edge_index).detach() for mode in (True, False)]
    ours = run_ranks(_outputs, 2, name, norm)[0]
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_weights_load_into_pygs_own_model() -> None:
    ours = _build("gcn", hidden=16, input_dropout=0.5)
    plain = pyg.models.GCN(4, 16, 2, 3).double()
    plain.load_state_dict(fullgraph.convert(ours).state_dict())


def test_input_dropout_drops_features_in_training_only() -> None:
    model, data = _build("sgc", layers=1, input_dropout=0.5), small()
    x, edges = data.x.double(), data.edge_index
    assert torch.equal(model.eval()(x, edges), model.conv(x, edges))
    assert not torch.allclose(model.train()(x, edges), model.conv(x, edges))


@pytest.mark.parametrize("name", ["gcn", "graphconv", "sgc", "appnp"])
def test_edge_weights_of_the_graph_are_used(name: str) -> None:
    weighted = small(edge_weight=torch.rand(160, generator=torch.Generator().manual_seed(2)))
    model = fullgraph.convert(_build(name, dropout=0.0).float()).eval()
    outs = [run_model(model, share(data, Group())) for data in (small(), weighted)]
    expected = model(weighted.x, weighted.edge_index, edge_weight=weighted.edge_weight)
    torch.testing.assert_close(outs[1], expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(outs[0], outs[1], atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "gatt"}, "model 'gatt' is unknown; choose one of gcn, sage, gin, gat"),
        ({"name": "gat", "hidden": 6}, "hidden must be a multiple of heads for gat, got 6 and 4"),
        ({"norm": "instance"}, "norm 'instance' is unknown"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"name": "sgc", "norm": "batch"}, "nothing to normalise"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(ModelOptions(**options), 4, 3)


def test_a_graph_without_features_or_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one feature and one class, got 0 and 3"):
        build_model(ModelOptions(), 0, 3)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_compared_without_making_any(name: str) -> None:
    options = ModelOptions(name, layers=2, hidden=8)
    weights = build_model(options, 5, 3).state_dict()
    check_weights(options, 5, 3, weights)
    changes = [{"hidden": 10**9}, {"hidden": 10**18}, {"layers": 10**12}] if name != "sgc" else []
    for change in changes:
        with pytest.raises(ValueError, match=r"weight|layers|large"):
            check_weights(replace(options, **change), 5, 3, weights)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="but the model's is"):
        check_weights(options, 6, 3, weights)
    with pytest.raises(ValueError, match=r"weight 'more' is \[2\], but the model's is absent"):
        check_weights(options, 5, 3, {**weights, "more": torch.zeros(2)})
