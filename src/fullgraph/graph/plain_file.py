"""Files that are opened in a folder which anybody may have made: plain ones only."""

from __future__ import annotations

import stat
from pathlib import Path


def plain_file(path: Path) -> Path:
    """The same path. Raises OSError where there is nothing, or anything but a plain file: a link
    may lead out of the folder, and whoever opens a pipe waits for its other end."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise OSError("it is a link; put the file itself there")
    if not stat.S_ISREG(mode):
        raise OSError("it is not a plain file")
    return path
