"""Checkpoint folders: whole or not there at all, whatever fails, and nothing damaged is taken."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fullgraph.training import snapshot
from fullgraph.training.snapshot import (
    CheckpointError,
    CheckpointWriteError,
    DamagedError,
    Snapshot,
    find,
    pack,
    read,
    read_tensors,
    unpack,
    write,
    write_tensors,
)
from tests.limits import file_size_limit

VALUES = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "empty": torch.empty(0, 3)},
    3: [1, 2.5, None, True, "text", (math.inf, torch.tensor(7))],
    "none": {},
}


def _write(folder: Path, epoch: int, keep: int = 2, value: float = 0.0) -> None:
    tensors = {"a": torch.full((1000,), value)}
    write(folder, Snapshot(epoch, {"said": value}, tensors), [write_tensors(tensors)] * 2, keep)


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_values_survive_as_json_and_tensors() -> None:
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack(VALUES, "v", tensors), allow_nan=False))
    back = unpack(packed, read_tensors(write_tensors(tensors)))
    assert list(back) == list(VALUES)
    assert back["weights"].keys() == VALUES["weights"].keys()  # type: ignore[attr-defined]
    assert torch.equal(back["weights"]["a"], VALUES["weights"]["a"])  # type: ignore[index,call-overload]
    assert back["weights"]["empty"].shape == (0, 3)
    assert back[3][:5] == VALUES[3][:5]
    assert back[3][5] == (math.inf, torch.tensor(7))


def test_tensors_are_copies() -> None:
    tensors: dict[str, torch.Tensor] = {}
    values = torch.zeros(3)
    pack([values, values], "v", tensors)
    values += 1
    assert [t.sum().item() for t in tensors.values()] == [0, 0]
    read_tensors(write_tensors(tensors))  # which refuses tensors that share memory


def test_what_is_no_plain_value_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"v\.a\.1 is a set; a checkpoint holds"):
        pack({"a": [1, {2}]}, "v", {})


@pytest.mark.parametrize(
    "packed",
    [
        {"tensor": "no"},
        {"dict": 3},
        {"list": None},
        {"float": "x"},
        {"code": 1},
        {},
        [],
        {"dict": [[[], 1]]},
        {"tensor": []},
        {"a": 1, "b": 2},
    ],
)
def test_nonsense_is_not_unpacked(packed: Any) -> None:
    with pytest.raises(DamagedError, match="its values make no sense"):
        unpack(packed, {})


def test_the_last_ones_are_kept_and_a_future_given_up_goes(tmp_path: Path) -> None:
    for epoch in (10, 20, 30, 1_000_000):
        _write(tmp_path, epoch)
    assert [p.name for p in find(tmp_path)] == ["epoch-1000000", "epoch-000030"]
    _write(tmp_path, 25, keep=3)
    _write(tmp_path, 26, keep=3)
    assert [p.name for p in find(tmp_path)] == ["epoch-000026", "epoch-000025"]


def test_what_a_process_that_died_was_writing_is_ignored_and_removed(tmp_path: Path) -> None:
    _write(tmp_path, 10)
    left = tmp_path / ".epoch-000020.0123abcd.tmp"
    shutil.copytree(tmp_path / "epoch-000010", left)
    (left / "checkpoint.json").write_bytes(b"{")
    assert [p.name for p in find(tmp_path)] == ["epoch-000010"]
    _write(tmp_path, 30)
    assert not left.exists()


@pytest.mark.parametrize("epoch", [10, 20])  # the same again, and the next
@pytest.mark.parametrize("size", [0, 1, 300, 4050])
def test_a_file_that_cannot_be_finished_leaves_the_former_checkpoint(
    tmp_path: Path, size: int, epoch: int
) -> None:
    _write(tmp_path, 10)
    before = _content(tmp_path)
    with (
        pytest.raises(
            CheckpointWriteError,
            match=r"cannot be written \(File too large\); epoch-000010 is as it was",
        ),
        file_size_limit(size),
    ):
        _write(tmp_path, epoch, value=1.0)
    assert _content(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["epoch-000010"]


class _Killed(BaseException):
    """Stands for the end of the process: nothing handles it."""


def _count_steps(monkeypatch: pytest.MonkeyPatch, die_at: int, error: BaseException) -> list[str]:
    """Have the die_at-th call that changes the disk raise instead; -1: none."""
    seen: list[str] = []

    def patched(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            if len(seen) - 1 == die_at:
                raise error
            return plain(*args, **kwargs)

        return call

    for owner, name in (
        (Path, "open"), (Path, "mkdir"), (Path, "rename"), (snapshot.os, "fsync"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, patched(name, getattr(owner, name)))
    # A process that is gone does not clear up either.
    if isinstance(error, _Killed):
        monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
    return seen


@pytest.mark.parametrize("error", [_Killed(), OSError(28, "No space left on device")])
def test_wherever_writing_ends_a_whole_checkpoint_is_the_newest(
    tmp_path: Path, error: BaseException
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        steps = _count_steps(patch, -1, error)
        _write(tmp_path / "all", 20)
    assert len(steps) > 8
    for stage in range(len(steps)):
        folder = tmp_path / f"{stage}"
        _write(folder, 10)
        with pytest.MonkeyPatch.context() as patch:
            _count_steps(patch, stage, error)
            with suppress(_Killed, CheckpointError):
                _write(folder, 20, keep=1, value=1.0)
        header, data = read(find(folder)[0])
        expected = 0.0 if header["epoch"] == 10 else 1.0
        assert header["said"] == expected
        assert read_tensors(data)["a"].unique().tolist() == [expected]
        _write(folder, 30, keep=1)
        assert [p.name for p in folder.iterdir()] == ["epoch-000030"]


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors", "rank-00000.safetensors"])
def test_every_changed_byte_is_noticed(tmp_path: Path, name: str) -> None:
    _write(tmp_path, 10)
    path = tmp_path / "epoch-000010" / name
    data = path.read_bytes()
    places = range(0, len(data), max(1, len(data) // 50))
    changes = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in places]
    changes += [data[:i] for i in places] + [data + b" "]
    for changed in changes:
        path.write_bytes(changed)
        try:
            read(path.parent)
        except DamagedError:
            continue
        except CheckpointError as error:
            assert "newer" in str(error)  # noqa: PT017
            continue
        assert json.loads(changed) == json.loads(data), "only what JSON does not mind"


def test_missing_files_and_links_are_damage(tmp_path: Path) -> None:
    _write(tmp_path, 10)
    folder = tmp_path / "epoch-000010"
    (folder / "state.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="cannot be read"):
        read(folder)
    (folder / "state.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="it is a link"):
        read(folder)


def _rewrite(folder: Path, **changes: Any) -> None:
    """With a checksum that fits."""
    path = folder / "checkpoint.json"
    content = {**json.loads(path.read_text()), **changes}
    content["checksum"] = snapshot._checksum(content)
    path.write_text(json.dumps(content))


def test_files_outside_the_folder_are_never_asked_for(tmp_path: Path) -> None:
    _write(tmp_path, 10)
    folder = tmp_path / "epoch-000010"
    files = json.loads((folder / "checkpoint.json").read_text())["files"]
    entry = files.pop("rank-00001.safetensors")
    _rewrite(folder, files={**files, "../../secret": entry})
    with pytest.raises(DamagedError, match="belongs to another checkpoint"):
        read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "1"}, "version is '1', not a version number"),
        ({"version": True}, "version is True, not a version number"),
        ({"version": 0}, "version is 0, not a version number"),
        ({"files": None}, "has no sizes and checksums of its files"),
        ({"files": {"state.safetensors": 3}}, "has no sizes and checksums of its files"),
        ({"epoch": 10.0}, "belongs to another checkpoint"),
        ({"epoch": None}, "belongs to another checkpoint"),
    ],
)
def test_a_header_that_makes_no_sense_is_damage(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    _write(tmp_path, 10)
    _rewrite(tmp_path / "epoch-000010", **changes)
    with pytest.raises(DamagedError, match=message):
        read(tmp_path / "epoch-000010")


def test_a_folder_that_is_a_link_and_a_pipe_are_damage(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere", 10)
    (tmp_path / "epoch-000010").symlink_to(tmp_path / "elsewhere" / "epoch-000010")
    with pytest.raises(DamagedError, match="its folder is a link"):
        read(tmp_path / "epoch-000010")
    header = tmp_path / "elsewhere" / "epoch-000010" / "checkpoint.json"
    header.unlink()
    os.mkfifo(header)
    with pytest.raises(DamagedError, match="it is not a plain file"):
        read(header.parent)


def test_a_newer_version_is_refused_and_an_epoch_elsewhere_too(tmp_path: Path) -> None:
    _write(tmp_path, 10)
    folder = tmp_path / "epoch-000010"
    renamed = folder.rename(tmp_path / "epoch-000011")
    with pytest.raises(DamagedError, match="belongs to another checkpoint"):
        read(renamed)
    folder = renamed.rename(folder)
    _rewrite(folder, version=2)
    with pytest.raises(CheckpointError, match=r"newer fullgraph \(version 2, .* up to 1\): pip"):
        read(folder)
