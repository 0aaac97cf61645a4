"""A run that is resumed is the run that never stopped: to the bit where nothing else changed."""

from __future__ import annotations

import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fullgraph
from fullgraph.comm.group import Group
from fullgraph.training import checkpoint
from fullgraph.training.checkpoint import CheckpointError
from fullgraph.training.fit import fit
from fullgraph.training.models import ModelOptions, build_model
from fullgraph.training.results import Epoch, FitResult
from fullgraph.training.snapshot import find
from tests.ranks import run_ranks
from tests.training.graphs import small

EPOCHS, EVERY = 12, 3
TIMES = ("seconds", "evaluation_seconds", "peak_memory_bytes")


def _model(**options: Any) -> torch.nn.Module:
    defaults = {"hidden": 6, "dropout": 0.5, "input_dropout": 0.2, "norm": "batch"}
    return build_model(ModelOptions("sage", **{**defaults, **options}), 4, 3)


def _run(
    group: Group, folder: str | None, epochs: int = EPOCHS, resume: bool = False,
    graph_options: dict[str, Any] | None = None, fit_options: dict[str, Any] | None = None,
    double: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor], dict[str, Any], str]:  # fmt: skip
    """Lines of metrics without times, the weights kept, what became of the run, and stderr."""
    graph = fullgraph.load(small(), group=group, **{"parts": 4, **(graph_options or {})})
    torch.manual_seed(7)
    # in front of a batch norm a bias has a gradient of rounding errors, which Adam blows up
    model = _model(norm="none" if double else "batch")
    if double:
        graph.x, model = graph.x.double(), model.double()
    every = EVERY if folder else 0
    started: list[FitResult] = []
    with redirect_stderr(StringIO()) as said:
        result = fit(
            model, graph, epochs=epochs, lr=0.05, checkpoint_every=every, checkpoints=folder,
            resume=resume, on_start=started.append, **(fit_options or {}),
        )  # fmt: skip
    lines = [epoch.to_json() for epoch in result.epochs]
    rows = [{k: v for k, v in line.items() if k not in TIMES} for line in lines]
    rest = {k: v for k, v in result.to_json().items() if k not in (*TIMES, "epoch_seconds")}
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    assert len(started) == 1
    rest |= {"random": torch.rand(1).item(), "all": result.approximate}
    return rows, weights, rest, said.getvalue()


def _assert_same_bits(run: Any, other: Any) -> None:
    for (rows, weights, rest, _), (others, other_weights, other_rest, _) in zip(run, other):
        assert rows == others
        assert rest == other_rest
        assert weights.keys() == other_weights.keys()
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("size", "graph", "options"),
    [
        (1, {}, {}),
        (2, {}, {"keep": "last", "eval_every": 2}),
        (2, {"schedule": "oneshot"}, {"patience": 4}),
        (3, {"schedule": "delayed:2"}, {"check_drift": 5}),
        (2, {"schedule": "delayed:1", "wire": "bf16"}, {}),
        (2, {"schedule": "local"}, {}),
        (4, {"placement": "grid:2x1x2", "schedule": "delayed:3"}, {}),
    ],
)
def test_a_resumed_run_is_the_same_to_the_bit(
    tmp_path: Path, size: int, graph: dict[str, Any], options: dict[str, Any]
) -> None:
    epochs = 60 if "patience" in options else EPOCHS
    expected = run_ranks(_run, size, None, epochs, False, graph, options)
    folder = str(tmp_path / "checkpoints")
    run_ranks(_run, size, folder, 7, False, graph, options)
    if options.get("eval_every"):  # the last epoch is evaluated out of turn
        shutil.rmtree(find(tmp_path / "checkpoints")[0])
    resumed = run_ranks(_run, size, folder, epochs, True, graph, options)
    _assert_same_bits(resumed, expected)
    assert (expected[0][2]["stopped_early"], len(expected[0][0]) < epochs) in (
        (False, False),
        (True, True),
    )
    # And once more, with nothing left to do.
    again = run_ranks(_run, size, folder, epochs, True, graph, options)
    assert [(rows, rest["tested_epoch"]) for rows, _, rest, _ in again] == [
        (rows, rest["tested_epoch"]) for rows, _, rest, _ in expected
    ]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "graph"),
    [
        (2, 3, {"schedule": "oneshot", "parts": 5}),
        (3, 1, {}),
        (1, 4, {"placement": "grid:2x1x2", "parts": 4}),
        (2, 2, {"placement": "vertex-cut"}),
    ],
)
def test_it_goes_on_with_other_workers_placements_and_schedules(
    tmp_path: Path, before: int, after: int, graph: dict[str, Any], double: bool
) -> None:
    expected = run_ranks(_run, 1, None, EPOCHS, False, None, None, double)[0]
    folder = str(tmp_path / "checkpoints")
    run_ranks(_run, before, folder, 7, False, None, None, double)
    for rows, weights, *_ in run_ranks(_run, after, folder, EPOCHS, True, graph, None, double):
        # float32: 12 steps of Adam, which divides by the root of small squares
        limit = 1e-10 if double else 2e-3
        losses = [row["loss"] for row in rows]
        assert losses == pytest.approx([row["loss"] for row in expected[0]], rel=limit)
        assert [row["epoch"] for row in rows] == list(range(1, EPOCHS + 1))
        if double:
            for name, value in weights.items():
                torch.testing.assert_close(value, expected[1][name], rtol=1e-10, atol=1e-12)


def test_delayed_on_other_workers_starts_with_an_exact_epoch_and_says_so(tmp_path: Path) -> None:
    folder, stale = str(tmp_path / "checkpoints"), {"schedule": "delayed:2"}
    run_ranks(_run, 2, folder, 6, False, stale)
    (rows, _, rest, said), *others = run_ranks(_run, 3, folder, 8, True, stale)
    line = "epoch-000006 has no stale rows for delayed:2 on 3 workers as they are now: the next"
    assert line in said
    assert len(said.splitlines()) == 1
    assert [other[3] for other in others] == ["", ""]
    assert rest["all"] == ["schedule delayed:2"]
    # The first epoch after it is that of an exact schedule.
    shutil.rmtree(find(tmp_path / "checkpoints")[0])
    exact = run_ranks(_run, 3, folder, 8, True)[0]
    assert rows[6]["loss"] == pytest.approx(exact[0][6]["loss"], rel=1e-6)
    assert rows[7]["loss"] != exact[0][7]["loss"]
    assert exact[2]["all"] == ["schedule delayed:2"]  # as it was


# Damage -------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    expected = run_ranks(_run, 2, None)
    run_ranks(_run, 2, str(folder), 7)
    newest, before = find(folder)
    assert (newest.name, before.name) == ("epoch-000007", "epoch-000006")
    file = newest / "rank-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    resumed = run_ranks(_run, 2, str(folder), EPOCHS, True)
    _assert_same_bits(resumed, expected)
    (line,) = resumed[0][3].splitlines()
    assert line.startswith(f"fullgraph: {newest} is damaged ({file} has ")
    assert line.endswith("going back to the one before")


def _fails(group: Group, folder: str, epochs: int = EPOCHS, **changes: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        _run(group, folder, epochs, **changes)
    return str(caught.value)


def test_when_all_are_damaged_nothing_is_started(tmp_path: Path) -> None:
    _run(Group(), str(tmp_path), 7)
    for path in find(tmp_path):
        (path / "checkpoint.json").write_bytes(b"")
    said = _fails(Group(), str(tmp_path), resume=True)
    assert said.count("is damaged") == 2
    assert "there is none before" in said


# Refusals -----------------------------------------------------------------------------------------


def test_checkpoints_of_another_run_are_not_written_over(tmp_path: Path) -> None:
    _run(Group(), str(tmp_path), 3)
    assert "epoch-000003 of another run" in _fails(Group(), str(tmp_path))
    assert "later than the last epoch, 2" in _fails(Group(), str(tmp_path), 2, resume=True)
    with pytest.raises(ValueError, match="need checkpoints, the folder"):
        fit(_model(), fullgraph.load(small()), checkpoint_every=3)


def test_without_a_checkpoint_it_starts_from_the_beginning(tmp_path: Path) -> None:
    expected = [_run(Group(), None)]
    started = _run(Group(), str(tmp_path / "none"), resume=True)
    _assert_same_bits([started], expected)
    assert "starting from the beginning" in started[3]


def _saved(group: Group, folder: str) -> None:
    graph, model, optimizer = _parts(group)
    checkpoint.save(folder, 3, model=model, optimizer=optimizer, graph=graph, options={"depth": 2})


def _parts(group: Group, data: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    graph = fullgraph.load(small() if data is None else data, group=group)
    torch.manual_seed(0)
    model = fullgraph.convert(_model(**options))
    return graph, model, torch.optim.Adam(model.parameters())


def _refusals(group: Group, folder: str) -> list[str]:
    graph, model, optimizer = _parts(group)
    fewer, wider = _parts(group, small(39)), _parts(group, hidden=7)
    twisted = small()
    twisted.edge_index[1, 5] = (twisted.edge_index[1, 5] + 1) % 40
    deeper = _parts(group, layers=3)
    said = []
    for other, changes in [
        (fewer, {}),
        (_parts(group, twisted), {}),
        (wider, {}),
        (deeper, {}),
        ((graph, model, torch.optim.SGD(model.parameters(), lr=1.0)), {}),
        ((graph, model, optimizer), {"options": {"depth": 3}}),
        ((graph, _model(), optimizer), {}),
        ((graph, model.double(), optimizer), {}),
    ]:
        before = [p.detach().clone() for p in other[1].parameters()]
        with pytest.raises(CheckpointError) as caught:
            checkpoint.load(
                folder, model=other[1], optimizer=other[2], graph=other[0],
                **{"options": {"depth": 2}, **changes},
            )  # fmt: skip
        said.append(str(caught.value))
        assert all(torch.equal(a, b) for a, b in zip(before, other[1].parameters()))
    return said


def test_what_does_not_fit_is_named_on_every_rank_and_changes_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path)
    run_ranks(_saved, 2, folder)
    said = run_ranks(_refusals, 2, folder)
    assert said[0] == said[1]
    for message, expected in zip(
        said[0],
        [
            "is of another graph: nodes in all 40 then, 39 now",
            "is of another graph: other edges. Give the graph",
            "is of another model: convs.0.lin_l.weight was float32 [6, 4], now float32 [7, 4]",
            "convs.1.lin_l.weight was float32 [3, 6], now float32 [6, 6]",
            "is of the optimizer Adam, not SGD",
            "other options: depth was 2, now 3",
            "converted then or now, but not both: (the model). Call fullgraph.convert",
            "convs.0.lin_l.weight was float32 [6, 4], now float64 [6, 4]",
        ],
        strict=True,
    ):
        assert expected in message


# A loop of one's own ------------------------------------------------------------------------------


def _own_loop(group: Group, folder: str, start: int, stop: int) -> tuple[list[float], Any]:
    graph = fullgraph.load(small(), group=group, schedule="delayed:2")
    torch.manual_seed(0)
    model = fullgraph.convert(_model(), seed=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = checkpoint.load(folder, model=model, optimizer=optimizer, graph=graph)
    assert (found.epoch if found else 0) == start - 1
    losses = found.extra["losses"] if found else []
    assert found is None or found.extra["noise"].dtype == torch.float64
    for epoch in range(start, stop + 1):
        model.train()
        optimizer.zero_grad()
        noise = torch.rand(1, dtype=torch.float64)  # torch's generator goes on, too
        out = model(graph.x * noise.float(), graph)
        loss = fullgraph.cross_entropy(F.dropout(out, 0.0), graph.y, graph.train_mask)
        loss.backward()
        fullgraph.sum_gradients(model)
        optimizer.step()
        losses = [*losses, loss.item()]
        if epoch % 3 == 0:
            checkpoint.save(
                folder, epoch, model=model, optimizer=optimizer, graph=graph,
                extra={"losses": losses, "noise": noise}, keep=1,
            )  # fmt: skip
    return losses, {k: v.clone() for k, v in model.state_dict().items()}


def test_a_loop_of_ones_own_goes_on_to_the_bit(tmp_path: Path) -> None:
    expected = run_ranks(_own_loop, 2, str(tmp_path / "whole"), 1, 10)
    folder = str(tmp_path / "parts")
    for start, stop in ((1, 4), (4, 8), (7, 10)):
        resumed = run_ranks(_own_loop, 2, folder, start, stop)
    assert [path.name for path in find(tmp_path / "parts")] == ["epoch-000009"]
    for (losses, weights), (others, other_weights) in zip(resumed, expected):
        assert losses == others
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def test_mistakes_in_saving_are_named(tmp_path: Path) -> None:
    graph, model, optimizer = _parts(Group())
    given = {"model": model, "optimizer": optimizer, "graph": graph}
    for changes in ({"epoch": -1}, {"epoch": 1, "keep": 0}):
        with pytest.raises(ValueError, match="epoch must be at least 0 and keep at least 1"):
            checkpoint.save(tmp_path, **given, **changes)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"state\.extra is a function"):
        checkpoint.save(tmp_path, 1, **given, extra=small)
    assert list(tmp_path.iterdir()) == []


# Interrupts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [5, 6])
def test_an_interrupt_leaves_the_last_epoch(tmp_path: Path, stop: int) -> None:
    """In the middle of a step: at its end, as if it were in the next one."""

    def interrupted(epoch: Epoch) -> None:
        if epoch.epoch == stop:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(0.123)
            torch.rand(3)
            raise KeyboardInterrupt

    expected = [_run(Group(), None)]
    graph = fullgraph.load(small(), group=Group(), parts=4)
    torch.manual_seed(7)
    model = _model()
    result = fit(
        model, graph, epochs=EPOCHS, lr=0.05, checkpoint_every=EVERY, checkpoints=tmp_path,
        on_epoch=interrupted,
    )  # fmt: skip
    assert result.interrupted
    assert [path.name for path in find(tmp_path)] == [f"epoch-{stop:06d}", "epoch-000003"]
    _assert_same_bits([_run(Group(), str(tmp_path), resume=True)], expected)
