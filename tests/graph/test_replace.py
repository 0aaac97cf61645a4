from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fullgraph.graph import replace
from fullgraph.graph.replace import appearing


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
