"""Files and folders that appear all at once: written beside their final place, brought to the disk,
then renamed into it."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fullgraph.graph.disk import to_disk, writing

AT_FDCWD, RENAME_EXCHANGE = -100, 2


@contextmanager
def replacing(path: Path, needed: int | None = None) -> Iterator[Path]:
    """A name beside `path` to write to; renamed to `path` when the block ends without an error.

    Keeps the end of the name, by which numpy chooses a format. Raises WriteError where the disk is
    full, read-only, …; `path` is then as it was. needed: bytes, where they are known.
    """
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    with writing(path, needed):
        try:
            yield beside
            to_disk(beside)
            os.replace(beside, path)
            to_disk(path.parent)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A new empty folder beside `target`, which takes its place when the block ends.

    When the block raises, the folder is removed and `target` is as it was. When the process dies,
    `target` is as it was, and a folder named ``.NAME.xxxxxxxx.tmp`` is left beside it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    folder.mkdir()
    try:
        yield folder
        to_disk(folder)
        if target.exists():
            _swap(folder, target)
        else:
            folder.rename(target)
        to_disk(target.parent)
    finally:
        # After a swap this is what was at `target` before.
        shutil.rmtree(folder, ignore_errors=True)


def _swap(one: Path, other: Path) -> None:
    """Exchange two folders: in one step where the system can, else by renaming three times."""
    if _exchange(one, other):
        return
    aside = one.with_suffix(".old")
    other.rename(aside)
    try:
        one.rename(other)
    except BaseException:
        aside.rename(other)
        raise
    aside.rename(one)


def _exchange(one: Path, other: Path) -> bool:
    """Whether Linux's renameat2 exchanged the two; False when it is not there or cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    names = (os.fsencode(path.absolute()) for path in (one, other))
    return rename(AT_FDCWD, next(names), AT_FDCWD, next(names), RENAME_EXCHANGE) == 0
