"""A plan as people read it."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from fullgraph.planner.choose import Candidate, Plan
from fullgraph.planner.figures import parse_figures
from fullgraph.planner.report import advice, assumptions, table
from fullgraph.training.models import ModelOptions
from tests.planner.graphs import MACHINE

FIGURES = parse_figures("nodes=20000,edges=200000,features=32,classes=5")
FAST = Candidate("grid:2x2x1", "oneshot", True, 2_000_000_000, 3_400_000, 1.5, 1.2, 1.04)
BIG = replace(FAST, schedule="sequential", memory=32_000_000_000, fits=False)
STALE = replace(FAST, placement="destination", schedule="delayed:5", exact=False)
NONE = Candidate("vertex-cut", "any", refused="it needs more than figures", fits=False)
PLAN = Plan("GRAPH", FIGURES, ModelOptions("gat", 3, 256), 4, MACHINE, (FAST, STALE, BIG, NONE))


def _text(limit: int | None = None) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table(PLAN, limit))
    return console.export_text()


def test_the_table_has_a_line_for_each_candidate() -> None:
    lines = _text().splitlines()
    assert "gat 3 × 256 on 20,000 nodes, 200,000 edges, 5 classes, 4 worker(s)" in lines[0]
    (fast,) = [line for line in lines if "recommended" in line]
    for shown in ("grid:2x2x1", "oneshot", "2 GB", "3.4 MB", "1.5 s", "1.2 s", "1.04"):
        assert shown in fast
    assert any("32 GB" in line and "does not fit" in line for line in lines)
    assert any("delayed:5" in line and "approximate" in line for line in lines)
    assert any("vertex-cut" in line and "it needs more than" in line for line in lines)


def test_a_limit_says_how_many_more_there_are() -> None:
    assert "and 3 more (--all)" in _text(1)
    assert "vertex-cut" not in _text(1)


def test_assumptions_name_rates_network_and_a_missing_halo() -> None:
    text = assumptions(PLAN)
    assert "GFLOPS in dense products, sums read rows at 19.2 GB/s" in text
    assert "network: 1 GB/s, 100 us a message" in text
    assert "the graph has no locality" in text
    assert "locality" not in assumptions(replace(PLAN, figures=replace(FIGURES, halo=0.3)))


def test_advice_is_a_command_or_what_to_do() -> None:
    assert advice(PLAN) == (
        "recommended: fullgraph train GRAPH --model gat --hidden 256 --layers 3 --workers 4 "
        "--placement grid:2x2x1 --schedule oneshot"
    )
    assert "needs 32 GB a worker. Take more workers" in advice(replace(PLAN, candidates=(BIG,)))
    assert "nothing of this can run" in advice(replace(PLAN, candidates=(NONE,)))
