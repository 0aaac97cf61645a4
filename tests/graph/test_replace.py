from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fullgraph.graph import replace
from fullgraph.graph.disk import WriteError
from fullgraph.graph.replace import appearing, replacing
from tests.limits import file_size_limit


@pytest.fixture(params=["in one step", "by renaming"])
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    if request.param == "by renaming":
        monkeypatch.setattr(replace, "_exchange", lambda one, other: False)
    return tmp_path / "deep" / "target"


def write(target: Path, text: str) -> None:
    with appearing(target) as folder:
        (folder / "file").write_text(text)
        assert folder.parent == target.parent, "renaming needs the same disk"


def write_half(target: Path) -> None:
    with appearing(target) as folder:
        (folder / "file").write_text("half")
        raise KeyboardInterrupt


def test_a_folder_appears_when_it_is_complete(target: Path) -> None:
    with appearing(target) as folder:
        (folder / "file").write_text("new")
        assert not target.exists()
    assert (target / "file").read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_a_folder_is_replaced_as_a_whole(target: Path) -> None:
    write(target, "old")
    (target / "other").write_text("only in the old one")
    write(target, "new")
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("file", "new")]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("before", [True, False])
def test_a_failure_leaves_things_as_they_were(target: Path, before: bool) -> None:
    if before:
        write(target, "old")
    with pytest.raises(KeyboardInterrupt):
        write_half(target)
    assert list(target.parent.iterdir()) == ([target] if before else [])
    assert not before or (target / "file").read_text() == "old"


def test_a_failing_rename_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    write(target, "old")
    rename = Path.rename

    def fail(self: Path, other: Path) -> Path:
        if self.suffix == ".tmp":
            raise OSError("disk")
        return rename(self, other)

    monkeypatch.setattr(replace, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="disk"):
        write(target, "new")
    assert (target / "file").read_text() == "old"


def test_the_folder_has_the_usual_permissions(tmp_path: Path) -> None:
    write(tmp_path / "target", "x")
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "target").stat().st_mode == (tmp_path / "usual").stat().st_mode


def replace_file(file: Path, text: str, error: Exception | None = None) -> None:
    with replacing(file) as beside:
        assert beside.suffix == file.suffix
        beside.write_text(text)
        if error is not None:
            raise error


@pytest.mark.parametrize("size", [0, 3])
def test_a_file_that_cannot_be_finished_leaves_the_former(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file.npz"
    replace_file(file, "before")
    message = r"^cannot write .*/file\.npz: File too large$"
    with pytest.raises(WriteError, match=message), file_size_limit(size):
        replace_file(file, "after")
    with pytest.raises(ZeroDivisionError):
        replace_file(file, "half", ZeroDivisionError())
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, str]] = []

    def noted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noting(first: int | Path, *rest: Path) -> None:
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            steps.append((name, path))
            call(first, *rest)

        return noting

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    with replacing(tmp_path / "file") as beside:
        beside.write_text("x")
    assert steps == [("fsync", str(beside)), ("replace", str(beside)), ("fsync", str(tmp_path))]
