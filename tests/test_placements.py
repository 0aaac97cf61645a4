"""Every layer × placement × schedule × number of ranks through the contract of tests/contract.py,
and what else holds for placements."""

from __future__ import annotations

import pytest

from fullgraph.comm.group import Group
from tests.contract import SCHEDULES, Setting, check_contract
from tests.ranks import run_ranks
from tests.test_contract import CASES

PLACEMENTS = {
    1: ["vertex-cut", "grid:1x1x1"],
    2: ["vertex-cut", "grid:2x1x1", "grid:1x2x1", "grid:1x1x2"],
    3: ["vertex-cut", "grid:1x3x1", "grid:1x1x3", "grid:3x1x1"],
    4: ["vertex-cut", "grid:2x2x1", "grid:1x2x2", "grid:2x1x2"],
    8: ["grid:2x2x2", "vertex-cut", "grid:4x2x1"],
}
SMALL = ["multigraph", "tiny", "no_edges", "one_source_part"]


def settings(size: int, name: str) -> list[tuple[str, Setting]]:
    """Every placement of so many ranks, on the ugliest graph and on one of the others in turn; the
    schedules and the layouts of parts take turns, from case to case, too."""
    turn = size + [*CASES].index(name)
    layouts = [(max(size, 4), False), (size, False), (size + 1, True)]
    found = []
    for k, placement in enumerate(PLACEMENTS[size]):
        for graph in (SMALL[0], SMALL[1 + (turn + k) % 3]):
            schedule = SCHEDULES[(turn + len(found)) % 4]
            block_bytes = 1 << 25 if schedule == "oneshot" else 200
            layout = layouts[(turn + k) % 3]
            found.append((graph, Setting(schedule, block_bytes, *layout, placement)))
    return found


def check_case(group: Group, name: str) -> None:
    for graph, setting in settings(group.size, name):
        try:
            check_contract(group, CASES[name], graph, [setting], steps=1)
        except AssertionError as error:
            raise AssertionError(f"{name} on {error}") from None


@pytest.mark.parametrize("size", PLACEMENTS)
def test_every_placement_meets_every_schedule_and_layout(size: int) -> None:
    met = {(s.placement, s.schedule) for name in CASES for _, s in settings(size, name)}
    assert met == {(p, s) for p in PLACEMENTS[size] for s in SCHEDULES}
    layouts = {(s.placement, s.empty_part) for name in CASES for _, s in settings(size, name)}
    assert layouts == {(p, empty) for p in PLACEMENTS[size] for empty in (True, False)}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_equals_pyg_in_one_process(name: str, size: int) -> None:
    run_ranks(check_case, size, name)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "sage_max", "gin"])
def test_equals_pyg_on_eight_ranks(name: str) -> None:
    run_ranks(check_case, 8, name, timeout=300)
