"""Files that are opened in a folder which anybody may have made: plain ones only, and JSON that is
not nested without end."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

DEPTH = 300  # of JSON; three times as much, and Python's own functions run out of stack


def plain_file(path: Path) -> Path:
    """The same path. Raises OSError where there is nothing, or anything but a plain file: a link
    may lead out of the folder, and whoever opens a pipe waits for its other end."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise OSError("it is a link; put the file itself there")
    if not stat.S_ISREG(mode):
        raise OSError("it is not a plain file")
    return path


def parse_json(text: str | bytes) -> Any:
    """Raises ValueError for what is no JSON, or is nested more than DEPTH deep."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"nested more than {DEPTH} deep") from error
    level = [content]
    for _ in range(DEPTH):
        inner = (v.values() if isinstance(v, dict) else v for v in level)
        level = [item for v in inner if not isinstance(v, (str, int, float)) and v for item in v]
        if not level:
            return content
    raise ValueError(f"nested more than {DEPTH} deep")
