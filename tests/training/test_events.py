"""Events are a line each, with time and rank, or a JSON object each."""

from __future__ import annotations

import json
import re

import pytest

from fullgraph.training.events import Log
from fullgraph.training.progress import TrainingProgress
from fullgraph.training.results import Epoch

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.mark.parametrize(("rank", "who"), [(None, "launcher"), (3, "rank 3")])
def test_an_event_is_one_line_with_time_and_rank(
    rank: int | None, who: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Log(rank)("failure", "it broke:\n   in two\n lines\n", failed=1)
    assert re.fullmatch(rf"{TIME} {who} it broke:; in two; lines\n", capsys.readouterr().out)


@pytest.mark.parametrize("quiet", [False, True])
def test_json_has_the_same_and_the_fields_and_leaves_stdout_to_a_result(
    quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    Log(3, quiet, as_json=True)("epoch", "epoch 1\nof 2", epoch=1, loss=0.5, val=None)
    out, err = capsys.readouterr()
    written, other = (err, out) if quiet else (out, err)
    assert other == ""
    assert written.count("\n") == 1
    event = json.loads(written)
    assert re.fullmatch(TIME, event.pop("time"))
    assert event == {
        "rank": 3, "event": "epoch", "message": "epoch 1; of 2", "epoch": 1, "loss": 0.5,
        "val": None,
    }  # fmt: skip


def test_quiet_text_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    Log(0, quiet=True)("epoch", "epoch 1")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_the_text_and_not_what_the_bar_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    log = Log(0)
    for event in ("start", "epoch", "checkpoint", "restart", "failure", "result"):
        log(event, f"a {event}\nin lines")
    assert capsys.readouterr().out == "a start\nin lines\na result\nin lines\n"
    assert not Log(0, as_json=True).on_terminal


def test_every_epoch_is_an_event_and_drift_another(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(100, "accuracy", Log(0, as_json=True)) as progress:
        for number in range(1, 101):
            metrics = {"train": 0.5, "val": float("nan")} if number == 50 else {}
            drift = {"outputs": 0.25} if number == 7 else {}
            progress.show(Epoch(number, 1.25, 0.5, 0, metrics, 0.0, [2, 3], [4, 5], drift))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["epoch"] for e in events if e["event"] == "epoch"] == list(range(1, 101))
    (drift,) = [e for e in events if e["event"] == "drift"]
    assert (drift["epoch"], drift["outputs"], drift["message"]) == (
        7, 0.25, "epoch   7/100  drift: outputs 2.50e-01",
    )  # fmt: skip
    (evaluated,) = [e for e in events if "bytes_sent" in e]
    assert (evaluated["train"], evaluated["val"], evaluated["bytes_sent"]) == (0.5, None, [4, 5])


def test_lines_say_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(100, "accuracy", Log(0)) as progress:
        progress.show(Epoch(1, 1.25, 0.5))
        metrics = {"train": 0.5, "val": 0.25}
        progress.show(Epoch(2, 1.25, 0.5, 0, metrics, 0.0, [2_000_000, 2_500_000_000]))
    lines = [line.partition(" rank 0 ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "epoch   1/100  loss 1.2500  0.5 s an epoch",
        "epoch   2/100  loss 1.2500  validation accuracy 0.2500  0.5 s an epoch  "
        "peak memory 2.50 GB a worker",
    ]
