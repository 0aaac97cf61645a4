"""A checkpoint on disk: a folder of JSON and safetensors, whole or not there at all.

    epoch-000123/checkpoint.json        what it is of, numbers, and a checksum of every file
                 state.safetensors      tensors that all ranks have alike
                 rank-00000.safetensors tensors that a rank has for itself

A folder is written beside its place, brought to the disk, and renamed into it. No pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fullgraph.graph.disk import WriteError, why
from fullgraph.graph.plain_file import parse_json, plain_file
from fullgraph.graph.replace import appearing

FORMAT, VERSION = "fullgraph-checkpoint", 1
HEADER, STATE = "checkpoint.json", "state.safetensors"
NAME = re.compile(r"epoch-(\d{6,9})")
LEFT_OVER = re.compile(r"\.epoch-\d{6,9}\..*\.(tmp|old)")


class CheckpointError(ValueError):
    """A checkpoint cannot be written or used; says which, why, and what to do."""


class CheckpointWriteError(CheckpointError, WriteError):
    """The disk is full, read-only, or the like."""


class DamagedError(CheckpointError):
    """A checkpoint is not as it was written."""


@dataclass(frozen=True)
class Snapshot:
    """What all ranks have alike, at the end of an epoch. ``header``: plain JSON; ``tensors``:
    copies, on the CPU."""

    epoch: int
    header: dict[str, Any]
    tensors: dict[str, Tensor]


# Values and tensors -------------------------------------------------------------------------------


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value of dicts, lists, tuples, tensors, numbers, text and None as JSON; copies of its
    tensors are added to `tensors`, under names that begin with `name`.

    Raises CheckpointError naming anything else.
    """
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return {"dict": [[key, pack(v, f"{name}.{key}", tensors)] for key, v in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [pack(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(
        f"{name} is a {type(value).__name__}; a checkpoint holds tensors, numbers, text, None, and "
        "dicts, lists and tuples of these"
    )


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value that `pack` was given. Raises DamagedError for anything that it has not made."""
    try:
        return _unpacked(value, tensors)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"its values make no sense: {error}") from error


def _unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, (dict, list)):
        return value
    ((kind, inside),) = value.items()  # type: ignore[union-attr]  # of a list, which fails
    if kind == "tensor":
        return tensors[inside]
    if kind == "dict":
        return {key: _unpacked(v, tensors) for key, v in inside}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](_unpacked(v, tensors) for v in inside)
    if kind == "float":
        return float(inside)
    raise ValueError(repr(kind))


def read_tensors(data: bytes) -> dict[str, Tensor]:
    """Raises DamagedError."""
    try:
        return from_bytes(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedError(f"its tensors cannot be read: {error}") from error


def write_tensors(tensors: dict[str, Tensor]) -> bytes:
    return to_bytes({name: values.contiguous() for name, values in tensors.items()})


# Writing ------------------------------------------------------------------------------------------


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def write(folder: Path, snapshot: Snapshot, of_ranks: Iterable[bytes], keep: int) -> None:
    """Write a checkpoint, then remove all but the last `keep`, and those of later epochs, which
    belong to a run that was given up.

    of_ranks: what rank_file(0), rank_file(1), … hold; asked for one after the other.

    Raises CheckpointWriteError when the disk is full, or the like; what was there before is as it
    was.
    """
    target = folder / f"epoch-{snapshot.epoch:06d}"
    needed = sum(values.nbytes for values in snapshot.tensors.values())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_left_overs(folder)
        with appearing(target) as beside:
            files = {STATE: _write(beside / STATE, write_tensors(snapshot.tensors))}
            for rank, data in enumerate(of_ranks):
                needed += len(data)
                files[rank_file(rank)] = _write(beside / rank_file(rank), data)
            content = {"format": FORMAT, "version": VERSION, "epoch": snapshot.epoch}
            content |= {**snapshot.header, "files": files}
            content["checksum"] = _checksum(content)
            _write(beside / HEADER, json.dumps(content, allow_nan=False).encode())
    except OSError as error:
        before = [path.name for path in find(folder)]
        intact = f"{before[0]} is as it was" if before else "there was none before"
        raise CheckpointWriteError(
            f"the checkpoint {target} cannot be written ({why(error, folder, needed)}); {intact}. "
            "Make room or choose another folder, then resume"
        ) from error
    for old in find(folder)[keep:] if keep else []:
        _remove(old)
    for later in find(folder):
        if _epoch_of(later) > snapshot.epoch:
            _remove(later)


def _write(path: Path, data: bytes) -> dict[str, Any]:
    """Write to the disk; size and sha256, for the header."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _checksum(content: dict[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _remove(checkpoint: Path) -> None:
    """Under another name first, so that no half of it is ever taken for a checkpoint."""
    aside = checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(4)}.tmp")
    with contextlib.suppress(OSError):
        checkpoint.rename(aside)
        shutil.rmtree(aside)


def _remove_left_overs(folder: Path) -> None:
    """What a process that died was writing."""
    for path in folder.iterdir():
        if LEFT_OVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def remove_all(folder: Path) -> None:
    """Every checkpoint, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    for path in find(folder):
        _remove(path)
    _remove_left_overs(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()


def is_ours(folder: Path) -> bool:
    """Whether a folder holds checkpoints and nothing else."""
    return folder.is_dir() and all(
        NAME.fullmatch(path.name) or LEFT_OVER.fullmatch(path.name) for path in folder.iterdir()
    )


# Reading ------------------------------------------------------------------------------------------


def find(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first; damaged ones, too."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if NAME.fullmatch(p.name) and p.is_dir()]
    return sorted(found, key=_epoch_of, reverse=True)


def _epoch_of(path: Path) -> int:
    return int(path.name.removeprefix("epoch-"))


def read(checkpoint: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes of STATE, once every file's checksum was compared.

    Raises DamagedError, or CheckpointError for one of a newer version.
    """
    content = _read_header(checkpoint)
    files = content["files"]
    for name in files:
        if name != STATE:
            read_file(checkpoint, content, name)
    return content, read_file(checkpoint, content, STATE)


def _read_header(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / HEADER
    try:
        if checkpoint.is_symlink():
            raise OSError("its folder is a link; put the folder itself there")
        content = parse_json(plain_file(path).read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedError(f"{path} is not of a checkpoint")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise DamagedError(f"{path}: version is {version!r}, not a version number")
    if version > VERSION:
        raise CheckpointError(
            f"{checkpoint} was written by a newer fullgraph (version {version}, this one reads up "
            f"to {VERSION}): pip install --upgrade fullgraph"
        )
    if content.get("checksum") != _checksum(content):
        raise DamagedError(f"{path} was changed: its checksum does not fit")
    files, epoch = content.get("files"), content.get("epoch")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise DamagedError(f"{path} has no sizes and checksums of its files")
    ranks = {rank_file(rank) for rank in range(len(files) - 1)}
    if set(files) != {STATE, *ranks} or type(epoch) is not int or epoch != _epoch_of(checkpoint):
        raise DamagedError(f"{path} belongs to another checkpoint")
    return content


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() == {"bytes", "sha256"}


def read_file(checkpoint: Path, header: dict[str, Any], name: str) -> bytes:
    """Raises DamagedError unless the file is as it was written."""
    path, expected = checkpoint / name, header["files"][name]
    try:
        size = plain_file(path).stat().st_size
        data = path.read_bytes() if size == expected["bytes"] else b""
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if size != expected["bytes"]:
        raise DamagedError(f"{path} has {size} bytes instead of {expected['bytes']}")
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise DamagedError(f"{path} was changed: its checksum does not fit")
    return data


def as_tensor(data: bytes) -> Tensor:
    """uint8, to send."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte()
