"""The ledger by hand: what is held, and what an operation costs."""

from __future__ import annotations

import pytest
import torch

from fullgraph import kernels
from fullgraph.kernels._memory import LARGE_BYTES
from fullgraph.planner.ledger import Ledger
from fullgraph.planner.rates import Rates
from tests.poison import clean_new_empty

RATES = Rates(
    flops=1e9, edge=lambda work: 1e-6, stream=1e6, fresh=1e5, dropout=1e4, call=1.0, step=0.01
)
ROWS = LARGE_BYTES // 4


def test_memory_of_earlier_tensors_is_held_and_costs_nothing() -> None:
    with torch.device("meta"), Ledger(RATES) as ledger:
        like = torch.empty(3)
        x = clean_new_empty(like, ROWS, 2)
        assert (ledger.live, ledger.now) == (12 + x.nbytes, 0)
        y = torch.empty(ROWS, 2)
        assert (ledger.live, ledger.now) == (12 + 2 * x.nbytes, pytest.approx(x.nbytes / 1e5))
        del x, y
        assert ledger.live == 12
        assert ledger.peak == 12 + 4 * LARGE_BYTES


def test_a_kernel_and_any_other_operation_take_what_each_takes_however_small() -> None:
    with torch.device("meta"), Ledger(RATES) as ledger:
        x, w, out = torch.empty(5, 3), torch.empty(3, 2), torch.empty(5, 2)
        kernels.dense(x, w, out)
        assert ledger.now == pytest.approx(1.0 + 2 * 5 * 3 * 2 / 1e9)
        before = ledger.now
        torch.mm(x, w)
        assert ledger.now - before == pytest.approx(0.01 + 2 * 5 * 3 * 2 / 1e9)
        before = ledger.now
        x.add_(1)
        assert ledger.now - before == pytest.approx(0.01 + 2 * x.nbytes / 1e6)
