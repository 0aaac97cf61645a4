"""Folders that appear all at once: written beside their final place, then renamed into it."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2


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
        _sync(folder)
        if target.exists():
            _swap(folder, target)
        else:
            folder.rename(target)
        _sync(target.parent)
    finally:
        # After a swap this is what was at `target` before.
        shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Have the names in a folder on the disk before what comes next."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
