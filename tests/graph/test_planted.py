from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from fullgraph.graph.planted import PlantedSpec, generate, parse_planted, planted
from fullgraph.graph.sources import read
from fullgraph.graph.whole import WholeGraph


def small(**changes: float) -> WholeGraph:
    return planted(**{"nodes": 3000, "edges": 20_000, "classes": 5, "features": 8, **changes})


def keys(whole: WholeGraph) -> np.ndarray:
    src, dst = whole.edge_index.numpy().astype(np.int64)
    return src * whole.num_nodes + dst


def test_edges_are_symmetric_distinct_and_have_every_loop() -> None:
    whole = small()
    src, dst = whole.edge_index.numpy().astype(np.int64)
    forward, backward = keys(whole), dst * whole.num_nodes + src
    assert (np.diff(forward) > 0).all()
    assert np.array_equal(np.sort(backward), forward)
    assert (src == dst).sum() == whole.num_nodes


def test_a_seed_gives_one_graph_and_another_seed_another() -> None:
    one, same, other = small(seed=1), small(seed=1), small(seed=2)
    for key in ("edge_index", "x", "y"):
        assert torch.equal(getattr(one, key), getattr(same, key)), key
        assert getattr(one, key).shape != getattr(other, key).shape or not torch.equal(
            getattr(one, key), getattr(other, key)
        ), key
    assert torch.equal(one.masks["train"], same.masks["train"])


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_mix_is_the_fraction_of_edges_without_regard_to_communities(mix: float) -> None:
    whole = small(mix=mix, communities=5, classes=5, nodes=20_000, edges=60_000)
    assert whole.y is not None
    src, dst = whole.edge_index.long()
    across = (whole.y[src] != whole.y[dst]).sum() / (src != dst).sum()
    assert abs(float(across) - mix * 4 / 5) < 0.02  # one in five ends in its own by chance


def test_degrees_follow_a_power_law_of_exponent_2_3_up_to_a_cap_at_sqrt_n() -> None:
    whole = planted(100_000, 1_000_000, features=0, mix=1.0)
    degree = np.sort(np.bincount(whole.edge_index[0].numpy()) - 1)[::-1]
    # P(degree > d) falls as d ** -1.3; about 56 nodes lie at the cap, and have equal weights.
    exponent = 1 + np.log(10) / np.log(degree[200] / degree[2000])
    assert abs(exponent - 2.3) < 0.1
    assert degree[0] < 1.3 * degree[40]


def test_features_are_half_the_class_centre_plus_noise() -> None:
    whole = small(nodes=20_000, features=16)
    assert whole.x is not None
    assert whole.y is not None
    assert whole.x.dtype == torch.float32
    means = torch.stack([whole.x[whole.y == c].mean(dim=0) for c in range(5)])
    assert 0.4 < float(means.std()) < 0.6
    assert abs(float((whole.x - means[whole.y]).std()) - 1) < 0.01


def test_the_split_has_the_fractions_asked_for() -> None:
    whole = small(train=0.1, val=0.3)
    assert [int(mask.sum()) for mask in whole.masks.values()] == [300, 900, 1800]


def test_the_benchmark_graph_has_about_5_88_million_edges_and_takes_seconds() -> None:
    start = time.perf_counter()
    whole = read("planted:nodes=200000,edges=4000000")
    seconds = time.perf_counter() - start
    assert abs(whole.num_edges / 5.88e6 - 1) < 0.01
    assert (whole.num_features, whole.num_classes) == (100, 47)
    assert seconds < 30, "about 1.5 s on two cores"


@pytest.mark.parametrize("nodes", [1, 2, 46, 47, 500])
def test_any_number_of_nodes_works(nodes: int) -> None:
    whole = read(planted(nodes, 100))
    assert whole.num_nodes == nodes
    assert whole.y is not None
    assert int(whole.y.max()) < 47


def test_no_edges_and_no_features_work() -> None:
    whole = read(planted(5, 0, features=0))
    assert whole.edge_index.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert whole.x is None


def test_a_spec_survives_its_own_text() -> None:
    spec = parse_planted("planted: nodes=1e5, edges=2_000_000 ,mix=0.25,seed=3")
    assert spec == PlantedSpec(nodes=100_000, edges=2_000_000, mix=0.25, seed=3)
    assert str(spec) == "planted:nodes=100000,edges=2000000,mix=0.25,seed=3"
    assert parse_planted(str(spec)) == spec
    assert generate(PlantedSpec(10, 10)).name == "planted:nodes=10,edges=10"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("planted:nodes=10", "edges must be given"),
        ("planted:", "nodes and edges must be given"),
        ("planted:nodes=10,edges=5,mixx=1", "'mixx=1' is not understood.*mix"),
        ("planted:nodes=10,edges=5,mix", "'mix' is not understood"),
        ("planted:nodes=ten,edges=5", "nodes='ten' is not a whole number"),
        ("planted:nodes=10.5,edges=5", "nodes='10.5' is not a whole number"),
        ("planted:nodes=inf,edges=5", "nodes='inf' is not a whole number"),
        ("planted:nodes=10,edges=5,mix=nan", "mix='nan' is not a number"),
        ("planted:nodes=10,nodes=11,edges=5", "nodes is given twice"),
        ("planted:nodes=0,edges=5", "nodes=0 is less than 1"),
        ("planted:nodes=10,edges=-1", "edges=-1 is less than 0"),
        ("planted:nodes=10,edges=5,communities=11", "communities=11 must be between"),
        ("planted:nodes=10,edges=5,mix=1.5", "mix=1.5 must be between 0 and 1"),
        ("planted:nodes=10,edges=5,seed=-1", "seed=-1 must not be negative"),
        ("planted:nodes=10,edges=5,train=0.9,val=0.2", "train=0.9, val=0.2"),
        ("plant:nodes=10,edges=5", "does not start with 'planted:'"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(parse_planted(text))
