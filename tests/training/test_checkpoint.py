"""Checkpoints that a hostile writer sealed: each is refused with its name, and so passed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fullgraph.training import checkpoint, snapshot
from fullgraph.training.checkpoint import CheckpointError
from tests.fuzz.corpus import model_and_graph

OPTIONS = {"lr": 0.01}


def save(folder: Path) -> dict[str, Any]:
    """A model, its optimizer and graph, as `load` takes them, which were saved twice."""
    model, optimizer, graph = model_and_graph()
    model(graph.x, graph).sum().backward()
    optimizer.step()
    given = {"model": model, "optimizer": optimizer, "graph": graph, "options": OPTIONS}
    for epoch in (1, 2):
        checkpoint.save(folder, epoch, **given)
    return given


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """With a checksum that fits."""
    content = json.loads(path.read_text())
    change(content)
    content["checksum"] = snapshot._checksum(content)
    path.write_text(json.dumps(content))


def entries(header: dict[str, Any], name: str) -> dict[str, Any]:
    """The packed dict of this name in the state."""
    return dict(header["state"]["dict"])[name]["dict"]


DAMAGE = [
    (lambda h: h.pop("state"), "it has no state"),
    (lambda h: h.update(options=[]), "it has no options"),
    (lambda h: h.update(rows={}), "it has no rows"),
    (lambda h: h.update(layout={}), "it is of None ranks, and has files of 1"),
    (lambda h: h["layout"].update(ranks=3), "it is of 3 ranks, and has files of 1"),
    (lambda h: h.update(rows=[{"epoch": 1}]), "its values make no sense"),
    (lambda h: h.update(rows=[[]]), "its values make no sense"),
    (lambda h: h.update(dropout={"": [1]}), "its values make no sense"),
    (lambda h: h.update(dropout={"": ["a", "b"]}), "its values make no sense"),
    (lambda h: h.update(state={"dict": 3}), "its values make no sense"),
    (lambda h: h.update(state={"dict": []}), "its values make no sense"),
    (lambda h: h.update(state={"list": [{}]}), "its values make no sense"),
    (lambda h: h["state"]["dict"].append(["more", 1]), "its values make no sense"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGE)
def test_what_saving_does_not_make_is_damage(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = save(tmp_path)
    rewrite(tmp_path / "epoch-000002" / snapshot.HEADER, change)
    found = checkpoint.load(tmp_path, **given)
    assert found is not None
    assert found.epoch == 1
    said = capsys.readouterr().err
    assert f"epoch-000002 is damaged ({message}" in said
    assert len(said.splitlines()) == 1
    rewrite(tmp_path / "epoch-000001" / snapshot.HEADER, change)
    with pytest.raises(CheckpointError, match="there is none before"):
        checkpoint.load(tmp_path, **given)


def drop_first(header: dict[str, Any], name: str) -> None:
    del entries(header, name)[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: drop_first(h, "model"), "is of another model"),
        (lambda h: entries(h, "model").append(["more", 1]), "cannot be loaded: RuntimeError"),
        (lambda h: drop_first(h, "optimizer"), "cannot be loaded: KeyError"),
        (lambda h: entries(h, "optimizer").clear(), "cannot be loaded: KeyError"),
        (lambda h: h.update(graph={}), "is of another graph"),
        (lambda h: h.update(optimizer="SGD"), "is of the optimizer SGD, not Adam"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    given = save(tmp_path)
    rewrite(tmp_path / "epoch-000002" / snapshot.HEADER, change)
    with pytest.raises(CheckpointError, match=f"epoch-000002.*{message}"):
        checkpoint.load(tmp_path, **given)


def test_tensors_of_a_rank_that_are_none_are_named(tmp_path: Path) -> None:
    given = save(tmp_path)
    data = snapshot.write_tensors({})
    (tmp_path / "epoch-000002" / snapshot.rank_file(0)).write_bytes(data)
    entry = snapshot._write(tmp_path / "aside", data)
    rewrite(
        tmp_path / "epoch-000002" / snapshot.HEADER,
        lambda h: h["files"].update({snapshot.rank_file(0): entry}),
    )
    with pytest.raises(CheckpointError, match=r"epoch-000002 cannot be loaded: KeyError: 'rng'"):
        checkpoint.load(tmp_path, **given)
