"""Disks that are full, read-only or forbidden: what cannot be written, why, and how much room there
was, in one line."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
RUST_ERRNO = re.compile(r"\b(?:os error|code:) (\d+)")


class WriteError(OSError):
    """A file or folder cannot be written; says which, why, and how much was needed and free."""


@contextmanager
def writing(path: Path, needed: int | None = None) -> Iterator[None]:
    """Raise what goes wrong while the block writes as a WriteError that names `path`.

    needed: bytes, where they are known.
    """
    try:
        yield
    except WriteError:
        raise
    except (OSError, SafetensorError) as error:
        raise WriteError(f"cannot write {path}: {why(error, path, needed)}") from error


def why(error: Exception, path: Path, needed: int | None = None) -> str:
    """The reason, without a path; with room needed and free where room is the reason."""
    number = _number(error)
    if number is None:
        return str(error)
    reason = os.strerror(number)
    if number not in NO_ROOM:
        return reason
    wanted = "" if needed is None else f"{size(needed)} needed, "
    return f"{reason} ({wanted}{size(shutil.disk_usage(_nearest(path)).free)} free)"


def check_writable(path: Path) -> None:
    """Raises WriteError unless something can be put at `path`, or into it where it is a folder:
    before hours of work for it, not after."""
    with writing(path):
        probe = _nearest(path) / f".{secrets.token_hex(4)}.tmp"
        probe.mkdir()
        probe.rmdir()


def to_disk(path: Path) -> None:
    """Have a file's bytes, or the names in a folder, on the disk before what comes next."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def size(count: int) -> str:
    """Bytes in words."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} bytes"


def _number(error: Exception) -> int | None:
    """errno; safetensors has it in its text."""
    if isinstance(error, OSError):
        return error.errno
    found = RUST_ERRNO.search(str(error))
    return int(found.group(1)) if found else None


def _nearest(path: Path) -> Path:
    """The path where it is a folder, or the nearest folder above it."""
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.is_dir())
