"""Tests run on one thread, with new memory poisoned. What one says with `record_property` is
printed at the end, also where it passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.poison import poison_new_memory

poison_new_memory()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """There is a process for every core, and threads that wait for each other in small steps cost
    more than they do. Tests of several threads set their number themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, text in report.user_properties if report.when == "call" else ():
                terminalreporter.write_line(f"{name}: {text}")
