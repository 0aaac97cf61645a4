"""Checkpoints of training, for a loop of one's own; `fullgraph.fit` makes and resumes them itself.

    from fullgraph.training import checkpoint

    found = checkpoint.load("checkpoints", model=model, optimizer=optimizer, graph=graph)
    for epoch in range(found.epoch + 1 if found else 1, 201):
        ...  # a step, as before
        if epoch % 10 == 0:
            checkpoint.save("checkpoints", epoch, model=model, optimizer=optimizer, graph=graph)

On the same number of ranks, the same partition and schedule, training goes on bit for bit as if it
had never stopped; on any others to rounding. Rank 0 alone reads and writes files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullgraph.comm.group import Group
from fullgraph.nn.convert import dropout_state, set_dropout_state
from fullgraph.training.identity import Graph, identity
from fullgraph.training.results import Epoch
from fullgraph.training.snapshot import (
    CheckpointError,
    DamagedError,
    Snapshot,
    as_tensor,
    find,
    pack,
    rank_file,
    read,
    read_file,
    read_tensors,
    unpack,
    write,
    write_tensors,
)

__all__ = ["CheckpointError", "Loaded", "load", "save"]

MESSAGE = 1 << 26  # bytes
KINDS: dict[str, type] = {
    "graph": dict, "options": dict, "layout": dict, "optimizer": str, "dropout": dict, "rows": list,
    "state": dict,
}  # fmt: skip
STALE = "stale."


@dataclass(frozen=True)
class Loaded:
    """What `load` found. ``epoch``: after which it was saved. ``extra``: as `save` was given it.
    ``path``: its folder. ``rows``: lines of metrics, of `fullgraph.fit`."""

    epoch: int
    extra: Any
    path: str
    rows: list[dict[str, Any]] = field(default_factory=list)


def save(
    folder: str | PathLike[str], epoch: int, *, model: torch.nn.Module,
    optimizer: torch.optim.Optimizer, graph: Graph, extra: Any = None,
    options: dict[str, Any] | None = None, keep: int = 2,
) -> None:  # fmt: skip
    """Save after an epoch, in ``folder/epoch-000123``. Every rank calls it.

    Saved are the weights, the optimizer, the steps of dropout, torch's CPU random numbers of every
    rank, and the stale rows of an approximate schedule. A checkpoint appears whole or not at all,
    whenever a process or the disk gives up; those before it are not touched.

    Args:
        extra: anything else, the same on every rank: tensors, numbers, text, None, and dicts, lists
            and tuples of these.
        options: numbers, text and None by name, which have to be the same when it is loaded.
        keep: how many to keep, this one among them; later epochs, of a run given up, are removed.

    Raises:
        CheckpointError: it cannot be written, or holds something else; says what.
    """
    if epoch < 0 or keep < 1:
        raise ValueError(f"epoch must be at least 0 and keep at least 1, got {epoch} and {keep}")
    snapshot = take(epoch, model, optimizer, graph, extra, options)
    save_snapshot(Path(folder), snapshot, graph, keep)


def load(
    folder: str | PathLike[str], *, model: torch.nn.Module, optimizer: torch.optim.Optimizer,
    graph: Graph, options: dict[str, Any] | None = None,
) -> Loaded | None:  # fmt: skip
    """Load the newest checkpoint in a folder into model, optimizer, graph and torch's random
    numbers; None, and nothing changed, where there is none. Every rank calls it.

    A damaged one is named in a line on stderr, and the one before it is taken. On another number of
    ranks, every rank has the random numbers of rank 0, and the first epoch of `delayed` is exact.

    Raises:
        CheckpointError: it is of another graph, model, optimizer, of other options, or of a newer
            version, which are named; or all of them are damaged.
    """
    group = graph.group
    found: tuple[Path, dict[str, Any], bytes] | None = None
    answer: dict[str, Any] = {}
    if group.rank == 0:
        try:
            found = _newest(Path(folder))
            answer = {} if found is None else {**found[1], "path": str(found[0])}
        except CheckpointError as error:
            answer = {"error": str(error)}
    header = tell(group, answer)
    if "error" in header:
        raise CheckpointError(header["error"])
    if not header:
        return None
    tensors = read_tensors(_broadcast(group, found[2] if found else b""))
    _check(header, model, optimizer, graph, options)
    state = unpack(header["state"], tensors)
    _check_model(state["model"], model, header["path"])
    own = _of_rank(group, header, found)
    _set_dropout(model, header["dropout"], header["path"])
    try:
        of_rank = read_tensors(own)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(of_rank.pop("rng"))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{header['path']} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    _load_stale(header, of_rank, graph)
    return Loaded(header["epoch"], state["extra"], header["path"], header["rows"])


# What is saved ------------------------------------------------------------------------------------


def take(
    epoch: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, graph: Graph, extra: Any,
    options: dict[str, Any] | None, rows: list[dict[str, Any]] | None = None,
) -> Snapshot:  # fmt: skip
    """Copies of all but what ranks have for themselves. A collective at the first call for a graph,
    alone later."""
    tensors: dict[str, Tensor] = {}
    values = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}
    header = {
        "graph": identity(graph),
        "options": options or {},
        "layout": _layout(graph),
        "optimizer": type(optimizer).__name__,
        "dropout": dropout_state(model),
        "rows": rows or [],
        "state": pack({**values, "extra": extra}, "state", tensors),
    }
    return Snapshot(epoch, header, tensors)


def save_snapshot(folder: Path, snapshot: Snapshot | None, graph: Graph, keep: int) -> None:
    """Write it with what every rank has for itself. Every rank calls it; that of rank 0 counts."""
    group = graph.group
    stale = {STALE + name: rows.cpu() for name, rows in graph.stale.state_dict().items()}
    own = write_tensors({"rng": torch.get_rng_state(), **stale})
    if group.rank == 0:
        assert snapshot is not None
        write(folder, snapshot, _from_ranks(group, own), keep)
    else:
        _send(group, own, 0)


def save_alone(folder: Path, snapshot: Snapshot, rng: Tensor, keep: int) -> None:
    """Write it on rank 0 while the others are gone: without stale rows, and with the random numbers
    of rank 0 for all."""
    snapshot.header["layout"] = {**snapshot.header["layout"], "ranks": 1}
    write(folder, snapshot, [write_tensors({"rng": rng})], keep)


def _layout(graph: Graph) -> dict[str, Any]:
    """What stale rows fit."""
    return {
        "ranks": graph.group.size,
        "partition": graph.meta.fingerprint,
        "placement": str(getattr(graph, "placement", "")),
        "schedule": str(graph.schedule),
        "wire": graph.wire,
    }


def _load_stale(header: dict[str, Any], of_rank: dict[str, Tensor], graph: Graph) -> None:
    if graph.schedule.exact or graph.schedule.is_local or graph.group.size == 1:
        return
    if header["layout"] == _layout(graph):
        state = {name.removeprefix(STALE): rows for name, rows in of_rank.items()}
        graph.stale.load_state_dict(state)
    else:
        say(graph.group, f"{header['path']} has no stale rows for {graph.schedule} on "
             f"{graph.group.size} workers as they are now: the next epoch is exact")  # fmt: skip


# Refusals -----------------------------------------------------------------------------------------


def _check(
    header: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer, graph: Graph,
    options: dict[str, Any] | None,
) -> None:  # fmt: skip
    path = header["path"]
    there, here = header["graph"], identity(graph)
    if there != here:
        different = [name for name in here if there.get(name) != here[name]]
        counts = [f"{name} {there.get(name)} then, {here[name]} now" for name in different[:2]
                  if name.endswith("in all")]  # fmt: skip
        raise CheckpointError(
            f"{path} is of another graph: {', '.join(counts) or 'other ' + ', '.join(different)}. "
            "Give the graph that the run was started on, or start a run in another folder"
        )
    if differences := different_options(header["options"], options or {}):
        raise CheckpointError(f"{path} is of a run with other options: {differences}")
    if header["optimizer"] != type(optimizer).__name__:
        raise CheckpointError(
            f"{path} is of the optimizer {header['optimizer']}, not {type(optimizer).__name__}"
        )


def different_options(then: dict[str, Any], now: dict[str, Any]) -> str:
    """In words; empty where they are the same."""
    return ", ".join(
        f"{name} was {then.get(name)!r}, now {now.get(name)!r}"
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    )


def _check_model(then: dict[str, Any], model: torch.nn.Module, path: str) -> None:
    def forms(state: dict[str, Any]) -> dict[str, str]:
        return {
            name: f"{str(v.dtype).removeprefix('torch.')} {list(v.shape)}"
            for name, v in state.items()
            if isinstance(v, Tensor)
        }

    there, here = forms(then), forms(model.state_dict())
    different = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if different:
        said = [f"{name} was {there.get(name, 'absent')}, now {here.get(name, 'absent')}"
                for name in different[:3]]  # fmt: skip
        raise CheckpointError(f"{path} is of another model: {', '.join(said)}")


def _set_dropout(model: torch.nn.Module, state: dict[str, list[int]], path: str) -> None:
    try:
        set_dropout_state(model, state)
    except ValueError as error:
        raise CheckpointError(f"{path} is of another model: {error}") from error


# Between rank 0, which has the files, and the others ----------------------------------------------


def _check_header(header: dict[str, Any], data: bytes) -> None:
    """Raises DamagedError unless it is made as `take` makes it. data: of the file of tensors."""
    wrong = [name for name, kind in KINDS.items() if not isinstance(header.get(name), kind)]
    if wrong:
        raise DamagedError(f"it has no {wrong[0]}")
    ranks = header["layout"].get("ranks")
    if type(ranks) is not int or ranks != len(header["files"]) - 1:
        raise DamagedError(f"it is of {ranks} ranks, and has files of {len(header['files']) - 1}")
    try:
        for row in header["rows"]:
            Epoch.from_json(row)
        for seed, step in header["dropout"].values():
            if {type(seed), type(step)} != {int}:
                raise TypeError(f"a step of dropout is {step!r}")
        state = unpack(header["state"], read_tensors(data))
        if not isinstance(state["model"], dict) or {*state} != {"model", "optimizer", "extra"}:
            raise TypeError(f"its state is {[*state]}")
    except DamagedError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"its values make no sense: {error}") from error


def _newest(folder: Path) -> tuple[Path, dict[str, Any], bytes] | None:
    """The newest checkpoint that is whole, its header and tensors."""
    damaged = []
    for path in find(folder):
        try:
            header, data = read(path)
            _check_header(header, data)
            return path, header, data
        except DamagedError as error:
            damaged.append(f"{path} is damaged ({error})")
            print(f"fullgraph: {damaged[-1]}: going back to the one before", file=sys.stderr)
    if damaged:
        raise CheckpointError(
            f"{'; '.join(damaged)}; there is none before. Restore a file, or start anew in another "
            "folder"
        )
    return None


def say(group: Group, text: str) -> None:
    """A line on stderr, once."""
    if group.rank == 0:
        print(f"fullgraph: {text}", file=sys.stderr, flush=True)


def _of_rank(
    group: Group, header: dict[str, Any], found: tuple[Path, dict[str, Any], bytes] | None
) -> bytes:
    """The file of this rank; that of rank 0 where ranks were more or fewer."""
    same = header["layout"]["ranks"] == group.size
    if found is None:
        return _receive(group, 0) if same else _broadcast(group, b"")
    own = read_file(found[0], header, rank_file(0))
    if not same:
        return _broadcast(group, own)
    for rank in range(1, group.size):
        _send(group, read_file(found[0], header, rank_file(rank)), rank)
    return own


def _from_ranks(group: Group, own: bytes) -> Iterator[bytes]:
    yield own
    for rank in range(1, group.size):
        yield _receive(group, rank)


def _send(group: Group, data: bytes, to: int) -> None:
    what = f"sending a checkpoint to rank {to}"
    group.wait(group.isend(torch.tensor([len(data)]), to, what), what)
    for piece in as_tensor(data).split(MESSAGE):
        group.wait(group.isend(piece, to, what), what)


def _receive(group: Group, source: int) -> bytes:
    what = f"receiving a checkpoint from rank {source}"
    size = torch.zeros(1, dtype=torch.int64)
    group.wait(group.irecv(size, source, what), what)
    data = torch.empty(int(size), dtype=torch.uint8)
    for piece in data.split(MESSAGE):
        group.wait(group.irecv(piece, source, what), what)
    return data.numpy().tobytes()


def tell(group: Group, content: dict[str, Any]) -> dict[str, Any]:
    """The JSON of rank 0, on every rank."""
    return json.loads(_broadcast(group, json.dumps(content).encode()))


def _broadcast(group: Group, data: bytes) -> bytes:
    """The bytes of rank 0, on every rank."""
    if group.size == 1:
        return data
    size = int(group.broadcast(torch.tensor([len(data)]), "the size of a checkpoint"))
    values = as_tensor(data) if group.rank == 0 else torch.empty(size, dtype=torch.uint8)
    for piece in values.split(MESSAGE):
        group.broadcast(piece, "a checkpoint")
    return values.numpy().tobytes()
