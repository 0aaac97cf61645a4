"""Every kernel test that asks for `isa` runs once on each instruction set of the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fullgraph import kernels
from fullgraph.kernels import _ops


@pytest.fixture(params=kernels.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernels.isa()
    _ops.native.use_isa(request.param)
    yield request.param
    _ops.native.use_isa(before)
