"""The run folder: what a training run leaves behind, valid at every moment.

    config.json        what was asked for, and on which graph
    metrics.jsonl      a line an epoch
    result.json        what came out; "status" is finished, interrupted or failed
    model.safetensors  the weights that were tested, by the model's own parameter names
    curves.png         loss and metrics against epochs
    checkpoints        folders from which training can go on (see `training.snapshot`)
    tensorboard        the same curves, where they were asked for (see `training.board`)
    profile            where the seconds go, where that was asked for (see `training.profile`)

Every file but metrics.jsonl and those for TensorBoard is written beside its place and renamed into
it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"
WEIGHTS, CURVES, CHECKPOINTS = "model.safetensors", "curves.png", "checkpoints"
TENSORBOARD, EVENTS = "tensorboard", "events.out.tfevents.*"
PROFILE = "profile"
FILES = (CONFIG, METRICS, RESULT, WEIGHTS, CURVES)
FORMAT, VERSION = "fullgraph-run", 1


class RunFolderError(ValueError):
    """A run folder cannot be used or written; says which, why, and what to do."""


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; renamed to `path` when the block ends without an error.

    Keeps the end of the name, by which numpy and matplotlib choose a format.
    """
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


class RunFolder:
    """Writes and reads a run folder. Nothing is opened until it is asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def create(self, config: dict[str, Any], overwrite: bool = False) -> None:
        """Make the folder and write its configuration.

        Raises RunFolderError where the path is taken: by anything, or with `overwrite`, by
        anything but a run folder.
        """
        from fullgraph.training import profile
        from fullgraph.training.snapshot import remove_all

        self.check_free(overwrite)
        self.path.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        for path in self.tensorboard.glob(EVENTS):
            path.unlink()
        remove_all(self.checkpoints)
        profile.remove_all(self.profile)
        self._write_json(CONFIG, {"format": FORMAT, "version": VERSION, **config})

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def profile(self) -> Path:
        return self.path / PROFILE

    @property
    def tensorboard(self) -> Path:
        return self.path / TENSORBOARD

    def begin(self, config: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        """Training begins, or goes on: with this configuration, after these lines of metrics."""
        (self.path / RESULT).unlink(missing_ok=True)
        self._write_json(CONFIG, {"format": FORMAT, "version": VERSION, **config})
        with replacing(self.path / METRICS) as file:
            file.write_text("".join(map(_line, lines)), encoding="utf-8")

    def check_free(self, overwrite: bool = False) -> None:
        """The check of `create`, alone."""
        from fullgraph.training import profile
        from fullgraph.training.snapshot import is_ours

        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return
        if not overwrite:
            raise RunFolderError(f"{self.path} exists; choose another --out, or add --overwrite")
        inside = {p.name for p in self.path.iterdir()} if self.path.is_dir() else {""}
        ours = {CHECKPOINTS} if is_ours(self.checkpoints) else set()
        ours |= {PROFILE} if profile.is_ours(self.profile) else set()
        if all(path.match(EVENTS) for path in self.tensorboard.glob("*")):
            ours.add(TENSORBOARD)
        strange = sorted(inside - set(FILES) - ours)
        if CONFIG not in inside or strange:
            raise RunFolderError(
                f"{self.path} is not only a run folder"
                f"{' (' + ', '.join(strange[:3]) + ')' if strange else ''}, so it is not "
                "overwritten; choose another --out"
            )

    # Writing -----------------------------------------------------------------------------------

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append to metrics.jsonl: the whole line in one write, so that none is ever cut off."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(_line(line))

    def write_weights(self, weights: dict[str, Any]) -> None:
        """weights: tensors by parameter name."""
        from safetensors.torch import save_file

        tensors = {name: value.detach().contiguous() for name, value in weights.items()}
        with replacing(self.path / WEIGHTS) as file:
            save_file(tensors, file)
            file.chmod((self.path / CONFIG).stat().st_mode & 0o666)

    def write_result(self, result: dict[str, Any]) -> None:
        self._write_json(RESULT, result)

    def end_early(self, status: str, error: str = "") -> None:
        """See that there is a result that says how the run ended, with what is known."""
        known: dict[str, Any] = {"epochs": len(self.metrics())}
        if self.has_result():
            known = self.result()
        known["status"] = status
        if error:
            known["error"] = error
        self.write_result(known)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        with replacing(self.path / name) as file:
            file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")

    # Reading -----------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """Raises RunFolderError for a folder that no training run made, or a newer version's."""
        content = self._read_json(CONFIG)
        if content.get("format") != FORMAT:
            raise RunFolderError(f"{self.path} is not a run folder of fullgraph train")
        if not isinstance(content.get("version"), int) or content["version"] > VERSION:
            raise RunFolderError(
                f"{self.path} was written by a newer fullgraph (version {content.get('version')}, "
                f"this one reads up to {VERSION}): pip install --upgrade fullgraph"
            )
        return content

    def has_result(self) -> bool:
        return (self.path / RESULT).is_file()

    def result(self) -> dict[str, Any]:
        return self._read_json(RESULT)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, none where there is no such file."""
        path = self.path / METRICS
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def weights(self) -> dict[str, Any]:
        """Tensors by parameter name; from safetensors only, so nothing is unpickled.

        Raises RunFolderError where there are none, or they are damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.path / WEIGHTS
        if not path.is_file():
            raise RunFolderError(f"{path} is missing: the run ended before its first evaluation")
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise RunFolderError(f"{path} is damaged: {error}") from error

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RunFolderError(f"{self.path} is not a run folder: it has no {name}") from error
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise RunFolderError(f"{path} is damaged: it is not a JSON object")
        return content
