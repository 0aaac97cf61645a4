"""An interrupt ends training even where Python drops the first."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from fullgraph.training import interrupts


@pytest.fixture
def _signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    monkeypatch.setattr(interrupts, "AGAIN", 0.05)
    interrupts.stop_on_signals(0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


class _Interrupted:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # where the handler runs, and what it raises is dropped


@pytest.mark.usefixtures("_signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_was_dropped_comes_again_until_it_is_dealt_with() -> None:
    _Interrupted()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(10)
    interrupts.stopping()
    time.sleep(0.2)


@pytest.mark.usefixtures("_signals")
def test_a_timer_of_somebody_else_is_left_alone() -> None:
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 10)
    interrupts.stopping()
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
