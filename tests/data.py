"""Where the real graphs of the tests are."""

from __future__ import annotations

import os
from pathlib import Path


def shared_data(name: str) -> Path:
    """The `.npz` of a real graph; FileNotFoundError where it is missing, so that tests fail."""
    root = os.environ.get("FULLGRAPH_SHARED", Path(__file__).parents[2] / "shared")
    path = Path(root) / "data" / f"{name}.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; set FULLGRAPH_SHARED to the folder of data/")
    return path
