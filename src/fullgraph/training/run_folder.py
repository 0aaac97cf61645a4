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

import contextlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullgraph.graph.disk import WriteError, writing
from fullgraph.graph.plain_file import parse_json, plain_file
from fullgraph.graph.replace import replacing

if TYPE_CHECKING:
    from fullgraph.training.config import RunConfig

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"
WEIGHTS, CURVES, CHECKPOINTS = "model.safetensors", "curves.png", "checkpoints"
TENSORBOARD, EVENTS = "tensorboard", "events.out.tfevents.*"
PROFILE = "profile"
FILES = (CONFIG, METRICS, RESULT, WEIGHTS, CURVES)
LEFT_OVER = re.compile(rf"\.\d+\.({'|'.join(map(re.escape, FILES))})")  # of a process that died
FORMAT, VERSION = "fullgraph-run", 1


class RunFolderError(ValueError):
    """A run folder cannot be used or written; says which, why, and what to do."""


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


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
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for path in self.path.iterdir():
                if path.name in FILES or LEFT_OVER.fullmatch(path.name):
                    path.unlink()
            for path in self.tensorboard.glob(EVENTS):
                path.unlink()
        remove_all(self.checkpoints)
        profile.remove_all(self.profile)
        self._write_json(CONFIG, {"format": FORMAT, "version": VERSION, **config})

    @property
    def checkpoints(self) -> Path:
        """Raises RunFolderError where it is a link, which may lead elsewhere."""
        path = self.path / CHECKPOINTS
        if path.is_symlink():
            raise RunFolderError(f"{path} is a link; put the folder itself there")
        return path

    @property
    def profile(self) -> Path:
        return self.path / PROFILE

    @property
    def tensorboard(self) -> Path:
        return self.path / TENSORBOARD

    def begin(self, config: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        """Training begins, or goes on: with this configuration, after these lines of metrics."""
        with writing(self.path / RESULT):
            (self.path / RESULT).unlink(missing_ok=True)
        self._remove_left_overs()
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
        left = {name for name in inside if LEFT_OVER.fullmatch(name)}
        strange = sorted(inside - set(FILES) - ours - left)
        if CONFIG not in inside or strange:
            raise RunFolderError(
                f"{self.path} is not only a run folder"
                f"{' (' + ', '.join(strange[:3]) + ')' if strange else ''}, so it is not "
                "overwritten; choose another --out"
            )

    # Writing -----------------------------------------------------------------------------------

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append to metrics.jsonl: the whole line, or nothing of it where the disk is full."""
        path, rest = self.path / METRICS, memoryview(_line(line).encode())
        with writing(path, len(rest)), path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(before)
                raise

    def write_weights(self, weights: dict[str, Any]) -> None:
        """weights: tensors by parameter name."""
        from safetensors.torch import save_file

        tensors = {name: value.detach().contiguous() for name, value in weights.items()}
        needed = sum(value.nbytes for value in tensors.values())
        with replacing(self.path / WEIGHTS, needed) as file:
            save_file(tensors, file)
            file.chmod((self.path / CONFIG).stat().st_mode & 0o666)

    def write_result(self, result: dict[str, Any]) -> None:
        self._write_json(RESULT, result)

    def end_early(self, status: str, error: str = "") -> None:
        """See that there is a result that says how the run ended, with what is known; none where
        the disk is full, which may be why it ended."""
        self._remove_left_overs()
        known: dict[str, Any] = {"epochs": len(self.metrics())}
        if self.has_result():
            known = self.result()
        known["status"] = status
        if error:
            known["error"] = error
        with contextlib.suppress(WriteError):
            self.write_result(known)

    def _remove_left_overs(self) -> None:
        for path in self.path.iterdir():
            if LEFT_OVER.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        with replacing(self.path / name) as file:
            file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")

    # Reading -----------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """Raises RunFolderError for a folder that no training run made, or a newer version's."""
        content = self._read_json(CONFIG)
        if content.get("format") != FORMAT:
            raise RunFolderError(f"{self.path} is not a run folder of fullgraph train")
        version = content.get("version")
        if type(version) is not int or version < 1:
            raise RunFolderError(
                f"{self.path / CONFIG}: version is {version!r}, not a version number"
            )
        if version > VERSION:
            raise RunFolderError(
                f"{self.path} was written by a newer fullgraph (version {version}, this one reads "
                f"up to {VERSION}): pip install --upgrade fullgraph"
            )
        return content

    def run_config(self) -> RunConfig:
        """What was asked for. Raises RunFolderError where config.json does not say."""
        from fullgraph.training.config import RunConfig

        content = self.config()
        try:
            return RunConfig.from_json(content)
        except ValueError as error:
            raise RunFolderError(f"{self.path / CONFIG} is {error}") from error

    def sizes(self) -> tuple[int, int]:
        """Features and classes of the run's model. Raises RunFolderError where config.json does not
        say, as before training begins."""
        data = self.config().get("data")
        given = data if isinstance(data, dict) else {}
        found = given.get("num_features"), given.get("num_classes")
        if any(type(number) is not int or number < 1 for number in found):
            raise RunFolderError(
                f"{self.path / CONFIG} does not say how many features and classes the model has"
            )
        return found  # type: ignore[return-value]

    def has_result(self) -> bool:
        return (self.path / RESULT).is_file()

    def result(self) -> dict[str, Any]:
        return self._read_json(RESULT)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, none where there is no such file. Raises RunFolderError for
        one that is no JSON object."""
        path = self.path / METRICS
        if not path.exists() and not path.is_symlink():
            return []
        return [_parse(path, line) for line in _text(path).splitlines()]

    def weights(self) -> dict[str, Any]:
        """Tensors by parameter name; from safetensors only, so nothing is unpickled.

        Raises RunFolderError where there are none, or they are damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.path / WEIGHTS
        if not path.is_file():
            raise RunFolderError(f"{path} is missing: the run ended before it wrote its weights")
        try:
            return load_file(plain_file(path))
        except (SafetensorError, OSError, RuntimeError, KeyError) as error:
            raise RunFolderError(f"{path} is damaged: {error}") from error

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            text = _text(path)
        except FileNotFoundError as error:
            raise RunFolderError(f"{self.path} is not a run folder: it has no {name}") from error
        return _parse(path, text)


def _text(path: Path) -> str:
    try:
        return plain_file(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} is damaged: it is not a JSON object")
    return content
