"""Profiles: they account for every second of a step, and change nothing of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fullgraph
from fullgraph.comm.group import Group
from fullgraph.training.account import short
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.fit import fit
from fullgraph.training.models import ModelOptions, build_model
from fullgraph.training.options import FitOptions
from fullgraph.training.profile import Profile, is_ours, remove_all
from tests.ranks import run_ranks
from tests.training.graphs import share, small

HIDDEN, CLASSES, PROFILED = 6, 3, 2
IN_FIRST_PART = (torch.arange(40) % 3 == 0) & (torch.arange(40) < 15)


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(ModelOptions("sage", hidden=HIDDEN, dropout=0.5), 4, CLASSES)


def _fit(group: Group, schedule: str, wire: str, folder: str | None, drift: int) -> Any:
    data = small(train_mask=IN_FIRST_PART)  # rank 1 has no labelled node
    graph = share(data, group).with_schedule(schedule, wire)
    model = _model()
    profile = None if folder is None else Profile(graph, folder, epochs=PROFILED)
    result = fit(model, graph, epochs=6, profile=profile, check_drift=drift)
    weights = torch.cat([v.flatten() for v in model.state_dict().values()])
    summary = None if profile is None else profile.summary
    return [e.loss for e in result.epochs], weights, summary, graph.num_local_edges


def _with_and_without(group: Group, schedule: str, wire: str, folder: str, drift: int) -> Any:
    return [_fit(group, schedule, wire, where, drift) for where in (None, folder)]


@pytest.mark.parametrize(
    ("schedule", "wire", "drift"),
    [("sequential", "float32", 0), ("delayed:2", "bf16", 3), ("local", "float32", 0)],
)
def test_a_profile_accounts_for_a_step_and_changes_no_bit(
    tmp_path: Path, schedule: str, wire: str, drift: int
) -> None:
    folder = tmp_path / "deep" / "profile"
    ranks = run_ranks(_with_and_without, 2, schedule, wire, str(folder), drift)
    names = {"rank-0.json.gz", "rank-1.json.gz", "summary.json", "profile.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((folder / "summary.json").read_text())
    for rank, ((losses, weights, _, edges), (others, other_weights, summary, _)) in enumerate(
        ranks
    ):
        assert losses == others
        assert torch.equal(weights, other_weights)
        assert summary == written
        found = summary["ranks"][rank]
        assert (found["rank"], found["epochs"]) == (rank, PROFILED)
        assert sum(found["families"].values()) == pytest.approx(found["seconds"], rel=1e-9)
        assert 0 < found["families"]["rest"] < found["seconds"]
        assert 0 < found["families"]["waiting"] < found["seconds"]
        assert 0 < found["families"]["profiling"] < found["seconds"]
        rows = {row["name"]: row for row in found["kernels"]}
        sums = rows["spmm"]
        if schedule == "sequential":  # layer 2, of the narrower rows
            assert {"wait: receiving convs.1, forward", "wait: all-reduce of the loss"} <= set(rows)
            assert sums["calls"] == 4
            assert sums["random_bytes"] == 2 * edges * CLASSES * 4
            assert sums["flops"] == 2 * edges * CLASSES
        assert rows["dropout"]["calls"] == 2
        assert {"gather_rows", "exchange: posting"} & set(rows) == (
            set() if schedule == "local" else {"gather_rows", "exchange: posting"}
        )
        with gzip.open(folder / f"rank-{rank}.json.gz", "rt", encoding="utf-8") as file:
            _check_timeline(json.load(file)["traceEvents"], rows, rank)


def _check_timeline(events: list[dict[str, Any]], rows: dict[str, Any], rank: int) -> None:
    """There is one event for each call that was counted; it is as long or a little shorter."""
    steps = [e for e in events if e["name"] == "training step"]
    assert len(steps) == PROFILED
    inside = [
        e for e in events
        if e.get("ph") == "X"
        and any(s["ts"] <= e["ts"] <= s["ts"] + s["dur"] for s in steps)
    ]  # fmt: skip
    for name, row in rows.items():
        if name.startswith("wait: "):
            same = [e for e in inside if short(e["name"]) == name]
            assert len(same) == row["calls"] * PROFILED, name
        elif row["bytes"]:
            names = name, f"aten::{name}", f"fullgraph::{name}"
            same = [e for e in inside if e["name"] in names and "bytes" in e["args"]]
            assert 0 < len(same) <= row["calls"] * PROFILED, name
            assert sum(e["args"]["bytes"] for e in same) == row["bytes"] * PROFILED, name
            assert 0 < sum(e["dur"] for e in same) / 1e6 <= row["seconds"] * PROFILED, name
            if f"fullgraph::{name}" in {e["name"] for e in same}:
                assert len([e for e in inside if e["name"] in names]) == row["calls"] * PROFILED
    called = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert f"rank {rank}" in called


def _step(model: torch.nn.Module, graph: Any) -> None:
    loss = fullgraph.cross_entropy(model(graph.x, graph), graph.y, graph.train_mask)
    loss.backward()


def test_a_loop_of_ones_own_is_profiled_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, model = share(small(), Group()), fullgraph.convert(_model())
    (tmp_path / "rank-7.json.gz").touch()  # of a former profile
    random = torch.get_rng_state()
    with fullgraph.Profile(graph, tmp_path, epochs=50, warm_up=1) as profile:
        for _ in range(3):  # fewer than asked for
            with profile.step():
                _step(model, graph)
    assert torch.equal(torch.get_rng_state(), random)
    assert profile.summary is not None
    assert profile.summary["ranks"][0]["epochs"] == 2
    assert {p.name for p in tmp_path.iterdir()} == {"rank-0.json.gz", "summary.json", "profile.png"}
    profile.say()
    said = capsys.readouterr().out
    for words in ("rank 0: ", "GB/s of random rows", "sparse sums", "of machine", "rest: "):
        assert words in said


def test_a_step_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    graph, model = share(small(), Group()), fullgraph.convert(_model())
    profile = Profile(graph, tmp_path / "profile", epochs=3, warm_up=0)

    def train() -> None:
        with profile:
            for number in range(3):
                with profile.step():
                    _step(model, graph)
                    if number == 1:
                        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train()
    assert profile.summary is None
    assert not (tmp_path / "profile").exists()
    assert not torch.autograd.profiler._is_profiler_enabled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs of a profile must be at least 1, got 0"),
        ({"warm_up": -1}, "warm_up of a profile must be at least 0, got -1"),
    ],
)
def test_a_profile_of_nothing_is_refused(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Profile(share(small(), Group()), tmp_path / "p", **options)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("profile", "message"),
    [(-1, "profile must be at least 0"), (3, "epochs is 4; train 5 or more")],
)
def test_a_run_too_short_to_profile_is_refused(profile: int, message: str) -> None:
    config = RunConfig(GraphOptions("x"), training=FitOptions(epochs=4), profile=profile)
    with pytest.raises(ValueError, match=message):
        config.validate()


def test_only_files_of_a_profile_are_removed(tmp_path: Path) -> None:
    for name in ("rank-0.json.gz", "summary.json", "profile.png"):
        (tmp_path / name).touch()
    assert is_ours(tmp_path)
    (tmp_path / "thesis.tex").touch()
    assert not is_ours(tmp_path)
    remove_all(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
