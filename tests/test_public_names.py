"""The public names: each is there, documented, and loading the package alone is light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fullgraph


@pytest.mark.parametrize("name", fullgraph.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(fullgraph, name).__doc__
    assert name in dir(fullgraph)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fullgraph.trian  # noqa: B018


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, fullgraph; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
